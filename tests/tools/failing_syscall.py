"""Make one system call fail in one thread, as on a full disk or in a strict container."""

import platform
import struct
import threading
from collections.abc import Callable
from typing import TypeVar

from apexbridge.sandbox.launcher import syscalls

OPENAT2 = 437
WRITE = {"x86_64": 1, "aarch64": 64}[platform.machine()]
_LOAD, _EQUAL, _RETURN = 0x20, 0x15, 0x06
_FAIL, _ALLOW = 0x0005_0000, 0x7FFF_0000

Result = TypeVar("Result")


def with_failing_syscall(number: int, error: int, work: Callable[[], Result]) -> Result:
    """Run the work in a thread in which the system call of this number fails with this error."""
    instructions = [(_LOAD, 0, 0, 0), (_EQUAL, 0, 1, number), (_RETURN, 0, 0, _FAIL | error), (_RETURN, 0, 0, _ALLOW)]
    program = b"".join(struct.pack("<HBBI", *instruction) for instruction in instructions)
    results: list[Result] = []
    raised: list[BaseException] = []

    def run() -> None:
        syscalls.prctl(syscalls.PR_SET_NO_NEW_PRIVS, 1)
        syscalls.install_seccomp_filter(program)
        try:
            results.append(work())
        except BaseException as error:
            raised.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    if raised:
        raise raised[0]
    return results[0]
