"""Input files: copied into a run's workspace, where it can read but not change them."""

import os
from collections.abc import Sequence

from apexbridge.errors import InvalidInputError
from apexbridge.sandbox.models import InputFile

MAX_INPUT_BYTES = 50 * 1024 * 1024
MAX_INPUT_FILES = 500
_PIECE = 1024 * 1024


def check_count(count: int) -> None:
    """Refuse too many files before one is opened.

    Raises:
        InvalidInputError: there are too many.
    """
    if count > MAX_INPUT_FILES:
        raise InvalidInputError(f"{count} input files are too many; at most {MAX_INPUT_FILES}")


def check_size(sizes: Sequence[int]) -> None:
    """Refuse files that are too large before one is copied.

    Raises:
        InvalidInputError: together they are too large.
    """
    if sum(sizes) > MAX_INPUT_BYTES:
        raise _too_large()


def copy_in(folder: int, files: Sequence[InputFile]) -> None:
    """Copy the files to an open folder.

    Raises:
        InvalidInputError: they grew, and together they are too large.
    """
    room = MAX_INPUT_BYTES
    for file in files:
        target = os.open(file.name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o444, dir_fd=folder)
        with os.fdopen(target, "wb") as copy:
            while piece := file.file.read(_PIECE):
                room -= len(piece)
                if room < 0:
                    raise _too_large()
                copy.write(piece)
    os.chmod(folder, 0o555)  # noqa: S103  # to be read by the run, whatever user that is


def _too_large() -> InvalidInputError:
    return InvalidInputError(f"The input files are larger than {MAX_INPUT_BYTES // 1024 // 1024} MB")
