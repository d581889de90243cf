"""Commands without a server call the application in their own process, with the behaviour of a socket."""

import asyncio
from collections.abc import AsyncIterator

import anyio
import pytest
from starlette.types import Receive, Scope, Send

from apexbridge.surfaces.cli.in_process import InProcess
from apexbridge.surfaces.cli.transport import Request, TransportError

pytestmark = pytest.mark.anyio
START = {"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/plain")]}


class App:
    """An application whose behaviour depends on the path."""

    def __init__(self) -> None:
        self.is_waiting = asyncio.Event()
        self.may_continue = asyncio.Event()
        self.body = b""
        self.saw_disconnect = False
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
            self.saw_disconnect = (await receive())["type"] == "http.disconnect"
            return
        self.is_waiting.set()
        try:
            await self.may_continue.wait()
        except asyncio.CancelledError:
            self.is_cancelled = True
            raise
        await send({"type": "http.response.body", "body": b"two"})


async def whole(app: App, path: str, method: str = "GET", body: bytes | AsyncIterator[bytes] = b"") -> bytes:
    async with InProcess(app).send(Request(method=method, target=path, body=body)) as response:
        return b"".join([chunk async for chunk in response.chunks])


async def test_a_response_is_streamed() -> None:
    app = App()
    with anyio.fail_after(60):
        async with InProcess(app).send(Request(method="GET", target="/")) as response:
            assert (response.status, response.headers["content-type"]) == (200, "text/plain")
            assert await anext(response.chunks) == b"one"
            app.may_continue.set()
            assert [chunk async for chunk in response.chunks] == [b"two"]


async def test_a_request_body_is_streamed() -> None:
    async def chunks() -> AsyncIterator[bytes]:
        yield b"a"
        yield b"b"

    app = App()
    app.may_continue.set()
    with anyio.fail_after(60):
        assert await whole(app, "/", "POST", chunks()) == b"onetwo"
    assert app.body == b"ab"


async def test_the_application_sees_an_early_disconnect() -> None:
    app = App()
    with anyio.fail_after(60):
        async with InProcess(app).send(Request(method="GET", target="/listening")) as response:
            assert response.status == 200
    assert app.saw_disconnect


async def test_an_application_that_ignores_a_disconnect_is_cancelled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("apexbridge.surfaces.cli.in_process.DISCONNECT_SECONDS", 0.05)
    app = App()
    with anyio.fail_after(60):
        async with InProcess(app).send(Request(method="GET", target="/")) as response:
            assert response.status == 200
            assert not app.is_cancelled
    assert app.is_cancelled


@pytest.mark.parametrize("path", ["/never", "/broken", "/cut"])
async def test_a_missing_or_incomplete_response_is_an_error(path: str) -> None:
    with anyio.fail_after(60), pytest.raises(TransportError):
        await whole(App(), path)


async def test_a_cancelled_task_cancels_the_request(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("apexbridge.surfaces.cli.in_process.DISCONNECT_SECONDS", 0.05)
    app = App()
    with anyio.fail_after(60):
        waiting = asyncio.create_task(whole(app, "/"))
        await app.is_waiting.wait()
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
    assert app.is_cancelled


async def test_a_cancelled_scope_cancels_the_request(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("apexbridge.surfaces.cli.in_process.DISCONNECT_SECONDS", 0.05)
    app = App()
    with anyio.fail_after(60):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(whole, app, "/")
            await app.is_waiting.wait()
            tasks.cancel_scope.cancel()
    assert app.is_cancelled
