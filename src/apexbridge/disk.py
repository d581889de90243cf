"""Disk space: a reserve that only administration may use, and a quota for each API key.

Writes for callers claim their space first. Claims count immediately, so two writers cannot both take the last space.
The usage of a key is measured when the key first writes, and updated from then on.
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

from apexbridge._usage import ResourceUsage
from apexbridge.errors import ServerError

MB = 1024 * 1024
RESERVE_BYTES = 256 * MB
"""Free space for the database, the audit log and administration."""
RESERVE_FILES = 4096
"""Free inodes for the same, on file systems with a fixed number of them."""
BLOCK_BYTES = 4096
BALLAST_BYTES = 8 * MB
MEASURE_AGAIN_SECONDS = 60.0
SMALL_BYTES = 64 * 1024
"""A write that frees space may temporarily use this much of the reserve."""

T = TypeVar("T")


class Disk:
    """Counts what callers write. Thread-safe."""

    def __init__(
        self,
        folder: Path,
        *,
        quota_of: Callable[[str], int] = lambda _: 0,
        measure: Callable[[str], int] = lambda _: 0,
    ) -> None:
        """`folder` is the data directory; `quota_of` returns the bytes that a key may use, 0 for any number; `measure`
        returns the bytes of a key on disk."""
        self.ballast = Ballast(folder / ".ballast")
        self._folder = folder
        self._quota_of = quota_of
        self._measure = measure
        self._used: Counter[str] = Counter()
        self._measured: dict[str, float] = {}
        """Time at which each caller was measured."""
        self._refused: set[str] = set()
        """Callers that exceeded their quota. They are measured again later, because files may be removed by hand."""
        self._open: Counter[str] = Counter()
        """Number of open claims by caller."""
        self._pending = 0
        """Bytes that are claimed and not written yet."""
        self._lock = threading.RLock()
        self._measuring = threading.Lock()

    @property
    def is_short(self) -> bool:
        """Whether only the reserve is left, which is for administration."""
        return _available_bytes(self._folder) <= 0

    def is_measured(self, caller: str) -> bool:
        """Whether a caller's usage is known, so that no files have to be scanned."""
        if not caller:
            return True
        if caller in self._refused and not self._open[caller]:  # a scan would miscount open claims
            return time.monotonic() - self._measured[caller] <= MEASURE_AGAIN_SECONDS
        return caller in self._measured

    def used_by(self, caller: str) -> int:
        """Bytes that a key uses on the disk, including claims; 0 for callers without a key."""
        if not self.is_measured(caller):
            with self._measuring:
                if not self.is_measured(caller):
                    size = self._measure(caller)
                    with self._lock:
                        self._used[caller] = size
                        self._measured[caller] = time.monotonic()
                        self._refused.discard(caller)
        return self._used[caller]

    @contextmanager
    def claim(self, caller: str, folder: Path | None = None) -> Iterator["Claim"]:
        """A claim for writes below `folder`. The end of the block releases it, except for what was kept."""
        self.used_by(caller)
        claim = Claim(self, caller, folder or self._folder)
        with self._lock:
            self._open[caller] += 1
        try:
            yield claim
        finally:
            claim.give_back()
            with self._lock:
                self._open[caller] -= 1

    def usage(self, caller: str) -> ResourceUsage:
        limit = self._quota_of(caller) if caller else 0
        return ResourceUsage(resource="disk", used=self.used_by(caller), limit=limit or None, unit="bytes")

    def check(self, caller: str) -> None:
        """Raise STORAGE_FULL if the caller's quota is used up."""
        used, quota = self.used_by(caller), self._quota_of(caller) if caller else 0
        if quota and used >= quota:
            raise self._over_quota(caller, quota)

    def add(self, caller: str, size: int) -> None:
        """Count bytes that a caller wrote under a claim that has ended."""
        if caller in self._measured:
            with self._lock:
                self._used[caller] = max(0, self._used[caller] + size)

    def release(self, caller: str, size: int) -> None:
        self.add(caller, -size)

    def _count(self, caller: str, *, pending: int, used: int) -> None:
        with self._lock:
            self._pending += pending
            if caller:
                self._used[caller] = max(0, self._used[caller] + used)

    def _over_quota(self, caller: str, quota: int) -> ServerError:
        self._refused.add(caller)
        return ServerError(
            f"The API key {caller} has {-(-self._used[caller] // MB)} MB of at most {quota // MB} MB on the "
            "server's disk. Nothing was written. Delete runs that are no longer needed (DELETE /api/executions/ID) or "
            "write an empty text to large files. The operator can remove files below workspace/keys/ and raise "
            "the quota of the key (apex keys change). What was removed by hand counts after a minute.",
            code="STORAGE_FULL",
        )


