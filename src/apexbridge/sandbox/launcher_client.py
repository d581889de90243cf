"""The server's side of its launcher: one process, many cells, news as futures."""

import asyncio
import logging
import os
import socket
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio.to_thread

from apexbridge.errors import ServerError
from apexbridge.sandbox.config import BackendName, SandboxLimits
from apexbridge.sandbox.launcher import protocol
from apexbridge.sandbox.launcher.removal import remove_tree

SLACK_BYTES = 64 * 1024 * 1024
"""Room between the limit of the whole tree, which is watched, and the one of each process, which the kernel keeps."""
START_SECONDS = 20
STOP_SECONDS = 5
FIRST_UID = 62_000
"""Where the users of runs begin, one for each cell, when the server is root: nobody has these numbers."""
NICENESS = 10
"""Runs step back behind the server when both want the processor."""
logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Walls:
    """How a launcher builds its cells."""

    backend: BackendName
    limits: SandboxLimits
    filters: tuple[bytes, bytes]
    """Seccomp programs: without and with network."""
    shared_bytes: int
    """The largest piece of anonymous shared memory that these allow."""
    interpreters: tuple[str, ...] = ()
    hidden: tuple[str, ...] = ()
    reserved_bytes: int = 0
    """What an interpreter takes of a process's limit without using it."""
    program: str | None = None
    """bubblewrap's path."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Exit:
    """How what ran in a cell ended."""

    code: int | None
    verdict: str | None
    peak: int


class LaunchError(Exception):
    """The launcher could not do what it was asked to."""


class Cell:
    """One run's place, as the server knows it."""

    def __init__(self, client: "Launcher") -> None:
        self.identity = uuid.uuid4().hex
        self._client = client
        loop = asyncio.get_running_loop()
        self.opened: asyncio.Future[list[int]] = loop.create_future()
        """Descriptors of the workspace, and of the folder for input files."""
        self.attached: asyncio.Future[None] = loop.create_future()
        self.exited: asyncio.Future[Exit] = loop.create_future()
        self.closed: asyncio.Future[None] = loop.create_future()
        self.listening: asyncio.Future[list[int]] = loop.create_future()
        """Sockets inside that lead to granted hosts."""

    async def start(self, order: Mapping[str, Any], files: Sequence[int]) -> None:
        """Start what runs inside."""
        await self._client.send({"do": "start", "id": self.identity, "order": order}, files)

    async def attach(self, skill: str, layers: Mapping[str, str], folder: tuple[int, int] | None = None) -> None:
        """Show the skill to what is waiting inside; where `folder` is given, only if it still is that very one.

        Raises:
            LaunchError: it cannot be shown.
        """
        await self._client.send(
            {"do": "attach", "id": self.identity, "skill": skill, "layers": layers, "folder": folder}
        )
        await asyncio.shield(self.attached)

    def kill(self) -> None:
        """End everything inside; `exited` tells when that is done."""
        self._client.send_soon({"do": "kill", "id": self.identity})

    async def close(self) -> None:
        """Take the workspace away, and whatever is still inside with it."""
        if not self.closed.done():
            self._client.send_soon({"do": "close", "id": self.identity})
            await asyncio.wait([self.closed], timeout=STOP_SECONDS)
        if self.opened.done() and not self.opened.cancelled() and self.opened.exception() is None:
            for descriptor in self.opened.result():
                with suppress(OSError):
                    os.close(descriptor)
            self.opened.result().clear()

    @property
    def futures(self) -> "list[asyncio.Future[Any]]":
        """All that can still come."""
        return [self.opened, self.attached, self.exited, self.closed, self.listening]


