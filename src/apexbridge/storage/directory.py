"""The data directory: used by one process at a time, private to its owner, and errors if it cannot be written."""

import errno
import fcntl
import fnmatch
import logging
import os
import shutil
import sqlite3
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from apexbridge._fs import OTHERS, is_open_to_others, take_from_others
from apexbridge.errors import ServerError
from apexbridge.storage.restore_plan import RESTORE_FOLDER, aside_name, finish_restore

LOCK_FILE = ".lock"
DATABASE_FILE = "apex.sqlite3"
SETTINGS_FILE = "apex.toml"
SERVER_FILE = "server.json"
"""Address of the server that owns the directory."""
ATTEMPTS = 5
PAUSE_SECONDS = 0.02
READ_BY_RUNS = ("skills", "layers")
"""If the server runs as root, each run has its own user, which must be able to read these."""
PRIVATE = (
    RESTORE_FOLDER,
    ".ballast",
    ".lock",
    "server.json*",
    "apex.sqlite3*",
    "audit.sqlite3*",
    "audit*.jsonl*",
    "secrets.json*",
    "skills.lock*",
    "skills.snapshot*",
    "skills.lance*",
    "runs",
    "uploads",
    "workspace",
    "workspaces",
    "answered",
    "staging",
    "trash",
    "versions",
    "published",
    "plugins",
    "markers",
    "hidden.json*",
    "models",
    "models.json*",
)
logger = logging.getLogger(__name__)
_FULL = {errno.ENOSPC, errno.EDQUOT}
_READ_ONLY = {errno.EROFS, errno.EACCES, errno.EPERM}
_SQLITE_FULL = {sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR_WRITE}
_SQLITE_READ_ONLY = {sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN}


def default_data_dir() -> Path:
    """`./data` if it is a data directory or an empty folder, else `$XDG_DATA_HOME/apexbridge`."""
    local = Path("data").absolute()
    if is_data_dir(local) or _is_empty_folder(local):
        return local
    base = Path(os.environ.get("XDG_DATA_HOME", ""))
    if not base.is_absolute():  # unset, or invalid by the XDG specification
        try:
            base = Path.home() / ".local/share"
        except RuntimeError:  # a user without a home, as in many containers
            return local
    return base / "apexbridge"


def is_data_dir(folder: Path) -> bool:
    """Whether a folder was opened as a data directory before."""
    return (folder / DATABASE_FILE).is_file()


def _is_empty_folder(folder: Path) -> bool:
    try:
        return not any(folder.iterdir())
    except OSError:
        return False


@contextmanager
def owned(data_dir: Path) -> Iterator[None]:
    """Own the directory while the block runs; it is created if missing.

    Raises ServerError: DATA_DIR_IN_USE, INVALID_SETTING if it cannot be a folder, or STORAGE_FULL if it cannot be
    written.
    """
    with storage_faults():
        try:
            data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        except (FileExistsError, NotADirectoryError) as error:
            raise ServerError(
                f"{data_dir} is not a folder; name one with --data-dir", code="INVALID_SETTING"
            ) from error
        except FileNotFoundError as error:  # such as below /proc
            raise ServerError(
                f"{data_dir} cannot be created; name another folder with --data-dir", code="INVALID_SETTING"
            ) from error
        descriptor = os.open(data_dir / LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "rb+"):
        _lock(descriptor)
        (data_dir / SERVER_FILE).unlink(missing_ok=True)  # left by a server that was killed
        with storage_faults():
            if finish_restore(data_dir):
                logger.warning("the restore that was interrupted is complete now")
        shutil.rmtree(data_dir / RESTORE_FOLDER, ignore_errors=True)
        yield


def _lock(descriptor: int) -> None:
    """Take the lock. Retries, because `is_owned` of another process holds it for an instant."""
    for attempt in range(ATTEMPTS):
        if attempt:
            time.sleep(PAUSE_SECONDS)
        with suppress(BlockingIOError):
            return fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    raise ServerError(
        "The data directory is in use by another server or command. Use that server, wait, or name another "
        "directory with --data-dir.",
        code="DATA_DIR_IN_USE",
    )


def is_owned(data_dir: Path) -> bool:
    """Whether a process owns the directory now."""
    try:
        with (data_dir / LOCK_FILE).open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


def keep_private(data_dir: Path) -> None:
    """Remove all rights of group and others in the data directory, except in `skills/` and `layers/`.

    Unknown files are not changed. If there are any, neither is the mode of the directory itself.
    """
    with suppress(OSError):
        found = list(data_dir.iterdir())
        private = [path for path in found if any(fnmatch.fnmatchcase(path.name, name) for name in PRIVATE)]
        for path in private:
            if is_open_to_others(path):
                take_from_others(path)
        others = [path.name for path in found if path not in private]
        is_ours_alone = all(name in READ_BY_RUNS or name.startswith(aside_name("")) for name in others)
        mode = stat.S_IMODE(data_dir.stat().st_mode)
        if is_ours_alone and mode & OTHERS and not mode & stat.S_ISVTX:  # a sticky directory is meant to be shared
            data_dir.chmod(mode & ~OTHERS)


@contextmanager
def storage_faults() -> Iterator[None]:
    """Raise STORAGE_FULL (HTTP 507) for errors of a full or read-only disk."""
    try:
        yield
    except (OSError, sqlite3.Error) as error:
        number = error.errno if isinstance(error, OSError) else None
        code = getattr(error, "sqlite_errorcode", 0)
        if number in _FULL or code in _SQLITE_FULL:
            message = "The disk is full; nothing was changed. Free some space and try again."
        elif number in _READ_ONLY or code & 0xFF in _SQLITE_READ_ONLY:
            message = "The data directory cannot be written to; nothing was changed. Check its owner and mode."
        else:
            raise
        raise ServerError(message, code="STORAGE_FULL") from error
