"""Paths from callers: relative, with slashes, never upwards. Errors name these paths, never those of the server."""

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
MAX_NAMES = 256
MAX_SHOWN_CHARACTERS = 200
_FOLDER = "is a folder, not a file; list-files shows what is in it"
_SPECIAL_FILE = "is a pipe, a socket or a device, not a regular file"
_NOT_ALLOWED = "is not accessible to the server itself; see its owner and mode"
_DENIED = {
    errno.EXDEV: "is or passes a link that leads out of the workspace",
    errno.ELOOP: "is or passes a link that is not followed",
    errno.EISDIR: _FOLDER,
    **dict.fromkeys((errno.EACCES, errno.EPERM), _NOT_ALLOWED),
    **dict.fromkeys((errno.ENXIO, errno.ENODEV, errno.EOPNOTSUPP), _SPECIAL_FILE),
}


@dataclass(frozen=True, slots=True)
class RelativePath:
    """A valid path below a folder."""

    parts: tuple[str, ...]
    """Empty for the folder itself."""
    original: str
    """The text from the caller, safe to show in messages."""

    @property
    def text(self) -> str:
        """The path for system calls."""
        return "/".join(self.parts) or "."

    @property
    def name(self) -> str:
        return self.parts[-1]

    def __str__(self) -> str:
        return self.original


def read_path(path: str) -> RelativePath:
    """Parse a path from a caller.

    Raises PermissionDeniedError if it is absolute or leads upwards; InvalidInputError if it is not a valid path.
    """
    if not path:
        raise InvalidInputError("The path is empty; name a file or folder of the workspace")
    if path.startswith("/"):
        raise PermissionDeniedError(f"{shown(path)} is absolute; paths are relative to the workspace")
    parts = tuple(part for part in path.split("/") if part != ".")
    if ".." in parts:
        raise PermissionDeniedError(f"{shown(path)} leads upwards; paths stay inside the workspace, without ..")
    if problem := _problem(path, parts):
        raise InvalidInputError(f"{shown(path)} {problem}")
    return RelativePath(parts, shown(path))


def shown(path: str) -> str:
    """A path for messages: of limited length, without control characters that a terminal would interpret."""
    cut = path if len(path) <= MAX_SHOWN_CHARACTERS else f"{path[:MAX_SHOWN_CHARACTERS]}…"
    return "".join(character if character.isprintable() else "\ufffd" for character in cut)


def _problem(path: str, parts: tuple[str, ...]) -> str | None:
    if "\0" in path:
        return "has a NUL character in it"
    if "\\" in path:
        return "has a backslash in it; folders are separated by /"
    if path.endswith("/"):
        return "ends with a slash; a file's path ends with its name"
    if "" in parts:
        return "has two slashes in a row"
    try:
        name_lengths = [len(part.encode()) for part in parts]
        length = len(os.fsencode(path))
    except UnicodeEncodeError:
        return "is not valid text"
    if length > MAX_PATH_BYTES:
        return f"is longer than {MAX_PATH_BYTES} bytes"
    if len(parts) > MAX_NAMES:
        return f"is deeper than {MAX_NAMES} folders"
    if max(name_lengths, default=0) > MAX_NAME_BYTES:
        return f"has a name in it that is longer than {MAX_NAME_BYTES} bytes"
    return None


@contextmanager
def caller_errors(path: RelativePath) -> Iterator[None]:
    """Convert an OSError in the block to an error for the caller."""
    try:
        yield
    except OSError as error:
        raise _caller_error(error.errno or errno.EIO, path) from error


def check_regular(status: os.stat_result, path: RelativePath) -> None:
    """Raise PermissionDeniedError for everything except regular files."""
    match stat.S_IFMT(status.st_mode):
        case stat.S_IFREG:
            return
        case stat.S_IFDIR:
            raise PermissionDeniedError(f"{path} {_FOLDER}")
        case stat.S_IFLNK:
            raise PermissionDeniedError(f"{path} is a link, not a regular file")
    raise PermissionDeniedError(f"{path} {_SPECIAL_FILE}")


def _caller_error(number: int, path: RelativePath) -> ApexBridgeError:
    if number in _DENIED:
        return PermissionDeniedError(f"{path} {_DENIED[number]}")
    match number:
        case errno.ENOENT | errno.ENOTDIR:
            return RequestError(f"There is no {path}; list-files shows what is there", code="FILE_NOT_FOUND")
        case errno.ENAMETOOLONG:
            return InvalidInputError(f"{path} is too long a name for the file system")
        case errno.ENOSPC | errno.EDQUOT:
            message = f"The disk is full; {path} was not changed. Free some space and try again."
            return ServerError(message, code="STORAGE_FULL")
        case errno.EROFS:
            return ServerError(f"The workspace is on a read-only disk; {path} was not changed.", code="STORAGE_FULL")
        case errno.EAGAIN:
            return ToolExecutionError(f"{path} was moved again and again meanwhile; try again", retryable=True)
    return ToolExecutionError(f"{path}: {os.strerror(number)}")
