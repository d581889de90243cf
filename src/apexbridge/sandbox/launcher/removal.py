"""Removing a folder that untrusted code has filled: unreadable folders, odd names, any depth."""

import itertools
import os
import stat
from collections.abc import Iterator
from contextlib import suppress

from apexbridge.sandbox.launcher.syscalls import opened

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW


def remove_tree(path: str) -> None:
    """Remove a folder with everything in it, or a single file. Errors are ignored.

    Links are removed, never followed. Subfolders are moved to the top before they are emptied, so neither recursion
    nor the length of a path is a limit, as they are for `shutil.rmtree`.
    """
    with suppress(OSError):
        if not stat.S_ISDIR(os.lstat(path).st_mode):
            os.unlink(path)
            return
        os.chmod(path, 0o700)
        with opened(path, _FOLDER) as top:
            numbers = itertools.count()
            pending = ["."]
            while pending:
                name = pending.pop()
                with suppress(OSError):
                    with opened(name, _FOLDER, top) as folder:
                        pending += _unlink_files(folder, top, numbers)
                    os.rmdir(name, dir_fd=top)
        os.rmdir(path)


def _unlink_files(folder: int, top: int, numbers: Iterator[int]) -> list[str]:
    """Unlink the files of a folder and move its subfolders to the top; returns their new names."""
    moved: list[str] = []
    for name in os.listdir(folder):
        with suppress(OSError):
            if stat.S_ISDIR(os.lstat(name, dir_fd=folder).st_mode):
                os.chmod(name, 0o700, dir_fd=folder)  # without write permission it can be neither moved nor emptied
                target = f".removing-{os.getpid()}-{next(numbers)}"
                os.rename(name, target, src_dir_fd=folder, dst_dir_fd=top)
                moved.append(target)
            else:
                os.unlink(name, dir_fd=folder)
    return moved
