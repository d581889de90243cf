"""Numbered events in a ring of limited size. Each reader follows it at its own speed."""

import asyncio
import time
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from itertools import islice

from apexbridge._tasks import wait_up_to
from apexbridge._usage import ResourceUsage
from apexbridge.errors import RequestError
from apexbridge.wire import WireModel

RING_EVENTS = 1_000
"""Events that a reader can be behind, or resume from."""
MAX_KEY_STREAMS = 20
MAX_STREAMS_WITHOUT_KEY = 200
"""The same limit for all readers without a key together: they can be many people behind one proxy."""
RETRY_SECONDS = 60


@dataclass(frozen=True, kw_only=True)
class ServerEvent:
    """One event. Admin readers see all, other readers see public ones and their own."""

    number: int
    kind: str
    payload: WireModel | None
    owner: str | None
    is_public: bool

    @cached_property
    def data(self) -> str:
        """The payload as JSON; encoded once for all readers, and only if one reads it."""
        return "{}" if self.payload is None else self.payload.model_dump_json()

    def is_visible(self, reach: str | None) -> bool:
        """Whether a reader sees it; `reach` is the reader's key, or None for a reader that sees all."""
        return self.is_public or reach is None or self.owner == reach


class EventFeed:
    """Publishing never waits. A reader that falls behind the ring has to load everything again."""

    def __init__(self, size: int = RING_EVENTS) -> None:
        self._events: deque[ServerEvent] = deque(maxlen=size)
        # Later than every number of an earlier process, so that a reader of that process cannot resume here. In
        # microseconds this is still exact as a number in JavaScript.
        self.newest = time.time_ns() // 1000
        self._changed = asyncio.Event()
        self._closed = asyncio.Event()
        self._streams: Counter[str] = Counter()

    @property
    def is_closed(self) -> bool:
        return self._closed.is_set()

    def publish(
        self, kind: str, payload: WireModel | None = None, *, owner: str | None = None, is_public: bool = False
    ) -> None:
        self.newest += 1
        event = ServerEvent(number=self.newest, kind=kind, payload=payload, owner=owner, is_public=is_public)
        self._events.append(event)
        self._wake()

    def after(self, number: int) -> list[ServerEvent] | None:
        """The events after a number; None if it is not in the ring."""
        behind = self.newest - number
        if not 0 <= behind <= len(self._events):
            return None
        return list(islice(self._events, len(self._events) - behind, None))

    async def wait(self, number: int, seconds: float) -> None:
        """Wait until there are events after this number, or the feed is closed, or the time is up."""
        if self.newest == number and not self.is_closed:
            await wait_up_to(seconds, self._changed)

    async def collect(self, seconds: float) -> None:
        """Wait for further events, unless the feed is closed."""
        await wait_up_to(seconds, self._closed)

    def close(self) -> None:
        """End all streams, because the server stops."""
        self._closed.set()
        self._wake()

    @contextmanager
    def stream_of(self, caller: str) -> Iterator[None]:
        """Count a stream until the block ends. Raises RequestError (RATE_LIMITED) if the caller has too many."""
        limit = MAX_KEY_STREAMS if caller else MAX_STREAMS_WITHOUT_KEY
        if self._streams[caller] >= limit:
            who = f"The API key {caller} has" if caller else "Clients without a key have"
            raise RequestError(
                f"{who} {limit} event streams open, which is the limit. Close one first.",
                code="RATE_LIMITED",
                retryAfter=RETRY_SECONDS,
            )
        self._streams[caller] += 1
        try:
            yield
        finally:
            self._streams[caller] -= 1
            if not self._streams[caller]:
                del self._streams[caller]

    async def usage(self, caller: str) -> Sequence[ResourceUsage]:
        limit = MAX_KEY_STREAMS if caller else MAX_STREAMS_WITHOUT_KEY
        used, total = self._streams[caller], self._streams.total()
        return (ResourceUsage(resource="event-streams", used=used, limit=limit, total=total),)

    def _wake(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()
