"""Cells with namespaces, created by a preforked child and bubblewrap in the launcher's mount namespace.

bubblewrap can mount a tmpfs with a size limit but not with an inode limit, and mounts cannot be added to its sandbox
later. So the launcher mounts a run's rootfs itself and marks it *shared* before bubblewrap copies it: mounts that are
attached later appear inside as well. That is how a warm cell gets its skill, and no other.
"""

import json
import os
from collections.abc import Iterable, Sequence
from contextlib import suppress
from selectors import EVENT_READ, BaseSelector
from typing import Any

from apexbridge.sandbox.launcher import process_tree, syscalls
from apexbridge.sandbox.launcher.cell import Cell
from apexbridge.sandbox.launcher.child_process import close_all, kill, limit_processes
from apexbridge.sandbox.launcher.granted_paths import check_identity
from apexbridge.sandbox.launcher.mounts import (
    LAYER_PATHS,
    PACKAGES_PATH,
    SKILL_PATH,
    SKILLS_PATH,
    WORKSPACE_PATH,
    MountNamespace,
    copy_rootfs,
    create_mount_point,
    hide,
    hosts_file,
    is_temporary,
    mount_granted_path,
    mount_tmpfs,
    permanent,
)
from apexbridge.sandbox.launcher.prefork import FILTER_FILE, OFFLINE_FILTER_FILE, Prefork
from apexbridge.sandbox.launcher.protocol import Attachment, StartRequest

_SANDBOX_ID = "1000"
"""User and group of the run, as seen inside."""
_STATUS_FILE, _GATE_FILE, _OPTIONS_FILE = 10, 11, 13
_BUBBLEWRAP_PROCESSES = 2
"""bubblewrap outside, and as the first process inside."""
_INPUT_OPTIONS = f"size={52 * 1024 * 1024},nr_inodes=1024,mode=755"
_STATUS_BYTES = 4096
_REMOUNT = syscalls.MS_REMOUNT | syscalls.MS_NOSUID | syscalls.MS_NODEV