class Claim:
    """Disk space for one write."""

    def __init__(self, disk: Disk, caller: str, folder: Path) -> None:
        self._disk = disk
        self._caller = caller
        self._folder = folder
        self._pending = self._unkept = 0

    def take(self, size: int, *, replaces: int = 0) -> None:
        """Claim `size` bytes, which will replace `replaces` bytes. Raises STORAGE_FULL."""
        self._take(size, at_least=size, grows_by=size - replaces)

    def take_up_to(self, size: int) -> int:
        """Returns how many bytes were granted."""
        return self._take(size, at_least=0, grows_by=size)

    def _take(self, size: int, *, at_least: int, grows_by: int) -> int:
        disk, caller, granted = self._disk, self._caller, size
        with disk._lock:
            if grows_by > 0 or size > SMALL_BYTES:
                granted = min(granted, max(0, _available_bytes(self._folder) - disk._pending))
                if granted < at_least:
                    raise ServerError(
                        f"The server's disk has less than {RESERVE_BYTES // MB} MB free, which it keeps for itself. "
                        "Nothing was written. Delete runs that are no longer needed, or free some space on the server.",
                        code="STORAGE_FULL",
                    )
            # Callers without a key have no quota: they own the server, or are on its machine and may administer it.
            quota = disk._quota_of(caller) if caller else 0
            if quota and grows_by > 0:
                granted = min(granted, max(0, quota - disk._used[caller] + size - grows_by))
                if granted < at_least:
                    raise disk._over_quota(caller, quota)
            disk._count(caller, pending=granted, used=granted)
        self._pending += granted
        self._unkept += granted
        return granted

    def wrote(self) -> None:
        """The claimed bytes are on the disk now: the kernel counts them as used."""
        self._disk._count(self._caller, pending=-self._pending, used=0)
        self._pending = 0

    def keep(self, size: int, *, replaced: int = 0) -> None:
        """Keep `size` bytes of the claim on the disk; `replaced` bytes were removed for them."""
        self._unkept -= size
        self._disk._count(self._caller, pending=0, used=-replaced)

    def give_back(self) -> None:
        """End the claim and release what was not kept."""
        self._disk._count(self._caller, pending=-self._pending, used=-self._unkept)
        self._pending = self._unkept = 0


class Ballast:
    """A file that occupies space. It is deleted when an administrative operation finds the disk full."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.is_released = False
        """Whether the file was deleted and not created again yet."""

    def fill(self) -> None:
        """Create the file again, if there is enough free space."""
        with suppress(OSError):
            if self._size() < BALLAST_BYTES:
                status = os.statvfs(self._path.parent)
                if status.f_bavail * status.f_frsize < 4 * BALLAST_BYTES:
                    return
                descriptor = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
                with os.fdopen(descriptor, "wb"):
                    os.posix_fallocate(descriptor, 0, BALLAST_BYTES)
            self.is_released = False

    async def give_way(self, act: Callable[[], Awaitable[T]]) -> T:
        """Run an operation that must work on a full disk too: on an error, delete the ballast and try once more."""
        try:
            return await act()
        except (OSError, sqlite3.Error):
            if not self.release():
                raise
            return await act()

    def release(self) -> bool:
        """Delete the file; returns whether that freed space."""
        self.is_released = True
        size = self._size()
        with suppress(OSError):
            self._path.unlink()
            return size > 0
        return False

    def _size(self) -> int:
        try:
            return self._path.stat(follow_symlinks=False).st_blocks * 512
        except OSError:
            return 0


def blocks(size: int) -> int:
    """Bytes that a file of this size occupies; an empty file counts as one block."""
    return max(1, -(-size // BLOCK_BYTES)) * BLOCK_BYTES


def size_on_disk(folder: Path) -> int:
    """Bytes that a folder and its contents occupy. Symlinks are not followed."""
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


def _available_bytes(folder: Path) -> int:
    """Free bytes above the reserve, where the folder is or will be created; 0 if too few inodes are free."""
    try:
        status = os.statvfs(folder)
    except FileNotFoundError:
        return _available_bytes(folder.parent)
    except OSError:
        return 1 << 62  # unknown: the write itself will fail if the disk is full
    if status.f_files and status.f_favail < min(RESERVE_FILES, status.f_files // 10):
        return 0
    return max(0, status.f_bavail * status.f_frsize - RESERVE_BYTES)
