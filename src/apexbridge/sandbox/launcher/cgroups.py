"""Control groups, if this process may create them: the kernel then limits memory, processes and CPU shares.

Root may create them; another user may below a group that was delegated to it, for example by systemd's `Delegate=yes`.
They come on top of rlimits and the watchdog, which work everywhere. Only a cgroup counts kernel memory exactly, and
only a cgroup keeps sixty processes from getting sixty shares of the CPU.
"""

import os
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from apexbridge.sandbox.launcher import process_tree
from apexbridge.sandbox.launcher.protocol import Limits

_CONTROLLERS = ("memory", "pids", "cpu")
_PREFIX = "apexbridge-"
_SERVER = "apexbridge-server"
"""The group of the server's own processes: in version 2, a group that delegates controllers may not contain any."""
_KERNEL_BYTES = 64 * 1024 * 1024
"""For kernel memory of a run; its workspace counts too."""
_OWN_PROCESSES = 8
"""Of the sandbox, which count too."""
_SHARES = {"cpu.shares": 512, "cpu.weight": 50}
"""Under contention, all runs together get half the CPU time of one busy process outside."""


@dataclass(slots=True, kw_only=True)
class RunCgroup:
    """The groups of one run: one folder for each controller (version 1), or one for all (version 2)."""

    folders: list[Path] = field(default_factory=list)

    def join(self) -> None:
        """Move this process, and so its future children, into the groups."""
        for folder in self.folders:
            (folder / "cgroup.procs").write_text("0")

    def oom_kills(self) -> int:
        for folder in self.folders:
            for name in ("memory.oom_control", "memory.events"):
                with suppress(OSError, ValueError):
                    words = (folder / name).read_text().split()
                    return int(words[words.index("oom_kill") + 1])
        return 0

    def remove(self) -> None:
        for folder in self.folders:
            with suppress(OSError):
                folder.rmdir()


class Cgroups:
    def __init__(
        self,
        *,
        mounted_at: Path = Path("/sys/fs/cgroup"),
        own_groups: Path = Path("/proc/self/cgroup"),
        controllers: tuple[str, ...] = _CONTROLLERS,
    ) -> None:
        self._parents: dict[str, Path] = {}
        self._count = 0
        own: dict[str, str] = {}
        """The group of this process for each controller; "" is the key of version 2."""
        with suppress(OSError):
            for line in own_groups.read_text().splitlines():
                _, names, path = line.split(":", 2)
                own |= dict.fromkeys(names.split(","), path.lstrip("/"))
        # Version 2 is mounted alone, or beside version 1.
        unified = mounted_at if (mounted_at / "cgroup.controllers").exists() else mounted_at / "unified"
        for controller in controllers:
            with suppress(OSError):
                if controller in own:
                    self._parents[controller] = _create_parent(mounted_at / controller / own[controller])
                elif "" in own:
                    self._parents[controller] = _create_unified_parent(unified, own[""], controller)

    @property
    def controllers(self) -> list[str]:
        return list(self._parents)

    def create(self, limits: Limits) -> RunCgroup:
        self._count += 1
        memory, processes = limits.memory + limits.disk + _KERNEL_BYTES, limits.processes + _OWN_PROCESSES
        values = {"memory.limit_in_bytes": memory, "memory.max": memory, "memory.swap.max": 0, "pids.max": processes}
        group = RunCgroup()
        for parent in dict.fromkeys(self._parents.values()):
            folder = parent / str(self._count)
            with suppress(OSError):
                folder.mkdir()
                group.folders.append(folder)
                _write_values(folder, values)
        return group

    def close(self) -> None:
        for parent in self._parents.values():
            _remove(parent)


def _create_parent(base: Path) -> Path:
    """Create this launcher's group below `base`. Raises OSError if that is not possible or permitted."""
    for stale in base.glob(f"{_PREFIX}[0-9]*"):
        if not Path(f"/proc/{stale.name.removeprefix(_PREFIX)}").exists():
            _remove(stale)
    folder = base / f"{_PREFIX}{os.getpid()}"
    folder.mkdir(exist_ok=True)
    probe = folder / "0"  # a group as for a run
    try:
        probe.mkdir(exist_ok=True)
        for name in ("cgroup.procs", "memory.limit_in_bytes", "memory.max", "pids.max"):
            if (probe / name).exists() and not os.access(probe / name, os.W_OK):
                raise PermissionError(f"{name} is not writable")
        probe.rmdir()
    except OSError:
        _remove(folder)
        raise
    _write_values(folder, _SHARES)
    return folder


def _create_unified_parent(mount: Path, own: str, controller: str) -> Path:
    """As `_create_parent`, in version 2: below the group of this process, else below the root."""
    base = mount / own
    if base.name == _SERVER:  # an earlier launcher of this server moved us there
        base = base.parent
    try:
        return _create_delegated_parent(base, controller)
    except OSError:
        if base == mount or not _is_root_group(mount):
            raise
        return _create_delegated_parent(mount, controller)


def _create_delegated_parent(base: Path, controller: str) -> Path:
    if controller not in (base / "cgroup.controllers").read_text().split():
        raise OSError(f"{controller} is not delegated to {base}")
    if controller not in (base / "cgroup.subtree_control").read_text().split():
        if not _is_root_group(base):
            _move_server_processes(base)
        (base / "cgroup.subtree_control").write_text(f"+{controller}")
    folder = _create_parent(base)
    (folder / "cgroup.subtree_control").write_text(f"+{controller}")
    return folder


def _is_root_group(folder: Path) -> bool:
    """Only the root group may contain both processes and groups with controllers."""
    return not (folder / "cgroup.type").exists()


def _move_server_processes(base: Path) -> None:
    members = {int(word) for word in (base / "cgroup.procs").read_text().split()}
    server = os.getppid()
    if not members <= {os.getpid(), server, *process_tree.descendants(server)}:
        raise OSError(f"{base} contains processes that are not the server's")
    leaf = base / _SERVER
    leaf.mkdir(exist_ok=True)
    for pid in members:
        with suppress(ProcessLookupError):
            (leaf / "cgroup.procs").write_text(str(pid))


def _write_values(folder: Path, values: dict[str, int]) -> None:
    for name, value in values.items():
        if (folder / name).exists():
            (folder / name).write_text(str(value))


def _remove(folder: Path) -> None:
    with suppress(OSError):
        for below in folder.iterdir():
            if below.is_dir():
                with suppress(OSError):
                    below.rmdir()
        folder.rmdir()
