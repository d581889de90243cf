"""Turns that called both this server's tools and the client's: stored until the client sends its results."""

import json
import time
from collections import Counter, OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from apexbridge._json import loads_or
from apexbridge._usage import ResourceUsage
from apexbridge.llm.tool_modes import text_of
from apexbridge.llm.turn import REASONING_FIELDS

Json = dict[str, Any]
KEPT_SECONDS = 3600
MAX_TURNS = 1_000
"""Beyond that the caller with the most loses its oldest."""
MAX_BYTES = 64 * 1024 * 1024
MAX_TURNS_OF_A_CALLER = 100
MAX_BYTES_OF_A_CALLER = 8 * 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """A call that waits for the client's approval."""

    asked_as: str
    """The id of the call that the client saw."""
    call: Json
    approval: str


@dataclass(slots=True, kw_only=True)
class SuspendedTurn:
    """A turn as the model sees it."""

    caller: str
    message: Json
    """The assistant's message with all its calls."""
    before: tuple[Json, ...]
    """Earlier turns of the same request, which the client did not see."""
    results: tuple[Json, ...]
    """Results of this server's tools."""
    questions: tuple[Question, ...]
    """Approval questions. The client's answers are for this server, not results for the model."""
    signatures: frozenset[tuple[str, str, str]]
    """Of the calls that the client saw."""
    size: int
    kept_until: float
    approved_results: dict[str, Json] = field(default_factory=dict)
    """Results of approved calls, by the id that the client saw: clients send their answers with every request."""

    def matches(self, calls: Sequence[Json]) -> bool:
        """Whether these are the calls that the client saw. Some upstreams reuse ids in every conversation."""
        return all(_signature(call) in self.signatures for call in calls)


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """An approval question and the client's answer."""

    question: Question
    answer: str
    index: int
    """Of the call's result in the conversation."""
    results: dict[str, Json] = field(default_factory=dict)
    """Results of approved calls, so that the same answer does not run a call again."""

    @property
    def is_agreed(self) -> bool:
        """Whether the answer is a plain yes. Anything else counts as no."""
        answer = loads_or(self.answer, self.answer)
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
            signatures=frozenset(map(_signature, client_calls)),
            questions=tuple(questions),
            size=size,
            kept_until=time.monotonic() + KEPT_SECONDS,
        )
        self.forget(caller, client_calls)
        self._turns[caller, client_calls[0]["id"]] = turn
        self._bytes += size
        self._drop_old(caller)

    def add_result(self, asked: "Asked", result: Json) -> None:
        """Store the result of an approved call with its turn, if that is still there."""
        asked.results[asked.question.asked_as] = result
        turn = next((turn for turn in self._turns.values() if turn.approved_results is asked.results), None)
        if turn is not None:
            size = len(json.dumps(result, default=str))
            turn.size += size
            self._bytes += size
            self._drop_old(turn.caller)

    def forget_caller(self, caller: str) -> None:
        """Drop all turns of a caller, because its key was revoked."""
        for key in [key for key in self._turns if key[0] == caller]:
            self._drop(key)

    async def usage(self, caller: str) -> Sequence[ResourceUsage]:
        own = [turn.size for (owner, _), turn in self._turns.items() if owner == caller]
        return (
            ResourceUsage(
                resource="suspended-turns",
                used=len(own),
                limit=MAX_TURNS_OF_A_CALLER,
                total=len(self._turns),
                total_limit=MAX_TURNS,
            ),
            ResourceUsage(
                resource="suspended-turn-bytes",
                used=sum(own),
                limit=MAX_BYTES_OF_A_CALLER,
                total=self._bytes,
                total_limit=MAX_BYTES,
                unit="bytes",
            ),
        )

    def _drop_old(self, caller: str) -> None:
        """Drop the oldest turns beyond the limits; first the caller's own, to protect those of others."""
        own = [key for key in self._turns if key[0] == caller]
        own_bytes = sum(self._turns[key].size for key in own)
        for key in own[:-1]:
            if len(own) <= MAX_TURNS_OF_A_CALLER and own_bytes <= MAX_BYTES_OF_A_CALLER:
                break
            own.remove(key)
            own_bytes -= self._turns[key].size
            self._drop(key)
        while self._turns and self._oldest_is_over():
            self._drop(next(iter(self._turns)))
        while self._turns and (len(self._turns) > MAX_TURNS or self._bytes > MAX_BYTES):
            self._drop(self._oldest_of_largest())

    def _oldest_of_largest(self) -> tuple[str, str]:
        """The oldest turn of the caller with the largest share of a limit."""
        counts: Counter[str] = Counter()
        sizes: Counter[str] = Counter()
        for (caller, _), turn in self._turns.items():
            counts[caller] += 1
            sizes[caller] += turn.size
        largest = max(counts, key=lambda caller: max(counts[caller] / MAX_TURNS, sizes[caller] / MAX_BYTES))
        return next(key for key in self._turns if key[0] == largest)

    def _drop(self, key: tuple[str, str]) -> None:
        self._bytes -= self._turns.pop(key).size

    def forget(self, caller: str, client_calls: Sequence[Json]) -> None:
        """Drop a turn whose ids are used again."""
        if (caller, client_calls[0]["id"]) in self._turns:
            self._drop((caller, client_calls[0]["id"]))

    def restored(self, caller: str, messages: Sequence[Json]) -> tuple[list[Json], list[Asked]]:
        """The conversation with this server's calls and results inserted again: strict upstreams require them.

        Also returns the answered approval questions; the results of those calls are filled in by the caller.
        """
        restored: list[Json] = []
        asked: list[Asked] = []
        questions: dict[str, Question] = {}
        results: dict[str, Json] = {}
        used: set[str] = set()
        for message in messages:
            if message.get("role") == "tool" and message.get("tool_call_id") in questions:
                question = questions.pop(message["tool_call_id"])
                if (known := results.get(question.asked_as)) is None:
                    answer = text_of(message.get("content"))
                    asked.append(Asked(question=question, answer=answer, index=len(restored), results=results))
                    known = {"role": "tool", "tool_call_id": question.call["id"], "content": ""}
                restored.append(known)
                continue
            calls = message.get("tool_calls") or []
            id = next((call["id"] for call in calls if (caller, call.get("id")) in self._turns), None)  # in any order
            turn = self._turns[caller, id] if id is not None and id not in used else None
            if turn is None or turn.kept_until < time.monotonic() or not turn.matches(calls):
                used.add(str(id))  # compare each turn once for a request: arguments can be long
                restored.append(message)
            else:
                used.add(str(id))
                questions = {question.asked_as: question for question in turn.questions}
                results = turn.approved_results
                # The client may have dropped the reasoning, which some models require with their calls.
                reasoning = {name: turn.message[name] for name in REASONING_FIELDS if name in turn.message}
                own = {**reasoning, **message, "tool_calls": turn.message["tool_calls"]}
                if turn.before:  # the client's message has the text of all turns of its request
                    own = turn.message
                restored += [*turn.before, own, *turn.results]
        return restored, asked

    def _oldest_is_over(self) -> bool:
        return next(iter(self._turns.values())).kept_until < time.monotonic()


def _signature(call: Json) -> tuple[str, str, str]:
    """Id, name and normalized arguments."""
    function = call.get("function")
    if not isinstance(function, dict):
        return str(call.get("id")), "", ""
    arguments = function.get("arguments")
    parsed = loads_or(arguments, arguments) if isinstance(arguments, str) else arguments
    return str(call.get("id")), str(function.get("name")), json.dumps(parsed, sort_keys=True, default=str)
