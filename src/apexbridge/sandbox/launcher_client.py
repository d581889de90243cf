"""The server's side of the launcher: one process with many cells, whose events resolve futures."""

import asyncio
import contextvars
import fcntl
import logging
import os
import socket
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Literal

from apexbridge.errors import ServerError
from apexbridge.sandbox.launcher import protocol
from apexbridge.sandbox.launcher.child_process import close_all
from apexbridge.sandbox.launcher.protocol import Attachment, LauncherConfig, StartRequest
from apexbridge.sandbox.launcher.removal import remove_tree
from apexbridge.sandbox.models import LaunchError
from apexbridge.sandbox.outcome import Ending
from apexbridge.sandbox.output import STREAMS

START_SECONDS = 20
STOP_SECONDS = 5
RETRY_SECONDS = 0.002
PIPE_BYTES = 256 * 1024
PipeName = Literal["stdin", "stdout", "stderr", "job"]
PIPE_NAMES: tuple[PipeName, ...] = ("stdin", "stdout", "stderr", "job")
logger = logging.getLogger(__name__)


class Pipes:
    """The pipes of a run: the server's non-blocking ends, and the run's ends until the run has them."""

    def __init__(self) -> None:
        self.ours: dict[PipeName, int] = {}
        self.theirs: list[int] = []
        try:
            for name in PIPE_NAMES:
                reader, writer = os.pipe2(os.O_CLOEXEC)
                self.ours[name] = reader if name in STREAMS else writer
                self.theirs.append(writer if name in STREAMS else reader)
                os.set_blocking(self.ours[name], False)
        except OSError:
            self.close()
            raise
        for stream in STREAMS:
            with suppress(OSError):  # above the user's limit for pipes
                fcntl.fcntl(self.ours[stream], fcntl.F_SETPIPE_SZ, PIPE_BYTES)

    def close_theirs(self) -> None:
        """Close the server's copies of the run's ends, so that end of file arrives when the run closes its own."""
        while self.theirs:
            os.close(self.theirs.pop())

    def close(self) -> None:
        self.close_theirs()
        while self.ours:
            os.close(self.ours.popitem()[1])


class CellHandle:
    def __init__(self, client: "LauncherClient") -> None:
        self.identity = uuid.uuid4().hex
        self.pipes = Pipes()
        self.etc_version = 0
        """The version of the host's /etc when a warm cell was started."""
        self._client = client
        loop = asyncio.get_running_loop()
        self.opened: asyncio.Future[list[int]] = loop.create_future()
        """Descriptors of the workspace and, if requested, of the folder for input files."""
        self.attached: asyncio.Future[None] = loop.create_future()
        self.extended: asyncio.Future[None] = loop.create_future()
        self.exited: asyncio.Future[Ending] = loop.create_future()
        self.closed: asyncio.Future[None] = loop.create_future()
        self.listening: asyncio.Future[list[int]] = loop.create_future()
        """Listening sockets of granted hosts."""

    async def start(self, request: StartRequest, *, with_job: bool) -> None:
        """Start the run with its ends of the pipes; `with_job` for a loader, which reads the job pipe."""
        files = self.pipes.theirs if with_job else self.pipes.theirs[:3]
        await self._client.send({"command": "start", "id": self.identity, "request": asdict(request)}, files)
        self.pipes.close_theirs()

    async def attach(self, attachment: Attachment) -> None:
        """Mount skills in a warm cell; `attached` resolves when that is done."""
        await self._client.send({"command": "attach", "id": self.identity, "attachment": asdict(attachment)})

    async def extend_disk(self, size: int, count: int) -> None:
        """Make the workspace larger for files that are copied into it; `extended` resolves when that is done."""
        await self._client.send({"command": "extend", "id": self.identity, "size": size, "count": count})

    def kill(self) -> None:
        """Kill everything in the cell; `exited` resolves when that is done."""
        self._client.send_soon({"command": "kill", "id": self.identity})

    async def close(self) -> None:
        self.pipes.close()
        if not self.closed.done():
            self._client.send_soon({"command": "close", "id": self.identity})
            await asyncio.wait([self.closed], timeout=STOP_SECONDS)
        if self.is_open:
            close_all(self.opened.result())
            self.opened.result().clear()

    @property
    def is_open(self) -> bool:
        return self.opened.done() and not self.opened.cancelled() and self.opened.exception() is None

    def handle_event(self, message: dict[str, Any], files: list[int]) -> None:
        match message["event"]:
            case "opened" if not self.opened.done():
                self.opened.set_result(files)
            case "listening" if not self.listening.done():
                self.listening.set_result(files)
            case "attached":
                _resolve(self.attached, None)
            case "extended":
                _resolve(self.extended, None)
            case "exited":
                ending = Ending(code=message["code"], verdict=message["verdict"], peak_memory=message["peak"])
                _resolve(self.exited, ending)
            case "closed":
                _resolve(self.closed, None)
            case "failed":
                error, command = LaunchError(message["error"]), message["command"]
                if command == "open":
                    _reject(self.opened, error)
                # A cell that was not opened cannot start either.
                _reject({"attach": self.attached, "extend": self.extended}.get(command, self.exited), error)
            case _:
                close_all(files)

    def handle_disconnect(self, error: LaunchError) -> None:
        _resolve(self.exited, Ending(code=None, verdict="lost"))
        _resolve(self.closed, None)
        for future in (self.opened, self.attached, self.extended, self.listening):
            _reject(future, error)


