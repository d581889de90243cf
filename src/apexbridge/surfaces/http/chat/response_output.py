"""Renders chat events as a response object of OpenAI's API, or as the events of its stream."""

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from apexbridge.agent.approver import APPROVAL_TOOL
from apexbridge.agent.chat_events import ChatFinished, ChatStarted, Event, TextDelta, ToolActivity, ToolStarted
from apexbridge.agent.request import ChatRequest
from apexbridge.llm.turn import reasoning_in
from apexbridge.llm.upstream_errors import UpstreamError
from apexbridge.surfaces.http.chat.response_ids import approval_id, item_id
from apexbridge.surfaces.http.chat.response_tools import SERVER_LABEL, ClientTools
from apexbridge.surfaces.http.chat.wire_format import dumped, sse_event

Json = dict[str, Any]
Status = Literal["in_progress", "completed", "incomplete", "failed"]
INCOMPLETE = {"length": "max_output_tokens", "content_filter": "content_filter"}
"""Finish reasons of an answer that is not complete, and OpenAI's names for them."""
DONE = b"data: [DONE]\n\n"
_TEXT_FIELDS = ("content", "refusal")


@dataclass(slots=True, kw_only=True)
class ResponseResult:
    """The response as far as it is rendered."""

    id: str
    created_at: int
    """Seconds since 1970."""
    model: str
    fields: Json
    """Fields that repeat the request."""
    status: Status = "in_progress"
    completed_at: int | None = None
    usage: Json | None = None
    incomplete: str | None = None
    workspace: str | None = None
    report: Json | None = None

    def head(self) -> Json:
        """The response object without its output."""
        return {
            "id": self.id,
            "object": "response",
            "created_at": self.created_at,
            "completed_at": self.completed_at,
            "status": self.status,
            "incomplete_details": {"reason": self.incomplete} if self.incomplete else None,
            "error": None,
            "model": self.model,
            "usage": self.usage,
            **self.fields,
            **({"x_bridge": self.report} if self.report is not None else {}),
        }


@dataclass(slots=True)
class _OpenText:
    """A message or reasoning whose text is being received."""

    is_message: bool
    id: str
    index: int
    before: bytes
    """A delta event up to its text."""
    source: str = ""
    """The field of the upstream."""
    texts: list[str] = field(default_factory=list)


