"""Paths from callers: relative, with slashes, never upwards; and errors that name these paths, never the server's."""

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from apexbridge.errors import (
    ApexBridgeError,
    InvalidInputError,
    PermissionDeniedError,
    RequestError,
    ServerError,
    ToolExecutionError,
)

MAX_PATH_BYTES = 4095
MAX_NAME_BYTES = 255
MAX_PARTS = 256
MAX_SHOWN_CHARACTERS = 200


@dataclass(frozen=True, slots=True)
class RelativePath:
    """A valid path below a folder."""

    parts: tuple[str, ...]
    """Empty for the folder itself."""
    given: str
    """The original text, safe to show in messages."""

    @property
    def text(self) -> str:
        """The path for system calls."""
        return "/".join(self.parts) or "."

    @property
    def name(self) -> str:
        return self.parts[-1]

    def __str__(self) -> str:
        return self.given


def read_path(given: str) -> RelativePath:
    """Parse a path from a caller.

    Raises:
        PermissionDeniedError: it is absolute or leads upwards.
        InvalidInputError: it is not a valid path.
    """
    told = shown(given)
    if not given:
        raise InvalidInputError("The path is empty; name a file or folder of the workspace")
    if given.startswith("/"):
        raise PermissionDeniedError(f"{told} is absolute; paths are relative to the workspace")
    parts = tuple(part for part in given.split("/") if part != ".")
    if ".." in parts:
        raise PermissionDeniedError(f"{told} leads upwards; paths stay inside the workspace, without ..")
    if problem := _problem(given, parts):
        raise InvalidInputError(f"{told} {problem}")
    return RelativePath(parts, told)


def shown(path: str) -> str:
    """A path for messages: of limited length, without control characters that a terminal would interpret."""
    cut = path if len(path) <= MAX_SHOWN_CHARACTERS else f"{path[:MAX_SHOWN_CHARACTERS]}…"
    return "".join(character if character.isprintable() else "\ufffd" for character in cut)


def _problem(given: str, parts: tuple[str, ...]) -> str | None:
    if "\0" in given:
        return "has a NUL character in it"
    if "\\" in given:
        return "has a backslash in it; folders are separated by /"
    if given.endswith("/"):
        return "ends with a slash; a file's path ends with its name"
    if "" in parts:
        return "has two slashes in a row"
    try:
        names = [len(part.encode()) for part in parts]
        length = len(os.fsencode(given))
    except UnicodeEncodeError:
        return "is no valid text"
    if length > MAX_PATH_BYTES:
        return f"is longer than {MAX_PATH_BYTES} bytes"
    if len(parts) > MAX_PARTS:
        return f"is deeper than {MAX_PARTS} folders"
    if any(name > MAX_NAME_BYTES for name in names):
        return f"has a name in it that is longer than {MAX_NAME_BYTES} bytes"
    return None


_MISSING = {errno.ENOENT, errno.ENOTDIR}
_FORBIDDEN = {errno.EACCES, errno.EPERM}
_FULL = {errno.ENOSPC, errno.EDQUOT}
_STRANGE = {errno.ENXIO, errno.ENODEV, errno.EOPNOTSUPP}


@contextmanager
def refusals(path: RelativePath) -> Iterator[None]:
    """Convert an OSError in the block to an error for the caller."""
    try:
        yield
    except OSError as error:
        raise _refusal(error.errno or errno.EIO, path) from error


def check_regular(status: os.stat_result, path: RelativePath) -> None:
    """Refuse everything except regular files.

    Raises:
        PermissionDeniedError: it is not a regular file.
    """
    if stat.S_ISREG(status.st_mode):
        return
    if stat.S_ISDIR(status.st_mode):
        raise PermissionDeniedError(f"{path} is a folder, not a file; list-files shows what is in it")
    kind = "a link" if stat.S_ISLNK(status.st_mode) else "a pipe, a socket or a device"
    raise PermissionDeniedError(f"{path} is {kind}, not a regular file")


def missing(path: RelativePath) -> RequestError:
    """The error for a file that does not exist."""
    return RequestError(f"There is no {path}; list-files shows what is there", code="FILE_NOT_FOUND")


def _refusal(number: int, path: RelativePath) -> ApexBridgeError:
    if number in _MISSING:
        return missing(path)
    if number == errno.EXDEV:
        return PermissionDeniedError(f"{path} is or passes a link that leads out of the workspace")
    if number == errno.ELOOP:
        return PermissionDeniedError(f"{path} is or passes a link that is not followed")
    if number in _FORBIDDEN:
        return PermissionDeniedError(f"The server itself may not do that to {path}; see its owner and mode")
    if number in _STRANGE:
        return PermissionDeniedError(f"{path} is a pipe, a socket or a device, not a regular file")
    if number == errno.EISDIR:
        return PermissionDeniedError(f"{path} is a folder, not a file; list-files shows what is in it")
    if number == errno.ENAMETOOLONG:
        return InvalidInputError(f"{path} is too long a name for the file system")
    if number in _FULL:
        return ServerError(
            f"The disk is full; {path} was not changed. Free some space and try again.", code="STORAGE_FULL"
        )
    if number == errno.EROFS:
        return ServerError(f"The workspace is on a read-only disk; {path} was not changed.", code="STORAGE_FULL")
    if number == errno.EAGAIN:
        return ToolExecutionError(f"{path} was being moved about all the time; try again", retryable=True)
    return ToolExecutionError(f"{path}: {os.strerror(number)}")
