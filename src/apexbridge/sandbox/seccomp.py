"""The seccomp filter that decides which system calls a run may make, assembled for x86-64 and arm64.

Everything is allowed except for calls that bypass the other mechanisms: kernel administration, other processes, memory
that no limit counts, sockets to the outside, and new namespaces. Calls that programs can do without fail with ENOSYS,
so that programs use a fallback; the others fail with EPERM.
"""

import errno
import platform
import struct
from collections.abc import Sequence

from apexbridge.sandbox import syscall_tables as tables
from apexbridge.sandbox.models import LaunchError
from apexbridge.sandbox.syscall_tables import Table

_AUDIT_ARCH = {"x86_64": 0xC000_003E, "aarch64": 0xC000_00B7}
_X32_BIT = 0x4000_0000

_NUMBER_OFFSET, _ARCH_OFFSET, _ARGUMENTS_OFFSET, _ARGUMENT_SIZE = 0, 4, 16, 8
_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_KILL_PROCESS, _ALLOW, _ERRNO = 0x8000_0000, 0x7FFF_0000, 0x0005_0000

Instruction = tuple[int, int, int, int]
Rule = tuple[tuple[int, int], list[Instruction]]
"""The numbers of a call on x86-64 and arm64, and tests of its arguments."""


def filter_program(
    *,
    network: bool = False,
    unix_sockets: bool = True,
    metadata: bool = True,
    shared_bytes: int = 16 * 1024 * 1024,
    machine: str | None = None,
) -> bytes:
    """The filter in the kernel's format; with `network`, TCP and UDP sockets are allowed.

    Without `unix_sockets`, socket pairs are still allowed: they connect to nothing else.

    Without `metadata`, changes of modes and times do nothing and report success, and other processes cannot be slowed
    or limited. Landlock does not check these calls, so a run with the server's user could make the server's files
    readable to all users. Such a run gets no inotify instance either: the kernel counts those per user.

    `shared_bytes` is the size of the largest anonymous shared mapping. Such memory stays in use while any page of it is
    mapped, and nothing in /proc shows its size.
    """
    machine = machine or platform.machine()
    if machine not in _AUDIT_ARCH:
        raise LaunchError(f"no system call table for {machine}")
    column = 0 if machine == "x86_64" else 1
    families = [tables.AF_UNIX] if unix_sockets else []
    families += [tables.AF_INET, tables.AF_INET6] if network else []
    refused = [(tables.FORBIDDEN, errno.EPERM), (tables.UNIMPLEMENTED, errno.ENOSYS)]
    rules: list[Rule] = []
    if not metadata:
        refused += [(tables.METADATA, 0), (tables.OWNERSHIP, errno.EPERM), (tables.INOTIFY, errno.ENOSYS)]
        rules += [
            (tables.IOCTL, _if_argument(1, tables.SET_FILE_FLAGS, errno.EPERM)),
            # A process that is not dumpable hides its mappings from the watchdog, which has the same user.
            (tables.PRCTL, _if_argument(0, [tables.PR_SET_DUMPABLE], 0)),
            *((call, _unless_argument(argument, [0], errno.EPERM)) for call, argument in tables.OTHER_PROCESSES),
        ]
    refused.append((tables.COPYING, errno.EINVAL))
    rules += [
        (tables.FCNTL, _if_argument(1, tables.OPEN_FILE_DESCRIPTION_LOCKS, errno.EINVAL)),
        (tables.MMAP, _large_mappings(shared_bytes)),
        (tables.SETSOCKOPT, _socket_options(tables.SOL_SOCKET, tables.SOCKET_PROGRAMS)),
        (tables.SETSOCKOPT, _socket_options(tables.SOL_TCP, [tables.TCP_ULP])),
        (tables.CLONE, [_load(0), (_ANY_BIT, 0, 1, tables.NAMESPACE_FLAGS), (_RETURN, 0, 0, _ERRNO | errno.EPERM)]),
        (tables.IOCTL, _if_argument(1, tables.TERMINAL_INJECTION, errno.EPERM)),
        (tables.SETSOCKOPT, _if_argument(2, tables.BUFFER_SIZES, 0)),
        (tables.PERSONALITY, _unless_argument(0, tables.ALLOWED_PERSONALITIES, errno.EPERM)),
        (tables.SOCKET, _unless_argument(0, families, errno.EAFNOSUPPORT)),
        (tables.SOCKET, _other_internet_protocols()),
        (tables.SOCKETPAIR, _unless_argument(0, [tables.AF_UNIX], errno.EAFNOSUPPORT)),
    ]
    if not unix_sockets:  # a datagram socket can send to any socket of the host
        rules.append((tables.SOCKETPAIR, _unless_argument(1, tables.CONNECTED_SOCKET_TYPES, errno.EPROTONOSUPPORT)))
    code: list[Instruction] = [
        (_LOAD, 0, 0, _ARCH_OFFSET),
        (_EQUAL, 1, 0, _AUDIT_ARCH[machine]),
        (_RETURN, 0, 0, _KILL_PROCESS),
        (_LOAD, 0, 0, _NUMBER_OFFSET),
    ]
    if machine == "x86_64":
        code += [(_AT_LEAST, 0, 1, _X32_BIT), (_RETURN, 0, 0, _KILL_PROCESS)]
    for table, error in refused:
        for number in _numbers(table, column).values():
            code += [(_EQUAL, 0, 1, number), (_RETURN, 0, 0, _ERRNO | error)]
    for call, tests in rules:
        # The tests load arguments, so the call's number is loaded again for the next rule.
        code += [(_EQUAL, 0, len(tests) + 1, call[column]), *tests, (_LOAD, 0, 0, _NUMBER_OFFSET)]
    code.append((_RETURN, 0, 0, _ALLOW))
    return b"".join(struct.pack("=HBBI", *instruction) for instruction in code)


