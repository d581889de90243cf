"""Turns: a number of runs at once, the others in a queue in which callers take turns."""

from collections import Counter, OrderedDict, deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio

from apexbridge.errors import ServerError

SHARE = 2
"""One caller may have one in so many of the places in the queue, and of those that run while others wait."""


class Slots:
    """Callers take turns; the runs of one caller come first in, first out.

    A caller with a key may have half of the places, so one key cannot keep the others out. Callers without a key own
    the server or may administer it, and may have all.
    """

    def __init__(self, limit: int, room: int) -> None:
        self._limit = limit
        self._room = room
        self._running: Counter[str] = Counter()
        self._waiting: OrderedDict[str, deque[anyio.Event]] = OrderedDict()
        """By caller; the first one is next."""
        self._reserved: Counter[str] = Counter()
        self._average_seconds = 1.0

    @property
    def running(self) -> int:
        """How many have their turn."""
        return self._running.total()

    @property
    def waiting(self) -> int:
        """How many wait for theirs."""
        return sum(map(len, self._waiting.values()))

    def refuse_when_full(self, caller: str = "") -> None:
        """Say no at once if there is no place to wait in.

        Raises:
            ServerError: QUEUE_FULL; `details.retryAfter` says in how many seconds to try again.
        """
        own = self._running[caller] + len(self._waiting.get(caller, ())) + self._reserved[caller]
        places = self._limit + self._room
        if self.running + self.waiting + self._reserved.total() >= places:
            raise self._full(f"{self.running} runs are under way and {self.waiting} are waiting.", self.waiting)
        if caller and own >= max(1, places // SHARE):
            raise self._full(
                f"{own} runs of the API key {caller} are under way or waiting, which is as many as one key may have.",
                len(self._waiting.get(caller, ())),
            )

    def reserve(self, caller: str = "") -> None:
        """Take a place now, for a turn that is asked for in a moment.

        Raises:
            ServerError: QUEUE_FULL.
        """
        self.refuse_when_full(caller)
        self._reserved[caller] += 1

    @asynccontextmanager
    async def turn(self, caller: str = "", *, is_reserved: bool = False) -> AsyncIterator[None]:
        """Wait for a turn, and have it for as long as the block lasts."""
        if is_reserved:
            _decrease(self._reserved, caller)
        else:
            self.refuse_when_full(caller)
        await self._take(caller)
        begun = anyio.current_time()
        try:
            yield
        finally:
            self._average_seconds += (anyio.current_time() - begun - self._average_seconds) / 8
            _decrease(self._running, caller)
            self._wake()

    async def _take(self, caller: str) -> None:
        if self.running < self._limit and not self._waiting:
            self._running[caller] += 1
            return
        ticket = anyio.Event()
        self._waiting.setdefault(caller, deque()).append(ticket)
        try:
            await ticket.wait()
        except BaseException:
            if ticket.is_set():  # our turn came in the very moment we gave up: pass it on
                _decrease(self._running, caller)
                self._wake()
            else:
                self._leave(caller, ticket)
            raise

    def _wake(self) -> None:
        while self._waiting and self.running < self._limit:
            caller = self._next()
            self._running[caller] += 1  # counted here, so that nobody who comes later slips in before
            ticket = self._waiting[caller][0]
            self._leave(caller, ticket)
            if caller in self._waiting:
                self._waiting.move_to_end(caller)
            ticket.set()

    def _next(self) -> str:
        """The caller whose turn it is: the first one that has not its share of those that run, or else the first."""
        share = max(1, self._limit // SHARE)
        return next((caller for caller in self._waiting if self._running[caller] < share), next(iter(self._waiting)))

    def _leave(self, caller: str, ticket: anyio.Event) -> None:
        self._waiting[caller].remove(ticket)
        if not self._waiting[caller]:
            del self._waiting[caller]

    def _full(self, why: str, ahead: int) -> ServerError:
        wait = max(1, round(ahead * self._average_seconds / self._limit))
        return ServerError(f"{why} Try again in {wait} s.", code="QUEUE_FULL", retryAfter=wait)


def _decrease(counter: "Counter[str]", caller: str) -> None:
    counter[caller] -= 1
    if not counter[caller]:
        del counter[caller]
