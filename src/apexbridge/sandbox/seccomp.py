"""Which system calls a run may make: a seccomp filter, assembled here for x86-64 and arm64.

Everything is allowed but what reaches around the other walls: the kernel's own management, other processes, memory that
no limit counts, sockets to the outside, and namespaces of one's own. Calls that a program can do without answer
"no such call", so that it takes its second choice; the others answer "not permitted".
"""

import errno
import platform
import struct
from collections.abc import Iterable

from apexbridge.sandbox.launcher_client import LaunchError

# (x86-64, arm64); None where an architecture never had the call. uprobe and uretprobe are missing on purpose: from
# Linux 6.14 on the kernel makes them past any filter, and ends the process unless it made the call itself.
_FORBIDDEN: dict[str, tuple[int | None, int | None]] = {
    "acct": (163, 89),
    "add_key": (248, 217),
    "adjtimex": (159, 171),
    "bpf": (321, 280),
    "chroot": (161, 51),
    "clock_adjtime": (305, 266),
    "clock_settime": (227, 112),
    "create_module": (174, None),
    "delete_module": (176, 106),
    "fanotify_init": (300, 262),
    "file_setattr": (469, 469),
    "finit_module": (313, 273),
    "fsconfig": (431, 431),
    "fsmount": (432, 432),
    "fsopen": (430, 430),
    "fspick": (433, 433),
    "init_module": (175, 105),
    "ioperm": (173, None),
    "iopl": (172, None),
    "kcmp": (312, 272),
    "kexec_file_load": (320, 294),
    "kexec_load": (246, 104),
    "keyctl": (250, 219),
    "lookup_dcookie": (212, 18),
    "lsm_set_self_attr": (460, 460),
    "migrate_pages": (256, 238),
    "mount": (165, 40),
    "mount_setattr": (442, 442),
    "move_mount": (429, 429),
    "move_pages": (279, 239),
    "name_to_handle_at": (303, 264),
    "nfsservctl": (180, 42),
    "open_by_handle_at": (304, 265),
    "open_tree": (428, 428),
    "open_tree_attr": (467, 467),
    "perf_event_open": (298, 241),
    "pidfd_getfd": (438, 438),
    "pivot_root": (155, 41),
    "process_madvise": (440, 440),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "ptrace": (101, 117),
    "query_module": (178, None),
    "quotactl": (179, 60),
    "quotactl_fd": (443, 443),
    "reboot": (169, 142),
    "request_key": (249, 218),
    "setdomainname": (171, 162),
    "sethostname": (170, 161),
    "setns": (308, 268),
    "settimeofday": (164, 170),
    "swapoff": (168, 225),
    "swapon": (167, 224),
    "sysfs": (139, None),
    "syslog": (103, 116),
    "umount2": (166, 39),
    "unshare": (272, 97),
    "userfaultfd": (323, 282),
    "uselib": (134, None),
    "vhangup": (153, 58),
}
_MISSING: dict[str, tuple[int | None, int | None]] = {
    "clone3": (435, 435),  # its flags lie in memory, where a filter cannot look; libc then uses clone
    "get_mempolicy": (239, 236),
    "io_setup": (206, 0),  # its contexts are counted for the whole host (fs.aio-max-nr)
    "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    "listmount": (458, 458),
    "statmount": (457, 457),
    "mbind": (237, 235),
    "memfd_create": (319, 279),
    "memfd_secret": (447, 447),
    "modify_ldt": (154, None),
    "mq_open": (240, 180),
    "msgctl": (71, 187),
    "msgget": (68, 186),
    "msgrcv": (70, 188),
    "msgsnd": (69, 189),
    "remap_file_pages": (216, 234),
    "semctl": (66, 191),
    "semget": (64, 190),
    "semop": (65, 193),
    "semtimedop": (220, 192),
    "set_mempolicy": (238, 237),
    "set_mempolicy_home_node": (450, 450),
    "shmat": (30, 196),
    "shmctl": (31, 195),
    "shmdt": (67, 197),
    "shmget": (29, 194),
    # A socket or pipe keeps a whole page for each byte that was spliced, also after its file is gone.
    "splice": (275, 76),
    "tee": (276, 77),
    "vmsplice": (278, 75),
}
_METADATA: dict[str, tuple[int | None, int | None]] = {
    "chmod": (90, None),
    "fchmod": (91, 52),
    "fchmodat": (268, 53),
    "fchmodat2": (452, 452),
    "futimesat": (261, None),
    "utime": (132, None),
    "utimensat": (280, 88),
    "utimes": (235, None),
}
_OWNERSHIP: dict[str, tuple[int | None, int | None]] = {
    "chown": (92, None),
    "fchown": (93, 55),
    "fchownat": (260, 54),
    "fremovexattr": (199, 16),
    "fsetxattr": (190, 7),
    "lchown": (94, None),
    "lremovexattr": (198, 15),
    "lsetxattr": (189, 6),
    "removexattr": (197, 14),
    "removexattrat": (466, 466),
    "setxattr": (188, 5),
    "setxattrat": (463, 463),
}
_INOTIFY: dict[str, tuple[int | None, int | None]] = {"inotify_init": (253, None), "inotify_init1": (294, 26)}
_SENDFILE = (40, 71)
_CLONE = (56, 220)
_FCNTL = (72, 25)
_IOCTL = (16, 29)
_MMAP = (9, 222)
_PRCTL = (157, 167)
_PERSONALITY = (135, 92)
_SOCKET = (41, 198)
_SOCKETPAIR = (53, 199)
_SETSOCKOPT = (54, 208)
_OTHER_PROCESSES = (
    ((302, 261), 0),  # prlimit64
    ((141, 140), 1),  # setpriority
    ((203, 122), 0),  # sched_setaffinity
    ((142, 118), 0),  # sched_setparam
    ((144, 119), 0),  # sched_setscheduler
    ((314, 274), 0),  # sched_setattr
)
"""Calls that change a process, and which argument names it; 0 is the caller itself."""

