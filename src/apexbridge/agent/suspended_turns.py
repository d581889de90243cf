"""Calls of ours in a turn that also had calls for the client: kept until the client comes back with its results."""

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
    """A call of ours that waits for the client's word."""

    asked_as: str
    """The id of the call that the client saw."""
    call: Json
    approval: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SuspendedTurn:
    """A turn as the model knows it."""

    caller: str
    message: Json
    """The assistant's message with all its calls."""
    before: tuple[Json, ...]
    """Turns of the same request that the client saw nothing of."""
    results: tuple[Json, ...]
    """Our part of the results."""
    shown: tuple[Json, ...]
    """The calls that the client saw."""
    questions: tuple[Question, ...]
    """What the client was asked; its answers are no results of the model's calls, and go no further than to us."""
    size: int
    kept_until: float
    settled: dict[str, Json] = field(default_factory=dict)
    """Results of what was asked, by the id of the call that the client saw: a client sends its answers ever again."""

    def matches(self, calls: Sequence[Json]) -> bool:
        """Whether these are the calls that the client saw; some servers give the same ids in every conversation."""
        shown = [_told(call) for call in self.shown]
        return all(_told(call) in shown for call in calls)


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """A question and the client's answer to it."""

    question: Question
    answer: str
    place: int
    """Where in the conversation the result of the call belongs."""
    settled: dict[str, Json] = field(default_factory=dict)

    def settle(self, result: Json) -> None:
        """Keep the result: the same answer another time is no answer to anything new."""
        self.settled[self.question.asked_as] = result

    @property
    def is_agreed(self) -> bool:
        """Whether the answer is a plain yes; anything else is none."""
        try:
            told = loads_untrusted(self.answer)
        except ValueError:
            told = self.answer
        if isinstance(told, dict):
            told = next((told[key] for key in ("approve", "approved") if key in told), None)
        if isinstance(told, str):
            return told.strip().lower() in ("true", "yes", "approve", "approved", "ok", "y")
        return told is True


class SuspendedTurns:
    """Remembers such turns by the ids of the calls that the client saw; so many, and so long."""

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
        """Keep a turn until the client answers its calls."""
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
        """Forget a turn whose ids were given to another one."""
        if (known := self._turns.pop((caller, client_calls[0]["id"]), None)) is not None:
            self._bytes -= known.size

    def restored(self, caller: str, messages: Sequence[Json]) -> tuple[list[Json], list[Asked]]:
        """The conversation with our calls and results where they were; without them a strict upstream refuses.

        Also what the client was asked there, with its answers: the results of those calls are still to come.
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
            known_turns = (self._turns.get((caller, call.get("id"))) for call in calls)  # in whatever order they come
            turn = next((turn for turn in known_turns if turn is not None), None)
            if turn is None or turn.kept_until < time.monotonic() or not turn.matches(calls):
                restored.append(message)
            else:
                questions, settled = {question.asked_as: question for question in turn.questions}, turn.settled
                restored += [*turn.before, {**message, "tool_calls": turn.message["tool_calls"]}, *turn.results]
        return restored, asked

    def _oldest_is_over(self) -> bool:
        return next(iter(self._turns.values())).kept_until < time.monotonic()


def _told(call: Json) -> tuple[Any, Any, Any]:
    """What a call says, however its arguments are written."""
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
