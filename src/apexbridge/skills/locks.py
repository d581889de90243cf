"""One change at a time for each skill, any number of skills at once; and a gate to stop them all."""

from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager

import anyio

from apexbridge.errors import ServerError


class NameLocks:
    """Locks that exist only while somebody holds or waits for them."""

    def __init__(self) -> None:
        self._locks: dict[str, anyio.Lock] = {}
        self._users: dict[str, int] = {}

    @asynccontextmanager
    async def hold(self, *names: str) -> AsyncIterator[None]:
        """Hold all these names; the sorted order keeps two holders from waiting for each other."""
        async with AsyncExitStack() as stack:
            for name in sorted(set(names)):
                await stack.enter_async_context(self._one(name))
            yield

    @asynccontextmanager
    async def _one(self, name: str) -> AsyncIterator[None]:
        lock = self._locks.setdefault(name, anyio.Lock())
        self._users[name] = self._users.get(name, 0) + 1
        try:
            async with lock:
                yield
        finally:
            self._users[name] -= 1
            if not self._users[name]:
                del self._users[name], self._locks[name]


class GatePass:
    """Leave the gate once, however often it is closed."""

    def __init__(self, leave: Callable[[], None]) -> None:
        self._leave: Callable[[], None] | None = leave

    def close(self) -> None:
        """The work is done."""
        leave, self._leave = self._leave, None
        if leave is not None:
            leave()

    def __enter__(self) -> "GatePass":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Gate:
    """Many work at once, or one has the place to itself."""

    def __init__(self) -> None:
        self._working = 0
        self._reopened: anyio.Event | None = None

    @asynccontextmanager
    async def working(self) -> AsyncIterator[None]:
        """Work, once the gate is open."""
        with await self.enter():
            yield

    async def enter(self) -> "GatePass":
        """Begin to work, once the gate is open; for work that outlasts whoever began it."""
        while self._reopened is not None:
            await self._reopened.wait()
        self._working += 1
        return GatePass(self._leave)

    def _leave(self) -> None:
        self._working -= 1

    @property
    def working_count(self) -> int:
        """How many are at work."""
        return self._working

    @asynccontextmanager
    async def closed(self) -> AsyncIterator[None]:
        """Have the place to oneself; whoever comes meanwhile waits.

        Raises:
            ServerError: BUSY, somebody is at work.
        """
        if self._working or self._reopened is not None:
            raise ServerError("A run or an install is active; try again when it is done.", code="BUSY")
        self._reopened = anyio.Event()
        try:
            yield
        finally:
            self._reopened.set()
            self._reopened = None
