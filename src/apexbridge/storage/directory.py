"""The data directory is used by one process at a time."""

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from apexbridge.errors import ServerError
from apexbridge.storage.faults import storage_faults

LOCK_FILE = ".lock"
SERVER_FILE = "server.json"
"""Address of the server that owns the directory."""
ATTEMPTS = 5
PAUSE_SECONDS = 0.02


@contextmanager
def owned(data_dir: Path) -> Iterator[None]:
    """Own the directory while the block runs; it is created if missing.

    Raises:
        ServerError: DATA_DIR_IN_USE, or STORAGE_FULL if it cannot be written.
    """
    with storage_faults():
        try:
            data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        except (FileExistsError, NotADirectoryError) as error:
            raise ServerError(
                f"{data_dir} is not a folder; name one with --data-dir", code="INVALID_SETTING"
            ) from error
        descriptor = os.open(data_dir / LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            _lock(descriptor)
        except BlockingIOError as error:
            raise ServerError(
                "The data directory is in use by another server or command. Use that server, wait, or name another "
                "directory with --data-dir.",
                code="DATA_DIR_IN_USE",
            ) from error
        (data_dir / SERVER_FILE).unlink(missing_ok=True)  # left by a server that was killed
        yield
    finally:
        os.close(descriptor)


def _lock(descriptor: int) -> None:
    """Take the lock. Retries, because `is_owned` of another process holds it for an instant."""
    for _ in range(ATTEMPTS - 1):
        try:
            return fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            time.sleep(PAUSE_SECONDS)
    return fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)


def is_owned(data_dir: Path) -> bool:
    """Whether a process owns the directory now."""
    try:
        descriptor = os.open(data_dir / LOCK_FILE, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False
