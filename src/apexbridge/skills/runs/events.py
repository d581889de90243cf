"""Numbered events of a run, for listeners that follow it or reconnect."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any, Literal

EVENT_CHARACTERS = 150
"""Memory estimate of an event without its text."""
OUTPUT_SECONDS = 0.05
"""At most one event per stream in this time: a run can print millions of single characters."""
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
        self._unsent: dict[Stream, list[str]] = {}
        """Output buffered until the timer of its stream fires."""
        self._timers: dict[Stream, asyncio.TimerHandle] = {}

    def add_output(self, stream: Stream, text: str) -> None:
        """Add output of a running script: immediately if its stream was idle, else buffered until the timer fires."""
        if stream in self._unsent:
            self._unsent[stream].append(text)
        else:
            self.add(stream, text)
            self._collect(stream)

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

    async def follow(self, after: int = 0) -> AsyncIterator[RunEvent]:
        """Yield every event after that number, live, until the log ends."""
        position = max(after, 0)
        while True:
            changed = self._changed
            while position < len(self.events):
                yield self.events[position]
                position += 1
            if self.is_over:
                return
            await changed.wait()

    def _collect(self, stream: Stream) -> None:
        self._unsent[stream] = []
        self._timers[stream] = asyncio.get_running_loop().call_later(OUTPUT_SECONDS, self._send, stream)

    def _send(self, stream: Stream) -> None:
        """Called by the timer of a stream. Starts another one if there was output."""
        if texts := self._unsent.pop(stream):
            self.add(stream, "".join(texts))
            self._collect(stream)

    def _flush(self) -> None:
        """Turn buffered output into events now."""
        for timer in self._timers.values():
            timer.cancel()
        unsent, self._unsent, self._timers = self._unsent, {}, {}
        for stream, texts in unsent.items():
            if texts:
                self.add(stream, "".join(texts))

    def _wake(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()
