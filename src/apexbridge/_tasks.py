"""asyncio helpers: blocking code in threads, complete work despite cancellation, wait for an event with a timeout."""

import asyncio
import contextvars
import functools
import os
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any, ParamSpec, TypeVar

import anyio

MAX_THREADS = 40
P = ParamSpec("P")
T = TypeVar("T")
_threads: ThreadPoolExecutor


def _start_pool() -> None:
    global _threads
    _threads = ThreadPoolExecutor(MAX_THREADS, thread_name_prefix="apexbridge")


_start_pool()
os.register_at_fork(after_in_child=_start_pool)  # a forked child has none of the threads, and the pool would not notice


async def in_thread(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Call blocking code in a thread. A cancelled caller waits for the thread, which cannot be interrupted.

    asyncio's own pool has `cpu_count + 4` threads, too few for slow disks on small machines.
    """
    call = functools.partial(contextvars.copy_context().run, function, *args, **kwargs)
    return await run_to_completion(asyncio.get_running_loop().run_in_executor(_threads, call))


async def run_to_completion(work: Awaitable[T]) -> T:
    """Run `work` in its own task until it is done. A cancellation in the meantime is raised afterwards.

    For work that must not be abandoned halfway. A thread, for example, cannot be cancelled: it would go on to rename
    folders that the cancelled caller is already removing.
    """
    task = asyncio.ensure_future(work)
    cancelled: asyncio.CancelledError | None = None
    # Starlette's task groups are anyio's, which cancel again on every turn of the event loop. That needs anyio's own
    # shield, which in turn does not protect against Task.cancel, hence the loop.
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


def start_shared(work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
    """Start work that serves several requests. It does not inherit the context of the one that happens to start it."""
    return asyncio.get_running_loop().create_task(work, context=contextvars.Context())


async def wait_up_to(seconds: float, event: asyncio.Event) -> None:
    """Return when the event is set or the time is up."""
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()
