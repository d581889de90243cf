"""Settings of the sandbox."""

import os
from typing import Literal

from pydantic import BaseModel, ConfigDict

BackendName = Literal["bubblewrap", "landlock", "plain"]
BackendChoice = Literal["auto", "bubblewrap", "landlock", "plain"]
Guarantee = Literal["fs", "net", "tree_kill", "memory", "pids", "disk", "env", "fds", "syscalls"]
GUARANTEES: tuple[Guarantee, ...] = ("fs", "net", "tree_kill", "memory", "pids", "disk", "env", "fds", "syscalls")
MB = 1024 * 1024


def default_concurrency() -> int:
    """One run per core, but at least two."""
    return max(2, os.cpu_count() or 2)


class SandboxLimits(BaseModel):
    model_config = ConfigDict(frozen=True)

    output_bytes: int = 10 * MB
    """stdout and stderr together."""
    memory_bytes: int = 512 * MB
    """All processes of the run together."""
    processes: int = 64
    """Threads count."""
    disk_bytes: int = 64 * MB
    inodes: int = 4096
    files: int = 256
    """Open at a time, in each process."""

    @property
    def shared_bytes(self) -> int:
        """The largest anonymous shared mapping. The watchdog counts every such mapping with this size."""
        return min(max(MB, self.memory_bytes // 32), 1024 * MB)


class SandboxSettings(BaseModel):
    model_config = ConfigDict(frozen=True)

    backend: BackendChoice = "auto"
    require: tuple[Guarantee, ...] = GUARANTEES
    """Guarantees without which no script is run."""
    max_concurrency: int = default_concurrency()
    queue: int = 100
    """How many runs may wait."""
    warm: int = 1
    limits: SandboxLimits = SandboxLimits()
    path: str = os.defpath
    """The server's PATH: the only variable of its environment that runs get."""
