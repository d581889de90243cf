"""Limits of one chat request: turns, calls, time, tokens."""

import time
from typing import Literal

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


class ChatLimits(BaseModel):
    """The configured limits."""

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
