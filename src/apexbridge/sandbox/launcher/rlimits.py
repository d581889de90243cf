"""Limits that a process takes upon itself before it becomes a stranger's."""

import os
import resource
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_SIGNALS = 512
"""Queued signals and timers; the kernel counts them by user, and the run may be the server's user."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What one run may use."""

    memory: int
    shared: int
    """The largest piece of anonymous shared memory that the filter of system calls allows."""
    processes: int
    disk: int
    inodes: int
    files: int
    slack: int
    """Room between the limit of the whole tree, which is watched, and the one of each process, which the kernel keeps:
    an interpreter reserves more than it uses."""

    @classmethod
    def read(cls, told: dict[str, Any]) -> "Limits":
        """From a message."""
        return cls(**{key: int(value) for key, value in told.items()})

    def apply(self, niceness: int) -> None:
        """Take the limits that a process can set for itself; the number of processes is set from outside, later."""
        for kind, value in (
            (resource.RLIMIT_CORE, 0),
            (resource.RLIMIT_NOFILE, self.files),
            (resource.RLIMIT_DATA, self.memory + self.slack),
            (resource.RLIMIT_FSIZE, self.disk),
            (resource.RLIMIT_MEMLOCK, 0),
            (resource.RLIMIT_MSGQUEUE, 0),
            (resource.RLIMIT_RTPRIO, 0),
            (resource.RLIMIT_NICE, 0),
            (resource.RLIMIT_SIGPENDING, _SIGNALS),
        ):
            _, hard = resource.getrlimit(kind)
            allowed = value if hard == resource.RLIM_INFINITY else min(value, hard)
            resource.setrlimit(kind, (allowed, allowed))
        os.nice(niceness)
        with suppress(OSError):  # where the kernel groups sessions, it is the group that has to step back
            Path("/proc/self/autogroup").write_text(str(niceness))
        Path("/proc/self/oom_score_adj").write_text("1000")  # where memory runs out, a skill goes before the server


def limit_processes(pid: int, most: int) -> None:
    """How many processes and threads the user of a process may have (0 is this one)."""
    resource.prlimit(pid, resource.RLIMIT_NPROC, (most, most))
