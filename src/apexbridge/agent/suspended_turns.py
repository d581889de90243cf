"""Turns that called both this server's tools and the client's: stored until the client sends its results."""

import json
import time
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from apexbridge._json import loads_untrusted
from apexbridge.llm.tool_modes import text_of

Json = dict[str, Any]
KEPT_SECONDS = 3600
MAX_TURNS = 1_000
MAX_BYTES = 64 * 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """A call that waits for the client's approval."""

    asked_as: str
    """The id of the call that the client saw."""
    call: Json
    approval: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SuspendedTurn:
    """A turn as the model sees it."""

    caller: str
    message: Json
    """The assistant's message with all its calls."""
    before: tuple[Json, ...]
    """Earlier turns of the same request, which the client did not see."""
    results: tuple[Json, ...]
    """Results of this server's tools."""
    shown: tuple[Json, ...]
    """The calls that the client saw."""
    questions: tuple[Question, ...]
    """Approval questions. The client's answers are for this server, not results for the model."""
    size: int
    kept_until: float
    settled: dict[str, Json] = field(default_factory=dict)
    """Results of approved calls, by the id that the client saw: clients send their answers with every request."""

    def matches(self, calls: Sequence[Json]) -> bool:
        """Whether these are the calls that the client saw. Some upstreams reuse ids in every conversation."""
        shown = [_signature(call) for call in self.shown]
        return all(_signature(call) in shown for call in calls)


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """An approval question and the client's answer."""

    question: Question
    answer: str
    place: int
    """Index of the call's result in the conversation."""
    settled: dict[str, Json] = field(default_factory=dict)

    def settle(self, result: Json) -> None:
        """Store the result, so that the same answer does not run the call again."""
        self.settled[self.question.asked_as] = result

    @property
    def is_agreed(self) -> bool:
        """Whether the answer is a plain yes. Anything else counts as no."""
        try:
            answer = loads_untrusted(self.answer)
        except ValueError:
            answer = self.answer
        if isinstance(answer, dict):
            answer = next((answer[key] for key in ("approve", "approved") if key in answer), None)
        if isinstance(answer, str):
            return answer.strip().lower() in ("true", "yes", "approve", "approved", "ok", "y")
        return answer is True


class SuspendedTurns:
    """Suspended turns by the ids of the calls that the client saw, limited in number, size and time."""

    def __init__(self) -> None:
        self._turns: OrderedDict[tuple[str, str], SuspendedTurn] = OrderedDict()
        self._bytes = 0

    def keep(
        self,
        caller: str,
        message: Json,
        results: Sequence[Json],
        client_calls: Sequence[Json],
        questions: Sequence[Question] = (),
        before: Sequence[Json] = (),
    ) -> None:
        """Store a turn until the client answers its calls."""
        size = len(json.dumps([message, list(results), list(before)], default=str))
        turn = SuspendedTurn(
            caller=caller,
            message=message,
            before=tuple(before),
            results=tuple(results),
            shown=tuple(client_calls),
            questions=tuple(questions),
            size=size,
            kept_until=time.monotonic() + KEPT_SECONDS,
        )
        self.forget(caller, client_calls)
        self._turns[caller, client_calls[0]["id"]] = turn
        self._bytes += size
        while self._turns and (len(self._turns) > MAX_TURNS or self._bytes > MAX_BYTES or self._oldest_is_over()):
            _, dropped = self._turns.popitem(last=False)
            self._bytes -= dropped.size

    def forget(self, caller: str, client_calls: Sequence[Json]) -> None:
        """Drop a turn whose ids are used again."""
        if (known := self._turns.pop((caller, client_calls[0]["id"]), None)) is not None:
            self._bytes -= known.size

    def restored(self, caller: str, messages: Sequence[Json]) -> tuple[list[Json], list[Asked]]:
        """The conversation with this server's calls and results inserted again: strict upstreams require them.

        Also returns the answered approval questions; the results of those calls are filled in by the caller.
        """
        restored: list[Json] = []
        asked: list[Asked] = []
        questions: dict[str, Question] = {}
        settled: dict[str, Json] = {}
        for message in messages:
            if message.get("role") == "tool" and message.get("tool_call_id") in questions:
                question = questions.pop(message["tool_call_id"])
                if (known := settled.get(question.asked_as)) is None:
                    answer = text_of(message.get("content"))
                    asked.append(Asked(question=question, answer=answer, place=len(restored), settled=settled))
                    known = {"role": "tool", "tool_call_id": question.call["id"], "content": ""}
                restored.append(known)
                continue
            calls = message.get("tool_calls") or []
            known_turns = (self._turns.get((caller, call.get("id"))) for call in calls)  # in any order
            turn = next((turn for turn in known_turns if turn is not None), None)
            if turn is None or turn.kept_until < time.monotonic() or not turn.matches(calls):
                restored.append(message)
            else:
                questions, settled = {question.asked_as: question for question in turn.questions}, turn.settled
                restored += [*turn.before, {**message, "tool_calls": turn.message["tool_calls"]}, *turn.results]
        return restored, asked

    def _oldest_is_over(self) -> bool:
        return next(iter(self._turns.values())).kept_until < time.monotonic()


def _signature(call: Json) -> tuple[Any, Any, Any]:
    """Id, name and parsed arguments."""
    function = call.get("function")
    if not isinstance(function, dict):
        return call.get("id"), None, None
    arguments = function.get("arguments")
    try:
        return (
            call.get("id"),
            function.get("name"),
            loads_untrusted(arguments) if isinstance(arguments, str) else arguments,
        )
    except ValueError:
        return call.get("id"), function.get("name"), arguments
