"""The launcher's event loop: it receives commands, reaps processes, checks limits and sends events."""

import gc
import os
import selectors
import signal
import socket
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from apexbridge.sandbox.launcher import process_tree, protocol, syscalls
from apexbridge.sandbox.launcher.bubblewrap_cell import BubblewrapCell
from apexbridge.sandbox.launcher.cell import Cell
from apexbridge.sandbox.launcher.cgroups import Cgroups
from apexbridge.sandbox.launcher.child_process import close_all, error_text, kill
from apexbridge.sandbox.launcher.landlock_cell import LandlockCell
from apexbridge.sandbox.launcher.mounts import MountNamespace, install_loaders
from apexbridge.sandbox.launcher.prefork import Prefork
from apexbridge.sandbox.launcher.protocol import Attachment, LauncherConfig, StartRequest
from apexbridge.sandbox.launcher.removal import remove_tree
from apexbridge.sandbox.launcher.uids import UidPool

WATCH_SECONDS = 0.05
MAX_WATCH_SECONDS = 0.5
MAX_UIDS = 2000
"""How many runs on one host can have their own user ID."""
PREFORK_IDLE_SECONDS = 0.02
"""The next child is forked after this long without an event: starting a run comes first."""
_SHUTDOWN_SECONDS = 2


class Launcher:
    def __init__(self, link: socket.socket, config: LauncherConfig) -> None:
        """Raises OSError if this host does not allow the backend."""
        self._link = link
        self._config = config
        self._cells: dict[str, Cell] = {}
        self._by_pid: dict[int, Cell] = {}
        self._selector = selectors.DefaultSelector()
        self._uids = UidPool(config.first_uid, MAX_UIDS)
        self._cgroups = Cgroups()
        self._mounts: MountNamespace | None = None
        self._prefork = Prefork(config.limits, config.niceness, self._cgroups)
        self._next_watch = 0.0
        try:
            if config.backend == "bubblewrap":
                self._mounts = MountNamespace(config)
            else:
                install_loaders(config, Path(config.base) / "loaders")
        except BaseException:
            self._shut_down()
            raise

    def run(self) -> None:
        """Serve until the server disconnects; then kill and remove everything."""
        wakeup, wakeup_writer = os.pipe()
        for descriptor in (wakeup, wakeup_writer):
            os.set_blocking(descriptor, False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(wakeup_writer, warn_on_full_buffer=False)
        self._selector.register(self._link, selectors.EVENT_READ)
        self._selector.register(wakeup, selectors.EVENT_READ)
        try:
            self._send_event({"event": "ready", "controllers": self._cgroups.controllers})
            while self._step(wakeup):
                pass
        finally:
            self._shut_down()

    def _step(self, wakeup: int) -> bool:
        """Wait for events and handle them; returns False if the server has disconnected."""
        is_watching = any(cell.is_watched for cell in self._cells.values())
        needs_child = self._mounts is not None and self._prefork.pid is None
        timeout = PREFORK_IDLE_SECONDS if needs_child else WATCH_SECONDS if is_watching else None
        events = self._selector.select(timeout)
        if not events and needs_child:
            self._prefork.prepare()
        for key, _ in events:
            if key.fileobj is self._link:
                try:
                    received = protocol.receive(self._link)
                except OSError:
                    received = None
                if received is None:
                    return False
                self._handle_command(*received)
            elif key.fd == wakeup:
                with suppress(BlockingIOError):
                    os.read(wakeup, 4096)
                self._reap()
            else:
                key.data()
        if is_watching and (begun := time.monotonic()) >= self._next_watch:
            for cell in list(self._cells.values()):
                if cell.is_watched:
                    cell.watch()
            took = time.monotonic() - begun  # a run that is slow to check must not take the time of the others
            self._next_watch = begun + min(max(WATCH_SECONDS, took * 5), MAX_WATCH_SECONDS)
        return True

    # ------------------------------------------------------------------------------------------------------- commands
    def _handle_command(self, message: dict[str, Any], files: list[int]) -> None:
        command, identity = message["command"], message["id"]
        try:
            if command == "open":
                self._open(identity, with_input=message["input"])
            elif cell := self._cells.get(identity):
                match command:
                    case "start":
                        self._start(cell, StartRequest.parse(message["request"]), files)
                    case "attach":
                        cell.attach(Attachment.parse(message["attachment"]))
                        self._send_event({"event": "attached", "id": identity})
                    case "extend":
                        cell.extend_disk(message["size"], message["count"])
                        self._send_event({"event": "extended", "id": identity})
                    case "kill":
                        cell.is_killed = True
                        cell.kill()
                    case "close":
                        self._close(cell)
            elif command in ("start", "attach", "extend"):
                raise LookupError("the cell could not be created")
        except Exception as error:
            self._send_event({"event": "failed", "id": identity, "command": command, "error": error_text(error)})
        finally:
            close_all(files)

    def _open(self, identity: str, *, with_input: bool) -> None:
        uid = self._uids.acquire()
        if self._mounts is not None:
            cell: Cell = BubblewrapCell(identity, uid, self._mounts, self._prefork, self._selector)
        else:
            cell = LandlockCell(identity, uid, self._config, self._cgroups.create(self._config.limits))
        self._cells[identity] = cell
        self._send_event({"event": "opened", "id": identity}, cell.open(with_input=with_input))

    def _start(self, cell: Cell, request: StartRequest, files: list[int]) -> None:
        if cell.uid is not None:
            for file in files:  # another user cannot open a pipe of root's as /dev/stdout
                os.fchown(file, cell.uid, cell.uid)
        if cell.is_killed:
            self._handle_end(cell)
            return
        if listeners := cell.start(request, files):
            self._send_event({"event": "listening", "id": cell.identity}, listeners)
        if cell.pid is not None:
            self._by_pid[cell.pid] = cell

    def _close(self, cell: Cell) -> None:
        cell.is_closing = True
        if cell in self._by_pid.values():
            cell.kill()
        else:
            self._remove(cell)

    # ----------------------------------------------------------------------------------------------------------- exits
    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                break
            if pid == self._prefork.pid:
                self._prefork.handle_exit()
            cell = self._by_pid.pop(pid, None)
            if cell is None:
                continue  # an orphan that was killed a moment ago
            if (last := cell.handle_exit(pid, status)) is not None:
                self._by_pid[last] = cell
            else:
                self._handle_end(cell)
        self._kill_orphans()

    def _handle_end(self, cell: Cell) -> None:
        cell.is_watched = False
        event = {"event": "exited", "id": cell.identity, "code": cell.exit_code}
        self._send_event({**event, "verdict": cell.verdict, "peak": cell.peak_memory})
        if cell.is_closing:
            self._remove(cell)

    def _kill_orphans(self) -> None:
        """Kill adopted children: they have outlived their run."""
        for pid in process_tree.children(os.getpid()):
            if pid not in self._by_pid and pid != self._prefork.pid:
                kill(pid)

    def _remove(self, cell: Cell) -> None:
        del self._cells[cell.identity]
        self._uids.release(cell.uid)
        cell.close()
        self._send_event({"event": "closed", "id": cell.identity})

    def _shut_down(self) -> None:
        for cell in self._cells.values():
            cell.kill()
        deadline = time.monotonic() + _SHUTDOWN_SECONDS
        while self._by_pid and time.monotonic() < deadline:
            self._kill_orphans()
            try:
                pid, _ = os.waitpid(-1, 0)
            except ChildProcessError:
                break
            self._by_pid.pop(pid, None)
        for cell in self._cells.values():
            with suppress(OSError):
                cell.close()
        self._prefork.close()
        if self._mounts is not None:
            self._mounts.close()
        elif self._config.backend != "bubblewrap":
            remove_tree(self._config.base)
        self._cgroups.close()

    def _send_event(self, event: dict[str, Any], files: Sequence[int] = ()) -> None:
        """Send the event with the files, and close them."""
        with suppress(OSError):  # the server is gone; the loop will notice
            protocol.send(self._link, event, files)
        close_all(files)


def main() -> None:
    """Serve the socket whose descriptor is the last argument of the command line."""
    syscalls.prctl(syscalls.PR_SET_CHILD_SUBREAPER, 1)
    gc.disable()  # there is little to collect, and a collection in a fork would copy every page it touches
    gc.freeze()
    os.umask(0o022)
    os.chdir("/")
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole terminal; the server decides
    link = socket.socket(fileno=int(sys.argv[-1]))
    received = protocol.receive(link)
    if received is None:
        return
    try:
        launcher = Launcher(link, LauncherConfig.parse(received[0]["config"]))
    except Exception as error:
        protocol.send(link, {"event": "failed", "command": "begin", "error": error_text(error)})
        protocol.receive(link)  # returns when the server disconnects
        return
    launcher.run()