class ResponseStream:
    """Renders events. The last event comes with `end`, so that the response can be stored before the client has it."""

    def __init__(
        self, request: ChatRequest, result: ResponseResult, tools: ClientTools, *, shows_reasoning_field: bool
    ) -> None:
        """`shows_reasoning_field`: whether reasoning items have `encrypted_content`, to be sent back."""
        self._request = request
        self._result = result
        self._tools = tools
        self._shows_reasoning_field = shows_reasoning_field
        self._items: list[Json | None] = []
        """Items by index; None while an item is open."""
        self._reasoning_fields: dict[str, str] = {}
        """The field of the upstream for each reasoning item."""
        self._number = 0
        self._open: _OpenText | None = None
        self._calls: dict[str, list[int]] = {}
        """Indexes of running calls of this server's tools, by call id."""

    def render(self, event: Event) -> bytes:
        if isinstance(event, TextDelta):
            return b"".join([self._delta(delta.fields) for delta in event.deltas])
        if isinstance(event, ChatStarted):
            self._result.model = event.model
            response = self._response()
            return self._event("response.created", response=response) + self._event(
                "response.in_progress", response=response
            )
        if isinstance(event, ToolStarted):
            return self._start_call(event)
        if isinstance(event, ToolActivity):
            return self._end_call(event)
        if isinstance(event, ChatFinished):
            return self._finish(event)
        return b""

    @property
    def output(self) -> list[Json]:
        """The complete items."""
        return [item for item in self._items if item is not None]

    @property
    def stored_output(self) -> list[Json]:
        """The complete items. Reasoning has the upstream's field, so that it can be sent back."""
        fields = self._reasoning_fields
        return [
            {**item, "encrypted_content": fields[item["id"]]} if item["type"] == "reasoning" else item
            for item in self.output
        ]

    def end(self) -> bytes:
        return self._event(f"response.{self._result.status}", response=self._response()) + DONE

    def whole(self) -> bytes:
        """The response object."""
        return dumped(self._response())

    def fail(self, error: UpstreamError) -> bytes:
        return failure_events(error, self._response(), self._number)

    # ---------------------------------------------------------------------------------------------------- texts
    def _delta(self, fields: Json) -> bytes:
        part, text = self._open, fields.get("content")
        if len(fields) == 1 and type(text) is str and part is not None and part.is_message:  # fast path: nearly all
            part.texts.append(text)
            number = self._number
            self._number = number + 1
            return b'%b%b,"sequence_number":%d}\n\n' % (part.before, dumped(text), number)
        rendered = b""
        if (found := reasoning_in(fields)) is not None:
            rendered += self._add_text("reasoning", found[1], found[0])
        for name in _TEXT_FIELDS:
            if isinstance(text := fields.get(name), str) and text:
                rendered += self._add_text("message", text)
        return rendered

    def _add_text(self, kind: Literal["message", "reasoning"], text: str, name: str = "") -> bytes:
        rendered = b""
        part = self._open
        if part is None or part.is_message != (kind == "message"):
            rendered = self._close() + self._begin(kind, name)
            part = self._open
            assert part is not None  # noqa: S101  # _begin has set it
        part.texts.append(text)
        number = self._number
        self._number += 1
        return b'%b%b%b,"sequence_number":%d}\n\n' % (rendered, part.before, dumped(text), number)

    def _begin(self, kind: Literal["message", "reasoning"], name: str) -> bytes:
        index = len(self._items)
        self._items.append(None)
        if kind == "message":
            id = item_id(self._result.id, "msg", index)
            rendered = self._added(index, _message(id, [], "in_progress")) + self._event(
                "response.content_part.added", item_id=id, output_index=index, content_index=0, part=_text_part("")
            )
            head = {"item_id": id, "output_index": index, "content_index": 0, "logprobs": []}
            before = _event_begin("response.output_text.delta", head)
        else:
            id = item_id(self._result.id, "rs", index)
            self._reasoning_fields[id] = name
            rendered = self._added(index, _reasoning(id, None, self._field(name))) + self._event(
                "response.reasoning_summary_part.added",
                item_id=id,
                output_index=index,
                summary_index=0,
                part=_summary(""),
            )
            head = {"item_id": id, "output_index": index, "summary_index": 0}
            before = _event_begin("response.reasoning_summary_text.delta", head)
        self._open = _OpenText(kind == "message", id, index, before, name)
        return rendered

    def _close(self, status: Status = "completed") -> bytes:
        """End the open message or reasoning."""
        part, self._open = self._open, None
        if part is None:
            return b""
        text = "".join(part.texts)
        if part.is_message:
            where = {"item_id": part.id, "output_index": part.index, "content_index": 0}
            whole = _text_part(text)
            return (
                self._event("response.output_text.done", **where, text=text, logprobs=[])
                + self._event("response.content_part.done", **where, part=whole)
                + self._done(part.index, _message(part.id, [whole], status))
            )
        where = {"item_id": part.id, "output_index": part.index, "summary_index": 0}
        return (
            self._event("response.reasoning_summary_text.done", **where, text=text)
            + self._event("response.reasoning_summary_part.done", **where, part=_summary(text))
            + self._done(part.index, _reasoning(part.id, text, self._field(part.source)))
        )

    def _field(self, name: str) -> str | None:
        return name if self._shows_reasoning_field else None

    # ---------------------------------------------------------------------------------------------------- calls
    def _start_call(self, event: ToolStarted) -> bytes:
        rendered = self._close()
        index = len(self._items)
        self._items.append(None)
        self._calls.setdefault(event.call["id"], []).append(index)
        id, function = item_id(self._result.id, "mcp", index), event.call["function"]
        where = {"item_id": id, "output_index": index}
        return (
            rendered
            + self._added(index, _mcp_call(id, function["name"], "", status="in_progress"))
            + self._event("response.mcp_call.in_progress", **where)
            + self._event("response.mcp_call_arguments.delta", **where, delta=function["arguments"])
            + self._event("response.mcp_call_arguments.done", **where, arguments=function["arguments"])
        )

    def _end_call(self, event: ToolActivity) -> bytes:
        index = self._calls[event.call["id"]].pop(0)
        id, function = item_id(self._result.id, "mcp", index), event.call["function"]
        status: Status = "completed" if event.succeeded else "failed"
        output, error = (event.output, None) if event.succeeded else (None, event.output)
        item = _mcp_call(id, function["name"], function["arguments"], status=status, output=output, error=error)
        return self._event(f"response.mcp_call.{status}", item_id=id, output_index=index) + self._done(index, item)

    def _client_call(self, call: Json) -> bytes:
        """A call of a client's tool. The loop knows only whole calls, so there is one delta."""
        index = len(self._items)
        self._items.append(None)
        name, arguments = call["function"]["name"], call["function"]["arguments"]
        if name == APPROVAL_TOOL and name not in self._request.client_names:
            id = approval_id(self._result.id, call["id"])
            asked = {"type": "mcp_approval_request", "id": id, "server_label": SERVER_LABEL, "name": name}
            asked |= {"arguments": arguments}
            return self._added(index, asked) + self._done(index, asked)
        tool = self._tools.tool(name)
        is_custom = tool.kind == "custom"
        key, kind = ("input", "custom_tool_call") if is_custom else ("arguments", "function_call")
        value = _custom_input(arguments) if is_custom else arguments
        id = item_id(self._result.id, "ctc" if is_custom else "fc", index)
        item: Json = {"type": kind, "id": id, "call_id": call["id"], "name": tool.name, key: value}
        if tool.namespace is not None:
            item["namespace"] = tool.namespace
        event = f"response.{'custom_tool_call_input' if is_custom else 'function_call_arguments'}"
        where: Json = {"item_id": id, "output_index": index}
        return (
            self._added(index, {**item, key: "", "status": "in_progress"})
            + self._event(f"{event}.delta", **where, delta=value)
            + self._event(f"{event}.done", **where, **({} if is_custom else {"name": tool.name}), **{key: value})
            + self._done(index, {**item, "status": "completed"})
        )

    # ------------------------------------------------------------------------------------------------------ end
    def _finish(self, event: ChatFinished) -> bytes:
        result = self._result
        result.incomplete = INCOMPLETE.get(event.finish_reason)
        result.status = "incomplete" if result.incomplete else "completed"
        result.completed_at = int(time.time())
        result.usage = usage_of(event.usage)
        result.workspace = event.report.workspace
        result.report = event.report.to_dict(debug=self._request.options.debug)
        rendered = self._close(result.status)
        if not event.calls and not any(item["type"] == "message" for item in self.output):
            # Some clients take a response without a message for a failure.
            rendered += self._begin("message", "") + self._close(result.status)
        return rendered + b"".join([self._client_call(call) for call in event.calls])

    # --------------------------------------------------------------------------------------------------- events
    def _added(self, index: int, item: Json) -> bytes:
        return self._event("response.output_item.added", output_index=index, item=item)

    def _done(self, index: int, item: Json) -> bytes:
        self._items[index] = item
        return self._event("response.output_item.done", output_index=index, item=item)

    def _response(self) -> Json:
        return {**self._result.head(), "output": self.output}

    def _event(self, kind: str, **fields: Any) -> bytes:
        number = self._number
        self._number += 1
        return sse_event({"type": kind, "sequence_number": number, **fields})


