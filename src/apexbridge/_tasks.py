"""asyncio helpers: complete work despite cancellation, and wait for an event with a timeout."""

import asyncio
from collections.abc import Awaitable
from contextlib import suppress
from typing import TypeVar

import anyio

T = TypeVar("T")


async def run_to_completion(work: Awaitable[T]) -> T:
    """Run `work` in its own task until it is done. A cancellation in the meantime is raised afterwards.

    For work that must not be abandoned halfway. A thread, for example, cannot be cancelled: it would go on to rename
    folders that the cancelled caller is already removing.
    """
    task = asyncio.ensure_future(work)
    cancelled: asyncio.CancelledError | None = None
    # anyio cancels again on every turn of the event loop, so it needs its own shield. That shield does not protect
    # against Task.cancel, hence the loop.
    with anyio.CancelScope(shield=True):
        while not task.done():
            try:
                await asyncio.wait([task])
            except asyncio.CancelledError as error:
                cancelled = error
    if cancelled is not None:
        if not task.cancelled():
            task.exception()  # retrieved, so that asyncio does not log it as unhandled
        raise cancelled
    return task.result()


async def wait_up_to(seconds: float, event: asyncio.Event) -> None:
    """Return when the event is set or the time is up."""
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()
