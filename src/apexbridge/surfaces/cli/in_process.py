"""The HTTP application in this very process, for commands without a server.

Answers come piece by piece, as over a socket; httpx's own transport hands over the whole when everything is done.
"""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import httpx
from starlette.types import ASGIApp, Message, Scope

LEAVING_SECONDS = 5.0
"""What an application has to end by itself what it does for a client that left."""


class InProcess(httpx.AsyncBaseTransport):
    """Calls an application instead of a server."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """One request; its answer may go on after this."""
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
    """What goes to the application, and what comes back."""

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
        assert isinstance(request.stream, httpx.AsyncByteStream)  # noqa: S101  # an asynchronous client has no other
        self._body = aiter(request.stream)
        self._is_sent = False
        self._left = asyncio.Event()
        self._messages: asyncio.Queue[Message | None] = asyncio.Queue()

    async def receive(self) -> Message:
        """The next piece of the request; after the last one, that the client left, when it does."""
        if self._is_sent:
            await self._left.wait()
            return {"type": "http.disconnect"}
        piece = await anext(self._body, None)
        self._is_sent = piece is None
        return {"type": "http.request", "body": piece or b"", "more_body": piece is not None}

    async def send(self, message: Message) -> None:
        """A part of the answer."""
        self._messages.put_nowait(message)

    def end(self, working: "asyncio.Future[None]") -> None:
        """The application is done, whether it said so or not; what it failed with is in the log."""
        if not working.cancelled():
            working.exception()
        self._messages.put_nowait(None)

    async def begun(self) -> tuple[int, Any]:
        """Status and headers."""
        message = await self._messages.get()
        if message is None:
            raise httpx.RemoteProtocolError("the request was not answered")
        return message["status"], message["headers"]

    async def pieces(self) -> AsyncIterator[bytes]:
        """The body of the answer."""
        while (message := await self._messages.get()) is not None:
            yield message.get("body", b"")
            if not message.get("more_body", False):
                return
        raise httpx.RemoteProtocolError("the answer broke off")

    def leave(self) -> None:
        """Nobody reads on."""
        self._left.set()


class _Answer(httpx.AsyncByteStream):
    """The body of an answer, as it comes."""

    def __init__(self, exchange: _Exchange, working: "asyncio.Future[None]") -> None:
        self._exchange = exchange
        self._working = working

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for piece in self._exchange.pieces():
            yield piece

    async def aclose(self) -> None:
        """Whoever closes early has left, and what is done for it ends."""
        self._exchange.leave()
        try:
            await asyncio.wait([self._working], timeout=LEAVING_SECONDS)
        finally:  # a cancelled wait must not leave the application running
            await _ended(self._working)


async def _ended(working: "asyncio.Future[None]") -> None:
    working.cancel()
    await asyncio.wait([working])
