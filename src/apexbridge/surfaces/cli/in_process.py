"""A transport that calls the HTTP application in this process, for commands without a server.

Responses are streamed, as over a socket.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from urllib.parse import unquote

from starlette.types import ASGIApp, Message, Scope

from apexbridge.bridge import Bridge
from apexbridge.settings import Settings
from apexbridge.surfaces.cli.console import Console
from apexbridge.surfaces.cli.transport import Request, Response, TransportError
from apexbridge.surfaces.http.app import create_app

DISCONNECT_SECONDS = 5.0
"""How long the application may take to stop after a disconnect before it is cancelled."""


@asynccontextmanager
async def in_process_server(settings: Settings) -> AsyncIterator["InProcess"]:
    """Open the data directory and yield a transport to its HTTP application."""
    console = Console()
    # Preforked sandboxes would be useless: this process ends before a second run.
    settings = settings.model_copy(update={"sandbox_warm": 0})
    async with AsyncExitStack() as stack:
        index_progress = stack.enter_context(console.progress_bar("indexing skills"))
        with console.progress_bar("reading skills") as progress:
            bridge = await stack.enter_async_context(
                Bridge.open(
                    settings, watch=False, indexing="on-demand", progress=progress, index_progress=index_progress
                )
            )
        yield InProcess(create_app(bridge))


class InProcess:
    address = "http://in-process"

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    @asynccontextmanager
    async def send(self, request: Request) -> AsyncIterator[Response]:
        exchange = _Exchange(self._app, request)
        try:
            start = await exchange.messages.get()
            if start is None:
                raise TransportError("the request was not answered")
        except BaseException:
            await exchange.cancel()
            raise
        headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in start["headers"]}
        try:
            yield Response(status=start["status"], headers=headers, chunks=exchange.chunks())
        finally:
            await exchange.close()


class _Exchange:
    """One request to the application."""

    def __init__(self, app: ASGIApp, request: Request) -> None:
        path, _, query = request.target.partition("?")
        headers = {"host": "in-process", **request.headers}
        scope: Scope = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": request.method,
            "headers": [(name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in headers.items()],
            "scheme": "http",
            "path": unquote(path),
            "raw_path": path.encode("ascii"),
            "query_string": query.encode("ascii"),
            "server": ("in-process", 80),
            "client": None,
            "root_path": "",
        }
        self._body = _body_chunks(request.body)
        self._is_sent = False
        self._disconnected = asyncio.Event()
        self.messages: asyncio.Queue[Message | None] = asyncio.Queue()
        """What the application sent; None is the end."""
        self._task = asyncio.ensure_future(app(scope, self._receive, self.messages.put))
        self._task.add_done_callback(self._end)

    async def chunks(self) -> AsyncIterator[bytes]:
        while (message := await self.messages.get()) is not None:
            yield message.get("body", b"")
            if not message.get("more_body", False):
                return
        raise TransportError("the answer broke off")

    async def close(self) -> None:
        """Signal a disconnect, and cancel the application if it does not stop in time."""
        self._disconnected.set()
        try:
            await asyncio.wait([self._task], timeout=DISCONNECT_SECONDS)
        finally:  # a cancelled wait must not leave the application running
            await self.cancel()

    async def cancel(self) -> None:
        self._task.cancel()
        await asyncio.wait([self._task])

    async def _receive(self) -> Message:
        """The next chunk of the request. After the last one, wait for the disconnect."""
        if self._is_sent:
            await self._disconnected.wait()
            return {"type": "http.disconnect"}
        chunk = await anext(self._body, None)
        self._is_sent = chunk is None
        return {"type": "http.request", "body": chunk or b"", "more_body": chunk is not None}

    def _end(self, task: "asyncio.Future[None]") -> None:
        """Mark the end of the response. The application's exception is only retrieved: it is already logged."""
        if not task.cancelled():
            task.exception()
        self.messages.put_nowait(None)


async def _body_chunks(body: bytes | AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    if isinstance(body, bytes):
        if body:
            yield body
        return
    async for chunk in body:
        yield chunk