class Response:
    """Collects the events of an answer into one response object."""

    def __init__(self, stream: ResponseStream) -> None:
        self._stream = stream

    def add(self, event: Event) -> None:
        self._stream.render(event)

    def to_json(self) -> bytes:
        return self._stream.whole()


def error_fields(error: UpstreamError) -> Json:
    """An error with the fields and the types that strict clients need. Some servers send a number as the code."""
    fields = error.error
    texts = {key: None if (value := fields.get(key)) is None else str(value) for key in ("code", "param")}
    return {"type": str(fields.get("type") or "server_error"), "message": str(fields.get("message")), **texts}


def failure_events(error: UpstreamError, response: Json, number: int) -> bytes:
    """The end of a stream that fails: `error` and `response.failed`, as some clients only notice one of them.

    `number` is the sequence number of the first.
    """
    fields = error_fields(error)
    problem = {**fields, "code": fields["code"] or "server_error"}
    flat = {**problem, "type": "error"}
    failed = {**response, "status": "failed", "error": problem}
    return (
        sse_event({**flat, "sequence_number": number, "error": problem})
        + sse_event({"type": "response.failed", "sequence_number": number + 1, "response": failed})
        + DONE
    )


def usage_of(usage: Json | None) -> Json | None:
    """Token counts under the names of this API."""
    if usage is None:
        return None
    read, written = _count(usage, "prompt_tokens"), _count(usage, "completion_tokens")
    return {
        "input_tokens": read,
        "input_tokens_details": {
            "cached_tokens": _count(usage.get("prompt_tokens_details"), "cached_tokens"),
            "cache_write_tokens": _count(usage.get("prompt_tokens_details"), "cache_write_tokens"),
        },
        "output_tokens": written,
        "output_tokens_details": {
            "reasoning_tokens": _count(usage.get("completion_tokens_details"), "reasoning_tokens")
        },
        "total_tokens": _count(usage, "total_tokens") or read + written,
    }


