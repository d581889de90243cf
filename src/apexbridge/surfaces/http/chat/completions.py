"""Renders chat events in OpenAI's format: one completion, or the chunks of a stream."""

import json
import time
from typing import Any

import orjson

from apexbridge.agent.chat_events import ChatFinished, ChatStarted, Delta, Event, PassedThrough, TextDelta, ToolActivity
from apexbridge.agent.request import ChatRequest
from apexbridge.llm.conversion import JoinedFields
from apexbridge.surfaces.http.transport.request_id import fresh

Json = dict[str, Any]


class Completion:
    """Collects the events of an answer into one completion."""

    def __init__(self, request: ChatRequest) -> None:
        self._request = request
        self._model = request.model
        self._fields = JoinedFields()
        self._beside: Json = {}
        self._passed: Json | None = None
        self._ended: ChatFinished | None = None

    def take(self, event: Event) -> None:
        if isinstance(event, PassedThrough):
            self._passed = event.chunks[0]
        elif isinstance(event, ChatStarted):
            self._model = event.model
        elif isinstance(event, TextDelta):
            for delta in event.deltas:
                self._take(delta)
        elif isinstance(event, ChatFinished):
            self._ended = event

    def _take(self, delta: Delta) -> None:
        self._beside |= delta.beside
        self._fields.add(delta.fields)

    def told(self) -> bytes:
        """The completion as JSON."""
        if self._passed is not None:
            return _dumped(self._passed)
        if self._ended is None:
            raise AssertionError("an answer has an end")
        ended = self._ended
        message: Json = {"role": "assistant", "content": None, **self._fields.joined()}
        if ended.calls:
            message["tool_calls"] = list(ended.calls)
        elif message["content"] is None:
            message["content"] = ""
        choice = {
            "index": 0,
            "message": message,
            "logprobs": None,
            **self._beside,
            "finish_reason": ended.finish_reason,
        }
        completion: Json = {
            "id": fresh("chatcmpl-"),
            "object": "chat.completion",
            "created": int(time.time()),
            "model": self._model,
            "choices": [choice],
            **ended.beside,
        }
        if ended.usage is not None:
            completion["usage"] = ended.usage
        completion["x_bridge"] = ended.report.to_dict(debug=self._request.options.debug)
        return _dumped(completion)


class CompletionStream:
    """Renders events as chunks: one id, one model, the role once, one finish reason at the end."""

    def __init__(self, request: ChatRequest) -> None:
        self._request = request
        self._head = b""

    def render(self, event: Event) -> bytes:
        """The bytes to send for an event; may be empty."""
        if isinstance(event, PassedThrough):
            return b"".join(_passed(chunk) for chunk in event.chunks)
        if isinstance(event, ChatStarted):
            self._begin(event.model)
            return self._chunk(b'{"role":"assistant","content":""}')
        if isinstance(event, TextDelta):
            return b"".join(self._chunk(_dumped(delta.fields), beside=delta.beside) for delta in event.deltas)
        if isinstance(event, ToolActivity):
            return self._activity(event) if self._request.options.activity else b""
        return self._end(event)

    def _begin(self, model: str) -> None:
        head = {
            "id": fresh("chatcmpl-"),
            "object": "chat.completion.chunk",
            "created": int(time.time()),
            "model": model,
        }
        self._head = b"data: " + _dumped(head)[:-1]

    def _chunk(
        self, delta: bytes, *, finish: str | None = None, beside: Json | None = None, more: Json | None = None
    ) -> bytes:
        reason = b"null" if finish is None else _dumped(finish)
        logprobs = b"" if beside else b',"logprobs":null'
        extra = b"," + _dumped(beside)[1:-1] if beside else b""
        whole = b"," + _dumped(more)[1:-1] if more else b""
        return b"".join(
            (
                self._head,
                b',"choices":[{"index":0,"delta":',
                delta,
                logprobs,
                extra,
                b',"finish_reason":',
                reason,
                b"}]",
                whole,
                b"}\n\n",
            )
        )

    def _activity(self, event: ToolActivity) -> bytes:
        delta = _dumped({"reasoning_content": f"[{event.text}]\n"})
        return self._chunk(delta, more={"x_bridge": {"activity": event.detail}})

    def _end(self, event: ChatFinished) -> bytes:
        pieces = [
            self._chunk(
                _dumped(
                    {
                        "tool_calls": [
                            {"index": place, "id": call["id"], "type": "function", **_rest(call)}
                            for place, call in enumerate(event.calls)
                        ]
                    }
                )
            )
            if event.calls
            else b""
        ]
        fields = {**event.beside, "x_bridge": event.report.to_dict(debug=self._request.options.debug)}
        pieces.append(self._chunk(b"{}", finish=event.finish_reason, more=fields))
        if self._request.wants_usage:
            usage = _dumped(event.usage)
            pieces.append(self._head + b',"choices":[],"usage":' + usage + b"}\n\n")
        return b"".join(pieces)


def _passed(chunk: Json) -> bytes:
    return b"data: " + _dumped(chunk if "choices" in chunk else {**chunk, "choices": []}) + b"\n\n"


def _rest(call: Json) -> Json:
    return {key: value for key, value in call.items() if key not in ("index", "id", "type")}


def _dumped(value: Any) -> bytes:
    try:
        return orjson.dumps(value)
    except TypeError:  # an integer beyond 64 bits, or a lone surrogate
        return json.dumps(value, ensure_ascii=True).encode()
