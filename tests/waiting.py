"""Wait for a condition that another process, thread or task makes true."""

import inspect
import time
from collections.abc import Callable
from typing import Any, TypeVar

import anyio

PATIENCE_SECONDS = 180
"""Guards against hanging. Generous, because waits are slow on a loaded machine."""
POLL_SECONDS = 0.01
T = TypeVar("T")


async def until(condition: Callable[[], Any]) -> None:
    """Wait until a function, which may be asynchronous, returns a true value."""
    with anyio.fail_after(PATIENCE_SECONDS):
        while not (await found if inspect.isawaitable(found := condition()) else found):
            await anyio.sleep(POLL_SECONDS)


def wait_until(condition: Callable[[], T]) -> T:
    """Like `until`, for tests without an event loop. Returns the true value."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not (found := condition()):
        assert time.monotonic() < deadline, f"waited for {PATIENCE_SECONDS} seconds"
        time.sleep(POLL_SECONDS)
    return found
