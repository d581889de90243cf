"""Renders chat events as an answer of Anthropic's Messages API: one message, or the events of its stream."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from apexbridge._time import MAX_MS, MS_PER_DAY, from_ms, now_ms
from apexbridge.agent.chat_events import ChatFinished, ChatStarted, Delta, Event, TextDelta, ToolActivity, ToolStarted
from apexbridge.agent.request import ChatRequest
from apexbridge.llm.turn import reasoning_in
from apexbridge.llm.upstream_errors import UpstreamError, is_too_long
from apexbridge.surfaces.http.chat.messages_input import (
    SERVER_NAME,
    MessagesRequest,
    parsed_input,
    signature_of,
)
from apexbridge.surfaces.http.chat.wire_format import dumped, sse_event
from apexbridge.surfaces.http.transport.api_dialects import anthropic_error
from apexbridge.surfaces.http.transport.requests import fresh_id

Json = dict[str, Any]
PING = b'event: ping\ndata: {"type": "ping"}\n\n'
_STOP_REASONS = {
    "stop": "end_turn",
    "length": "max_tokens",
    "tool_calls": "tool_use",
    "function_call": "tool_use",
    "content_filter": "refusal",
}
_RUNNING_TOOLS = ("run_code", "run_skill", "skill__")
"""How the names of tools begin that run something. Shown as code execution if the client has that tool."""
_TEXT, _THINKING = "text", "thinking"


@dataclass(frozen=True, slots=True, kw_only=True)
class Answered:
    """What an answer is rendered from."""

    request: ChatRequest
    asked: MessagesRequest
    days: int
    """How long a workspace lasts."""
    skills: Sequence[Json] = ()
    """The skills of the container, with the versions that run."""
    is_for_claude_code: bool = False
    """Claude Code gives a stream up at the delta of an `mcp_tool_use`."""


def error_json(error: UpstreamError, request_id: str) -> Json:
    """An error in Anthropic's shape. Clients recognize by the message that a conversation is too long."""
    message = str(error.error.get("message") or "")
    if is_too_long(error) and "prompt is too long" not in message:
        message = f"prompt is too long: {message}"
    return anthropic_error(message, status=error.status, request_id=request_id)


class Message:
    """Collects the events of an answer into one message."""

    def __init__(self, answered: Answered) -> None:
        self._answered = answered
        self._blocks: list[Json] = []
        self._texts: list[str] = []
        """Of the last block, while it grows."""
        self._source = ""
        self._model = answered.request.model
        self._stop: Any = None
        self._finished: ChatFinished | None = None

    def add(self, event: Event) -> None:
        if isinstance(event, TextDelta):
            for delta in event.deltas:
                self._stop = delta.beside.get("stop_reason", self._stop)
                for kind, text, source in _texts(delta):
                    self._grow(kind, text, source)
        elif isinstance(event, ChatStarted):
            self._model = event.model
        elif isinstance(event, ToolActivity):
            if self._answered.asked.shows_activity:
                self._close()
                use = _use_block(event.call, self._answered.asked)
                self._blocks += [use, _result_block(event, use)]
        elif isinstance(event, ChatFinished):
            self._finished = event

    def to_json(self) -> bytes:
        finished = self._finished
        if finished is None:
            raise AssertionError("an answer has an end")
        self._close()
        content = [*self._blocks, *(_call_block(call, self._answered.asked) for call in finished.calls)]
        stop = _stop(finished, self._stop, self._answered.asked)
        message = {**_head(self._model), "content": content, **stop, "usage": _usage(finished.usage)}
        return dumped(message | _container(finished, self._answered) | _report(finished, self._answered.request))

    def _grow(self, kind: str, text: str, source: str) -> None:
        if not self._texts or self._blocks[-1]["type"] != kind:
            self._close()
            self._source = source
            self._blocks.append({"type": kind})
        self._texts.append(text)

    def _close(self) -> None:
        if not self._texts:
            return
        block, text = self._blocks[-1], "".join(self._texts)
        block |= {"text": text} if block["type"] == _TEXT else {"thinking": text}
        if block["type"] == _THINKING:
            block["signature"] = signature_of(self._source, self._answered.request.model)
        self._texts = []


