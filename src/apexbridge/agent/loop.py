"""The ReAct loop of one chat request: ask the model, run its tool calls, repeat until it answers or a limit ends it."""

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Coroutine, Iterator
from contextlib import aclosing
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

from apexbridge._tracing import NO_TRACER, Tracer
from apexbridge.agent.approver import Approver, question_for
from apexbridge.agent.budget import Budget, ChatLimits, StopCause, add_usage, tokens_of
from apexbridge.agent.chat_events import (
    ChatFinished,
    Event,
    PassedThrough,
    Report,
    TextDelta,
    ToolActivity,
    ToolStarted,
)
from apexbridge.agent.conversation_files import ConversationFiles, PassedAnswers, listed_files
from apexbridge.agent.model_turn import GRACE_SECONDS, Answer, Model, ModelCaller
from apexbridge.agent.records.content import log_safe
from apexbridge.agent.records.recorder import is_record_id
from apexbridge.agent.request import BadRequestError, ChatRequest
from apexbridge.agent.suspended_turns import Question, SuspendedTurns
from apexbridge.agent.tool_calls import Outcome, ToolCaller
from apexbridge.agent.tool_offer import ServerTools, ToolOffer
from apexbridge.agent.tool_steps import StepQueue, ToolStep
from apexbridge.agent.usage_feedback import UsageFeedback
from apexbridge.llm.config import Upstream
from apexbridge.llm.conversion import CompletionBuilder, as_chunk, is_completion
from apexbridge.llm.tool_modes import ModeMemory, with_system
from apexbridge.llm.turn import Turn
from apexbridge.llm.turn_span import end_turn, start_turn
from apexbridge.llm.upstream_errors import UpstreamError, is_too_long
from apexbridge.tools.allowance import RUN_CODE
from apexbridge.tools.conversation import LOOP_CALLS, Conversation, Origin
from apexbridge.tools.naming import wire_name
from apexbridge.tools.registry import ToolRegistry

Json = dict[str, Any]
SHORT_CHARACTERS = 1_000
SAME_CALLS = f"\n[Note: the same calls were made {LOOP_CALLS} times in a row; their results will not change.]"
CUT_MARK = "\n[cut: too long]"
logger = logging.getLogger(__name__)


@cache
def default_prompt(*, with_code: bool = True) -> str:
    """The system prompt, with or without the tool that runs code."""
    text = resources.files("apexbridge.agent").joinpath("prompts/system.md").read_text("utf-8").strip()
    return text.format(or_code=", or write code and run it with run_code" if with_code else "")


def with_prompt(messages: list[Json], prompt: str | None, request: ChatRequest, offer: ToolOffer) -> list[Json]:
    """The messages with the system prompt: the operator's, or the default one if tools of this server are offered."""
    if prompt is None and request.uses_our_tools:
        prompt = default_prompt(with_code=offer.id_of(wire_name(RUN_CODE)) == RUN_CODE)
    return with_system(messages, prompt) if prompt else messages


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatDependencies:
    """What all chat requests share."""

    registry: ToolRegistry
    limits: ChatLimits
    system_prompt: str | None
    """Replaces the default prompt. Empty: no system prompt."""
    approver: Approver
    own_tools: ServerTools
    modes: ModeMemory
    suspended: SuspendedTurns
    feedback: UsageFeedback
    tracer: Tracer = NO_TRACER
    files: ConversationFiles | None = None
    """None: chats have no workspaces."""


def run_chat(
    deps: ChatDependencies, model: Model, request: ChatRequest, upstream: Upstream
) -> AsyncGenerator[Event, None]:
    """Answer a request and yield its events in order. Raises BadRequestError or UpstreamError."""
    is_native = deps.modes.mode(upstream, request.model) == "native" or not request.client_names
    if request.may_pass_through and not request.uses_our_tools and is_native:
        return _pass_through(model, request, upstream, deps)
    if (request.body.get("n") or 1) > 1:
        raise BadRequestError("'n' above 1 is not possible with this model and tools.", param="n")
    return _Loop(deps, model, request, upstream).run()


