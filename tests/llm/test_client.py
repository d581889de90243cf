"""The client of model servers: retries, pass-through, errors, timeouts and cancellation."""

import asyncio
import gzip
import json
import socket
from collections.abc import AsyncIterator
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from apexbridge.llm import client as module
from apexbridge.llm.client import UpstreamClient
from apexbridge.llm.config import LLMSettings
from apexbridge.llm.config import Upstream as Address
from apexbridge.llm.response import CHUNK_BYTES
from apexbridge.llm.upstream_errors import UpstreamError
from tests.chat.upstream import KEY, Step, Upstream, call, refusal
from tests.waiting import until

pytestmark = pytest.mark.anyio
Json = dict[str, Any]


@pytest.fixture(autouse=True)
def _no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "FIRST_WAIT_SECONDS", 0.001)


@pytest.fixture
async def client() -> AsyncIterator[UpstreamClient]:
    opened = UpstreamClient(silence_seconds=0.3)
    with anyio.fail_after(60):
        yield opened
    await opened.close()


@pytest.fixture
def address(upstream: Upstream) -> Address:
    return Address(base_url=upstream.url, api_key=KEY)


def body_of(model: str, **fields: Any) -> Json:
    return {"model": model, "messages": [{"role": "user", "content": "hello"}], **fields}


async def streamed_chunks(client: UpstreamClient, address: Address, model: str) -> list[Json]:
    return await chunks_of(client, address, body_of(model, stream=True))


async def chunks_of(client: UpstreamClient, address: Address, body: Json, *, seconds: float = 60) -> list[Json]:
    response = await client.ask(address, body, seconds)
    received: list[Json] = []
    try:
        while (chunks := await response.next()) is not None:
            received += chunks
    finally:
        client.done(response)
    return received


async def complete(client: UpstreamClient, address: Address, body: Json) -> Json:
    (completion,) = await chunks_of(client, address, body)
    return completion


def text_of(chunks: list[Json]) -> str:
    return "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks if chunk["choices"])


async def failure(client: UpstreamClient, address: Address, model: str, *, stream: bool) -> UpstreamError:
    with pytest.raises(UpstreamError) as caught:
        await chunks_of(client, address, body_of(model, stream=stream), seconds=60 if stream else 1)
    return caught.value


both = pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])


# ------------------------------------------------------------------------------------------------------------ responses
async def test_requests_and_responses_are_passed_on_unchanged(
    client: UpstreamClient, address: Address, upstream: Upstream
) -> None:
    model = upstream.play(Step(text="hi", fields={"annotations": []}))
    body = body_of(model, seed=7, nested={"unknown": ["字", 1.5, None]}, top_logprobs=2**70)
    response = await complete(client, address, body)
    assert response["choices"][0]["message"] == {"role": "assistant", "content": "hi", "annotations": []}
    assert upstream.bodies(model) == [body]
    assert upstream.seen(model)[0].headers["Authorization"] == f"Bearer {KEY}"


@pytest.mark.parametrize(
    "quirks",
    [
        {"crlf"},
        {"comments"},
        {"no_done"},
        {"no_space", "crlf", "comments"},
        {"empty_first", "role_always"},
        {"one_byte"},
        {"one_byte", "crlf"},
    ],
    ids=lambda quirks: " ".join(sorted(quirks)),
)
async def test_streams_are_read_in_every_common_format(
    client: UpstreamClient, address: Address, upstream: Upstream, quirks: set[str]
) -> None:
    model = upstream.play(Step(text="hello, 世界", quirks=frozenset(quirks)))
    assert text_of(await streamed_chunks(client, address, model)) == "hello, 世界"


async def test_a_server_that_does_not_stream_sends_one_chunk(
    client: UpstreamClient, address: Address, upstream: Upstream
) -> None:
    model = upstream.play(Step(text="whole", quirks=frozenset({"plain_json"})))
    chunks = await streamed_chunks(client, address, model)
    assert [chunk["choices"][0]["message"]["content"] for chunk in chunks] == ["whole"]


async def test_a_lone_surrogate_reaches_the_server_unchanged(
    client: UpstreamClient, address: Address, upstream: Upstream
) -> None:
    model = upstream.play(Step(text="hi"))
    await complete(client, address, body_of(model, user="half \ud83d of 😀"))
    seen = upstream.seen(model)[0]
    assert seen.body["user"] == "half \ud83d of 😀"
    seen.raw.decode("utf-8")


