"""A sandbox backend on this host: what it guarantees, and how a launcher creates cells with it."""

import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from apexbridge.sandbox.config import BackendName, Guarantee, SandboxLimits
from apexbridge.sandbox.models import Grants

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