class Launcher:
    """A launcher process and the cells it holds."""

    def __init__(self, walls: Walls) -> None:
        self.walls = walls
        self._process: subprocess.Popen[bytes] | None = None
        self._link: socket.socket | None = None
        self._cells: dict[str, Cell] = {}
        self._base: tempfile.TemporaryDirectory[str] | None = None
        self._ready: asyncio.Future[None] | None = None
        self._clearing: set[asyncio.Task[None]] = set()
        self.counted: frozenset[str] = frozenset()
        """What control groups count, on top of everything else: memory, pids, cpu."""

    @property
    def is_alive(self) -> bool:
        """Whether it can be asked for cells."""
        return self._link is not None

    @property
    def base(self) -> str:
        """The launcher's own folder; what is mounted there, only it sees."""
        return self._base.name if self._base else ""

    @property
    def pid(self) -> int | None:
        """The launcher's process."""
        return self._process.pid if self._process else None

    async def start(self) -> None:
        """Start the process and have it build the walls.

        Raises:
            LaunchError: this host does not allow it; the message says what was refused.
        """
        loop = asyncio.get_running_loop()
        self._ready = loop.create_future()
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.setblocking(False)
        # Empty on disk: the launcher mounts its own over it, where nobody else looks.
        self._base = tempfile.TemporaryDirectory(prefix="apexbridge-", ignore_cleanup_errors=True)
        os.chmod(self._base.name, 0o711)  # noqa: PTH101, S103  # passed through by the users of runs
        with theirs:
            try:
                self._process = _spawn(theirs.fileno())
            except OSError as error:
                ours.close()
                raise LaunchError(f"the launcher cannot be started: {error.strerror}") from error
        self._link = ours
        loop.add_reader(ours, self._hear)
        try:
            await self.send(self._begin())
            async with asyncio.timeout(START_SECONDS):
                await asyncio.shield(self._ready)
        except TimeoutError:
            await self.stop()
            raise LaunchError("the launcher does not answer") from None
        except BaseException:  # also where whoever waits is called off: nobody else knows of this process
            await self.stop()
            raise

    async def stop(self) -> None:
        """End the process, and with it everything that it started."""
        if self._clearing:
            await asyncio.wait(self._clearing, timeout=STOP_SECONDS)
        self._lose()
        process, self._process = self._process, None
        if process is not None:
            await anyio.to_thread.run_sync(_wait, process)
        if self._base is not None:
            self._base.cleanup()
            self._base = None

    def clear(self, cell: Cell) -> None:
        """Take a cell away without anybody waiting for that."""
        task = asyncio.get_running_loop().create_task(cell.close())
        self._clearing.add(task)
        task.add_done_callback(self._clearing.discard)

    async def open_cell(self, *, with_input: bool = False) -> Cell:
        """A new cell; its workspace is there when `opened` says so."""
        if self._link is None:
            raise ServerError("The sandbox is not running.", code="SANDBOX_UNAVAILABLE")
        cell = Cell(self)
        self._cells[cell.identity] = cell
        await self.send({"do": "open", "id": cell.identity, "input": with_input})
        return cell

    async def send(self, message: dict[str, Any], files: Sequence[int] = ()) -> None:
        """Send an order; waits while the launcher is busy with others."""
        loop = asyncio.get_running_loop()
        while self._link is not None:
            try:
                protocol.send(self._link, message, files)
                return
            except BlockingIOError:
                writable: asyncio.Future[None] = loop.create_future()
                loop.add_writer(self._link, _settle, writable, None)
                try:
                    await writable
                finally:
                    if self._link is not None:
                        loop.remove_writer(self._link)
            except OSError:
                self._lose()
        raise LaunchError("the launcher has ended")

    def send_soon(self, message: dict[str, Any]) -> None:
        """Send an order without waiting; nobody is there to hear it once the launcher has ended."""
        if self._link is None:
            return
        try:
            protocol.send(self._link, message)
        except BlockingIOError:
            asyncio.get_running_loop().call_later(0.01, self.send_soon, message)
        except OSError:
            self._lose()

    def _begin(self) -> dict[str, Any]:
        walls, limits = self.walls, self.walls.limits
        return {
            "do": "begin",
            "walls": walls.backend,
            "base": self.base,
            "temporary": tempfile.gettempdir(),
            "program": walls.program,
            "loaders": str(Path(__file__).parent / "loaders"),
            "interpreters": list(walls.interpreters),
            "hidden": list(walls.hidden),
            "filters": [program.hex() for program in walls.filters],
            "niceness": NICENESS,
            "firstUid": FIRST_UID,
            "limits": {
                "memory": limits.memory_bytes,
                "shared": walls.shared_bytes,
                "processes": limits.processes,
                "disk": limits.disk_bytes,
                "inodes": limits.inodes,
                "files": limits.files,
                "slack": walls.reserved_bytes + SLACK_BYTES,
            },
        }

    def _hear(self) -> None:
        """Read what the launcher tells, until there is nothing more."""
        while self._link is not None:
            try:
                received = protocol.receive(self._link)
            except BlockingIOError:
                return
            except OSError:
                received = None
            if received is None:
                logger.error("the sandbox launcher has ended; it is started again for the next run")
                self._lose()
                return
            self._handle(*received)

    def _handle(self, told: dict[str, Any], files: list[int]) -> None:
        event, cell = told["event"], self._cells.get(told.get("id", ""))
        if event == "ready" and self._ready is not None:
            self.counted = frozenset(told["counted"])
            _settle(self._ready, None)
        elif event == "failed":
            self._failed(told, cell)
        elif cell is None:
            for file in files:
                os.close(file)
        elif event == "opened":
            _settle_files(cell.opened, files)
        elif event == "listening":
            _settle_files(cell.listening, files)
        elif event == "attached":
            _settle(cell.attached, None)
        elif event == "exited":
            _settle(cell.exited, Exit(code=told["code"], verdict=told["verdict"], peak=told["peak"]))
        elif event == "closed":
            del self._cells[cell.identity]
            _settle(cell.closed, None)

    def _failed(self, told: dict[str, Any], cell: Cell | None) -> None:
        error = LaunchError(told["error"])
        if cell is None:
            if self._ready is not None:
                _fail(self._ready, error)
            return
        waiting: dict[str, asyncio.Future[Any]] = {
            "open": cell.opened,
            "attach": cell.attached,
            "start": cell.exited,
            "listen": cell.listening,
        }
        _fail(waiting.get(told["do"], cell.exited), error)
        if told["do"] == "open":  # what was not opened does not start either, and this is the reason
            _fail(cell.exited, error)

    def _clear_workspaces(self) -> None:
        """What stood on the host's own disk is not gone by itself."""
        if self.walls.backend != "bubblewrap" and self._cells:
            places = [f"{tempfile.gettempdir()}/skill-workspace-{identity}" for identity in self._cells]
            asyncio.get_running_loop().run_in_executor(None, _remove_all, places)

    def _lose(self) -> None:
        """The launcher is gone, and the kernel has ended everything it had started."""
        link, self._link = self._link, None
        if link is None:
            return
        loop = asyncio.get_running_loop()
        loop.remove_reader(link)
        loop.remove_writer(link)
        link.close()
        error = LaunchError("the launcher has ended")
        if self._ready is not None:
            _fail(self._ready, error)
        self._clear_workspaces()
        for cell in list(self._cells.values()):
            _settle(cell.exited, Exit(code=None, verdict="lost", peak=0))
            _settle(cell.closed, None)
            for future in cell.futures:
                _fail(future, error)
        self._cells.clear()


def _remove_all(folders: list[str]) -> None:
    for folder in folders:
        remove_tree(folder)


def _spawn(link: int) -> subprocess.Popen[bytes]:
    """Start the launcher with nothing of ours but the socket: no environment, no packages, no files, no terminal."""
    home = Path(__file__).parents[2]
    begin = "import sys; sys.path.append(sys.argv[1]); from apexbridge.sandbox.launcher.main import main; main()"
    return subprocess.Popen(  # noqa: S603
        [sys.executable, "-I", "-S", "-c", begin, str(home), str(link)],
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


def _settle(future: "asyncio.Future[Any]", value: Any) -> None:
    if not future.done():
        future.set_result(value)


def _settle_files(future: "asyncio.Future[list[int]]", files: list[int]) -> None:
    if future.done():
        for file in files:
            os.close(file)
    else:
        future.set_result(files)


def _fail(future: "asyncio.Future[Any]", error: Exception) -> None:
    if not future.done():
        future.set_exception(error)
        future.exception()  # looked at: not everybody waits for everything
