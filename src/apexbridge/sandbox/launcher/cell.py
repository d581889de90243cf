"""A cell: the place of one run, from its empty workspace to the moment nothing of it is left."""

import os
import signal
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from apexbridge.sandbox.launcher import process_tree, syscalls
from apexbridge.sandbox.launcher.rlimits import Limits

Tell = Callable[[dict[str, Any], Sequence[int]], None]
"""Sends news to the server, with open files."""
SHARED_EVERY = 4
"""Looks at what is mapped are dearer than looks at what is used, so there are fewer."""
LISTINGS = 3
"""How often a look lists the run's processes while they come and go."""
MAX_LOCKS = 1024
"""On files. A database has a handful."""
MAX_DESCRIPTOR = 65_536
"""Above any that this program has open."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """What is to be started in a cell."""

    command: list[str]
    environment: dict[str, str]
    workspace: str
    """Its path as the run sees it."""
    skill: str | None = None
    folder: list[int] | None = None
    """The device and number that the skill's folder must have, where it matters which one it is."""
    layers: dict[str, str] = field(default_factory=dict)
    """Folders of installed dependencies, by the name of the place where they show."""
    paths: dict[str, list[int]] = field(default_factory=dict)
    """Further paths of the host that are shown read-only at the same path, and the device and inode each must have."""
    hosts: list[list[Any]] = field(default_factory=list)
    """Addresses inside that lead to a granted host: address, port, name."""

    @classmethod
    def read(cls, told: dict[str, Any]) -> "Order":
        """From a message."""
        return cls(**told)


class Cell(ABC):
    """One run's place. Everything here happens in the launcher, whose loop calls back."""

    def __init__(self, identity: str, *, limits: Limits, uid: int | None, tell: Tell) -> None:
        self.identity = identity
        self._tell = tell
        self.limits = limits
        self.uid = uid
        """The user that the run is, where the launcher may choose one."""
        self.pid: int | None = None
        """The process that this launcher is the parent of."""
        self.is_watched = False
        self.is_closing = False
        self.is_killed = False
        """Whether it was ended; what was ended before it began does not begin."""
        self.peak = 0
        self._looks = 0
        self._unreadable: set[int] = set()
        """Processes whose mappings could not be read at the last look."""
        self.verdict: str | None = None
        """Which limit it was ended for, if one."""
        self.exit_code: int | None = None
        """What the run itself ended with; None as long as it was not even started."""

    @abstractmethod
    def open(self, *, with_input: bool) -> list[int]:
        """Make the workspace; gives the workspace's folder, and the one for input files where that is wanted."""

    @abstractmethod
    def start(self, order: Order, files: Sequence[int]) -> None:
        """Start what runs inside, with these as its standard files (and the fourth as where its job comes from)."""

    @abstractmethod
    def attach(self, skill: str, layers: dict[str, str], folder: list[int] | None) -> None:
        """Show a skill to what is waiting inside; where `folder` is given, only if it still is that very one."""

    @abstractmethod
    def kill(self) -> None:
        """End everything inside."""

    @abstractmethod
    def ended(self, pid: int, status: int) -> int | None:
        """A process of this cell that was ours ended so; gives another one that has to end before the run is over."""

    @abstractmethod
    def close(self) -> None:
        """Take the workspace away."""

    @property
    def wakes(self) -> dict[int, Callable[[], None]]:
        """Descriptors that the loop has to look at for this cell, and what to do then."""
        return {}

    def inside(self) -> list[int]:
        """The processes of the run."""
        return process_tree.descendants(self.pid) if self.pid is not None else []

    def watch(self) -> None:
        """Look at what the run uses, and end it where that is too much."""
        pids = self._settled()
        used = process_tree.memory_of(pids)
        if used > self.limits.memory:
            used = process_tree.exact_memory_of(pids)
        self._looks += 1
        is_hiding = False
        if used <= self.limits.memory and self._looks % SHARED_EVERY == 0:
            is_hiding = self._is_hiding(pids)
        self.peak = max(self.peak, used)
        if is_hiding or used > self.limits.memory:
            self.end_for("memory")

    def sockets(self, pids: Sequence[int]) -> int:
        """How many sockets the run has."""
        return process_tree.open_sockets_of(pids)

    def _settled(self) -> list[int]:
        """The processes of the run; listed again if one ended meanwhile, since its child may have been missed."""
        for _ in range(LISTINGS):
            pids = self.inside()
            if process_tree.are_all_there(pids):
                break
        return pids

    def _is_hiding(self, pids: Sequence[int]) -> bool:
        """Whether the run has too much memory, with what no figure of a process shows."""
        mapped = process_tree.shared_memory_of(pids)
        unreadable, self._unreadable = mapped.unreadable & self._unreadable, mapped.unreadable
        if not mapped.is_whole or process_tree.locks_of(pids) > MAX_LOCKS or (unreadable and self.limits.shared):
            return True
        hidden = process_tree.socket_bytes() * self.sockets(pids)
        if mapped.ranges:
            hidden += min(mapped.bytes_at_most(self.limits.shared), process_tree.shared_memory_of_host())
        if process_tree.private_memory_of(pids) + hidden <= self.limits.memory:
            return False
        return process_tree.exact_memory_of(pids, shared=False) + hidden > self.limits.memory

    def end_for(self, verdict: str) -> None:
        """End everything inside because of a limit."""
        if self.verdict is None:
            self.verdict = verdict
            self.kill()


