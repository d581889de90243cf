"""One request on its way to an answer: think, act, look, and again, until there is one or a limit is reached."""

import logging
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

from apexbridge.agent.approvals import Approver, question_for
from apexbridge.agent.budget import Budget, ChatLimits, StopCause
from apexbridge.agent.chat_events import Acted, Ended, Event, Passed, Report
from apexbridge.agent.model_turn import GRACE_SECONDS, Answer, Asker, Model
from apexbridge.agent.records.redaction import on_one_line
from apexbridge.agent.request import BadRequestError, ChatRequest
from apexbridge.agent.suspended_turns import HiddenTurns, Question
from apexbridge.agent.system_prompt import own_prompt, with_system
from apexbridge.agent.token_usage import add_usage, tokens_of
from apexbridge.agent.tool_calls import Caller, Outcome
from apexbridge.agent.tool_offer import Disclosure, OwnTools
from apexbridge.agent.usage_feedback import Lessons
from apexbridge.llm.config import Upstream
from apexbridge.llm.conversion import CompletionBuilder, as_chunk, is_whole
from apexbridge.llm.errors import UpstreamError, is_too_long
from apexbridge.llm.mode_memory import ModeMemory
from apexbridge.llm.turn import Turn
from apexbridge.tools.conversation import LOOP_CALLS, Conversation
from apexbridge.tools.registry import ToolRegistry

Json = dict[str, Any]
SHORT_CHARACTERS = 1_000
SAME_CALLS = f"\n[Note: the same calls were made {LOOP_CALLS} times in a row; their results will not change.]"
CUT_MARK = "\n[cut: there was no room for more]"
logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """What all requests share."""

    registry: ToolRegistry
    limits: ChatLimits
    system_prompt: str | None
    """In place of ours; empty for none."""
    approver: Approver
    own_tools: OwnTools
    modes: ModeMemory
    hidden: HiddenTurns
    lessons: Lessons


def answered(
    around: Surroundings, model: Model, request: ChatRequest, upstream: Upstream
) -> AsyncGenerator[Event, None]:
    """Answer a request; events in the order in which things happen.

    Raises:
        BadRequestError: the request cannot be answered.
        UpstreamError: the upstream refused or failed.
    """
    is_native = around.modes.way(upstream, request.model) == "native" or not request.client_names
    if not request.uses_our_tools and is_native:
        return _passed_on(model, request, upstream, around)
    if (request.body.get("n") or 1) > 1:
        raise BadRequestError("'n' above 1 is not possible with this model and tools.", param="n")
    return _Loop(around, model, request, upstream).go()


async def _passed_on(
    model: Model, request: ChatRequest, upstream: Upstream, around: Surroundings
) -> AsyncGenerator[Event, None]:
    """Ask once, and pass on what comes."""
    body = request.body
    if around.system_prompt:
        body = {**body, "messages": with_system(request.messages, around.system_prompt)}
    if not body.get("tools") and body.get("tool_choice") == "none":
        # It was about ours, and strict upstreams refuse it where there are no tools.
        body = {key: value for key, value in body.items() if key != "tool_choice"}
    answer: Answer = await model.ask(upstream, body, around.limits.seconds + GRACE_SECONDS)
    try:
        builder: CompletionBuilder | None = None
        while (chunks := await answer.next()) is not None:
            if not request.is_stream and not is_whole(chunks[0]):
                builder = builder or CompletionBuilder()
                builder.add(chunks)
            elif request.is_stream and is_whole(chunks[0]):
                yield Passed(chunks=[as_chunk(chunk) for chunk in chunks])
            else:
                yield Passed(chunks=chunks)
        if builder is not None:
            yield Passed(chunks=[builder.completion()])
    finally:
        model.done(answer)


