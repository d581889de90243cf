"""Facts about a request: its id, its caller, and whether its client is still connected."""

import asyncio
import secrets
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from fastapi import Request
from starlette.requests import ClientDisconnect
from starlette.types import Receive, Scope

T = TypeVar("T")
MAX_REQUEST_ID = 128
DISCONNECT_EXTENSION = "apexbridge.disconnect"
"""An ASGI extension. Its key `callbacks` has the set of functions to call on the loss of the connection."""


def fresh_id(prefix: str) -> str:
    return f"{prefix}{secrets.token_hex(16)}"


def request_id(scope: Scope) -> str:
    """The client's `X-Request-Id` if it is valid, else a new one."""
    return client_request_id(scope) or fresh_id("req_")


def client_request_id(scope: Scope) -> str:
    """The client's `X-Request-Id`; empty if it is missing or not safe to write to a log."""
    id = next((value.decode("latin-1") for name, value in scope["headers"] if name == b"x-request-id"), "")
    return id if len(id) <= MAX_REQUEST_ID and id.isascii() and id.isprintable() else ""


def caller_of(scope: Scope) -> str:
    """The id of the request's API key; empty if it was admitted without one."""
    return str(scope.get("state", {}).get("caller", ""))


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
    """Run a coroutine for a client. If the client disconnects first, cancel it and raise ClientDisconnect."""
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
