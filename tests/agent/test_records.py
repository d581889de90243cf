"""Records of chats: how each request ended. A recorder that fails does not affect the request."""

import asyncio
from contextlib import aclosing
from typing import Any

import pytest

from apexbridge.agent.budget import add_usage
from apexbridge.agent.chat_events import ChatFinished, ChatStarted, Delta, Event, PassedThrough, Report, TextDelta
from apexbridge.agent.records.content import redact_steps
from apexbridge.agent.records.recorder import ChatRecorder
from apexbridge.agent.request import BadRequestError, ChatRequest, read_request
from apexbridge.bridge import Bridge
from apexbridge.errors import ServerError
from apexbridge.llm.upstream_errors import UpstreamError
from apexbridge.storage.chat_store import ChatRow
from tests.chat.upstream import Step, Upstream, refusal

REPORT = Report(turns=1, trajectory=[{"kind": "model", "name": "m", "durationMs": 1, "usage": {"prompt_tokens": 3}}])
ENDED = ChatFinished(finish_reason="stop", calls=(), usage={"prompt_tokens": 3, "completion_tokens": 4}, report=REPORT)


class RecordList:
    def __init__(self, *, has_texts: bool = False) -> None:
        self.has_texts = has_texts
        self.records: list[ChatRow] = []

    def keep(self, record: ChatRow) -> None:
        self.records.append(record)


class BrokenStore:
    has_texts = True

    def keep(self, record: ChatRow) -> None:
        raise RuntimeError("the shelf fell down")


def chat_request(model: str | None = "m", **fields: Any) -> ChatRequest:
    body = {"model": model, "messages": [{"role": "user", "content": "hello"}], **fields}
    return read_request(body, caller="0a1b2c3d", request_id="mine")


def recorded(*events: Event, error: BaseException | None = None, has_texts: bool = False, **fields: Any) -> ChatRow:
    store = RecordList(has_texts=has_texts)
    recorder = ChatRecorder(store, chat_request(**fields), "local")
    for event in events:
        recorder.observe(event)
    recorder.end(error)
    (record,) = store.records
    return record


def test_a_client_that_disconnects_after_the_last_event_was_answered() -> None:
    started = ChatStarted(model="m", report=REPORT)
    for error in (None, GeneratorExit(), asyncio.CancelledError()):
        record = recorded(started, ENDED, error=error)
        assert (record.outcome, record.stop_cause, record.turns) == ("answered", "answered", 1)
    assert recorded(started, error=GeneratorExit()).outcome == "cancelled"
    assert recorded(error=asyncio.CancelledError()).stop_cause == "cancelled"
    done = PassedThrough(chunks=[{"choices": [{"message": {"content": "x"}, "finish_reason": "tool_calls"}]}])
    assert recorded(done, error=GeneratorExit()).stop_cause == "client_tools"
    assert recorded(PassedThrough(chunks=[{"choices": []}]), error=GeneratorExit()).outcome == "cancelled"


@pytest.mark.parametrize(
    ("error", "code", "redacted", "full"),
    [
        (
            UpstreamError(400, b'{"error": {"message": "you said so", "code": "bad_words"}}'),
            "bad_words",
            400,
            "said so",
        ),
        (UpstreamError(502, b"<html>you said so"), "upstream_error", 502, "said so"),
        (UpstreamError(400, b'{"error": {"message": ["odd"], "code": "you said so"}}'), "upstream_error", 400, "odd"),
        (
            UpstreamError.of_ours(504, "The model took too long.", "upstream_timeout"),
            "upstream_timeout",
            504,
            "too long",
        ),
        (BadRequestError("There is no skill said-so."), "invalid_request", "could not", "said-so"),
        (ServerError("no room for said-so", code="STORAGE_FULL"), "storage_full", 507, "said-so"),
        (ValueError("said so"), "internal_error", "the log has more", "the log has more"),
    ],
)
def test_error_messages_are_generic_unless_texts_are_recorded(
    error: Exception, code: str, redacted: object, full: str
) -> None:
    without_texts, with_texts = recorded(error=error), recorded(error=error, has_texts=True)
    assert without_texts.error_code == with_texts.error_code == code
    assert str(redacted) in str(without_texts.error_message)
    assert "said" not in str(without_texts.error_message)
    assert full in str(with_texts.error_message)


def test_redacted_steps_hold_only_our_names_and_numbers() -> None:
    steps: list[dict[str, Any]] = [
        {
            "kind": "model",
            "name": "m",
            "durationMs": 1,
            "usage": {"total_tokens": 3, "a text": 1, "d": {"n": 2, "t": "x"}},
        },
        {"kind": "tool", "name": "made up", "tool": None, "success": False, "durationMs": 2, "arguments": {"a": "x"}},
        {
            "kind": "tool",
            "name": "run_skill",
            "tool": "run-skill",
            "executionId": "ab" * 16,
            "output": "x",
            "new": True,
        },
        {"kind": "tool", "name": "other", "tool": "other", "executionId": "what a tool said"},
        {
            "kind": "search",
            "name": "s",
            "tool": "vector-search",
            "query": "x",
            "results": [{"name": "a", "score": 0.5, "why": "x"}],
        },
    ]
    assert redact_steps(steps) == [
        {"kind": "model", "name": "m", "durationMs": 1, "usage": {"total_tokens": 3, "d": {"n": 2}}},
        {"kind": "tool", "tool": None, "success": False, "durationMs": 2},
        {"kind": "tool", "name": "run_skill", "tool": "run-skill", "executionId": "ab" * 16, "new": True},
        {"kind": "tool", "name": "other", "tool": "other"},
        {"kind": "search", "name": "s", "tool": "vector-search", "results": [{"name": "a", "score": 0.5}]},
    ]


