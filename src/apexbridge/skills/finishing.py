"""Work that is finished once it has begun, whoever gives up waiting for it."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

import anyio

T = TypeVar("T")


async def finish(work: Coroutine[Any, Any, T]) -> T:
    """Run this to its end in a task of its own; a cancellation is heard, and passed on only then.

    A shield of anyio's does not hold against `asyncio.timeout` or `Task.cancel`, and a thread goes on in any case: it
    would rename folders that the one who was cancelled is clearing away.
    """
    task = asyncio.ensure_future(work)
    cancelled: asyncio.CancelledError | None = None
    with anyio.CancelScope(shield=True):
        while not task.done():
            try:
                await asyncio.wait([task])
            except asyncio.CancelledError as error:
                cancelled = error
    if cancelled is not None:
        if not task.cancelled():
            task.exception()  # looked at, so that nobody complains that it never was
        raise cancelled
    return task.result()
