"""Answers a long request with server-sent events: its progress, then its result or its error."""

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping
from contextlib import AsyncExitStack
from typing import Any

from fastapi import Request
from fastapi.responses import StreamingResponse

from apexbridge.errors import ApexBridgeError, ServerError
from apexbridge.skills.package.progress import Phase, listening
from apexbridge.surfaces.http.transport.error_responses import error_body
from apexbridge.wire import WireModel

STEP_BYTES = 512 * 1024
"""Downloads report no smaller steps."""
MAX_LINE_CHARACTERS = 4_000
MAX_WAITING_EVENTS = 1_000
"""For a slow reader. Further steps are dropped; the result is not."""
QUIET_SECONDS = 10.0
"""After this time without an event, a comment is sent."""
_HEADERS = {"Cache-Control": "no-store", "X-Accel-Buffering": "no", "X-Content-Type-Options": "nosniff"}
logger = logging.getLogger(__name__)
Send = Callable[[Mapping[str, Any]], None]
"""Sends a step. From any thread."""


def asks_for_events(request: Request) -> bool:
    return "text/event-stream" in request.headers.get("accept", "").lower()


def progress_stream(
    request: Request,
    work: Coroutine[Any, Any, WireModel],
    resources: AsyncExitStack,
    record: Callable[[int], Awaitable[None]],
) -> StreamingResponse:
    """Run `work` while the client is connected, then close `resources`.

    `record` is awaited with the status before the result is sent. The body of the request must have been read.
    """

    def start(send: Send) -> "asyncio.Task[WireModel]":
        last: tuple[Phase, int | None] | None = None

        def listen(phase: Phase, size: int | None) -> None:
            nonlocal last
            if last and last[0] == phase and (size or 0) - (last[1] or 0) < STEP_BYTES:
                return
            last = phase, size
            send({"phase": phase, "bytes": size, "total": None})

        with listening(listen):
            return asyncio.create_task(work)

    return _response(_events(request, start, resources, record))


def line_stream(
    request: Request,
    work: Callable[[Callable[[str], None]], Coroutine[Any, Any, WireModel]],
    record: Callable[[int], Awaitable[None]],
) -> StreamingResponse:
    """Run `work` while the client is connected. It gets a function for each line of its progress."""

    def start(send: Send) -> "asyncio.Task[WireModel]":
        return asyncio.create_task(work(lambda line: send({"line": line[:MAX_LINE_CHARACTERS]})))

    return _response(_events(request, start, AsyncExitStack(), record))


def _response(events: AsyncIterator[bytes]) -> StreamingResponse:
    return StreamingResponse(events, media_type="text/event-stream", headers=_HEADERS)


async def _events(
    request: Request,
    start: Callable[[Send], "asyncio.Task[WireModel]"],
    resources: AsyncExitStack,
    record: Callable[[int], Awaitable[None]],
) -> AsyncIterator[bytes]:
    loop, queue = asyncio.get_running_loop(), asyncio.Queue[bytes | None]()

    def put(event: bytes) -> None:
        if queue.qsize() < MAX_WAITING_EVENTS:
            queue.put_nowait(event)

    def send(data: Mapping[str, Any]) -> None:
        loop.call_soon_threadsafe(put, _event("progress", json.dumps(data).encode()))

    async with resources:
        task = start(send)
        task.add_done_callback(lambda _: queue.put_nowait(None))
        try:
            while (event := await _next(queue)) is not None:
                yield event
            name, data, status = _outcome(request, task)
            await record(status)
            yield _event(name, data)
        finally:
            if not task.done():
                task.cancel()
                await asyncio.wait([task])


async def _next(queue: "asyncio.Queue[bytes | None]") -> bytes | None:
    try:
        return await asyncio.wait_for(queue.get(), QUIET_SECONDS)
    except TimeoutError:
        return b": keep-alive\n\n"


def _outcome(request: Request, task: "asyncio.Task[WireModel]") -> tuple[str, bytes, int]:
    error = task.exception()
    if error is None:
        return "result", task.result().model_dump_json().encode("utf-8", "replace"), 200
    if not isinstance(error, ApexBridgeError):
        logger.error("%s %s failed", request.method, request.url.path, exc_info=error)
        error = ServerError("Internal error; the server's log has the details.")
    return "error", error_body(error, request.url.path), error.status


def _event(name: str, data: bytes) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (name.encode(), data)
