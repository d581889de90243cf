"""Locks of the skill store. They are taken in this order, so there are no deadlocks:

1. `SkillStore.gate`: open for installs, edits and runs; closed while the roots change.
2. `SkillStore.locks`: one change per skill name at a time, for the whole install.
3. `SkillStore.commits`: by skill name, only while a folder is replaced; readers wait for this one alone.
4. The scanner's lock: one task settles at a time, because different folders may contain the same skill.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager

from apexbridge.errors import ServerError


class NameLocks:
    """Locks by name, which exist only while they are held or awaited."""

    def __init__(self) -> None:
        self._locks: dict[str, asyncio.Lock] = {}
        self._users: dict[str, int] = {}
        self._reopened: asyncio.Event | None = None
        """Set when all names are free again; None unless they are held together."""
        self._unused = asyncio.Event()
        self._unused.set()

    @asynccontextmanager
    async def hold_all(self) -> AsyncIterator[None]:
        """Hold every name. Waits for those that are held, and others wait meanwhile. Holders must not hold more."""
        while self._reopened is not None:
            await self._reopened.wait()
        self._reopened = asyncio.Event()
        try:
            await self._unused.wait()
            yield
        finally:
            self._reopened.set()
            self._reopened = None

    @asynccontextmanager
    async def hold(self, *names: str) -> AsyncIterator[None]:
        """Hold all these names. They are locked in sorted order, which prevents deadlocks."""
        while self._reopened is not None:
            await self._reopened.wait()
        async with AsyncExitStack() as stack:
            for name in sorted(set(names)):
                await stack.enter_async_context(self._one(name))
            yield

    @asynccontextmanager
    async def _one(self, name: str) -> AsyncIterator[None]:
        lock = self._locks.setdefault(name, asyncio.Lock())
        self._users[name] = self._users.get(name, 0) + 1
        self._unused.clear()
        try:
            async with lock:
                yield
        finally:
            self._users[name] -= 1
            if not self._users[name]:
                del self._users[name], self._locks[name]
            if not self._users:
                self._unused.set()


class Gate:
    """Admits many workers, or one exclusive holder."""

    def __init__(self) -> None:
        self._working = 0
        self._reopened: asyncio.Event | None = None

    @asynccontextmanager
    async def working(self) -> AsyncIterator[None]:
        """Wait for the gate to open; the block counts as work."""
        with await self.enter():
            yield

    async def enter(self) -> ExitStack:
        """Wait for the gate to open and begin work, which ends when the result is closed. It may outlive its caller."""
        while self._reopened is not None:
            await self._reopened.wait()
        self._working += 1
        work = ExitStack()
        work.callback(self._leave)
        return work

    def _leave(self) -> None:
        self._working -= 1

    @property
    def working_count(self) -> int:
        return self._working

    @asynccontextmanager
    async def closed(self) -> AsyncIterator[None]:
        """Hold the gate exclusively; new work waits meanwhile.

        Raises:
            ServerError: BUSY, work is active or the gate is closed already.
        """
        if self._working or self._reopened is not None:
            raise ServerError("A run or an install is active; try again when it is done.", code="BUSY")
        self._reopened = asyncio.Event()
        try:
            yield
        finally:
            self._reopened.set()
            self._reopened = None
