"""The seccomp filter that decides which system calls a run may make, assembled for x86-64 and arm64.

Everything is allowed except for calls that bypass the other mechanisms: kernel administration, other processes, memory
that no limit counts, sockets to the outside, and new namespaces. Calls that programs can do without fail with ENOSYS,
so that programs use a fallback; the others fail with EPERM.
"""

import errno
import platform
import struct
from collections.abc import Iterable

from apexbridge.sandbox import syscall_tables as tables
from apexbridge.sandbox.models import LaunchError
from apexbridge.sandbox.syscall_tables import Table

_AUDIT_ARCH = {"x86_64": 0xC000_003E, "aarch64": 0xC000_00B7}
_X32_BIT = 0x4000_0000

_NUMBER_OFFSET, _ARCH_OFFSET, _ARGUMENTS_OFFSET, _ARGUMENT_SIZE = 0, 4, 16, 8
_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_KILL_PROCESS, _ALLOW, _ERRNO = 0x8000_0000, 0x7FFF_0000, 0x0005_0000

Instruction = tuple[int, int, int, int]


def filter_program(
    *,
    network: bool = False,
    unix_sockets: bool = True,
    metadata: bool = True,
    shared_bytes: int = 16 * 1024 * 1024,
    machine: str | None = None,
) -> bytes:
    """The filter in the kernel's format; with `network`, internet sockets are allowed.

    Without `unix_sockets`, socket pairs are still allowed: they connect to nothing else.

    Without `metadata`, changes of modes and times do nothing and report success, and other processes cannot be slowed
    or limited. Landlock does not check these calls, so a run with the server's user could make the server's files
    readable to all users. Such a run gets no inotify instance either: the kernel counts those per user.

    `shared_bytes` is the size of the largest anonymous shared mapping. Such memory stays in use while any page of it is
    mapped, and nothing in /proc shows its size.

    Raises:
        LaunchError: there is no table for this architecture.
    """
    machine = machine or platform.machine()
    if machine not in _AUDIT_ARCH:
        raise LaunchError(f"no system call table for {machine}")
    column = 0 if machine == "x86_64" else 1
    families = [tables.AF_UNIX] if unix_sockets else []
    if network:
        families += [tables.AF_INET, tables.AF_INET6]
    code: list[Instruction] = [
        (_LOAD, 0, 0, _ARCH_OFFSET),
        (_EQUAL, 1, 0, _AUDIT_ARCH[machine]),
        (_RETURN, 0, 0, _KILL_PROCESS),
        (_LOAD, 0, 0, _NUMBER_OFFSET),
    ]
    if machine == "x86_64":
        code += [(_AT_LEAST, 0, 1, _X32_BIT), (_RETURN, 0, 0, _KILL_PROCESS)]
    code += _return_errno(_numbers(tables.FORBIDDEN, column), errno.EPERM)
    code += _return_errno(_numbers(tables.UNIMPLEMENTED, column), errno.ENOSYS)
    if not metadata:
        code += _return_errno(_numbers(tables.METADATA, column), 0)
        code += _return_errno(_numbers(tables.OWNERSHIP, column), errno.EPERM)
        code += _return_errno(_numbers(tables.INOTIFY, column), errno.ENOSYS)
        code += _if_argument(tables.IOCTL[column], 1, one_of=tables.SET_FILE_FLAGS, error=errno.EPERM)
        # A process that is not dumpable hides its mappings from the watchdog, which has the same user.
        code += _if_argument(tables.PRCTL[column], 0, one_of=[tables.PR_SET_DUMPABLE], error=0)
        for numbers, argument in tables.OTHER_PROCESSES:
            code += _unless_argument(numbers[column], argument, one_of=[0], error=errno.EPERM)
    # For the same reason as splice. On EINVAL, programs fall back to reading and writing.
    code += _return_errno([tables.SENDFILE[column]], errno.EINVAL)
    code += _if_argument(tables.FCNTL[column], 1, one_of=tables.OPEN_FILE_DESCRIPTION_LOCKS, error=errno.EINVAL)
    code += _large_mappings(tables.MMAP[column], shared_bytes)
    code += _socket_programs(tables.SETSOCKOPT[column])
    code += _if_argument(tables.CLONE[column], 0, any_bit=tables.NAMESPACE_FLAGS, error=errno.EPERM)
    code += _if_argument(tables.IOCTL[column], 1, one_of=tables.TERMINAL_INJECTION, error=errno.EPERM)
    code += _if_argument(tables.SETSOCKOPT[column], 2, one_of=tables.BUFFER_SIZES, error=0)
    code += _unless_argument(tables.PERSONALITY[column], 0, one_of=tables.ALLOWED_PERSONALITIES, error=errno.EPERM)
    code += _unless_argument(tables.SOCKET[column], 0, one_of=families, error=errno.EAFNOSUPPORT)
    code += _unless_argument(tables.SOCKETPAIR[column], 0, one_of=[tables.AF_UNIX], error=errno.EAFNOSUPPORT)
    if not unix_sockets:  # a datagram socket can send to any socket of the host
        code += _unless_argument(
            tables.SOCKETPAIR[column], 1, one_of=tables.CONNECTED_SOCKET_TYPES, error=errno.EPROTONOSUPPORT
        )
    code.append((_RETURN, 0, 0, _ALLOW))
    return b"".join(struct.pack("=HBBI", *instruction) for instruction in code)


