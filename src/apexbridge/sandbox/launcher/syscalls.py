"""System calls that Python's standard library does not offer, by ctypes."""

import ctypes
import os
import stat
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

_LIBC = ctypes.CDLL(None, use_errno=True)

CLONE_NEWNS = 0x0002_0000
CLONE_NEWCGROUP = 0x0200_0000
CLONE_NEWUTS = 0x0400_0000
CLONE_NEWIPC = 0x0800_0000
CLONE_NEWUSER = 0x1000_0000
CLONE_NEWNET = 0x4000_0000

MS_NOSUID = 0x2
MS_NODEV = 0x4
MS_REMOUNT = 0x20
MS_BIND = 0x1000
MS_REC = 0x4000
MS_PRIVATE = 1 << 18
MS_SLAVE = 1 << 19
MS_SHARED = 1 << 20
_MNT_DETACH = 2

PR_SET_PDEATHSIG = 1
"""The kernel sends this signal to this process when its parent exits."""
PR_SET_CHILD_SUBREAPER = 36
"""This process becomes the parent of every descendant whose own parent exits."""
PR_SET_NO_NEW_PRIVS = 38
"""Executing a set-user-ID program grants nothing from now on."""
_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER = 22, 2

_NUMBERS = {
    "open_tree": 428,
    "move_mount": 429,
    "mount_setattr": 442,
    "landlock_create_ruleset": 444,
    "landlock_add_rule": 445,
    "landlock_restrict_self": 446,
}
"""Calls that libc does not have. Since Linux 5.0, new ones have the same number on x86-64 and arm64."""
_AT_FDCWD = -100
_AT_EMPTY_PATH = 0x1000
_AT_RECURSIVE = 0x8000
_OPEN_TREE_CLONE = 1
_MOVE_MOUNT_F_EMPTY_PATH = 0x4
_MOUNT_ATTR_RDONLY, _MOUNT_ATTR_NOSUID, _MOUNT_ATTR_NODEV = 0x1, 0x2, 0x4

_LANDLOCK_VERSION = 1
_LANDLOCK_RULE_PATH_BENEATH = 1
_LANDLOCK_FILE_RIGHTS = 0x1 | 0x2 | 0x4 | 0x4000 | 0x8000
"""Execute, write, read, truncate, ioctl: the rights that a rule for a file may contain."""


class _MountAttributes(ctypes.Structure):
    _fields_ = tuple((name, ctypes.c_uint64) for name in ("set", "clear", "propagation", "user_namespace"))


class _Ruleset(ctypes.Structure):
    _fields_ = tuple((name, ctypes.c_uint64) for name in ("files", "network", "scopes"))


class _PathRule(ctypes.Structure):
    _pack_ = 1
    _fields_ = (("allowed", ctypes.c_uint64), ("parent", ctypes.c_int32))


class _Filter(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("program", ctypes.c_char_p))


class _FileSystemStatus(ctypes.Structure):
    _fields_ = (("type", ctypes.c_long), ("others", ctypes.c_char * 248))


@contextmanager
def opened(path: str, flags: int, dir_fd: int | None = None) -> Iterator[int]:
    """A descriptor that is closed at the end of the block."""
    descriptor = os.open(path, flags | os.O_CLOEXEC, dir_fd=dir_fd)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def unshare(flags: int) -> None:
    _call("unshare", flags)


def prctl(option: int, value: int) -> None:
    _call("prctl", option, value, 0, 0, 0)


def mount(source: str | None, target: str, kind: str | None, flags: int, options: str | None = None) -> None:
    _call("mount", source, target, kind, flags, options)


def unmount(target: str) -> None:
    """Detach a mount; processes that still use it keep it until they close it."""
    _call("umount2", target, _MNT_DETACH)


