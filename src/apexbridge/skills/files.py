"""File operations that the standard library lacks: atomic swap and replace, sync, opening below a folder."""

import ctypes
import errno
import os
import stat
from pathlib import Path
from typing import BinaryIO

from apexbridge.sandbox.launcher.removal import remove_tree as clear
from apexbridge.tools.builtin.files import beneath
from apexbridge.tools.builtin.files.beneath import OPEN_FILE, OPEN_FOLDER

_AT_FDCWD = -100
_RENAME_EXCHANGE = 2


def exchange(one: Path, other: Path) -> None:
    """Swap two folders on one mount atomically: readers never find either missing.

    Raises:
        OSError: ENOSYS, EINVAL or ENOTSUP if the kernel or the file system does not support it.
    """
    _renameat2(one, other, _RENAME_EXCHANGE)


def replace_file(path: Path, data: bytes, *, beside: Path, mode: int = 0o644, durable: bool = False) -> None:
    """Replace a file's content atomically: readers see the old bytes or the new ones.

    The temporary file is in `beside`, a folder on the same file system. With `durable`, the new content survives a
    power failure.
    """
    draft = beside / f"{path.name}.{os.urandom(6).hex()}"
    try:
        with draft.open("xb") as file:
            os.fchmod(file.fileno(), mode)
            file.write(data)
            file.flush()
            if durable:
                os.fsync(file.fileno())
        draft.replace(path)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise
    if durable:
        sync_folder(path.parent)


def open_beneath(folder: Path, path: str) -> BinaryIO:
    """Open a regular file below a folder. Links are not followed.

    Raises:
        ValueError: the path is not a plain relative path.
        OSError: there is no such regular file.
    """
    if not path or "\0" in path or any(component in ("", ".", "..") for component in path.split("/")):
        raise ValueError("not a plain relative path")
    folder_descriptor = os.open(folder, OPEN_FOLDER)
    try:
        descriptor = beneath.open_beneath(folder_descriptor, path, OPEN_FILE, links=False)
    finally:
        os.close(folder_descriptor)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise FileNotFoundError(errno.ENOENT, "not a regular file", path)
    return os.fdopen(descriptor, "rb")


def is_there(path: Path) -> bool:
    """Whether the path exists. A dangling link counts."""
    return os.path.lexists(path)


def sync_folder(folder: Path) -> None:
    """Flush a folder's entries to disk."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def remove_tree(folder: Path) -> None:
    """Remove a folder with everything in it, of any depth and mode. Errors are ignored."""
    clear(str(folder))


def _renameat2(one: Path, other: Path, flags: int) -> None:
    function = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if function is None:
        raise OSError(errno.ENOSYS, "renameat2 is not available")
    if function(_AT_FDCWD, os.fsencode(one), _AT_FDCWD, os.fsencode(other), flags):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), str(one), None, str(other))
