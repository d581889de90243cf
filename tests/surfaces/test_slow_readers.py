"""Clients that do not read their responses, over raw sockets."""

import asyncio
import json
import socket
import threading
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import httpx
import pytest
import uvicorn
from hypothesis import given
from hypothesis import strategies as st

from apexbridge.bridge import Bridge
from apexbridge.errors import ServerError
from apexbridge.skills.runs.events import EVENT_TEXT
from apexbridge.skills.runs.run_views import RecordedText, TextSource
from apexbridge.surfaces.http.transport import protocol, response_pacing, responses
from apexbridge.surfaces.http.transport.protocol import LimitedProtocol
from apexbridge.surfaces.http.transport.response_pacing import CHUNK_BYTES, PacedAnswers, UnreadAnswers
from apexbridge.surfaces.http.transport.responses import Placeholders
from tests.making import skill_zip
from tests.waiting import wait_until

pytestmark = pytest.mark.anyio
TIMEOUT_SECONDS = 60
BODY_BYTES = 32 * 1024 * 1024
SMALL_BUFFER = 16 * 1024
MAX_CONNECTIONS = 4


@dataclass
class MonitoredServer:
    """A server with counters of its application."""

    port: int
    server: uvicorn.Server
    taken: int = 0
    """Bytes of bodies that the connection accepted from the application."""
    ended: int = 0
    """Finished requests."""

    @property
    def connections(self) -> int:
        return len(self.server.server_state.connections)


@pytest.fixture
def monitored() -> Iterator[MonitoredServer]:
    """A server with a write timeout of half a second."""
    state: MonitoredServer

    async def large(scope: Any, receive: Any, send: Any) -> None:
        size = 200_000 if scope["path"] == "/closed" else BODY_BYTES
        headers = [(b"content-length", str(size).encode())]
        if scope["path"] == "/closed":
            headers.append((b"connection", b"close"))
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": bytes(size)})

    paced = PacedAnswers(large, unread=UnreadAnswers())

    async def app(scope: Any, receive: Any, send: Any) -> None:
        async def counted(message: Any) -> None:
            await send(message)
            state.taken += len(message.get("body", b""))

        await (large if scope["path"] == "/closed" else paced)(scope, receive, counted)
        state.ended += 1

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LimitedProtocol, "write_seconds", 0.5)
        limited: Any = partial(LimitedProtocol, max_connections=MAX_CONNECTIONS)
        config = uvicorn.Config(app, http=limited, lifespan="off", log_config=None, access_log=False)
        server = uvicorn.Server(config)
        with socket.create_server(("127.0.0.1", 0)) as listener:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SMALL_BUFFER)
            state = MonitoredServer(listener.getsockname()[1], server)
            thread = threading.Thread(target=lambda: asyncio.run(server.serve(sockets=[listener])))
            thread.start()
            yield state
            server.should_exit = True
            thread.join()


