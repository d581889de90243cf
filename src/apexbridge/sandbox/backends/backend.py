"""What a kind of walls is, for the sandbox that uses it."""

import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from apexbridge.sandbox.config import BackendName, Guarantee, SandboxLimits
from apexbridge.sandbox.models import Grants

_CAP_SYS_PTRACE = 1 << 19


@dataclass(frozen=True, slots=True, kw_only=True)
class Backend:
    """One kind of walls on this host."""

    name: BackendName
    enforcement: Mapping[Guarantee, str | None]
    """What holds, by which means; None where nothing does."""
    temporary: str
    """The folder that workspaces are in, as a run sees it."""
    skill_path: str
    """Where a run finds its skill; `{base}` and `{cell}` stand for the launcher's folder and the cell's name."""
    loaders: str
    """Where the loaders are, likewise."""
    layer_paths: Mapping[str, str | None]
    """Where installed dependencies show, by their kind; None where it is the folder on the host."""
    can_wait: bool
    """Whether a cell can be started before its skill is known."""
    can_reach_hosts: bool
    """Whether granted hosts can be reached."""

    def counting(self, controllers: Collection[str]) -> "Backend":
        """The same with control groups for these on top."""
        counted = {name: f"cgroup, {how}" for name, how in self.enforcement.items() if name in controllers}
        return replace(self, enforcement={**self.enforcement, **counted})

    def told_for(self, grants: Grants) -> dict[str, str | None]:
        """As a result tells it, with what was let through."""
        told = dict[str, str | None](self.enforcement.items())
        if grants.hosts:
            hosts = ", ".join(f"{host}:{port}" for host, port in grants.hosts)
            told["net"] = f"{told['net']}, proxy to {hosts}"
        if grants.paths:
            told["fs"] = f"{told['fs']}, read-only: {', '.join(grants.paths)}"
        return told


def shared_bytes(limits: SandboxLimits, status: Path = Path("/proc/self/status")) -> int:
    """The largest piece of anonymous shared memory for a run; 0 if the watchdog could not see it, so none is allowed.

    Root gives every run another user. To read what such a process has mapped takes a capability that root lacks in many
    containers.
    """
    if os.getuid() != 0:
        return limits.shared_bytes
    effective = next(line for line in status.read_text().splitlines() if line.startswith("CapEff:"))
    return limits.shared_bytes if int(effective.split()[1], 16) & _CAP_SYS_PTRACE else 0
