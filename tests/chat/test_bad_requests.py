"""Bad requests are refused in OpenAI's format, and do not affect other requests."""

import asyncio
import json
import random
from typing import Any

import httpx
import pytest

from tests.chat.live import Live, request_of
from tests.chat.upstream import Step, Upstream, call

pytestmark = pytest.mark.requirement("G1")
USER = {"role": "user", "content": "hello"}
BAD: dict[str, Any] = {
    "no JSON": b"{broken",
    "nothing": b"",
    "no UTF-8": b'{"messages": "\xff"}',
    "a list": b"[]",
    "deep": b"[" * 50_000,
    "no number": b'{"model": "m", "messages": [{"role": "user", "content": "hi"}], "temperature": NaN}',
    "no messages": {"model": "m", "messages": []},
    "a role that is none": {"model": "m", "messages": [{"role": "robot", "content": "x"}]},
    "a role that is a list": {"model": "m", "messages": [{"role": [], "content": "x"}]},
    "an orphan": {"model": "m", "messages": [USER, {"role": "tool", "tool_call_id": "x", "content": "y"}]},
    "calls that are none": {"model": "m", "messages": [USER, {"role": "assistant", "tool_calls": [{"id": "x"}]}]},
    "10,000 tools": {
        "model": "m",
        "messages": [USER],
        "tools": [{"type": "function", "function": {"name": "f"}}] * 10_000,
    },
    "tools that are none": {"model": "m", "messages": [USER], "tools": [7]},
    "options of a stream that are none": {"model": "native-1", "messages": [USER], "stream_options": 5},
    "no model": {"messages": [USER]},
    "an unknown extension": {"model": "m", "messages": [USER], "x_bridge": {"sudo": True}},
    "an unknown skill": {"model": "native-1", "messages": [USER], "x_bridge": {"skills": ["x" * 1000]}},
}


def is_openai_error(response: httpx.Response) -> bool:
    error = response.json()["error"]
    return set(error) == {"message", "type", "param", "code"} and error["type"] == "invalid_request_error"


@pytest.mark.parametrize("kind", BAD)
def test_a_bad_request_is_refused_in_openais_format(bridge_server: Live, kind: str, is_stream: bool) -> None:
    body = BAD[kind]
    if isinstance(body, dict):
        body = json.dumps({**body, "stream": is_stream}).encode()
    response = bridge_server.http.post("/v1/chat/completions", content=body)
    assert response.status_code == 400, response.text
    assert is_openai_error(response)
    assert "Traceback" not in response.text


def test_an_unknown_model_is_refused(bridge_server: Live) -> None:
    response = bridge_server.post("gpt-9")
    assert (response.status_code, response.json()["error"]["code"]) == (404, "model_not_found")
    assert is_openai_error(response)


def test_a_body_of_nine_megabytes_is_refused(bridge_server: Live, upstream: Upstream) -> None:
    model = upstream.play(Step(text="Hi."))
    response = bridge_server.post(model, "x" * 9 * 1024 * 1024)
    assert response.status_code == 413
    assert is_openai_error(response)
    assert bridge_server.ask(model, "x" * 7 * 1024 * 1024)["choices"][0]["message"]["content"] == "Hi."


@pytest.mark.parametrize(
    ("method", "path", "status"), [("GET", "/v1/chat/completions", 405), ("POST", "/v1/none", 404)]
)
def test_unknown_routes_below_v1_are_refused_in_openais_format(
    bridge_server: Live, method: str, path: str, status: int
) -> None:
    response = bridge_server.http.request(method, path, json={})
    assert response.status_code == status
    assert is_openai_error(response)


@pytest.mark.slow
def test_bad_requests_and_broken_upstreams_do_not_affect_other_requests(
    bridge_server: Live, upstream: Upstream
) -> None:
    """Send a hundred requests concurrently, most of them bad; each good one gets its own answer."""

    async def good(client: httpx.AsyncClient, number: int) -> None:
        model = upstream.play(
            Step(calls=[call("calculate", {"expression": f"{number}+0"})]),
            lambda body: Step(text=f"It is {body['messages'][-1]['content']}."),
        )
        body = request_of(model, stream=bool(number % 2))
        text = (await client.post("/v1/chat/completions", json=body)).text
        if number % 2:
            chunks = [json.loads(line[6:]) for line in text.split("\n\n") if line.startswith("data: {")]
            content = "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks)
        else:
            content = json.loads(text)["choices"][0]["message"]["content"]
        assert content == f"It is {number}."

    async def bad(client: httpx.AsyncClient, number: int) -> None:
        kind = list(BAD)[number % len(BAD)]
        body = BAD[kind] if isinstance(BAD[kind], bytes) else json.dumps(BAD[kind]).encode()
        assert (await client.post("/v1/chat/completions", content=body)).status_code == 400

    async def broken(client: httpx.AsyncClient, number: int) -> None:
        model = upstream.play(Step(text="a long text that is cut", cut_after=3))
        text = (await client.post("/v1/chat/completions", json=request_of(model, stream=True))).text
        assert "upstream_cut" in text

    async def disconnect(client: httpx.AsyncClient, number: int) -> None:
        model = upstream.play(Step(text="never", hang_after=2))
        async with client.stream("POST", "/v1/chat/completions", json=request_of(model, stream=True)) as response:
            assert response.status_code == 200

    async def send_all() -> None:
        limits = httpx.Limits(max_connections=100)
        async with httpx.AsyncClient(base_url=bridge_server.url, timeout=30, trust_env=False, limits=limits) as client:
            work = [(kind, number) for number in range(25) for kind in (good, bad, broken, disconnect)]
            random.Random(7).shuffle(work)
            await asyncio.gather(*(kind(client, number) for kind, number in work))

    asyncio.run(send_all())


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x"])
def test_a_body_with_another_content_type_than_json_is_refused(
    bridge_server: Live, upstream: Upstream, kind: str
) -> None:
    body = json.dumps(request_of(upstream.play(Step(text="Hi."))))
    path = "/v1/chat/completions"
    response = bridge_server.http.post(path, content=body, headers={"content-type": kind})
    assert (response.status_code, response.json()["error"]["code"]) == (415, "unsupported_media_type")
    for good in ({}, {"content-type": "Application/JSON; charset=utf-8"}, {"content-type": "application/x+json"}):
        assert bridge_server.http.post(path, content=body, headers=good).status_code == 200


def test_a_number_too_large_for_a_float_is_refused(bridge_server: Live, upstream: Upstream) -> None:
    body = json.dumps(request_of(upstream.play(Step(text="Hi.")), temperature=1)).replace("1}", "1e400}")
    assert bridge_server.http.post("/v1/chat/completions", content=body).status_code == 400
