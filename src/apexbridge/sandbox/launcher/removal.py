"""Removing a folder, whatever a stranger did to it: locked folders, odd names, any depth."""

import os
import stat
from contextlib import suppress

_OPEN_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def remove_tree(path: str) -> None:
    """Remove a folder with everything in it, or a single file; what resists stays for another time.

    Links are removed, never followed. Folders are pulled up to the top before they are emptied, so neither recursion
    nor the length of a path is a limit; `shutil.rmtree` has both.
    """
    with suppress(OSError):
        if not stat.S_ISDIR(os.lstat(path).st_mode):
            os.unlink(path)
            return
        os.chmod(path, 0o700)
        top = os.open(path, _OPEN_FOLDER)
        try:
            _empty(top)
        finally:
            os.close(top)
        os.rmdir(path)


def _empty(top: int) -> None:
    waiting = _emptied(top, top, 0)
    number = len(waiting)
    while waiting:
        name = waiting.pop()
        with suppress(OSError):
            folder = os.open(name, _OPEN_FOLDER, dir_fd=top)
            try:
                found = _emptied(folder, top, number)
            finally:
                os.close(folder)
            number += len(found)
            waiting += found
            os.rmdir(name, dir_fd=top)


def _emptied(folder: int, top: int, number: int) -> list[str]:
    """Unlink the files of a folder and move its folders to the top; gives their new names."""
    moved: list[str] = []
    for name in os.listdir(folder):
        with suppress(OSError):
            if stat.S_ISDIR(os.lstat(name, dir_fd=folder).st_mode):
                os.chmod(name, 0o700, dir_fd=folder)  # it can be neither moved nor emptied without
                target = f".removing-{os.getpid()}-{number + len(moved)}"
                os.rename(name, target, src_dir_fd=folder, dst_dir_fd=top)
                moved.append(target)
            else:
                os.unlink(name, dir_fd=folder)
    return moved
