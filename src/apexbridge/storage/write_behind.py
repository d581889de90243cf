"""Writing behind: what callers bring is written a moment later, all of it together, and at the end."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress


class WriteBehind:
    """Calls for a write once in a while, as long as there is something to write."""

    def __init__(self, write: Callable[[], Awaitable[bool]], seconds: float) -> None:
        self._write = write
        """Writes what is waiting; tells whether something is left for another time."""
        self._seconds = seconds
        self._writing: asyncio.Task[None] | None = None
        self._closing = asyncio.Event()

    def schedule(self) -> None:
        """There is something to write."""
        if self._writing is None or self._writing.done():
            self._writing = asyncio.get_running_loop().create_task(self._write_soon())

    async def close(self) -> None:
        """Write what is waiting, now."""
        self._closing.set()
        if self._writing is not None:
            await asyncio.wait([self._writing])
        await self._write()

    async def _write_soon(self) -> None:
        is_left = True
        while is_left and not self._closing.is_set():
            with suppress(TimeoutError):
                await asyncio.wait_for(self._closing.wait(), self._seconds)
            is_left = await self._write()
