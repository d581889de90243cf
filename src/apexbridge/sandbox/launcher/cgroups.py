"""Control groups, where root may make them: the kernel then counts memory, processes and shares of the processor.

They come on top of the limits and the watching, which work everywhere. Memory of the kernel's own (socket buffers, page
tables) only a group counts, and only a group keeps sixty processes from getting sixty shares of the processor.
"""

import os
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from apexbridge.sandbox.launcher.limits import Limits

_ROOT = Path("/sys/fs/cgroup")
_CONTROLLERS = ("memory", "pids", "cpu")
_PREFIX = "apexbridge-"
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

    def __init__(self) -> None:
        self._parents: dict[str, Path] = {}
        self._count = 0
        if os.getuid() == 0:
            for controller in _CONTROLLERS:
                with suppress(OSError):
                    self._parents[controller] = _parent(controller)

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


def _parent(controller: str) -> Path:
    """A group of our own for a controller, below the one that this process is in.

    Raises:
        OSError: there is no such controller here, or it may not be used.
    """
    unified = _ROOT / "cgroup.controllers"
    if unified.exists():
        if controller not in (_ROOT / "cgroup.subtree_control").read_text().split():
            raise OSError(f"{controller} is not passed on")
        base = _ROOT
    else:
        base = _ROOT / controller / _own_path(controller)
    for stale in base.glob(f"{_PREFIX}*"):
        if not Path(f"/proc/{stale.name.removeprefix(_PREFIX)}").exists():
            _remove(stale)
    folder = base / f"{_PREFIX}{os.getpid()}"
    folder.mkdir(exist_ok=True)
    for name, value in _SHARES.items():
        if (folder / name).exists():
            (folder / name).write_text(value)
    if unified.exists():
        (folder / "cgroup.subtree_control").write_text(f"+{controller}")
    return folder


def _own_path(controller: str) -> str:
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if controller in controllers.split(","):
            return path.lstrip("/")
    raise OSError(f"there is no {controller} here")


def _remove(folder: Path) -> None:
    with suppress(OSError):
        for below in folder.iterdir():
            if below.is_dir():
                with suppress(OSError):
                    below.rmdir()
        folder.rmdir()