class BubblewrapCell(Cell):
    """A cell with namespaces for users, processes, network, mounts, IPC, host name and cgroups."""

    def __init__(
        self, identity: str, uid: int | None, mounts: MountNamespace, prefork: Prefork, selector: BaseSelector
    ) -> None:
        super().__init__(identity, uid, mounts.config.limits)
        self._mounts = mounts
        self._prefork = prefork
        self._selector = selector
        self._disk = mounts.base / f"{identity}-disk"
        self._input = mounts.base / f"{identity}-input"
        self._rootfs = mounts.base / f"{identity}-rootfs"
        self._workspace = self._disk / "tmp" / f"skill-workspace-{identity}"
        self._etc_version = 0
        self._init: int | None = None
        self._status: int | None = None
        self._status_buffer = b""
        self._gate: int | None = None
        self._needs_gate = uid is None
        """Without a user of its own, processes are counted per user namespace; bubblewrap waits for that limit."""

    def open(self, *, with_input: bool) -> list[int]:
        self._disk.mkdir()
        mount_tmpfs(self._disk, f"size={self.limits.disk},nr_inodes={self.limits.inodes},mode=755")
        (self._disk / "tmp").mkdir()
        (self._disk / "tmp").chmod(0o1777)  # the run's own /tmp: some programs ignore TMPDIR, such as LibreOffice
        workspace = self._workspace
        for folder in (workspace, workspace / "output", workspace / "tmp", self._disk / "shm"):
            folder.mkdir()
            if self.uid is not None:
                os.chown(folder, self.uid, self.uid)
        opened = [workspace]
        if with_input:
            self._input.mkdir()
            mount_tmpfs(self._input, _INPUT_OPTIONS)
            opened.append(self._input)
        return [os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC) for folder in opened]

    def start(self, request: StartRequest, files: Sequence[int]) -> list[int]:
        self._mounts.refresh_etc()
        self._etc_version = self._mounts.etc_version
        self._build_rootfs(request)
        if request.attachment is not None:
            self._mount(request.attachment)
        status, status_inside = os.pipe()
        gate_inside, gate = os.pipe()
        inside = {_STATUS_FILE: status_inside, _GATE_FILE: gate_inside}
        for number, has_network in ((FILTER_FILE, True), (OFFLINE_FILTER_FILE, False)):
            inside[number] = os.open(self._mounts.filter_path(network=has_network), os.O_RDONLY)
        if not self._needs_gate:  # bubblewrap would leave a descriptor that is not in its options open for the run
            os.close(inside.pop(_GATE_FILE))
        inside[_OPTIONS_FILE] = self._write_options(request)
        child = self._prefork.take()
        self.pid = child.pid
        self._cgroup = child.cgroup
        message = {
            "command": [self._mounts.bubblewrap, "--args", str(_OPTIONS_FILE), "--", *request.command],
            "hosts": request.hosts,
            "uid": self.uid,
            "processes": self.limits.processes + _BUBBLEWRAP_PROCESSES,
            "numbers": [*inside, *range(len(files))],
        }
        try:
            listeners = child.execute(message, [*inside.values(), *files])
        finally:
            close_all([*inside.values()])
        os.set_blocking(status, False)
        self._selector.register(status, EVENT_READ, self._read_status)
        self._status, self._gate = status, gate
        self.is_watched = request.attachment is not None
        return listeners

    def attach(self, attachment: Attachment) -> None:
        self._mounts.refresh_etc()
        if self._etc_version != self._mounts.etc_version:
            self._mounts.replace_etc(self._rootfs)
        self._mount(attachment)
        self.is_watched = True

    def _mount(self, attachment: Attachment) -> None:
        if attachment.skill is not None:
            _mount_skill(attachment.skill, f"{self._rootfs}{SKILL_PATH}", attachment.folder)
        for kind, layer in attachment.layers.items():
            syscalls.bind_mount(layer, f"{self._rootfs}{LAYER_PATHS[kind]}")
        if attachment.packages:
            self._mount_points(PACKAGES_PATH, attachment.packages)
            for name, layer in attachment.packages.items():
                syscalls.bind_mount(layer, f"{self._rootfs}{PACKAGES_PATH}/{name}")
        if attachment.skills:
            self._mount_points(SKILLS_PATH, attachment.skills)
            for name, (folder, identity) in attachment.skills.items():
                _mount_skill(folder, f"{self._rootfs}{SKILLS_PATH}/{name}", identity)

    def extend_disk(self, size: int, count: int) -> None:
        super().extend_disk(size, count)
        options = f"size={self.limits.disk},nr_inodes={self.limits.inodes}"
        syscalls.mount(None, str(self._disk), None, _REMOUNT, options)

    def kill(self) -> None:
        """Kill the first process inside; the kernel then kills all others of its namespace."""
        kill(self._init)
        kill(self.pid)
        self._open_gate()

    def handle_exit(self, pid: int, status: int) -> int | None:
        """bubblewrap has exited. If it got that far, it has reported the exit code of the run before.

        The first process inside is now the launcher's child if it still exists. Only when it is gone are all others.
        """
        self._read_status()
        is_bubblewrap, self.pid = pid == self.pid, None
        self.check_oom_kills()
        is_over = self.is_killed or self.verdict is not None or self.exit_code is not None
        if is_bubblewrap and os.WIFSIGNALED(status) and not is_over:
            self.verdict = "lost"  # killed by another process of the host
        init, self._init = self._init, None
        if init is None or init == pid:
            return None
        kill(init)
        try:
            os.waitid(os.P_PID, init, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            return None
        return init

    def close(self) -> None:
        self._open_gate()
        self._close_status()
        self._cgroup.remove()
        for folder in (self._rootfs, self._disk, self._input):
            with suppress(OSError):
                syscalls.unmount(str(folder))
            with suppress(OSError):
                folder.rmdir()

    def count_sockets(self, pids: Sequence[int]) -> int:
        """All sockets of the network namespace, including connections that are not accepted yet."""
        return process_tree.count_namespace_sockets(self.pid) if self.pid is not None else 0

    def count_internet_sockets(self) -> int:
        return process_tree.count_internet_sockets(self.pid) if self.pid is not None else 0

    def _build_rootfs(self, request: StartRequest) -> None:
        """Copy the template's mounts, and mount on top what is this run's own."""
        rootfs = self._rootfs
        # A granted path outside /tmp needs a mount point in the rootfs, which the read-only template does not have.
        if granted := permanent(request.paths):
            own = self._mounts.base / f"{self.identity}-template"
            try:
                self._mounts.build_rootfs(own, {path: request.paths[path] for path in granted})
                copy_rootfs(own, rootfs)
            finally:
                with suppress(OSError):
                    syscalls.unmount(str(own))
                    own.rmdir()
        else:
            copy_rootfs(self._mounts.template, rootfs)
        syscalls.bind_mount(str(self._disk / "tmp"), f"{rootfs}/tmp", read_only=False)
        # The run's own /tmp covers the host's, so paths in that are mounted again.
        for path in filter(is_temporary, self._mounts.config.interpreters):
            create_mount_point(self._disk, path)
            syscalls.bind_mount(path, f"{rootfs}{path}")
        for path in sorted(filter(is_temporary, request.paths)):
            create_mount_point(self._disk, path)
            mount_granted_path(rootfs, path, request.paths[path])
        for folder in filter(is_temporary, self._mounts.config.hidden):
            hide(rootfs, folder)
        syscalls.bind_mount(str(self._disk / "shm"), f"{rootfs}/dev/shm", read_only=False)
        self._mount_workspace(f"/tmp/{self._workspace.name}")
        self._mount_workspace(WORKSPACE_PATH)
        if request.hosts:
            hosts = self._disk / "hosts"
            hosts.write_text(hosts_file(request.hosts))
            syscalls.bind_mount(str(hosts), f"{rootfs}/etc/hosts")

    def _mount_points(self, path: str, names: Iterable[str]) -> None:
        """Mount a folder that contains an empty folder for each name."""
        points = self._disk / path.replace("/", "-")
        points.mkdir()
        for name in names:
            (points / name).mkdir()
        syscalls.bind_mount(str(points), f"{self._rootfs}{path}")

    def _mount_workspace(self, path: str) -> None:
        syscalls.bind_mount(str(self._workspace), f"{self._rootfs}{path}", read_only=False)
        if self._input.exists():
            (self._workspace / "input").mkdir(exist_ok=True)
            syscalls.bind_mount(str(self._input), f"{self._rootfs}{path}/input")

    def _write_options(self, request: StartRequest) -> int:
        """A memfd with bubblewrap's options: on the command line, `ps` would show them to all users.

        The preforked child has created the namespaces that are not among them. bubblewrap's own environment is empty,
        because the run can read that of process 1.
        """
        options = ["--unshare-user", "--unshare-pid", "--disable-userns", "--uid", _SANDBOX_ID, "--gid", _SANDBOX_ID]
        options += ["--die-with-parent", "--new-session", "--cap-drop", "ALL"]
        # /proc is read-only: otherwise a normal user's run could lower its oom_score_adj to that of the server.
        options += ["--dev-bind", str(self._rootfs), "/", "--proc", "/proc", "--remount-ro", "/proc"]
        options += ["--chdir", request.workspace]
        options += ["--seccomp", str(FILTER_FILE), "--json-status-fd", str(_STATUS_FILE)]
        options += ["--block-fd", str(_GATE_FILE)] if self._needs_gate else []
        for name, value in request.environment.items():
            options += ["--setenv", name, value]
        memory = os.memfd_create("options", os.MFD_CLOEXEC)
        with open(memory, "wb", closefd=False) as file:
            file.write(b"".join(os.fsencode(word) + b"\0" for word in options))
        os.lseek(memory, 0, os.SEEK_SET)
        return memory

    def _read_status(self) -> None:
        """Read bubblewrap's status lines: the PID of the first process inside, later the exit code of the run."""
        while self._status is not None:
            try:
                chunk = os.read(self._status, _STATUS_BYTES)
            except BlockingIOError:
                return
            if not chunk:
                self._close_status()
            self._status_buffer += chunk
            *lines, self._status_buffer = self._status_buffer.split(b"\n")
            for line in lines:
                self._handle_status(json.loads(line))

    def _handle_status(self, status: dict[str, Any]) -> None:
        if "child-pid" in status:
            self._init = status["child-pid"]
            if self._needs_gate:
                # Only now does it have its own user namespace: earlier, the processes of other runs would count too.
                with suppress(ProcessLookupError):
                    limit_processes(status["child-pid"], self.limits.processes + _BUBBLEWRAP_PROCESSES)
            self._open_gate()
        self.exit_code = status.get("exit-code", self.exit_code)

    def _open_gate(self) -> None:
        if self._gate is not None:
            with suppress(BrokenPipeError):
                os.write(self._gate, b"1")
            os.close(self._gate)
            self._gate = None

    def _close_status(self) -> None:
        if self._status is not None:
            self._selector.unregister(self._status)
            os.close(self._status)
            self._status = None


def _mount_skill(folder: str, target: str, identity: Sequence[int] | None) -> None:
    mount = syscalls.clone_mount(folder)
    try:
        check_identity(mount, "the skill", identity)
    except OSError:
        os.close(mount)
        raise
    syscalls.attach_mount(mount, target)
