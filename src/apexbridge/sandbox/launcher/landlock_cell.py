"""Cells without namespaces, for hosts that refuse user namespaces: Landlock and seccomp, or limits only (`plain`).

Runs share the host's process table, and their workspace is a folder on the host's disk. A keeper process kills what a
run leaves behind, and the launcher polls the limits that namespaces and a mounted workspace would enforce.
"""

import os
import shutil
import signal
import stat
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from apexbridge.sandbox.launcher import process_tree, syscalls
from apexbridge.sandbox.launcher.cell import Cell
from apexbridge.sandbox.launcher.cgroups import RunCgroup
from apexbridge.sandbox.launcher.child_process import (
    close_descriptors_except,
    drop_privileges,
    error_text,
    kill,
    limit_processes,
    reset_process,
)
from apexbridge.sandbox.launcher.granted_paths import check_granted_path, check_identity, mounts_below
from apexbridge.sandbox.launcher.mounts import SYSTEM, make_readable
from apexbridge.sandbox.launcher.protocol import Attachment, LauncherConfig, StartRequest
from apexbridge.sandbox.launcher.removal import remove_tree

_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_FOLDER = 1, 2, 4, 8
_ALL_RIGHTS = {1: 0x1FFF, 2: 0x3FFF, 3: 0x7FFF, 4: 0x7FFF, 5: 0xFFFF}
"""All rights to files, by Landlock's ABI version."""
_FIRST_WITH_NETWORK, _FIRST_WITH_SCOPES = 4, 6
_BIND_AND_CONNECT = 3
_SOCKETS_AND_SIGNALS = 3
_DEVICES = ("null", "full", "random", "urandom")
"""Not /dev/zero: a shared mapping of it is memory whose size the watchdog cannot determine. /dev/full reads alike."""
_ETC = (
    "alternatives",
    "ld.so.cache",
    "localtime",
    "ssl/openssl.cnf",
    "ssl/certs",
    "pki",
    "mime.types",
    "fonts",
    "libreoffice",
    "ImageMagick-6",
    "ImageMagick-7",
    "chromium.d",
)
_ERROR_FILE = 10
_SIGNAL_BASE = 128
_KEEPER_SIGNALS = {signal.SIGTERM, signal.SIGCHLD}
"""A child has ended, or the run must end."""
_DISK_INTERVAL = 2
"""The workspace is measured on every second check only, as that is slow."""
_MAX_MEASURED_FILES = 50_000

Rules = list[tuple[str, int]]


def is_reachable(path: str) -> bool:
    """Whether all users can traverse a folder and its parents."""
    return all(os.stat(parent).st_mode & stat.S_IXOTH for parent in (Path(path), *Path(path).parents))


