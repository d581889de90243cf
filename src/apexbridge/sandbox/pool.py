"""Cells that wait: one interpreter for each runtime, started beforehand, used once."""

import asyncio
import logging
from collections import deque

from apexbridge.sandbox.launcher_client import LaunchError
from apexbridge.sandbox.runtimes import WARM_RUNTIMES, RuntimeName
from apexbridge.sandbox.session import Waiting, Workbench

logger = logging.getLogger(__name__)


class WarmPool:
    """Keeps so many of each runtime ready."""

    def __init__(self, workbench: Workbench, size: int) -> None:
        self._workbench = workbench
        self._size = size if workbench.backend.can_wait else 0
        self._waiting: dict[RuntimeName, deque[Waiting]] = {name: deque() for name in WARM_RUNTIMES}
        self._filling: asyncio.Task[None] | None = None
        self._is_closed = False

    def take(self, runtime: RuntimeName) -> Waiting | None:
        """One that waits, if there is one; it is the caller's from now on."""
        ready = self._waiting.get(runtime, deque())
        while ready:
            waiting = ready.popleft()
            if not waiting.cell.exited.done():
                return waiting
            self._discard(waiting)
        return None

    def fill(self) -> None:
        """Have what is missing started, in the background."""
        if self._size and not self._is_closed and (self._filling is None or self._filling.done()):
            self._filling = asyncio.get_running_loop().create_task(self._fill())

    async def filled(self) -> None:
        """Wait until everything that should be ready is."""
        self.fill()
        if self._filling is not None:
            await asyncio.wait([self._filling])

    async def close(self) -> None:
        """Let all of them go."""
        self._is_closed = True
        if self._filling is not None:
            self._filling.cancel()
            await asyncio.wait([self._filling])
        for ready in self._waiting.values():
            while ready:
                await ready.popleft().discard()

    async def _fill(self) -> None:
        try:
            for name, ready in self._waiting.items():
                runtime = self._workbench.runtimes.get(name)
                while runtime is not None and len(ready) < self._size:
                    ready.append(await self._workbench.prepare(runtime))
        except (LaunchError, OSError) as error:
            logger.warning("no sandbox could be started beforehand: %s", error)

    def _discard(self, waiting: Waiting) -> None:
        waiting.pipes.close()
        self._workbench.launcher.clear(waiting.cell)
