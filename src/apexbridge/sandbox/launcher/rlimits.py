"""Resource limits that a child process sets on itself before it executes untrusted code."""

import os
import resource
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

_PENDING_SIGNALS = 512
"""Queued signals and timers. The kernel counts them per user, and the run may have the server's user."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What one run may use; sizes in bytes."""

    memory: int
    """All processes of the run together."""
    shared: int
    """The largest anonymous shared mapping that the seccomp filter allows."""
    processes: int
    disk: int
    inodes: int
    files: int
    slack: int
    """Added to `memory` for the limit of each process: interpreters reserve more than they use. The watchdog enforces
    `memory` for the whole tree."""

    def apply(self, niceness: int) -> None:
        """Set the limits of this process, except for the number of processes: see `limit_processes`."""
        for kind, value in (
            (resource.RLIMIT_CORE, 0),
            (resource.RLIMIT_NOFILE, self.files),
            (resource.RLIMIT_DATA, self.memory + self.slack),
            (resource.RLIMIT_FSIZE, self.disk),
            (resource.RLIMIT_MEMLOCK, 0),
            (resource.RLIMIT_MSGQUEUE, 0),
            (resource.RLIMIT_RTPRIO, 0),
            (resource.RLIMIT_NICE, 0),
            (resource.RLIMIT_SIGPENDING, _PENDING_SIGNALS),
        ):
            _, hard = resource.getrlimit(kind)
            allowed = value if hard == resource.RLIM_INFINITY else min(value, hard)
            resource.setrlimit(kind, (allowed, allowed))
        os.nice(niceness)
        with suppress(OSError):  # with autogroup scheduling, the niceness of the session's group decides
            Path("/proc/self/autogroup").write_text(str(niceness))
        Path("/proc/self/oom_score_adj").write_text("1000")  # the OOM killer takes a run before the server


def limit_processes(pid: int, count: int) -> None:
    """Limit the processes and threads of the user of process `pid` (0 is this process)."""
    resource.prlimit(pid, resource.RLIMIT_NPROC, (count, count))
