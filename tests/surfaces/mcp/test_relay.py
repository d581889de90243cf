"""The relay between stdio and `/mcp`, in this process: lines in, lines out."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from apexbridge.errors import ServerError
from apexbridge.surfaces.cli.transport import HttpTransport, Request, Response, Transport, TransportError
from apexbridge.surfaces.mcp import relay as relaying
from apexbridge.surfaces.mcp.relay import LongLine, Relay
from tests.chat.live import Live
from tests.surfaces.mcp.conftest import new_key
from tests.surfaces.mcp.test_stdio import initialize, request
from tests.waiting import until

pytestmark = pytest.mark.anyio
INITIALIZED = {"jsonrpc": "2.0", "method": "notifications/initialized"}


class Servers:
    """Finds one of several servers; a lost one is replaced by the next."""

    def __init__(self, *transports: Transport) -> None:
        self._transports = list(transports)

    async def transport(self) -> Transport:
        if not self._transports:
            raise ServerError("There is no server", code="NOT_READY")
        return self._transports[0]

    def lost(self, transport: Transport) -> None:
        if len(self._transports) > 1:
            self._transports.remove(transport)


class Pipe:
    def __init__(self) -> None:
        self.input: asyncio.Queue[bytes | LongLine] = asyncio.Queue()
        self.output: asyncio.Queue[dict[str, Any]] = asyncio.Queue()

    async def lines(self) -> AsyncIterator[bytes | LongLine]:
        while True:
            yield await self.input.get()

    async def write(self, line: bytes) -> None:
        assert line.endswith(b"\n")
        assert line.count(b"\n") == 1
        self.output.put_nowait(json.loads(line))

    def send(self, message: Any) -> None:
        self.input.put_nowait(message if isinstance(message, bytes | LongLine) else json.dumps(message).encode())

    async def ask(self, message: Any) -> dict[str, Any]:
        self.send(message)
        async with asyncio.timeout(60):
            return await self.output.get()


@asynccontextmanager
async def relayed(*transports: Transport) -> AsyncIterator[Pipe]:
    pipe = Pipe()
    relay = Relay(Servers(*transports), pipe.write)
    running = asyncio.ensure_future(relay.run(pipe.lines()))
    try:
        yield pipe
    finally:
        running.cancel()
        await relay.close()
        assert not relay.is_busy


class Broken:
    """A server that breaks off each answer, after the request has reached it."""

    address = "http://broken"

    @asynccontextmanager
    async def send(self, request: Request) -> AsyncIterator[Response]:
        async def chunks() -> AsyncIterator[bytes]:
            yield b": ping\n\n"
            raise TransportError("the connection broke")

        yield Response(status=200, headers={"content-type": "text/event-stream"}, chunks=chunks())


class Page:
    """A server that answers everything with a page."""

    address = "http://page"

    def __init__(self, kind: str) -> None:
        self._kind = kind

    @asynccontextmanager
    async def send(self, request: Request) -> AsyncIterator[Response]:
        async def chunks() -> AsyncIterator[bytes]:
            yield b"data: <html>\ndata: </html>\n\n"

        yield Response(status=200, headers={"content-type": self._kind}, chunks=chunks())


async def test_requests_of_both_eras_are_relayed_at_the_same_time(served: Live) -> None:
    async with relayed(HttpTransport(served.url)) as pipe:
        assert "capabilities" in (await pipe.ask(initialize()))["result"]
        pipe.send(INITIALIZED)
        pipe.send({"jsonrpc": "2.0", "id": "old", "method": "tools/list"})
        pipe.send(request("tools/list", id="new"))
        answers = {(await pipe.output.get())["id"] for _ in range(2)}
        assert answers == {"old", "new"}


async def test_every_bad_line_gets_one_answer(served: Live) -> None:
    async with relayed(HttpTransport(served.url)) as pipe:
        for line, code in (
            (LongLine(b"", b""), -32600),
            (b"nonsense", -32700),
            (b"[" * 100_000, -32600),
            (b"[]", -32600),
            ({"jsonrpc": "2.0", "id": True, "method": "tools/list"}, -32600),
            ({"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": "text"}, -32600),
            ({"jsonrpc": "2.0", "result": {}}, -32600),
            (request("no/such"), -32601),
            (request("tools/call", name=" no such "), -32602),
            (request("tools/call", name="=?base64?eA==?="), -32602),
        ):
            assert (await pipe.ask(line))["error"]["code"] == code, line
        # These need no answer: the next one belongs to the request after them.
        pipe.send(b"  ")
        pipe.send({"jsonrpc": "2.0", "id": 99, "result": {}})
        pipe.send({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 12345}})
        assert (await pipe.ask(request("prompts/list", id=7)))["id"] == 7


@pytest.mark.parametrize(
    ("first", "last", "id"),
    [
        (b'{"jsonrpc":"2.0","id":5,"method":"tools/call","params":{"id":6,', b'"id": 7}}', 5),
        (b'{"method": "tools/call", "params": {"id": 6,', b'}}, "jsonrpc": "2.0", "id": "a-5"}\r', "a-5"),
        (b'{"method": "tools/call", "params": {"id": 6,', b'"id": 7}}', None),
        (b'{"jsonrpc":"2.0","id":5,"result":{', b"}}", None),  # an answer to a request of the server
        (b'{"method": "tools/call", "params": {', b'"id": [5]}', None),
    ],
)
async def test_a_message_that_is_not_read_is_refused_with_its_id(
    served: Live, first: bytes, last: bytes, id: Any
) -> None:
    async with relayed(HttpTransport(served.url)) as pipe:
        assert (await pipe.ask(LongLine(first, last)))["id"] == id
        deep = await pipe.ask(first + b"[" * 5000 + last)
        assert (deep["id"], deep["error"]["code"]) == (id, -32600)


@pytest.mark.parametrize("kind", ["text/html", "application/json", "text/event-stream"])
async def test_what_is_not_mcp_is_not_written(kind: str) -> None:
    async with relayed(Page(kind)) as pipe:
        assert "not MCP" in (await pipe.ask(request("tools/list", id=3)))["error"]["message"]


async def test_the_key_of_the_connection_counts(served: Live) -> None:
    async with relayed(HttpTransport(served.url, new_key(served, "read"))) as pipe:
        names = [tool["name"] for tool in (await pipe.ask(request("tools/list")))["result"]["tools"]]
        assert "load_skill" in names
        assert "run_skill" not in names
    async with relayed(HttpTransport(served.url, "apex_00000000_wrong")) as pipe:
        assert "API key" in (await pipe.ask(request("tools/list")))["error"]["message"]
        assert "result" in await pipe.ask(initialize())
        refused = await pipe.ask({"jsonrpc": "2.0", "id": 4, "method": "tools/list"})
        assert "API key" in refused["error"]["message"]


async def test_a_lost_session_is_opened_again(served: Live) -> None:
    listing = {"jsonrpc": "2.0", "id": 1, "method": "tools/list"}
    async with relayed(HttpTransport(served.url)) as pipe:
        await pipe.ask(initialize())
        pipe.send(INITIALIZED)
        assert "result" in await pipe.ask(listing)
        sessions = served.do(_end_sessions(served))
        assert sessions
        assert "result" in await pipe.ask(listing)


async def _end_sessions(served: Live) -> int:
    """End all sessions, as a restart of the server does."""
    app: Any = served.app
    manager = app.state.mcp._server._manager
    ids = list(manager._server_instances)
    for id in ids:
        await manager._discard_session(id, manager._server_instances[id])
    return len(ids)


async def test_a_request_goes_to_the_next_server_only_if_it_was_not_sent(served: Live) -> None:
    gone = HttpTransport("http://127.0.0.1:9")
    async with relayed(gone, HttpTransport(served.url)) as pipe:
        assert "result" in await pipe.ask(request("tools/list"))
    async with relayed(Broken(), HttpTransport(served.url)) as pipe:
        lost = await pipe.ask(request("tools/call", name="run_skill", arguments={"name": "shouter"}))
        assert "may have run" in lost["error"]["message"]
        assert "result" in await pipe.ask(request("tools/list"))
    async with relayed(gone) as pipe:
        assert "does not answer" in (await pipe.ask(request("tools/list")))["error"]["message"]
    async with relayed() as pipe:
        assert (await pipe.ask(request("tools/list")))["error"]["message"] == "There is no server"


async def test_the_number_of_requests_in_progress_is_limited(served: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(relaying, "MAX_IN_FLIGHT", 1)
    async with relayed(HttpTransport(served.url)) as pipe:
        pipe.send(request("tools/call", id=1, name="run_skill", arguments={"name": "sleeper"}))
        pipe.send(request("tools/list", id=2))
        answer = await pipe.output.get()
        assert (answer["id"], answer["error"]["code"]) == (2, -32603)
        pipe.send({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 1}})
        async with asyncio.timeout(60):
            while "result" not in await pipe.ask(request("tools/list", id=3)):
                pass


async def test_notifications_of_a_session_are_relayed(served: Live) -> None:
    async with relayed(HttpTransport(served.url)) as pipe:
        await pipe.ask(initialize())
        pipe.send(INITIALIZED)
        heard: set[str] = set()

        async def changed() -> bool:
            # The stream for notifications is opened in the background: change until one arrives.
            await asyncio.to_thread(served.install, "announced", description=f"Version {len(heard)} {id(object())}.")
            while not pipe.output.empty():
                heard.add(pipe.output.get_nowait().get("method", ""))
            return "notifications/resources/list_changed" in heard

        await until(changed)
    served.do(served.bridge.skills.uninstall_skill("announced"))


async def test_answers_are_limited(served: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(relaying, "MAX_ANSWER_BYTES", 1000)
    async with relayed(HttpTransport(served.url)) as pipe:
        assert "larger than" in (await pipe.ask(request("tools/list")))["error"]["message"]
