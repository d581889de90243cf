"""A server in this process, for `apex mcp` without a running one. Other commands find and use it meanwhile."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from apexbridge.bridge import Bridge
from apexbridge.settings import load_settings
from apexbridge.surfaces.cli.transport import HttpTransport
from apexbridge.surfaces.http.serve import bind, serve

HOST = "127.0.0.1"


@asynccontextmanager
async def own_server(data_dir: Path) -> AsyncIterator[tuple[HttpTransport, "asyncio.Future[None]"]]:
    """Open the data directory and serve it on a free loopback port, for the owner of the directory only.

    Yields the connection to it, and a future that is done when a signal stopped the server.
    """
    settings = load_settings(data_dir=str(data_dir))
    stop = asyncio.Event()
    announced: asyncio.Future[HttpTransport] = asyncio.get_running_loop().create_future()

    def announce(url: str, owner: str) -> None:
        announced.set_result(HttpTransport(url, owner))

    async with Bridge.open(settings, indexing="background") as bridge:
        with bind(HOST, 0) as listener:
            serving = asyncio.ensure_future(serve(bridge, listener, announce, keys_required=True, stop=stop))
            try:
                waits: list[asyncio.Future[Any]] = [serving, announced]
                await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
                if not announced.done():
                    await serving
                yield announced.result(), serving
            finally:
                stop.set()
                await asyncio.wait([serving])