class LandlockCell(Cell):
    def __init__(self, identity: str, uid: int | None, config: LauncherConfig, cgroup: RunCgroup) -> None:
        super().__init__(identity, uid, config.limits)
        self._config = config
        self._cgroup = cgroup
        self._workspace = Path(config.temporary_folder) / f"skill-workspace-{identity}"
        self._folder = Path(config.base) / identity
        self._has_landlock = config.backend == "landlock"
        self._status: int | None = None
        self._device = 0

    def open(self, *, with_input: bool) -> list[int]:
        for folder in (self._workspace, self._workspace / "output", self._workspace / "tmp"):
            folder.mkdir(mode=0o700)
            if self.uid is not None:
                os.chown(folder, self.uid, self.uid)
        self._device = self._workspace.stat().st_dev
        opened = [self._workspace]
        if with_input:
            opened.append(self._workspace / "input")
            opened[-1].mkdir(mode=0o755)
        return [os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC) for folder in opened]

    def start(self, request: StartRequest, files: Sequence[int]) -> list[int]:
        """Start a keeper process, which starts the run and outlives it."""
        attachment = request.attachment
        if attachment is None:
            raise OSError("a run without namespaces cannot be started before its skill is known")
        if self._has_landlock:
            _check_granted_paths(request.paths)
        skills = self._provide_skills(attachment)
        rules = self._rules(
            [
                f"{self._config.base}/loaders",
                *skills,
                *attachment.layers.values(),
                *attachment.packages.values(),
                *request.paths,
            ]
        )
        status, status_inside = os.pipe()
        signal.pthread_sigmask(signal.SIG_BLOCK, _KEEPER_SIGNALS)  # the keeper waits for them
        self.pid = os.fork()
        if self.pid == 0:
            try:
                self._keep(request, files, status_inside, rules)
            finally:
                os._exit(1)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _KEEPER_SIGNALS)
        os.close(status_inside)
        self._status = status
        self.is_watched = True
        return []

    def attach(self, attachment: Attachment) -> None:
        raise OSError("a run without namespaces cannot get its skill after the start")

    def kill(self) -> None:
        """Have the keeper kill everything; the keeper itself exits last."""
        kill(self.pid, signal.SIGTERM)

    def handle_exit(self, pid: int, status: int) -> int | None:
        """The keeper has exited, so nothing of the run is left; it has written the exit code of the run."""
        self.pid = None
        if self._status is not None:
            code = os.read(self._status, 64)
            self.exit_code = int(code) if code else None
        self.check_oom_kills()
        return None

    def close(self) -> None:
        if self._status is not None:
            os.close(self._status)
            self._status = None
        self._cgroup.remove()
        remove_tree(str(self._workspace))
        remove_tree(str(self._folder))

    def exceeded_backend_limit(self) -> str | None:
        """Processes and disk, which the kernel limits per user here and not per run."""
        if process_tree.count_tasks(self.processes()) > self.limits.processes:
            return "processes"
        return "disk" if self._checks % _DISK_INTERVAL == 0 and self._is_disk_exceeded() else None

    def _is_disk_exceeded(self) -> bool:
        size = count = 0
        pending = [str(self._workspace)]
        while pending and count < _MAX_MEASURED_FILES:
            try:
                entries = list(os.scandir(pending.pop()))
            except OSError:
                continue
            for entry in entries:
                count += 1
                with suppress(OSError):
                    status = entry.stat(follow_symlinks=False)
                    size += status.st_blocks * 512
                    if stat.S_ISDIR(status.st_mode):
                        pending.append(entry.path)
        size += process_tree.unlinked_file_bytes(self.processes(), self._device)
        return size > self.limits.disk or count > self.limits.inodes

    def _provide_skills(self, attachment: Attachment) -> list[str]:
        """Put the skills at the paths where the run expects them; returns the folders that it must be able to read."""
        (self._folder / "skills").mkdir(mode=0o755, parents=True)
        readable = [str(self._folder)]
        for name, (folder, identity) in attachment.skills.items():
            readable.append(self._provide_skill(self._folder / "skills" / name, folder, identity))
        if attachment.skill is not None:
            readable.append(self._provide_skill(self._folder / "skill", attachment.skill, attachment.folder))
        return readable

    def _provide_skill(self, target: Path, skill: str, identity: Sequence[int] | None) -> str:
        """Link to the skill, or copy it if the run's user cannot reach it."""
        with syscalls.opened(skill, os.O_PATH) as descriptor:
            check_identity(descriptor, "the skill", identity)
        if self.uid is None or is_reachable(skill):
            target.symlink_to(skill)
            return skill
        shutil.copytree(skill, target, symlinks=True)
        make_readable(target)
        return str(target)

    def _rules(self, readable: list[str]) -> Rules:
        read = _EXECUTE | _READ_FILE | _READ_FOLDER
        rules = [(path, read) for path in (*SYSTEM, *self._config.interpreters, *readable)]
        rules += [(f"/etc/{name}", read) for name in _ETC]
        rules += [(f"/dev/{name}", _READ_FILE | _WRITE_FILE) for name in _DEVICES]
        rules.append((str(self._workspace), _ALL_RIGHTS[5]))
        return rules

    # ------------------------------------------------------------------------------------------- in the keeper process
    def _keep(self, request: StartRequest, files: Sequence[int], status: int, rules: Rules) -> None:
        """Start the run, adopt its orphans, and kill everything when it ends or when SIGTERM arrives."""
        signal.set_wakeup_fd(-1)
        syscalls.prctl(syscalls.PR_SET_CHILD_SUBREAPER, 1)
        syscalls.prctl(syscalls.PR_SET_PDEATHSIG, signal.SIGTERM)
        failure, failure_writer = os.pipe()
        run = os.fork()
        if run == 0:
            try:
                self._execute(request, files, failure_writer, rules)
            except BaseException as error:  # on any error: this copy of the launcher must not continue
                os.write(2, f"{error_text(error)}\n".encode())
                os.write(_ERROR_FILE, b"failed")
            finally:
                os._exit(127)
        # Close the launcher's files and the run's pipes: their readers wait for the end of file.
        close_descriptors_except((failure, status))
        is_started = not os.read(failure, 16)
        code = _wait_for(run)
        _kill_all(self.uid)
        if is_started:
            os.write(status, str(code).encode())
        os._exit(0)

    def _execute(self, request: StartRequest, files: Sequence[int], failure: int, rules: Rules) -> None:
        self._cgroup.join()
        reset_process(limits=self.limits, niceness=self._config.niceness)
        drop_privileges({**dict(enumerate(files)), _ERROR_FILE: failure}, uid=self.uid)
        os.set_inheritable(_ERROR_FILE, False)  # closed by a successful start
        # If the user is shared, its other processes count too. The watchdog corrects for later changes of their number.
        own = process_tree.count_tasks(process_tree.all_processes(), uid=os.getuid()) if self.uid is None else 1
        limit_processes(0, own - 1 + self.limits.processes)
        if self._has_landlock:
            version = syscalls.landlock_version()
            syscalls.restrict_with_landlock(
                _ALL_RIGHTS[min(version, 5)],
                _BIND_AND_CONNECT if version >= _FIRST_WITH_NETWORK else 0,
                _SOCKETS_AND_SIGNALS if version >= _FIRST_WITH_SCOPES else 0,
                rules,
                request.paths,
            )
            syscalls.install_seccomp_filter(bytes.fromhex(self._config.filters[0]))
        os.chdir(request.workspace)
        os.execve(request.command[0], list(request.command), request.environment)


