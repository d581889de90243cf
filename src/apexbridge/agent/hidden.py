"""Calls of ours in a turn that also had calls for the client: kept until the client comes back with its results."""

import json
import time
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

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
class HiddenTurn:
    """A turn as the model knows it."""

    caller: str
    message: Json
    """The assistant's message with all its calls."""
    results: tuple[Json, ...]
    """Our part of the results."""
    questions: tuple[Question, ...]
    """What the client was asked; its answers are no results of the model's calls, and go no further than to us."""
    size: int
    kept_until: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """A question and the client's answer to it."""

    question: Question
    answer: str
    place: int
    """Where in the conversation the result of the call belongs."""

    @property
    def is_agreed(self) -> bool:
        """Whether the answer is a plain yes; anything else is none."""
        try:
            told = json.loads(self.answer)
        except ValueError:
            told = self.answer.strip().lower()
        if isinstance(told, dict):
            told = next((told[key] for key in ("approve", "approved") if key in told), None)
        return told in (True, "true", "yes", "approve", "approved", "ok", "y")


class HiddenTurns:
    """Remembers such turns by the ids of the calls that the client saw; so many, and so long."""

    def __init__(self) -> None:
        self._turns: OrderedDict[tuple[str, str], HiddenTurn] = OrderedDict()
        self._bytes = 0

    def keep(
        self,
        caller: str,
        message: Json,
        results: Sequence[Json],
        client_calls: Sequence[Json],
        questions: Sequence[Question] = (),
    ) -> None:
        """Keep a turn until the client answers its calls."""
        size = len(json.dumps([message, list(results)], default=str))
        turn = HiddenTurn(
            caller=caller,
            message=message,
            results=tuple(results),
            questions=tuple(questions),
            size=size,
            kept_until=time.monotonic() + KEPT_SECONDS,
        )
        self._turns[caller, client_calls[0]["id"]] = turn
        self._bytes += size
        while self._turns and (len(self._turns) > MAX_TURNS or self._bytes > MAX_BYTES or self._oldest_is_over()):
            _, dropped = self._turns.popitem(last=False)
            self._bytes -= dropped.size

    def restored(self, caller: str, messages: Sequence[Json]) -> tuple[list[Json], list[Asked]]:
        """The conversation with our calls and results where they were; without them a strict upstream refuses.

        Also what the client was asked there, with its answers: the results of those calls are still to come.
        """
        restored: list[Json] = []
        asked: list[Asked] = []
        questions: dict[str, Question] = {}
        for message in messages:
            if message.get("role") == "tool" and message.get("tool_call_id") in questions:
                question = questions.pop(message["tool_call_id"])
                asked.append(Asked(question=question, answer=text_of(message.get("content")), place=len(restored)))
                restored.append({"role": "tool", "tool_call_id": question.call["id"], "content": ""})
                continue
            calls = message.get("tool_calls")
            turn = self._turns.get((caller, calls[0].get("id"))) if calls else None
            if turn is None or turn.kept_until < time.monotonic():
                restored.append(message)
            else:
                questions = {question.asked_as: question for question in turn.questions}
                restored += [{**message, "tool_calls": turn.message["tool_calls"]}, *turn.results]
        return restored, asked

    def _oldest_is_over(self) -> bool:
        return next(iter(self._turns.values())).kept_until < time.monotonic()
