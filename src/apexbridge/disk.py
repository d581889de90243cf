"""Room on the disk: a reserve that only administration may use, and a quota for each API key.

What is written for callers is claimed first. Claims count at once, so two writers cannot both take the last room.
What a key has on the disk is measured when the key first writes, and kept up to date from then on.
"""

import os
import sqlite3
import threading
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TypeVar

from apexbridge.errors import ServerError

MB = 1024 * 1024
RESERVE_BYTES = 256 * MB
"""Free space that stays for the database, the audit log and administration."""
RESERVE_FILES = 4096
"""Free file entries that stay, on file systems that have a fixed number."""
BLOCK_BYTES = 4096
BALLAST_BYTES = 8 * MB
BALLAST_FILE = ".ballast"
MEASURE_AGAIN_SECONDS = 60.0
SMALL_BYTES = 64 * 1024
"""A write that frees room may need this much of the reserve for a moment."""
_UNKNOWN = 1 << 62
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC

T = TypeVar("T")
Measure = Callable[[str], int]
"""How many bytes a caller has on the disk."""


class Disk:
    """Counts what callers write. Safe to use from several threads."""

    def __init__(self, folder: Path, *, quota_bytes: int = 0, measure: Measure = lambda _: 0) -> None:
        """`folder` is the data directory; a quota of 0 is none."""
        self.ballast = Ballast(folder / BALLAST_FILE)
        self._folder = folder
        self._quota = quota_bytes
        self._measure = measure
        self._used: Counter[str] = Counter()
        self._measured: dict[str, float] = {}
        """When each caller was measured."""
        self._refused: set[str] = set()
        """Callers that were over their quota: measured again after a while, as files may be removed by hand."""
        self._open: Counter[str] = Counter()
        """Claims of each caller that are not over."""
        self._pending = 0
        """Claimed and not written yet."""
        self._lock = threading.Lock()
        self._measuring = threading.Lock()

    @property
    def is_short(self) -> bool:
        """Whether only administration should write."""
        return _room(self._folder) <= 0

    def is_measured(self, caller: str) -> bool:
        """Whether it is known what a caller has on the disk, so that nothing has to be read for it."""
        return not self._is_counted(caller) or (caller in self._measured and not self._is_stale(caller))

    def used_by(self, caller: str) -> int:
        """Bytes that a key has on the disk, claims included; 0 without a quota."""
        if not self._is_counted(caller):
            return 0
        self._measure_once(caller)
        return self._used[caller]

    @contextmanager
    def claim(self, caller: str, folder: Path | None = None) -> Iterator["Claim"]:
        """A claim below `folder`. It is given back at the end of the block, except for what was kept."""
        if self._is_counted(caller):
            self._measure_once(caller)
        claim = Claim(self, caller, folder or self._folder)
        with self._lock:
            self._open[caller] += 1
        try:
            yield claim
        finally:
            claim.give_back()
            with self._lock:
                self._open[caller] -= 1
                if not self._open[caller]:
                    del self._open[caller]

    def check(self, caller: str) -> None:
        """Refuse a caller whose quota is used up.

        Raises:
            ServerError: STORAGE_FULL.
        """
        if self._is_counted(caller) and self.used_by(caller) >= self._quota:
            raise self._over_quota(caller)

    def add(self, caller: str, size: int) -> None:
        """Something of a caller's was written under a claim that is over."""
        if self._is_counted(caller):
            with self._lock:
                if caller in self._measured:
                    self._used[caller] += size

    def release(self, caller: str, size: int) -> None:
        """Something of a caller's was removed."""
        if size and self._is_counted(caller):
            with self._lock:
                if caller in self._measured:
                    self._used[caller] = max(0, self._used[caller] - size)

    def _take(self, caller: str, folder: Path, size: int, *, at_least: int, grows_by: int) -> int:
        """Claim up to `size` bytes; returns how many.

        Raises:
            ServerError: STORAGE_FULL, if there is no room for `at_least`.
        """
        with self._lock:
            granted = size
            if grows_by > 0 or size > SMALL_BYTES:
                granted = min(granted, max(0, _room(folder) - self._pending))
                if granted < at_least:
                    raise _short()
            if self._is_counted(caller) and grows_by > 0:
                granted = min(granted, max(0, self._quota - self._used[caller] + size - grows_by))
                if granted < at_least:
                    raise self._over_quota(caller)
            self._pending += granted
            if self._is_counted(caller):
                self._used[caller] += granted
            return granted

    def _settle(self, caller: str, *, pending: int, used: int) -> None:
        with self._lock:
            self._pending -= pending
            if self._is_counted(caller):
                self._used[caller] = max(0, self._used[caller] - used)

    def _is_counted(self, caller: str) -> bool:
        """Callers without a key have no quota: they own the server, or are on its machine and may administer it."""
        return bool(caller and self._quota)

    def _is_stale(self, caller: str) -> bool:
        """Whether a caller was refused and should be measured again. Open claims would be counted twice, or not."""
        if caller not in self._refused or self._open[caller]:
            return False
        return time.monotonic() - self._measured.get(caller, 0.0) > MEASURE_AGAIN_SECONDS

    def _measure_once(self, caller: str) -> None:
        if self.is_measured(caller):
            return
        with self._measuring:
            if not self.is_measured(caller):
                size = self._measure(caller)
                with self._lock:
                    self._used[caller] = size
                    self._measured[caller] = time.monotonic()
                    self._refused.discard(caller)

    def _over_quota(self, caller: str) -> ServerError:
        self._refused.add(caller)
        return ServerError(
            f"The API key {caller} has {-(-self._used[caller] // MB)} MB of at most {self._quota // MB} MB on the "
            "server's disk. Nothing was written. Delete runs that are no longer needed (DELETE /api/executions/ID) or "
            "write an empty text to large files. The operator can remove files below workspace/keys/ and raise "
            "APEX_KEY_QUOTA_MB. What was removed by hand counts after a minute.",
            code="STORAGE_FULL",
        )