_NAMESPACE_FLAGS = 0x7E02_0080
"""Every CLONE_NEW… that clone takes."""
_TERMINAL_INJECTION = (0x5412, 0x541C)
"""TIOCSTI and TIOCLINUX: typing into somebody's terminal."""
_PERSONALITIES = (0, 0xFFFF_FFFF)
_SET_FILE_FLAGS = (0x4008_6602, 0x4004_6602, 0x401C_5820, 0x4008_7602, 0x4004_7602)
"""FS_IOC_SETFLAGS, FS_IOC_FSSETXATTR and FS_IOC_SETVERSION."""
_PR_SET_DUMPABLE = 4
_OPEN_FILE_LOCKS = (37, 38)
"""F_OFD_SETLK and F_OFD_SETLKW: such a lock names no process, so the watchdog could not tell whose it is."""
_MAP_SHARED, _MAP_ANONYMOUS, _MAP_HUGETLB = 0x1, 0x20, 0x4_0000
_SOL_SOCKET = 1
_SOCKET_PROGRAMS = (26, 50, 51, 52)
"""SO_ATTACH_FILTER, SO_ATTACH_BPF and the same for SO_REUSEPORT: the kernel compiles them into memory of its own, whose
size is limited for the whole host."""
_BUFFER_SIZES = (7, 8, 32, 33)
"""SO_SNDBUF and its kin: buffers are memory that only a control group counts, so they stay as small as they are."""
_CONNECTED = [kind | flags for kind in (1, 5) for flags in (0, 0x800, 0x8_0000, 0x8_0800)]
"""Streams and sequenced packets, with or without the flags for closing and not blocking."""
_AF_UNIX, _AF_INET, _AF_INET6 = 1, 2, 10

_AUDIT_ARCH = {"x86_64": 0xC000_003E, "aarch64": 0xC000_00B7}
_X32_BIT = 0x4000_0000

_NUMBER_OFFSET, _ARCH_OFFSET, _ARGUMENTS_OFFSET, _ARGUMENT_SIZE = 0, 4, 16, 8
_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_KILL_PROCESS, _ALLOW, _ERRNO = 0x8000_0000, 0x7FFF_0000, 0x0005_0000

Instruction = tuple[int, int, int, int]