def refused_numbers(machine: str | None = None) -> dict[str, int]:
    """The calls that are refused with any arguments, and their numbers on this architecture."""
    column = 0 if (machine or platform.machine()) == "x86_64" else 1
    return {
        name: number
        for name, row in (tables.FORBIDDEN | tables.UNIMPLEMENTED).items()
        if (number := row[column]) is not None
    }


def _numbers(table: Table, column: int) -> list[int]:
    return [number for row in table.values() if (number := row[column]) is not None]


def _return_errno(numbers: Iterable[int], error: int) -> list[Instruction]:
    return [step for number in numbers for step in ((_EQUAL, 0, 1, number), (_RETURN, 0, 0, _ERRNO | error))]


def _if_argument(
    number: int, argument: int, *, error: int, any_bit: int = 0, one_of: Iterable[int] = ()
) -> list[Instruction]:
    """Return the error if the argument has one of the bits or values."""
    values = list(one_of)
    tests: list[Instruction] = [(_ANY_BIT, 0, 1, any_bit)] if any_bit else []
    for index, value in enumerate(values):
        last = index == len(values) - 1
        tests.append((_EQUAL, len(values) - 1 - index, 1 if last else 0, value))
    return _test_argument(number, argument, [*tests, (_RETURN, 0, 0, _ERRNO | error)])


def _unless_argument(number: int, argument: int, *, one_of: Iterable[int], error: int) -> list[Instruction]:
    """Return the error if the argument has none of the values."""
    values = list(one_of)
    tests = [(_EQUAL, len(values) - index, 0, value) for index, value in enumerate(values)]
    return _test_argument(number, argument, [*tests, (_RETURN, 0, 0, _ERRNO | error)])


def _large_mappings(number: int, shared_bytes: int) -> list[Instruction]:
    """mmap fails for huge pages, which the whole host shares, and for large anonymous shared mappings."""
    length, flags = _ARGUMENTS_OFFSET + _ARGUMENT_SIZE, _ARGUMENTS_OFFSET + 3 * _ARGUMENT_SIZE
    tests: list[Instruction] = [
        (_LOAD, 0, 0, flags),
        (_ANY_BIT, 6, 0, tables.MAP_HUGETLB),
        (_ANY_BIT, 0, 6, tables.MAP_SHARED),
        (_ANY_BIT, 0, 5, tables.MAP_ANONYMOUS),
        (_LOAD, 0, 0, length + _ARGUMENT_SIZE // 2),
        (_AT_LEAST, 2, 0, 1),
        (_LOAD, 0, 0, length),
        (_AT_LEAST, 0, 1, shared_bytes + 1),
        (_RETURN, 0, 0, _ERRNO | errno.ENOMEM),
    ]
    return [(_EQUAL, 0, len(tests) + 1, number), *tests, (_LOAD, 0, 0, _NUMBER_OFFSET)]


def _socket_programs(number: int) -> list[Instruction]:
    """setsockopt fails for programs at SOL_SOCKET; the same numbers mean other options at other levels."""
    level, option = _ARGUMENTS_OFFSET + _ARGUMENT_SIZE, _ARGUMENTS_OFFSET + 2 * _ARGUMENT_SIZE
    count = len(tables.SOCKET_PROGRAMS)
    tests: list[Instruction] = [(_LOAD, 0, 0, level), (_EQUAL, 0, count + 2, tables.SOL_SOCKET), (_LOAD, 0, 0, option)]
    for index, value in enumerate(tables.SOCKET_PROGRAMS):
        tests.append((_EQUAL, count - 1 - index, 1 if index == count - 1 else 0, value))
    tests.append((_RETURN, 0, 0, _ERRNO | errno.EPERM))
    return [(_EQUAL, 0, len(tests) + 1, number), *tests, (_LOAD, 0, 0, _NUMBER_OFFSET)]


def _test_argument(number: int, argument: int, tests: list[Instruction]) -> list[Instruction]:
    """Test the lower half of one argument of one call, then load the call's number again for the next test."""
    load = (_LOAD, 0, 0, _ARGUMENTS_OFFSET + argument * _ARGUMENT_SIZE)
    reload = (_LOAD, 0, 0, _NUMBER_OFFSET)
    return [(_EQUAL, 0, len(tests) + 2, number), load, *tests, reload]
