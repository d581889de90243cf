"""Converts OS errors about files to errors that name the caller's path, never the server's."""

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager

from apexbridge.errors import (
    ApexBridgeError,
    InvalidInputError,
    PermissionDeniedError,
    RequestError,
    ServerError,
    ToolExecutionError,
)
from apexbridge.tools.builtin.files.paths import RelativePath

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