def program(
    *,
    network: bool = False,
    unix_sockets: bool = True,
    metadata: bool = True,
    shared_bytes: int = 16 * 1024 * 1024,
    machine: str | None = None,
) -> bytes:
    """The filter as the kernel reads it; with `network`, sockets of the internet are allowed.

    Without `unix_sockets` a run still gets socket pairs, which reach nobody else. Without `metadata` a change of modes
    and times does nothing and says that it did, and no other process is slowed or limited: Landlock does not look at
    those, and a run that is the same user as the server could open the server's files to everybody. Such a run gets no
    inotify instance either: the kernel counts those by user.

    `shared_bytes` is the size of the largest anonymous shared mapping. Such memory stays in use while any page of it is
    mapped, and nothing in /proc says how large it was.

    Raises:
        LaunchError: there is no table for this kind of machine.
    """
    machine = machine or platform.machine()
    if machine not in _AUDIT_ARCH:
        raise LaunchError(f"there is no table of system calls for {machine}")
    column = 0 if machine == "x86_64" else 1
    families = [_AF_UNIX] if unix_sockets else []
    if network:
        families += [_AF_INET, _AF_INET6]
    code: list[Instruction] = [
        (_LOAD, 0, 0, _ARCH_OFFSET),
        (_EQUAL, 1, 0, _AUDIT_ARCH[machine]),
        (_RETURN, 0, 0, _KILL_PROCESS),
        (_LOAD, 0, 0, _NUMBER_OFFSET),
    ]
    if machine == "x86_64":
        code += [(_AT_LEAST, 0, 1, _X32_BIT), (_RETURN, 0, 0, _KILL_PROCESS)]
    code += _answer(_numbers(_FORBIDDEN, column), errno.EPERM)
    code += _answer(_numbers(_MISSING, column), errno.ENOSYS)
    if not metadata:
        code += _answer(_numbers(_METADATA, column), 0)
        code += _answer(_numbers(_OWNERSHIP, column), errno.EPERM)
        code += _answer(_numbers(_INOTIFY, column), errno.ENOSYS)
        code += _when_argument(_IOCTL[column], 1, one_of=_SET_FILE_FLAGS, answer=errno.EPERM)
        # Without it the watchdog, which is the same user, could not read what the process has mapped.
        code += _when_argument(_PRCTL[column], 0, one_of=[_PR_SET_DUMPABLE], answer=0)
        for numbers, argument in _OTHER_PROCESSES:
            code += _unless_argument(numbers[column], argument, one_of=[0], answer=errno.EPERM)
    # Like splice. Programs take EINVAL as "not for this kind of file" and copy by reading and writing.
    code += _answer([_SENDFILE[column]], errno.EINVAL)
    code += _when_argument(_FCNTL[column], 1, one_of=_OPEN_FILE_LOCKS, answer=errno.EINVAL)
    code += _large_mappings(_MMAP[column], shared_bytes)
    code += _socket_programs(_SETSOCKOPT[column])
    code += _when_argument(_CLONE[column], 0, any_bit=_NAMESPACE_FLAGS, answer=errno.EPERM)
    code += _when_argument(_IOCTL[column], 1, one_of=_TERMINAL_INJECTION, answer=errno.EPERM)
    code += _when_argument(_SETSOCKOPT[column], 2, one_of=_BUFFER_SIZES, answer=0)
    code += _unless_argument(_PERSONALITY[column], 0, one_of=_PERSONALITIES, answer=errno.EPERM)
    code += _unless_argument(_SOCKET[column], 0, one_of=families, answer=errno.EAFNOSUPPORT)
    code += _unless_argument(_SOCKETPAIR[column], 0, one_of=[_AF_UNIX], answer=errno.EAFNOSUPPORT)
    if not unix_sockets:  # one that sends datagrams can send them to any socket of the host
        code += _unless_argument(_SOCKETPAIR[column], 1, one_of=_CONNECTED, answer=errno.EPROTONOSUPPORT)
    code.append((_RETURN, 0, 0, _ALLOW))
    return b"".join(struct.pack("=HBBI", *instruction) for instruction in code)


