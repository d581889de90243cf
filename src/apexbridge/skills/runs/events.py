"""Numbered events of a run, for listeners that follow it or reconnect."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any, Literal

EVENT_CHARACTERS = 150
"""Memory estimate of an event without its text."""
EVENT_TEXT = 32 * 1024
"""Longer output is split into several events, so that listeners can handle it piece by piece."""
FIRST_OUTPUT_SECONDS = 0.005
"""Output after a pause is buffered for this time: a `print` writes its line in several pieces."""
OUTPUT_SECONDS = 0.05
"""Later output is buffered for this time: a run can print millions of single characters."""
MAX_SWITCHES = 5000
"""How often in a run the buffered output may change between stdout and stderr, with one event for each part. Later,
each stream has one event for each buffer, so that a run cannot create millions of events."""
Stream = Literal["stdout", "stderr"]
EventKind = Literal["state", "stdout", "stderr", "result"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunEvent:
    """One event; numbers begin at 1."""

    number: int
    kind: EventKind
    data: Any


class RunLog:
    """The events of a run. Their size is bounded by the output limit of the run."""

    def __init__(self) -> None:
        self.events: list[RunEvent] = []
        self.is_over = False
        self.characters = 0
        """Estimated size of all events."""
        self._changed = asyncio.Event()
        self._unsent: list[tuple[Stream, list[str]]] = []
        """Output buffered until the timer fires: the parts of both streams in the order in which they arrived."""
        self._timer: asyncio.TimerHandle | None = None
        self._switches = 0

    def add_output(self, stream: Stream, text: str) -> None:
        """Add output of a running script. It is buffered until the timer fires: soon, if both streams were idle.

        Output keeps its order, within a stream and between the two, until it has changed MAX_SWITCHES times.
        """
        if self._timer is None:
            self._collect(FIRST_OUTPUT_SECONDS)
        last_parts = self._unsent[-1:] if self._switches < MAX_SWITCHES else self._unsent[-2:]
        part = next((part for part in last_parts if part[0] == stream), None)
        if part is None:
            self._switches += bool(self._unsent)
            self._unsent.append((stream, [text]))
        else:
            part[1].append(text)

    def add(self, kind: EventKind, data: Any) -> None:
        """Append an event; a `state` event is preceded by buffered output."""
        if kind == "state":
            self._flush()
        self.characters += EVENT_CHARACTERS + (len(data) if isinstance(data, str) else 0)
        self.events.append(RunEvent(number=len(self.events) + 1, kind=kind, data=data))
        self._wake()

    def end(self) -> None:
        """Flush the output and end the log."""
        self._flush()
        self.is_over = True
        self._wake()

    async def follow(self, after: int = 0, *, waits: bool = True) -> AsyncIterator[RunEvent]:
        """Yield every event after that number, live, until the log ends; without `waits`, only those so far."""
        position = max(after, 0)
        while True:
            changed = self._changed
            while position < len(self.events):
                yield self.events[position]
                position += 1
            if self.is_over or not waits:
                return
            await changed.wait()

    def _collect(self, seconds: float) -> None:
        self._timer = asyncio.get_running_loop().call_later(seconds, self._send)

    def _send(self) -> None:
        """Called by the timer. Starts another one if there was output."""
        has_output = bool(self._unsent)
        self._flush()
        if has_output:
            self._collect(OUTPUT_SECONDS)

    def _flush(self) -> None:
        """Turn buffered output into events now."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        unsent, self._unsent = self._unsent, []
        for stream, texts in unsent:
            text = "".join(texts)
            for start in range(0, len(text), EVENT_TEXT):
                self.add(stream, text[start : start + EVENT_TEXT])

    def _wake(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()
