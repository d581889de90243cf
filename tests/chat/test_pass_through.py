"""Requests that pass through to an upstream that speaks their API itself."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from apexbridge.llm.config import UpstreamApi
from apexbridge.llm.upstream_errors import UpstreamError
from apexbridge.retrieval.embedders.embedder import Embedder
from apexbridge.settings import UpstreamSettings
from apexbridge.surfaces.http.chat.forwarding import ForwardedStream
from tests.chat.live import UPSTREAM_KEY_VARIABLE, Live, live, request_until_disconnect
from tests.chat.messages_client import HEADERS, body_of, events_of, post
from tests.chat.upstream import KEY, Step, Upstream, refusal
from tests.waiting import wait_until

Json = dict[str, Any]
USAGE = {"input_tokens": 7, "cache_read_input_tokens": 3, "output_tokens": 5}
MESSAGE: Json = {
    "id": "msg_upstream",
    "type": "message",
    "role": "assistant",
    "model": "theirs",
    "content": [{"type": "text", "text": "Hello."}, {"type": "new_block", "field": 1.50}],
    "stop_reason": "max_tokens",
    "usage": USAGE,
}


def event(data: Json) -> bytes:
    return f"event: {data['type']}\ndata: {json.dumps(data)}\n\n".encode()


EVENTS = [
    event({"type": "message_start", "message": {**MESSAGE, "content": [], "usage": {"input_tokens": 7}}}),
    b": a comment\n\n",
    event({"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "Hel"}}),
    event({"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "lo."}}),
    event({"type": "message_delta", "delta": {"stop_reason": "max_tokens"}, "usage": {"output_tokens": 5}}),
    event({"type": "message_stop"}),
]


@pytest.fixture(scope="module")
def server(upstream: Upstream, embedder: Embedder, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    kinds: dict[str, tuple[UpstreamApi, ...]] = {
        "both": ("chat", "messages", "responses"),
        "other": ("messages", "responses"),
        "native": ("chat",),
    }
    tables = tuple(
        UpstreamSettings(
            name=kind,
            base_url=upstream.url,
            api_key_env=UPSTREAM_KEY_VARIABLE,
            models=(f"{kind}-*",),
            tool_mode="native",
            apis=apis,
        )
        for kind, apis in kinds.items()
    )
    folder = tmp_path_factory.mktemp("served") / "data"
    with live(folder, upstream, embedder, llm=tables, chat_records="full") as opened:
        yield opened


def test_a_request_and_its_answer_pass_byte_for_byte(server: Live, upstream: Upstream) -> None:
    answered = json.dumps(MESSAGE, indent=3).encode()
    model = upstream.play(Step(body=answered, headers={"anthropic-ratelimit-requests-left": "9"}), kind="other")
    data = json.dumps({**body_of(model), "top_k": 5, "number": 1.50}, indent=1).encode()
    headers = {**HEADERS, "content-type": "application/json", "anthropic-beta": "one-2025-01-01"}
    response = server.http.post("/v1/messages?beta=true", content=data, headers=headers)
    assert (response.status_code, response.content) == (200, answered)
    assert response.headers["anthropic-ratelimit-requests-left"] == "9"
    assert response.headers["request-id"].startswith("req_")
    [seen] = upstream.seen(model)
    assert (seen.path, seen.raw) == ("/v1/messages?beta=true", data)
    sent = {name.lower(): value for name, value in seen.headers.items()}
    assert (sent["authorization"], sent["x-api-key"]) == (f"Bearer {KEY}", KEY)
    assert (sent["anthropic-version"], sent["anthropic-beta"]) == ("2023-06-01", "one-2025-01-01")


def test_a_stream_passes_byte_for_byte(server: Live, upstream: Upstream) -> None:
    model = upstream.play(Step(events=EVENTS), kind="other")
    response = post(server, model, stream=True)
    assert response.content == b"".join(EVENTS)
    assert response.headers["content-type"].startswith("text/event-stream")


@pytest.mark.parametrize("is_stream", [False, True])
def test_a_request_that_passes_is_recorded(server: Live, upstream: Upstream, is_stream: bool) -> None:
    model = upstream.play(Step(events=EVENTS) if is_stream else Step(body=MESSAGE), kind="other")
    response = post(server, model, stream=is_stream)
    record = server.http.get(f"/api/chats/{response.headers['request-id']}").raise_for_status().json()
    assert (record["model"], record["upstream"], record["stopCause"]) == (model, "other", "length")
    usage = record["usage"]
    assert (usage["promptTokens"], usage["completionTokens"]) == ((7, 5) if is_stream else (10, 5))
    assert record["answer"] == "Hello."


def test_a_request_passes_only_without_our_tools_if_the_upstream_speaks_chat(server: Live, upstream: Upstream) -> None:
    model = upstream.play(Step(text="From the loop."), kind="both")
    assert post(server, model).json()["content"] == [{"type": "text", "text": "From the loop."}]
    model = upstream.play(Step(body=MESSAGE), kind="both")
    assert post(server, model, x_bridge={"tools": False}).json() == MESSAGE
    [seen] = upstream.seen(model)
    assert (seen.path, "x_bridge" in seen.body) == ("/v1/messages", False)
    model = upstream.play(Step(text="From the loop."))
    assert post(server, model, x_bridge={"tools": False}).json()["content"][0]["text"] == "From the loop."


def test_a_model_without_chat_completions_has_none(server: Live, upstream: Upstream) -> None:
    model = upstream.play(Step(text="x"), kind="other")
    response = server.post(model)
    assert (response.status_code, response.json()["error"]["code"]) == (404, "model_not_found")
    assert "/v1/messages and /v1/responses" in response.json()["error"]["message"]


@pytest.mark.parametrize("is_stream", [False, True])
def test_a_refusal_passes_as_it_is(server: Live, upstream: Upstream, is_stream: bool) -> None:
    error = {"type": "error", "error": {"type": "odd_error", "message": "No."}, "request_id": "req_theirs"}
    model = upstream.play(Step(status=400, body=error), kind="other")
    response = post(server, model, stream=is_stream)
    assert (response.status_code, response.json()) == (400, error)


def test_an_upstream_that_cannot_be_read_gets_our_error(server: Live, upstream: Upstream) -> None:
    model = upstream.play(Step(status=400, body=b"<html>no</html>"), kind="other")
    response = post(server, model)
    assert (response.status_code, response.json()["error"]["type"]) == (400, "invalid_request_error")
    model = upstream.play(Step(body=MESSAGE, cut_after=0), kind="other")
    response = post(server, model)
    assert (response.status_code, response.json()["error"]["type"]) == (502, "api_error")


def test_a_broken_stream_ends_with_an_error(server: Live, upstream: Upstream) -> None:
    model = upstream.play(Step(events=EVENTS, cut_after=4), kind="other")
    response = post(server, model, stream=True)
    events = response.text.removeprefix(b"".join(EVENTS[:4]).decode()).strip().split("\n")
    assert events[0] == "event: error"
    assert json.loads(events[1].removeprefix("data: "))["error"]["type"] == "api_error"


CREATED = {"type": "response.created", "sequence_number": 0, "response": {"id": "resp_theirs", "object": "response"}}
TEXT = {"type": "response.output_text.delta", "sequence_number": 7, "delta": "Hel"}


def test_a_broken_stream_of_responses_ends_with_both_error_events(server: Live, upstream: Upstream) -> None:
    half = event(TEXT)[:-20]
    model = upstream.play(Step(events=[event(CREATED), event(TEXT), half, b""], cut_after=3), kind="other")
    response = server.http.post("/v1/responses", json={"model": model, "input": "hello", "stream": True})
    *events, done = [line[6:] for line in response.text.split("\n") if line.startswith("data: ")]
    error, failed = map(json.loads, events[2:])  # half an event would keep clients from reading the error
    assert done == "[DONE]"
    assert (error["type"], error["sequence_number"], error["message"]) == ("error", 8, error["error"]["message"])
    assert (failed["type"], failed["sequence_number"]) == ("response.failed", 9)
    assert (failed["response"]["id"], failed["response"]["status"]) == ("resp_theirs", "failed")
    assert failed["response"]["error"]["message"] == error["message"]


def test_the_error_of_a_broken_stream_does_not_depend_on_how_it_was_split() -> None:
    data = event(CREATED) + event(TEXT) + event(TEXT)[:-20]
    for cut in range(len(data)):
        stream = ForwardedStream("/v1/responses")
        for part in (data[:cut], data[cut:]):
            stream.passed(part)
        sent = stream.fail(UpstreamError.of_ours(502, "broken", "upstream_cut")).decode()
        error, failed, _ = [line[6:] for line in sent.split("\n") if line.startswith("data: ")]
        assert json.loads(error)["sequence_number"] == 8, cut
        assert json.loads(failed)["response"]["id"] == "resp_theirs", cut


def test_a_stream_that_fails_before_its_first_event_has_a_failed_response() -> None:
    error = UpstreamError.of_ours(502, "broken", "upstream_cut")
    data = ForwardedStream("/v1/responses").fail(error).decode().strip().split("data: ")
    assert json.loads(data[1].split("\n")[0])["message"] == "broken"
    assert json.loads(data[2].split("\n")[0])["response"]["error"]["code"] == "upstream_cut"


def test_lines_pass_when_they_are_complete_or_very_long() -> None:
    stream = ForwardedStream("/v1/messages")
    assert [stream.passed(part) for part in (b"data: 1\nda", b"ta", b": 2\n\n")] == [b"data: 1\n", b"", b"data: 2\n\n"]
    assert stream.passed(b"x" * 100) == b""
    assert stream.passed(b"x" * 100_000) == b"x" * 100_100
    assert (stream.passed(b"end"), stream.end()) == (b"", b"end")


def test_a_disconnect_ends_the_upstreams_answer(server: Live, upstream: Upstream) -> None:
    model = upstream.play(Step(events=EVENTS, hang_after=2), kind="other")
    with request_until_disconnect(server, model, path="/v1/messages", stream=True, max_tokens=10):
        wait_until(lambda: upstream.seen(model))
    wait_until(lambda: upstream.seen(model)[0].was_disconnected)


def test_tokens_are_counted_by_the_upstream(server: Live, upstream: Upstream) -> None:
    model = upstream.play(Step(body={"input_tokens": 123}), kind="other")
    body = {"model": model, "messages": [{"role": "user", "content": "x"}]}
    response = server.http.post("/v1/messages/count_tokens", json=body, headers=HEADERS)
    assert response.json() == {"input_tokens": 123}
    assert upstream.seen(model)[0].path == "/v1/messages/count_tokens"
    model = upstream.play(refusal(429, "Slow down."), kind="other")
    assert server.http.post("/v1/messages/count_tokens", json={**body, "model": model}).status_code == 429


@pytest.mark.parametrize("options", [1, {"nothing": 1}])
def test_bad_options_are_refused(server: Live, upstream: Upstream, options: Any) -> None:
    model = upstream.play(Step(body=MESSAGE), kind="other")
    assert post(server, model, x_bridge=options).status_code == 400
    assert upstream.seen(model) == []


def test_models_are_listed_with_the_headers_of_the_upstreams_api(server: Live, upstream: Upstream) -> None:
    upstream.listed_with.clear()
    server.http.get("/v1/models").raise_for_status()
    sent = [(headers.get("x-api-key"), headers.get("anthropic-version")) for headers in upstream.listed_with]
    assert sorted(sent, key=str) == sorted([(KEY, "2023-06-01"), (KEY, "2023-06-01"), (None, None)], key=str)


def test_a_page_for_browsers_is_not_served(server: Live, upstream: Upstream) -> None:
    model = upstream.play(Step(body=b"<script></script>", headers={"content-type": "text/html"}), kind="other")
    assert post(server, model).headers["content-type"] == "application/octet-stream"


def test_odd_answers_pass(server: Live, upstream: Upstream) -> None:
    for data in (b"", b"[]", b"not JSON", b'{"usage": 1, "content": [1], "type": "message", "delta": {"text": 1}}'):
        model = upstream.play(Step(body=data), kind="other")
        assert post(server, model).content == data
    long = b"data: " + b"x" * (9 << 20) + b"\n\n"
    model = upstream.play(Step(events=[long, *EVENTS]), kind="other")
    assert len(post(server, model, stream=True).content) == len(long) + len(b"".join(EVENTS))
    assert events_of(post(server, upstream.play(Step(events=EVENTS[-1:]), kind="other"), stream=True))


def test_requests_of_the_responses_api_pass_too(server: Live, upstream: Upstream) -> None:
    usage = {"input_tokens": 7, "output_tokens": 5}
    part = {"type": "output_text", "text": "Hello."}
    whole = {"id": "resp_1", "object": "response", "output": [{"type": "message", "content": [part]}], "usage": usage}
    model = upstream.play(Step(body=whole), kind="other")
    response = server.http.post("/v1/responses", json={"model": model, "input": "hi"})
    assert response.json() == whole
    assert upstream.seen(model)[0].path == "/v1/responses"
    assert "x-api-key" not in {name.lower() for name in upstream.seen(model)[0].headers}
    record = server.http.get(f"/api/chats/{response.headers['x-request-id']}").raise_for_status().json()
    assert (record["usage"]["promptTokens"], record["answer"]) == (7, "Hello.")
    events = [
        event({"type": "response.output_text.delta", "delta": "Hello."}),
        event({"type": "response.completed", "response": whole}),
    ]
    model = upstream.play(Step(events=events), kind="both")
    body = {"model": model, "input": "hi", "stream": True, "x_bridge": {"tools": False}}
    assert server.http.post("/v1/responses", json=body).content == b"".join(events)
    model = upstream.play(Step(text="From the loop."), kind="both")
    looped = server.http.post("/v1/responses", json={"model": model, "input": "hi"}).json()
    assert looped["output"][0]["content"][0]["text"] == "From the loop."
