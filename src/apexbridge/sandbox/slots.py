"""Turns: so many runs at once, the others in the order they came, and no more of them than there is room for."""

from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio

from apexbridge.errors import ServerError


class Slots:
    """First in, first out."""

    def __init__(self, limit: int, room: int) -> None:
        self._limit = limit
        self._room = room
        self._running = 0
        self._waiting: deque[anyio.Event] = deque()
        self._average_seconds = 1.0
        self._reserved = 0

    @property
    def running(self) -> int:
        """How many have their turn."""
        return self._running

    @property
    def waiting(self) -> int:
        """How many wait for theirs."""
        return len(self._waiting)

    def refuse_when_full(self) -> None:
        """Say no at once where there is no room to wait in.

        Raises:
            ServerError: QUEUE_FULL; `details.retryAfter` says in how many seconds to try again.
        """
        if self._running + len(self._waiting) + self._reserved >= self._limit + self._room:
            wait = max(1, round(len(self._waiting) * self._average_seconds / self._limit))
            raise ServerError(
                f"{self._running} runs are under way and {len(self._waiting)} are waiting. Try again in {wait} s.",
                code="QUEUE_FULL",
                retryAfter=wait,
            )

    def reserve(self) -> None:
        """Take a place now, for a turn that is asked for in a moment.

        Raises:
            ServerError: QUEUE_FULL.
        """
        self.refuse_when_full()
        self._reserved += 1

    @asynccontextmanager
    async def turn(self, *, is_reserved: bool = False) -> AsyncIterator[None]:
        """Wait for a turn, and have it for as long as the block lasts."""
        if is_reserved:
            self._reserved -= 1
        else:
            self.refuse_when_full()
        await self._take()
        begun = anyio.current_time()
        try:
            yield
        finally:
            self._average_seconds += (anyio.current_time() - begun - self._average_seconds) / 8
            self._running -= 1
            self._wake()

    async def _take(self) -> None:
        if self._running < self._limit and not self._waiting:
            self._running += 1
            return
        ticket = anyio.Event()
        self._waiting.append(ticket)
        try:
            await ticket.wait()
        except BaseException:
            if ticket.is_set():  # our turn came in the very moment we gave up: pass it on
                self._running -= 1
                self._wake()
            else:
                self._waiting.remove(ticket)
            raise

    def _wake(self) -> None:
        while self._waiting and self._running < self._limit:
            self._running += 1  # counted here, so that nobody who comes later slips in before
            self._waiting.popleft().set()