def _check_granted_paths(paths: Mapping[str, Sequence[int]]) -> None:
    """Refuse a path with mounts below it: a Landlock rule would include them."""
    for path, identity in paths.items():
        with syscalls.opened(path, os.O_PATH) as descriptor:
            check_granted_path(descriptor, path, identity)
            if below := mounts_below(os.readlink(f"/proc/self/fd/{descriptor}")):
                raise OSError(f"{path} cannot be granted without namespaces: {below[0]} is mounted below it")


def _wait_for(run: int) -> int:
    """Wait until the run ends or SIGTERM arrives; returns the exit code as a shell reports it."""
    while signal.sigwait(_KEEPER_SIGNALS) == signal.SIGCHLD:
        pid, status = os.waitpid(run, os.WNOHANG)
        if pid:
            code = os.waitstatus_to_exitcode(status)
            return code if code >= 0 else _SIGNAL_BASE - code
    return _SIGNAL_BASE + signal.SIGKILL


def _kill_all(uid: int | None) -> None:
    """Kill every process of the run. If it has its own user, one signal reaches all processes of that user."""
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
    while pids := process_tree.descendants(os.getpid()):
        for number in (signal.SIGSTOP, signal.SIGKILL):  # stop all before killing: a stopped process cannot fork
            for pid in pids:
                kill(pid, number)
        with suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
