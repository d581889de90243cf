"""One turn of the model: asked in the way it understands, and its words passed on as they come."""

import logging
from collections.abc import AsyncGenerator, Sequence
from typing import Any, Protocol

from apexbridge.agent.budget import Budget
from apexbridge.agent.disclosure import Disclosure
from apexbridge.agent.events import Begun, Delta, Event, Report, Said
from apexbridge.agent.refusals import is_about_tools
from apexbridge.agent.request import ChatRequest
from apexbridge.agent.textless import on_one_line
from apexbridge.llm.accumulator import Turn
from apexbridge.llm.config import Upstream
from apexbridge.llm.errors import UpstreamError
from apexbridge.llm.mode_memory import ModeMemory
from apexbridge.llm.salvage import TextGate
from apexbridge.llm.tool_modes import Offer, read_answer, read_calls, request_body

Json = dict[str, Any]
GRACE_SECONDS = 30.0
"""What a last answer may take beyond the time limit."""
TURN_SEPARATOR = "\n\n"
logger = logging.getLogger(__name__)


class Answer(Protocol):
    """What a model says."""

    async def next(self) -> list[Json] | None:
        """Chunks that came together, or one whole completion; None at the end."""


class Model(Protocol):
    """Whoever gives completions."""

    async def ask(self, upstream: Upstream, body: Json, seconds: float) -> Any:
        """Ask for one; gives an `Answer`, in pieces where the body asks for a stream."""

    def done(self, answer: Any) -> None:
        """No more of the answer is wanted."""


class Asker:
    """Asks for the turns of one request."""

    def __init__(
        self,
        model: Model,
        modes: ModeMemory,
        *,
        request: ChatRequest,
        upstream: Upstream,
        disclosure: Disclosure,
        budget: Budget,
        report: Report,
    ) -> None:
        self._model = model
        self._modes = modes
        self._request = request
        self._upstream = upstream
        self._disclosure = disclosure
        self._budget = budget
        self._report = report
        self._way = modes.way(upstream, request.model)
        self.form = _form(request) if disclosure.has_ours else None
        """What the answer shall look like; asked for in the last turn alone, as it would keep the model from calling
        anything before that."""
        self.choice: Any = request.body.get("tool_choice")
        self._has_begun = False
        self._spoke_in: int | None = None
        """The last turn that said something to the client."""

    async def ask(self, turn: Turn, messages: Sequence[Json], *, is_last: bool) -> AsyncGenerator[Event, None]:
        """Ask once; its words go out as they come, unless they may be a call or no answer yet."""
        is_read = not is_last or self.form is None
        gate = TextGate(self._disclosure.is_known) if self._disclosure.tools and is_read else None
        is_draft = self.form is not None and not is_last
        answer, chunks = await self._first(messages, is_last=is_last)
        try:
            while chunks is not None:
                taken = [turn.take_chunk(chunk) for chunk in chunks]
                if not self._has_begun:
                    self._has_begun = True
                    yield Begun(model=turn.model or self._request.model, report=self._report)
                if not is_draft and (deltas := self._deltas(taken, gate)):
                    yield Said(deltas=deltas)
                chunks = await answer.next()
        finally:
            self._model.done(answer)
        if gate is not None and not is_draft and turn.has_text:
            rest = turn.text if self._way == "schema" else gate.held
            # Of the whole text, as that is where its calls are read from: what is no call has to be shown.
            is_answer = is_last and self._way == "schema"  # it could be nothing else
            is_call = not is_answer and read_calls(self._way, turn.text, self._disclosure.is_known) is not None
            if not is_call and (delta := self._delta({"content": read_answer(self._way, rest)}, {})):
                yield Said(deltas=[delta])

    def calls_of(self, turn: Turn) -> list[Json]:
        """The calls of a turn, made properly or written into its text."""
        model = self._request.model
        if turn.made_calls:
            if self._way == "native":
                self._modes.called(self._upstream, model)
            return turn.tool_calls
        if not self._disclosure.tools:
            return []
        found = read_calls(self._way, turn.text, self._disclosure.is_known)
        if found is None:
            return []
        if self._way == "native":
            self._modes.wrote(self._upstream, model)
        turn.content = [found.before] if found.before else []
        for name, arguments in found.calls:
            turn.add_call(name, arguments)
        return turn.tool_calls

    # ------------------------------------------------------------------------------------------------- requests
    async def _first(self, messages: Sequence[Json], *, is_last: bool) -> tuple[Answer, list[Json] | None]:
        """The answer and its first piece; up to there another tool mode can be tried. One that works is remembered."""
        first = self._way
        while True:
            body = self._body(messages, is_last=is_last)
            try:
                answer: Answer = await self._model.ask(self._upstream, body, self._budget.seconds_left + GRACE_SECONDS)
                try:
                    chunks = await answer.next()
                except BaseException:
                    self._model.done(answer)
                    raise
                if self._way != first:
                    self._modes.accepted(self._upstream, self._request.model, self._way)
                return answer, chunks
            except UpstreamError as error:
                if self._has_begun or not self._disclosure.tools:
                    raise
                if not is_about_tools(error, body, self._disclosure.names):
                    raise
                other = self._modes.after_refusal(self._upstream, self._way)
                if other is None:
                    raise
                name = on_one_line(self._request.model)
                logger.info("%s takes no tools in this way (%s); trying %s", name, self._way, other)
                self._way = other

    def _body(self, messages: Sequence[Json], *, is_last: bool) -> Json:
        body = dict(self._request.body)
        if self.form is not None and not is_last:
            del body["response_format"]
        if self._request.is_stream:
            body["stream_options"] = {**(body.get("stream_options") or {}), "include_usage": True}
        choice = "none" if is_last and self._disclosure.tools else self.choice
        return request_body(self._way, body, messages, Offer(tools=self._disclosure.tools, choice=choice))

    # ---------------------------------------------------------------------------------------------------- words
    def _deltas(self, taken: list[tuple[Json, Json]], gate: TextGate | None) -> list[Delta]:
        deltas: list[Delta] = []
        for fields, beside in taken:
            if gate is not None and isinstance(text := fields.get("content"), str):
                fields["content"] = "" if self._way == "schema" else gate.feed(text)
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
    """The form that the answer was asked for in; plain text is none."""
    form = request.body.get("response_format")
    return None if isinstance(form, dict) and form.get("type") == "text" else form
