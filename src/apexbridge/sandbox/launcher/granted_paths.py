"""Checks on host paths that are granted to a run: their identity, their file system, and mounts below them."""

import ctypes
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

_KERNEL_FILE_SYSTEMS = {
    "autofs": 0x0187,
    "binder": 0x6C6F6F70,
    "binfmt_misc": 0x42494E4D,
    "bpf": 0xCAFE4A11,
    "cgroup": 0x27E0EB,
    "cgroup2": 0x63677270,
    "configfs": 0x62656570,
    "debugfs": 0x64626720,
    "devpts": 0x1CD1,
    "devtmpfs": None,  # statfs reports it as tmpfs, so it is identified by its device
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
"""File systems that expose the kernel, its devices or its processes, with their `statfs` type. Never granted."""
_NAME_BY_TYPE = {number: name for name, number in _KERNEL_FILE_SYSTEMS.items() if number is not None}
_ESCAPED = re.compile(r"\\([0-7]{3})")
_LIBC = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Mount:
    """One line of /proc/self/mountinfo."""

    number: int
    device: int
    root: PurePosixPath
    """The part of the file system that is mounted."""
    point: PurePosixPath
    file_system: str


def list_mounts() -> list[Mount]:
    """All mounts in this mount namespace."""
    mounts = []
    with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as file:
        for line in file:
            words = line.split()
            major, minor = words[2].split(":")
            mounts.append(
                Mount(
                    number=int(words[0]),
                    device=os.makedev(int(major), int(minor)),
                    root=PurePosixPath(_unescape(words[3])),
                    point=PurePosixPath(_unescape(words[4])),
                    file_system=words[words.index("-") + 1],
                )
            )
    return mounts


def mounts_below(path: str) -> list[PurePosixPath]:
    """Mount points below a path, except for those below another one of them."""
    points = sorted({mount.point for mount in list_mounts() if PurePosixPath(path) in mount.point.parents})
    return [point for point in points if not any(other in point.parents for other in points)]


def kernel_file_system(descriptor: int) -> str | None:
    """The file system of an open file if it is one of the kernel's; None if the file may be granted."""
    name = _NAME_BY_TYPE.get(_file_system_type(descriptor))
    if name is not None:
        return name
    device = os.fstat(descriptor).st_dev
    names = [mount.file_system for mount in list_mounts() if mount.device == device]
    return next((name for name in names if name in _KERNEL_FILE_SYSTEMS), None)


def origin(descriptor: int) -> tuple[int, PurePosixPath] | None:
    """The device of an open file and its path on that device: the same through every mount."""
    with open(f"/proc/self/fdinfo/{descriptor}", encoding="ascii") as file:
        number = next(int(line.split()[1]) for line in file if line.startswith("mnt_id:"))
    path = PurePosixPath(os.readlink(f"/proc/self/fd/{descriptor}"))
    for mount in list_mounts():
        if mount.number == number and path.is_relative_to(mount.point):
            return mount.device, mount.root / path.relative_to(mount.point)
    return None


def check_granted_path(descriptor: int, path: str, identity: Sequence[int]) -> None:
    """Fail if an open file does not have the granted device and inode, or is on a file system of the kernel.

    Raises:
        OSError: naming the path.
    """
    if not _has_identity(descriptor, identity):
        raise OSError(f"{path} was replaced a moment ago; run it again")
    if name := kernel_file_system(descriptor):
        raise OSError(f"{path} is on a kernel file system ({name}), which is never mounted for a run")


def check_skill_folder(descriptor: int, identity: Sequence[int] | None) -> None:
    """Fail if an open folder does not have this device and inode: the skill was replaced meanwhile.

    Raises:
        OSError: `descriptor` is closed.
    """
    if identity is not None and not _has_identity(descriptor, identity):
        os.close(descriptor)
        raise OSError("the skill was replaced a moment ago; run it again")


def _has_identity(descriptor: int, identity: Sequence[int]) -> bool:
    status = os.fstat(descriptor)
    return [status.st_dev, status.st_ino] == list(identity)


def _file_system_type(descriptor: int) -> int:
    """`f_type` of fstatfs, which Python does not expose."""
    buffer = ctypes.create_string_buffer(256)
    if _LIBC.fstatfs(ctypes.c_int(descriptor), buffer) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"fstatfs: {os.strerror(number)}")
    return ctypes.c_long.from_buffer(buffer).value & 0xFFFF_FFFF


def _unescape(text: str) -> str:
    """mountinfo writes spaces and the like as octal escapes."""
    return _ESCAPED.sub(lambda match: chr(int(match[1], 8)), text)
