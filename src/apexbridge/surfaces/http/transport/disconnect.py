"""Cancels the work for a request when its client disconnects."""

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from fastapi import Request
from starlette.requests import ClientDisconnect
from starlette.types import Receive, Scope

T = TypeVar("T")
DISCONNECT_EXTENSION = "apexbridge.disconnect"
"""An ASGI extension. Its key `callbacks` has the set of functions to call on the loss of the connection."""


@contextmanager
def on_disconnect(scope: Scope, receive: Receive, stop: Callable[[], None]) -> Iterator[None]:
    """Call `stop` if the client disconnects within the block. The request must have been read completely.

    LimitedProtocol reports disconnects through the extension. Other servers need a listening task, which costs more
    than a short response.
    """
    extension = scope.get("extensions", {}).get(DISCONNECT_EXTENSION)
    if extension is not None:
        callbacks = extension["callbacks"]
        callbacks.add(stop)
        try:
            yield
        finally:
            callbacks.discard(stop)
        return
    listening = asyncio.ensure_future(_wait_for_disconnect(receive))
    listening.add_done_callback(lambda task: None if task.cancelled() else stop())
    try:
        yield
    finally:
        listening.cancel()


async def run_while_connected(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine for a client. If the client disconnects first, cancel it and raise ClientDisconnect.

    It listens in a task, which is simpler than `on_disconnect` and cheap beside the runs that it is used for.
    """
    task = asyncio.ensure_future(work)
    disconnect = asyncio.ensure_future(_wait_for_disconnect(request.receive))
    try:
        await asyncio.wait([task, disconnect], return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ClientDisconnect
        return task.result()
    finally:
        disconnect.cancel()
        if not task.done():
            task.cancel()
            await asyncio.wait([task])


async def _wait_for_disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
