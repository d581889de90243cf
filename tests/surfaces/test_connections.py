"""Limits of one connection, over raw sockets."""

import asyncio
import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest
import uvicorn

from apexbridge.surfaces.http.transport import protocol
from apexbridge.surfaces.http.transport.protocol import MAX_HEADERS, LimitedProtocol

pytestmark = pytest.mark.slow

TIMEOUT_SECONDS = 60
HEAD = b"POST /x HTTP/1.1\r\nHost: localhost\r\n"


async def app(scope: Any, receive: Any, send: Any) -> None:
    """Return the body size. `/early` responds before reading, `/slow` after a delay, `/names` with the header names."""
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


class ImpatientProtocol(LimitedProtocol):
    """For tests that expect a timeout. The others use the documented limits: a busy machine is not a slow client."""

    head_seconds = body_seconds = 1.0


@contextmanager
def serving(protocol_class: type[LimitedProtocol]) -> Iterator[int]:
    config = uvicorn.Config(app, http=protocol_class, lifespan="off", log_config=None, access_log=False)
    server = uvicorn.Server(config)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=lambda: asyncio.run(server.serve(sockets=[listener])))
        thread.start()
        yield listener.getsockname()[1]
        server.should_exit = True
        thread.join()


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    with serving(LimitedProtocol) as port:
        yield port


@pytest.fixture(scope="module")
def impatient_port() -> Iterator[int]:
    with serving(ImpatientProtocol) as port:
        yield port


