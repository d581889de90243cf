"""System calls that Python's standard library does not offer, by ctypes."""

import ctypes
import os
import stat
from collections.abc import Mapping, Sequence

_LIBC = ctypes.CDLL(None, use_errno=True)

CLONE_NEWNS = 0x0002_0000
CLONE_NEWCGROUP = 0x0200_0000
CLONE_NEWUTS = 0x0400_0000
CLONE_NEWIPC = 0x0800_0000
CLONE_NEWUSER = 0x1000_0000
CLONE_NEWNET = 0x4000_0000

MS_NOSUID = 0x2
MS_NODEV = 0x4
MS_BIND = 0x1000
MS_REC = 0x4000
MS_PRIVATE = 1 << 18
MS_SLAVE = 1 << 19
MS_SHARED = 1 << 20
MNT_DETACH = 2

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_PR_SET_NO_NEW_PRIVS = 38
_PR_SET_SECCOMP = 22
_SECCOMP_MODE_FILTER = 2

# Since Linux 5.0, new system calls have the same number on x86-64 and arm64.
_SYS_OPEN_TREE = 428
_SYS_MOVE_MOUNT = 429
_SYS_MOUNT_SETATTR = 442
_SYS_LANDLOCK_CREATE_RULESET = 444
_SYS_LANDLOCK_ADD_RULE = 445
_SYS_LANDLOCK_RESTRICT_SELF = 446

_AT_FDCWD = -100
_AT_EMPTY_PATH = 0x1000
_AT_RECURSIVE = 0x8000
_OPEN_TREE_CLONE = 1
_OPEN_TREE_CLOEXEC = os.O_CLOEXEC
_MOVE_MOUNT_F_EMPTY_PATH = 0x4
_MOUNT_ATTR_RDONLY = 0x1
_MOUNT_ATTR_NOSUID = 0x2
_MOUNT_ATTR_NODEV = 0x4

_LANDLOCK_VERSION = 1
_LANDLOCK_RULE_PATH_BENEATH = 1
_LANDLOCK_FILE_RIGHTS = 0x1 | 0x2 | 0x4 | 0x4000 | 0x8000
"""Execute, write, read, truncate, ioctl: the rights that a rule for a file may contain."""


class _MountAttributes(ctypes.Structure):
    _fields_ = (
        ("set", ctypes.c_uint64),
        ("clear", ctypes.c_uint64),
        ("propagation", ctypes.c_uint64),
        ("user_namespace", ctypes.c_uint64),
    )


class _Ruleset(ctypes.Structure):
    _fields_ = (("files", ctypes.c_uint64), ("network", ctypes.c_uint64), ("scopes", ctypes.c_uint64))


class _PathRule(ctypes.Structure):
    _pack_ = 1
    _fields_ = (("allowed", ctypes.c_uint64), ("parent", ctypes.c_int32))


class _Filter(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("program", ctypes.c_char_p))


def unshare(flags: int) -> None:
    _checked(_LIBC.unshare(ctypes.c_int(flags)), "unshare")


def mount(source: str | None, target: str, kind: str | None, flags: int, options: str | None = None) -> None:
    _checked(
        _LIBC.mount(_text(source), _text(target), _text(kind), ctypes.c_ulong(flags), _text(options)),
        f"mount {kind or ''}",
    )


def unmount(target: str) -> None:
    """Detach a mount; processes that still use it keep it until they close it."""
    _checked(_LIBC.umount2(_text(target), ctypes.c_int(MNT_DETACH)), "umount")


def clone_mount(path: str, *, read_only: bool = True, propagation: int = MS_PRIVATE, recursive: bool = True) -> int:
    """A descriptor of a detached bind mount of `path`; with `recursive`, including what is mounted below it."""
    below = _AT_RECURSIVE if recursive else 0
    flags = _OPEN_TREE_CLONE | _OPEN_TREE_CLOEXEC | below
    tree = _checked(_syscall(_SYS_OPEN_TREE, ctypes.c_int(_AT_FDCWD), _text(path), ctypes.c_uint(flags)), "open_tree")
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
    _checked(
        _syscall(
            _SYS_MOUNT_SETATTR,
            ctypes.c_int(folder),
            _text(path),
            ctypes.c_uint(flags),
            ctypes.byref(structure),
            ctypes.c_size_t(ctypes.sizeof(structure)),
        ),
        "mount_setattr",
    )


