"""File operations that the standard library lacks: atomic swap and replace, and files only for the server's user."""

import ctypes
import errno
import os
import stat
from contextlib import suppress
from itertools import takewhile
from pathlib import Path

_AT_FDCWD = -100
_RENAME_EXCHANGE = 2
OTHERS = stat.S_IRWXG | stat.S_IRWXO
PRIVATE_FILE, PRIVATE_FOLDER = 0o600, 0o700
_OPEN = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


def make_private_folder(path: Path) -> None:
    """Create a folder with mode 0700, and its missing parents too. An existing folder keeps its mode."""
    missing = list(takewhile(lambda folder: not folder.is_dir(), (path, *path.parents)))
    for folder in reversed(missing):
        folder.mkdir(PRIVATE_FOLDER, exist_ok=True)


def write_private(path: Path, data: bytes) -> None:
    """Write a file, created with mode 0600. Symlinks are not followed."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, PRIVATE_FILE)
    with os.fdopen(descriptor, "wb") as file:
        file.write(data)


def take_from_others(path: Path) -> None:
    """Remove all permissions of group and others from a file, or from a folder and everything in it.

    Symlinks are skipped. The topmost folder changes last: if it is private, so is everything below it.
    """
    found, waiting = [path], [path]
    while waiting:
        with suppress(OSError), os.scandir(waiting.pop()) as entries:
            for entry in entries:
                found.append(Path(entry.path))
                if entry.is_dir(follow_symlinks=False):
                    waiting.append(found[-1])
    for own in reversed(found):
        _take(own)


def is_open_to_others(path: Path) -> bool:
    """Whether the mode grants any permission to group or others; False for symlinks and missing files."""
    try:
        status = path.lstat()
    except OSError:
        return False
    return not stat.S_ISLNK(status.st_mode) and bool(status.st_mode & OTHERS)


def _take(path: Path) -> None:
    with suppress(OSError):  # a symlink, or removed in the meantime
        descriptor = os.open(path, _OPEN)
        try:
            mode = os.fstat(descriptor).st_mode
            if mode & OTHERS and (stat.S_ISDIR(mode) or stat.S_ISREG(mode)):
                os.fchmod(descriptor, stat.S_IMODE(mode) & ~OTHERS)
        finally:
            os.close(descriptor)


def exchange(one: Path, other: Path) -> None:
    """Swap two folders on one mount atomically: readers never find either missing.

    Raises:
        OSError: ENOSYS, EINVAL or ENOTSUP if the kernel or the file system does not support it.
    """
    function = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if function is None:
        raise OSError(errno.ENOSYS, "renameat2 is not available")
    if function(_AT_FDCWD, os.fsencode(one), _AT_FDCWD, os.fsencode(other), _RENAME_EXCHANGE):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), str(one), None, str(other))


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


def sync_folder(folder: Path) -> None:
    """Flush a folder's entries to disk."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
