"""The launcher's loop: orders come in, processes end, limits are watched; news goes back."""

import gc
import os
import selectors
import signal
import socket
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from apexbridge.sandbox.launcher import bubblewrap_cell, landlock_cell, process_tree, protocol, syscalls
from apexbridge.sandbox.launcher.cell import Cell, Order, end, words_of
from apexbridge.sandbox.launcher.cgroups import Cgroups, Group
from apexbridge.sandbox.launcher.mounts import House, build
from apexbridge.sandbox.launcher.removal import remove_tree
from apexbridge.sandbox.launcher.rlimits import Limits
from apexbridge.sandbox.launcher.uids import Users

WATCH_SECONDS = 0.05
MAX_WATCH_SECONDS = 0.5
USERS = 2000
"""How many runs of a host can have a user of their own."""
PREPARE_SECONDS = 0.02
"""How long nothing must have happened before the next process is prepared: a start goes first."""


class Launcher:
    """Builds cells for the server at the other end of the link."""

    def __init__(self, link: socket.socket) -> None:
        self._link = link
        self._cells: dict[str, Cell] = {}
        self._by_pid: dict[int, Cell] = {}
        self._selector = selectors.DefaultSelector()
        self._registered: dict[int, Callable[[], None]] = {}
        self._told: dict[str, Any] = {}
        self._house: House | None = None
        self._cgroups: Cgroups | None = None
        self._users = Users(0, 0)
        self._next_watch = 0.0

    def run(self) -> None:
        """Serve until the server is gone; everything that was started goes with it."""
        syscalls.adopt_orphans()
        gc.disable()  # there is little to collect, and a collection in a fork would copy every page it looks at
        gc.freeze()
        os.umask(0o022)
        os.chdir("/")
        wake, waker = os.pipe()
        for descriptor in (wake, waker):
            os.set_blocking(descriptor, False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole terminal; the server decides
        signal.set_wakeup_fd(waker, warn_on_full_buffer=False)
        self._selector.register(self._link, selectors.EVENT_READ)
        self._selector.register(wake, selectors.EVENT_READ)
        try:
            while self._step(wake):
                pass
        finally:
            self._end_everything()

    def _step(self, wake: int) -> bool:
        self._register_wakes()
        is_watching = any(cell.is_watched for cell in self._cells.values())
        is_ready = self._house is None or self._house.next is not None
        happened = self._selector.select(PREPARE_SECONDS if not is_ready else WATCH_SECONDS if is_watching else None)
        if not happened and self._house is not None:
            self._house.prepare(Limits.read(self._told["limits"]))
        for key, _ in happened:
            if key.fileobj is self._link:
                try:
                    received = protocol.receive(self._link)
                except OSError:
                    received = None
                if received is None:
                    return False
                self._obey(*received)
            elif key.fd == wake:
                with suppress(BlockingIOError):
                    os.read(wake, 4096)
                self._reap()
            else:
                key.data()
        if is_watching and (begun := time.monotonic()) >= self._next_watch:
            self._watch()
            took = time.monotonic() - begun  # a run whose looks are slow must not take the others' time
            self._next_watch = begun + min(max(WATCH_SECONDS, took * 5), MAX_WATCH_SECONDS)
        return True

    def _register_wakes(self) -> None:
        """A number that was closed may already be another cell's: what belongs to it tells them apart."""
        wanted = {number: action for cell in self._cells.values() for number, action in cell.wakes.items()}
        for number, action in self._registered.items():
            if wanted.get(number) != action:
                with suppress(KeyError, ValueError, OSError):
                    self._selector.unregister(number)
        for number, action in wanted.items():
            if self._registered.get(number) != action:
                self._selector.register(number, selectors.EVENT_READ, action)
        self._registered = wanted

    # --------------------------------------------------------------------------------------------------- orders
    def _obey(self, told: dict[str, Any], files: list[int]) -> None:
        identity = told.get("id", "")
        try:
            getattr(self, f"_do_{told['do']}")(identity, told, files)
        except Exception as error:
            self._tell({"event": "failed", "id": identity, "do": told["do"], "error": words_of(error)})
        finally:
            for file in files:
                os.close(file)

    def _do_begin(self, _: str, told: dict[str, Any], __: list[int]) -> None:
        self._told = told
        self._users = Users(told["firstUid"], USERS)
        self._cgroups = Cgroups()
        if told["walls"] == "bubblewrap":
            self._house = build(told, self._cgroups, is_root=os.getuid() == 0)
        else:
            landlock_cell.prepare(told)
        self._tell({"event": "ready", "counted": self._cgroups.controllers})

    def _do_open(self, identity: str, told: dict[str, Any], _: list[int]) -> None:
        cell = self._new_cell(identity, Limits.read(self._told["limits"]))
        self._cells[identity] = cell
        opened = cell.open(with_input=bool(told.get("input")))
        try:
            self._tell({"event": "opened", "id": identity}, opened)
        finally:
            for descriptor in opened:
                os.close(descriptor)

    def _do_start(self, identity: str, told: dict[str, Any], files: list[int]) -> None:
        cell = self._cells[identity]
        if cell.uid is not None:
            for file in files:  # a pipe that root made cannot be opened as /dev/stdout by anybody else
                os.fchown(file, cell.uid, cell.uid)
        if cell.is_killed:
            self._tell_end(cell)
            return
        cell.start(Order.read(told["order"]), files)
        if cell.pid is not None:
            self._by_pid[cell.pid] = cell

    def _do_attach(self, identity: str, told: dict[str, Any], _: list[int]) -> None:
        self._cells[identity].attach(told["skill"], told["layers"], told["folder"])
        self._tell({"event": "attached", "id": identity})

    def _do_kill(self, identity: str, _: dict[str, Any], __: list[int]) -> None:
        if cell := self._cells.get(identity):
            cell.is_killed = True
            cell.kill()

    def _do_close(self, identity: str, _: dict[str, Any], __: list[int]) -> None:
        if cell := self._cells.get(identity):
            cell.is_closing = True
            if cell in self._by_pid.values():
                cell.kill()
            else:
                self._drop(cell)

    def _new_cell(self, identity: str, limits: Limits) -> Cell:
        uid = self._users.take()
        if self._house is not None:
            return bubblewrap_cell.BubblewrapCell(identity, self._house, limits=limits, uid=uid, tell=self._tell)
        group = self._cgroups.new(limits) if self._cgroups is not None else Group()
        return landlock_cell.ConfinedCell(identity, self._told, group, limits=limits, uid=uid, tell=self._tell)

    # ----------------------------------------------------------------------------------------------------- ends
    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                break
            if self._house is not None and self._is_next(pid):
                self._house.lose_next()
            cell = self._by_pid.pop(pid, None)
            if cell is None:
                continue  # an orphan that was ended a moment ago
            if (last := cell.ended(pid, status)) is not None:
                self._by_pid[last] = cell
            else:
                self._tell_end(cell)
        self._end_orphans()

    def _tell_end(self, cell: Cell) -> None:
        cell.is_watched = False
        news = {"event": "exited", "id": cell.identity, "code": cell.exit_code}
        self._tell({**news, "verdict": cell.verdict, "peak": cell.peak})
        if cell.is_closing:
            self._drop(cell)

    def _end_orphans(self) -> None:
        """Whatever has become our child without being started by us has outlived its run."""
        for pid in process_tree.children(os.getpid()):
            if pid not in self._by_pid and not self._is_next(pid):
                end(pid)

    def _is_next(self, pid: int) -> bool:
        return self._house is not None and self._house.next is not None and self._house.next.pid == pid

    def _drop(self, cell: Cell) -> None:
        self._cells.pop(cell.identity, None)
        self._users.give_back(cell.uid)
        self._unregister(cell)
        cell.close()
        self._tell({"event": "closed", "id": cell.identity})

    def _unregister(self, cell: Cell) -> None:
        for number in cell.wakes:
            with suppress(KeyError, ValueError):
                self._selector.unregister(number)
            self._registered.pop(number, None)

    def _watch(self) -> None:
        for cell in list(self._cells.values()):
            if cell.is_watched:
                cell.watch()

    def _end_everything(self) -> None:
        for cell in self._cells.values():
            cell.kill()
        deadline = time.monotonic() + 2
        while self._by_pid and time.monotonic() < deadline:
            self._end_orphans()
            try:
                pid, _ = os.waitpid(-1, 0)
            except ChildProcessError:
                break
            self._by_pid.pop(pid, None)
        for cell in self._cells.values():
            with suppress(OSError):
                cell.close()
        if self._house is not None:
            self._house.close()
        elif base := self._told.get("base"):
            remove_tree(base)
        if self._cgroups is not None:
            self._cgroups.close()

    def _tell(self, news: dict[str, Any], files: Sequence[int] = ()) -> None:
        try:
            protocol.send(self._link, news, files)
        except OSError:  # the server is gone; the loop will notice
            return


def main() -> None:
    """Serve the server on the socket whose number it gave as the last word of the command line."""
    Launcher(socket.socket(fileno=int(sys.argv[-1]))).run()
