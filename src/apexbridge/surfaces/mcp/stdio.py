"""Standard input and output for MCP: messages on lines. Nothing else may write to the output."""

import asyncio
import os
import select
import threading
from collections.abc import AsyncIterator, Coroutine
from concurrent.futures import CancelledError
from typing import Any

from apexbridge._tasks import run_to_completion
from apexbridge.surfaces.mcp.relay import END_BYTES, MAX_LINE_BYTES, LongLine

READ_BYTES = 64 * 1024
WRITE_CHECK_MS = 100
MAX_CHUNKS = 16
"""Chunks of the input that wait to be handled. Beyond that, the client has to wait."""


class _Line:
    """A line as it arrives."""

    def __init__(self) -> None:
        self.size = 0
        self._parts: list[bytes] = []
        self._first = self._last = b""

    def add(self, part: bytes) -> None:
        self.size += len(part)
        if self.size <= MAX_LINE_BYTES:
            self._parts.append(part)
            return
        if self._parts:
            begun = b"".join(self._parts)
            self._first, self._last, self._parts = begun[:END_BYTES], begun[-END_BYTES:], []
        self._last = (self._last + part)[-END_BYTES:]

    def whole(self) -> bytes | LongLine:
        return b"".join(self._parts) if self.size <= MAX_LINE_BYTES else LongLine(self._first, self._last)


class Stdio:
    """Takes over the standard streams: anything else that this process prints goes to stderr, and finds no input."""

    def __init__(self) -> None:
        self._input = os.dup(0)
        self._output = os.dup(1)
        os.dup2(2, 1)
        nothing = os.open(os.devnull, os.O_RDONLY)
        os.dup2(nothing, 0)
        os.close(nothing)
        self._lock = asyncio.Lock()
        self._is_closed = False
        self._chunks: asyncio.Queue[bytes] = asyncio.Queue(MAX_CHUNKS)

    async def lines(self) -> AsyncIterator[bytes | LongLine]:
        """The lines of the input. Of a line that is too long, the middle is skipped."""
        loop = asyncio.get_running_loop()
        # A thread works for pipes, sockets, terminals and files, and does not keep the process alive.
        threading.Thread(target=self._read, args=(loop,), daemon=True, name="stdin").start()
        begun = _Line()
        while chunk := await self._chunks.get():
            *ends, tail = chunk.split(b"\n")
            for end in ends:
                begun.add(end)
                yield begun.whole()
                begun = _Line()
            begun.add(tail)
        if begun.size:
            yield begun.whole()

    def _read(self, loop: asyncio.AbstractEventLoop) -> None:
        chunk = b"-"
        while chunk:
            try:
                chunk = os.read(self._input, READ_BYTES)
            except OSError:
                chunk = b""
            try:
                asyncio.run_coroutine_threadsafe(self._put(chunk), loop).result()
            except (RuntimeError, CancelledError):  # the event loop is closed
                return

    def _put(self, chunk: bytes) -> Coroutine[Any, Any, None]:
        return self._chunks.put(chunk)

    async def write(self, line: bytes) -> None:
        """Write a line, all of it even if the caller is cancelled. Raises OSError if the client is gone."""
        async with self._lock:
            await run_to_completion(asyncio.to_thread(self._write, line))

    def _write(self, line: bytes) -> None:
        poll = select.poll()
        poll.register(self._output, select.POLLOUT)
        view = memoryview(line)
        while view and not self._is_closed:
            if poll.poll(WRITE_CHECK_MS):  # then this much fits, and the write does not block
                view = view[os.write(self._output, view[: select.PIPE_BUF]) :]

    def close(self) -> None:
        """Give up what a client does not read: the process could not end before it is written."""
        self._is_closed = True

    @property
    def is_gone(self) -> bool:
        """Whether the reader of the output has closed it."""
        poll = select.poll()
        poll.register(self._output, 0)
        return any(event & select.POLLERR for _, event in poll.poll(0))
