"""Requests that go to an upstream as they are, because it speaks their API itself."""

from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass, field
from typing import Any

import orjson

from apexbridge._tracing import NO_TRACER, Tracer
from apexbridge.agent.chat_events import PassedThrough
from apexbridge.agent.records.recorder import MAX_ANSWER_CHARACTERS, ChatObserver, ChatRecorder, Recorder
from apexbridge.agent.request import ChatRequest
from apexbridge.llm.client import UpstreamClient
from apexbridge.llm.config import Upstream
from apexbridge.llm.response import EventLines
from apexbridge.llm.turn_span import end_turn, start_turn
from apexbridge.llm.upstream_errors import UpstreamError, passed_headers

Json = dict[str, Any]
MAX_OBSERVED_BYTES = 1024 * 1024
"""Larger answers are not parsed: that would hold up other requests."""
_FINISHES = {"max_tokens": "length", "max_output_tokens": "length", "tool_use": "tool_calls"}


@dataclass(frozen=True, slots=True, kw_only=True)
class ForwardedRequest:
    upstream: Upstream
    path: str
    """Below the upstream's base URL."""
    data: bytes
    """The body."""
    request: ChatRequest
    """What is recorded of it."""
    headers: Mapping[str, str] = field(default_factory=dict)
    query: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ForwardedStart:
    """The beginning of an upstream's answer."""

    status: int
    is_stream: bool
    content_type: str
    headers: Mapping[str, str]


async def forward(
    client: UpstreamClient,
    forwarded: ForwardedRequest,
    recorder: Recorder | None,
    seconds: float,
    *,
    chat_observer: ChatObserver | None = None,
    tracer: Tracer = NO_TRACER,
) -> AsyncGenerator[ForwardedStart | bytes, None]:
    """Send a request and yield the beginning of its answer, then its bytes. Raises UpstreamError."""
    request = forwarded.request
    with (
        ChatRecorder(recorder, request, forwarded.upstream.name, observer=chat_observer) as recording,
        start_turn(tracer, forwarded.upstream, request.model, is_stream=request.is_stream) as span,
    ):
        with span.current():  # not while this generator yields: it may be closed in another task
            response = await client.forward(
                forwarded.upstream,
                f"{forwarded.path}?{forwarded.query}" if forwarded.query else forwarded.path,
                forwarded.data,
                headers=forwarded.headers,
                is_stream=request.is_stream,
                seconds=seconds,
            )
        observer = _Observer(has_texts=recorder is not None and recorder.has_texts)
        try:
            yield ForwardedStart(
                status=response.status,
                is_stream=response.is_stream,
                content_type=_content_type(response.headers),
                headers=passed_headers(response.headers),
            )
            if response.is_stream:
                while data := await response.read():
                    observer.add(data)
                    yield data
            else:
                data = await response.body()
                observer.add_whole(data)
                yield data
            recording.observe(PassedThrough(chunks=[observer.chunk()]))
        finally:
            response.close()
            end_turn(span, model=None, finish_reason=observer.finish_reason, usage=observer.usage)


def _content_type(headers: Mapping[str, str]) -> str:
    """The content type of JSON or a stream. Pages for a browser are not served at this address."""
    kind = headers.get("content-type", "").lower()
    return kind if kind.startswith(("application/json", "text/event-stream")) else "application/octet-stream"


class _Observer:
    """Reads the usage, the end and, for full records, the text of an answer that passes; its shape is untrusted."""

    def __init__(self, *, has_texts: bool) -> None:
        self._has_texts = has_texts
        self._lines: EventLines | None = EventLines()
        self._usage: Json = {}
        self._finish = "stop"
        self._texts: list[str] = []
        self._characters = 0

    def add(self, data: bytes) -> None:
        if self._lines is None:
            return
        try:
            events = self._lines.feed(data)
        except UpstreamError:  # a line that is too long to be read
            self._lines = None
            return
        for event in events:
            if b'"usage"' in event or (self._has_texts and b'delta"' in event):
                self.add_whole(event)

    def add_whole(self, data: bytes) -> None:
        try:
            answer = orjson.loads(data) if len(data) <= MAX_OBSERVED_BYTES else None
        except ValueError:
            return
        if not isinstance(answer, dict):
            return
        delta = answer.get("delta")
        for part in (answer, answer.get("message"), answer.get("response"), delta):
            if isinstance(part, dict):
                self._note(part)
        if isinstance(delta, str) and answer.get("type") == "response.output_text.delta":
            self._add_text(delta)
        elif isinstance(delta, dict):
            self._add_text(delta.get("text"))
        elif answer.get("type") == "message":
            self._add_content(answer.get("content"))
        elif answer.get("object") == "response":
            for item in answer["output"] if isinstance(answer.get("output"), list) else ():
                self._add_content(item.get("content") if isinstance(item, dict) else None)

    @property
    def finish_reason(self) -> str:
        return self._finish

    @property
    def usage(self) -> Json | None:
        """As in chat completions; None if there was none."""
        counts = {key: value for key, value in self._usage.items() if type(value) is int}
        if not counts:
            return None
        cached = counts.get("cache_read_input_tokens", 0) + counts.get("cache_creation_input_tokens", 0)
        return {
            "prompt_tokens": counts.get("input_tokens", 0) + cached,
            "completion_tokens": counts.get("output_tokens", 0),
        }

    def chunk(self) -> Json:
        """What was observed, as a chunk of chat completions."""
        choice = {"index": 0, "finish_reason": self._finish, "message": {"content": "".join(self._texts)}}
        return {"choices": [choice]} | ({"usage": usage} if (usage := self.usage) is not None else {})

    def _note(self, part: Json) -> None:
        if isinstance(usage := part.get("usage"), dict):
            self._usage |= {key: value for key, value in usage.items() if value is not None}
        reason = part.get("stop_reason")
        if isinstance(details := part.get("incomplete_details"), dict):
            reason = details.get("reason")
        if isinstance(reason, str):
            self._finish = _FINISHES.get(reason, "stop")

    def _add_content(self, content: Any) -> None:
        for block in content if isinstance(content, list) else ():
            self._add_text(block.get("text") if isinstance(block, dict) else None)

    def _add_text(self, text: Any) -> None:
        if self._has_texts and isinstance(text, str) and self._characters < MAX_ANSWER_CHARACTERS:
            self._texts.append(text)
            self._characters += len(text)
