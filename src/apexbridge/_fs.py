"""Files that only the server's user may read."""

import os
import stat
from contextlib import suppress
from itertools import takewhile
from pathlib import Path

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
