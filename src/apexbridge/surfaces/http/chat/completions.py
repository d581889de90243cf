"""`/v1/chat/completions`: renders chat events as one completion, or as the chunks of a stream."""

import json
import time
from typing import Any

from starlette.types import Scope

from apexbridge.agent.chat_events import (
    ChatFinished,
    ChatStarted,
    Event,
    PassedThrough,
    TextDelta,
    ToolActivity,
    ToolStarted,
)
from apexbridge.agent.request import ChatRequest, read_request
from apexbridge.agent.tool_steps import ToolStep
from apexbridge.llm.conversion import JoinedFields
from apexbridge.llm.upstream_errors import UpstreamError
from apexbridge.surfaces.http.chat.wire_format import dumped
from apexbridge.surfaces.http.transport.requests import caller_of, fresh_id

Json = dict[str, Any]


class CompletionsApi:
    """OpenAI's chat completions."""

    path = "/v1/chat/completions"
    request_id_header = b"x-request-id"
    keep_alive = b": keep-alive\n\n"

    async def open(self, body: Any, *, scope: Scope, request_id: str) -> "CompletionExchange":
        return CompletionExchange(read_request(body, caller=caller_of(scope), request_id=request_id))

    def error_body(self, error: UpstreamError, request_id: str) -> bytes:
        return error.body if error.is_shaped else json.dumps({"error": error.error}).encode()


class CompletionExchange:
    def __init__(self, request: ChatRequest) -> None:
        self.request = request

    def whole(self) -> "Completion":
        return Completion(self.request)

    def stream(self) -> "CompletionStream":
        return CompletionStream(self.request)

    async def before_end(self) -> None:
        """There is nothing to store."""


class Completion:
    """Collects the events of an answer into one completion."""

    def __init__(self, request: ChatRequest) -> None:
        self._request = request
        self._model = request.model
        self._fields = JoinedFields()
        self._choice_fields: Json = {}
        self._passed_through: Json | None = None
        self._finished: ChatFinished | None = None

    def add(self, event: Event) -> None:
        if isinstance(event, PassedThrough):
            self._passed_through = event.chunks[0]
        elif isinstance(event, ChatStarted):
            self._model = event.model
        elif isinstance(event, TextDelta):
            for delta in event.deltas:
                self._choice_fields |= delta.beside
                self._fields.add(delta.fields)
        elif isinstance(event, ChatFinished):
            self._finished = event

    def to_json(self) -> bytes:
        if self._passed_through is not None:
            return dumped(self._passed_through)
        finished = self._finished
        if finished is None:
            raise AssertionError("an answer has an end")
        message: Json = {"role": "assistant", "content": None, **self._fields.joined()}
        if finished.calls:
            message["tool_calls"] = list(finished.calls)
        elif message["content"] is None:
            message["content"] = ""
        choice = {"index": 0, "message": message, "logprobs": None, **self._choice_fields}
        completion: Json = {
            **_head("chat.completion", self._model),
            "choices": [{**choice, "finish_reason": finished.finish_reason}],
            **finished.beside,
        }
        if finished.usage is not None:
            completion["usage"] = finished.usage
        completion["x_bridge"] = finished.report.to_dict(debug=self._request.options.debug)
        return dumped(completion)


class CompletionStream:
    """Renders events as chunks: one id, one model, the role once, one finish reason at the end."""

    def __init__(self, request: ChatRequest) -> None:
        self._request = request
        self._head: Json = {}
        self._before = self._after = b""
        """A chunk of text without its delta. Only the delta differs, and most of a stream is text."""

    def render(self, event: Event) -> bytes:
        if isinstance(event, ToolStarted):
            return b""
        if isinstance(event, PassedThrough):
            return b"".join(_sse(chunk if "choices" in chunk else {**chunk, "choices": []}) for chunk in event.chunks)
        if isinstance(event, ChatStarted):
            self._head = _head("chat.completion.chunk", event.model)
            self._before, _, self._after = self._chunk({}).rpartition(b"{}")
            return self._chunk({"role": "assistant", "content": ""})
        if isinstance(event, TextDelta):
            return b"".join(
                self._chunk(delta.fields, choice_fields=delta.beside)
                if delta.beside
                else self._before + dumped(delta.fields) + self._after
                for delta in event.deltas
            )
        if isinstance(event, ToolStep):
            return self._chunk({}, x_bridge={"toolCall": event.to_dict()})
        if isinstance(event, ToolActivity):
            if not self._request.options.activity:
                return b""
            return self._chunk({"reasoning_content": f"[{event.text}]\n"}, x_bridge={"activity": event.detail})
        return self._finished(event)

    def end(self) -> bytes:
        return b"data: [DONE]\n\n"

    def fail(self, error: UpstreamError) -> bytes:
        return b"data: " + json.dumps({"error": error.error}).encode() + b"\n\n"

    def _chunk(
        self, delta: Json, *, finish_reason: str | None = None, choice_fields: Json | None = None, **fields: Any
    ) -> bytes:
        choice = {"index": 0, "delta": delta, **(choice_fields or {"logprobs": None}), "finish_reason": finish_reason}
        return _sse({**self._head, "choices": [choice], **fields})

    def _finished(self, event: ChatFinished) -> bytes:
        chunks = []
        if event.calls:
            calls = [{**call, "index": index, "type": "function"} for index, call in enumerate(event.calls)]
            chunks.append(self._chunk({"tool_calls": calls}))
        report = event.report.to_dict(debug=self._request.options.debug)
        chunks.append(self._chunk({}, finish_reason=event.finish_reason, **event.beside, x_bridge=report))
        if self._request.wants_usage:
            chunks.append(_sse({**self._head, "choices": [], "usage": event.usage}))
        return b"".join(chunks)


def _head(kind: str, model: str | None) -> Json:
    return {"id": fresh_id("chatcmpl-"), "object": kind, "created": int(time.time()), "model": model}


def _sse(chunk: Json) -> bytes:
    return b"data: " + dumped(chunk) + b"\n\n"
