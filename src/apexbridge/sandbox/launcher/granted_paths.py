"""Paths of the host that a run may be shown: which file systems never are, and where on its disk a path lies."""

import ctypes
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

_KERNEL_KINDS = {
    "autofs": 0x0187,
    "binder": 0x6C6F6F70,
    "binfmt_misc": 0x42494E4D,
    "bpf": 0xCAFE4A11,
    "cgroup": 0x27E0EB,
    "cgroup2": 0x63677270,
    "configfs": 0x62656570,
    "debugfs": 0x64626720,
    "devpts": 0x1CD1,
    "devtmpfs": None,  # calls itself a tmpfs, so it is known by its device
    "efivarfs": 0xDE5E81E4,
    "fusectl": 0x65735543,
    "hugetlbfs": 0x958458F6,
    "mqueue": 0x19800202,
    "nfsd": 0x6E667364,
    "nsfs": 0x6E736673,
    "proc": 0x9FA0,
    "pstore": 0x6165676C,
    "resctrl": 0x7655821,
    "rpc_pipefs": 0x67596969,
    "securityfs": 0x73636673,
    "selinuxfs": 0xF97CFF8C,
    "smackfs": 0x43415D53,
    "sysfs": 0x62656572,
    "tracefs": 0x74726163,
}
"""Kinds of file systems that show or steer the kernel, its devices or its processes, and the numbers of `statfs`."""
_KINDS_BY_NUMBER = {number: name for name, number in _KERNEL_KINDS.items() if number is not None}
_ESCAPED = re.compile(r"\\([0-7]{3})")
_LIBC = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Mount:
    """One line of /proc/self/mountinfo."""

    number: int
    device: int
    root: PurePosixPath
    """What of the file system is mounted."""
    point: PurePosixPath
    """Where it is mounted."""
    kind: str


def mounts() -> list[Mount]:
    """What is mounted in this mount namespace."""
    found = []
    with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as file:
        for line in file:
            words = line.split()
            major, minor = words[2].split(":")
            found.append(
                Mount(
                    number=int(words[0]),
                    device=os.makedev(int(major), int(minor)),
                    root=PurePosixPath(_plain(words[3])),
                    point=PurePosixPath(_plain(words[4])),
                    kind=words[words.index("-") + 1],
                )
            )
    return found


def mounts_below(path: str) -> list[PurePosixPath]:
    """Where something is mounted below a path, without those that are below another one of them."""
    points = sorted({mount.point for mount in mounts() if PurePosixPath(path) in mount.point.parents})
    return [point for point in points if not any(other in point.parents for other in points)]


def kernel_kind(descriptor: int) -> str | None:
    """The kind of an open file's file system, if it is one of the kernel's own; None if files may be shown."""
    kind = _KINDS_BY_NUMBER.get(_file_system_number(descriptor))
    if kind is not None:
        return kind
    device = os.fstat(descriptor).st_dev
    return next((mount.kind for mount in mounts() if mount.device == device and mount.kind in _KERNEL_KINDS), None)


def origin(descriptor: int) -> tuple[int, PurePosixPath] | None:
    """The device of an open file and its path on it, the same for every place where it is mounted."""
    with open(f"/proc/self/fdinfo/{descriptor}", encoding="ascii") as file:
        number = next(int(line.split()[1]) for line in file if line.startswith("mnt_id:"))
    path = PurePosixPath(os.readlink(f"/proc/self/fd/{descriptor}"))
    for mount in mounts():
        if mount.number == number and path.is_relative_to(mount.point):
            return mount.device, mount.root / path.relative_to(mount.point)
    return None


def refuse_another_path(descriptor: int, path: str, identity: Sequence[int]) -> None:
    """Fail if an open file is not the one that was granted, or belongs to the kernel.

    Raises:
        OSError: naming the path.
    """
    found = os.fstat(descriptor)
    if [found.st_dev, found.st_ino] != list(identity):
        raise OSError(f"{path} was replaced a moment ago; run it again")
    if kind := kernel_kind(descriptor):
        raise OSError(f"{path} is on a file system of the kernel's ({kind}) and is never shown")


def _file_system_number(descriptor: int) -> int:
    """`f_type` of statfs, which Python does not show."""
    buffer = ctypes.create_string_buffer(256)
    if _LIBC.fstatfs(ctypes.c_int(descriptor), buffer) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"fstatfs: {os.strerror(number)}")
    return ctypes.c_long.from_buffer(buffer).value & 0xFFFF_FFFF


def _plain(text: str) -> str:
    """A path of mountinfo, in which spaces and the like are octal numbers."""
    return _ESCAPED.sub(lambda found: chr(int(found[1], 8)), text)
