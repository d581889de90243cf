"""HTTP servers for tests: one of the SDK, which speaks the newest revision, and one that breaks rules."""

import asyncio
import gzip
import json
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from typing import Any

import uvicorn
from mcp.server.mcpserver import MCPServer
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp

from apexbridge.surfaces.http.serve import bind

TOKEN = "sesame-open-4711"


class ModernServer:
    """A server of the SDK behind a token. It counts the calls that were cancelled."""

    def __init__(self) -> None:
        self.server = MCPServer("modern")
        self.waiting = 0
        self.cancelled = 0
        self.is_open = True
        self.server.add_tool(self._add, name="add", description="Adds two numbers.")
        self.server.add_tool(self._wait, name="wait", description="Waits for a long time.")

    async def _add(self, a: int, b: int) -> int:
        if a == 1000:
            self.server.add_tool(self._add, name=f"add-{b}", description="Adds two numbers again.")
        return a + b

    async def _wait(self) -> str:
        self.waiting += 1
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        return ""

    def app(self) -> ASGIApp:
        inner = self.server.streamable_http_app()

        async def guarded(scope: Any, receive: Any, send: Any) -> None:
            headers = dict(scope.get("headers", ()))
            if scope["type"] == "http" and (
                not self.is_open or headers.get(b"authorization") != f"Bearer {TOKEN}".encode()
            ):
                await PlainTextResponse(f"no: {TOKEN}", 401)(scope, receive, send)
                return
            await inner(scope, receive, send)

        return guarded


async def _hostile(request: Request) -> Response:
    body = json.loads(await request.body() or b"{}")
    id = body.get("id")
    match request.path_params["kind"]:
        case "huge":
            return Response(b'{"x": "' + b"x" * 20_000_000 + b'"}', media_type="application/json")
        case "html":
            return Response("<html>", media_type="text/html")
        case "nonsense":
            return Response('{"jsonrpc": "2.0"', media_type="application/json")
        case "deep":
            return Response(b"[" * 100_000, media_type="application/json")
        case "redirect":
            return RedirectResponse("http://169.254.169.254/mcp", 307)
        case "bomb":
            packed = gzip.compress(b" " * 50_000_000)
            return Response(packed, media_type="application/json", headers={"content-encoding": "gzip"})
        case "endless":

            async def events() -> AsyncIterator[bytes]:
                while not await request.is_disconnected():
                    yield b"data: " + b"x" * 65_536
                    await asyncio.sleep(0)  # uvicorn does not wait for a client that has disconnected

            return StreamingResponse(events(), media_type="text/event-stream")
        case "wrong-id":
            answer = {"jsonrpc": "2.0", "id": "other", "result": {}}
            return Response(json.dumps(answer), media_type="application/json")
        case "error":
            error = {"code": -32603, "message": "x" * 100_000 + TOKEN}
            answer = {"jsonrpc": "2.0", "id": id, "error": error}
            return Response(json.dumps(answer), media_type="application/json")
    await asyncio.Event().wait()
    raise AssertionError


def hostile_app() -> ASGIApp:
    return Starlette(routes=[Route("/{kind}", _hostile, methods=["GET", "POST", "DELETE"])])


@contextmanager
def served(app: ASGIApp) -> Iterator[str]:
    """Serve an application on a free port of the loopback; yields its address."""
    listener = bind("127.0.0.1", 0)
    config = uvicorn.Config(app, log_config=None, access_log=False, timeout_graceful_shutdown=1)
    server = uvicorn.Server(config)
    thread = threading.Thread(target=lambda: asyncio.run(server.serve(sockets=[listener])), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(60)
