"""A fair queue: a limited number of jobs runs at a time; the others wait, and callers take turns."""

import asyncio
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

SHARE = 2
"""While other callers wait, one caller gets at most 1/SHARE of the running jobs."""


class Turns:
    """Callers take turns; the jobs of one caller are first in, first out."""

    def __init__(self, limit: int, *, limit_of: Callable[[str], int | None] = lambda caller: None) -> None:
        """`limit_of` returns how many jobs of one caller may run at a time; None for any number."""
        self.limit = limit
        self._limit_of = limit_of
        self._running: Counter[str] = Counter()
        self._waiting: dict[str, deque[asyncio.Event]] = {}
        """By caller, in the order in which they began to wait."""
        self._last_turn: dict[str, int] = {}
        """Number of each caller's last turn. Keys are few, so it is kept for good: a caller that comes back must not go
        before one that has waited."""
        self._turn_count = 0

    @property
    def running(self) -> int:
        return self._running.total()

    @property
    def waiting(self) -> int:
        return sum(map(len, self._waiting.values()))

    def running_of(self, caller: str) -> int:
        return self._running[caller]

    def waiting_of(self, caller: str) -> int:
        return len(self._waiting.get(caller, ()))

    @asynccontextmanager
    async def turn(self, caller: str = "") -> AsyncIterator[None]:
        """Wait for a turn; it lasts as long as the block."""
        await self._take(caller)
        try:
            yield
        finally:
            decrease(self._running, caller)
            self.wake()

    async def _take(self, caller: str) -> None:
        ticket = asyncio.Event()
        self._waiting.setdefault(caller, deque()).append(ticket)
        self.wake()
        try:
            if not ticket.is_set():
                await ticket.wait()
        except BaseException:
            if ticket.is_set():  # the turn came just as this task was cancelled: pass it on
                decrease(self._running, caller)
                self.wake()
            else:
                self._leave(caller, ticket)
            raise

    def wake(self) -> None:
        """Start the jobs that may run now; to be called when the limit of a caller has changed."""
        while self.running < self.limit and (caller := self._next()) is not None:
            self._running[caller] += 1  # counted here, so that no later caller overtakes
            self._turn_count += 1
            self._last_turn[caller] = self._turn_count
            ticket = self._waiting[caller][0]
            self._leave(caller, ticket)
            ticket.set()

    def _next(self) -> str | None:
        """Of the callers that may run another job, first those below their share of the running jobs, the one whose
        last turn is the longest ago."""
        share = max(1, self.limit // SHARE)
        return min(
            filter(self._may_run, self._waiting),
            key=lambda caller: (self._running[caller] >= share, self._last_turn.get(caller, 0)),
            default=None,
        )

    def _may_run(self, caller: str) -> bool:
        limit = self._limit_of(caller)
        return limit is None or self._running[caller] < limit

    def _leave(self, caller: str, ticket: asyncio.Event) -> None:
        self._waiting[caller].remove(ticket)
        if not self._waiting[caller]:
            del self._waiting[caller]


def decrease(counter: "Counter[str]", caller: str) -> None:
    """Decrease a caller's count, and remove the caller at zero."""
    counter[caller] -= 1
    if not counter[caller]:
        del counter[caller]