def clone_mount(path: str, *, read_only: bool = True, propagation: int = MS_PRIVATE, recursive: bool = True) -> int:
    """A descriptor of a detached bind mount of `path`; with `recursive`, including what is mounted below it."""
    below = _AT_RECURSIVE if recursive else 0
    tree = _call("open_tree", _AT_FDCWD, path, _OPEN_TREE_CLONE | os.O_CLOEXEC | below)
    try:
        attributes = _MOUNT_ATTR_RDONLY | _MOUNT_ATTR_NODEV if read_only else 0
        _set_mount_attributes(tree, "", attributes | _MOUNT_ATTR_NOSUID, propagation, _AT_EMPTY_PATH | below)
    except OSError:
        os.close(tree)
        raise
    return tree


def make_read_only(path: str) -> None:
    """Make the mount at this path read-only; mounts below it stay as they are."""
    _set_mount_attributes(_AT_FDCWD, path, _MOUNT_ATTR_RDONLY, 0, 0)


def _set_mount_attributes(folder: int, path: str, attributes: int, propagation: int, flags: int) -> None:
    structure = _MountAttributes(set=attributes, propagation=propagation)
    _call("mount_setattr", folder, path, flags, structure, ctypes.sizeof(structure))


def attach_mount(tree: int, target: str) -> None:
    """Attach a detached mount at `target`, and close its descriptor."""
    try:
        _call("move_mount", tree, "", _AT_FDCWD, target, _MOVE_MOUNT_F_EMPTY_PATH)
    finally:
        os.close(tree)


def bind_mount(path: str, target: str, *, read_only: bool = True, propagation: int = MS_PRIVATE) -> None:
    attach_mount(clone_mount(path, read_only=read_only, propagation=propagation), target)


def install_seccomp_filter(program: bytes) -> None:
    spec = _Filter(length=len(program) // 8, program=program)
    _call("prctl", _PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, spec, 0, 0)


def landlock_version() -> int:
    """The ABI version of the kernel's Landlock; 0 if there is none."""
    try:
        return _call("landlock_create_ruleset", None, 0, _LANDLOCK_VERSION)
    except OSError:
        return 0


def restrict_with_landlock(
    files: int,
    network: int,
    scopes: int,
    rules: Sequence[tuple[str, int]],
    identities: Mapping[str, Sequence[int]] | None = None,
) -> None:
    """Restrict this process and its children to the paths in `rules`; the rights in `files` are denied elsewhere.

    Paths that do not exist are skipped. Rules for files get only the rights that a file can have. A path in
    `identities` must have that device and inode.
    """
    version = landlock_version()
    size = 8 if version < 4 else 16 if version < 6 else 24  # the structure grew with these versions
    ruleset = _call("landlock_create_ruleset", _Ruleset(files=files, network=network, scopes=scopes), size, 0)
    try:
        for path, allowed in rules:
            if not os.path.exists(path):
                continue
            with opened(path, os.O_PATH) as parent:
                status = os.fstat(parent)
                identity = [status.st_dev, status.st_ino]
                if identities and list(identities.get(path, identity)) != identity:
                    raise OSError(f"{path} was replaced a moment ago; run it again")
                possible = files if stat.S_ISDIR(status.st_mode) else files & _LANDLOCK_FILE_RIGHTS
                rule = _PathRule(allowed=allowed & possible, parent=parent)
                _call("landlock_add_rule", ruleset, _LANDLOCK_RULE_PATH_BENEATH, rule, 0)
        _call("landlock_restrict_self", ruleset, 0)
    finally:
        os.close(ruleset)


def file_system_type(descriptor: int) -> int:
    status = _FileSystemStatus()
    _call("fstatfs", descriptor, status)
    return int(status.type) & 0xFFFF_FFFF


def _call(name: str, *arguments: int | str | ctypes.Structure | None) -> int:
    """Call a function of libc, or a system call by its number. Raises OSError if it fails."""
    native = [_native(argument) for argument in arguments]
    if name in _NUMBERS:
        result: int = _LIBC.syscall(ctypes.c_long(_NUMBERS[name]), *native)
    else:
        result = getattr(_LIBC, name)(*native)
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{name}: {os.strerror(number)}")
    return result


def _native(argument: int | str | ctypes.Structure | None) -> object:
    if isinstance(argument, int):
        return ctypes.c_long(argument)
    if isinstance(argument, ctypes.Structure):
        return ctypes.byref(argument)
    return os.fsencode(argument) if argument is not None else None