async def _pass_through(
    model: Model, request: ChatRequest, upstream: Upstream, deps: ChatDependencies
) -> AsyncGenerator[Event, None]:
    """Ask the model once and forward its answer unchanged."""
    body = request.body
    if deps.system_prompt:
        body = {**body, "messages": with_system(request.messages, deps.system_prompt)}
    if not body.get("tools") and body.get("tool_choice") == "none":
        # It referred to this server's tools. Strict upstreams reject tool_choice without tools.
        body = {key: value for key, value in body.items() if key != "tool_choice"}
    with start_turn(deps.tracer, upstream, request.model, is_stream=request.is_stream) as span:
        with span.current():  # not while this generator yields: it may be closed in another task
            answer: Answer = await model.ask(upstream, body, deps.limits.seconds + GRACE_SECONDS)
        answers = PassedAnswers()
        try:
            builder: CompletionBuilder | None = None
            while (chunks := await answer.next()) is not None:
                answers.add(chunks)
                if not request.is_stream and not is_completion(chunks[0]):
                    builder = builder or CompletionBuilder()
                    builder.add(chunks)
                elif request.is_stream and is_completion(chunks[0]):
                    yield PassedThrough(chunks=[as_chunk(chunk) for chunk in chunks])
                else:
                    yield PassedThrough(chunks=chunks)
            if builder is not None:
                yield PassedThrough(chunks=[builder.completion()])
            if deps.files is not None:
                await deps.files.remember(request, None, answers.messages())
        finally:
            model.done(answer)
            end_turn(span, model=answers.model, finish_reason=answers.finish_reason, usage=answers.usage)


