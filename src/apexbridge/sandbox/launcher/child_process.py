"""What a forked child of the launcher does before it executes a run, and how processes are killed."""

import os
import signal
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress

from apexbridge.sandbox.launcher import syscalls
from apexbridge.sandbox.launcher.rlimits import Limits

_MAX_DESCRIPTOR = 65_536
"""Above any descriptor that the launcher has open."""


def reset_process(*, limits: Limits, niceness: int) -> None:
    """Undo what a fork of the launcher inherits: start a session, restore default signals, set the limits."""
    os.setsid()
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    for number in (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGCHLD, signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)  # Python ignores some of these, and children inherit that
    signal.set_wakeup_fd(-1)
    os.umask(0o022)
    os.chdir("/")  # a shell or bubblewrap would expose the old folder as OLDPWD
    limits.apply(niceness)


def drop_privileges(standard_files: Sequence[int], extra_files: Mapping[int, int], *, uid: int | None) -> None:
    """Close all other descriptors, switch to the run's user, and forbid new privileges.

    `standard_files` become descriptors 0, 1, 2 and so on; `extra_files` maps a number to the descriptor to put there.
    """
    _renumber_descriptors({**dict(enumerate(standard_files)), **extra_files})
    if uid is not None:
        os.setgroups([])
        os.setresgid(uid, uid, uid)
        os.setresuid(uid, uid, uid)
    syscalls.set_no_new_privileges()
    syscalls.set_parent_death_signal(signal.SIGKILL)  # last: changing the user resets it


def close_descriptors_except(kept: Iterable[int]) -> None:
    first = 0
    for number in (*sorted(kept), _MAX_DESCRIPTOR):
        if first < number:  # Python 3.11 takes an empty range for all descriptors
            os.closerange(first, number)
        first = number + 1


def kill(pid: int | None) -> None:
    """Send SIGKILL if the process still exists."""
    if pid is not None and pid > 1:
        with suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)


def error_text(error: BaseException) -> str:
    """The error's message without the host path that an OSError may contain."""
    return error.strerror if isinstance(error, OSError) and error.strerror else str(error)


def _renumber_descriptors(numbers: Mapping[int, int]) -> None:
    """Move each descriptor to its number, in two steps: the number may be in use by another one of them."""
    above = max([*numbers, *numbers.values()]) + 1
    moved = {number: above + index for index, number in enumerate(numbers)}
    for number, descriptor in numbers.items():
        os.dup2(descriptor, moved[number], inheritable=False)
    for number, descriptor in moved.items():
        os.dup2(descriptor, number, inheritable=True)
    close_descriptors_except(numbers)
