"""`apex mcp`: an MCP server on stdio."""

import asyncio
import sys
import time
from contextlib import suppress
from importlib import import_module

import typer

from apexbridge._tasks import in_thread
from apexbridge.errors import ApexBridgeError
from apexbridge.surfaces.cli import interrupts
from apexbridge.surfaces.cli.client import WAIT_SECONDS, attached
from apexbridge.surfaces.cli.connection import Connection, find_connection
from apexbridge.surfaces.cli.lazy_commands import lazy_group
from apexbridge.surfaces.cli.session import DataDir, Url
from apexbridge.surfaces.cli.transport import HttpTransport, Transport
from apexbridge.surfaces.mcp.extra import is_installed, not_installed
from apexbridge.surfaces.mcp.relay import END_SECONDS, Relay
from apexbridge.surfaces.mcp.stdio import Stdio

CHECK_SECONDS = 0.1
app = typer.Typer(cls=lazy_group("mcp"), rich_markup_mode=None, invoke_without_command=True, no_args_is_help=False)


@app.callback()
def mcp(context: typer.Context, data_dir: DataDir = None, url: Url = None) -> None:
    """MCP server on stdio, for clients that start it. Uses the running server, or opens the data directory."""
    if context.invoked_subcommand is not None:
        return
    connection = find_connection(data_dir=data_dir, url=url)
    if connection.url is None and not is_installed():
        raise not_installed()
    if sys.stdin.isatty():
        sys.stderr.write("MCP clients start this command and talk to it. Stop it with Ctrl-C.\n")
    interrupts.leave_to_python()
    asyncio.run(_relay(connection))


async def _relay(connection: Connection) -> None:
    stdio = Stdio()
    servers = _Servers(connection)
    relay = Relay(servers, stdio.write)
    reading = asyncio.ensure_future(relay.run(stdio.lines()))
    ended = asyncio.ensure_future(servers.ended.wait())
    try:
        await asyncio.wait([reading, ended], return_when=asyncio.FIRST_COMPLETED)
        deadline = time.monotonic() + END_SECONDS
        while relay.is_busy and not stdio.is_gone and time.monotonic() < deadline:
            await relay.settle(CHECK_SECONDS)
    finally:
        reading.cancel()
        ended.cancel()
        stdio.close()
        with suppress(OSError):
            await relay.close()
        await servers.close()
    with suppress(OSError, asyncio.CancelledError):  # the client closed the output
        await reading
    if servers.failure is not None:
        raise servers.failure


class _Servers:
    """Finds the server of the data directory. If there is none, it opens the directory in this process."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._found: HttpTransport | None = None
        self._lock = asyncio.Lock()
        self._own: asyncio.Task[None] | None = None
        self._stop = asyncio.Event()
        self.ended = asyncio.Event()
        """Set when there is nothing to relay to: no server can be opened, or a signal stopped it."""
        self.failure: ApexBridgeError | None = None

    async def transport(self) -> Transport:
        async with self._lock:
            if self._found is None:
                try:
                    self._found = await self._find()
                except ApexBridgeError as error:
                    self.failure = error
                    self.ended.set()
                    raise
            return self._found

    def lost(self, transport: Transport) -> None:
        if self._found is transport and self._connection.url is None:
            self._found = None

    async def _find(self) -> HttpTransport:
        deadline = time.monotonic() + WAIT_SECONDS
        while True:
            if (found := await attached(self._connection)) is not None:
                return found
            try:
                return await self._open()
            except ApexBridgeError as error:  # another process opened the directory first: use its server
                if error.code != "DATA_DIR_IN_USE" or time.monotonic() > deadline:
                    raise

    async def _open(self) -> HttpTransport:
        opened: asyncio.Future[HttpTransport] = asyncio.get_running_loop().create_future()
        self._own = asyncio.ensure_future(self._host(opened))
        return await opened

    async def _host(self, opened: "asyncio.Future[HttpTransport]") -> None:
        """Own the server in this process, from its start to its end."""
        stopping = asyncio.ensure_future(self._stop.wait())
        try:
            # These import the whole application, which would block the event loop.
            module = await in_thread(import_module, "apexbridge.surfaces.cli.own_server")
            async with module.own_server(self._connection.data_dir) as (transport, serving):
                opened.set_result(transport)
                await asyncio.wait([serving, stopping], return_when=asyncio.FIRST_COMPLETED)
            self.ended.set()
        except BaseException as error:
            if opened.done():
                raise
            opened.set_exception(error)
        finally:
            stopping.cancel()

    async def close(self) -> None:
        self._stop.set()
        if self._own is not None:
            await asyncio.wait([self._own])