class _Loop:
    """One chat request: ask the model, run its calls, repeat.

    It ends with an answer, or with calls and approval questions for the client, which suspend it. After a limit or a
    loop (`cause`), the model is asked once more, without tools (`is_last`).
    """

    def __init__(self, deps: ChatDependencies, model: Model, request: ChatRequest, upstream: Upstream) -> None:
        self._deps = deps
        self._request = request
        restored, self._answered = deps.suspended.restored(request.caller, request.messages)
        self._offer = ToolOffer(request, deps.own_tools, restored)
        self._budget = Budget(deps.limits)
        self._report = Report()
        self._model = ModelCaller(
            model,
            deps.modes,
            request=request,
            upstream=upstream,
            offer=self._offer,
            budget=self._budget,
            report=self._report,
            tracer=deps.tracer,
        )
        self._usage: Json | None = None
        self._outcomes: list[Outcome] = []
        self._is_shortened = False
        self._restored_count = len(restored)
        self._messages = with_prompt(restored, deps.system_prompt, request, self._offer)
        self._own_from = len(self._messages)
        self._workspace = deps.files.open(request) if deps.files else None
        self._sent: list[str] = []
        """The text that the client has received."""
        self._last_calls: list[tuple[str, str]] = []
        self._same_turns = 0
        self._steps = StepQueue() if request.shows_steps else None
        self._tools = ToolCaller(
            deps.registry,
            self._offer,
            Conversation(
                id=request.request_id or "chat",
                caller=request.caller,
                workspace=self._workspace,
                tainted=_starts_tainted(request),
                origin=Origin(kind="chat", id=request.request_id if is_record_id(request.request_id) else None),
            ),
            self._budget,
            lambda error, on_wait: deps.approver.approve(
                error, request.options.approvals, self._budget.seconds_left, on_wait
            ),
            self._steps.add if self._steps is not None else None,
            asks_client=request.options.approvals == "tool",
        )

    async def run(self) -> AsyncGenerator[Event, None]:
        cause: StopCause | None = None
        is_last = False
        await self._prepare_workspace()
        approved: list[Outcome] = []
        if self._steps is not None and self._answered:
            yield self._model.announce()  # so that the client sees the approved calls while they run
        async with aclosing(self._acting(self._take_answers(), approved)) as steps:
            async for step in steps:
                yield step
        if self._steps is not None:
            for event in _reported(approved):
                yield event
        while True:
            cause = cause or self._budget.exhausted()
            is_last = is_last or cause is not None
            turn = Turn()
            begun = time.monotonic()
            try:
                async with aclosing(self._model.ask(turn, self._messages, is_last=is_last)) as events:
                    async for event in events:
                        if isinstance(event, TextDelta):
                            self._sent.append(event.text)
                        yield event
                        for earlier in _reported(approved):  # these ran before the response had started
                            yield earlier
            except UpstreamError as error:
                if turn.has_text or not self._shorten_after(error):
                    raise
                cause = cause or "length"
                continue
            self._end_turn(turn, begun)
            calls = [] if is_last else self._model.calls_of(turn)
            if not calls and self._model.form is not None and not is_last:
                is_last = True  # ask once more for the final answer, now with response_format
                continue
            if not calls:
                self._deps.feedback.learn(self._request, self._outcomes)
                yield await self._end(turn, cause or ("length" if turn.finish_reason == "length" else "answered"))
                return
            client_calls = [call for call in calls if self._offer.is_client(call["function"]["name"])]
            server_calls = [call for call in calls if not self._offer.is_client(call["function"]["name"])]
            for call in server_calls:
                yield ToolStarted(call=call)
            outcomes: list[Outcome] = []
            async with aclosing(self._acting(self._act(server_calls), outcomes)) as steps:
                async for step in steps:
                    yield step
            for outcome in outcomes:
                yield _activity(outcome)
            questions = self._questions(outcomes)
            results = [outcome.message for outcome in outcomes if outcome.call["id"] not in questions]
            shown = [*client_calls, *(asked for asked, _ in questions.values())]
            if shown:
                self._suspend(turn, calls, results, shown, [question for _, question in questions.values()])
                yield await self._end(turn, "approval" if questions else "client_tools", calls=shown)
                return
            if any(outcome.is_loop for outcome in outcomes):
                cause = "loop"
            elif self._note_turn(server_calls):
                cause = "loop"
                results[-1] = {**results[-1], "content": results[-1]["content"] + SAME_CALLS}
            self._messages += [turn.message(calls), *results]
            if self._model.choice not in (None, "auto"):
                self._model.choice = "auto"  # the required call has been made

    def _note_turn(self, calls: list[Json]) -> bool:
        """Note the calls of a turn; returns whether the last turns made the same. The executor detects single calls."""
        made = [(call["function"]["name"], call["function"]["arguments"]) for call in calls]
        self._same_turns = self._same_turns + 1 if made == self._last_calls else 1
        self._last_calls = made
        return self._same_turns >= LOOP_CALLS

    # ------------------------------------------------------------------------------------------------ approvals
    def _questions(self, outcomes: list[Outcome]) -> dict[str, tuple[Json, Question]]:
        """Approval questions for a client that answers them as tool calls, by the id of the call in question."""
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

    async def _take_answers(self) -> list[Outcome]:
        """Run the calls that the client has approved, and put their results into the conversation."""
        offset = len(self._messages) - self._restored_count
        for asked in self._answered:
            approval = await self._deps.approver.answered(
                asked.question.approval, agreed=asked.is_agreed, by=self._request.caller
            )
            outcome = await self._tools.run_approved(asked.question.call, approval)
            self._budget.calls += 1
            self._note(_outcome_dict(outcome))
            self._outcomes.append(outcome)
            self._messages[asked.index + offset] = outcome.message
            self._deps.suspended.add_result(asked, outcome.message)
        return list(self._outcomes)

    def _suspend(
        self, turn: Turn, calls: list[Json], results: list[Json], shown: list[Json], questions: list[Question]
    ) -> None:
        """Store the part of a turn that the client does not see or send back, until it sends its tool results."""
        suspended, caller = self._deps.suspended, self._request.caller
        before = self._messages[self._own_from :]
        if results or questions or before or turn.is_hidden_in_part:
            suspended.keep(caller, turn.message(calls), results, shown, questions, before)
        else:
            suspended.forget(caller, shown)

    # ---------------------------------------------------------------------------------------------------- steps
    async def _acting(
        self, work: Coroutine[Any, Any, list[Outcome]], outcomes: list[Outcome]
    ) -> AsyncGenerator[ToolStep, None]:
        """Run calls, yield their states meanwhile if the client shows them, and add their outcomes to the list."""
        if self._steps is None:
            outcomes += await work
            return
        task = asyncio.ensure_future(work)
        async with aclosing(self._steps.during(task)) as steps:
            async for step in steps:
                yield step
        outcomes += task.result()

    async def _act(self, calls: list[Json]) -> list[Outcome]:
        """Run calls of this server's tools. Calls beyond the budget get an error as their result."""
        allowed = self._budget.calls_left()
        outcomes = await self._tools.run(calls[:allowed])
        self._budget.calls += len(outcomes)
        for call in calls[allowed:]:
            text = "Error (LIMIT_REACHED): no more calls are possible for this request; answer with what is there."
            outcomes.append(self._tools.refuse(call, text))
        for outcome in outcomes:
            self._note(_outcome_dict(outcome))
        self._outcomes += outcomes
        return outcomes

    def _shorten_after(self, error: UpstreamError) -> bool:
        """Truncate long tool results once if the upstream says that the conversation is too long."""
        if self._is_shortened or not is_too_long(error):
            return False
        self._is_shortened = True
        known = {outcome.call["id"] for outcome in self._outcomes}
        is_shorter = False
        for index, message in enumerate(self._messages):
            if message.get("tool_call_id") in known and len(message["content"]) > SHORT_CHARACTERS:
                self._messages[index] = {**message, "content": message["content"][:SHORT_CHARACTERS] + CUT_MARK}
                is_shorter = True
        return is_shorter

    def _end_turn(self, turn: Turn, begun: float) -> None:
        self._budget.turns += 1
        self._usage = add_usage(self._usage, turn.usage)
        self._budget.tokens += tokens_of(turn.usage)
        took = round((time.monotonic() - begun) * 1000)
        name = self._request.model or turn.model or ""
        self._note({"kind": "model", "name": name, "durationMs": took, "usage": turn.usage})

    def _note(self, step: Json) -> None:
        """Add a step to the report and to the log."""
        self._report.trajectory.append(step)
        # Names of unknown tools come from the model, and model names from the client: both are untrusted text.
        is_made_up = step["kind"] != "model" and step.get("tool") is None
        name = "that does not exist" if is_made_up else log_safe(step["name"])
        logger.info("chat: %s %s, %s ms", step["kind"], name, step["durationMs"])

    async def _prepare_workspace(self) -> None:
        """Put the client's files into the workspace."""
        if self._deps.files is None or self._workspace is None:
            return
        self._messages = await self._deps.files.receive(self._request, self._workspace, self._messages)

    async def _end(self, turn: Turn, cause: StopCause, calls: list[Json] | None = None) -> ChatFinished:
        report = self._report
        if self._workspace is not None and self._workspace.exists:
            report.workspace, report.files = self._workspace.id, listed_files(self._workspace)
        if self._deps.files is not None:
            answer = {"role": "assistant", "content": "".join(self._sent), "tool_calls": calls}
            await self._deps.files.remember(self._request, self._workspace, [answer])
        report.turns, report.calls, report.stop_cause = self._budget.turns, self._budget.calls, cause
        report.duration_ms = round(self._budget.seconds_used * 1000)
        finish = "tool_calls" if calls else turn.finish_reason
        if finish is None or (finish == "tool_calls" and not calls):
            finish = "stop"
        return ChatFinished(
            finish_reason=finish, calls=tuple(calls or ()), usage=self._usage, report=report, beside=turn.beside
        )


