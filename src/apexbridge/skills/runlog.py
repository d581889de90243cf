"""What a run says while it lasts, numbered, for everybody who listens and for those who come back."""

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any, Literal

import anyio

EVENT_CHARACTERS = 150
"""What an event takes of the memory besides its text."""
EventKind = Literal["state", "stdout", "stderr", "result"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunEvent:
    """One thing that happened; numbers begin at 1."""

    number: int
    kind: EventKind
    data: Any


class RunLog:
    """Keeps a run's events until nobody can need them any more; what is printed is bounded by the run's own limit."""

    def __init__(self) -> None:
        self.events: list[RunEvent] = []
        self.is_over = False
        self.characters = 0
        """How much is kept."""
        self._changed = anyio.Event()

    def add(self, kind: EventKind, data: Any) -> None:
        """Something happened."""
        self.characters += EVENT_CHARACTERS + (len(data) if isinstance(data, str) else 0)
        self.events.append(RunEvent(number=len(self.events) + 1, kind=kind, data=data))
        self._wake()

    def end(self) -> None:
        """Nothing more will come."""
        self.is_over = True
        self._wake()

    async def follow(self, after: int = 0) -> AsyncIterator[RunEvent]:
        """Every event after that number, as they come, to the end."""
        position = max(after, 0)
        while True:
            changed = self._changed
            while position < len(self.events):
                yield self.events[position]
                position += 1
            if self.is_over:
                return
            await changed.wait()

    def _wake(self) -> None:
        changed, self._changed = self._changed, anyio.Event()
        changed.set()