class Claim:
    """Room for one write."""

    def __init__(self, disk: Disk, caller: str, folder: Path) -> None:
        self._disk = disk
        self._caller = caller
        self._folder = folder
        self._pending = 0
        self._unkept = 0

    def take(self, size: int, *, replaces: int = 0) -> None:
        """Claim room for `size` bytes, which will take the place of `replaces` bytes.

        Raises:
            ServerError: STORAGE_FULL.
        """
        self._disk._take(self._caller, self._folder, size, at_least=size, grows_by=size - replaces)
        self._pending += size
        self._unkept += size

    def take_up_to(self, size: int) -> int:
        """Claim as much as there is room for; returns how much that is."""
        granted = self._disk._take(self._caller, self._folder, size, at_least=0, grows_by=size)
        self._pending += granted
        self._unkept += granted
        return granted

    def wrote(self) -> None:
        """What was claimed is on the disk now, where the kernel counts it."""
        self._disk._settle(self._caller, pending=self._pending, used=0)
        self._pending = 0

    def keep(self, size: int, *, replaced: int = 0) -> None:
        """So much of the claim stays on the disk, and so much was removed for it."""
        self._unkept -= size
        self._disk._settle(self._caller, pending=0, used=replaced)

    def give_back(self) -> None:
        """End the claim."""
        self._disk._settle(self._caller, pending=self._pending, used=self._unkept)
        self._pending = self._unkept = 0


class Ballast:
    """A file that takes up room until an administrative act finds the disk full."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.is_released = False
        """Whether the room was given away and not taken back yet."""

    def fill(self) -> None:
        """Take the room again, if there is enough."""
        try:
            if self._path.stat(follow_symlinks=False).st_blocks * 512 >= BALLAST_BYTES:
                self.is_released = False
                return
        except OSError:
            pass
        with suppress(OSError):
            if _free_bytes(self._path.parent) < 4 * BALLAST_BYTES:
                return
            descriptor = os.open(self._path, _CREATE, 0o600)
            try:
                os.posix_fallocate(descriptor, 0, BALLAST_BYTES)
                self.is_released = False
            finally:
                os.close(descriptor)

    async def give_way(self, act: Callable[[], Awaitable[T]]) -> T:
        """Do something that must work on a full disk too: if it finds no room, it gets that of the ballast."""
        try:
            return await act()
        except (OSError, sqlite3.Error):
            if not self.release():
                raise
            return await act()

    def release(self) -> bool:
        """Give the room away; returns whether there was any."""
        self.is_released = True
        try:
            had_room = self._path.stat(follow_symlinks=False).st_blocks > 0
            self._path.unlink()
        except OSError:
            return False
        return had_room


def blocks(size: int) -> int:
    """What a file of this size takes on the disk; an empty one takes an entry."""
    return max(1, -(-size // BLOCK_BYTES)) * BLOCK_BYTES


def size_on_disk(folder: Path) -> int:
    """What a folder takes with everything in it. Links are not followed."""
    total, folders = 0, [str(folder)]
    while folders:
        with suppress(OSError), os.scandir(folders.pop()) as entries:
            total += BLOCK_BYTES
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    folders.append(entry.path)
                else:
                    total += max(BLOCK_BYTES, entry.stat(follow_symlinks=False).st_blocks * 512)
    return total


def _room(folder: Path) -> int:
    """Free bytes above the reserve; nothing if too few file entries are free."""
    try:
        found = _statvfs(folder)
    except OSError:
        return _UNKNOWN  # the write itself will show it
    if found.f_files and found.f_favail < min(RESERVE_FILES, found.f_files // 10):
        return 0
    return max(0, found.f_bavail * found.f_frsize - RESERVE_BYTES)


def _free_bytes(folder: Path) -> int:
    found = os.statvfs(folder)
    return found.f_bavail * found.f_frsize


def _statvfs(folder: Path) -> os.statvfs_result:
    """Of the file system that a folder is on, or will be on once it exists."""
    while True:
        try:
            return os.statvfs(folder)
        except FileNotFoundError:
            if folder == folder.parent:
                raise
            folder = folder.parent


def _short() -> ServerError:
    return ServerError(
        f"The server's disk has less than {RESERVE_BYTES // MB} MB free, which it keeps for itself. Nothing was "
        "written. Delete runs that are no longer needed, or free some space on the server.",
        code="STORAGE_FULL",
    )
