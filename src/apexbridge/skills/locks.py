"""One change at a time for each skill, any number of skills at once."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import anyio


class NameLocks:
    """Locks that exist only while somebody holds or waits for them."""

    def __init__(self) -> None:
        self._locks: dict[str, anyio.Lock] = {}
        self._users: dict[str, int] = {}

    @property
    def busy(self) -> bool:
        """Whether any name is being changed."""
        return bool(self._locks)

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
