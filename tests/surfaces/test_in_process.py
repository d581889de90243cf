"""Commands without a server talk to the application in their own process, as they would over a socket."""

import asyncio
from collections.abc import AsyncIterator

import anyio
import httpx
import pytest
from starlette.types import Receive, Scope, Send

from apexbridge.surfaces.cli.in_process import InProcess

pytestmark = pytest.mark.anyio
START = {"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/plain")]}


class App:
    """Does what a test wants."""

    def __init__(self) -> None:
        self.waits = asyncio.Event()
        self.go_on = asyncio.Event()
        self.body = b""
        self.has_left = False
        self.is_cancelled = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        while (message := await receive())["type"] == "http.request":
            self.body += message["body"]
            if not message["more_body"]:
                break
        if scope["path"] == "/never":
            return
        if scope["path"] == "/broken":
            raise RuntimeError("broken")
        await send(START)
        await send({"type": "http.response.body", "body": b"one", "more_body": True})
        if scope["path"] == "/cut":
            return
        if scope["path"] == "/listening":
            self.has_left = (await receive())["type"] == "http.disconnect"
            return
        self.waits.set()
        try:
            await self.go_on.wait()
        except asyncio.CancelledError:
            self.is_cancelled = True
            raise
        await send({"type": "http.response.body", "body": b"two"})


def client(app: App) -> httpx.AsyncClient:
    return httpx.AsyncClient(transport=InProcess(app), base_url="http://in-process")


async def test_an_answer_comes_piece_by_piece() -> None:
    app = App()
    with anyio.fail_after(60):
        async with client(app) as opened, opened.stream("GET", "/") as response:
            assert (response.status_code, response.headers["content-type"]) == (200, "text/plain")
            pieces = response.aiter_raw()
            assert await anext(pieces) == b"one"
            app.go_on.set()
            assert [piece async for piece in pieces] == [b"two"]


async def test_a_request_goes_piece_by_piece() -> None:
    async def pieces() -> AsyncIterator[bytes]:
        yield b"a"
        yield b"b"

    app = App()
    app.go_on.set()
    with anyio.fail_after(60):
        async with client(app) as opened:
            assert (await opened.post("/", content=pieces())).text == "onetwo"
    assert app.body == b"ab"


async def test_whoever_leaves_early_is_gone_for_the_application() -> None:
    app = App()
    with anyio.fail_after(60):
        async with client(app) as opened, opened.stream("GET", "/listening") as response:
            assert response.status_code == 200
    assert app.has_left


async def test_an_application_that_does_not_notice_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("apexbridge.surfaces.cli.in_process.DISCONNECT_SECONDS", 0.05)
    app = App()
    with anyio.fail_after(60):
        async with client(app) as opened, opened.stream("GET", "/") as response:
            assert response.status_code == 200
            assert not app.is_cancelled
    assert app.is_cancelled


@pytest.mark.parametrize("path", ["/never", "/broken", "/cut"])
async def test_an_answer_that_is_none_is_an_error(path: str) -> None:
    with anyio.fail_after(60):
        async with client(App()) as opened:
            with pytest.raises(httpx.RemoteProtocolError):
                await opened.get(path)


async def test_whoever_stops_waiting_ends_the_request(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("apexbridge.surfaces.cli.in_process.DISCONNECT_SECONDS", 0.05)
    app = App()
    with anyio.fail_after(60):
        async with client(app) as opened:
            waiting = asyncio.create_task(opened.get("/"))
            await app.waits.wait()
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
    assert app.is_cancelled


async def test_a_cancelled_scope_ends_the_request(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("apexbridge.surfaces.cli.in_process.DISCONNECT_SECONDS", 0.05)
    app = App()
    with anyio.fail_after(60):
        async with client(app) as opened, anyio.create_task_group() as tasks:
            tasks.start_soon(opened.get, "/")
            await app.waits.wait()
            tasks.cancel_scope.cancel()
    assert app.is_cancelled
