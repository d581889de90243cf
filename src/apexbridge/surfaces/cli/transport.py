"""HTTP/1.1 for commands: one request on one connection, over a socket.

h11 and asyncio are enough for that. Importing httpx costs as much CPU as everything else that a short command does.
"""

import asyncio
import os
import ssl
from base64 import b64encode
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Protocol
from urllib.parse import SplitResult, unquote, urlsplit

import h11

CONNECT_SECONDS = 5.0
SILENCE_SECONDS = 3600.0
"""Longest wait for data. It is long because a run may be queued or work without output for a long time."""
READ_BYTES = 64 * 1024
_PORTS = {"http": 80, "https": 443}


class TransportError(Exception):
    """No response, or an incomplete one."""


class NoConnectionError(TransportError):
    """Nothing was sent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    method: str
    target: str
    """Path and query, encoded."""
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes | AsyncIterator[bytes] = b""


@dataclass(frozen=True, slots=True, kw_only=True)
class Response:
    status: int
    headers: Mapping[str, str]
    """Names are in lower case."""
    chunks: AsyncIterator[bytes]
    """The body, as it arrives."""


class Transport(Protocol):
    """Sends requests to a server."""

    @property
    def address(self) -> str: ...

    def send(self, request: Request) -> AbstractAsyncContextManager[Response]:
        """Send a request and yield the response. Leaving the block disconnects. Raises TransportError."""


class HttpTransport:
    """Connects to a URL. With `trust_env`, proxies of the environment are used."""

    def __init__(self, address: str, key: str | None = None, *, trust_env: bool = False) -> None:
        """Raises ValueError if the address is not an http or https URL."""
        self.address = address
        self._url = urlsplit(address)
        self._host = (self._url.hostname or "").encode("idna").decode("ascii")
        self._port = self._url.port or _PORTS.get(self._url.scheme, 0)
        if self._url.scheme not in _PORTS or not self._host:
            raise ValueError(address)
        self._headers = _authorization(self._url, key)
        self._proxy = _proxy_for(self._url) if trust_env else None

    @asynccontextmanager
    async def send(self, request: Request) -> AsyncIterator[Response]:
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                reader, writer = await self._connect()
        except TimeoutError as error:
            raise NoConnectionError(f"no connection within {CONNECT_SECONDS:.0f} s") from error
        except OSError as error:
            raise NoConnectionError(error.strerror or str(error)) from error
        try:
            exchange = _Exchange(reader, writer)
            try:
                head = await exchange.start(self._head(request), request.body)
            except (h11.ProtocolError, OSError) as error:
                raise TransportError(str(error) or type(error).__name__) from error
            headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in head.headers}
            yield Response(status=head.status_code, headers=headers, chunks=exchange.chunks())
        finally:
            writer.close()
            with suppress(OSError, TimeoutError):
                async with asyncio.timeout(1):
                    await writer.wait_closed()

    def _head(self, request: Request) -> h11.Request:
        headers = {"host": self._netloc, "accept": "*/*", "accept-encoding": "identity", "connection": "close"}
        headers |= {**self._headers, **request.headers}
        if not isinstance(request.body, bytes):
            headers.setdefault("transfer-encoding", "chunked")
        elif request.body or request.method in ("POST", "PUT", "PATCH"):
            headers["content-length"] = str(len(request.body))
        target = self._url.path.rstrip("/") + request.target
        if self._proxy is not None and self._url.scheme == "http":  # the proxy needs the whole URL
            target = f"http://{self._netloc}{target}"
            headers |= _proxy_authorization(self._proxy)
        return h11.Request(method=request.method, target=target, headers=list(headers.items()))

    @property
    def _netloc(self) -> str:
        host = f"[{self._host}]" if ":" in self._host else self._host
        return host if self._port == _PORTS[self._url.scheme] else f"{host}:{self._port}"

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        is_secure = self._url.scheme == "https"
        if self._proxy is None:
            secure = ssl.create_default_context() if is_secure else None
            return await asyncio.open_connection(self._host, self._port, ssl=secure)
        port = self._proxy.port or _PORTS.get(self._proxy.scheme, 80)
        reader, writer = await asyncio.open_connection(self._proxy.hostname, port)
        if is_secure:
            await self._tunnel(reader, writer, self._proxy)
        return reader, writer

    async def _tunnel(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, proxy: SplitResult) -> None:
        """Ask the proxy for a connection to the server, and start TLS on it."""
        authority = f"{f'[{self._host}]' if ':' in self._host else self._host}:{self._port}"
        headers = {"host": authority, **_proxy_authorization(proxy)}
        try:
            request = h11.Request(method="CONNECT", target=authority, headers=list(headers.items()))
            head = await _Exchange(reader, writer).start(request, b"")
        except h11.ProtocolError as error:
            raise OSError(f"the proxy {proxy.hostname} did not answer: {error}") from error
        if not 200 <= head.status_code < 300:
            raise OSError(f"the proxy {proxy.hostname} refused the connection with {head.status_code}")
        await writer.start_tls(ssl.create_default_context(), server_hostname=self._host)


class _Exchange:
    """One request and its response."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._state = h11.Connection(h11.CLIENT)

    async def start(self, head: h11.Request, body: bytes | AsyncIterator[bytes]) -> h11.Response:
        """Send the request and return the head of the response."""
        self._write(head)
        try:
            if isinstance(body, bytes):
                await self._send(body)
            else:
                async for chunk in body:
                    await self._send(chunk)
        except ConnectionError:  # the server may refuse a body before it is complete: read its response
            self._state.send_failed()
        else:
            self._write(h11.EndOfMessage())
            with suppress(ConnectionError):
                await self._writer.drain()
        while True:
            event = await self._next()
            if isinstance(event, h11.Response):
                return event

    async def chunks(self) -> AsyncIterator[bytes]:
        try:
            while isinstance(event := await self._next(), h11.Data):
                yield bytes(event.data)
        except (h11.ProtocolError, OSError) as error:
            raise TransportError(str(error) or type(error).__name__) from error

    async def _send(self, data: bytes) -> None:
        if data:
            self._write(h11.Data(data=data))
            await self._writer.drain()

    def _write(self, event: h11.Request | h11.Data | h11.EndOfMessage) -> None:
        if data := self._state.send(event):
            self._writer.write(data)

    async def _next(self) -> object:
        while (event := self._state.next_event()) is h11.NEED_DATA:
            async with asyncio.timeout(SILENCE_SECONDS):
                self._state.receive_data(await self._reader.read(READ_BYTES))
        if isinstance(event, h11.ConnectionClosed):
            raise h11.RemoteProtocolError("the server closed the connection without an answer")
        return event


def _authorization(url: SplitResult, key: str | None) -> dict[str, str]:
    if key:
        return {"authorization": f"Bearer {key}"}
    return {"authorization": _basic(url)} if url.username else {}


def _proxy_authorization(proxy: SplitResult) -> dict[str, str]:
    return {"proxy-authorization": _basic(proxy)} if proxy.username else {}


def _basic(url: SplitResult) -> str:
    pair = f"{unquote(url.username or '')}:{unquote(url.password or '')}"
    return f"Basic {b64encode(pair.encode()).decode('ascii')}"


def _proxy_for(url: SplitResult) -> SplitResult | None:
    """The proxy that the environment names for a URL; None if there is none."""
    if not any(name.lower().endswith("_proxy") for name in os.environ):
        return None
    from urllib.request import getproxies_environment, proxy_bypass  # slow to import, and rarely needed

    proxies = getproxies_environment()
    address = proxies.get(url.scheme) or proxies.get("all")
    if not address or proxy_bypass(url.hostname or ""):
        return None
    proxy = urlsplit(address if "://" in address else f"http://{address}")
    if proxy.scheme != "http" or not proxy.hostname:
        raise ValueError(f"the proxy {proxy.scheme}://{proxy.hostname} cannot be used")
    return proxy
