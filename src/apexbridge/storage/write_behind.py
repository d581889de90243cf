"""Write-behind: callers' data is written a moment later, in batches, and at the latest on close."""

import asyncio
from collections.abc import Awaitable, Callable

from apexbridge._tasks import wait_up_to


class WriteBehind:
    """Calls `write` at intervals while there is something to write.

    `write` writes what is pending, and returns whether something is left for another time.
    """

    def __init__(self, write: Callable[[], Awaitable[bool]], seconds: float) -> None:
        self._write = write
        self._seconds = seconds
        self._writing: asyncio.Task[None] | None = None
        self._closing = asyncio.Event()

    def schedule(self) -> None:
        if self._writing is None or self._writing.done():
            self._writing = asyncio.get_running_loop().create_task(self._write_until_done())

    async def close(self) -> None:
        """Write what is pending, now."""
        self._closing.set()
        if self._writing is not None:
            await asyncio.wait([self._writing])
        await self._write()

    async def _write_until_done(self) -> None:
        is_left = True
        while is_left and not self._closing.is_set():
            await wait_up_to(self._seconds, self._closing)
            is_left = await self._write()
