"""Removing a folder, whatever a stranger did to it: locked folders, odd names, any depth."""

import os
import stat
from contextlib import suppress


def remove_tree(path: str) -> None:
    """Remove a folder with everything in it; links are removed, never followed.

    Folders are pulled up to the top before they are emptied, so neither recursion nor the length of a path is a limit.
    """
    with suppress(OSError):
        os.chmod(path, 0o700)
    try:
        top = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    try:
        waiting = _emptied(top, top, 0)
        number = len(waiting)
        while waiting:
            name = waiting.pop()
            with suppress(OSError):
                os.chmod(name, 0o700, dir_fd=top, follow_symlinks=True)
            folder = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=top)
            try:
                found = _emptied(folder, top, number)
            finally:
                os.close(folder)
            number += len(found)
            waiting += found
            os.rmdir(name, dir_fd=top)
    finally:
        os.close(top)
    os.rmdir(path)


def _emptied(folder: int, top: int, number: int) -> list[str]:
    """Unlink the files of a folder and move its folders to the top; gives their new names."""
    moved: list[str] = []
    for name in os.listdir(folder):
        if stat.S_ISDIR(os.lstat(name, dir_fd=folder).st_mode):
            with suppress(OSError):  # a folder cannot be moved while it cannot be written to
                os.chmod(name, 0o700, dir_fd=folder, follow_symlinks=True)
            target = f".removing-{number + len(moved)}-{os.getpid()}"
            os.rename(name, target, src_dir_fd=folder, dst_dir_fd=top)
            moved.append(target)
        else:
            os.unlink(name, dir_fd=folder)
    return moved