def _count(counts: Any, name: str) -> int:
    value = counts.get(name) if isinstance(counts, Mapping) else None
    is_number = isinstance(value, int | float) and not isinstance(value, bool) and value == value
    return max(0, int(value)) if is_number and value is not None and abs(value) < 2**53 else 0


def _message(id: str, content: Sequence[Json], status: Status) -> Json:
    return {"type": "message", "id": id, "role": "assistant", "status": status, "content": list(content)}


def _text_part(text: str) -> Json:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


def _reasoning(id: str, text: str | None, encrypted_content: str | None) -> Json:
    """Strict clients refuse null as `encrypted_content`."""
    summary = [] if text is None else [_summary(text)]
    item: Json = {"type": "reasoning", "id": id, "summary": summary, "content": []}
    return item if encrypted_content is None else {**item, "encrypted_content": encrypted_content}


def _summary(text: str) -> Json:
    return {"type": "summary_text", "text": text}


def _mcp_call(
    id: str, name: str, arguments: str, *, status: Status, output: str | None = None, error: str | None = None
) -> Json:
    return {
        "type": "mcp_call",
        "id": id,
        "server_label": SERVER_LABEL,
        "name": name,
        "arguments": arguments,
        "output": output,
        "error": error,
        "status": status,
        "approval_request_id": None,
    }


def _custom_input(arguments: str) -> str:
    """The input of a custom tool, which the model wrote as arguments of a function."""
    try:
        parsed = json.loads(arguments)
    except (ValueError, RecursionError):
        return arguments
    return parsed["input"] if isinstance(parsed, dict) and isinstance(parsed.get("input"), str) else arguments


def _event_begin(kind: str, fields: Json) -> bytes:
    """A delta event up to the value of `delta`."""
    data = dumped({"type": kind, **fields})[:-1]
    return b'event: %b\ndata: %b,"delta":' % (kind.encode(), data)
