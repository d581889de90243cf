"""Real sandboxes, opened once for all tests of this package: cold, warm, and without namespaces."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from apexbridge.sandbox.config import MB, SandboxLimits, SandboxSettings
from apexbridge.sandbox.sandbox import Sandbox
from tests.sandbox.bench import Bench, warm_up_with_retry

KINDS = {
    "cold": SandboxSettings(backend="bubblewrap", warm=0, max_concurrency=4),
    "warm": SandboxSettings(backend="bubblewrap", warm=1, max_concurrency=4),
    "landlock": SandboxSettings(backend="landlock", warm=0, max_concurrency=4),
}
SMALL = SandboxSettings(
    backend="bubblewrap", warm=0, limits=SandboxLimits(output_bytes=MB, disk_bytes=4 * MB, inodes=200, files=64)
)
"""Limits that are reached sooner, for tests that do not depend on the size."""
Opener = Callable[[str], Awaitable[Sandbox]]


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    """One event loop for all tests, so that they can share a sandbox."""
    return "asyncio"


@pytest.fixture(scope="session")
async def opener(anyio_backend: str) -> AsyncIterator[Opener]:
    """Opens each kind of sandbox on first use."""
    opened: dict[str, Sandbox] = {}
    async with AsyncExitStack() as stack:

        async def open_kind(kind: str) -> Sandbox:
            if kind not in opened:
                opened[kind] = Sandbox(SMALL if kind == "small" else KINDS[kind])
                await stack.enter_async_context(opened[kind].running())
            for sandbox in opened.values():  # also the others: their warm cells must not start during the next test
                await warm_up_with_retry(sandbox)
            return opened[kind]

        yield open_kind


@pytest.fixture
async def cold(opener: Opener, tmp_path: Path) -> Bench:
    """For tests that need one backend only."""
    return Bench(await opener("cold"), tmp_path)


@pytest.fixture
async def landlock(opener: Opener, tmp_path: Path) -> Bench:
    """For tests of the backend without namespaces."""
    return Bench(await opener("landlock"), tmp_path)


@pytest.fixture
async def small(opener: Opener, tmp_path: Path) -> Bench:
    """For tests that must reach limits quickly."""
    return Bench(await opener("small"), tmp_path)


@pytest.fixture(params=["cold", "warm"])
async def bench(request: pytest.FixtureRequest, opener: Opener, tmp_path: Path) -> Bench:
    """In a cold and in a warm cell: there must be no difference."""
    return Bench(await opener(request.param), tmp_path)


@pytest.fixture(params=list(KINDS))
async def each_backend(request: pytest.FixtureRequest, opener: Opener, tmp_path: Path) -> Bench:
    """Each kind of sandbox that a server may select on its own."""
    return Bench(await opener(request.param), tmp_path)
