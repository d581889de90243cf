"""The HTTP client of the command line, against real sockets."""

import asyncio
import base64
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pytest

from apexbridge.surfaces.cli.transport import HttpTransport, Request, TransportError
from tests.skills.source_server import self_signed

pytestmark = pytest.mark.anyio
Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nX-Kind: Some\r\n\r\nok"


@pytest.fixture(autouse=True)
def no_proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


@asynccontextmanager
async def serving(handler: Handler, secure: ssl.SSLContext | None = None) -> AsyncIterator[int]:
    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await handler(reader, writer)
        finally:
            writer.close()

    server = await asyncio.start_server(handle, "127.0.0.1", 0, ssl=secure)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()


def recorded(heads: list[bytes], answer: bytes = OK) -> Handler:
    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heads.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(answer)
        await writer.drain()

    return handler


async def whole(transport: HttpTransport, request: Request) -> tuple[int, bytes]:
    with anyio.fail_after(60):
        async with transport.send(request) as response:
            return response.status, b"".join([chunk async for chunk in response.chunks])


async def test_a_request_has_its_key_and_the_path_of_the_address() -> None:
    heads: list[bytes] = []
    async with serving(recorded(heads)) as port:
        transport = HttpTransport(f"http://127.0.0.1:{port}/prefix/", "secret")
        assert await whole(transport, Request(method="GET", target="/api/skills?page=2")) == (200, b"ok")
    assert heads[0].startswith(b"GET /prefix/api/skills?page=2 HTTP/1.1\r\n")
    assert b"authorization: Bearer secret\r\n" in heads[0].lower().replace(b"bearer", b"Bearer")
    assert f"host: 127.0.0.1:{port}\r\n".encode() in heads[0].lower()


async def test_credentials_in_the_address_are_sent_as_basic_authentication() -> None:
    heads: list[bytes] = []
    async with serving(recorded(heads)) as port:
        await whole(HttpTransport(f"http://user:p%40ss@127.0.0.1:{port}"), Request(method="GET", target="/"))
    assert base64.b64encode(b"user:p@ss") in heads[0]


async def test_a_chunked_response_arrives_as_it_is_sent() -> None:
    may_continue = asyncio.Event()

    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\none\r\n")
        await may_continue.wait()
        writer.write(b"3\r\ntwo\r\n0\r\n\r\n")

    async with serving(handler) as port:
        with anyio.fail_after(60):
            async with HttpTransport(f"http://127.0.0.1:{port}").send(Request(method="GET", target="/")) as response:
                assert await anext(response.chunks) == b"one"
                may_continue.set()
                assert [chunk async for chunk in response.chunks] == [b"two"]


async def test_an_answer_that_comes_before_the_body_is_sent_is_read() -> None:
    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 413 Too Large\r\nContent-Length: 3\r\nConnection: close\r\n\r\nbig")
        await writer.drain()
        writer.write_eof()
        while await reader.read(65536):
            pass

    async def endless() -> AsyncIterator[bytes]:
        for _ in range(200):
            yield b"x" * 65536

    async with serving(handler) as port:
        transport = HttpTransport(f"http://127.0.0.1:{port}")
        assert await whole(transport, Request(method="POST", target="/", body=endless())) == (413, b"big")


@pytest.mark.parametrize(
    "answer", [b"", b"nonsense\r\n\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\ncut"], ids=["none", "bad", "cut"]
)
async def test_a_missing_or_broken_response_is_an_error(answer: bytes) -> None:
    async with serving(recorded([], answer)) as port:
        with pytest.raises(TransportError):
            await whole(HttpTransport(f"http://127.0.0.1:{port}"), Request(method="GET", target="/"))


async def test_a_closed_port_is_an_error_with_its_reason() -> None:
    with pytest.raises(TransportError, match=r"(?i)refused|connect"):
        await whole(HttpTransport("http://127.0.0.1:9"), Request(method="GET", target="/"))


@pytest.mark.parametrize("address", ["nonsense", "ftp://host", "http://", "http://h:99999", "http://exämple..com"])
async def test_an_invalid_address_is_refused(address: str) -> None:
    with pytest.raises(ValueError, match=r".+"):
        HttpTransport(address)


async def test_a_proxy_gets_the_whole_url(monkeypatch: pytest.MonkeyPatch) -> None:
    heads: list[bytes] = []
    async with serving(recorded(heads)) as port:
        monkeypatch.setenv("http_proxy", f"http://me:word@127.0.0.1:{port}")
        transport = HttpTransport("http://apex.invalid:8420", trust_env=True)
        assert await whole(transport, Request(method="GET", target="/healthz")) == (200, b"ok")
    assert heads[0].startswith(b"GET http://apex.invalid:8420/healthz HTTP/1.1\r\n")
    assert base64.b64encode(b"me:word") in heads[0]


async def test_a_host_in_no_proxy_is_reached_directly(monkeypatch: pytest.MonkeyPatch) -> None:
    heads: list[bytes] = []
    async with serving(recorded(heads)) as port:
        monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
        monkeypatch.setenv("no_proxy", "127.0.0.1")
        transport = HttpTransport(f"http://127.0.0.1:{port}", trust_env=True)
        assert (await whole(transport, Request(method="GET", target="/")))[0] == 200
    assert heads[0].startswith(b"GET / ")


@pytest.fixture
def certificate(tmp_path: Path) -> Path:
    return self_signed(tmp_path)


async def test_https_works_directly_and_through_a_proxy(certificate: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    secure = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    secure.load_cert_chain(certificate)
    asked: list[bytes] = []

    async def proxy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.append(await reader.readuntil(b"\r\n\r\n"))
        target = asked[0].split()[1].decode()
        far_reader, far_writer = await asyncio.open_connection("127.0.0.1", int(target.rpartition(":")[2]))
        writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")

        async def copy(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
            while data := await source.read(65536):
                sink.write(data)
            sink.close()

        await asyncio.gather(copy(reader, far_writer), copy(far_reader, writer))

    async with serving(recorded([]), secure) as port, serving(proxy) as proxy_port:
        address = f"https://localhost:{port}"
        with pytest.raises(TransportError, match="certificate"):
            await whole(HttpTransport(address), Request(method="GET", target="/"))
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
        assert await whole(HttpTransport(address), Request(method="GET", target="/")) == (200, b"ok")
        monkeypatch.setenv("https_proxy", f"127.0.0.1:{proxy_port}")
        proxied = HttpTransport(address, trust_env=True)
        assert await whole(proxied, Request(method="GET", target="/")) == (200, b"ok")
    assert asked[0].startswith(f"CONNECT localhost:{port} HTTP/1.1".encode())
