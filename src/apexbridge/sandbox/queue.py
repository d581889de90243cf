"""Turns: a number of runs at once, the others in a queue in which callers take turns."""

from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio

from apexbridge._turns import SHARE, Turns, decrease
from apexbridge.errors import ServerError


class Slots:
    """Callers take turns; the runs of one caller come first in, first out.

    A caller with a key may have half of the places, so one key cannot keep the others out. Callers without a key own
    the server or may administer it, and may have all.
    """

    def __init__(self, limit: int, room: int) -> None:
        self._turns = Turns(limit)
        self._room = room
        self._reserved: Counter[str] = Counter()
        self._average_seconds = 1.0

    @property
    def running(self) -> int:
        """How many have their turn."""
        return self._turns.running

    @property
    def waiting(self) -> int:
        """How many wait for theirs."""
        return self._turns.waiting

    def refuse_when_full(self, caller: str = "") -> None:
        """Say no at once if there is no place to wait in.

        Raises:
            ServerError: QUEUE_FULL; `details.retryAfter` says in how many seconds to try again.
        """
        own = self._turns.running_of(caller) + self._turns.waiting_of(caller) + self._reserved[caller]
        places = self._turns.limit + self._room
        if self.running + self.waiting + self._reserved.total() >= places:
            raise self._full(f"{self.running} runs are under way and {self.waiting} are waiting.", self.waiting)
        if caller and own >= max(1, places // SHARE):
            raise self._full(
                f"{own} runs of the API key {caller} are under way or waiting, which is as many as one key may have.",
                self._turns.waiting_of(caller),
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
            decrease(self._reserved, caller)
        else:
            self.refuse_when_full(caller)
        async with self._turns.turn(caller):
            begun = anyio.current_time()
            try:
                yield
            finally:
                self._average_seconds += (anyio.current_time() - begun - self._average_seconds) / 8

    def _full(self, why: str, ahead: int) -> ServerError:
        wait = max(1, round(ahead * self._average_seconds / self._turns.limit))
        return ServerError(f"{why} Try again in {wait} s.", code="QUEUE_FULL", retryAfter=wait)
