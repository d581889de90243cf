"""Cells of namespaces, made by an embryo and bubblewrap inside a mount namespace of the launcher's own.

bubblewrap can mount a tmpfs of a size, but not one of a number of files, and to what it mounted nobody can add. So the
launcher mounts a run's root folder itself and marks it *shared* before bubblewrap copies it: what is attached to it
later shows up inside as well. That is how a sandbox that waits for its job comes to see the one skill it is for, and no
other.
"""

import json
import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from apexbridge.sandbox.launcher import loopback, process_tree, syscalls
from apexbridge.sandbox.launcher.cell import Cell, Order, Tell, end, refuse_another
from apexbridge.sandbox.launcher.cgroups import Group
from apexbridge.sandbox.launcher.mounts import House
from apexbridge.sandbox.launcher.rlimits import Limits, limit_processes
from apexbridge.sandbox.launcher.rootfs import (
    LAYER_PLACES,
    SKILL_PLACE,
    copy_of,
    hide,
    is_temporary,
    make_place,
    show_granted,
)

INSIDE_ID = "1000"
"""User and group as the run sees itself."""
STATUS_FILE, GATE_FILE, FILTER_FILE, OPTIONS_FILE = 10, 11, 12, 13
OWN_PROCESSES = 2
"""bubblewrap outside, and as the first process inside."""
INPUT_BYTES = 52 * 1024 * 1024
INPUT_INODES = 1024
_LINE = 4096


