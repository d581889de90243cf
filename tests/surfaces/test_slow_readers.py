"""Clients that do not read their answers, over raw sockets."""

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
from apexbridge.skills.runs.run_views import RecordedText, TextSource
from apexbridge.surfaces.http.transport import protocol, response_pacing, responses
from apexbridge.surfaces.http.transport.protocol import LimitedProtocol
from apexbridge.surfaces.http.transport.response_pacing import CHUNK_BYTES, PacedAnswers, UnreadAnswers
from apexbridge.surfaces.http.transport.responses import Placeholders
from tests.making import skill_zip
from tests.waiting import wait_until

pytestmark = pytest.mark.anyio
PATIENCE = 60
BODY_BYTES = 32 * 1024 * 1024
SMALL_BUFFER = 16 * 1024
MAX_CONNECTIONS = 4


@dataclass
class Watched:
    """A server and what its application saw."""

    port: int
    server: uvicorn.Server
    taken: int = 0
    """Bytes of bodies that the connection took from the application."""
    ended: int = 0
    """Requests that are over."""

    @property
    def connections(self) -> int:
        return len(self.server.server_state.connections)


@pytest.fixture
def watched() -> Iterator[Watched]:
    """A server that waits half a second for its readers."""
    seen: Watched

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
            seen.taken += len(message.get("body", b""))

        await (large if scope["path"] == "/closed" else paced)(scope, receive, counted)
        seen.ended += 1

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(protocol, "WRITE_SECONDS", 0.5)
        limited: Any = partial(LimitedProtocol, max_connections=MAX_CONNECTIONS)
        config = uvicorn.Config(app, http=limited, lifespan="off", log_config=None, access_log=False)
        server = uvicorn.Server(config)
        with socket.create_server(("127.0.0.1", 0)) as listener:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SMALL_BUFFER)
            seen = Watched(listener.getsockname()[1], server)
            thread = threading.Thread(target=lambda: asyncio.run(server.serve(sockets=[listener])))
            thread.start()
            yield seen
            server.should_exit = True
            thread.join()


