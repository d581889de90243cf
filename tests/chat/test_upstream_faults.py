"""Failures of an upstream reach the client as errors, never as a truncated or empty answer."""

import json
import socket
from pathlib import Path
from typing import Any

import pytest

from apexbridge.llm import client as module
from apexbridge.retrieval.embedders.embedder import Embedder
from tests.chat.live import Live, live
from tests.chat.upstream import Step, Upstream, call, refusal

pytestmark = pytest.mark.requirement("G1")
OURS_OFF = {"x_bridge": {"tools": False}}


@pytest.fixture(autouse=True)
def _no_retry_delay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "FIRST_WAIT_SECONDS", 0.001)


@pytest.mark.parametrize("more", [{}, OURS_OFF], ids=["loop", "plain"])
@pytest.mark.parametrize("status", [400, 401, 403, 404, 413, 422, 429])
def test_a_refusal_is_passed_on_with_its_status_body_and_rate_limit_headers(
    bridge_server: Live, upstream: Upstream, is_stream: bool, status: int, more: Any
) -> None:
    headers = {"retry_after": "99", "x_ratelimit_remaining_tokens": "5", "x_internal": "secret", "set_cookie": "a=b"}
    model = upstream.play(refusal(status, "no 不行", code="why", param="p", **headers))
    response = bridge_server.post(model, stream=is_stream, **more)
    assert response.status_code == status
    assert response.headers["content-type"] == "application/json"
    assert response.json() == {
        "error": {"message": "no 不行", "type": "invalid_request_error", "param": "p", "code": "why"}
    }
    assert (response.headers["retry-after"], response.headers["x-ratelimit-remaining-tokens"]) == ("99", "5")
    assert not {"x-internal", "set-cookie"} & set(response.headers)
    assert len(upstream.seen(model)) == 1


def test_a_temporary_failure_is_retried(bridge_server: Live, upstream: Upstream, is_stream: bool) -> None:
    model = upstream.play(refusal(429, "slow", retry_after="0"), refusal(500, "oops"), Step(text="Here."))
    assert bridge_server.answer(is_stream, model)["content"] == "Here."


@pytest.mark.parametrize(
    ("step", "status", "code"),
    [
        (refusal(500, "oops", code="oops"), 500, "oops"),
        (Step(status=503, body=b"<html>busy</html>"), 503, "upstream_error"),
        (Step(status=400, body=b""), 400, "upstream_error"),
        (Step(status=400, body={"error": "in words"}), 400, "upstream_error"),
        (Step(status=400, body={"detail": "not OpenAI's shape"}), 400, "upstream_error"),
        (Step(status=400, body=b"[" * 50_000), 400, "upstream_error"),
        (Step(status=400, body={"error": {"message": 5}}), 400, "upstream_error"),
        (Step(status=400, body={"error": {}}), 400, "upstream_error"),
        (Step(status=400, body=b'{"error": {"message": "m", "more": NaN}}'), 400, "upstream_error"),
        (Step(status=400, body='{"error": {"message": "m"}}'.encode("utf-16")), 400, "upstream_error"),
        (Step(status=400, body=b'{"error": {"message": "' + b"m" * 10_000_000 + b'"}}'), 400, "upstream_error"),
        (Step(status=700, body=b'{"error": {"message": "m"}}'[:-1]), 502, "upstream_error"),
        (Step(status=307, headers={"location": "http://127.0.0.1:1/elsewhere"}, body=b""), 502, "upstream_redirect"),
        (Step(body=b"{broken"), 502, "upstream_invalid"),
        (Step(body={"choices": "none"}), 502, "upstream_invalid"),
        (Step(body={"choices": []}), 502, "upstream_invalid"),
    ],
    ids=[
        "500",
        "a page",
        "nothing",
        "words",
        "another shape",
        "deep",
        "a number for words",
        "no words",
        "no JSON",
        "UTF-16",
        "endless words",
        "no status",
        "a redirection",
        "broken JSON",
        "no choices",
        "empty choices",
    ],
)
def test_every_failure_is_reported_in_openais_format(
    bridge_server: Live, upstream: Upstream, is_stream: bool, step: Step, status: int, code: str
) -> None:
    response = bridge_server.post(upstream.play(step), stream=is_stream)
    error = response.json()["error"]
    assert (response.status_code, error["code"]) == (status, code)
    assert set(error) == {"message", "type", "param", "code"}
    assert 0 < len(error["message"]) <= 500


@pytest.mark.parametrize("status", [301, 302, 307, 308])
def test_redirects_are_not_followed(bridge_server: Live, upstream: Upstream, is_stream: bool, status: int) -> None:
    elsewhere = f"{upstream.url}/chat/completions?elsewhere"
    model = upstream.play(Step(status=status, headers={"location": elsewhere}, body=b""), Step(text="stolen"))
    response = bridge_server.post(model, stream=is_stream)
    assert (response.status_code, response.json()["error"]["code"]) == (502, "upstream_redirect")
    assert len(upstream.seen(model)) == 1


