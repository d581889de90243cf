"""A kernel that refuses one system call, to one thread: what a full disk or a strict container answers."""

import platform
import struct
import threading
from collections.abc import Callable
from typing import TypeVar

from apexbridge.sandbox.launcher import syscalls

OPENAT2 = 437
WRITE = {"x86_64": 1, "aarch64": 64}[platform.machine()]
_LOAD, _EQUAL, _RETURN = 0x20, 0x15, 0x06
_ANSWER, _ALLOW = 0x0005_0000, 0x7FFF_0000

Given = TypeVar("Given")


def refusing(number: int, error: int, work: Callable[[], Given]) -> Given:
    """Do the work in a thread to which the kernel answers a call of that number with that error."""
    instructions = [(_LOAD, 0, 0, 0), (_EQUAL, 0, 1, number), (_RETURN, 0, 0, _ANSWER | error), (_RETURN, 0, 0, _ALLOW)]
    program = b"".join(struct.pack("<HBBI", *instruction) for instruction in instructions)
    given: list[Given] = []
    raised: list[BaseException] = []

    def run() -> None:
        syscalls.prctl(syscalls.PR_SET_NO_NEW_PRIVS, 1)
        syscalls.install_seccomp_filter(program)
        try:
            given.append(work())
        except BaseException as error:
            raised.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    if raised:
        raise raised[0]
    return given[0]
