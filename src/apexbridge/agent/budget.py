"""How far one request may go: turns, calls, time, tokens."""

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
    """What an operator allows a request."""

    model_config = ConfigDict(frozen=True)

    turns: int = 12
    calls: int = 40
    seconds: float = 300.0
    tokens: int = 0
    """Of all turns together, as the upstreams count them; 0 for any number."""


class Budget:
    """What is left of it."""

    def __init__(self, limits: ChatLimits) -> None:
        self._limits = limits
        self._begun = time.monotonic()
        self.turns = 0
        self.calls = 0
        self.tokens = 0

    @property
    def seconds_used(self) -> float:
        """Since the beginning."""
        return time.monotonic() - self._begun

    @property
    def seconds_left(self) -> float:
        """Until everything ends."""
        return max(0.0, self._limits.seconds - self.seconds_used)

    def exhausted(self) -> StopCause | None:
        """What is used up, so that the next turn has to be the last."""
        if self.turns + 1 >= self._limits.turns:
            return "max_turns"
        if self.calls >= self._limits.calls:
            return "max_calls"
        if self._limits.tokens and self.tokens >= self._limits.tokens:
            return "max_tokens"
        return "max_seconds" if self.seconds_left <= 0 else None

    def calls_left(self) -> int:
        """How many more calls may be made."""
        return max(0, self._limits.calls - self.calls)
