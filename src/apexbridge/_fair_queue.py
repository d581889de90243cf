"""A fair queue: a limited number of jobs runs at a time; the others wait, and callers take turns."""

import asyncio
from collections import Counter, OrderedDict, deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

SHARE = 2
"""While other callers wait, one caller gets at most 1/SHARE of the running jobs."""


class Turns:
    """Callers take turns; the jobs of one caller are first in, first out."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._running: Counter[str] = Counter()
        self._waiting: OrderedDict[str, deque[asyncio.Event]] = OrderedDict()
        """By caller; the first caller is next."""

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
            self._wake()

    async def _take(self, caller: str) -> None:
        if self.running < self.limit and not self._waiting:
            self._running[caller] += 1
            return
        ticket = asyncio.Event()
        self._waiting.setdefault(caller, deque()).append(ticket)
        try:
            await ticket.wait()
        except BaseException:
            if ticket.is_set():  # the turn came just as this task was cancelled: pass it on
                decrease(self._running, caller)
                self._wake()
            else:
                self._leave(caller, ticket)
            raise

    def _wake(self) -> None:
        while self._waiting and self.running < self.limit:
            caller = self._next()
            self._running[caller] += 1  # counted here, so that no later caller overtakes
            ticket = self._waiting[caller][0]
            self._leave(caller, ticket)
            if caller in self._waiting:
                self._waiting.move_to_end(caller)
            ticket.set()

    def _next(self) -> str:
        """The first caller that is below its share of the running jobs, or else the first caller."""
        share = max(1, self.limit // SHARE)
        return next((caller for caller in self._waiting if self._running[caller] < share), next(iter(self._waiting)))

    def _leave(self, caller: str, ticket: asyncio.Event) -> None:
        self._waiting[caller].remove(ticket)
        if not self._waiting[caller]:
            del self._waiting[caller]


def decrease(counter: "Counter[str]", caller: str) -> None:
    """Decrease a caller's count, and remove the caller at zero."""
    counter[caller] -= 1
    if not counter[caller]:
        del counter[caller]
