"""Errors of a full or read-only disk, distinguished from bugs."""

import errno
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager

from apexbridge.errors import ServerError

_FULL = {errno.ENOSPC, errno.EDQUOT}
_READ_ONLY = {errno.EROFS, errno.EACCES, errno.EPERM}
_SQLITE_FULL = {sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR_WRITE}
_SQLITE_READ_ONLY = {sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN}


@contextmanager
def storage_faults() -> Iterator[None]:
    """Raise STORAGE_FULL (HTTP 507) for errors of a full or read-only disk."""
    try:
        yield
    except OSError as error:
        if error.errno in _FULL:
            raise _full() from error
        if error.errno in _READ_ONLY:
            raise _read_only() from error
        raise
    except sqlite3.Error as error:
        code = getattr(error, "sqlite_errorcode", 0)
        if code in _SQLITE_FULL:
            raise _full() from error
        if code & 0xFF in _SQLITE_READ_ONLY:
            raise _read_only() from error
        raise


def _full() -> ServerError:
    return ServerError("The disk is full; nothing was changed. Free some space and try again.", code="STORAGE_FULL")


def _read_only() -> ServerError:
    return ServerError(
        "The data directory cannot be written to; nothing was changed. Check its owner and mode.", code="STORAGE_FULL"
    )
