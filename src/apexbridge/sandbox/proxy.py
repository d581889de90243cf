"""The proxy for granted hosts: the server forwards connections from inside the sandbox to that host and no other."""

import asyncio
import ipaddress
import logging
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

from apexbridge.sandbox.launcher_client import CellHandle
from apexbridge.sandbox.models import Grants, LaunchError

CONNECT_SECONDS = 15
CHUNK_BYTES = 64 * 1024
MAX_CONNECTIONS = 64
"""At a time, for one run."""
_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")
_NEVER_PUBLIC = [
    ipaddress.IPv6Network(text)
    for text in (
        "64:ff9b:1::/48",  # NAT64 of a local network
        "2001::/32",  # Teredo
        "::/96",  # IPv4-compatible, deprecated
    )
]
_CLOUD_SERVICES = {ipaddress.IPv4Address("168.63.129.16")}
"""Public addresses that belong to the host: Azure controls its virtual machines from this one."""
logger = logging.getLogger(__name__)

HostEndpoint = tuple[str, int, str]
"""A granted host inside the sandbox: address, port, and host name."""


def host_endpoints(grants: Grants) -> list[HostEndpoint]:
    """An endpoint for each granted host and port: its own IP address, or a loopback address for a name."""
    endpoints: dict[tuple[str, int], HostEndpoint] = {}
    addresses: dict[str, str] = {}
    for host, port in grants.hosts:
        address = "127.0.0.1" if host == "localhost" else host
        if not _is_address(address):
            address = addresses.setdefault(host, f"127.83.{len(addresses) // 250}.{len(addresses) % 250 + 1}")
        endpoints.setdefault((address, port), (address, port, host))
    return list(endpoints.values())


class GrantedHosts:
    def __init__(self, grants: Grants, cell: CellHandle) -> None:
        self._endpoints = host_endpoints(grants)
        self._cell = cell
        self._servers: list[asyncio.Server] = []
        self._connections: set[asyncio.Task[None]] = set()
        self._is_closing = False

    @asynccontextmanager
    async def reachable(self) -> AsyncIterator[None]:
        if not self._endpoints:
            yield
            return
        opening = asyncio.create_task(self._open())
        try:
            yield
        finally:
            self._is_closing = True
            opening.cancel()
            await asyncio.wait([opening])
            for server in self._servers:
                server.close()
            for task in self._connections:
                task.cancel()
            if self._connections:
                await asyncio.wait(self._connections)

    async def _open(self) -> None:
        try:
            descriptors = await asyncio.shield(self._cell.listening)
        except LaunchError as error:
            logger.warning("granted hosts cannot be reached: %s", error)
            return
        for descriptor, (_, port, host) in zip(descriptors, self._endpoints, strict=True):
            listener = socket.socket(fileno=descriptor)
            listener.setblocking(False)
            self._servers.append(await asyncio.start_server(partial(self._forward, host, port), sock=listener))

    async def _forward(self, host: str, port: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        if task is None or len(self._connections) >= MAX_CONNECTIONS:
            writer.close()
            return
        self._connections.add(task)
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                address = await _resolve(host, port)
                remote_reader, remote_writer = await asyncio.open_connection(*address)
            try:
                async with asyncio.TaskGroup() as both:
                    both.create_task(_pump(reader, remote_writer))
                    both.create_task(_pump(remote_reader, writer))
                remote_writer.close()
            except BaseException:
                remote_writer.transport.abort()
                raise
        except* (OSError, TimeoutError) as error:
            logger.info("%s:%s cannot be reached for a run, or disconnected: %s", host, port, error.exceptions[0])
            writer.transport.abort()  # pass the failure on to the run
        except* asyncio.CancelledError:
            if not self._is_closing:
                raise
        finally:
            self._connections.discard(task)
            writer.close()


async def _resolve(host: str, port: int) -> tuple[str, int]:
    """The address to connect to. A name must not resolve to a private address: those are granted as IP addresses."""
    entries = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    addresses = [str(entry[4][0]) for entry in entries]
    if host == "localhost" or _is_address(host):
        return addresses[0], port
    public = [address for address in addresses if is_public(address)]
    if not public:
        raise OSError(f"{host} resolves to {', '.join(addresses)}; a private address must be granted as an IP address")
    return public[0], port


def is_public(text: str) -> bool:
    """Whether an address is on the internet; for IPv6 addresses that contain an IPv4 address, whether that one is."""
    address = ipaddress.ip_address(text.partition("%")[0])
    if isinstance(address, ipaddress.IPv6Address):
        if any(address in network for network in _NEVER_PUBLIC):
            return False
        if address in _NAT64:
            address = ipaddress.IPv4Address(int(address) & 0xFFFF_FFFF)
        else:
            address = address.ipv4_mapped or address.sixtofour or address
    return address.is_global and not address.is_multicast and address not in _CLOUD_SERVICES


async def _pump(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
    """Copy one direction; end of file is passed on, because some protocols wait for it."""
    while chunk := await source.read(CHUNK_BYTES):
        target.write(chunk)
        await target.drain()
    if target.can_write_eof():
        target.write_eof()


def _is_address(host: str) -> bool:
    try:
        ipaddress.IPv4Address(host)
    except ValueError:
        return False
    return True
