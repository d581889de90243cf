"""Limits of one chat request (turns, calls, time, tokens), and the token usage of its turns."""

import time
from typing import Any, Literal, TypeGuard

from pydantic import BaseModel, ConfigDict

StopCause = Literal[
    "answered",
    "client_tools",
    "approval",
    "max_turns",
    "max_calls",
    "max_seconds",
    "max_tokens",
    "loop",
    "length",
    "error",
]


Json = dict[str, Any]
MAX_DEPTH = 8
"""Upstreams nest usage at most two levels deep; deeper data is untrusted."""
MAX_COUNT = 2**53
"""Larger numbers and NaN are not token counts."""


class ChatLimits(BaseModel):
    model_config = ConfigDict(frozen=True)

    turns: int = 12
    calls: int = 40
    seconds: float = 300.0
    tokens: int = 0
    """Of all turns together, as upstreams count them. 0: unlimited."""


class Budget:
    """What a request has used so far."""

    def __init__(self, limits: ChatLimits) -> None:
        self._limits = limits
        self._begun = time.monotonic()
        self.turns = 0
        self.calls = 0
        self.tokens = 0

    @property
    def seconds_used(self) -> float:
        return time.monotonic() - self._begun

    @property
    def seconds_left(self) -> float:
        return max(0.0, self._limits.seconds - self.seconds_used)

    def exhausted(self) -> StopCause | None:
        """The limit that makes the next turn the last one."""
        if self.turns + 1 >= self._limits.turns:
            return "max_turns"
        if self.calls >= self._limits.calls:
            return "max_calls"
        if self._limits.tokens and self.tokens >= self._limits.tokens:
            return "max_tokens"
        return "max_seconds" if self.seconds_left <= 0 else None

    def calls_left(self) -> int:
        return max(0, self._limits.calls - self.calls)


def add_usage(total: Json | None, more: Json | None, depth: int = MAX_DEPTH) -> Json | None:
    """Add numbers, also nested ones. Of other values the last one wins."""
    if more is None or total is None:
        return more if total is None else total
    summed = dict(total)
    for key, value in more.items():
        before = summed.get(key)
        if isinstance(value, dict) and isinstance(before, dict) and depth > 1:
            summed[key] = add_usage(before, value, depth - 1)
        elif _is_number(value) and _is_number(before):
            summed[key] = before + value
        elif value is not None:
            summed[key] = value
    return summed


def tokens_of(usage: Json | None) -> int:
    """All tokens of one turn, if the upstream reports them."""
    counts = usage or {}
    if _is_number(total := counts.get("total_tokens")):
        return max(0, int(total))
    both = [counts.get("prompt_tokens"), counts.get("completion_tokens")]
    return int(sum(max(0, count) for count in both if _is_number(count)))


def _is_number(value: Any) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= MAX_COUNT
