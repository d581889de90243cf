"""Runs the HTTP server: bind, announce the address, serve, clean up."""

import asyncio
import gc
import json
import os
import resource
import secrets
import socket
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from types import FrameType
from typing import Any, cast

import uvicorn

from apexbridge.bridge import Bridge
from apexbridge.errors import ServerError
from apexbridge.settings import KeysRequired
from apexbridge.storage.directory import SERVER_FILE
from apexbridge.surfaces.http.app import create_app
from apexbridge.surfaces.http.middleware.auth import Access, is_loopback, needs_keys
from apexbridge.surfaces.http.transport.protocol import LimitedProtocol

DRAIN_SECONDS = 30
THREADS = 40
"""For blocking work. asyncio's default, four more than there are cores, is too few to wait for disks."""
DESCRIPTORS = 65_536
GC_ALLOCATIONS = 10_000
"""Allocations between two collections of the youngest generation. Reference counting frees nearly all objects."""
SHARE_OF_CONNECTIONS = 2
"""At most one in this many descriptors is a client connection. The others are for upstreams, runs and files."""
UNSENT_BYTES = 32 * 1024
"""Unsent bytes of a response that the kernel buffers. More would hide for minutes that a client does not read."""
RUN_SECONDS = 10
"""How long runs may continue after the signal to stop."""


def check_host(host: str, *, required: KeysRequired = "auto", has_keys: bool = False) -> None:
    """Refuse to listen on an address that other machines can reach, unless API keys protect it."""
    if is_loopback(host) or required == "true" or (required == "auto" and has_keys):
        return
    if required == "false":
        reason = "APEX_API_KEYS_REQUIRED=false allows every request. Remove that setting, or use --host 127.0.0.1."
    else:
        create = "apex keys create --name NAME --scope chat,read,run"
        reason = f"there is no valid API key. Create one first with: {create}. Or use --host 127.0.0.1."
    raise ServerError(f"{host} can be reached from other machines, and {reason}", code="FORBIDDEN")


async def serve(
    bridge: Bridge,
    listener: socket.socket,
    announce: Callable[[str, str], None],
    *,
    keys_required: bool | None = None,
    stop: asyncio.Event | None = None,
) -> None:
    """Serve until a signal to stop, or until `stop` is set.

    `announce` is called with the URL and the owner's key when clients can connect. `keys_required` replaces the
    setting.
    """
    max_connections = _allow_many_connections()
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(THREADS))
    await asyncio.to_thread(bridge.disk.ballast.fill)
    host, port = listener.getsockname()[:2]
    owner = secrets.token_urlsafe(32)
    if keys_required is None:
        keys_required = needs_keys(bridge.settings.api_keys_required, host)
    app = create_app(bridge, Access(bound=host, keys_required=keys_required, owner=owner))
    config = uvicorn.Config(
        app,
        loop="none",  # use the running event loop
        http=cast(Any, partial(LimitedProtocol, max_connections=max_connections)),
        ws="none",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,  # no decision depends on what a proxy reports about a client
        timeout_graceful_shutdown=DRAIN_SECONDS,
    )
    url = f"http://{f'[{host}]' if ':' in host else host}:{port}"
    # Collections block the event loop: exclude the objects that exist at startup, and collect less often.
    gc.collect()
    gc.freeze()
    gc.set_threshold(GC_ALLOCATIONS, 20, 20)

    def end_streams() -> None:
        app.state.mcp.end_streams()
        bridge.events.feed.close()

    with _announced(bridge, url, owner):
        announce(url, owner)
        server = _Server(
            config,
            end_streams=end_streams,
            end_runs=bridge.runs.cancel_all,
            run_seconds=RUN_SECONDS if stop is None else 0,
        )
        stopping = asyncio.ensure_future(server.stop_after(stop)) if stop is not None else None
        try:
            await server.serve(sockets=[listener])
        finally:
            if stopping is not None:
                stopping.cancel()


def bind(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if option := getattr(socket, "TCP_NOTSENT_LOWAT", None):  # accepted connections inherit it
        with suppress(OSError):
            listener.setsockopt(socket.IPPROTO_TCP, option, UNSENT_BYTES)
    try:
        listener.bind((host, port))
        listener.listen(2048)
    except OSError as error:
        listener.close()
        raise ServerError(
            f"Cannot listen on {host}:{port}: {error.strerror}. Name another port with --port; 0 takes a free one.",
            code="ADDRESS_IN_USE",
        ) from error
    return listener


def _allow_many_connections() -> int:
    """Raise the limit of open files, which is often 1,024, and return how many connections may be open."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    target = DESCRIPTORS if hard == resource.RLIM_INFINITY else min(DESCRIPTORS, hard)
    if soft < target:
        resource.setrlimit(resource.RLIMIT_NOFILE, (target, hard))
    return max(soft, target) // SHARE_OF_CONNECTIONS


@contextmanager
def _announced(bridge: Bridge, url: str, owner: str) -> Iterator[None]:
    """Write the URL and the owner's key to `server.json`, for later commands. Only the owner can read the file.

    A process that can read it can also read and change the database next to it, so the key grants nothing more.
    """
    path = bridge.settings.data_dir / SERVER_FILE
    draft = path.with_suffix(".tmp")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
    with os.fdopen(descriptor, "w") as file:
        json.dump({"url": url, "pid": os.getpid(), "instance": bridge.instance, "key": owner}, file)
    draft.replace(path)
    try:
        yield
    finally:
        path.unlink(missing_ok=True)


class _Server(uvicorn.Server):
    """Drains on the first signal and stops immediately on the second. The caller can clean up after either."""

    def __init__(
        self,
        config: uvicorn.Config,
        *,
        end_streams: Callable[[], None],
        end_runs: Callable[[], None],
        run_seconds: float = RUN_SECONDS,
    ) -> None:
        super().__init__(config)
        self._run_seconds = run_seconds
        self._end_streams = end_streams
        self._end_runs = end_runs
        self._loop = asyncio.get_running_loop()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Do not record the signal: uvicorn would raise it again after serving and end the process during cleanup."""
        self.force_exit = self.should_exit
        self.should_exit = True
        self._loop.call_soon_threadsafe(self._end_streams)  # they have no end of their own
        # Runs that take longer are cancelled while there is still time to answer the waiting clients.
        self._loop.call_soon_threadsafe(self._loop.call_later, self._run_seconds, self._end_runs)

    async def stop_after(self, event: asyncio.Event) -> None:
        """Stop when the event is set, as after two signals: the only client is gone."""
        await event.wait()
        self._end_streams()
        self._end_runs()
        self.should_exit = True
