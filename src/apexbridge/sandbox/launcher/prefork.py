"""A process that is about to become a sandbox: forked beforehand, in namespaces of its own, it waits to hear for whom.

A fork of this program and new namespaces for network, IPC, host name and cgroups take longer than everything else that
a start needs, and they are the same for every run. So one process has always done that already. It is used once.
"""

import os
import signal
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from apexbridge.sandbox.launcher import loopback, protocol, syscalls
from apexbridge.sandbox.launcher.cell import become, close_all_but, settle, words_of
from apexbridge.sandbox.launcher.cgroups import Group
from apexbridge.sandbox.launcher.rlimits import Limits, limit_processes

HOST_NAME = "sandbox"
_NAMESPACES = syscalls.CLONE_NEWNET | syscalls.CLONE_NEWIPC | syscalls.CLONE_NEWUTS | syscalls.CLONE_NEWCGROUP


@dataclass(frozen=True, slots=True, kw_only=True)
class Embryo:
    """The waiting process, as its parent knows it."""

    pid: int
    link: socket.socket
    group: Group

    def become(self, told: dict[str, Any], files: Sequence[int]) -> list[int]:
        """Tell it what to become; gives the sockets for granted hosts, where there are any."""
        with self.link:
            protocol.send(self.link, told, files)
            if not told["hosts"]:
                return []
            answer = protocol.receive(self.link)
        return answer[1] if answer else []


def fork(limits: Limits, niceness: int, group: Group) -> Embryo:
    """Make one."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    pid = os.fork()
    if pid == 0:
        try:
            _prepare(theirs, group)
            settle(limits=limits, niceness=niceness)
            received = protocol.receive(theirs)
            if received is not None:
                _start(theirs, *received)
        finally:
            os._exit(1)  # whatever it was, this copy of the launcher must not go on
    theirs.close()
    return Embryo(pid=pid, link=ours, group=group)


def _prepare(link: socket.socket, group: Group) -> None:
    close_all_but({0, 1, 2, link.fileno()})
    syscalls.die_with_parent(signal.SIGKILL)
    group.join()  # now: the kernel may take its time over it, and the namespace of groups begins where we are
    syscalls.unshare(_NAMESPACES)
    socket.sethostname(HOST_NAME)
    loopback.raise_loopback()


def _start(link: socket.socket, told: dict[str, Any], files: list[int]) -> None:
    numbers, uid = told["numbers"], told["uid"]
    kept, standard = dict(zip(files, numbers, strict=False)), files[len(numbers) :]
    stderr = standard[2]
    try:
        if told["hosts"]:
            loopback.limit_buffers()
            listeners = [loopback.listener(str(address), int(port)) for address, port, _ in told["hosts"]]
            protocol.send(link, {}, [item.fileno() for item in listeners])
        become(standard, kept, uid=uid)
        stderr = 2
        if uid is not None:  # nobody else has this user, so everything that counts is this run's
            limit_processes(0, told["processes"])
        os.execve(told["command"][0], told["command"], {})
    except Exception as error:
        os.write(stderr, f"bwrap: {words_of(error)}\n".encode())  # said where bubblewrap itself would say it