class LauncherClient:
    def __init__(self, config: LauncherConfig) -> None:
        self._config = config
        self._process: subprocess.Popen[bytes] | None = None
        self._link: socket.socket | None = None
        self._cells: dict[str, CellHandle] = {}
        self._base: tempfile.TemporaryDirectory[str] | None = None
        self._ready: asyncio.Future[list[str]] = asyncio.get_running_loop().create_future()
        self._closing: set[asyncio.Task[None]] = set()
        self.cgroup_controllers: list[str] = []
        """Available in addition to the backend's mechanisms: memory, pids, cpu."""

    @property
    def is_alive(self) -> bool:
        return self._link is not None

    @property
    def base(self) -> str:
        """The launcher's own folder; only the launcher sees what is mounted there."""
        return self._base.name if self._base else ""

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process else None

    async def start(self) -> None:
        """Start the process and wait until it can create cells. Raises LaunchError if this host does not allow it."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.setblocking(False)
        # Stays empty on disk: the launcher mounts a tmpfs over it in its own namespace.
        self._base = tempfile.TemporaryDirectory(prefix="apexbridge-", ignore_cleanup_errors=True)
        os.chmod(self._base.name, 0o711)  # noqa: PTH101, S103  # the users of runs must be able to traverse it
        with theirs:
            try:
                self._process = _spawn(theirs.fileno())
            except OSError as error:
                ours.close()
                raise LaunchError(f"the launcher cannot be started: {error.strerror}") from error
        self._link = ours
        # A reader keeps the context in which it is added, which may be that of the first run.
        contextvars.Context().run(asyncio.get_running_loop().add_reader, ours, self._receive_events)
        try:
            await self.send({"config": asdict(replace(self._config, base=self.base))})
            async with asyncio.timeout(START_SECONDS):
                self.cgroup_controllers = await asyncio.shield(self._ready)
        except TimeoutError:
            await self.stop()
            raise LaunchError("the launcher does not answer") from None
        except BaseException:  # also on cancellation: no other code knows of this process yet
            await self.stop()
            raise

    async def stop(self) -> None:
        if self._closing:
            await asyncio.wait(self._closing, timeout=STOP_SECONDS)
        self._handle_disconnect()
        process, self._process = self._process, None
        if process is not None:
            await asyncio.to_thread(_wait, process)
        if self._base is not None:
            self._base.cleanup()
            self._base = None

    def close_in_background(self, cell: CellHandle) -> None:
        task = asyncio.get_running_loop().create_task(cell.close())
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)

    async def open_cell(self, *, with_input: bool = False) -> CellHandle:
        """Create a cell; its workspace exists when `opened` resolves."""
        if self._link is None:
            raise ServerError("The sandbox is not running.", code="SANDBOX_UNAVAILABLE")
        cell = CellHandle(self)
        self._cells[cell.identity] = cell
        try:
            await self.send({"command": "open", "id": cell.identity, "input": with_input})
        except BaseException:
            cell.pipes.close()
            raise
        return cell

    async def send(self, message: dict[str, Any], files: Sequence[int] = ()) -> None:
        """Send a command; waits while the socket is full. Raises LaunchError if the launcher has ended."""
        while not self._try_to_send(message, files):  # noqa: ASYNC110  # rare: the launcher reads at once
            await asyncio.sleep(RETRY_SECONDS)
        if self._link is None:
            raise LaunchError("the launcher has ended")

    def send_soon(self, message: dict[str, Any]) -> None:
        """Send a command without waiting; does nothing if the launcher has ended."""
        if not self._try_to_send(message):
            asyncio.get_running_loop().call_later(RETRY_SECONDS, self.send_soon, message)

    def _try_to_send(self, message: dict[str, Any], files: Sequence[int] = ()) -> bool:
        """Returns False if the socket is full."""
        try:
            if self._link is not None:
                protocol.send(self._link, message, files)
        except BlockingIOError:
            return False
        except OSError:
            self._handle_disconnect()
        return True

    def _receive_events(self) -> None:
        while self._link is not None:
            try:
                received = protocol.receive(self._link)
            except BlockingIOError:
                return
            except OSError:
                received = None
            if received is None:
                logger.error("the sandbox launcher has ended; it is started again for the next run")
                self._handle_disconnect()
                return
            self._handle_event(*received)

    def _handle_event(self, message: dict[str, Any], files: list[int]) -> None:
        event, cell = message["event"], self._cells.get(message.get("id", ""))
        if cell is not None:
            cell.handle_event(message, files)
            if event == "closed":
                del self._cells[cell.identity]
        elif event == "ready":
            _resolve(self._ready, message["controllers"])
        elif event == "failed":
            _reject(self._ready, LaunchError(message["error"]))
        else:
            close_all(files)

    def _handle_disconnect(self) -> None:
        """The launcher has ended, and the kernel has killed everything that it started."""
        link, self._link = self._link, None
        if link is None:
            return
        loop = asyncio.get_running_loop()
        loop.remove_reader(link)
        link.close()
        error = LaunchError("the launcher has ended")
        _reject(self._ready, error)
        cells, self._cells = self._cells, {}
        if self._config.backend != "bubblewrap" and cells:  # workspaces on the host's disk are still there
            loop.run_in_executor(None, _remove_workspaces, list(cells))
        for cell in cells.values():
            cell.handle_disconnect(error)


def _remove_workspaces(cells: list[str]) -> None:
    for identity in cells:
        remove_tree(f"{tempfile.gettempdir()}/skill-workspace-{identity}")


def _spawn(link: int) -> subprocess.Popen[bytes]:
    """Start the launcher with nothing of the server's except the socket: no environment, packages, files, terminal."""
    source = Path(__file__).parents[2]
    code = "import sys; sys.path.append(sys.argv[1]); from apexbridge.sandbox.launcher.main import main; main()"
    return subprocess.Popen(  # noqa: S603
        [sys.executable, "-I", "-S", "-c", code, str(source), str(link)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        pass_fds=[link],
        env={"PATH": os.defpath},
        cwd="/",
        start_new_session=True,
    )


def _wait(process: subprocess.Popen[bytes]) -> None:
    try:
        process.wait(STOP_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _resolve(future: "asyncio.Future[Any]", value: Any) -> None:
    if not future.done():
        future.set_result(value)


def _reject(future: "asyncio.Future[Any]", error: Exception) -> None:
    if not future.done():
        future.set_exception(error)
        future.exception()  # marks it as retrieved: not every future is awaited