def refused_numbers(machine: str | None = None) -> dict[str, int]:
    """The calls that are refused with any arguments, and their numbers on this architecture."""
    column = 0 if (machine or platform.machine()) == "x86_64" else 1
    return _numbers(tables.FORBIDDEN | tables.UNIMPLEMENTED, column)


def _numbers(table: Table, column: int) -> dict[str, int]:
    return {name: number for name, row in table.items() if (number := row[column]) is not None}


def _load(argument: int, *, upper: bool = False) -> Instruction:
    return _LOAD, 0, 0, _ARGUMENTS_OFFSET + argument * _ARGUMENT_SIZE + (_ARGUMENT_SIZE // 2 if upper else 0)


def _if_argument(argument: int, values: Sequence[int], error: int) -> list[Instruction]:
    """Return the error if the lower half of the argument has one of the values."""
    last = len(values) - 1
    tests = [(_EQUAL, last - index, 1 if index == last else 0, value) for index, value in enumerate(values)]
    return [_load(argument), *tests, (_RETURN, 0, 0, _ERRNO | error)]


def _unless_argument(argument: int, values: Sequence[int], error: int) -> list[Instruction]:
    """Return the error if the lower half of the argument has none of the values."""
    tests = [(_EQUAL, len(values) - index, 0, value) for index, value in enumerate(values)]
    return [_load(argument), *tests, (_RETURN, 0, 0, _ERRNO | error)]


def _large_mappings(shared_bytes: int) -> list[Instruction]:
    """mmap fails for huge pages, which the whole host shares, and for large anonymous shared mappings."""
    length, flags = 1, 3
    return [
        _load(flags),
        (_ANY_BIT, 6, 0, tables.MAP_HUGETLB),
        (_ANY_BIT, 0, 6, tables.MAP_SHARED),
        (_ANY_BIT, 0, 5, tables.MAP_ANONYMOUS),
        _load(length, upper=True),
        (_AT_LEAST, 2, 0, 1),
        _load(length),
        (_AT_LEAST, 0, 1, shared_bytes + 1),
        (_RETURN, 0, 0, _ERRNO | errno.ENOMEM),
    ]


def _socket_options(level: int, options: Sequence[int]) -> list[Instruction]:
    """setsockopt fails for these options; the same numbers mean other options at other levels."""
    option_tests = _if_argument(2, options, errno.EPERM)
    return [_load(1), (_EQUAL, 0, len(option_tests), level), *option_tests]


def _other_internet_protocols() -> list[Instruction]:
    """socket fails for SCTP, ping and other protocols: they are more of the kernel than a server on loopback needs."""
    protocol_tests = _unless_argument(2, tables.INTERNET_PROTOCOLS, errno.EPROTONOSUPPORT)
    return [_load(0), (_EQUAL, len(protocol_tests), 0, tables.AF_UNIX), *protocol_tests]