def attach_mount(tree: int, target: str) -> None:
    """Attach a detached mount at `target`, and close its descriptor."""
    try:
        _checked(
            _syscall(
                _SYS_MOVE_MOUNT,
                ctypes.c_int(tree),
                b"",
                ctypes.c_int(_AT_FDCWD),
                _text(target),
                ctypes.c_uint(_MOVE_MOUNT_F_EMPTY_PATH),
            ),
            "move_mount",
        )
    finally:
        os.close(tree)


def bind_mount(path: str, target: str, *, read_only: bool = True, propagation: int = MS_PRIVATE) -> None:
    """Mount `path`, including what is mounted below it, at `target`."""
    attach_mount(clone_mount(path, read_only=read_only, propagation=propagation), target)


def set_parent_death_signal(signal: int) -> None:
    """The kernel sends this signal to this process when its parent exits."""
    _prctl(_PR_SET_PDEATHSIG, signal)


def set_child_subreaper() -> None:
    """Become the parent of every descendant whose own parent exits."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def set_no_new_privileges() -> None:
    """Executing a set-user-ID program grants nothing from now on."""
    _prctl(_PR_SET_NO_NEW_PRIVS, 1)


def install_seccomp_filter(program: bytes) -> None:
    spec = _Filter(length=len(program) // 8, program=program)
    _checked(
        _LIBC.prctl(ctypes.c_int(_PR_SET_SECCOMP), ctypes.c_ulong(_SECCOMP_MODE_FILTER), ctypes.byref(spec), 0, 0),
        "seccomp",
    )


def landlock_version() -> int:
    """The ABI version of the kernel's Landlock; 0 if there is none."""
    version = _syscall(_SYS_LANDLOCK_CREATE_RULESET, None, ctypes.c_size_t(0), ctypes.c_uint(_LANDLOCK_VERSION))
    return max(version, 0)


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
    ruleset = _Ruleset(files=files, network=network, scopes=scopes)
    version = landlock_version()
    size = 8 if version < 4 else 16 if version < 6 else 24  # the structure grew with these versions
    handle = _checked(
        _syscall(_SYS_LANDLOCK_CREATE_RULESET, ctypes.byref(ruleset), ctypes.c_size_t(size), ctypes.c_uint(0)),
        "landlock_create_ruleset",
    )
    try:
        for path, allowed in rules:
            try:
                parent = os.open(path, os.O_PATH | os.O_CLOEXEC)
            except OSError:
                continue
            try:
                status = os.fstat(parent)
                identity = [status.st_dev, status.st_ino]
                if identities and list(identities.get(path, identity)) != identity:
                    raise OSError(f"{path} was replaced a moment ago; run it again")
                possible = files if stat.S_ISDIR(status.st_mode) else files & _LANDLOCK_FILE_RIGHTS
                rule = _PathRule(allowed=allowed & possible, parent=parent)
                _checked(
                    _syscall(
                        _SYS_LANDLOCK_ADD_RULE,
                        ctypes.c_int(handle),
                        ctypes.c_int(_LANDLOCK_RULE_PATH_BENEATH),
                        ctypes.byref(rule),
                        ctypes.c_uint(0),
                    ),
                    "landlock_add_rule",
                )
            finally:
                os.close(parent)
        _checked(
            _syscall(_SYS_LANDLOCK_RESTRICT_SELF, ctypes.c_int(handle), ctypes.c_uint(0)), "landlock_restrict_self"
        )
    finally:
        os.close(handle)


def _prctl(option: int, value: int) -> None:
    _checked(_LIBC.prctl(ctypes.c_int(option), ctypes.c_ulong(value), 0, 0, 0), "prctl")


def _syscall(number: int, *arguments: object) -> int:
    result: int = _LIBC.syscall(ctypes.c_long(number), *arguments)
    return result


def _checked(result: int, what: str) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what.strip()}: {os.strerror(number)}")
    return result


def _text(value: str | None) -> bytes | None:
    return None if value is None else os.fsencode(value)