class BubblewrapCell(Cell):
    """A cell with namespaces for users, processes, network, mounts, IPC, host name and cgroups."""

    def __init__(self, identity: str, house: House, *, limits: Limits, uid: int | None, tell: Tell) -> None:
        super().__init__(identity, limits=limits, uid=uid, tell=tell)
        self._house = house
        self._disk = house.base / f"{identity}-disk"
        self._input = house.base / f"{identity}-input"
        self._room = house.base / f"{identity}-room"
        self._has_input = False
        self._init: int | None = None
        self._status: int | None = None
        self._told = b""
        self._gate: int | None = None
        self._group = Group()

    @property
    def _workspace(self) -> Path:
        return self._disk / "tmp" / f"skill-workspace-{self.identity}"

    def open(self, *, with_input: bool) -> list[int]:
        """Mount the workspace, as large as the limits say."""
        _counted_tmpfs(self._disk, size=self.limits.disk, inodes=self.limits.inodes)
        (self._disk / "tmp").mkdir()
        workspace = self._workspace
        for folder in (workspace, workspace / "output", workspace / "tmp", self._disk / "shm"):
            folder.mkdir()
            if self.uid is not None:
                os.chown(folder, self.uid, self.uid)
        opened = [os.open(workspace, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)]
        if with_input:
            _counted_tmpfs(self._input, size=INPUT_BYTES, inodes=INPUT_INODES)
            self._has_input = True
            opened.append(os.open(self._input, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC))
        return opened

    def start(self, order: Order, files: Sequence[int]) -> None:
        """Start bubblewrap."""
        self._furnish(order)
        if order.skill is not None:
            self.attach(order.skill, order.layers, order.folder)
        status, status_inside = os.pipe()
        gate_inside, gate = os.pipe()
        rules = os.open(self._house.filter(network=bool(order.hosts)), os.O_RDONLY)
        inside = {STATUS_FILE: status_inside, GATE_FILE: gate_inside, FILTER_FILE: rules}
        if not self._needs_gate:  # bubblewrap would pass on what it was not told of
            os.close(inside.pop(GATE_FILE))
        inside[OPTIONS_FILE] = _written([*self._walls(order.workspace), *_variables(order.environment)])
        told = {
            "command": [self._house.program, "--args", str(OPTIONS_FILE), "--", *order.command],
            "hosts": order.hosts,
            "uid": self.uid,
            "processes": self.limits.processes + OWN_PROCESSES,
            "numbers": list(inside),
        }
        process = self._house.embryo(self.limits)
        self.pid = process.pid
        self._group = process.group
        try:
            listeners = process.become(told, [*inside.values(), *files])
        finally:
            for descriptor in inside.values():
                os.close(descriptor)
        if listeners:
            self._tell({"event": "listening", "id": self.identity}, listeners)
            for listener in listeners:
                os.close(listener)
        os.set_blocking(status, False)
        self._status, self._gate = status, gate
        self.is_watched = order.skill is not None

    def attach(self, skill: str, layers: dict[str, str], folder: list[int] | None) -> None:
        """Mount the skill, and what it needs, where the inside already looks."""
        view = syscalls.view(skill)
        refuse_another(view, folder)
        syscalls.attach(view, f"{self._room}{SKILL_PLACE}")
        for name, layer in layers.items():
            syscalls.attach(syscalls.view(layer), f"{self._room}{LAYER_PLACES[name]}")
        self.is_watched = True

    def kill(self) -> None:
        """End the first process inside, and the kernel ends the rest."""
        end(self._init)
        end(self.pid)
        self._open_gate()

    def ended(self, pid: int, status: int) -> int | None:
        """bubblewrap ended; it said before what the run ended with, if it got that far.

        The first process inside has become ours, if it is still there: only when it is gone are all the others.
        """
        self._read_status()
        is_bubblewrap, self.pid = pid == self.pid, None
        if self.verdict is None and self.exit_code and self._group.oom_kills():
            self.verdict = "memory"
        is_over = self.is_killed or self.verdict is not None or self.exit_code is not None
        if is_bubblewrap and os.WIFSIGNALED(status) and not is_over:
            self.verdict = "lost"  # somebody else ended it
        init, self._init = self._init, None
        if init is None or init == pid:
            return None
        end(init)
        try:
            os.waitid(os.P_PID, init, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            return None
        return init

    def close(self) -> None:
        """Take the mounts away."""
        self._open_gate()
        self._close_status()
        self._group.remove()
        for place in (self._room, self._disk, self._input):
            with suppress(OSError):
                syscalls.unmount(str(place))
            with suppress(OSError):
                place.rmdir()

    def sockets(self, pids: Sequence[int]) -> int:
        """How many sockets the run has, those included that wait to be accepted."""
        return process_tree.sockets_of_namespace(self.pid) if self.pid is not None else 0

    @property
    def wakes(self) -> dict[int, Callable[[], None]]:
        """What bubblewrap tells."""
        return {self._status: self._read_status} if self._status is not None else {}

    def _furnish(self, order: Order) -> None:
        """The run's own root folder: the model's mounts, and its workspace on top."""
        if elsewhere := {path: identity for path, identity in order.paths.items() if not is_temporary(path)}:
            own = self._house.base / f"{self.identity}-model"
            try:
                self._house.furnish(own, elsewhere)
                copy_of(own, self._room)
            finally:
                with suppress(OSError):
                    syscalls.unmount(str(own))
                    own.rmdir()
        else:
            copy_of(self._house.model, self._room)
        syscalls.attach(syscalls.view(str(self._disk / "tmp")), f"{self._room}/tmp")
        for path in self._house.temporary:
            make_place(self._disk, path)
            syscalls.attach(syscalls.view(path), f"{self._room}{path}")
        for path in sorted(filter(is_temporary, order.paths)):
            make_place(self._disk, path)
            show_granted(self._room, path, order.paths[path])
        for folder in self._house.hidden:
            hide(self._room, folder)
        inside = f"{self._room}{order.workspace}"
        syscalls.attach(syscalls.view(str(self._workspace), read_only=False), inside)
        syscalls.attach(syscalls.view(str(self._disk / "shm"), read_only=False), f"{self._room}/dev/shm")
        if self._has_input:
            (self._workspace / "input").mkdir()
            syscalls.attach(syscalls.view(str(self._input)), f"{inside}/input")
        if order.hosts:
            hosts = self._disk / "hosts"
            hosts.write_text(loopback.hosts_file(order.hosts))
            syscalls.attach(syscalls.view(str(hosts)), f"{self._room}/etc/hosts")

    @property
    def _needs_gate(self) -> bool:
        """Where processes are counted by user namespace, bubblewrap must wait until that limit is set."""
        return self.uid is None

    def _walls(self, workspace: str) -> list[str]:
        """bubblewrap's options; the namespaces that are not among them are the embryo's."""
        walls = ["--unshare-user", "--unshare-pid", "--disable-userns", "--uid", INSIDE_ID, "--gid", INSIDE_ID]
        walls += ["--die-with-parent", "--new-session", "--cap-drop", "ALL"]
        # Read-only, or a run of a normal user could make itself as dear to the kernel as the server (`oom_score_adj`).
        walls += ["--dev-bind", str(self._room), "/", "--proc", "/proc", "--remount-ro", "/proc"]
        walls += ["--chdir", workspace]
        walls += ["--seccomp", str(FILTER_FILE), "--json-status-fd", str(STATUS_FILE)]
        return [*walls, "--block-fd", str(GATE_FILE)] if self._needs_gate else walls

    def _read_status(self) -> None:
        """bubblewrap says which process is the first inside, and later what the run ended with."""
        while self._status is not None:
            try:
                piece = os.read(self._status, _LINE)
            except BlockingIOError:
                return
            if not piece:
                self._close_status()
            self._told += piece
            *lines, self._told = self._told.split(b"\n")
            for line in lines:
                self._hear(json.loads(line))

    def _hear(self, told: dict[str, Any]) -> None:
        if "child-pid" in told:
            self._init = told["child-pid"]
            if self._needs_gate:
                # Set now that it counts in a user namespace of its own: before, other runs' would count as well.
                with suppress(ProcessLookupError):
                    limit_processes(told["child-pid"], self.limits.processes + OWN_PROCESSES)
            self._open_gate()
        if "exit-code" in told:
            self.exit_code = told["exit-code"]

    def _open_gate(self) -> None:
        if self._gate is not None:
            with suppress(BrokenPipeError):
                os.write(self._gate, b"1")
            os.close(self._gate)
            self._gate = None

    def _close_status(self) -> None:
        if self._status is not None:
            os.close(self._status)
            self._status = None


def _variables(environment: dict[str, str]) -> list[str]:
    """The run's environment as options; bubblewrap's own stays empty, since the run can read that of process 1."""
    return [word for name, value in environment.items() for word in ("--setenv", name, value)]


def _written(options: list[str]) -> int:
    """Options in a file of memory: on a command line, `ps` would show them to everybody."""
    memory = os.memfd_create("options", os.MFD_CLOEXEC)
    with open(memory, "wb", closefd=False) as file:
        file.write(b"".join(os.fsencode(word) + b"\0" for word in options))
    os.lseek(memory, 0, os.SEEK_SET)
    return memory


def _counted_tmpfs(place: Path, *, size: int, inodes: int) -> None:
    place.mkdir()
    options = f"size={size},nr_inodes={inodes},mode=755"
    syscalls.mount("workspace", str(place), "tmpfs", syscalls.MS_NOSUID | syscalls.MS_NODEV, options)
