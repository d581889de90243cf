"""Connections to the addresses of sources. Names are resolved here, checked, and the checked address is connected to.

Without this, a client could have the server fetch from private networks: by naming an address, by a redirect, or by a
name whose address changes between the check and the connection.
"""

import asyncio
import hmac
import ipaddress
import secrets
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import aiohttp
from aiohttp.abc import AbstractResolver, ResolveResult

from apexbridge.errors import RequestError
from apexbridge.sandbox.proxy import is_public

CONNECT_SECONDS = 15
CHUNK_BYTES = 64 * 1024
MAX_CONNECTIONS = 16
_VERSION, _AUTHENTICATE, _CONNECT = 5, 2, 1
_DONE, _REFUSED, _UNREACHABLE = 0, 2, 4
_IPV4, _NAME, _IPV6 = 1, 3, 4


class Egress:
    """Resolves hosts to addresses that sources may have."""

    def __init__(self, *, allow_private: bool) -> None:
        self.allow_private = allow_private

    async def resolve(self, host: str, port: int, family: int = 0) -> list[str]:
        """The addresses of a host to which connections are allowed.

        Raises:
            RequestError: ADDRESS_REFUSED if all of them are private, SOURCE_UNREACHABLE if there is none.
        """
        try:
            entries = await asyncio.get_running_loop().getaddrinfo(host, port, family=family, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError) as error:
            raise RequestError(
                f"The host {host} was not found. Check the address and the network of the server.",
                code="SOURCE_UNREACHABLE",
            ) from error
        addresses = list(dict.fromkeys(str(entry[4][0]) for entry in entries))
        allowed = [address for address in addresses if self.allow_private or is_public(address)]
        if not allowed:
            raise RequestError(
                f"{host} has a private address, from which skills are not installed. If this is a server of your own, "
                "set APEX_INSTALL_PRIVATE_ADDRESSES=true.",
                code="ADDRESS_REFUSED",
            )
        return allowed


class CheckedResolver(AbstractResolver):
    """Resolves names for aiohttp. Addresses in URLs do not pass through a resolver: `check_literal` is for those."""

    def __init__(self, egress: Egress) -> None:
        self._egress = egress

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        addresses = await self._egress.resolve(host, port, family)
        return [
            ResolveResult(
                hostname=host,
                host=address,
                port=port,
                family=socket.AF_INET6 if ":" in address else socket.AF_INET,
                proto=socket.IPPROTO_TCP,
                flags=socket.AI_NUMERICHOST,
            )
            for address in addresses
        ]

    async def close(self) -> None:
        pass


def http_session(egress: Egress) -> aiohttp.ClientSession:
    """A client that connects to allowed addresses only, without cookies and proxies of the environment."""
    connector = aiohttp.TCPConnector(resolver=CheckedResolver(egress), use_dns_cache=False, force_close=True)
    return aiohttp.ClientSession(connector=connector, cookie_jar=aiohttp.DummyCookieJar(), auto_decompress=False)


async def check_literal(egress: Egress, host: str, port: int) -> None:
    """Check a host that is written as an address. Raises RequestError: ADDRESS_REFUSED."""
    with suppress(ValueError):
        ipaddress.ip_address(host)
        await egress.resolve(host, port)


class EgressProxy:
    """A SOCKS5 proxy on loopback for one `git`, which resolves names and follows redirects on its own.

    Other users of the machine do not know its password. `refusal` is the first connection that was not allowed.
    """

    def __init__(self, egress: Egress, *, max_bytes: int) -> None:
        self._egress = egress
        self._left = max_bytes
        self._password = secrets.token_hex(16)
        self._connections: set[asyncio.Task[None]] = set()
        self.refusal: RequestError | None = None
        self.is_exhausted = False
        """Whether more than `max_bytes` were sent by the other side."""

    @asynccontextmanager
    async def listening(self) -> AsyncIterator[str]:
        """Yields the URL of the proxy. The name of a host is sent to it as it is: `socks5h`."""
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        try:
            yield f"socks5h://git:{self._password}@127.0.0.1:{port}"
        finally:
            server.close()
            for task in self._connections:
                task.cancel()
            if self._connections:
                await asyncio.wait(self._connections)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        if task is None or len(self._connections) >= MAX_CONNECTIONS:
            writer.close()
            return
        self._connections.add(task)
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                host, port = await self._handshake(reader, writer)
                remote_reader, remote_writer = await self._connect(writer, host, port)
            try:
                async with asyncio.TaskGroup() as both:
                    both.create_task(self._pump(reader, remote_writer, is_counted=False))
                    both.create_task(self._pump(remote_reader, writer, is_counted=True))
            finally:
                remote_writer.transport.abort()
        except* (OSError, TimeoutError, EOFError, ValueError, RequestError):
            pass  # git reports a closed connection, and `refusal` the reason
        except* asyncio.CancelledError:
            pass  # only `listening` cancels it, and waits
        finally:
            self._connections.discard(task)
            writer.transport.abort()

    async def _handshake(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> tuple[str, int]:
        """Host and port that the client wants. Raises ValueError: it is not SOCKS5, or the password is wrong."""
        version, count = await reader.readexactly(2)
        methods = await reader.readexactly(count)
        if version != _VERSION or _AUTHENTICATE not in methods:
            raise ValueError("not a client with a password")
        writer.write(bytes([_VERSION, _AUTHENTICATE]))
        _, length = await reader.readexactly(2)
        await reader.readexactly(length)
        (length,) = await reader.readexactly(1)
        is_known = hmac.compare_digest(await reader.readexactly(length), self._password.encode())
        writer.write(bytes([1, 0 if is_known else 1]))
        if not is_known:
            raise ValueError("wrong password")
        _, command, _, kind = await reader.readexactly(4)
        if kind == _NAME:
            (length,) = await reader.readexactly(1)
            host = (await reader.readexactly(length)).decode("ascii")
        elif kind in (_IPV4, _IPV6):
            host = str(ipaddress.ip_address(await reader.readexactly(4 if kind == _IPV4 else 16)))
        else:
            raise ValueError("unknown kind of address")
        port = int.from_bytes(await reader.readexactly(2), "big")
        if command != _CONNECT:
            raise ValueError("unknown command")
        return host, port

    async def _connect(
        self, writer: asyncio.StreamWriter, host: str, port: int
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        try:
            addresses = await self._egress.resolve(host, port)
        except RequestError as error:
            self.refusal = self.refusal or error
            writer.write(_answer(_REFUSED))
            await writer.drain()
            raise
        failure: OSError | None = None
        for address in addresses:
            try:
                opened = await asyncio.open_connection(address, port)
            except OSError as error:
                failure = error
                continue
            writer.write(_answer(_DONE))
            return opened
        writer.write(_answer(_UNREACHABLE))
        await writer.drain()
        raise failure or OSError("no address")

    async def _pump(self, source: asyncio.StreamReader, target: asyncio.StreamWriter, *, is_counted: bool) -> None:
        while chunk := await source.read(CHUNK_BYTES):
            if is_counted:
                self._left -= len(chunk)
                if self._left < 0:
                    self.is_exhausted = True
                    raise OSError("too much was sent")
            target.write(chunk)
            await target.drain()
        if target.can_write_eof():
            target.write_eof()


def _answer(code: int) -> bytes:
    answer: list[Any] = [_VERSION, code, 0, _IPV4, 0, 0, 0, 0, 0, 0]
    return bytes(answer)
