"""Records a chat request while it is answered."""

import asyncio
import logging
import re
import time
import uuid
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Literal, Protocol, Self

from apexbridge._time import now_ms
from apexbridge.agent.budget import StopCause, add_usage
from apexbridge.agent.chat_events import ChatFinished, ChatStarted, Event, PassedThrough, Report, TextDelta
from apexbridge.agent.records.content import MAX_NAME, bounded, clean, error_summary, redact_steps
from apexbridge.agent.request import ChatRequest
from apexbridge.storage.chat_store import ChatOutcome, ChatRow

Json = dict[str, Any]
_Tokens = tuple[int | None, int | None, int | None]
RecordedCause = StopCause | Literal["cancelled"]
MAX_ANSWER_CHARACTERS = 256 * 1024
MAX_TOKENS = 2**40
"""More than any request uses. Sums of such numbers stay exact."""
_IDENTITY = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:-]{0,127}")
_RESERVED = frozenset({"stats"})
"""Names of routes below /api/chats."""
logger = logging.getLogger(__name__)


class Recorder(Protocol):
    has_texts: bool
    """Whether messages and answers are recorded."""

    def keep(self, record: ChatRow) -> None:
        """Store a record without blocking."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatEnd:
    """The end of a chat request, without any text of it."""

    upstream: str
    model: str
    """As the client named it."""
    outcome: ChatOutcome
    error: BaseException | None
    turns_ms: Sequence[int]
    """Durations of the completed turns of the model."""
    prompt_tokens: int | None
    completion_tokens: int | None


class ChatObserver(Protocol):
    """Is notified of every chat request that has ended."""

    def chat_ended(self, end: ChatEnd) -> None: ...


class ChatRecorder:
    """Observes the events of one request and stores its record at the end, also after an error or a disconnect.

    Example:
        with ChatRecorder(recorder, request, upstream.name) as recording:
            async for event in events:
                recording.observe(event)
    """

    def __init__(
        self,
        recorder: Recorder | None,
        request: ChatRequest,
        upstream: str,
        *,
        observer: ChatObserver | None = None,
    ) -> None:
        self._recorder = recorder
        self._observer = observer
        self._has_texts = recorder is not None and recorder.has_texts
        self._request = request
        self._upstream = upstream
        self._model = request.model
        self._started_at = now_ms()
        self._begun = time.monotonic()
        self._report: Report | None = None
        self._ended: ChatFinished | None = None
        self._passed = 0
        self._finish: Any = None
        self._usage: Any = None
        self._said: list[str] = []
        self._characters = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self.end(error)

    def observe(self, event: Event) -> None:
        if isinstance(event, TextDelta):
            if self._has_texts:
                self._add_text(event.text)
        elif isinstance(event, PassedThrough):
            for chunk in event.chunks:
                self._pass(chunk)
        elif isinstance(event, ChatStarted):
            self._report = event.report
            self._model = self._model or event.model
        elif isinstance(event, ChatFinished):
            self._ended, self._report = event, event.report

    def end(self, error: BaseException | None = None) -> None:
        """Store the record. A failure here is logged and does not affect the request."""
        if self._recorder is None and self._observer is None:
            return
        try:
            steps, outcome = self._steps(), self._outcome(error)
            tokens = _tokens(self._ended.usage if self._ended is not None else _usage_of(steps))
            if self._observer is not None:
                self._observer.chat_ended(self._end(error, outcome, steps, tokens))
            if self._recorder is not None:
                self._recorder.keep(self._record(error, outcome, steps, tokens))
        except Exception:
            logger.exception("the chat request %s could not be recorded", self._request.request_id)

    def _add_text(self, text: Any) -> None:
        if isinstance(text, str) and self._characters <= MAX_ANSWER_CHARACTERS:
            self._said.append(text)
            self._characters += len(text)

    def _pass(self, chunk: Json) -> None:
        """Observe a chunk of the upstream; its shape is untrusted."""
        self._passed += 1
        if isinstance(usage := chunk.get("usage"), dict):
            self._usage = usage
        choices = chunk.get("choices")
        choice = choices[0] if isinstance(choices, list) and choices else None
        if not isinstance(choice, dict) or choice.get("index"):
            return
        if choice.get("finish_reason") is not None:
            self._finish = choice["finish_reason"]
        if self._has_texts:
            message = choice.get("message") or choice.get("delta")
            self._add_text(message.get("content") if isinstance(message, dict) else None)

    def _end(self, error: BaseException | None, outcome: ChatOutcome, steps: list[Json], tokens: _Tokens) -> ChatEnd:
        return ChatEnd(
            upstream=self._upstream,
            model=self._request.model or self._upstream,
            outcome=outcome,
            error=error,
            turns_ms=[step["durationMs"] for step in steps if step.get("kind") == "model"],
            prompt_tokens=tokens[0],
            completion_tokens=tokens[1],
        )

    def _record(self, error: BaseException | None, outcome: ChatOutcome, steps: list[Json], tokens: _Tokens) -> ChatRow:
        request, ended, has_texts = self._request, self._ended, self._has_texts
        code, message = error_summary(error, has_texts=has_texts) if outcome == "failed" else (None, None)
        prompt, completion, total = tokens
        trajectory, messages, answer = bounded(
            steps if has_texts else redact_steps(steps),
            request.messages if has_texts else None,
            "".join(self._said) if has_texts else None,
        )
        return ChatRow(
            id=_identity(request.request_id),
            link=request.link,
            caller=request.caller,
            model=clean((self._model or self._upstream)[:MAX_NAME]),
            upstream=self._upstream,
            started_at=self._started_at,
            duration_ms=self._duration_ms,
            is_stream=request.is_stream,
            turns=ended.report.turns if ended else sum(step.get("kind") == "model" for step in steps),
            calls=ended.report.calls if ended else sum(step.get("kind") != "model" for step in steps),
            stop_cause=self._cause(outcome),
            outcome=outcome,
            error_code=code,
            error_message=clean(message) if message is not None else None,
            prompt_tokens=prompt,
            completion_tokens=completion,
            total_tokens=total,
            trajectory=trajectory,
            messages=messages,
            answer=answer,
        )

    def _outcome(self, error: BaseException | None) -> ChatOutcome:
        """A client that disconnects after the last event was answered."""
        if error is None:
            return "answered"
        if isinstance(error, GeneratorExit | asyncio.CancelledError):
            return "answered" if self._ended is not None or self._finish is not None else "cancelled"
        return "failed"

    def _cause(self, outcome: ChatOutcome) -> RecordedCause:
        if outcome != "answered":
            return "error" if outcome == "failed" else "cancelled"
        if self._ended is not None:
            return self._ended.report.stop_cause
        if self._finish == "length":
            return "length"
        return "client_tools" if self._finish == "tool_calls" else "answered"

    @property
    def _duration_ms(self) -> int:
        return round((time.monotonic() - self._begun) * 1000)

    def _steps(self) -> list[Json]:
        if self._report is not None:
            return self._report.trajectory
        if not self._passed:
            return []
        return [{"kind": "model", "name": self._model, "durationMs": self._duration_ms, "usage": self._usage}]


def _identity(request_id: str) -> str:
    return request_id if is_record_id(request_id) else f"req_{uuid.uuid4().hex}"


def is_record_id(request_id: str) -> bool:
    """Whether the record of a request has the request's own id."""
    return _IDENTITY.fullmatch(request_id) is not None and request_id not in _RESERVED


def _usage_of(steps: Iterable[Json]) -> Json | None:
    total: Json | None = None
    for step in steps:
        total = add_usage(total, step.get("usage"))
    return total


def _tokens(usage: Json | None) -> _Tokens:
    """Tokens of the prompt, of the completion and in total, if the upstream reported them."""
    counts = usage or {}
    prompt, completion = _count(counts.get("prompt_tokens")), _count(counts.get("completion_tokens"))
    total = _count(counts.get("total_tokens"))
    if total is None and prompt is not None and completion is not None:
        total = prompt + completion
    return prompt, completion, total


def _count(value: Any) -> int | None:
    return int(value) if type(value) in (int, float) and 0 <= value <= MAX_TOKENS else None