def asking(port: int, path: str) -> socket.socket:
    """A client that has asked and does not read."""
    link = socket.socket()
    link.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SMALL_BUFFER)
    link.connect(("127.0.0.1", port))
    link.sendall(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
    return link


def test_the_time_to_read_is_the_one_that_was_promised() -> None:
    assert (protocol.WRITE_SECONDS, protocol.WRITE_BYTES) == (30.0, 16 * 1024)


def test_a_client_that_does_not_read_is_cut_off_and_never_held_much(watched: Watched) -> None:
    with asking(watched.port, "/"):
        wait_until(lambda: watched.ended == 1)
        wait_until(lambda: watched.connections == 0)
        pieces_after_the_cut = watched.taken
    # Once the connection is gone, uvicorn takes the remaining pieces and drops them.
    assert pieces_after_the_cut == BODY_BYTES


def test_an_answer_is_handed_over_at_the_speed_of_its_reader(watched: Watched, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protocol, "WRITE_SECONDS", PATIENCE)
    with asking(watched.port, "/") as link:
        wait_until(lambda: watched.taken >= CHUNK_BYTES)
        link.settimeout(PATIENCE)
        read = 0
        while read < BODY_BYTES:
            assert watched.taken - read <= 8 * CHUNK_BYTES
            read += len(link.recv(65536))


def test_a_closed_connection_does_not_wait_for_its_reader_either(watched: Watched) -> None:
    with asking(watched.port, "/closed"):
        wait_until(lambda: watched.taken > 0)
        wait_until(lambda: watched.connections == 0)


def test_only_so_many_connections_are_open_at_once(watched: Watched) -> None:
    links = [socket.create_connection(("127.0.0.1", watched.port), PATIENCE) for _ in range(MAX_CONNECTIONS + 1)]
    try:
        assert closed(links[-1])
        assert watched.connections == MAX_CONNECTIONS
        links[0].sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert links[0].recv(8) == b"HTTP/1.1"
    finally:
        for link in links:
            link.close()


def closed(link: socket.socket) -> bool:
    try:
        return link.recv(1) == b""
    except ConnectionError:
        return True


def test_a_flood_of_requests_on_one_connection_is_refused(watched: Watched) -> None:
    with socket.create_connection(("127.0.0.1", watched.port), PATIENCE) as link:
        link.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n" * 1000)
        while link.recv(65536):
            pass
    assert watched.taken <= (protocol.MAX_PIPELINED + 1) * BODY_BYTES


# --------------------------------------------------------------------------------------------------- what waits unread
def test_a_caller_may_leave_so_much_unread_and_others_are_not_concerned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(response_pacing, "MAX_HELD_BYTES", 100)
    unread = UnreadAnswers()
    with unread.claim("one", 1000):  # a single answer may be of any size
        with pytest.raises(ServerError) as caught, unread.claim("one", 1):
            pass
        assert (caught.value.code, caught.value.status) == ("QUEUE_FULL", 429)
        with unread.claim("other", 90), unread.claim("other", 10):
            assert unread.bytes_of("other") == 100
    with unread.claim("one", 100):
        assert unread.bytes_of("one") == 100
    assert unread.bytes_of("one") == 0


async def test_a_refused_answer_says_so_in_the_usual_shape(monkeypatch: pytest.MonkeyPatch) -> None:
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
async def joined(pieces: AsyncIterator[bytes]) -> bytes:
    return b"".join([piece async for piece in pieces])


@given(st.text(), st.text(), st.integers(1, 5))
def test_text_that_is_encoded_in_pieces_is_the_same_json(text: str, other: str, size: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(responses, "CHUNK_CHARACTERS", size)
        placeholders = Placeholders()
        document = json.dumps({"a": placeholders.put(text), "b": other, "c": placeholders.put(text)})
        encoded = asyncio.run(joined(placeholders.fill(document)))
    assert json.loads(encoded) == {"a": text, "b": other, "c": text}


@pytest.mark.parametrize("text", ["", "x", '\x01"\\\u2028é漢😀' * 20_000, "😀" * 40_001])
def test_recorded_text_is_read_in_pieces_and_stays_whole(tmp_path: Path, text: str) -> None:
    path = tmp_path / "stdout"
    path.write_text(text, "utf-8")
    recorded: TextSource = RecordedText(path)
    placeholders = Placeholders()

    async def read() -> bytes:
        pieces = [piece async for piece in placeholders.fill(f'"{placeholders.put(recorded)}"')]
        assert max(map(len, pieces)) <= 6 * 32 * 1024
        return b"".join(pieces)

    assert json.loads(asyncio.run(read())) == text
    assert asyncio.run(joined(Placeholders().fill("{}"))) == b"{}"


async def test_long_output_is_answered_whole_by_every_route(bridge: Bridge, client: httpx.AsyncClient) -> None:
    text = '\x01"é😀' * 50_000
    script = f"import sys\nsys.stdout.write({text[:4]!r} * 50_000)\nsys.stderr.write('e' * 70_000)"
    await client.post(
        "/api/skills",
        content=skill_zip("talk", {"scripts/execute.py": script}),
        headers={"content-type": "application/zip"},
    )
    with anyio.fail_after(PATIENCE):
        executed = await client.post("/api/skills/talk/execute", json={})
        called = await client.post("/api/tools/skill:talk/execute", json={})
        identity = executed.json()["id"]
        shown = (await client.get(f"/api/executions/{identity}")).json()["result"]
        live = (await client.get(f"/api/executions/{identity}/events")).text
        bridge.runs._ended.clear()  # as it is after a restart
        stored = (await client.get(f"/api/executions/{identity}/events")).text
    for result in (executed.json(), called.json(), shown, last_event(live), last_event(stored)):
        assert (result["stdout"], result["output"], result["stderr"]) == (text, text, "e" * 70_000)
    assert "".join(events(live, "stdout")) == "".join(events(stored, "stdout")) == text


def events(stream: str, kind: str) -> list[Any]:
    blocks = [dict(line.split(": ", 1) for line in block.split("\n")) for block in stream.strip().split("\n\n")]
    return [json.loads(block["data"]) for block in blocks if block["event"] == kind]


def last_event(stream: str) -> Any:
    return events(stream, "result")[-1]
