"""Stops work for a client that disconnects."""

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from fastapi import Request
from starlette.requests import ClientDisconnect
from starlette.types import Receive, Scope

T = TypeVar("T")
LEAVING = "apexbridge.leaving"
"""An ASGI extension. Its key `stop` has the set of callbacks for the loss of the connection."""


@contextmanager
def when_left(scope: Scope, receive: Receive, stop: Callable[[], None]) -> Iterator[None]:
    """Call `stop` if the client disconnects within the block. The request must have been read completely.

    LimitedProtocol reports disconnects through the extension. Other servers need a listening task, which costs more
    than a short response.
    """
    connection = scope.get("extensions", {}).get(LEAVING)
    if connection is not None:
        connection["stop"].add(stop)
        try:
            yield
        finally:
            connection["stop"].discard(stop)
        return
    listening = asyncio.ensure_future(_left(receive))
    listening.add_done_callback(lambda task: None if task.cancelled() else stop())
    try:
        yield
    finally:
        listening.cancel()


async def unless_left(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine for a client and return its result.

    Raises:
        ClientDisconnect: the client disconnected first, and the coroutine was cancelled.
    """
    working = asyncio.ensure_future(work)
    leaving = asyncio.ensure_future(_left(request.receive))
    try:
        await asyncio.wait([working, leaving], return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise ClientDisconnect
        return working.result()
    finally:
        leaving.cancel()
        if not working.done():
            working.cancel()
            await asyncio.wait([working])


async def _left(receive: Receive) -> None:
    """Return when the client has disconnected."""
    while (await receive())["type"] != "http.disconnect":
        pass
