"""`/mcp`: streamable HTTP. Keys, scopes, rate limits, Host and Origin are checked before, as for every route."""

import asyncio
import importlib
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from starlette.types import ASGIApp, Receive, Scope, Send

from apexbridge._tasks import start_shared
from apexbridge._usage import ResourceUsage
from apexbridge.bridge import Bridge
from apexbridge.errors import ServerError
from apexbridge.surfaces.http.transport.error_responses import MCP_PATHS, answer_error
from apexbridge.surfaces.mcp.extra import is_installed, not_installed

if TYPE_CHECKING:
    from apexbridge.surfaces.mcp.http_server import McpHttpServer

Build = Callable[[Bridge], "McpHttpServer"]
logger = logging.getLogger(__name__)


class McpEndpoint:
    """Answers requests to `/mcp`. The package `mcp` is imported, and the server built, by the first of them."""

    def __init__(self, bridge: Bridge, build: Build | None = None) -> None:
        self._bridge = bridge
        self._build = build
        self._starting = asyncio.Lock()
        self._server: McpHttpServer | None = None
        self._task: asyncio.Task[None] | None = None
        self._stop = asyncio.Event()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """End all sessions at the end of the block."""
        try:
            yield
        finally:
            self._stop.set()
            if self._task is not None:
                await asyncio.wait([self._task])

    def end_streams(self) -> None:
        """End the streams that only wait for notifications. The server calls it when it begins to stop."""
        if self._server is not None:
            self._server.end_streams()

    async def usage(self, caller: str) -> Sequence[ResourceUsage]:
        """Sessions and subscriptions of a caller; none before the first request."""
        return await self._server.usage(caller) if self._server is not None else ()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            server = self._server or await self._start()
        except ServerError as error:
            await answer_error(error, scope, receive, send)
            return
        await server.handle(scope, receive, send)

    async def _start(self) -> "McpHttpServer":
        async with self._starting:
            if self._server is not None:
                return self._server
            if not is_installed():
                raise not_installed()
            if self._stop.is_set():
                raise ServerError("The server is shutting down.", code="NOT_READY")
            module = await asyncio.to_thread(importlib.import_module, "apexbridge.surfaces.mcp.http_server")
            build: Build = self._build or module.McpHttpServer
            server = build(self._bridge)
            started: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._task = start_shared(self._run(server, started))
            await started
            self._server = server
            return server

    async def _run(self, server: "McpHttpServer", started: "asyncio.Future[None]") -> None:
        """Own the sessions: their task group must be entered and left by the same task."""
        try:
            async with server.running():
                started.set_result(None)
                await self._stop.wait()
        except Exception as error:
            if not started.done():
                started.set_exception(error)
            logger.exception("the MCP server ended; the next request starts another one")
        finally:
            self._server = None


class McpDispatch:
    """Passes MCP requests by the router and FastAPI's own middleware, which would cost as much as a short call."""

    def __init__(self, app: ASGIApp, *, endpoint: McpEndpoint) -> None:
        self._app = app
        self._endpoint = endpoint

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        is_mcp = scope["type"] == "http" and scope["path"] in MCP_PATHS
        await (self._endpoint if is_mcp else self._app)(scope, receive, send)