def _starts_tainted(request: ChatRequest) -> bool:
    """Whether a conversation contains untrusted text from the start.

    Tool results are untrusted, and earlier answers may quote them. If the client offers several skills by name, the
    description of one could make the model call another.
    """
    is_later = any(message["role"] in ("tool", "function", "assistant") for message in request.messages)
    return is_later or len(set(request.options.skills)) > 1


def _reported(approved: list[Outcome]) -> Iterator[Event]:
    """Yield the events of calls that the client has approved, and take them from the list."""
    while approved:
        yield ToolStarted(call=approved[0].call)
        yield _activity(approved.pop(0))


def _activity(outcome: Outcome) -> ToolActivity:
    name = outcome.call["function"]["name"]
    how = "" if outcome.succeeded else " (failed)"
    return ToolActivity(
        call=outcome.call,
        output=outcome.message["content"],
        succeeded=outcome.succeeded,
        text=f"{name}{how}, {outcome.duration_ms} ms",
        detail=_outcome_dict(outcome),
    )


def _outcome_dict(outcome: Outcome) -> Json:
    step: Json = {
        "kind": "search" if outcome.tool == "vector-search" else "tool",
        "name": outcome.call["function"]["name"],
        "tool": outcome.tool,
        "success": outcome.succeeded,
        "durationMs": outcome.duration_ms,
    }
    if outcome.hits is not None:
        step["results"] = outcome.hits
    if isinstance(outcome.data, dict) and isinstance(outcome.data.get("id"), str):
        step["executionId"] = outcome.data["id"]
    return step
