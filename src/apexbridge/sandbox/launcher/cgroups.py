"""Control groups, if this process may make them: the kernel then counts memory, processes and shares of the processor.

Root may; another user may below a group that was handed over to it, for example by systemd's `Delegate=yes`. They come
on top of the limits and the watching, which work everywhere. Only a group counts memory of the kernel's own exactly,
and only a group keeps sixty processes from getting sixty shares of the processor.
"""

import os
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from apexbridge.sandbox.launcher import process_tree
from apexbridge.sandbox.launcher.rlimits import Limits

_MOUNTED_AT = Path("/sys/fs/cgroup")
_OWN_GROUPS = Path("/proc/self/cgroup")
_CONTROLLERS = ("memory", "pids", "cpu")
_PREFIX = "apexbridge-"
_SERVER = "apexbridge-server"
"""The group of the server's own processes: in version 2, a group that passes controllers on may hold none itself."""
_KERNEL_BYTES = 64 * 1024 * 1024
"""For what the kernel needs on a run's behalf; its workspace counts as well."""
_SHARES = {"cpu.shares": "512", "cpu.weight": "50"}
"""All runs together get half of what one busy process outside has, when both want the processor."""


@dataclass(slots=True, kw_only=True)
class Group:
    """The groups of one run, one folder for each controller or one for all."""

    folders: list[Path] = field(default_factory=list)

    def join(self) -> None:
        """Move this process there; what it starts will be there too."""
        for folder in self.folders:
            (folder / "cgroup.procs").write_text("0")

    def oom_kills(self) -> int:
        """How many processes the kernel ended for want of memory."""
        for folder in self.folders:
            for name in ("memory.oom_control", "memory.events"):
                with suppress(OSError, ValueError):
                    words = (folder / name).read_text().split()
                    return int(words[words.index("oom_kill") + 1])
        return 0

    def remove(self) -> None:
        """Nothing is left in them."""
        for folder in self.folders:
            with suppress(OSError):
                folder.rmdir()


class Cgroups:
    """Makes groups for runs below one of its own."""

    def __init__(
        self,
        *,
        mounted_at: Path = _MOUNTED_AT,
        own_groups: Path = _OWN_GROUPS,
        controllers: tuple[str, ...] = _CONTROLLERS,
    ) -> None:
        self._parents: dict[str, Path] = {}
        self._count = 0
        try:
            own = _own_paths(own_groups.read_text())
        except OSError:
            return
        for controller in controllers:
            with suppress(OSError):
                if controller in own:
                    self._parents[controller] = _parent(mounted_at / controller / own[controller])
                elif "" in own:
                    self._parents[controller] = _unified_parent(_unified_mount(mounted_at), own[""], controller)

    @property
    def controllers(self) -> list[str]:
        """What is counted."""
        return list(self._parents)

    def new(self, limits: Limits) -> Group:
        """Groups for one run."""
        self._count += 1
        wanted = {
            "memory.limit_in_bytes": limits.memory + limits.disk + _KERNEL_BYTES,
            "memory.max": limits.memory + limits.disk + _KERNEL_BYTES,
            "memory.swap.max": 0,
            "pids.max": limits.processes + 8,  # the sandbox's own are among them
        }
        group = Group()
        for parent in dict.fromkeys(self._parents.values()):
            folder = parent / str(self._count)
            with suppress(OSError):
                folder.mkdir()
                group.folders.append(folder)
                for name, value in wanted.items():
                    if (folder / name).exists():
                        (folder / name).write_text(str(value))
        return group

    def close(self) -> None:
        """Take our own away; everything below it is gone."""
        for parent in self._parents.values():
            _remove(parent)


def _own_paths(text: str) -> dict[str, str]:
    """The group of this process for each controller, from `/proc/self/cgroup`; "" is that of version 2."""
    found: dict[str, str] = {}
    for line in text.splitlines():
        _, controllers, path = line.split(":", 2)
        for controller in controllers.split(","):
            found[controller] = path.lstrip("/")
    return found


def _unified_mount(mounted_at: Path) -> Path:
    """Where version 2 is mounted: alone, or beside version 1."""
    return mounted_at if (mounted_at / "cgroup.controllers").exists() else mounted_at / "unified"


def _parent(base: Path) -> Path:
    """A group of our own below this one.

    Raises:
        OSError: there is no such group, or this process may not make one there.
    """
    for stale in base.glob(f"{_PREFIX}[0-9]*"):
        if not Path(f"/proc/{stale.name.removeprefix(_PREFIX)}").exists():
            _remove(stale)
    folder = base / f"{_PREFIX}{os.getpid()}"
    folder.mkdir(exist_ok=True)
    try:
        _try(folder)
    except OSError:
        _remove(folder)
        raise
    for name, value in _SHARES.items():
        if (folder / name).exists():
            (folder / name).write_text(value)
    return folder


def _try(folder: Path) -> None:
    """Make a group as for a run, and take it away.

    Raises:
        OSError: this process may not make one, or not write what a run's group needs.
    """
    probe = folder / "0"
    probe.mkdir(exist_ok=True)
    try:
        for name in ("cgroup.procs", "memory.limit_in_bytes", "memory.max", "pids.max"):
            if (probe / name).exists() and not os.access(probe / name, os.W_OK):
                raise PermissionError(f"{name} may not be written")
    finally:
        probe.rmdir()


def _unified_parent(mount: Path, own: str, controller: str) -> Path:
    """A group of our own that counts by this controller, in version 2: below that of this process, else below the root.

    Raises:
        OSError: neither can be used.
    """
    base = mount / own
    if base.name == _SERVER:  # an earlier launcher of this server has moved it there
        base = base.parent
    try:
        return _passed_on(base, controller)
    except OSError:
        if base == mount or not _is_root_of_host(mount):
            raise
        return _passed_on(mount, controller)


def _passed_on(base: Path, controller: str) -> Path:
    if controller not in (base / "cgroup.controllers").read_text().split():
        raise OSError(f"{controller} is not passed on to {base}")
    if controller not in (base / "cgroup.subtree_control").read_text().split():
        if not _is_root_of_host(base):
            _make_room(base)
        (base / "cgroup.subtree_control").write_text(f"+{controller}")
    folder = _parent(base)
    (folder / "cgroup.subtree_control").write_text(f"+{controller}")
    return folder


def _is_root_of_host(folder: Path) -> bool:
    """Whether this group is the root of all, which alone may hold processes and groups beside each other."""
    return not (folder / "cgroup.type").exists()


def _make_room(base: Path) -> None:
    """Move the server's processes into a group below, so that this one can pass controllers on.

    Raises:
        OSError: processes that are not the server's are there too. They stay where they are.
    """
    here = {int(word) for word in (base / "cgroup.procs").read_text().split()}
    server = os.getppid()
    ours = {os.getpid(), server, *process_tree.descendants(server)}
    if not here <= ours:
        raise OSError(f"{base} holds processes that are not the server's")
    leaf = base / _SERVER
    leaf.mkdir(exist_ok=True)
    for pid in here:
        with suppress(ProcessLookupError):
            (leaf / "cgroup.procs").write_text(str(pid))


def _remove(folder: Path) -> None:
    with suppress(OSError):
        for below in folder.iterdir():
            if below.is_dir():
                with suppress(OSError):
                    below.rmdir()
        folder.rmdir()
