"""A client that goes away takes what is done for it along."""

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from fastapi import Request
from starlette.requests import ClientDisconnect
from starlette.types import Receive, Scope

T = TypeVar("T")
LEAVING = "apexbridge.leaving"
"""An extension of ASGI: under `stop`, the set of those who want to be called when the connection is lost."""


@contextmanager
def when_left(scope: Scope, receive: Receive, stop: Callable[[], None]) -> Iterator[None]:
    """Have something called when the client goes; its request was read before, so nothing else can come from it.

    Our own connections tell it by themselves. Elsewhere a task listens, which costs more than a short answer does.
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
    """Do something for a client; where it leaves before the end, stop."""
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
    """Comes back when the client has gone."""
    while (await receive())["type"] != "http.disconnect":
        pass
