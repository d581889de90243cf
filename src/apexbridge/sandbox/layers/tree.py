"""The files of a layer: how large they are, and that nobody writes to them any more."""

import os
import stat
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from apexbridge.sandbox.layers.words import failed, readable

BLOCK_BYTES = 4096
"""What even an empty file or folder costs."""


def freeze(folder: Path, *, within: Path) -> int:
    """Take every right to write away; gives the size on disk.

    Raises:
        ServerError: something is neither file nor folder, or a link leads out of what a run will see.
    """
    size, inside = 0, f"{os.path.realpath(within)}{os.sep}"
    for path, status in _entries(folder):
        size += _cost(status)
        if stat.S_ISLNK(status.st_mode):
            target = os.readlink(path)  # noqa: PTH115  # paths by the thousand: plain strings are enough
            if os.path.isabs(target) or not os.path.realpath(path).startswith(inside):  # noqa: PTH117
                raise failed(f"A link in the packages leads out of them: {readable(os.path.relpath(path, folder))}")
        elif stat.S_ISDIR(status.st_mode):
            os.chmod(path, 0o555)  # noqa: PTH101, S103  # the sandbox is another user
        elif stat.S_ISREG(status.st_mode):
            os.chmod(path, 0o555 if status.st_mode & 0o111 else 0o444)  # noqa: PTH101
        else:
            raise failed("Among the packages is something that is neither a file nor a folder.")
    return size


def size_of(folder: Path) -> int:
    """What a folder takes of the disk."""
    return sum(_cost(status) for _, status in _entries(folder))


def _cost(status: os.stat_result) -> int:
    return max(1, -(-status.st_size // BLOCK_BYTES)) * BLOCK_BYTES


def _entries(folder: Path) -> Iterator[tuple[str, os.stat_result]]:
    """The folder and everything below it, of any depth; what vanishes meanwhile is left out."""
    yield str(folder), folder.stat()
    waiting = [str(folder)]
    while waiting:
        with suppress(FileNotFoundError), os.scandir(waiting.pop()) as entries:
            for entry in entries:
                with suppress(FileNotFoundError):
                    yield entry.path, entry.stat(follow_symlinks=False)
                if entry.is_dir(follow_symlinks=False):
                    waiting.append(entry.path)