class _Loop:
    """The turns of one request."""

    def __init__(self, around: Surroundings, model: Model, request: ChatRequest, upstream: Upstream) -> None:
        self._around = around
        self._request = request
        self._disclosure = Disclosure(request, around.own_tools)
        self._budget = Budget(around.limits)
        self._report = Report()
        self._asker = Asker(
            model,
            around.modes,
            request=request,
            upstream=upstream,
            disclosure=self._disclosure,
            budget=self._budget,
            report=self._report,
        )
        self._usage: Json | None = None
        self._outcomes: list[Outcome] = []
        self._is_shortened = False
        restored, self._asked = around.hidden.restored(request.caller, request.messages)
        self._restored_count = len(restored)
        self._messages = self._beginning(restored)
        self._own_from = len(self._messages)
        self._last_calls: list[tuple[str, str]] = []
        self._same_turns = 0
        self._caller = Caller(
            around.registry,
            self._disclosure,
            Conversation(
                id=request.request_id or "chat",
                caller=request.caller,
                has_heard_strangers=_begins_untrusted(request),
            ),
            self._budget,
            lambda error: around.approver.approve(error, request.options.approvals, self._budget.seconds_left),
        )

    def _beginning(self, messages: list[Json]) -> list[Json]:
        if self._around.system_prompt is not None:
            return with_system(messages, self._around.system_prompt)
        return with_system(messages, own_prompt()) if self._request.uses_our_tools else messages

    async def go(self) -> AsyncGenerator[Event, None]:
        """Turn after turn."""
        cause: StopCause | None = None
        is_last = False
        approved = await self._take_answers()
        while True:
            cause = cause or self._budget.exhausted()
            is_last = is_last or cause is not None
            turn = Turn()
            begun = time.monotonic()
            try:
                async with aclosing(self._asker.ask(turn, self._messages, is_last=is_last)) as events:
                    async for event in events:
                        yield event
                        while approved:  # they were run before there was an answer to tell it in
                            yield _acted(approved.pop(0))
            except UpstreamError as error:
                if turn.has_text or not self._is_shortened_for(error):
                    raise
                cause = cause or "length"
                continue
            self._end_turn(turn, begun)
            calls = [] if is_last else self._asker.calls_of(turn)
            if not calls and self._asker.form is not None and not is_last:
                is_last = True  # it is ready to answer: once more, in the form that was asked for
                continue
            if not calls:
                self._around.lessons.learn(self._request, self._outcomes)
                yield self._end(turn, cause or ("length" if turn.finish_reason == "length" else "answered"))
                return
            theirs = [call for call in calls if self._disclosure.is_client(call["function"]["name"])]
            ours = [call for call in calls if not self._disclosure.is_client(call["function"]["name"])]
            outcomes = await self._act(ours)
            for outcome in outcomes:
                yield _acted(outcome)
            questions = self._questions(outcomes)
            results = [outcome.message for outcome in outcomes if outcome.call["id"] not in questions]
            theirs += [asked for asked, _ in questions.values()]
            if theirs:
                self._hide(turn, calls, results, theirs, [question for _, question in questions.values()])
                yield self._end(turn, "approval" if questions else "client_tools", calls=theirs)
                return
            if any(outcome.is_loop for outcome in outcomes):
                cause = "loop"
            elif self._is_repeated(ours):
                cause = "loop"
                results[-1] = {**results[-1], "content": results[-1]["content"] + SAME_CALLS}
            self._messages += [turn.message(calls), *results]
            if self._asker.choice not in (None, "auto"):
                self._asker.choice = "auto"  # what was required has been done

    def _is_repeated(self, calls: list[Json]) -> bool:
        """Whether a turn made the very calls of the turns before it; of single calls, those who run them tell."""
        made = [(call["function"]["name"], call["function"]["arguments"]) for call in calls]
        self._same_turns = self._same_turns + 1 if made == self._last_calls else 1
        self._last_calls = made
        return self._same_turns >= LOOP_CALLS

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

    async def _take_answers(self) -> list[Outcome]:
        """Carry out what the client was asked about, if it agreed; the results take their place in the conversation."""
        offset = len(self._messages) - self._restored_count
        for asked in self._asked:
            approval = await self._around.approver.answered(asked.question.approval, agreed=asked.is_agreed)
            outcome = await self._caller.run_approved(asked.question.call, approval)
            self._budget.calls += 1
            self._note(_told_outcome(outcome))
            self._outcomes.append(outcome)
            self._messages[asked.place + offset] = outcome.message
            asked.settle(outcome.message)
        return list(self._outcomes)

    def _hide(
        self, turn: Turn, calls: list[Json], results: list[Json], shown: list[Json], questions: list[Question]
    ) -> None:
        """Keep what the client does not see of a turn, until it comes back with its part."""
        hidden, caller = self._around.hidden, self._request.caller
        before = self._messages[self._own_from :]
        if results or questions or before:
            hidden.keep(caller, turn.message(calls), results, shown, questions, before)
        else:
            hidden.forget(caller, shown)

    # ---------------------------------------------------------------------------------------------------- steps
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
        self._outcomes += outcomes
        return outcomes

    def _is_shortened_for(self, error: UpstreamError) -> bool:
        """Where a server says that the conversation has become too long, cut the results that made it so."""
        if self._is_shortened or not is_too_long(error):
            return False
        self._is_shortened = True
        known = {outcome.call["id"] for outcome in self._outcomes}
        long = [
            place
            for place, message in enumerate(self._messages)
            if message.get("tool_call_id") in known and len(message["content"]) > SHORT_CHARACTERS
        ]
        for place in long:
            message = self._messages[place]
            self._messages[place] = {**message, "content": message["content"][:SHORT_CHARACTERS] + CUT_MARK}
        return bool(long)

    def _end_turn(self, turn: Turn, begun: float) -> None:
        self._budget.turns += 1
        self._usage = add_usage(self._usage, turn.usage)
        self._budget.tokens += tokens_of(turn.usage)
        took = round((time.monotonic() - begun) * 1000)
        name = self._request.model or turn.model or ""
        self._note({"kind": "model", "name": name, "durationMs": took, "usage": turn.usage})

    def _note(self, step: Json) -> None:
        """Remember a step, and have it in the log under the request's id."""
        self._report.trajectory.append(step)
        # A tool that does not exist has a name that a model made up, and a client's model can be any text.
        is_made_up = step["kind"] != "model" and step.get("tool") is None
        name = "that does not exist" if is_made_up else on_one_line(step["name"])
        logger.info("chat %s: %s %s, %s ms", self._request.request_id, step["kind"], name, step["durationMs"])

    def _end(self, turn: Turn, cause: StopCause, calls: list[Json] | None = None) -> Ended:
        report = self._report
        report.turns, report.calls, report.stop_cause = self._budget.turns, self._budget.calls, cause
        report.duration_ms = round(self._budget.seconds_used * 1000)
        finish = "tool_calls" if calls else turn.finish_reason
        if finish is None or (finish == "tool_calls" and not calls):
            finish = "stop"
        return Ended(
            finish_reason=finish, calls=tuple(calls or ()), usage=self._usage, report=report, beside=turn.beside
        )


def _begins_untrusted(request: ChatRequest) -> bool:
    """Whether a conversation holds untrusted text from the start.

    Results of tools are, and earlier answers may be made of them: the server does not know. Of several skills that are
    offered by name, the description of one could talk the model into calling another.
    """
    is_later = any(message["role"] in ("tool", "function", "assistant") for message in request.messages)
    return is_later or len(set(request.options.skills)) > 1


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
