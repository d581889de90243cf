"""Real walls, put up once for all tests of this room: cold, warm, and without namespaces."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from apexbridge.sandbox.config import MB, SandboxLimits, SandboxSettings
from apexbridge.sandbox.sandbox import Sandbox
from tests.sandbox.bench import Bench, put_up

KINDS = {
    "cold": SandboxSettings(backend="bubblewrap", warm=0, max_concurrency=4),
    "warm": SandboxSettings(backend="bubblewrap", warm=1, max_concurrency=4),
    "landlock": SandboxSettings(backend="landlock", warm=0, max_concurrency=4),
}
SMALL = SandboxSettings(
    backend="bubblewrap", warm=0, limits=SandboxLimits(output_bytes=MB, disk_bytes=4 * MB, inodes=200, files=64)
)
"""Limits that are reached sooner, where the size does not matter."""
Opener = Callable[[str], Awaitable[Sandbox]]


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    """One event loop for all, so that one sandbox can serve them all."""
    return "asyncio"


@pytest.fixture(scope="session")
async def opener(anyio_backend: str) -> AsyncIterator[Opener]:
    """Opens each kind of sandbox when it is asked for the first time."""
    opened: dict[str, Sandbox] = {}
    async with AsyncExitStack() as stack:

        async def open_kind(kind: str) -> Sandbox:
            if kind not in opened:
                opened[kind] = Sandbox(SMALL if kind == "small" else KINDS[kind])
                await stack.enter_async_context(opened[kind].running())
            await put_up(opened[kind])
            return opened[kind]

        yield open_kind


@pytest.fixture
async def cold(opener: Opener, tmp_path: Path) -> Bench:
    """Where one kind of walls is enough."""
    return Bench(await opener("cold"), tmp_path)


@pytest.fixture
async def landlock(opener: Opener, tmp_path: Path) -> Bench:
    """What is different without namespaces."""
    return Bench(await opener("landlock"), tmp_path)


@pytest.fixture
async def small(opener: Opener, tmp_path: Path) -> Bench:
    """Where limits have to be reached quickly."""
    return Bench(await opener("small"), tmp_path)


@pytest.fixture(params=["cold", "warm"])
async def bench(request: pytest.FixtureRequest, opener: Opener, tmp_path: Path) -> Bench:
    """Started for its job, and waiting for it since before: there must be no difference."""
    return Bench(await opener(request.param), tmp_path)


@pytest.fixture(params=list(KINDS))
async def walls(request: pytest.FixtureRequest, opener: Opener, tmp_path: Path) -> Bench:
    """Every kind of walls that a server may use without being told to."""
    return Bench(await opener(request.param), tmp_path)
