"""What a forked child of the launcher does before it executes a run, and how processes are killed."""

import os
import resource
import signal
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from apexbridge.sandbox.launcher import syscalls
from apexbridge.sandbox.launcher.protocol import Limits

_MAX_DESCRIPTOR = 65_536
"""Above any descriptor that the launcher has open."""
_PENDING_SIGNALS = 512
"""Queued signals and timers. The kernel counts them per user, and the run may have the server's user."""


def reset_process(*, limits: Limits, niceness: int) -> None:
    """Undo what a fork of the launcher inherits, and set all limits except for the number of processes."""
    os.setsid()
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    for number in (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGCHLD, signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)  # Python ignores some of these, and children inherit that
    signal.set_wakeup_fd(-1)
    os.umask(0o022)
    os.chdir("/")  # a shell or bubblewrap would expose the old folder as OLDPWD
    for kind, value in (
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_NOFILE, limits.files),
        (resource.RLIMIT_DATA, limits.memory + limits.slack),
        (resource.RLIMIT_FSIZE, limits.disk),
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


def drop_privileges(descriptors: Mapping[int, int], *, uid: int | None) -> None:
    """Close all descriptors but these, moved to their keys; switch to the run's user, and forbid new privileges."""
    # In two steps: a number may be in use by another one of them.
    above = max([*descriptors, *descriptors.values()]) + 1
    moved = {number: above + index for index, number in enumerate(descriptors)}
    for number, descriptor in descriptors.items():
        os.dup2(descriptor, moved[number], inheritable=False)
    for number, descriptor in moved.items():
        os.dup2(descriptor, number, inheritable=True)
    close_descriptors_except(descriptors)
    launcher = os.getppid()
    if uid is not None:
        os.setgroups([])
        os.setresgid(uid, uid, uid)
        os.setresuid(uid, uid, uid)
    syscalls.prctl(syscalls.PR_SET_NO_NEW_PRIVS, 1)
    syscalls.prctl(syscalls.PR_SET_PDEATHSIG, signal.SIGKILL)  # last: changing the user resets it
    if os.getppid() != launcher:  # it died meanwhile, without a signal
        os._exit(1)


def close_descriptors_except(numbers: Iterable[int]) -> None:
    first = 0
    for number in (*sorted(numbers), _MAX_DESCRIPTOR):
        if first < number:  # Python 3.11 takes an empty range for all descriptors
            os.closerange(first, number)
        first = number + 1


def close_all(descriptors: Sequence[int]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)


def kill(pid: int | None, number: int = signal.SIGKILL) -> None:
    if pid is not None and pid > 1:
        with suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)


def error_text(error: BaseException) -> str:
    """The error's message without the host path that an OSError may contain."""
    return error.strerror if isinstance(error, OSError) and error.strerror else str(error)