@pytest.mark.parametrize(
    ("usage", "expected"),
    [
        ({"prompt_tokens": 1, "completion_tokens": 2}, (1, 2, 3)),
        ({"prompt_tokens": "many", "completion_tokens": -1, "total_tokens": 10**30}, (None, None, None)),
        ({"total_tokens": 7.0, "prompt_tokens": True}, (None, None, 7)),
    ],
)
def test_only_valid_token_counts_are_recorded(usage: dict[str, Any], expected: tuple[Any, ...]) -> None:
    record = recorded(PassedThrough(chunks=[{"choices": [], "usage": usage}]))
    assert (record.prompt_tokens, record.completion_tokens, record.total_tokens) == expected


@pytest.mark.parametrize(
    "chunk", [{}, {"choices": None}, {"choices": ["x"]}, {"choices": [{"delta": "x"}]}, {"choices": [{}], "usage": "x"}]
)
def test_malformed_chunks_are_ignored(chunk: dict[str, Any]) -> None:
    record = recorded(PassedThrough(chunks=[chunk]), has_texts=True)
    assert (record.outcome, record.turns, record.answer) == ("answered", 1, "")


def test_the_first_of_several_choices_is_the_answer() -> None:
    chunks = [
        {"choices": [{"index": index, "delta": {"content": word}}]} for index, word in ((0, "a"), (1, "x"), (0, "b"))
    ]
    assert recorded(*(PassedThrough(chunks=[chunk]) for chunk in chunks), has_texts=True).answer == "ab"


def test_a_recorded_answer_has_a_bounded_length() -> None:
    event = TextDelta(deltas=[Delta({"content": "x" * 1024}, {})])
    record = recorded(*[event] * 10_000, ENDED, has_texts=True)
    assert record.answer is not None
    assert len(record.answer) < 300 * 1024


def test_a_request_without_a_model_is_recorded_with_the_one_that_answered() -> None:
    assert recorded(ChatStarted(model="the-set-one", report=REPORT), ENDED, model=None).model == "the-set-one"
    assert recorded(error=ValueError(), model=None).model == "local"


def test_a_recorder_that_fails_only_logs_the_error(caplog: pytest.LogCaptureFixture) -> None:
    with ChatRecorder(BrokenStore(), chat_request(), "local") as recorder:
        recorder.observe(ENDED)
    assert "the shelf fell down" in caplog.text


@pytest.mark.anyio
async def test_chats_from_python_are_recorded_and_can_be_read(chatting: Bridge, upstream: Upstream) -> None:
    model = upstream.play(Step(text="Hello."))
    for options in ({}, {"x_bridge": {"tools": False}}):
        await chatting.chat.execute([{"role": "user", "content": "hi"}], model=model, **options)
    with pytest.raises(UpstreamError):
        await chatting.chat.execute([{"role": "user", "content": "hi"}], model=upstream.play(refusal(400, "No.")))
    found = await chatting.chats.list()
    assert [chat.outcome for chat in found.chats] == ["failed", "answered", "answered"]
    assert (await chatting.chats.get(found.chats[1].id)).trajectory[0]["name"] == model
    async with aclosing(chatting.chat.run(chat_request(upstream.play(Step(text="Hello.")), stream=True))) as events:
        await anext(events)
    assert (await chatting.chats.get("mine")).outcome == "cancelled"
    await chatting.chats.delete("mine")
    assert (await chatting.chats.statistics()).requests == 3


def nested(depth: int) -> dict[str, Any]:
    usage: dict[str, Any] = {"total_tokens": 7}
    for _ in range(depth):
        usage = {"total_tokens": 7, "a": usage}
    return usage


@pytest.mark.anyio
@pytest.mark.parametrize("depth", [100, 900, 5000])
async def test_usage_of_any_depth_can_be_recorded(bridge: Bridge, depth: int) -> None:
    usage = nested(depth)
    for has_texts in (False, True):
        chunk = {"choices": [{"index": 0, "message": {"content": "ok"}, "finish_reason": "stop"}], "usage": usage}
        bridge.chats.has_texts = has_texts
        recorder = ChatRecorder(bridge.chats, chat_request(), "local")
        recorder.observe(PassedThrough(chunks=[chunk, chunk]))
        recorder.end()
    records = [await bridge.chats.get(chat.id) for chat in (await bridge.chats.list()).chats]
    assert [record.usage.total_tokens for record in records if record.usage] == [7, 7]
    assert all(record.trajectory for record in records)


def test_usage_of_any_depth_can_be_summed() -> None:
    total = add_usage(add_usage(None, nested(5000)), nested(5000))
    assert total is not None
    assert total["total_tokens"] == total["a"]["total_tokens"] == 14


@pytest.mark.anyio
async def test_messages_of_any_depth_can_be_recorded(bridge: Bridge) -> None:
    content: Any = "x"
    for _ in range(3000):
        content = [content]
    bridge.chats.has_texts = True
    request = chat_request()
    request.body["messages"] = [{"role": "user", "content": content}]
    ChatRecorder(bridge.chats, request, "local").end()
    (chat,) = (await bridge.chats.list()).chats
    assert "nested too deep" in str((await bridge.chats.get(chat.id)).messages)
