"""Server-sent events for one reader: `hello`, what it missed, and then every event that it may see."""

from collections.abc import AsyncIterator, Callable

from apexbridge.errors import RequestError
from apexbridge.monitoring.event_feed import EventFeed
from apexbridge.monitoring.server_events import ServerEventCounts, ServerEventHello, ServerEvents
from apexbridge.storage.key_store import KeyStore

HEARTBEAT_SECONDS = 25.0
COLLECT_SECONDS = 0.05
"""Events are sent together: many short runs begin and end within this time."""
HEARTBEAT = b": still here\n\n"
MAX_DIGITS = 16
RunCounts = Callable[[str | None], tuple[int, int]]
"""Returns how many runs of a key are in progress and queued; None counts those of all."""


class EventStreams:
    def __init__(
        self, feed: EventFeed, events: ServerEvents, *, keys: KeyStore, run_counts: RunCounts, instance: str
    ) -> None:
        self.feed = feed
        self._events = events
        self._keys = keys
        self._run_counts = run_counts
        self._instance = instance

    async def follow(self, caller: str, last_event: str | None) -> AsyncIterator[bytes]:
        """Encoded events for a reader, until its key becomes invalid or the feed is closed.

        After `last_event`, the id of an earlier event, the stream resumes if the ring still has all later events.
        """
        position = _number(last_event)
        missed = self.feed.after(position) if position is not None else None
        is_reset = last_event is not None and missed is None
        if position is None or missed is None:
            position = self.feed.newest
        counts = self._counts(caller)
        # A resumed stream begins with the number it resumes from: it may break before the missed events arrive.
        hello = ServerEventHello(instance=self._instance, **counts.model_dump(by_alias=False))
        yield _encoded(position, "hello", hello.model_dump_json()) + (_reset(position) if is_reset else b"")
        while True:
            await self.feed.wait(position, HEARTBEAT_SECONDS)
            if self.feed.is_closed or not self._is_valid(caller):
                return
            if self.feed.newest == position:
                yield HEARTBEAT
                continue
            await self.feed.collect(COLLECT_SECONDS)
            if self.feed.is_closed or not self._is_valid(caller):
                return
            events = self.feed.after(position)
            position = self.feed.newest
            if events is None:
                chunks = [_reset(position)]
            else:
                reach = self._keys.reach(caller)
                shown = [event for event in events if event.is_visible(reach)]
                chunks = [_encoded(event.number, event.kind, event.data) for event in shown]
            if (current := self._counts(caller)) != counts:
                counts = current
                chunks.append(_encoded(position, "counts", counts.model_dump_json()))
            if chunks:
                yield b"".join(chunks)

    def _counts(self, caller: str) -> ServerEventCounts:
        reach = self._keys.reach(caller)
        running, waiting = self._run_counts(reach)
        approvals = self._events.pending_approvals if reach is None else None
        return ServerEventCounts(approvals=approvals, running=running, waiting=waiting)

    def _is_valid(self, caller: str) -> bool:
        try:
            self._keys.check(caller)
        except RequestError:
            return False
        return True


def _number(last_event: str | None) -> int | None:
    text = last_event or ""
    return int(text) if text.isascii() and text.isdigit() and len(text) <= MAX_DIGITS else None


def _encoded(number: int, kind: str, data: str) -> bytes:
    return f"id: {number}\nevent: {kind}\ndata: {data}\n\n".encode("utf-8", "replace")


def _reset(number: int) -> bytes:
    """The reader has to load everything again."""
    return _encoded(number, "reset", "{}")
