"""Waiting for what happens in another process, in a thread or in the background."""

import inspect
import time
from collections.abc import Callable
from typing import Any, TypeVar

import anyio

PATIENCE_SECONDS = 60
"""Only guards against hanging: on a loaded machine a wait may take a good part of it."""
POLL_SECONDS = 0.01
T = TypeVar("T")


async def until(condition: Callable[[], Any]) -> None:
    """Wait until a function, which may be asynchronous, returns something true."""
    with anyio.fail_after(PATIENCE_SECONDS):
        while not (await found if inspect.isawaitable(found := condition()) else found):
            await anyio.sleep(POLL_SECONDS)


def wait_until(condition: Callable[[], T]) -> T:
    """The same for tests without an event loop; returns what was true in the end."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not (found := condition()):
        assert time.monotonic() < deadline, f"waited for {PATIENCE_SECONDS} seconds"
        time.sleep(POLL_SECONDS)
    return found