def refused_numbers(machine: str | None = None) -> dict[str, int]:
    """The calls that are refused whatever their arguments, and their numbers on this machine."""
    column = 0 if (machine or platform.machine()) == "x86_64" else 1
    return {name: number for name, row in (_FORBIDDEN | _MISSING).items() if (number := row[column]) is not None}


def _numbers(table: dict[str, tuple[int | None, int | None]], column: int) -> list[int]:
    return [number for row in table.values() if (number := row[column]) is not None]


def _answer(numbers: Iterable[int], error: int) -> list[Instruction]:
    """These calls fail with this error."""
    return [step for number in numbers for step in ((_EQUAL, 0, 1, number), (_RETURN, 0, 0, _ERRNO | error))]


def _when_argument(
    number: int, argument: int, *, answer: int, any_bit: int = 0, one_of: Iterable[int] = ()
) -> list[Instruction]:
    """This call fails where its argument has one of the bits or values. The number is loaded again for what follows."""
    values = list(one_of)
    tests: list[Instruction] = [(_ANY_BIT, 0, 1, any_bit)] if any_bit else []
    for position, value in enumerate(values):
        last = position == len(values) - 1
        tests.append((_EQUAL, len(values) - 1 - position, 1 if last else 0, value))
    return _checked(number, argument, [*tests, (_RETURN, 0, 0, _ERRNO | answer)])


def _unless_argument(number: int, argument: int, *, one_of: Iterable[int], answer: int) -> list[Instruction]:
    """This call fails where its argument has none of the values."""
    values = list(one_of)
    tests = [(_EQUAL, len(values) - position, 0, value) for position, value in enumerate(values)]
    return _checked(number, argument, [*tests, (_RETURN, 0, 0, _ERRNO | answer)])


def _large_mappings(number: int, shared_bytes: int) -> list[Instruction]:
    """mmap fails for huge pages, which the whole host shares, and for anonymous shared memory above a size."""
    length, flags = _ARGUMENTS_OFFSET + _ARGUMENT_SIZE, _ARGUMENTS_OFFSET + 3 * _ARGUMENT_SIZE
    tests: list[Instruction] = [
        (_LOAD, 0, 0, flags),
        (_ANY_BIT, 6, 0, _MAP_HUGETLB),
        (_ANY_BIT, 0, 6, _MAP_SHARED),
        (_ANY_BIT, 0, 5, _MAP_ANONYMOUS),
        (_LOAD, 0, 0, length + _ARGUMENT_SIZE // 2),
        (_AT_LEAST, 2, 0, 1),
        (_LOAD, 0, 0, length),
        (_AT_LEAST, 0, 1, shared_bytes + 1),
        (_RETURN, 0, 0, _ERRNO | errno.ENOMEM),
    ]
    return [(_EQUAL, 0, len(tests) + 1, number), *tests, (_LOAD, 0, 0, _NUMBER_OFFSET)]


def _socket_programs(number: int) -> list[Instruction]:
    """setsockopt fails for programs of the socket level; other levels have other options of the same numbers."""
    level, option = _ARGUMENTS_OFFSET + _ARGUMENT_SIZE, _ARGUMENTS_OFFSET + 2 * _ARGUMENT_SIZE
    count = len(_SOCKET_PROGRAMS)
    tests: list[Instruction] = [(_LOAD, 0, 0, level), (_EQUAL, 0, count + 2, _SOL_SOCKET), (_LOAD, 0, 0, option)]
    for position, value in enumerate(_SOCKET_PROGRAMS):
        tests.append((_EQUAL, count - 1 - position, 1 if position == count - 1 else 0, value))
    tests.append((_RETURN, 0, 0, _ERRNO | errno.EPERM))
    return [(_EQUAL, 0, len(tests) + 1, number), *tests, (_LOAD, 0, 0, _NUMBER_OFFSET)]


def _checked(number: int, argument: int, tests: list[Instruction]) -> list[Instruction]:
    """Run the tests on one argument of one call; its lower half, which is where flags and families are."""
    load = (_LOAD, 0, 0, _ARGUMENTS_OFFSET + argument * _ARGUMENT_SIZE)
    reload = (_LOAD, 0, 0, _NUMBER_OFFSET)
    return [(_EQUAL, 0, len(tests) + 2, number), load, *tests, reload]