def settle(*, limits: Limits, niceness: int) -> None:
    """Turn a fresh child into nobody in particular: a session of its own, ordinary signals, its limits."""
    os.setsid()
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    for number in (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGCHLD, signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)  # Python ignores some of these, and a child would inherit that
    signal.set_wakeup_fd(-1)
    os.umask(0o022)
    os.chdir("/")  # a shell or bubblewrap would tell the old folder as OLDPWD
    limits.apply(niceness)


def become(files: Sequence[int], keep: dict[int, int], *, uid: int | None) -> None:
    """Take the run's files and give up everything else: other files, other users' rights, more privileges.

    `keep` maps descriptors to the numbers they shall have.
    """
    _arrange({**dict(enumerate(files)), **{target: source for source, target in keep.items()}})
    if uid is not None:
        os.setgroups([])
        os.setresgid(uid, uid, uid)
        os.setresuid(uid, uid, uid)
    syscalls.renounce_privileges()
    syscalls.die_with_parent(signal.SIGKILL)  # after the change of user, which takes it back


def _arrange(wanted: dict[int, int]) -> None:
    """Give each descriptor its number; two steps, because a number may be taken by another one of them."""
    above = max([*wanted, *wanted.values()]) + 1
    moved = {target: above + position for position, target in enumerate(wanted)}
    for target, source in wanted.items():
        os.dup2(source, moved[target], inheritable=False)
    for target, source in moved.items():
        os.dup2(source, target, inheritable=True)
    close_all_but(wanted)


def close_all_but(kept: Iterable[int]) -> None:
    """Close every descriptor that is not kept. An empty range is left out: Python 3.11 takes it for everything."""
    first = 0
    for number in (*sorted(kept), MAX_DESCRIPTOR):
        if first < number:
            os.closerange(first, number)
        first = number + 1


def refuse_another(descriptor: int, folder: list[int] | None) -> None:
    """Fail where an open folder is not the one that was meant: it was replaced in the meantime."""
    found = os.fstat(descriptor)
    if folder is not None and [found.st_dev, found.st_ino] != folder:
        os.close(descriptor)
        raise OSError("the skill was replaced a moment ago; run it again")


def end(pid: int | None) -> None:
    """SIGKILL, wherever it is."""
    if pid is not None and pid > 1:
        with suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)


def words_of(error: BaseException) -> str:
    """What went wrong, without the path of the host that an error of the system may name."""
    return error.strerror if isinstance(error, OSError) and error.strerror else str(error)
