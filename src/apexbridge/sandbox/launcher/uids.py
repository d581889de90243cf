"""Users for runs: each has one of its own while it lasts, whichever server of this host started it."""

import fcntl
import os
import stat
from collections.abc import Sequence
from contextlib import suppress

FOLDERS = ("/run", "/var/lib")
"""Where the folder of locks is made: the first of these that root can write to, so that all servers take the same."""
_OPEN_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_OPEN_LOCK = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC


class Users:
    """Gives out user numbers; only root can. A number is claimed by a lock on a file in a folder of root's.

    The kernel releases a lock when the process that holds it ends, however it ends.
    """

    def __init__(self, first: int, count: int, folders: Sequence[str] = FOLDERS) -> None:
        self._numbers = range(first, first + count)
        self._folders = folders
        self._taken: dict[int, int] = {}
        self._locks: int | None = None

    def take(self) -> int | None:
        """A number that nobody else has; None where this process cannot become another user.

        Raises:
            OSError: every number is taken, or there is no safe place for the locks.
        """
        if os.getuid() != 0:
            return None
        if self._locks is None:
            self._locks = _open_locks(self._folders)
        for number in self._numbers:
            if number in self._taken:
                continue
            claim = os.open(str(number), _OPEN_LOCK, 0o600, dir_fd=self._locks)
            try:
                fcntl.flock(claim, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                os.close(claim)
                continue
            self._taken[number] = claim
            return number
        raise OSError("no user is left for another run")

    def give_back(self, number: int | None) -> None:
        """Nothing runs as this user any more."""
        if number is not None:
            os.close(self._taken.pop(number))


def _open_locks(folders: Sequence[str]) -> int:
    """The folder `apexbridge/users`, which only root can write to or list."""
    refused: OSError | None = None
    for folder in folders:
        try:
            above = os.open(folder, _OPEN_FOLDER)
            try:
                _refuse_others(above, folder)
                own = _made(above, "apexbridge")
            finally:
                os.close(above)
            try:
                return _made(own, "users")
            finally:
                os.close(own)
        except OSError as error:
            refused = refused or error
    raise OSError(f"no folder for the users of runs can be made below {' or '.join(folders)}: {refused}")


def _made(above: int, name: str) -> int:
    """Open a folder, made if missing."""
    with suppress(FileExistsError):
        os.mkdir(name, 0o700, dir_fd=above)
    folder = os.open(name, _OPEN_FOLDER, dir_fd=above)
    try:
        _refuse_others(folder, name)
        os.fchmod(folder, 0o700)
    except OSError:
        os.close(folder)
        raise
    return folder


def _refuse_others(folder: int, name: str) -> None:
    """Fail if another user owns the folder or can write to it."""
    found = os.fstat(folder)
    if found.st_uid != 0 or found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise PermissionError(f"{name} does not belong to root alone")
