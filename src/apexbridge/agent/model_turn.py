"""One turn of the model: ask in a tool mode that it supports, and stream its text."""

import logging
from collections.abc import AsyncGenerator, Sequence
from typing import Any, Protocol

from apexbridge._tracing import NO_TRACER, Tracer
from apexbridge.agent.budget import Budget
from apexbridge.agent.chat_events import ChatStarted, Delta, Event, Report, TextDelta
from apexbridge.agent.converted_fields import without_refused
from apexbridge.agent.records.content import log_safe
from apexbridge.agent.request import ChatRequest
from apexbridge.agent.tool_offer import ToolOffer
from apexbridge.agent.tool_refusals import is_about_tools
from apexbridge.llm.config import Upstream
from apexbridge.llm.text_calls import TextGate
from apexbridge.llm.tool_modes import ModeMemory, Offer, read_answer, read_calls, request_body
from apexbridge.llm.turn import Turn
from apexbridge.llm.turn_span import end_turn, start_turn
from apexbridge.llm.upstream_errors import UpstreamError

Json = dict[str, Any]
GRACE_SECONDS = 30.0
"""Time for a final answer beyond the time limit."""
TURN_SEPARATOR = "\n\n"
logger = logging.getLogger(__name__)


class Answer(Protocol):
    """A model's response."""

    async def next(self) -> list[Json] | None:
        """The next chunks, or one complete completion. None at the end."""


class Model(Protocol):
    """A source of completions."""

    async def ask(self, upstream: Upstream, body: Json, seconds: float) -> Any:
        """Request a completion; returns an `Answer`."""

    def done(self, answer: Any) -> None:
        """Release an answer, complete or not."""


