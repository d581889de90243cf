"""A child process that is forked before it is needed and becomes the next run.

A fork of the launcher and new namespaces for network, IPC, host name and cgroups take longer than everything else in a
start, and they are the same for every run. So one child is always ready; it is used once.

Its network namespace has a loopback device only, on which a run can start servers of its own. For a granted host, the
child listens on a loopback address, or on the granted IP address, added to the loopback device. The listening socket
belongs to the namespace, its descriptor goes to the server, and the server forwards each connection to the real host.
"""

import fcntl
import os
import signal
import socket
import struct
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from apexbridge.sandbox.launcher import process_tree, protocol, syscalls
from apexbridge.sandbox.launcher.cgroups import Cgroups, RunCgroup
from apexbridge.sandbox.launcher.child_process import (
    close_descriptors_except,
    drop_privileges,
    error_text,
    kill,
    limit_processes,
    reset_process,
)
from apexbridge.sandbox.launcher.protocol import Limits

HOST_NAME = "sandbox"
_NAMESPACES = syscalls.CLONE_NEWNET | syscalls.CLONE_NEWIPC | syscalls.CLONE_NEWUTS | syscalls.CLONE_NEWCGROUP
_SIOCSIFADDR, _SIOCSIFFLAGS, _UP = 0x8916, 0x8914, 0x1
FILTER_FILE, OFFLINE_FILTER_FILE = 12, 14
"""Descriptors of the seccomp filters with and without internet sockets."""
_BACKLOG = 64
_ALIASES = 100_000
_SYSCTL = Path("/proc/sys/net")
"""Of the namespace of the process that opens a file in it."""
_OPTION_BYTES = 20_480
"""Memory for options of a socket, which the watchdog does not count."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PreforkedChild:
    pid: int
    link: socket.socket
    cgroup: RunCgroup

    def execute(self, request: dict[str, Any], files: Sequence[int]) -> list[int]:
        """Send what to execute; returns the listening sockets of granted hosts."""
        with self.link:
            protocol.send(self.link, request, files)
            reply = protocol.receive(self.link) if request["hosts"] else None
        return reply[1] if reply else []


class Prefork:
    def __init__(self, limits: Limits, niceness: int, cgroups: Cgroups) -> None:
        self._limits = limits
        self._niceness = niceness
        self._cgroups = cgroups
        self._child: PreforkedChild | None = None

    @property
    def pid(self) -> int | None:
        return self._child.pid if self._child else None

    def prepare(self) -> None:
        if self._child is None:
            self._child = self._fork()

    def take(self) -> PreforkedChild:
        child, self._child = self._child or self._fork(), None
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
            self.handle_exit()

    def _fork(self) -> PreforkedChild:
        cgroup = self._cgroups.create(self._limits)
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        pid = os.fork()
        if pid == 0:
            try:
                has_loopback = _create_namespaces(theirs, cgroup)
                reset_process(limits=self._limits, niceness=self._niceness)
                received = protocol.receive(theirs)
                if received is not None:
                    _execute(theirs, *received, has_loopback=has_loopback)
            finally:
                os._exit(1)  # on any error: this copy of the launcher must not return to its event loop
        theirs.close()
        return PreforkedChild(pid=pid, link=ours, cgroup=cgroup)


def _create_namespaces(link: socket.socket, cgroup: RunCgroup) -> bool:
    """Returns whether a run may use internet sockets on the loopback device: only if their buffers are limited."""
    close_descriptors_except({0, 1, 2, link.fileno()})
    syscalls.prctl(syscalls.PR_SET_PDEATHSIG, signal.SIGKILL)
    cgroup.join()  # first: the kernel may be slow here, and the cgroup namespace is rooted at the current group
    syscalls.unshare(_NAMESPACES)
    socket.sethostname(HOST_NAME)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        fcntl.ioctl(any_socket, _SIOCSIFFLAGS, struct.pack("16sh22x", b"lo", _UP))
    return _limit_buffers()


def _execute(link: socket.socket, request: dict[str, Any], files: list[int], *, has_loopback: bool) -> None:
    """`files` are the descriptors for `request["numbers"]`."""
    descriptors, uid = dict(zip(request["numbers"], files, strict=True)), request["uid"]
    stderr = descriptors[2]
    offline_filter = descriptors.pop(OFFLINE_FILTER_FILE)
    try:
        if not has_loopback and not request["hosts"]:
            descriptors[FILTER_FILE] = offline_filter
        if request["hosts"]:
            listeners = [_open_listener(str(address), int(port)) for address, port, _ in request["hosts"]]
            protocol.send(link, {}, [listener.fileno() for listener in listeners])
        drop_privileges(descriptors, uid=uid)
        stderr = 2
        if uid is not None:  # the user is this run's alone, so only its own processes count
            limit_processes(0, request["processes"])
        os.execve(request["command"][0], request["command"], {})
    except Exception as error:
        os.write(stderr, f"bwrap: {error_text(error)}\n".encode())  # in the form of bubblewrap's own errors


def _limit_buffers() -> bool:
    """Limit the buffers of TCP sockets in this namespace; returns False if that is not possible.

    The watchdog counts every socket as if a buffer of the usual size were full. A TCP socket has two, for received data
    and for data to send, and the kernel would let both grow.
    """
    size = process_tree.socket_buffer_bytes() // 2
    try:
        for name in ("tcp_rmem", "tcp_wmem"):
            (_SYSCTL / "ipv4" / name).write_text(f"4096 {size} {size}")
    except OSError:  # read-only in some containers
        return False
    with suppress(OSError):  # before Linux 6.8 for the whole host, and that small
        (_SYSCTL / "core/optmem_max").write_text(str(_OPTION_BYTES))
    return True


def _open_listener(address: str, port: int) -> socket.socket:
    server = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    if not address.startswith("127."):
        # The alias is numbered by the address, so that two addresses do not replace each other.
        packed = socket.inet_aton(address)
        alias = f"lo:{int.from_bytes(packed, 'big') % _ALIASES}".encode()
        fcntl.ioctl(server, _SIOCSIFADDR, struct.pack("16sHH4s16x", alias, socket.AF_INET, 0, packed))
    server.bind((address, port))
    server.listen(_BACKLOG)
    return server
