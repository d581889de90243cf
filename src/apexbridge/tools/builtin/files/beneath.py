"""Opens paths strictly below a folder, even if symlinks point outside or files are moved concurrently."""

import ctypes
import errno
import os
import stat
import sys
from typing import Protocol

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

    Raises:
        OSError: EXDEV if a symlink leads out, ELOOP if a symlink is not followed, and the usual ones.
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

    Raises:
        OSError: ELOOP for a symlink, and the usual ones.
    """
    *parents, name = path.split("/")
    place = folder
    try:
        for part in parents:
            deeper = _step(place, part, OPEN_FOLDER)
            if place != folder:
                os.close(place)
            place = deeper
        return _step(place, name, flags)
    finally:
        if place != folder:
            os.close(place)


def _step(place: int, name: str, flags: int) -> int:
    if name == "..":
        raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))
    try:
        return os.open(name, flags | os.O_NOFOLLOW, dir_fd=place)
    except NotADirectoryError:  # also raised for a symlink if a folder is expected
        if stat.S_ISLNK(os.lstat(name, dir_fd=place).st_mode):
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP)) from None
        raise
