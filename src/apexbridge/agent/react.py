"""ReActStrategy: think, act, look, and again, until there is an answer or a limit is reached."""

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, aclosing, asynccontextmanager
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from apexbridge.agent.approving import Approver, question_for
from apexbridge.agent.budget import Budget, ChatLimits, StopCause
from apexbridge.agent.calling import Caller, Outcome
from apexbridge.agent.disclosure import Disclosure
from apexbridge.agent.events import Acted, Begun, Ended, Event, Passed, Report, Said
from apexbridge.agent.hidden import HiddenTurns, Question
from apexbridge.agent.prompt import own_prompt, with_system
from apexbridge.agent.request import ChatRequest
from apexbridge.agent.usage import add_usage
from apexbridge.llm.accumulator import Turn
from apexbridge.llm.config import LLMSettings, Upstream
from apexbridge.llm.errors import UpstreamError
from apexbridge.llm.salvage import TextGate
from apexbridge.llm.tool_modes import ModeMemory, Offer, Way, read_answer, read_calls, request_body
from apexbridge.tools.conversation import Conversation
from apexbridge.tools.registry import ToolRegistry

Json = dict[str, Any]
T = TypeVar("T")
GRACE_SECONDS = 30.0
"""What a last answer may take beyond the time limit."""
TURN_SEPARATOR = "\n\n"
_TOOL_WORDS = ("tool", "function", "response_format", "json_schema", "grammar")
_UNABLE_WORDS = (
    "support",
    "requires",
    "enable",
    "unrecognized",
    "unknown",
    "unexpected",
    "not permitted",
    "not allowed",
)
"""A server that cannot do something says so; one that was sent bad tools by a client says something else."""
logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatSettings:
    """What an operator sets about chat."""

    llm: LLMSettings
    limits: ChatLimits
    system_prompt: str | None = None
    """In place of ours; empty for none."""


class Model(Protocol):
    """Whoever gives completions."""

    async def complete(self, upstream: Upstream, body: Json) -> Json:
        """One in one piece."""

    def stream(self, upstream: Upstream, body: Json) -> AbstractAsyncContextManager[AsyncGenerator[Json, None]]:
        """One in pieces."""


class ReActStrategy:
    """The loop over one registry of tools and any number of upstreams."""

    def __init__(self, registry: ToolRegistry, settings: ChatSettings, client: Model, approver: Approver) -> None:
        self.settings = settings
        self._registry = registry
        self._client = client
        self._approver = approver
        self._modes = ModeMemory()
        self._hidden = HiddenTurns()

    async def run(self, request: ChatRequest, upstream: Upstream) -> AsyncGenerator[Event, None]:
        """Answer a request; events in the order in which things happen.

        Raises:
            BadRequestError: the request cannot be answered.
            UpstreamError: the upstream refused or failed.
        """
        attempt = _Attempt(self, request, upstream)
        is_plain = not request.uses_our_tools and self.settings.system_prompt is None
        async with aclosing(attempt.pass_on() if is_plain else attempt.go()) as events:
            async for event in events:
                yield event