# -------------------------------------------------------------------------------------------------------------- retries
@both
@pytest.mark.parametrize("status", [408, 429, 500, 502, 503, 504, 529])
async def test_a_temporary_failure_is_retried(
    client: UpstreamClient, address: Address, upstream: Upstream, status: int, stream: bool
) -> None:
    model = upstream.play(refusal(status, "later"), refusal(status, "later"), Step(text="now"))
    if stream:
        assert text_of(await streamed_chunks(client, address, model)) == "now"
    else:
        assert (await complete(client, address, body_of(model)))["choices"][0]["message"]["content"] == "now"
    assert len(upstream.seen(model)) == 3


@both
async def test_the_number_of_attempts_is_limited(
    client: UpstreamClient, address: Address, upstream: Upstream, stream: bool
) -> None:
    model = upstream.play(refusal(503, "overloaded"))
    error = await failure(client, address, model, stream=stream)
    assert (error.status, error.error["message"], len(upstream.seen(model))) == (503, "overloaded", module.ATTEMPTS)


async def test_retry_after_is_respected(
    client: UpstreamClient, address: Address, upstream: Upstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits: list[float] = []

    async def sleep(seconds: float) -> None:
        waits.append(seconds)

    monkeypatch.setattr(module.asyncio, "sleep", sleep)  # type: ignore[attr-defined]
    model = upstream.play(refusal(429, "slow down", retry_after="7"), Step(text="now"))
    await complete(client, address, body_of(model))
    assert 7 in waits


async def test_a_long_retry_after_is_not_waited_for(
    client: UpstreamClient, address: Address, upstream: Upstream
) -> None:
    model = upstream.play(refusal(429, "come back tomorrow", retry_after="86400"), Step(text="now"))
    error = await failure(client, address, model, stream=False)
    assert (error.status, error.headers["retry-after"], len(upstream.seen(model))) == (429, "86400", 1)


@both
@pytest.mark.parametrize("status", [400, 401, 403, 404, 413, 422])
async def test_a_refusal_is_passed_on_without_retries_with_its_body_and_headers(
    client: UpstreamClient, address: Address, upstream: Upstream, status: int, stream: bool
) -> None:
    headers = {"x_ratelimit_remaining_requests": "0", "x_secret": "s"}
    model = upstream.play(refusal(status, "no", code="why", param="p", **headers))
    error = await failure(client, address, model, stream=stream)
    assert error.status == status
    assert json.loads(error.body) == {
        "error": {"message": "no", "type": "invalid_request_error", "param": "p", "code": "why"}
    }
    assert error.headers == {"x-ratelimit-remaining-requests": "0"}
    assert len(upstream.seen(model)) == 1


# --------------------------------------------------------------------------------------------------------------- errors
@both
@pytest.mark.parametrize(
    ("step", "status", "code"),
    [
        (Step(hang_after=-1), 504, "upstream_timeout"),
        (Step(body=b"{broken"), 502, "upstream_invalid"),
        (Step(body=b"[" * 100_000), 502, "upstream_invalid"),
        (Step(body=b"<html>sign in</html>", headers={"content-type": "text/html"}), 502, "upstream_invalid"),
        (Step(body={"object": "nothing"}), 502, "upstream_invalid"),
        (Step(body=[]), 502, "upstream_invalid"),
        (Step(body={}, cut_after=0), 502, "upstream_cut"),
    ],
    ids=["hangs", "broken JSON", "deep JSON", "a page", "no completion", "a list", "cut"],
)
async def test_an_invalid_response_is_an_error(
    client: UpstreamClient,
    address: Address,
    upstream: Upstream,
    step: Step,
    status: int,
    code: str,
    stream: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "ATTEMPTS", 1)
    error = await failure(client, address, upstream.play(step), stream=stream)
    assert (error.status, error.error["code"], error.error["type"]) == (status, code, "upstream_error")


CHUNK = b'data: {"choices": [{"index": 0, "delta": {"content": "half"}, "finish_reason": null}]}\n\n'


@pytest.mark.parametrize(
    ("step", "status", "code"),
    [
        (Step(text="a long text that is cut", cut_after=3), 502, "upstream_cut"),
        (Step(text="a text", hang_after=2), 504, "upstream_timeout"),
        (Step(events=[CHUNK]), 502, "upstream_cut"),
        (Step(events=[CHUNK, b"data: {broken\n\n"]), 502, "upstream_invalid"),
        (Step(events=[CHUNK, b"data: " + b"[" * 100_000 + b"\n\n"]), 502, "upstream_invalid"),
        (Step(events=[CHUNK, b"data: 7\n\n"]), 502, "upstream_invalid"),
        (Step(events=[CHUNK, b'data: {"error": {"message": "full", "code": "full"}}\n\n']), 502, "full"),
        (Step(events=[CHUNK, b'data: {"error": "full"}\n\n']), 502, "upstream_error"),
        (
            Step(
                events=[
                    CHUNK,
                    b'data: {"error": {"code": "full", "message": "full"}, ' + CHUNK.removeprefix(b"data: {"),
                ]
            ),
            502,
            "full",
        ),
        (Step(events=[CHUNK, b"data: " + b"x" * 9_000_000]), 502, "upstream_invalid"),
        (Step(events=[b"data: [DONE]\n\n"]), 502, "upstream_invalid"),
        (Step(events=[b": nothing\n\n"]), 502, "upstream_cut"),
    ],
    ids=[
        "torn",
        "silent",
        "ended early",
        "broken JSON",
        "deep JSON",
        "a number",
        "an error",
        "an error in words",
        "an error beside a choice",
        "an endless event",
        "nothing but its end",
        "nothing",
    ],
)
async def test_a_broken_stream_is_an_error_and_is_not_retried(
    client: UpstreamClient, address: Address, upstream: Upstream, step: Step, status: int, code: str
) -> None:
    model = upstream.play(step, Step(text="again"))
    error = await failure(client, address, model, stream=True)
    assert (error.status, error.error["code"], len(upstream.seen(model))) == (status, code, 1)


async def test_an_unreachable_server_is_an_error_with_its_address_and_without_credentials(
    client: UpstreamClient,
) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    address = Address(base_url=f"http://user:secret@127.0.0.1:{port}/v1?token=hidden", api_key=KEY)
    error = await failure(client, address, "any", stream=False)
    assert (error.status, error.error["code"]) == (502, "upstream_unreachable")
    assert f"The model server at http://127.0.0.1:{port}/v1 cannot be reached" in error.error["message"]
    assert not any(word in error.error["message"] for word in ("user", "secret", "hidden", KEY))
    for url in ("no address", "http://", "ftp://127.0.0.1/v1"):
        assert (await failure(client, Address(base_url=url), "any", stream=True)).status == 502


async def test_a_server_that_times_out_is_not_retried(
    client: UpstreamClient, address: Address, upstream: Upstream
) -> None:
    model = upstream.play(Step(hang_after=-1))
    assert (await failure(client, address, model, stream=True)).status == 504
    assert len(upstream.seen(model)) == 1


@pytest.mark.parametrize("status", [301, 302, 307, 308])
async def test_redirects_are_not_followed(
    client: UpstreamClient, address: Address, upstream: Upstream, status: int
) -> None:
    elsewhere = f"{upstream.url}/chat/completions?elsewhere"
    model = upstream.play(Step(status=status, body=b"", headers={"location": elsewhere}))
    error = await failure(client, address, model, stream=False)
    assert (error.status, error.error["code"]) == (502, "upstream_redirect")
    assert len(upstream.seen(model)) == 1


@both
async def test_a_cancelled_request_disconnects_from_the_server(
    address: Address, upstream: Upstream, stream: bool
) -> None:
    model = upstream.play(Step(text="a text", hang_after=2 if stream else -1))
    patient = UpstreamClient(silence_seconds=60)

    async def ask() -> None:
        await (streamed_chunks(patient, address, model) if stream else complete(patient, address, body_of(model)))

    with anyio.fail_after(60):
        async with anyio.create_task_group() as group:
            group.start_soon(ask)
            await until(lambda: upstream.seen(model))
            group.cancel_scope.cancel()
        await until(lambda: upstream.seen(model)[0].is_over)
    assert upstream.seen(model)[0].was_disconnected
    await patient.close()


async def test_chunks_before_an_error_are_returned(
    client: UpstreamClient, address: Address, upstream: Upstream
) -> None:
    model = upstream.play(Step(events=[CHUNK + CHUNK + b"data: {broken\n\n"]))
    response = await client.ask(address, body_of(model, stream=True))
    assert [chunk["choices"][0]["delta"]["content"] for chunk in await response.next() or []] == ["half", "half"]
    for _ in range(2):
        with pytest.raises(UpstreamError):
            await response.next()
    client.done(response)


@both
@pytest.mark.parametrize("after", [-1, 2])
async def test_a_response_that_takes_too_long_is_a_timeout(
    address: Address, upstream: Upstream, stream: bool, after: int
) -> None:
    patient = UpstreamClient(silence_seconds=60)
    model = upstream.play(Step(text="a text", hang_after=after if stream else -1))
    with anyio.fail_after(60), pytest.raises(UpstreamError) as caught:
        await chunks_of(patient, address, body_of(model, stream=stream), seconds=0.3)
    assert (caught.value.status, caught.value.error["code"]) == (504, "upstream_timeout")
    assert caught.value.error["message"] == "The model took too long."
    await patient.close()


# --------------------------------------------------------------------------------------------------------------- others
@both
async def test_consecutive_requests_use_one_connection(
    client: UpstreamClient, address: Address, upstream: Upstream, stream: bool
) -> None:
    model = upstream.play(Step(text="a text"))
    for _ in range(5):
        await chunks_of(client, address, body_of(model, stream=stream))
        await anyio.sleep(0.05)
    assert len({seen.peer for seen in upstream.seen(model)}) == 1


async def test_invalid_entries_in_a_list_of_models_are_ignored(
    client: UpstreamClient, address: Address, upstream: Upstream
) -> None:
    assert [model["id"] for model in await client.models(address)] == ["native-listed", "unserved"]
    upstream.models = {"data": [{"id": "a"}, "b", None]}
    assert await client.models(address) == [{"id": "a"}]
    upstream.models = None
    with pytest.raises(UpstreamError):
        await client.models(address)
    upstream.models = {"object": "list", "data": []}


async def test_tool_calls_are_passed_on(client: UpstreamClient, address: Address, upstream: Upstream) -> None:
    model = upstream.play(Step(calls=[call("f", {"a": 1})]))
    response = await complete(client, address, body_of(model))
    assert response["choices"][0]["message"]["tool_calls"][0]["function"]["name"] == "f"


@pytest.mark.slow
async def test_a_compressed_response_that_becomes_very_large_does_not_block_other_tasks() -> None:
    events = b'data: {"choices": []}\n' * 500_000 + b'data: {"choices": [{"finish_reason": "stop"}]}\n'
    head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-encoding: gzip\r\nconnection: close\r\n\r\n"
    client, packed, turns = UpstreamClient(), gzip.compress(events), 0

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(head + packed)
        await writer.drain()
        writer.close()

    async def others() -> None:
        nonlocal turns
        while True:
            await anyio.lowlevel.checkpoint()
            turns += 1

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    address = Address(base_url=f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
    async with server, anyio.create_task_group() as group:
        response = await client.ask(address, body_of("m", stream=True))
        group.start_soon(others)
        count = 0
        while chunks := await response.next():
            count += len(chunks)
        client.done(response)
        group.cancel_scope.cancel()
    await client.close()
    assert count == 500_001
    assert turns > len(events) // CHUNK_BYTES // 2


def test_a_model_is_served_by_the_upstream_that_lists_it() -> None:
    first, second, third = (
        Address(name="named", base_url="http://a", models=("gpt-*",)),
        Address(name="all", base_url="http://b/"),
        Address(name="other", base_url="http://c", models=("qwen",)),
    )
    llm = LLMSettings(upstreams=(first, second, third))
    assert [llm.upstream_for(name).name for name in ("gpt-5", "qwen", "x")] == ["named", "other", "all"]  # type: ignore[union-attr]
    assert LLMSettings().upstream_for("x") is None
    assert second.url("models") == "http://b/models"
    assert "secret" not in repr(Address(base_url="http://a", api_key="secret"))
