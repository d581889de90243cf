"""Opens paths strictly below a folder, even if symlinks point outside or files are moved concurrently."""

import ctypes
import errno
import os
import stat
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, Protocol

ATTEMPTS = 32
"""The kernel returns EAGAIN if something was renamed while it resolved `..` in a symlink."""
OPEN_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
OPEN_FILE = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
"""Non-blocking: opening a named pipe would otherwise wait for a writer."""

_SYS_OPENAT2 = 437
_RESOLVE_NO_MAGICLINKS = 0x02
_RESOLVE_NO_SYMLINKS = 0x04
_RESOLVE_BENEATH = 0x08


class Opener(Protocol):
    """Opens a path below an open folder."""

    def __call__(self, folder: int, path: str, flags: int, *, links: bool = True) -> int:
        """A descriptor. Without `links` no symlink is followed, otherwise those that stay below the folder may be."""


class _How(ctypes.Structure):
    _fields_ = (("flags", ctypes.c_uint64), ("mode", ctypes.c_uint64), ("resolve", ctypes.c_uint64))


_syscall = ctypes.CDLL(None, use_errno=True).syscall
_syscall.restype = ctypes.c_long
_syscall.argtypes = (ctypes.c_long, ctypes.c_int, ctypes.c_char_p, ctypes.POINTER(_How), ctypes.c_size_t)


def open_beneath(folder: int, path: str, flags: int, *, links: bool = True) -> int:
    """Open a path with `openat2`; if that is missing or forbidden, with `walk_beneath`.

    Raises OSError: EXDEV if a symlink leads out, ELOOP if a symlink is not followed, and the usual ones.
    """
    if sys.platform != "linux":
        return walk_beneath(folder, path, flags)
    resolve = _RESOLVE_BENEATH | _RESOLVE_NO_MAGICLINKS | (0 if links else _RESOLVE_NO_SYMLINKS)
    how = _How(flags=flags, resolve=resolve)
    number = errno.EAGAIN
    for _ in range(ATTEMPTS):
        descriptor: int = _syscall(_SYS_OPENAT2, folder, os.fsencode(path), how, ctypes.sizeof(how))
        if descriptor >= 0:
            return descriptor
        number = ctypes.get_errno()
        if number in (errno.ENOSYS, errno.EPERM):
            return walk_beneath(folder, path, flags)
        if number not in (errno.EAGAIN, errno.EINTR):
            break
    raise OSError(number, os.strerror(number))


def walk_beneath(folder: int, path: str, flags: int, *, links: bool = True) -> int:
    """Open a path component by component, for kernels without `openat2`. No symlink is followed.

    Raises OSError: ELOOP for a symlink, and the usual ones.
    """
    *parents, name = path.split("/")
    current = folder
    try:
        for parent in parents:
            previous, current = current, _open_entry(current, parent, OPEN_FOLDER)
            if previous != folder:
                os.close(previous)
        return _open_entry(current, name, flags)
    finally:
        if current != folder:
            os.close(current)


@contextmanager
def opened(descriptor: int) -> Iterator[int]:
    """Close a descriptor at the end of the block."""
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _open_entry(folder: int, name: str, flags: int) -> int:
    if name == "..":
        raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))
    try:
        return os.open(name, flags | os.O_NOFOLLOW, dir_fd=folder)
    except NotADirectoryError:  # also raised for a symlink if a folder is expected
        if stat.S_ISLNK(os.lstat(name, dir_fd=folder).st_mode):
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP)) from None
        raise


def open_file_beneath(folder: Path, path: str) -> BinaryIO:
    """Open a regular file below a folder. Links are not followed.

    Raises:
        ValueError: the path is not a plain relative path.
        OSError: there is no such regular file.
    """
    if not path or "\0" in path or any(component in ("", ".", "..") for component in path.split("/")):
        raise ValueError("not a plain relative path")
    folder_descriptor = os.open(folder, OPEN_FOLDER)
    try:
        descriptor = open_beneath(folder_descriptor, path, OPEN_FILE, links=False)
    finally:
        os.close(folder_descriptor)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise FileNotFoundError(errno.ENOENT, "not a regular file", path)
    return os.fdopen(descriptor, "rb")