class _Attempt:
    """One request on its way to an answer."""

    def __init__(self, strategy: ReActStrategy, request: ChatRequest, upstream: Upstream) -> None:
        self._strategy = strategy
        self._request = request
        self._upstream = upstream
        self._disclosure = Disclosure(request, strategy._registry)
        self._conversation = Conversation(id=request.request_id or "chat", caller=request.caller)
        self._budget = Budget(strategy.settings.limits)
        self._report = Report()
        self._usage: Json | None = None
        self._way: Way = strategy._modes.way(upstream, request.model)
        restored, self._asked = strategy._hidden.restored(request.caller, request.messages)
        self._restored_count = len(restored)
        self._messages = self._beginning(restored)
        self._format = _form(request) if self._disclosure.has_ours else None
        """Asked for in the last turn alone: before that it would keep the model from calling anything."""
        self._choice: Any = request.body.get("tool_choice")
        self._has_begun = False
        self._spoke_in: int | None = None
        """The last turn that said something to the client."""
        self._caller = Caller(
            strategy._registry,
            self._disclosure,
            self._conversation,
            lambda error: strategy._approver.approve(error, request.options.approvals, self._budget.seconds_left),
        )

    def _beginning(self, messages: list[Json]) -> list[Json]:
        request, settings = self._request, self._strategy.settings
        if settings.system_prompt is not None:
            return with_system(messages, settings.system_prompt)
        return with_system(messages, own_prompt()) if request.uses_our_tools else messages

    async def pass_on(self) -> AsyncGenerator[Event, None]:
        """Ask once, and pass on what comes."""
        body, client = {**self._request.body, "messages": self._messages}, self._strategy._client
        if not body.get("tools") and body.get("tool_choice") == "none":
            del body["tool_choice"]  # it was about ours, and strict upstreams refuse it where there are no tools
        if not self._request.is_stream:
            yield Passed(chunk=await self._in_time(client.complete(self._upstream, body)))
            return
        async with self._stream(body) as chunks:
            while (chunk := await self._in_time(anext(chunks, None))) is not None:
                yield Passed(chunk=chunk)

    # ------------------------------------------------------------------------------------------------- the loop
    async def go(self) -> AsyncGenerator[Event, None]:
        """Turn after turn."""
        cause: StopCause | None = None
        is_last = False
        await self._take_answers()
        while True:
            cause = cause or self._budget.exhausted()
            is_last = is_last or cause is not None
            turn = Turn()
            async with aclosing(self._turn(turn, is_last=is_last)) as events:
                async for event in events:
                    yield event
            self._budget.turns += 1
            calls = [] if is_last else self._calls_of(turn)
            if not calls and self._format is not None and not is_last:
                is_last = True  # it is ready to answer: once more, in the form that was asked for
                continue
            if not calls:
                yield self._end(turn, cause or ("length" if turn.finish_reason == "length" else "answered"))
                return
            theirs = [call for call in calls if self._disclosure.is_client(call["function"]["name"])]
            ours = [call for call in calls if call not in theirs]
            outcomes = await self._act(ours)
            for outcome in outcomes:
                yield _acted(outcome)
            questions = self._questions(outcomes)
            results = [outcome.message for outcome in outcomes if outcome.call["id"] not in questions]
            theirs += [question_call for question_call, _ in questions.values()]
            if theirs:
                if ours:
                    asked = [question for _, question in questions.values()]
                    self._strategy._hidden.keep(self._request.caller, turn.message(calls), results, theirs, asked)
                else:
                    self._strategy._hidden.forget(self._request.caller, theirs)
                yield self._end(turn, "approval" if questions else "client_tools", calls=theirs)
                return
            self._messages += [turn.message(calls), *results]
            if any(outcome.is_loop for outcome in outcomes):
                cause = "loop"
            if self._choice not in (None, "auto"):
                self._choice = "auto"  # what was required has been done

    async def _turn(self, turn: Turn, *, is_last: bool) -> AsyncGenerator[Event, None]:
        """Ask the model once; its words go out as they come, unless they may be a call."""
        begun = time.monotonic()
        gate = TextGate() if self._disclosure.tools and not is_last else None
        is_draft = self._format is not None and not is_last
        async with aclosing(self._chunks(is_last=is_last)) as chunks:
            async for chunk in chunks:
                fields, beside = turn.take_chunk(chunk)
                if not self._has_begun:
                    self._has_begun = True
                    yield Begun(model=turn.model or self._request.model, report=self._report)
                if gate is not None and isinstance(text := fields.get("content"), str):
                    fields = {**fields, "content": "" if self._way == "schema" else gate.feed(text)}
                if not is_draft and (event := self._said(fields, beside)):
                    yield event
        if gate is not None and not is_draft and not turn.made_calls and turn.has_text:
            rest = turn.text if self._way == "schema" else gate.held
            is_call = read_calls(self._way, rest, self._disclosure.is_known) is not None
            if not is_call and (event := self._said({"content": read_answer(self._way, rest)})):
                yield event
        self._usage = add_usage(self._usage, turn.usage)
        took = round((time.monotonic() - begun) * 1000)
        self._note({"kind": "model", "name": self._request.model, "durationMs": took, "usage": turn.usage})

    async def _chunks(self, *, is_last: bool) -> AsyncGenerator[Json, None]:
        """The model's answer in pieces, whether it streams or not."""
        while True:
            body = self._body(is_last=is_last)
            try:
                if not self._request.is_stream:
                    yield await self._in_time(self._strategy._client.complete(self._upstream, body))
                    return
                async with self._stream(body) as chunks:
                    while (chunk := await self._in_time(anext(chunks, None))) is not None:
                        yield chunk
                return
            except UpstreamError as error:
                if not self._is_about_tools(error) or self._has_begun:
                    raise
                other = self._strategy._modes.refused(self._upstream, self._request.model, self._way)
                if other is None:
                    raise
                logger.info("%s takes no tools in this way (%s); trying %s", self._request.model, self._way, other)
                self._way = other

    @asynccontextmanager
    async def _stream(self, body: Json) -> AsyncIterator[AsyncGenerator[Json, None]]:
        """The model's answer in pieces; the wait for its first word is bounded as well."""
        async with AsyncExitStack() as stack:
            streaming = self._strategy._client.stream(self._upstream, body)
            yield await self._in_time(stack.enter_async_context(streaming))

    async def _in_time(self, waiting: Awaitable[T]) -> T:
        """Wait no longer than the request may last; around single steps, because a yield must not be timed."""
        try:
            async with asyncio.timeout(self._budget.seconds_left + GRACE_SECONDS):
                return await waiting
        except TimeoutError as error:
            raise UpstreamError.of_ours(504, "The model took too long.", "upstream_timeout") from error

    def _body(self, *, is_last: bool) -> Json:
        body = dict(self._request.body)
        if self._format is not None and not is_last:
            del body["response_format"]
        if self._request.is_stream:
            body["stream_options"] = {**(body.get("stream_options") or {}), "include_usage": True}
        choice = "none" if is_last and self._disclosure.tools else self._choice
        offer = Offer(tools=self._disclosure.tools, choice=choice)
        return request_body(self._way, body, self._messages, offer)

    def _is_about_tools(self, error: UpstreamError) -> bool:
        if error.status not in (400, 404, 422, 501) or not self._disclosure.tools:
            return False
        text = str(error.error.get("message", "")).lower()
        return any(word in text for word in _TOOL_WORDS) and any(word in text for word in _UNABLE_WORDS)

    # ------------------------------------------------------------------------------------------------ approvals
    def _questions(self, outcomes: list[Outcome]) -> dict[str, tuple[Json, Question]]:
        """What to ask the client, where it wants to be asked by calls, each by the id of the call it is about."""
        if self._request.options.approvals != "tool":
            return {}
        found: dict[str, tuple[Json, Question]] = {}
        for outcome in outcomes:
            if outcome.needs_approval and outcome.refusal is not None:
                asked = question_for(outcome.refusal)
                approval = str(outcome.refusal.details.get("approvalId"))
                question = Question(asked_as=asked["id"], call=outcome.call, approval=approval)
                found[outcome.call["id"]] = (asked, question)
        return found

    async def _take_answers(self) -> None:
        """Carry out what the client was asked about, if it agreed; the results take their place in the conversation."""
        offset = len(self._messages) - self._restored_count
        for asked in self._asked:
            approval = await self._strategy._approver.answered(asked.question.approval, agreed=asked.is_agreed)
            outcome = await self._caller.run_approved(asked.question.call, approval)
            self._budget.calls += 1
            self._note(_told_outcome(outcome))
            self._messages[asked.place + offset] = outcome.message
            asked.settle(outcome.message)

    # ---------------------------------------------------------------------------------------------------- steps
    def _calls_of(self, turn: Turn) -> list[Json]:
        """The calls of a turn, made properly or written into its text."""
        modes, model = self._strategy._modes, self._request.model
        if turn.made_calls:
            if self._way == "native":
                modes.called(self._upstream, model)
            return turn.tool_calls
        if not self._disclosure.tools:
            return []
        found = read_calls(self._way, turn.text, self._disclosure.is_known)
        if found is None:
            return []
        if self._way == "native":
            modes.wrote(self._upstream, model)
        turn.content = [found.before] if found.before else []
        for place, (name, arguments) in enumerate(found.calls):
            turn.take_chunk(
                {
                    "choices": [
                        {
                            "delta": {
                                "tool_calls": [{"index": place, "function": {"name": name, "arguments": arguments}}]
                            }
                        }
                    ]
                }
            )
        return turn.tool_calls

    async def _act(self, calls: list[Json]) -> list[Outcome]:
        """Carry out our calls; those beyond the budget are told so."""
        allowed = self._budget.calls_left()
        outcomes = await self._caller.run(calls[:allowed])
        self._budget.calls += len(outcomes)
        for call in calls[allowed:]:
            text = "Error (LIMIT_REACHED): no more calls are possible for this request; answer with what is there."
            outcomes.append(Outcome(call=call, text=text, tool=None, succeeded=False, duration_ms=0))
        for outcome in outcomes:
            self._note(_told_outcome(outcome))
        return outcomes

    def _note(self, step: Json) -> None:
        """Remember a step, and have it in the log under the request's id."""
        self._report.trajectory.append(step)
        logger.info(
            "chat %s: %s %s, %s ms", self._request.request_id, step["kind"], step.get("name"), step["durationMs"]
        )

    def _said(self, fields: Json, beside: Json | None = None) -> Said | None:
        text = fields.get("content")
        if isinstance(text, str):
            if not text:
                fields = {key: value for key, value in fields.items() if key != "content"}
            else:
                if self._spoke_in not in (None, self._budget.turns):
                    fields = {**fields, "content": TURN_SEPARATOR + text}
                self._spoke_in = self._budget.turns
        return Said(fields=fields, beside=beside or {}) if fields or beside else None

    def _end(self, turn: Turn, cause: StopCause, calls: list[Json] | None = None) -> Ended:
        report = self._report
        report.turns, report.calls, report.stop_cause = self._budget.turns, self._budget.calls, cause
        report.duration_ms = round(self._budget.seconds_used * 1000)
        finish = "tool_calls" if calls else turn.finish_reason
        if finish is None or (finish == "tool_calls" and not calls):
            finish = "stop"
        return Ended(finish_reason=finish, calls=tuple(calls or ()), usage=self._usage, report=report)


def _form(request: ChatRequest) -> Any:
    """The form that the answer was asked for in; plain text is none."""
    form = request.body.get("response_format")
    return None if isinstance(form, dict) and form.get("type") == "text" else form


def _acted(outcome: Outcome) -> Acted:
    name = outcome.call["function"]["name"]
    how = "" if outcome.succeeded else " (failed)"
    return Acted(text=f"{name}{how}, {outcome.duration_ms} ms", detail=_told_outcome(outcome))


def _told_outcome(outcome: Outcome) -> Json:
    told: Json = {
        "kind": "search" if outcome.tool == "vector-search" else "tool",
        "name": outcome.call["function"]["name"],
        "tool": outcome.tool,
        "success": outcome.succeeded,
        "durationMs": outcome.duration_ms,
    }
    if outcome.tool == "vector-search" and isinstance(outcome.data, dict):
        told["results"] = [
            {"name": hit["name"], "score": hit["score"], "why": hit["why"]} for hit in outcome.data.get("results", [])
        ]
    if isinstance(outcome.data, dict) and isinstance(outcome.data.get("id"), str):
        told["executionId"] = outcome.data["id"]
    return told