def unread_request(port: int, path: str) -> socket.socket:
    """Send a request and do not read the response."""
    client_socket = socket.socket()
    client_socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SMALL_BUFFER)
    client_socket.connect(("127.0.0.1", port))
    client_socket.sendall(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
    return client_socket


def test_the_write_timeout_is_the_documented_one() -> None:
    assert (LimitedProtocol.write_seconds, protocol.WRITE_BYTES) == (30.0, 16 * 1024)


def test_a_client_that_does_not_read_is_disconnected(monitored: MonitoredServer) -> None:
    with unread_request(monitored.port, "/"):
        wait_until(lambda: monitored.ended == 1)
        wait_until(lambda: monitored.connections == 0)
        bytes_after_close = monitored.taken
    # After the connection is closed, uvicorn accepts the remaining chunks and drops them.
    assert bytes_after_close == BODY_BYTES


def test_a_response_is_sent_at_the_speed_of_its_reader(
    monitored: MonitoredServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LimitedProtocol, "write_seconds", TIMEOUT_SECONDS)
    with unread_request(monitored.port, "/") as client_socket:
        wait_until(lambda: monitored.taken >= CHUNK_BYTES)
        client_socket.settimeout(TIMEOUT_SECONDS)
        read = 0
        while read < BODY_BYTES:
            assert monitored.taken - read <= 8 * CHUNK_BYTES
            read += len(client_socket.recv(65536))


def test_a_connection_that_closes_does_not_wait_for_its_reader(monitored: MonitoredServer) -> None:
    with unread_request(monitored.port, "/closed"):
        wait_until(lambda: monitored.taken > 0)
        wait_until(lambda: monitored.connections == 0)


def test_the_number_of_open_connections_is_limited(monitored: MonitoredServer) -> None:
    client_sockets = [
        socket.create_connection(("127.0.0.1", monitored.port), TIMEOUT_SECONDS) for _ in range(MAX_CONNECTIONS + 1)
    ]
    try:
        assert is_closed(client_sockets[-1])
        assert monitored.connections == MAX_CONNECTIONS
        client_sockets[0].sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert client_sockets[0].recv(8) == b"HTTP/1.1"
    finally:
        for client_socket in client_sockets:
            client_socket.close()


def is_closed(client_socket: socket.socket) -> bool:
    try:
        return client_socket.recv(1) == b""
    except ConnectionError:
        return True


def test_pipelined_requests_on_one_connection_are_limited(monitored: MonitoredServer) -> None:
    with socket.create_connection(("127.0.0.1", monitored.port), TIMEOUT_SECONDS) as client_socket:
        client_socket.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n" * 1000)
        while client_socket.recv(65536):
            pass
    assert monitored.taken <= (protocol.MAX_PIPELINED + 1) * BODY_BYTES


# ----------------------------------------------------------------------------------------------------- unread responses
def test_unread_bytes_are_limited_per_caller(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(response_pacing, "MAX_HELD_BYTES", 100)
    unread = UnreadAnswers()
    with unread.claim("one", 1000):  # a single response may have any size
        with pytest.raises(ServerError) as caught, unread.claim("one", 1):
            pass
        assert (caught.value.code, caught.value.status) == ("QUEUE_FULL", 429)
        with unread.claim("other", 90), unread.claim("other", 10):
            assert unread.bytes_of("other") == 100
    with unread.claim("one", 100):
        assert unread.bytes_of("one") == 100
    assert unread.bytes_of("one") == 0


async def test_a_refused_response_has_the_usual_error_body(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(response_pacing, "MAX_HELD_TOTAL", 100)
    unread = UnreadAnswers()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        body = bytes(2 * CHUNK_BYTES)
        headers = [(b"content-length", str(len(body)).encode())]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    transport = httpx.ASGITransport(PacedAnswers(app, unread=unread))
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
        assert len((await client.get("/")).content) == 2 * CHUNK_BYTES
        with unread.claim("", 1):
            refused = await client.get("/")
    assert (refused.status_code, refused.json()["code"]) == (429, "QUEUE_FULL")
    assert int(refused.headers["retry-after"]) > 0


# -------------------------------------------------------------------------------------------------- JSON while sending
async def join(chunks: AsyncIterator[bytes]) -> bytes:
    return b"".join([chunk async for chunk in chunks])


@given(st.text(), st.text(), st.integers(1, 5))
def test_text_encoded_in_chunks_is_the_same_json(text: str, other: str, size: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(responses, "CHUNK_CHARACTERS", size)
        placeholders = Placeholders()
        document = json.dumps({"a": placeholders.put(text), "b": other, "c": placeholders.put(text)})
        encoded = asyncio.run(join(placeholders.fill(document)))
    assert json.loads(encoded) == {"a": text, "b": other, "c": text}


@pytest.mark.parametrize("text", ["", "x", '\x01"\\\u2028é漢😀' * 20_000, "😀" * 40_001])
def test_recorded_text_is_read_in_chunks_and_complete(tmp_path: Path, text: str) -> None:
    path = tmp_path / "stdout"
    path.write_text(text, "utf-8")
    recorded: TextSource = RecordedText(path)
    placeholders = Placeholders()

    async def read() -> bytes:
        chunks = [chunk async for chunk in placeholders.fill(f'"{placeholders.put(recorded)}"')]
        assert max(map(len, chunks)) <= 6 * 32 * 1024
        return b"".join(chunks)

    assert json.loads(asyncio.run(read())) == text
    assert asyncio.run(join(Placeholders().fill("{}"))) == b"{}"


async def test_every_route_returns_long_output_complete(bridge: Bridge, client: httpx.AsyncClient) -> None:
    text = '\x01"é😀' * 50_000
    script = f"import sys\nsys.stdout.write({text[:4]!r} * 50_000)\nsys.stderr.write('e' * 70_000)"
    await client.post(
        "/api/skills",
        content=skill_zip("talk", {"scripts/execute.py": script}),
        headers={"content-type": "application/zip"},
    )
    with anyio.fail_after(TIMEOUT_SECONDS):
        executed = await client.post("/api/skills/talk/execute", json={})
        called = await client.post("/api/tools/skill:talk/execute", json={})
        identity = executed.json()["id"]
        shown = (await client.get(f"/api/executions/{identity}")).json()["result"]
        live = (await client.get(f"/api/executions/{identity}/events")).text
        bridge.runs._ended.clear()  # as it is after a restart
        stored = (await client.get(f"/api/executions/{identity}/events")).text
    for result in (executed.json(), called.json(), shown, last_event(live), last_event(stored)):
        assert (result["stdout"], result["output"], result["stderr"]) == (text, text, "e" * 70_000)
    for stream in (live, stored):
        assert "".join(events(stream, "stdout")) == text
        assert max(map(len, events(stream, "stdout"))) <= EVENT_TEXT


async def test_a_run_can_be_read_without_its_output_in_the_result(bridge: Bridge, client: httpx.AsyncClient) -> None:
    script = "import sys\nprint('out' * 50_000)\nprint('err', file=sys.stderr)"
    await client.post(
        "/api/skills",
        content=skill_zip("talk", {"scripts/execute.py": script}),
        headers={"content-type": "application/zip"},
    )
    with anyio.fail_after(TIMEOUT_SECONDS):
        identity = (await client.post("/api/skills/talk/execute", json={})).json()["id"]
        shown = (await client.get(f"/api/executions/{identity}?output=false")).json()["result"]
        live = (await client.get(f"/api/executions/{identity}/events?output=false")).text
        bridge.runs._ended.clear()  # as it is after a restart
        stored = (await client.get(f"/api/executions/{identity}/events?output=false")).text
    for result in (shown, last_event(live), last_event(stored)):
        assert (result["id"], result["success"]) == (identity, True)
        assert (result["stdout"], result["stderr"], result["output"]) == ("", "", "")
    for stream in (live, stored):
        assert "".join(events(stream, "stdout")) == "out" * 50_000 + "\n"
        assert events(stream, "stderr") == ["err\n"]


@given(st.text(max_size=40), st.integers(4, 9))
def test_parts_of_recorded_text_are_the_whole(tmp_path_factory: pytest.TempPathFactory, text: str, size: int) -> None:
    path = tmp_path_factory.mktemp("text") / "stdout"
    path.write_bytes(text.encode("utf-8"))
    parts = [part.read() for part in RecordedText(path).parts(size)]
    assert "".join(parts) == text
    assert all(len(part.encode()) <= size + 3 for part in parts)


def events(stream: str, kind: str) -> list[Any]:
    blocks = [dict(line.split(": ", 1) for line in block.split("\n")) for block in stream.strip().split("\n\n")]
    return [json.loads(block["data"]) for block in blocks if block["event"] == kind]


def last_event(stream: str) -> Any:
    return events(stream, "result")[-1]
