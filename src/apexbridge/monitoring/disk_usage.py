"""How much of the disk each part of the data directory occupies, measured in a thread."""

import asyncio
import os
import shutil
from collections import Counter
from contextlib import suppress
from datetime import datetime
from pathlib import Path

from pydantic import Field

from apexbridge._tasks import in_thread
from apexbridge._time import from_ms, now_ms
from apexbridge.disk import BLOCK_BYTES, size_on_disk
from apexbridge.wire import WireModel

CACHE_MS = 10 * 60 * 1000
_PARTS = {
    "skills": "skills",
    "plugins": "skills",
    "versions": "versions",
    "trash": "trash",
    "runs": "runs",
    "workspaces": "workspaces",
    "workspace": "workspaces",
    "uploads": "uploads",
    "layers": "packages",
    "skills.lance": "index",
    "skills.snapshot": "index",
    "skills.snapshot.skill-vectors": "index",
    "skills.snapshot.tool-vectors": "index",
    "skills.snapshot.skill-vectors.next": "index",
    "skills.snapshot.tool-vectors.next": "index",
}
"""Which part an entry of the data directory belongs to."""
_DATABASES = ("apex.sqlite3", "audit.sqlite3")


class DiskPart(WireModel):
    name: str = Field(
        description="skills, versions, trash, runs, workspaces, uploads, packages, index, database, or other."
    )
    bytes: int


class DiskStatus(WireModel):
    data_directory: list[DiskPart] = Field(description="The largest part first; empty before the first measurement.")
    free: int | None = Field(description="Free bytes on the disk of the data directory.")
    total: int | None
    measured_at: datetime | None = Field(description="When the parts were measured; they are kept for ten minutes.")


class DiskUsage:
    def __init__(self, data_dir: Path) -> None:
        self._data_dir = data_dir
        self._parts: list[DiskPart] = []
        self._measured_ms: int | None = None
        self._measuring: asyncio.Task[None] | None = None

    async def status(self, *, wait_seconds: float, is_forced: bool = False) -> DiskStatus:
        """The last measurement. One that is too old is repeated, and waited for up to this time."""
        is_old = self._measured_ms is None or now_ms() - self._measured_ms > CACHE_MS
        if self._measuring is None and (is_old or is_forced):
            self._measuring = asyncio.create_task(self._measure())
        if self._measuring is not None:
            await asyncio.wait([self._measuring], timeout=wait_seconds)
        free = total = None
        with suppress(OSError):
            usage = await in_thread(shutil.disk_usage, self._data_dir)
            free, total = usage.free, usage.total
        measured = from_ms(self._measured_ms) if self._measured_ms is not None else None
        return DiskStatus(data_directory=self._parts, free=free, total=total, measured_at=measured)

    async def close(self) -> None:
        """Wait for a measurement in progress: its thread cannot be interrupted."""
        if self._measuring is not None:
            await asyncio.wait([self._measuring])

    async def _measure(self) -> None:
        try:
            sizes = await in_thread(_sizes, self._data_dir)
            self._parts = [DiskPart(name=name, bytes=size) for name, size in sizes.most_common()]
            self._measured_ms = now_ms()
        finally:
            self._measuring = None


def _sizes(data_dir: Path) -> Counter[str]:
    sizes: Counter[str] = Counter()
    with suppress(OSError), os.scandir(data_dir) as entries:
        for entry in entries:
            part = _PARTS.get(entry.name, "database" if entry.name.startswith(_DATABASES) else "other")
            with suppress(OSError):
                if entry.is_dir(follow_symlinks=False):
                    sizes[part] += size_on_disk(Path(entry.path))
                else:
                    sizes[part] += max(BLOCK_BYTES, entry.stat(follow_symlinks=False).st_blocks * 512)
    return sizes