class MessageStream:
    """Renders events: the message, its blocks one after the other, the stop reason, the end."""

    def __init__(self, answered: Answered) -> None:
        self._answered = answered
        self._index = -1
        self._open = ""
        """The type of the block that is being sent: text or thinking."""
        self._source = ""
        self._before = b""
        """A delta of the open block up to its text, which alone differs, and most of a stream is text."""
        self._stop: Any = None
        self._uses: dict[str, Json] = {}
        """The blocks of this server's calls that are running, by the calls' ids."""

    def render(self, event: Event) -> bytes:
        if isinstance(event, TextDelta):
            return b"".join(map(self._delta, event.deltas))
        if isinstance(event, ChatStarted):
            start = {**_head(event.model), "content": [], "stop_reason": None, "stop_sequence": None}
            return sse_event({"type": "message_start", "message": {**start, "usage": _usage(None)}})
        if isinstance(event, ChatFinished):
            return self._finished(event)
        if not self._answered.asked.shows_activity:
            return b""
        if isinstance(event, ToolStarted):
            use = self._uses[event.call["id"]] = _use_block(event.call, self._answered.asked)
            return self._close() + self._use(use)
        if isinstance(event, ToolActivity):
            result = _result_block(event, self._uses.pop(event.call["id"]))
            return self._close() + self._start(result) + self._end_block()
        return b""

    def end(self) -> bytes:
        return sse_event({"type": "message_stop"})

    def fail(self, error: UpstreamError) -> bytes:
        return sse_event(error_json(error, self._answered.request.request_id))

    def _delta(self, delta: Delta) -> bytes:
        fields = delta.fields
        if delta.beside:
            self._stop = delta.beside.get("stop_reason", self._stop)
        elif self._open == _TEXT and len(fields) == 1 and isinstance(text := fields.get("content"), str):
            return self._before + dumped(text) + b"}}\n\n"  # fast path: nearly all deltas
        return b"".join(self._text(kind, text, source) for kind, text, source in _texts(delta))

    def _text(self, kind: str, text: str, source: str) -> bytes:
        if self._open == kind:
            return self._before + dumped(text) + b"}}\n\n"
        closed = self._close()
        self._open, self._source = kind, source
        empty: Json = {"type": kind, "text": ""} if kind == _TEXT else {"type": kind, "thinking": "", "signature": ""}
        started = self._start(empty)
        self._before = _delta_event(self._index, {"type": f"{kind}_delta", kind: ""})[: -len(b'""}}\n\n')]
        return closed + started + self._before + dumped(text) + b"}}\n\n"

    def _close(self) -> bytes:
        """End the open block, if there is one."""
        if not self._open:
            return b""
        signature = b""
        if self._open == _THINKING:
            written = signature_of(self._source, self._answered.request.model)
            signature = _delta_event(self._index, {"type": "signature_delta", "signature": written})
        self._open = ""
        return signature + self._end_block()

    def _use(self, block: Json) -> bytes:
        """A call. Its input comes as a delta, as Anthropic sends it; pydantic-ai refuses to get it with the start."""
        if block["type"] == "mcp_tool_use" and self._answered.is_for_claude_code:
            return self._start(block) + self._end_block()
        started = self._start({**block, "input": {}})
        delta = {"type": "input_json_delta", "partial_json": dumped(block["input"]).decode()}
        return started + _delta_event(self._index, delta) + self._end_block()

    def _start(self, block: Json) -> bytes:
        self._index += 1
        return sse_event({"type": "content_block_start", "index": self._index, "content_block": block})

    def _end_block(self) -> bytes:
        return sse_event({"type": "content_block_stop", "index": self._index})

    def _finished(self, event: ChatFinished) -> bytes:
        asked = self._answered.asked
        closed = self._close()
        calls = [self._use(_call_block(call, asked)) for call in event.calls]
        delta = {**_stop(event, self._stop, asked), **_container(event, self._answered)}
        ended: Json = {"type": "message_delta", "delta": delta, "usage": _usage(event.usage)}
        return b"".join([closed, *calls, sse_event(ended | _report(event, self._answered.request))])


# ------------------------------------------------------------------------------------------------------------- events
def _delta_event(index: int, delta: Json) -> bytes:
    return sse_event({"type": "content_block_delta", "index": index, "delta": delta})


