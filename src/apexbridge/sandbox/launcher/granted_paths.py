"""Checks on host paths that are granted to a run: their identity, their file system, and mounts below them."""

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

from apexbridge.sandbox.launcher.syscalls import file_system_type

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
    with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as file:
        return [_parse_mount(line.split()) for line in file]


def _parse_mount(words: list[str]) -> Mount:
    major, minor = words[2].split(":")
    # Spaces and the like are written as octal escapes.
    root, point = (_ESCAPED.sub(lambda match: chr(int(match[1], 8)), word) for word in words[3:5])
    return Mount(
        number=int(words[0]),
        device=os.makedev(int(major), int(minor)),
        root=PurePosixPath(root),
        point=PurePosixPath(point),
        file_system=words[words.index("-") + 1],
    )


def mounts_below(path: str) -> list[PurePosixPath]:
    """Mount points below a path, except for those below another one of them."""
    points = sorted({mount.point for mount in list_mounts() if PurePosixPath(path) in mount.point.parents})
    return [point for point in points if not any(other in point.parents for other in points)]


def kernel_file_system(descriptor: int) -> str | None:
    """The file system of an open file if it is one of the kernel's; None if the file may be granted."""
    if name := _NAME_BY_TYPE.get(file_system_type(descriptor)):
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
    """Raise OSError if an open file was replaced since it was granted, or is on a file system of the kernel."""
    check_identity(descriptor, path, identity)
    if name := kernel_file_system(descriptor):
        raise OSError(f"{path} is on a kernel file system ({name}), which is never mounted for a run")


def check_identity(descriptor: int, name: str, identity: Sequence[int] | None) -> None:
    """Raise OSError if an open file does not have this device and inode; None accepts any."""
    status = os.fstat(descriptor)
    if identity is not None and [status.st_dev, status.st_ino] != list(identity):
        raise OSError(f"{name} was replaced a moment ago; run it again")
