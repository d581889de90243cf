"""Cells without namespaces: Landlock and seccomp where there are any, and a keeper that ends what is left.

For hosts that refuse user namespaces. Processes share the host's process table and a folder on its disk, so what
namespaces and a mounted workspace do elsewhere is done here by a keeper process and by looking often.
"""

import os
import select
import shutil
import signal
import stat
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from apexbridge.sandbox.launcher import process_tree, syscalls
from apexbridge.sandbox.launcher.cell import (
    Cell,
    Order,
    Tell,
    become,
    close_all_but,
    end,
    refuse_another,
    settle,
    words_of,
)
from apexbridge.sandbox.launcher.cgroups import Group
from apexbridge.sandbox.launcher.granted_paths import mounts_below, refuse_another_path
from apexbridge.sandbox.launcher.removal import remove_tree
from apexbridge.sandbox.launcher.rlimits import Limits, limit_processes
from apexbridge.sandbox.launcher.rootfs import make_readable

_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_FOLDER = 1, 2, 4, 8
_ALL_RIGHTS = {1: 0x1FFF, 2: 0x3FFF, 3: 0x7FFF, 4: 0x7FFF, 5: 0xFFFF}
"""Every right to files that a version of Landlock knows."""
_FIRST_WITH_NETWORK, _FIRST_WITH_SCOPES = 4, 6
_BIND_AND_CONNECT = 3
_SOCKETS_AND_SIGNALS = 3
_DEVICES = ("null", "full", "random", "urandom")
"""Not /dev/zero: mapped shared it is memory whose size the watchdog cannot tell. /dev/full reads the same."""
_SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")
_ETC = ("alternatives", "ld.so.cache", "localtime", "ssl/openssl.cnf", "ssl/certs", "pki", "mime.types", "fonts")
ERROR_FILE = 10
SIGNAL_BASE = 128
_DISK_EVERY = 2
"""Looks at the workspace's size are dearer than looks at memory, so there are fewer."""
_MAX_LOOKED_AT = 50_000


def prepare(told: dict[str, Any]) -> None:
    """Put the loaders where any user can read them."""
    target = Path(told["base"]) / "loaders"
    shutil.copytree(told["loaders"], target, ignore=shutil.ignore_patterns("__pycache__"))
    make_readable(target)


def is_reachable(path: str) -> bool:
    """Whether everybody can get to a folder."""
    return all(os.stat(parent).st_mode & stat.S_IXOTH for parent in (Path(path), *Path(path).parents))


