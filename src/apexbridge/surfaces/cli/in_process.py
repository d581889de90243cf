"""An httpx transport that calls the HTTP application in this process, for commands without a server.

Responses are streamed, as over a socket. httpx's own ASGI transport returns a response only when it is complete.
"""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import httpx
from starlette.types import ASGIApp, Message, Scope

LEAVING_SECONDS = 5.0
"""How long the application may take to stop after a disconnect before it is cancelled."""


class InProcess(httpx.AsyncBaseTransport):
    """Calls an ASGI application instead of a server."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Send a request and return when the response starts. Its body is streamed."""
        exchange = _Exchange(request)
        working = asyncio.ensure_future(self._app(exchange.scope, exchange.receive, exchange.send))
        working.add_done_callback(exchange.end)
        try:
            status, headers = await exchange.begun()
        except BaseException:
            await _ended(working)
            raise
        return httpx.Response(status, headers=headers, stream=_Answer(exchange, working))


class _Exchange:
    """One request to the application and its response."""

    def __init__(self, request: httpx.Request) -> None:
        url = request.url
        self.scope: Scope = {
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
        self._left = asyncio.Event()
        self._messages: asyncio.Queue[Message | None] = asyncio.Queue()

    async def receive(self) -> Message:
        """The next piece of the request. After the last one, wait for the disconnect."""
        if self._is_sent:
            await self._left.wait()
            return {"type": "http.disconnect"}
        piece = await anext(self._body, None)
        self._is_sent = piece is None
        return {"type": "http.request", "body": piece or b"", "more_body": piece is not None}

    async def send(self, message: Message) -> None:
        self._messages.put_nowait(message)

    def end(self, working: "asyncio.Future[None]") -> None:
        """Mark the end of the response. The application's exception is only retrieved: it is already logged."""
        if not working.cancelled():
            working.exception()
        self._messages.put_nowait(None)

    async def begun(self) -> tuple[int, Any]:
        """Wait for the status and the headers."""
        message = await self._messages.get()
        if message is None:
            raise httpx.RemoteProtocolError("the request was not answered")
        return message["status"], message["headers"]

    async def pieces(self) -> AsyncIterator[bytes]:
        """Yield the body of the response."""
        while (message := await self._messages.get()) is not None:
            yield message.get("body", b"")
            if not message.get("more_body", False):
                return
        raise httpx.RemoteProtocolError("the answer broke off")

    def leave(self) -> None:
        """Signal a disconnect to the application."""
        self._left.set()


class _Answer(httpx.AsyncByteStream):
    """The body of a response as a stream."""

    def __init__(self, exchange: _Exchange, working: "asyncio.Future[None]") -> None:
        self._exchange = exchange
        self._working = working

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for piece in self._exchange.pieces():
            yield piece

    async def aclose(self) -> None:
        """Signal a disconnect, and cancel the application if it does not stop in time."""
        self._exchange.leave()
        try:
            await asyncio.wait([self._working], timeout=LEAVING_SECONDS)
        finally:  # a cancelled wait must not leave the application running
            await _ended(self._working)


async def _ended(working: "asyncio.Future[None]") -> None:
    working.cancel()
    await asyncio.wait([working])