class Connection:
    """One raw connection."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), TIMEOUT_SECONDS)
        self._buffer = b""

    def __enter__(self) -> "Connection":
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def send(self, data: bytes) -> bool:
        """Return whether the peer still accepts data."""
        try:
            self._socket.sendall(data)
        except OSError:
            return False
        return True

    def response(self) -> tuple[int, bytes]:
        """Status and body of the next response."""
        while b"\r\n\r\n" not in self._buffer and (chunk := self._receive()):
            self._buffer += chunk
        head, _, body = self._buffer.partition(b"\r\n\r\n")
        if not head:
            return 0, b""
        length = next(int(line.split(b":")[1]) for line in head.lower().splitlines() if b"content-length" in line)
        while len(body) < length and (chunk := self._receive()):
            body += chunk
        self._buffer = body[length:]
        return int(head.split()[1]), body[:length]

    def read_to_end(self) -> bytes:
        """Everything that is received until the peer closes."""
        text, self._buffer = self._buffer, b""
        while chunk := self._receive():
            text += chunk
        return text

    def _receive(self) -> bytes:
        try:
            return self._socket.recv(65536)
        except ConnectionError:
            return b""


def response_to(port: int, data: bytes) -> tuple[int, bytes]:
    with Connection(port) as connection:
        connection.send(data)
        return connection.response()


def test_the_limits_are_the_documented_ones() -> None:
    assert protocol.MAX_HEADERS == 100
    assert (LimitedProtocol.head_seconds, LimitedProtocol.body_seconds) == (10.0, 15.0)
    assert protocol.MAX_HEAD_BYTES == 64 * 1024


def test_one_connection_serves_several_requests(port: int) -> None:
    with Connection(port) as connection:
        for _ in range(3):
            connection.send(HEAD + b"Content-Length: 5\r\n\r\nhello")
            assert connection.response() == (200, b"5")
        connection.send(HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + b"1\r\nx\r\n" * 50_000 + b"0\r\n\r\n")
        assert connection.response() == (200, b"50000")
        connection.send((HEAD + b"Content-Length: 5\r\n\r\nhello") * 2)
        assert (connection.response(), connection.response()) == ((200, b"5"), (200, b"5"))


def test_trailers_are_counted_and_dropped(port: int) -> None:
    head = b"POST /names HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
    trailers = b"Authorization: Bearer x\r\nSec-Fetch-Site: same-origin\r\nHost: other\r\n"
    with Connection(port) as connection:
        for _ in range(2):
            connection.send(head + b"1\r\nx\r\n0\r\n" + trailers + b"\r\n")
            assert connection.response() == (200, b"host,transfer-encoding")
        connection.send(head + b"1\r\nx\r\n0\r\n" + b"x: 1\r\n" * MAX_HEADERS + b"\r\n")
        status, body = connection.response()
    assert (status, json.loads(body)["code"]) == (431, "HEADERS_TOO_LARGE")


def test_too_many_headers_are_refused(port: int) -> None:
    many = b"".join(b"x-%d: 1\r\n" % number for number in range(MAX_HEADERS - 2))
    assert response_to(port, HEAD + many + b"Content-Length: 0\r\n\r\n") == (200, b"0")
    status, body = response_to(port, HEAD + many + b"x-more: 1\r\nContent-Length: 0\r\n\r\n")
    assert (status, json.loads(body)["code"]) == (431, "HEADERS_TOO_LARGE")
    openai_request = HEAD.replace(b"/x", b"/v1/models") + many + b"x-more: 1\r\nContent-Length: 0\r\n\r\n"
    status, body = response_to(port, openai_request)
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
def test_an_oversized_head_is_cut_off(port: int, flood: bytes) -> None:
    with Connection(port) as connection:
        for start in range(0, len(flood), 20_000):
            connection.send(flood[start : start + 20_000])
        assert connection.read_to_end().split()[1:2] in ([b"431"], [b"400"], [])
    assert response_to(port, HEAD + b"Content-Length: 0\r\n\r\n") == (200, b"0")


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
def test_an_ambiguously_framed_request_is_refused(port: int, headers: bytes) -> None:
    status, _ = response_to(port, HEAD + headers + b"\r\n0\r\n\r\n")
    assert status == 400


@pytest.mark.parametrize("sent", [b"", b"GET / HT", HEAD, HEAD + b"x: 1\r\ny"])
def test_an_incomplete_head_times_out(impatient_port: int, sent: bytes) -> None:
    with Connection(impatient_port) as connection:
        connection.send(sent)
        text = connection.read_to_end()
    assert (b" 408 " in text) == bool(sent), "a silent connection gets no response"


@pytest.mark.parametrize("fragment", [b"\r\n", b"x: 1\r\n"], ids=["line ends", "headers"])
def test_a_trickling_head_times_out(impatient_port: int, fragment: bytes) -> None:
    with Connection(impatient_port) as connection:
        connection.send(HEAD + b"Content-Length: 0\r\n\r\n")  # the timeout also applies to the second request
        assert connection.response() == (200, b"0")
        connection.send(b"" if fragment == b"\r\n" else HEAD)
        deadline = time.monotonic() + TIMEOUT_SECONDS
        while connection.send(fragment):
            assert time.monotonic() < deadline, "the connection stays open"
            time.sleep(0.1)


@pytest.mark.parametrize("framing", [b"Content-Length: 100000\r\n\r\n", b"Transfer-Encoding: chunked\r\n\r\n1\r\n"])
def test_a_stalled_body_times_out(impatient_port: int, framing: bytes) -> None:
    with Connection(impatient_port) as connection:
        connection.send(HEAD + framing + b"x")
        status, body = connection.response()
        assert (status, json.loads(body)["code"]) == (408, "REQUEST_TIMEOUT")
        assert connection.read_to_end() == b""


def test_a_trickling_body_times_out(impatient_port: int) -> None:
    with Connection(impatient_port) as connection:
        connection.send(HEAD + b"Content-Length: 100000\r\n\r\n")
        deadline = time.monotonic() + TIMEOUT_SECONDS
        while connection.send(b"x"):
            assert time.monotonic() < deadline, "the connection stays open"
            time.sleep(0.05)


def test_a_slow_body_does_not_time_out(impatient_port: int) -> None:
    with Connection(impatient_port) as connection:
        connection.send(HEAD + b"Content-Length: 100000\r\n\r\n")
        for _ in range(10):
            assert connection.send(b"x" * 10_000)
            time.sleep(0.15)
        assert connection.response() == (200, b"100000")


def test_a_slow_response_does_not_time_out(impatient_port: int) -> None:
    with Connection(impatient_port) as connection:
        connection.send(HEAD.replace(b"/x", b"/slow") + b"Content-Length: 1\r\n\r\nx" + b"GET / H")
        assert connection.response() == (200, b"1"), "even if the next request has started"


def test_a_response_before_the_end_of_the_body_arrives(impatient_port: int) -> None:
    with Connection(impatient_port) as connection:
        connection.send(HEAD.replace(b"/x", b"/early") + b"Content-Length: 100000\r\n\r\nx")
        assert connection.response() == (200, b"0")
        assert b" 200 " not in connection.read_to_end()


def test_expect_100_continue_is_answered(port: int) -> None:
    with Connection(port) as connection:
        connection.send(HEAD + b"Expect: 100-continue\r\nContent-Length: 2\r\n\r\n")
        assert connection._receive().startswith(b"HTTP/1.1 100")
        connection.send(b"ok")
        assert connection.response() == (200, b"2")


@contextmanager
def silent_connections(port: int) -> Iterator[list[Connection]]:
    with ExitStack() as stack:
        yield [stack.enter_context(Connection(port)) for _ in range(200)]


def test_idle_connections_do_not_block_others(port: int) -> None:
    with silent_connections(port):
        assert response_to(port, HEAD + b"Content-Length: 0\r\n\r\n") == (200, b"0")


def test_idle_connections_are_closed(impatient_port: int) -> None:
    with silent_connections(impatient_port) as silent:
        assert [connection.read_to_end() for connection in silent] == [b""] * 200
