"""The MCP server behind `/mcp`: sessions of old clients, stateless requests of new ones."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import ExitStack, asynccontextmanager, nullcontext
from typing import Any

from mcp.server.auth.middleware.bearer_auth import AuthenticatedUser
from mcp.server.auth.provider import AccessToken
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from sse_starlette.sse import AppStatus
from starlette.types import Message, Receive, Scope, Send

from apexbridge._usage import ResourceUsage
from apexbridge.bridge import Bridge
from apexbridge.errors import RequestError
from apexbridge.surfaces.http.transport.disconnect import DISCONNECT_EXTENSION, on_disconnect
from apexbridge.surfaces.http.transport.error_responses import answer_error
from apexbridge.surfaces.http.transport.requests import caller_of
from apexbridge.surfaces.mcp.calls import CALLS
from apexbridge.surfaces.mcp.server import McpServer

MAX_SESSIONS = 1_000
IDLE_SECONDS = 30 * 60
NO_LIMIT = 1 << 62
SESSION_HEADER, VERSION_HEADER = b"mcp-session-id", b"mcp-protocol-version"
# The SDK's event streams would break off when the server begins to stop. Calls have time to end, as at other routes.
AppStatus.enable_automatic_graceful_drain = False


class McpHttpServer:
    def __init__(self, bridge: Bridge, server: McpServer | None = None) -> None:
        self._mcp = server or McpServer(bridge)
        self._stopping = asyncio.Event()
        self._manager = StreamableHTTPSessionManager(
            self._mcp.server,
            session_idle_timeout=IDLE_SECONDS,
            max_request_body_size=NO_LIMIT,  # BodyLimit has refused larger bodies already, with our error
            max_sessions=MAX_SESSIONS,
        )

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        async with self._manager.run():
            yield

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        # RFC 9110 excludes spaces around a value; the parser of the server leaves those at its end.
        scope["headers"] = [(name, value.strip()) for name, value in scope["headers"]]
        caller = caller_of(scope)
        if caller:
            # A session belongs to the key that opened it: the SDK compares this with later requests.
            scope["user"] = AuthenticatedUser(AccessToken(token="", client_id=caller, scopes=[]))
        if scope["method"] == "GET":
            await self._stream(scope, receive, send)
            return
        with ExitStack() as stack:
            if _is_opening(scope):
                try:
                    stack.enter_context(self._mcp.sessions.opening(caller, scope["state"]))
                except RequestError as error:
                    await answer_error(error, scope, receive, send)
                    return
            await self._call(scope, receive, send)

    async def usage(self, caller: str) -> Sequence[ResourceUsage]:
        return self._mcp.usage(caller, max_sessions=MAX_SESSIONS)

    def end_streams(self) -> None:
        self._stopping.set()
        self._mcp.end_streams()

    async def _stream(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve the notification stream of a session. It ends when the client leaves, or the server stops."""
        is_open = False
        stopping = asyncio.ensure_future(self._stopping.wait())

        async def watched(message: Message) -> None:
            nonlocal is_open
            is_open = message["type"] == "http.response.start" or bool(message.get("more_body", False))
            await send(message)

        async def until_stopped() -> Message:
            receiving = asyncio.ensure_future(receive())
            try:
                await asyncio.wait([receiving, stopping], return_when=asyncio.FIRST_COMPLETED)
                return receiving.result() if receiving.done() else {"type": "http.disconnect"}
            finally:
                receiving.cancel()

        try:
            await self._manager.asgi_app(scope, until_stopped, watched)
            if is_open and self._stopping.is_set():
                await send({"type": "http.response.body", "body": b""})
        finally:
            stopping.cancel()

    async def _call(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one message. If its client disconnects, the calls that it started are cancelled.

        The SDK does that for stateless requests. In a session it would let a call go on although its answer
        cannot be delivered: there is no event store from which a client could resume.
        """
        calls: set[asyncio.Task[Any]] = set()
        scope["state"][CALLS] = calls

        def cancel() -> None:
            for task in calls:
                task.cancel()

        # Only our own server reports disconnects without reading the request.
        is_reported = DISCONNECT_EXTENSION in scope.get("extensions", {})
        with on_disconnect(scope, receive, cancel) if is_reported else nullcontext():
            await self._manager.asgi_app(scope, receive, send)


def _is_opening(scope: Scope) -> bool:
    """Whether a request opens a session. New clients name their revision and have no sessions."""
    headers = dict(scope["headers"])
    version = headers.get(VERSION_HEADER, b"").decode("latin-1")
    return scope["method"] == "POST" and SESSION_HEADER not in headers and version not in MODERN_PROTOCOL_VERSIONS
