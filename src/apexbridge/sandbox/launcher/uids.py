"""Each run of root's server gets a user ID that no other run on this host has, whichever server started it."""

import fcntl
import os
import stat
from collections.abc import Sequence
from contextlib import suppress

FOLDERS = ("/run", "/var/lib")
"""The lock folder is created in the first of these that root can write to, so all servers use the same one."""


class UidPool:
    """Hands out user IDs, if this process is root. An ID is claimed by a lock on a file in a folder of root's.

    The kernel releases a lock when the process that holds it exits or is killed.
    """

    def __init__(self, first: int, count: int, folders: Sequence[str] = FOLDERS) -> None:
        self._uids = range(first, first + count)
        self._folders = folders
        self._locks: dict[int, int] = {}
        self._folder: int | None = None

    def acquire(self) -> int | None:
        """A free user ID; None if this process is not root."""
        if os.getuid() != 0:
            return None
        if self._folder is None:
            self._folder = _open_lock_folder(self._folders)
        for uid in self._uids:
            if uid in self._locks:
                continue
            lock = os.open(str(uid), os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600, dir_fd=self._folder)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                os.close(lock)
                continue
            self._locks[uid] = lock
            return uid
        raise OSError("all user IDs for runs are in use")

    def release(self, uid: int | None) -> None:
        if uid is not None:
            os.close(self._locks.pop(uid))


def _open_lock_folder(folders: Sequence[str]) -> int:
    """The folder `apexbridge/users`, which only root can write to or list."""
    errors: list[OSError] = []
    for folder in folders:
        opened: list[int] = []
        try:
            opened.append(_open_owned_by_root(folder))
            for name in ("apexbridge", "users"):
                with suppress(FileExistsError):
                    os.mkdir(name, 0o700, dir_fd=opened[-1])
                opened.append(_open_owned_by_root(name, opened[-1]))
                os.fchmod(opened[-1], 0o700)
            return opened.pop()
        except OSError as error:
            errors.append(error)
        finally:
            for descriptor in opened:
                os.close(descriptor)
    raise OSError(f"cannot create a lock folder for user IDs below {' or '.join(folders)}: {errors[0]}")


def _open_owned_by_root(name: str, parent: int | None = None) -> int:
    """Open a folder; raises PermissionError if another user owns it or can write to it."""
    folder = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent)
    status = os.fstat(folder)
    if status.st_uid != 0 or status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        os.close(folder)
        raise PermissionError(f"{name} is not owned by root, or others can write to it")
    return folder