@pytest.mark.parametrize("total", ["NaN", "1e999", "-5", "9" * 400, '"many"'])
def test_an_invalid_token_count_is_ignored(bridge_server: Live, upstream: Upstream, total: str) -> None:
    whole = '{"choices": [{"message": {"content": "Here."}, "finish_reason": "stop"}], "usage": {"total_tokens": %s}}'
    answer = bridge_server.ask(upstream.play(Step(body=(whole % total).encode())))
    assert answer["choices"][0]["message"]["content"] == "Here."


@pytest.mark.parametrize("more", [{}, OURS_OFF], ids=["loop", "plain"])
@pytest.mark.parametrize("message", ['"\\ud800"', "NaN", "[1]"])
def test_an_error_in_a_stream_is_reported_even_if_its_message_is_invalid(
    bridge_server: Live, upstream: Upstream, message: str, more: Any
) -> None:
    first = b'data: {"choices": [{"delta": {"content": "a"}}]}\n\n'
    model = upstream.play(Step(events=[first, b'data: {"error": {"message": %s}}\n\n' % message.encode()]))
    event = json.loads(bridge_server.stream(model, **more).events[-1])
    assert isinstance(event["error"]["message"], str)


def test_too_many_calls_in_a_turn_are_a_failure(bridge_server: Live, upstream: Upstream, is_stream: bool) -> None:
    calls = [call("nothing", {}) for _ in range(1_001)]
    answer = bridge_server.post(upstream.play(Step(calls=calls)), stream=is_stream)
    assert "too many calls" in answer.text


def test_a_failure_in_a_later_turn_keeps_its_status_if_no_text_was_sent(
    bridge_server: Live, upstream: Upstream
) -> None:
    steps = Step(calls=[call("datetime")]), refusal(400, "context too long", code="context_length_exceeded")
    response = bridge_server.post(upstream.play(*steps))
    assert (response.status_code, response.json()["error"]["code"]) == (400, "context_length_exceeded")
    streamed = bridge_server.stream(upstream.play(*steps))
    assert json.loads(streamed.events[-1])["error"]["code"] == "context_length_exceeded"


@pytest.mark.parametrize("more", [{}, OURS_OFF], ids=["loop", "plain"])
@pytest.mark.parametrize(
    ("step", "code"),
    [
        (Step(text="a long text that is cut", cut_after=3), "upstream_cut"),
        (Step(text="a text", quirks=frozenset({"no_done"}), events=[b'data: {"choices": []}\n\n']), "upstream_cut"),
        (
            Step(events=[b'data: {"choices": [{"delta": {"content": "a"}}]}\n\n', b"data: {oops\n\n"]),
            "upstream_invalid",
        ),
        (Step(events=[b'data: {"choices": []}\n\n', b'data: {"error": {"message": "m", "code": "full"}}\n\n']), "full"),
    ],
    ids=["torn", "ended early", "broken JSON", "an error"],
)
def test_a_stream_that_breaks_ends_in_an_error(
    bridge_server: Live, upstream: Upstream, step: Step, code: str, more: Any
) -> None:
    model = upstream.play(step, Step(text="again"))
    streamed = bridge_server.stream(model, **more)
    assert streamed.status == 200
    assert "[DONE]" not in streamed.events
    assert json.loads(streamed.events[-1])["error"]["code"] == code
    assert all("finish_reason" not in event or '"finish_reason":null' in event for event in streamed.events)
    assert len(upstream.seen(model)) == 1


def test_an_empty_stream_is_a_failure(bridge_server: Live, upstream: Upstream) -> None:
    response = bridge_server.post(upstream.play(Step(events=[b"data: [DONE]\n\n"])), stream=True)
    assert (response.status_code, response.json()["error"]["code"]) == (502, "upstream_invalid")


def test_a_truncated_whole_answer_is_a_failure(bridge_server: Live, upstream: Upstream) -> None:
    response = bridge_server.post(upstream.play(Step(text="long " * 100, cut_after=0)))
    assert (response.status_code, response.json()["error"]["code"]) == (502, "upstream_cut")


def test_an_unreachable_upstream_is_reported(
    upstream: Upstream, embedder: Embedder, tmp_path: Path, is_stream: bool
) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}/v1"
    with live(tmp_path / "data", None, embedder, llm_base_url=url, llm_model="m") as server:
        response = server.http.post(
            "/v1/chat/completions", json={"messages": [{"role": "user", "content": "hi"}], "stream": is_stream}
        )
        assert (response.status_code, response.json()["error"]["code"]) == (502, "upstream_unreachable")
        assert server.http.get("/v1/models").json()["data"][0]["id"] == "m"
        unreachable = server.post("apex-offline", "6*7")
        assert "42" in unreachable.json()["choices"][0]["message"]["content"]


def test_a_wrong_key_for_the_upstream_is_reported_without_the_key(
    upstream: Upstream, embedder: Embedder, tmp_path: Path
) -> None:
    with live(tmp_path / "data", None, embedder, llm_base_url=upstream.url, llm_api_key="wrong-key") as server:
        response = server.post(upstream.play(Step(text="Hi.")))
        assert (response.status_code, response.json()["error"]["code"]) == (401, "invalid_api_key")
        assert "wrong-key" not in response.text
