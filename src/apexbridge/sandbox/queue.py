"""The run queue: a number of runs at a time; the others wait, and callers take turns."""

import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

from apexbridge._fair_queue import SHARE, Turns, decrease
from apexbridge._usage import ResourceUsage
from apexbridge.errors import ServerError


class RunQueue:
    """Callers take turns; the runs of one caller are first in, first out.

    A caller with a key may use half of the capacity, and one run of each caller may always wait, so that some keys
    cannot block the others. Callers without a key own or administer the server, and may use all of the capacity.
    """

    def __init__(
        self, max_running: int, max_waiting: int, *, limit_of: Callable[[str], int | None] = lambda caller: None
    ) -> None:
        """`limit_of` returns how many runs of a caller may be active at a time; None for any number."""
        self._turns = Turns(max_running, limit_of=limit_of)
        self._limit_of = limit_of
        self._max_waiting = max_waiting
        self._reserved: Counter[str] = Counter()
        self._average_seconds = 1.0

    @property
    def running(self) -> int:
        return self._turns.running

    @property
    def waiting(self) -> int:
        return self._turns.waiting

    def check_capacity(self, caller: str = "") -> None:
        """Raise QUEUE_FULL if another run of this caller could not even wait, with `details.retryAfter` in seconds."""
        own = self._own(caller)
        if own and self.running + self.waiting + self._reserved.total() >= self._capacity:
            raise self._queue_full_error(
                f"{self.running} runs are active and {self.waiting} are waiting.", self.waiting
            )
        if own >= self._share(caller):
            raise self._queue_full_error(
                f"{own} runs of the API key {caller} are active or waiting, which is the limit for one key.",
                self._turns.waiting_of(caller),
            )

    @property
    def _capacity(self) -> int:
        return self._turns.limit + self._max_waiting

    def _share(self, caller: str) -> int:
        return max(1, self._capacity // SHARE) if caller else self._capacity

    def _own(self, caller: str) -> int:
        return self._turns.running_of(caller) + self._turns.waiting_of(caller) + self._reserved[caller]

    def limits_changed(self) -> None:
        """Start the runs that may be active now."""
        self._turns.wake()

    def usage(self, caller: str) -> Sequence[ResourceUsage]:
        limit = self._turns.limit
        return (
            ResourceUsage(
                resource="active-runs",
                used=self._turns.running_of(caller),
                limit=min(limit, self._limit_of(caller) or limit),
                total=self.running,
                total_limit=limit,
            ),
            ResourceUsage(
                resource="active-and-waiting-runs",
                used=self._own(caller),
                limit=self._share(caller),
                total=self.running + self.waiting + self._reserved.total(),
                total_limit=self._capacity,
            ),
        )

    def reserve(self, caller: str = "") -> None:
        """Reserve capacity for a `turn` that follows. Raises QUEUE_FULL."""
        self.check_capacity(caller)
        self._reserved[caller] += 1

    @asynccontextmanager
    async def turn(self, caller: str = "", *, is_reserved: bool = False) -> AsyncIterator[None]:
        """Wait for a turn; it lasts as long as the block."""
        if is_reserved:
            decrease(self._reserved, caller)
        else:
            self.check_capacity(caller)
        async with self._turns.turn(caller):
            begun = time.monotonic()
            try:
                yield
            finally:
                self._average_seconds += (time.monotonic() - begun - self._average_seconds) / 8

    def _queue_full_error(self, reason: str, ahead: int) -> ServerError:
        wait = max(1, round(ahead * self._average_seconds / self._turns.limit))
        return ServerError(f"{reason} Try again in {wait} s.", code="QUEUE_FULL", retryAfter=wait)
