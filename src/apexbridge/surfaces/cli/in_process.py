"""An httpx transport that calls the HTTP application in this process, for commands without a server.

Responses are streamed, as over a socket. httpx's own ASGI transport returns a response only when it is complete.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import httpx
from starlette.types import ASGIApp, Message, Scope

from apexbridge.bridge import Bridge
from apexbridge.settings import Settings
from apexbridge.surfaces.cli.console import Console
from apexbridge.surfaces.http.app import create_app

DISCONNECT_SECONDS = 5.0
"""How long the application may take to stop after a disconnect before it is cancelled."""


@asynccontextmanager
async def in_process_client(settings: Settings, *, timeout: httpx.Timeout) -> AsyncIterator[httpx.AsyncClient]:
    """Open the data directory and yield a client of its HTTP application."""
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
        transport = InProcess(create_app(bridge))
        async with httpx.AsyncClient(transport=transport, base_url="http://in-process", timeout=timeout) as client:
            yield client


class InProcess(httpx.AsyncBaseTransport):
    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        exchange = _Exchange(self._app, request)
        try:
            start = await exchange.messages.get()
            if start is None:
                raise httpx.RemoteProtocolError("the request was not answered")
        except BaseException:
            await exchange.cancel()
            raise
        return httpx.Response(start["status"], headers=start["headers"], stream=exchange)


class _Exchange(httpx.AsyncByteStream):
    """One request to the application. As a stream it is the body of the response."""

    def __init__(self, app: ASGIApp, request: httpx.Request) -> None:
        url = request.url
        scope: Scope = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": request.method,
            "headers": [(name.lower(), value) for name, value in request.headers.raw],
            "scheme": url.scheme,
            "path": url.path,
            "raw_path": url.raw_path.partition(b"?")[0],
            "query_string": url.query,
            "server": (url.host, url.port),
            "client": None,
            "root_path": "",
        }
        assert isinstance(request.stream, httpx.AsyncByteStream)  # noqa: S101  # AsyncClient has async streams
        self._body = aiter(request.stream)
        self._is_sent = False
        self._disconnected = asyncio.Event()
        self.messages: asyncio.Queue[Message | None] = asyncio.Queue()
        """What the application sent; None is the end."""
        self._task = asyncio.ensure_future(app(scope, self._receive, self.messages.put))
        self._task.add_done_callback(self._end)

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while (message := await self.messages.get()) is not None:
            yield message.get("body", b"")
            if not message.get("more_body", False):
                return
        raise httpx.RemoteProtocolError("the answer broke off")

    async def aclose(self) -> None:
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
