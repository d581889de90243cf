"""Calls of ours in a turn that also had calls for the client: kept until the client comes back with its results."""

import json
import time
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

Json = dict[str, Any]
KEPT_SECONDS = 3600
MAX_TURNS = 1_000
MAX_BYTES = 64 * 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class HiddenTurn:
    """A turn as the model knows it."""

    caller: str
    message: Json
    """The assistant's message with all its calls."""
    results: tuple[Json, ...]
    """Our part of the results."""
    size: int
    kept_until: float


class HiddenTurns:
    """Remembers such turns by the ids of the calls that the client saw; so many, and so long."""

    def __init__(self) -> None:
        self._turns: OrderedDict[tuple[str, str], HiddenTurn] = OrderedDict()
        self._bytes = 0

    def keep(self, caller: str, message: Json, results: Sequence[Json], client_calls: Sequence[Json]) -> None:
        """Keep a turn until the client answers its calls."""
        size = len(json.dumps([message, list(results)], default=str))
        turn = HiddenTurn(
            caller=caller,
            message=message,
            results=tuple(results),
            size=size,
            kept_until=time.monotonic() + KEPT_SECONDS,
        )
        self._turns[caller, client_calls[0]["id"]] = turn
        self._bytes += size
        while self._turns and (len(self._turns) > MAX_TURNS or self._bytes > MAX_BYTES or self._oldest_is_over()):
            _, dropped = self._turns.popitem(last=False)
            self._bytes -= dropped.size

    def restored(self, caller: str, messages: Sequence[Json]) -> list[Json]:
        """The conversation with our calls and results where they were; without them a strict upstream refuses."""
        restored: list[Json] = []
        for message in messages:
            calls = message.get("tool_calls")
            turn = self._turns.get((caller, calls[0].get("id"))) if calls else None
            if turn is None or turn.kept_until < time.monotonic():
                restored.append(message)
            else:
                restored += [{**message, "tool_calls": turn.message["tool_calls"]}, *turn.results]
        return restored

    def _oldest_is_over(self) -> bool:
        return next(iter(self._turns.values())).kept_until < time.monotonic()
