"""A cell: the sandbox of one run, from its empty workspace until everything is removed."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import replace

from apexbridge.sandbox.launcher import process_tree
from apexbridge.sandbox.launcher.cgroups import RunCgroup
from apexbridge.sandbox.launcher.protocol import Attachment, Limits, StartRequest

_MAPPINGS_INTERVAL = 4
"""Mappings are read on every fourth check only, as that is slow."""
_MAX_LISTINGS = 3
"""How often one check lists the run's processes while they come and go."""
_MAX_FILE_LOCKS = 1024
"""A database holds a handful."""
_MAX_INTERNET_SOCKETS = 512
"""Both ends of a connection count. The kernel limits the buffers of all TCP sockets of the host together."""


class Cell(ABC):
    """One run's sandbox, inside the launcher; the launcher's event loop calls its methods."""

    def __init__(self, identity: str, uid: int | None, limits: Limits) -> None:
        self.identity = identity
        self.uid = uid
        """The run's own user; None if the launcher is not root."""
        self.limits = limits
        self.pid: int | None = None
        """The launcher's child process in this cell."""
        self.is_watched = False
        self.is_closing = False
        self.is_killed = False
        """If this is set before the start, the run does not start."""
        self.verdict: str | None = None
        """The limit for which the run was killed."""
        self.exit_code: int | None = None
        """Of the run itself; None until it was started and has ended."""
        self.peak_memory = 0
        self._cgroup = RunCgroup()
        self._checks = 0
        self._unreadable: set[int] = set()
        """Processes whose mappings could not be read at the last check."""

    @abstractmethod
    def open(self, *, with_input: bool) -> list[int]:
        """Create the workspace; returns descriptors of it and, with `with_input`, of the folder for input files."""

    @abstractmethod
    def start(self, request: StartRequest, files: Sequence[int]) -> list[int]:
        """Start the run with `files` as its first descriptors; returns listening sockets of granted hosts."""

    @abstractmethod
    def attach(self, attachment: Attachment) -> None:
        """Mount skills in a warm cell; fails if a folder does not have its device and inode."""

    @abstractmethod
    def kill(self) -> None:
        """Kill all processes of the run."""

    @abstractmethod
    def handle_exit(self, pid: int, status: int) -> int | None:
        """Handle the end of a child process; returns another child that must end before the run is over."""

    @abstractmethod
    def close(self) -> None:
        """Remove the workspace."""

    def extend_disk(self, size: int, count: int) -> None:
        """Add files that the server copies into the workspace, their bytes and their number, to the limits."""
        self.limits = replace(self.limits, disk=self.limits.disk + size, inodes=self.limits.inodes + count)

    def processes(self) -> list[int]:
        return process_tree.descendants(self.pid) if self.pid is not None else []

    def count_sockets(self, pids: Sequence[int]) -> int:
        return process_tree.count_open_sockets(pids)

    def count_internet_sockets(self) -> int:
        """None, if the backend has no network namespace: then a run cannot create one."""
        return 0

    def exceeded_backend_limit(self) -> str | None:
        """A limit that this kind of cell must poll for because the kernel does not enforce it."""
        return None

    def watch(self) -> None:
        """Kill the run if it exceeds a limit."""
        self._checks += 1
        verdict = "memory" if self._is_memory_exceeded() else self.exceeded_backend_limit()
        if verdict and self.verdict is None:
            self.verdict = verdict
            self.kill()

    def check_oom_kills(self) -> None:
        """At the end of a run: the kernel may have ended a process of it after the last check."""
        if self.verdict is None and self._cgroup.oom_kills():
            self.verdict = "memory"

    def _is_memory_exceeded(self) -> bool:
        # On a busy machine the kernel can be first, and what is left of the run can be below the limit again.
        if self._cgroup.oom_kills():
            return True
        pids: list[int] = []
        for _ in range(_MAX_LISTINGS):  # list again if a process ended meanwhile: its child may have been missed
            pids = self.processes()
            if process_tree.are_alive(pids):
                break
        used = process_tree.memory_of(pids)
        if used > self.limits.memory:
            used = process_tree.exact_memory_of(pids)
        self.peak_memory = max(self.peak_memory, used)
        if used > self.limits.memory:
            return True
        return self._checks % _MAPPINGS_INTERVAL == 0 and self._hides_memory(pids)

    def _hides_memory(self, pids: Sequence[int]) -> bool:
        """Whether the run uses too much memory that no figure of a process shows."""
        mappings = process_tree.shared_mappings(pids)
        # Only processes that could not be read at the previous check either count.
        unreadable, self._unreadable = mappings.unreadable & self._unreadable, mappings.unreadable
        if not mappings.is_complete or process_tree.count_file_locks(pids) > _MAX_FILE_LOCKS:
            return True
        if unreadable and self.limits.shared:
            return True
        if self.count_internet_sockets() > _MAX_INTERNET_SOCKETS:
            return True
        hidden = process_tree.socket_buffer_bytes() * self.count_sockets(pids)
        if mappings.ranges:
            hidden += min(mappings.max_bytes(self.limits.shared), process_tree.host_shared_memory())
        if process_tree.memory_of(pids, shared=False) + hidden <= self.limits.memory:
            return False
        return process_tree.exact_memory_of(pids, shared=False) + hidden > self.limits.memory