class ConfinedCell(Cell):
    """A cell on the host's own process table and disk."""

    def __init__(
        self, identity: str, told: dict[str, Any], group: Group, *, limits: Limits, uid: int | None, tell: Tell
    ) -> None:
        super().__init__(identity, limits=limits, uid=uid, tell=tell)
        self.group = group
        self._told = told
        self.niceness: int = told["niceness"]
        self._workspace = Path(told["temporary"]) / f"skill-workspace-{identity}"
        self._place = Path(told["base"]) / identity
        self._shown: list[str] = [f"{told['base']}/loaders"]
        self._status: int | None = None
        self._device = 0

    def open(self, *, with_input: bool) -> list[int]:
        """Make the workspace in the host's temporary folder."""
        for folder in (self._workspace, self._workspace / "output", self._workspace / "tmp"):
            folder.mkdir(mode=0o700)
            if self.uid is not None:
                os.chown(folder, self.uid, self.uid)
        opened = [os.open(self._workspace, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)]
        self._device = os.fstat(opened[0]).st_dev
        if with_input:
            (self._workspace / "input").mkdir(mode=0o755)
            opened.append(os.open(self._workspace / "input", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC))
        return opened

    def start(self, order: Order, files: Sequence[int]) -> None:
        """Start a keeper, which starts the run and outlives it."""
        if order.skill is None:
            raise OSError("a run without namespaces cannot wait for its skill")
        descriptor = os.open(order.skill, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        refuse_another(descriptor, order.folder)
        os.close(descriptor)
        self._show(order.skill)
        if self._told["walls"] == "landlock":
            _check_granted(order.paths)
        rules = self._rules([*self._shown, *order.layers.values(), *order.paths])
        status, status_inside = os.pipe()
        # The word to stop must not come while the keeper cannot hear it yet.
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
        self.pid = os.fork()
        if self.pid == 0:
            try:
                _keep(self, order, files, status_inside, rules)
            finally:
                os._exit(1)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
        os.close(status_inside)
        self._status = status
        self.is_watched = True

    def attach(self, skill: str, layers: dict[str, str], folder: list[int] | None) -> None:
        """Not here: what runs was told its skill when it was started."""
        raise OSError("a run without namespaces cannot be shown a skill later")

    def kill(self) -> None:
        """Have the keeper end everything; the keeper itself goes last."""
        if self.pid is not None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGTERM)

    def ended(self, pid: int, status: int) -> int | None:
        """The keeper ended, and nothing of the run is left; it wrote down what the run ended with."""
        self.pid = None
        if self._status is not None:
            told = os.read(self._status, 64)
            self.exit_code = int(told) if told else None
        if self.verdict is None and self.exit_code and self.group.oom_kills():
            self.verdict = "memory"
        return None

    def close(self) -> None:
        """Remove the workspace."""
        if self._status is not None:
            os.close(self._status)
            self._status = None
        self.group.remove()
        remove_tree(str(self._workspace))
        remove_tree(str(self._place))

    def watch(self) -> None:
        """Memory, and here also processes and disk, which no kernel limit of ours counts for the whole run."""
        super().watch()
        if process_tree.tasks_of(self.inside()) > self.limits.processes:
            self.end_for("processes")
        if self._looks % _DISK_EVERY == 0 and self._is_too_large():
            self.end_for("disk")

    def confine(self, rules: list[tuple[str, int]], granted: dict[str, list[int]]) -> None:
        """Put up what walls this host has; called in the child that becomes the run."""
        # A user that others share has theirs already; what they start or end meanwhile, the watching makes up for.
        others = 0 if self.uid is not None else process_tree.tasks_of_user(os.getuid()) - 1
        limit_processes(0, others + self.limits.processes)
        if self._told["walls"] == "landlock":
            version = syscalls.landlock_version()
            syscalls.landlock(
                _ALL_RIGHTS[min(version, 5)],
                _BIND_AND_CONNECT if version >= _FIRST_WITH_NETWORK else 0,
                _SOCKETS_AND_SIGNALS if version >= _FIRST_WITH_SCOPES else 0,
                rules,
                granted,
            )
            syscalls.filter_syscalls(bytes.fromhex(self._told["filters"][0]))

    def _rules(self, readable: list[str]) -> list[tuple[str, int]]:
        look = _EXECUTE | _READ_FILE | _READ_FOLDER
        rules = [(path, look) for path in (*_SYSTEM, *self._told["interpreters"], *readable)]
        rules += [(f"/etc/{name}", look) for name in _ETC]
        rules += [(f"/dev/{name}", _READ_FILE | _WRITE_FILE) for name in _DEVICES]
        rules.append((str(self._workspace), _ALL_RIGHTS[5]))
        return rules

    def _show(self, skill: str) -> None:
        """Put the skill where the run looks for it: by a link, or as a copy where its user could not follow one."""
        self._place.mkdir(mode=0o755)
        target = self._place / "skill"
        if self.uid is None or is_reachable(skill):
            target.symlink_to(skill)
            self._shown.append(skill)
        else:
            shutil.copytree(skill, target, symlinks=True)
            make_readable(target)
            self._shown.append(str(target))

    def _is_too_large(self) -> bool:
        size = count = 0
        waiting = [str(self._workspace)]
        while waiting and count < _MAX_LOOKED_AT:
            try:
                entries = list(os.scandir(waiting.pop()))
            except OSError:
                continue
            for entry in entries:
                count += 1
                with suppress(OSError):
                    found = entry.stat(follow_symlinks=False)
                    size += found.st_blocks * 512
                    if stat.S_ISDIR(found.st_mode):
                        waiting.append(entry.path)
        size += process_tree.unnamed_bytes_of(self.inside(), self._device)
        return size > self.limits.disk or count > self.limits.inodes


