"""A child process that is forked before it is needed and becomes the next run.

A fork of the launcher and new namespaces for network, IPC, host name and cgroups take longer than everything else in a
start, and they are the same for every run. So one child is always ready; it is used once.
"""

import os
import signal
import socket
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from apexbridge.sandbox.launcher import loopback, protocol, syscalls
from apexbridge.sandbox.launcher.cgroups import Cgroups, RunCgroup
from apexbridge.sandbox.launcher.child_process import (
    close_descriptors_except,
    drop_privileges,
    error_text,
    kill,
    reset_process,
)
from apexbridge.sandbox.launcher.rlimits import Limits, limit_processes

HOST_NAME = "sandbox"
_NAMESPACES = syscalls.CLONE_NEWNET | syscalls.CLONE_NEWIPC | syscalls.CLONE_NEWUTS | syscalls.CLONE_NEWCGROUP


@dataclass(frozen=True, slots=True, kw_only=True)
class PreforkedChild:
    """The waiting process, in its parent."""

    pid: int
    link: socket.socket
    cgroup: RunCgroup

    def execute(self, request: dict[str, Any], files: Sequence[int]) -> list[int]:
        """Send what to execute; returns the listening sockets of granted hosts."""
        with self.link:
            protocol.send(self.link, request, files)
            if not request["hosts"]:
                return []
            reply = protocol.receive(self.link)
        return reply[1] if reply else []


class Prefork:
    """Keeps one preforked child ready."""

    def __init__(self, limits: Limits, niceness: int, cgroups: Cgroups) -> None:
        self._limits = limits
        self._niceness = niceness
        self._cgroups = cgroups
        self._child: PreforkedChild | None = None

    @property
    def is_ready(self) -> bool:
        return self._child is not None

    def owns(self, pid: int) -> bool:
        return self._child is not None and self._child.pid == pid

    def prepare(self) -> None:
        if self._child is None:
            self._child = _fork(self._limits, self._niceness, self._cgroups.create(self._limits))

    def take(self) -> PreforkedChild:
        child = self._child or _fork(self._limits, self._niceness, self._cgroups.create(self._limits))
        self._child = None
        return child

    def handle_exit(self) -> None:
        """The child has exited before it was needed."""
        if self._child is not None:
            self._child.link.close()
            self._child.cgroup.remove()
            self._child = None

    def close(self) -> None:
        if self._child is not None:
            kill(self._child.pid)
            with suppress(ChildProcessError):
                os.waitpid(self._child.pid, 0)
            self._child.cgroup.remove()


def _fork(limits: Limits, niceness: int, cgroup: RunCgroup) -> PreforkedChild:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    pid = os.fork()
    if pid == 0:
        try:
            _create_namespaces(theirs, cgroup)
            reset_process(limits=limits, niceness=niceness)
            received = protocol.receive(theirs)
            if received is not None:
                _execute(theirs, *received)
        finally:
            os._exit(1)  # on any error: this copy of the launcher must not return to its event loop
    theirs.close()
    return PreforkedChild(pid=pid, link=ours, cgroup=cgroup)


def _create_namespaces(link: socket.socket, cgroup: RunCgroup) -> None:
    close_descriptors_except({0, 1, 2, link.fileno()})
    syscalls.set_parent_death_signal(signal.SIGKILL)
    cgroup.join()  # first: the kernel may be slow here, and the cgroup namespace is rooted at the current group
    syscalls.unshare(_NAMESPACES)
    socket.sethostname(HOST_NAME)
    loopback.bring_up()


def _execute(link: socket.socket, request: dict[str, Any], files: list[int]) -> None:
    """`files` are the descriptors for `request["numbers"]`, then stdin, stdout, stderr and perhaps the job pipe."""
    numbers, uid = request["numbers"], request["uid"]
    extra_files, standard_files = dict(zip(numbers, files, strict=False)), files[len(numbers) :]
    stderr = standard_files[2]
    try:
        if request["hosts"]:
            loopback.limit_buffers()
            listeners = [loopback.listener(str(address), int(port)) for address, port, _ in request["hosts"]]
            protocol.send(link, {}, [listener.fileno() for listener in listeners])
        drop_privileges(standard_files, extra_files, uid=uid)
        stderr = 2
        if uid is not None:  # the user is this run's alone, so only its own processes count
            limit_processes(0, request["processes"])
        os.execve(request["command"][0], request["command"], {})
    except Exception as error:
        os.write(stderr, f"bwrap: {error_text(error)}\n".encode())  # in the form of bubblewrap's own errors