def _texts(delta: Delta) -> list[tuple[str, str, str]]:
    """The reasoning and the text of a delta: the type of block, the text, the field it came from."""
    found: list[tuple[str, str, str]] = []
    if (reasoning := reasoning_in(delta.fields)) is not None:
        found.append((_THINKING, reasoning[1], reasoning[0]))
    own = [(name, delta.fields.get(name)) for name in ("content", "refusal")]  # some models refuse in an own field
    return found + [(_TEXT, text, name) for name, text in own if isinstance(text, str) and text]


# ------------------------------------------------------------------------------------------------------------- fields
def _head(model: str) -> Json:
    return {"id": fresh_id("msg_"), "type": "message", "role": "assistant", "model": model}


def _stop(finished: ChatFinished, matched: Any, asked: MessagesRequest) -> Json:
    """Why the answer ended. Some upstreams say which stop sequence they found."""
    reason = _STOP_REASONS.get(finished.finish_reason, "end_turn")
    if reason == "end_turn" and matched in asked.stop_sequences:
        return {"stop_reason": "stop_sequence", "stop_sequence": matched}
    return {"stop_reason": reason, "stop_sequence": None}


def _usage(usage: Json | None) -> Json:
    """Tokens as Anthropic counts them: the prompt without the cached part."""
    counts = usage or {}
    details = counts.get("prompt_tokens_details")
    cached = _count(details.get("cached_tokens")) if isinstance(details, dict) else 0
    return {
        "input_tokens": max(0, _count(counts.get("prompt_tokens")) - cached),
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": cached,
        "output_tokens": _count(counts.get("completion_tokens")),
    }


def _count(value: Any) -> int:
    return max(0, int(value)) if isinstance(value, int | float) and abs(value) < 2**53 else 0


def _container(finished: ChatFinished, answered: Answered) -> Json:
    """The workspace with the conversation's files, as the container of the answer."""
    report = finished.report
    if report.workspace is None:
        return {}
    expires = from_ms(min(now_ms() + answered.days * MS_PER_DAY, MAX_MS)).isoformat()
    return {"container": {"id": report.workspace, "expires_at": expires, "skills": list(answered.skills)}}


def _report(finished: ChatFinished, request: ChatRequest) -> Json:
    return {"x_bridge": finished.report.to_dict(debug=request.options.debug)}


# ------------------------------------------------------------------------------------------------------------- blocks
def _call_block(call: Json, asked: MessagesRequest) -> Json:
    """A call of the client's own tool."""
    name = call["function"]["name"]
    return {
        "type": "tool_use",
        "id": call["id"],
        "name": asked.tool_names.get(name, name),
        "input": parsed_input(call["function"]["arguments"]),
    }


def _use_block(call: Json, asked: MessagesRequest) -> Json:
    """A call of this server's tool. Ids of upstreams may repeat, so it gets another."""
    name, arguments = call["function"]["name"], parsed_input(call["function"]["arguments"])
    if asked.runs_code and name.startswith(_RUNNING_TOOLS):
        code = arguments.get("code")
        command = code if isinstance(code, str) else f"{name} {dumped(arguments).decode()}"
        return {
            "type": "server_tool_use",
            "id": fresh_id("srvtoolu_"),
            "name": "bash_code_execution",
            "input": {"command": command},
        }
    return {
        "type": "mcp_tool_use",
        "id": fresh_id("mcptoolu_"),
        "name": name,
        "server_name": SERVER_NAME,
        "input": arguments,
    }


def _result_block(event: ToolActivity, use: Json) -> Json:
    if use["type"] == "mcp_tool_use":
        content = [{"type": "text", "text": event.output}]
        fields = {"is_error": not event.succeeded, "content": content}
        return {"type": "mcp_tool_result", "tool_use_id": use["id"], **fields}
    result: Json = {
        "type": "bash_code_execution_result",
        "stdout": event.output if event.succeeded else "",
        "stderr": "" if event.succeeded else event.output,
        "return_code": 0 if event.succeeded else 1,
        "content": [],
    }
    return {"type": "bash_code_execution_tool_result", "tool_use_id": use["id"], "content": result}
