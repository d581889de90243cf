"""Granted hosts: whoever connects inside is connected by the server, to that host and no other."""

import asyncio
import ipaddress
import logging
import socket
from types import TracebackType

from apexbridge.sandbox.launcher_client import Cell, LaunchError
from apexbridge.sandbox.models import Grants

CONNECT_SECONDS = 15
PIECE_BYTES = 64 * 1024
MAX_CONNECTIONS = 64
"""At once, for one run."""
_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")
_NEVER_PUBLIC = [
    ipaddress.IPv6Network(text)
    for text in (
        "64:ff9b:1::/48",  # NAT64 for a network of one's own
        "2001::/32",  # Teredo
        "::/96",  # IPv4-compatible, long given up
    )
]
_CLOUD_SERVICES = {ipaddress.IPv4Address("168.63.129.16")}
"""Public by their number, and yet the host's own: Azure's virtual machines are steered from here."""
logger = logging.getLogger(__name__)


Place = tuple[str, int, str]
"""Where a granted host is found inside: an address, a port, and the name that leads there."""


def places(grants: Grants) -> list[Place]:
    """A place for each granted host and port: its own number, or one of loopback's."""
    found: dict[tuple[str, int], Place] = {}
    numbers: dict[str, str] = {}
    for host, port in grants.hosts:
        address = "127.0.0.1" if host == "localhost" else host
        if not _is_address(address):
            address = numbers.setdefault(host, f"127.83.{len(numbers) // 250}.{len(numbers) % 250 + 1}")
        found.setdefault((address, port), (address, port, host))
    return list(found.values())


class GrantedHosts:
    """Answers on the sockets of one run for as long as it lasts."""

    def __init__(self, grants: Grants, cell: Cell) -> None:
        self._places = places(grants)
        self._cell = cell
        self._servers: list[asyncio.Server] = []
        self._connections: set[asyncio.Task[None]] = set()
        self._opening: asyncio.Task[None] | None = None
        self._is_closing = False

    async def __aenter__(self) -> "GrantedHosts":
        if self._places:
            self._opening = asyncio.create_task(self._open())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._is_closing = True
        if self._opening is not None:
            self._opening.cancel()
            await asyncio.wait([self._opening])
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
        for descriptor, (_, port, host) in zip(descriptors, self._places, strict=True):
            listener = socket.socket(fileno=descriptor)
            listener.setblocking(False)

            async def answer(
                reader: asyncio.StreamReader, writer: asyncio.StreamWriter, host: str = host, port: int = port
            ) -> None:
                await self._answer(reader, writer, host, port)

            self._servers.append(await asyncio.start_server(answer, sock=listener))

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, host: str, port: int) -> None:
        task = asyncio.current_task()
        if task is None or len(self._connections) >= MAX_CONNECTIONS:
            writer.close()
            return
        self._connections.add(task)
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                address = await _resolve(host, port)
                far_reader, far_writer = await asyncio.open_connection(*address)
            try:
                async with asyncio.TaskGroup() as both:
                    both.create_task(_pour(reader, far_writer))
                    both.create_task(_pour(far_reader, writer))
                far_writer.close()
            except BaseException:
                far_writer.transport.abort()
                raise
        except* (OSError, TimeoutError) as error:
            logger.info("%s:%s could not be reached for a run, or broke off: %s", host, port, error.exceptions[0])
            writer.transport.abort()  # what broke off there breaks off here
        except* asyncio.CancelledError:
            if not self._is_closing:
                raise
        finally:
            self._connections.discard(task)
            writer.close()


async def _resolve(host: str, port: int) -> tuple[str, int]:
    """The address to connect to. A name must not lead into the operator's own network: that is granted by number."""
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    addresses = [str(entry[4][0]) for entry in found]
    if host == "localhost" or _is_address(host):
        return addresses[0], port
    outside = [address for address in addresses if is_public(address)]
    if not outside:
        raise OSError(f"{host} leads to {', '.join(addresses)}, which has to be granted by its number")
    return outside[0], port


def is_public(text: str) -> bool:
    """Whether an address is one of the internet's, also by what an IPv6 address leads to through a translator."""
    address = ipaddress.ip_address(text.partition("%")[0])
    if isinstance(address, ipaddress.IPv6Address):
        if any(address in network for network in _NEVER_PUBLIC):
            return False
        inner = _translated(address)
        if inner is not None:
            address = inner
    return address.is_global and not address.is_multicast and address not in _CLOUD_SERVICES


def _translated(address: ipaddress.IPv6Address) -> ipaddress.IPv4Address | None:
    """The IPv4 address inside one of IPv6, if it has one."""
    if address in _NAT64:
        return ipaddress.IPv4Address(int(address) & 0xFFFF_FFFF)
    return address.ipv4_mapped or address.sixtofour


async def _pour(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
    """One direction; its end is passed on, so that protocols which wait for it work."""
    while piece := await source.read(PIECE_BYTES):
        target.write(piece)
        await target.drain()
    if target.can_write_eof():
        target.write_eof()


def _is_address(host: str) -> bool:
    try:
        ipaddress.IPv4Address(host)
    except ValueError:
        return False
    return True
