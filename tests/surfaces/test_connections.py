"""What one connection may cost, over raw sockets."""

import asyncio
import json
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
import uvicorn

from apexbridge.surfaces.http.transport import protocol
from apexbridge.surfaces.http.transport.protocol import MAX_HEADERS, LimitedProtocol

PATIENCE = 60
HEAD = b"POST /x HTTP/1.1\r\nHost: localhost\r\n"


async def app(scope: Any, receive: Any, send: Any) -> None:
    """Says how many bytes came; `/early` answers before it has read, `/slow` takes its time, `/names` says headers."""
    size, message = 0, {"more_body": scope["path"] != "/early"}
    while message["more_body"]:
        message = await receive()
        if message["type"] == "http.disconnect":
            return
        size += len(message["body"])
    if scope["path"] == "/slow":
        await asyncio.sleep(1.5)
    body = str(size).encode()
    if scope["path"] == "/names":
        body = b",".join(name for name, _ in scope["headers"])
    headers = [(b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    """A server whose patience is short, so that nobody has to wait for its end."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(protocol, "HEAD_SECONDS", 0.5)
        patch.setattr(protocol, "BODY_SECONDS", 0.5)
        config = uvicorn.Config(app, http=LimitedProtocol, lifespan="off", log_config=None, access_log=False)
        server = uvicorn.Server(config)
        with socket.create_server(("127.0.0.1", 0)) as listener:
            thread = threading.Thread(target=lambda: asyncio.run(server.serve(sockets=[listener])))
            thread.start()
            yield listener.getsockname()[1]
            server.should_exit = True
            thread.join()


class Wire:
    """One connection."""

    def __init__(self, port: int) -> None:
        self._link = socket.create_connection(("127.0.0.1", port), PATIENCE)
        self._text = b""

    def __enter__(self) -> "Wire":
        return self

    def __exit__(self, *_: object) -> None:
        self._link.close()

    def send(self, data: bytes) -> bool:
        """Whether the other side still takes it."""
        try:
            self._link.sendall(data)
        except OSError:
            return False
        return True

    def answer(self) -> tuple[int, bytes]:
        """Status and body of one answer."""
        while b"\r\n\r\n" not in self._text and (piece := self._piece()):
            self._text += piece
        head, _, body = self._text.partition(b"\r\n\r\n")
        if not head:
            return 0, b""
        length = next(int(line.split(b":")[1]) for line in head.lower().splitlines() if b"content-length" in line)
        while len(body) < length and (piece := self._piece()):
            body += piece
        self._text = body[length:]
        return int(head.split()[1]), body[:length]

    def rest(self) -> bytes:
        """All that comes until the other side closes."""
        text, self._text = self._text, b""
        while piece := self._piece():
            text += piece
        return text

    def _piece(self) -> bytes:
        try:
            return self._link.recv(65536)
        except ConnectionError:
            return b""


def asked(port: int, data: bytes) -> tuple[int, bytes]:
    with Wire(port) as wire:
        wire.send(data)
        return wire.answer()


def test_the_limits_are_those_that_were_promised() -> None:
    assert protocol.MAX_HEADERS == 100
    assert (protocol.HEAD_SECONDS, protocol.BODY_SECONDS) in ((10.0, 15.0), (0.5, 0.5))
    assert protocol.MAX_HEAD_BYTES == 64 * 1024


def test_a_proper_request_is_answered_again_and_again_on_one_connection(port: int) -> None:
    with Wire(port) as wire:
        for _ in range(3):
            wire.send(HEAD + b"Content-Length: 5\r\n\r\nhello")
            assert wire.answer() == (200, b"5")
        wire.send(HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + b"1\r\nx\r\n" * 50_000 + b"0\r\n\r\n")
        assert wire.answer() == (200, b"50000")
        wire.send((HEAD + b"Content-Length: 5\r\n\r\nhello") * 2)
        assert (wire.answer(), wire.answer()) == ((200, b"5"), (200, b"5"))


def test_trailers_are_counted_and_dropped(port: int) -> None:
    head = b"POST /names HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
    trailers = b"Authorization: Bearer x\r\nSec-Fetch-Site: same-origin\r\nHost: other\r\n"
    with Wire(port) as wire:
        for _ in range(2):
            wire.send(head + b"1\r\nx\r\n0\r\n" + trailers + b"\r\n")
            assert wire.answer() == (200, b"host,transfer-encoding")
        wire.send(head + b"1\r\nx\r\n0\r\n" + b"x: 1\r\n" * MAX_HEADERS + b"\r\n")
        status, body = wire.answer()
    assert (status, json.loads(body)["code"]) == (431, "HEADERS_TOO_LARGE")


def test_too_many_headers_are_refused(port: int) -> None:
    many = b"".join(b"x-%d: 1\r\n" % number for number in range(MAX_HEADERS - 2))
    assert asked(port, HEAD + many + b"Content-Length: 0\r\n\r\n") == (200, b"0")
    status, body = asked(port, HEAD + many + b"x-more: 1\r\nContent-Length: 0\r\n\r\n")
    assert (status, json.loads(body)["code"]) == (431, "HEADERS_TOO_LARGE")
    inside = HEAD.replace(b"/x", b"/v1/models") + many + b"x-more: 1\r\nContent-Length: 0\r\n\r\n"
    status, body = asked(port, inside)
    assert (status, json.loads(body)["error"]["code"]) == (431, "headers_too_large")


@pytest.mark.parametrize(
    "flood",
    [
        b"POST /x HTTP/1.1\r\nx: " + b"a" * 80_000 + b"\r\n\r\n",
        b"POST /" + b"a" * 400_000,
        HEAD + b"x: " + b"a" * 400_000,
        HEAD + b"x" * 400_000,
        HEAD + b"Transfer-Encoding: chunked\r\n\r\n0\r\nx: " + b"a" * 400_000,
        HEAD + b"Transfer-Encoding: chunked\r\n\r\n1;" + b"a" * 400_000,
    ],
    ids=["one header", "address", "header without end", "name without end", "trailer", "chunk extension"],
)
def test_a_head_without_measure_is_cut_off(port: int, flood: bytes) -> None:
    with Wire(port) as wire:
        for start in range(0, len(flood), 20_000):
            wire.send(flood[start : start + 20_000])
        assert wire.rest().split()[1:2] in ([b"431"], [b"400"], [])
    assert asked(port, HEAD + b"Content-Length: 0\r\n\r\n") == (200, b"0")


@pytest.mark.parametrize(
    "headers",
    [
        b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n",
        b"Transfer-Encoding: chunked\r\nContent-Length: 5\r\n",
        b"Content-Length: 5\r\nContent-Length: 6\r\n",
        b"Content-Length: 5\r\nContent-Length: 5\r\n",
        b"Transfer-Encoding: xchunked\r\n",
        b"Transfer-Encoding: identity\r\nContent-Length: 5\r\n",
        b"Content-Length : 5\r\n",
        b"Content-Length: +5\r\n",
        b"x: 1\r\n Content-Length: 5\r\n",
    ],
)
def test_a_request_that_two_servers_could_read_in_two_ways_is_refused(port: int, headers: bytes) -> None:
    status, _ = asked(port, HEAD + headers + b"\r\n0\r\n\r\n")
    assert status == 400


@pytest.mark.parametrize("said", [b"", b"GET / HT", HEAD, HEAD + b"x: 1\r\ny"])
def test_a_head_that_does_not_come_is_not_waited_for(port: int, said: bytes) -> None:
    with Wire(port) as wire:
        wire.send(said)
        text = wire.rest()
    assert (b" 408 " in text) == bool(said), "to a silence nothing is answered"


@pytest.mark.parametrize("drop", [b"\r\n", b"x: 1\r\n"], ids=["line ends", "headers"])
def test_a_head_that_comes_in_drops_is_not_waited_for(port: int, drop: bytes) -> None:
    with Wire(port) as wire:
        wire.send(HEAD + b"Content-Length: 0\r\n\r\n")  # a second request on the same connection counts as well
        assert wire.answer() == (200, b"0")
        wire.send(b"" if drop == b"\r\n" else HEAD)
        deadline = time.monotonic() + PATIENCE
        while wire.send(drop):
            assert time.monotonic() < deadline, "the connection stays open"
            time.sleep(0.1)


@pytest.mark.parametrize("framing", [b"Content-Length: 100000\r\n\r\n", b"Transfer-Encoding: chunked\r\n\r\n1\r\n"])
def test_a_body_that_stops_is_not_waited_for(port: int, framing: bytes) -> None:
    with Wire(port) as wire:
        wire.send(HEAD + framing + b"x")
        status, body = wire.answer()
        assert (status, json.loads(body)["code"]) == (408, "REQUEST_TIMEOUT")
        assert wire.rest() == b""


def test_a_body_that_trickles_is_not_waited_for_and_a_slow_one_is(port: int) -> None:
    with Wire(port) as wire:
        wire.send(HEAD + b"Content-Length: 100000\r\n\r\n")
        deadline = time.monotonic() + PATIENCE
        while wire.send(b"x"):
            assert time.monotonic() < deadline, "the connection stays open"
            time.sleep(0.05)
    with Wire(port) as wire:
        wire.send(HEAD + b"Content-Length: 100000\r\n\r\n")
        for _ in range(10):
            assert wire.send(b"x" * 10_000)
            time.sleep(0.15)
        assert wire.answer() == (200, b"100000")


def test_how_long_an_answer_takes_is_not_the_clients_fault(port: int) -> None:
    with Wire(port) as wire:
        wire.send(HEAD.replace(b"/x", b"/slow") + b"Content-Length: 1\r\n\r\nx" + b"GET / H")
        assert wire.answer() == (200, b"1"), "not even with the beginning of a next request"


def test_an_answer_before_the_end_of_the_body_arrives(port: int) -> None:
    with Wire(port) as wire:
        wire.send(HEAD.replace(b"/x", b"/early") + b"Content-Length: 100000\r\n\r\nx")
        assert wire.answer() == (200, b"0")
        assert b" 200 " not in wire.rest()


def test_a_client_that_waits_to_be_told_to_go_on_is_told(port: int) -> None:
    with Wire(port) as wire:
        wire.send(HEAD + b"Expect: 100-continue\r\nContent-Length: 2\r\n\r\n")
        assert wire._piece().startswith(b"HTTP/1.1 100")
        wire.send(b"ok")
        assert wire.answer() == (200, b"2")


def test_connections_that_say_nothing_do_not_keep_others_out(port: int) -> None:
    silent = [Wire(port) for _ in range(200)]
    try:
        assert asked(port, HEAD + b"Content-Length: 0\r\n\r\n") == (200, b"0")
        assert [wire.rest() for wire in silent] == [b""] * 200
    finally:
        for wire in silent:
            wire.__exit__()
