"""What a run says while it lasts, numbered, for everybody who listens and for those who come back."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any, Literal

import anyio

EVENT_CHARACTERS = 150
"""What an event takes of the memory besides its text."""
OUTPUT_SECONDS = 0.05
"""Output of a stream becomes one event in this time at most: a run can print millions of single characters."""
Stream = Literal["stdout", "stderr"]
EventKind = Literal["state", "stdout", "stderr", "result"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunEvent:
    """One thing that happened; numbers begin at 1."""

    number: int
    kind: EventKind
    data: Any


class RunLog:
    """Keeps a run's events until nobody can need them any more; what is printed is bounded by the run's own limit."""

    def __init__(self) -> None:
        self.events: list[RunEvent] = []
        self.is_over = False
        self.characters = 0
        """How much is kept."""
        self._changed = anyio.Event()
        self._unsent: dict[Stream, list[str]] = {}
        """Output that waits for its stream's timer."""
        self._timers: dict[Stream, asyncio.TimerHandle] = {}

    def add_output(self, stream: Stream, text: str) -> None:
        """Add output of a running script: at once if its stream was quiet, else together with what follows."""
        if stream in self._unsent:
            self._unsent[stream].append(text)
        else:
            self.add(stream, text)
            self._collect(stream)

    def add(self, kind: EventKind, data: Any) -> None:
        """Something happened."""
        if kind == "state":
            self._flush()
        self.characters += EVENT_CHARACTERS + (len(data) if isinstance(data, str) else 0)
        self.events.append(RunEvent(number=len(self.events) + 1, kind=kind, data=data))
        self._wake()

    def end(self) -> None:
        """Nothing more will come."""
        self._flush()
        self.is_over = True
        self._wake()

    async def follow(self, after: int = 0) -> AsyncIterator[RunEvent]:
        """Every event after that number, as they come, to the end."""
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
        """The timer of a stream has fired; while it goes on printing, another one follows."""
        if texts := self._unsent.pop(stream):
            self.add(stream, "".join(texts))
            self._collect(stream)

    def _flush(self) -> None:
        """Turn what waits into events now."""
        for timer in self._timers.values():
            timer.cancel()
        unsent, self._unsent, self._timers = self._unsent, {}, {}
        for stream, texts in unsent.items():
            if texts:
                self.add(stream, "".join(texts))

    def _wake(self) -> None:
        changed, self._changed = self._changed, anyio.Event()
        changed.set()