class ModelCaller:
    """Requests the model turns of one chat."""

    def __init__(
        self,
        model: Model,
        modes: ModeMemory,
        *,
        request: ChatRequest,
        upstream: Upstream,
        offer: ToolOffer,
        budget: Budget,
        report: Report,
        tracer: Tracer = NO_TRACER,
    ) -> None:
        self._model = model
        self._tracer = tracer
        self._modes = modes
        self._request = request
        self._fields = request.body
        """The request's fields, adapted to the upstream if they were converted from another API."""
        self._upstream = upstream
        self._offer = offer
        self._budget = budget
        self._report = report
        self._mode = modes.mode(upstream, request.model)
        self.form = _form(request) if offer.has_ours else None
        """`response_format`. It is sent in the last turn only: earlier it would keep the model from calling tools."""
        self.choice: Any = request.body.get("tool_choice")
        self._has_begun = False
        self._is_announced = False
        self._spoke_in: int | None = None
        """The last turn that sent text to the client."""

    def announce(self) -> ChatStarted:
        """Start the response before the model does. Its errors then no longer have a status of their own."""
        self._is_announced = True
        return ChatStarted(model=self._request.model, report=self._report)

    async def ask(self, turn: Turn, messages: Sequence[Json], *, is_last: bool) -> AsyncGenerator[Event, None]:
        """Ask once. Text is streamed unless it may be a tool call or is only a draft."""
        is_read = not is_last or self.form is None
        gate = TextGate(self._offer.is_known) if self._offer.tools and is_read else None
        is_draft = self.form is not None and not is_last
        with start_turn(self._tracer, self._upstream, self._request.model, is_stream=self._request.is_stream) as span:
            with span.current():  # not while this generator yields: it may be closed in another task
                answer, chunks = await self._first(messages, is_last=is_last)
            try:
                while chunks is not None:
                    taken = [turn.take_chunk(chunk) for chunk in chunks]
                    if not self._has_begun:
                        self._has_begun = True
                        if not self._is_announced:
                            yield ChatStarted(model=turn.model or self._request.model, report=self._report)
                    if not is_draft and (deltas := self._deltas(taken, gate)):
                        yield TextDelta(deltas=deltas)
                    chunks = await answer.next()
            finally:
                self._model.done(answer)
                end_turn(span, model=turn.model, finish_reason=turn.finish_reason, usage=turn.usage)
        if gate is not None and not is_draft and turn.has_text:
            unsent = turn.text if self._mode == "schema" else gate.held
            # Check the whole text, because calls_of() does: text that is not a call must reach the client.
            is_answer = is_last and self._mode == "schema"  # the schema of the last turn allows nothing else
            is_call = not is_answer and read_calls(self._mode, turn.text, self._offer.is_known) is not None
            if not is_call and (delta := self._delta({"content": read_answer(self._mode, unsent)}, {})):
                yield TextDelta(deltas=[delta])

    def calls_of(self, turn: Turn) -> list[Json]:
        """The tool calls of a turn: structured ones, or ones written into the text."""
        model = self._request.model
        if turn.made_calls:
            if self._mode == "native":
                self._modes.accepted(self._upstream, model, "native")
            return turn.tool_calls
        if not self._offer.tools:
            return []
        found = read_calls(self._mode, turn.text, self._offer.is_known)
        if found is None:
            return []
        if self._mode == "native":
            self._modes.wrote(self._upstream, model)
        turn.content = [found.before] if found.before else []
        for name, arguments in found.calls:
            turn.add_call(name, arguments)
        return turn.tool_calls

    # ------------------------------------------------------------------------------------------------- requests
    async def _first(self, messages: Sequence[Json], *, is_last: bool) -> tuple[Answer, list[Json] | None]:
        """The answer and its first chunks. Until then another tool mode can be tried; one that works is remembered."""
        first = self._mode
        while True:
            body = self._body(messages, is_last=is_last)
            try:
                answer: Answer = await self._model.ask(self._upstream, body, self._budget.seconds_left + GRACE_SECONDS)
                try:
                    chunks = await answer.next()
                except BaseException:
                    self._model.done(answer)
                    raise
                if self._mode != first:
                    self._modes.accepted(self._upstream, self._request.model, self._mode)
                return answer, chunks
            except UpstreamError as error:
                if self._has_begun:
                    raise
                if not self._request.may_pass_through and (adapted := without_refused(self._fields, error)) is not None:
                    self._fields = adapted
                    continue
                if not self._offer.tools:
                    raise
                if not is_about_tools(error, body, self._offer.names):
                    raise
                other = self._modes.after_refusal(self._upstream, self._mode)
                if other is None:
                    raise
                name = log_safe(self._request.model)
                logger.info("%s rejects tools in the mode %s; trying %s", name, self._mode, other)
                self._mode = other

    def _body(self, messages: Sequence[Json], *, is_last: bool) -> Json:
        body = dict(self._fields)
        if self.form is not None and not is_last:
            del body["response_format"]
        if self._request.is_stream:
            body["stream_options"] = {**(body.get("stream_options") or {}), "include_usage": True}
        choice = "none" if is_last and self._offer.tools else self.choice
        return request_body(self._mode, body, messages, Offer(tools=self._offer.tools, choice=choice))

    # ---------------------------------------------------------------------------------------------------- words
    def _deltas(self, taken: list[tuple[Json, Json]], gate: TextGate | None) -> list[Delta]:
        deltas: list[Delta] = []
        for fields, beside in taken:
            if gate is not None and isinstance(text := fields.get("content"), str):
                fields["content"] = "" if self._mode == "schema" else gate.feed(text)
            if (delta := self._delta(fields, beside)) is not None:
                deltas.append(delta)
        return deltas

    def _delta(self, fields: Json, beside: Json) -> Delta | None:
        text = fields.get("content")
        if isinstance(text, str):
            if not text:
                del fields["content"]
            else:
                if self._spoke_in not in (None, self._budget.turns):
                    fields["content"] = TURN_SEPARATOR + text
                self._spoke_in = self._budget.turns
        return Delta(fields, beside) if fields or beside else None


def _form(request: ChatRequest) -> Any:
    form = request.body.get("response_format")
    return None if isinstance(form, dict) and form.get("type") == "text" else form