def _check_granted(paths: dict[str, list[int]]) -> None:
    """Refuse what a rule of Landlock would show too much of: a rule holds for everything that is mounted below as well.

    Raises:
        OSError: naming the path.
    """
    for path, identity in paths.items():
        descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
        try:
            refuse_another_path(descriptor, path, identity)
            if below := mounts_below(os.readlink(f"/proc/self/fd/{descriptor}")):
                raise OSError(f"{path} cannot be shown without namespaces: {below[0]} is mounted below it")
        finally:
            os.close(descriptor)


def _keep(cell: ConfinedCell, order: Order, files: Sequence[int], status: int, rules: list[tuple[str, int]]) -> None:
    """The keeper: starts the run, adopts whatever the run lets go of, and ends it all."""
    stop, stopper = os.pipe()
    os.set_blocking(stopper, False)
    signal.set_wakeup_fd(stopper, warn_on_full_buffer=False)
    signal.signal(signal.SIGTERM, lambda *_: None)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
    syscalls.adopt_orphans()
    syscalls.die_with_parent(signal.SIGTERM)
    not_started, not_started_inside = os.pipe()
    run = os.fork()
    if run == 0:
        try:
            cell.group.join()
            settle(limits=cell.limits, niceness=cell.niceness)
            become(files, {not_started_inside: ERROR_FILE}, uid=cell.uid)
            os.set_inheritable(ERROR_FILE, False)  # closed by a successful start
            cell.confine(rules, order.paths)
            os.chdir(order.workspace)
            os.execve(order.command[0], order.command, order.environment)
        except BaseException as error:  # whatever it is, this copy of the launcher must not go on
            os.write(2, f"{words_of(error)}\n".encode())
            os.write(ERROR_FILE, b"failed")
        finally:
            os._exit(127)
    # The launcher's files and the run's pipes are not the keeper's: whoever reads them waits for their end.
    close_all_but((stop, stopper, not_started, status))
    is_started = not os.read(not_started, 16)
    code = _wait_for(run, stop)
    _end_all(cell.uid)
    if is_started:
        os.write(status, str(code).encode())
    os._exit(0)


def _wait_for(run: int, stop: int) -> int:
    """Reap until the run ends, or until told to stop; gives the exit code as a shell would say it."""
    handle = os.pidfd_open(run)
    poll = select.poll()
    for descriptor in (handle, stop):
        poll.register(descriptor, select.POLLIN)
    while True:
        ready = {descriptor for descriptor, _ in poll.poll()}
        if handle in ready:
            _, status = os.waitpid(run, 0)
            code = os.waitstatus_to_exitcode(status)
            return code if code >= 0 else SIGNAL_BASE - code
        if stop in ready and signal.SIGTERM in os.read(stop, 64):
            return SIGNAL_BASE + signal.SIGKILL


def _end_all(uid: int | None) -> None:
    """End every process of the run. Where it has a user of its own, all processes of that user at one stroke."""
    if uid is not None:
        killer = os.fork()
        if killer == 0:
            try:
                os.setgroups([])
                os.setresuid(uid, uid, uid)
                os.kill(-1, signal.SIGKILL)
            finally:
                os._exit(0)
        os.waitpid(killer, 0)
    while left := process_tree.descendants(os.getpid()):
        for pid in left:  # stopped first: what cannot fork any more does not outrun its end
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGSTOP)
        for pid in left:
            end(pid)
        with suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
