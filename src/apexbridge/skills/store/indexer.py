"""Indexes live skills: their words immediately, their vectors once the model has computed them."""

import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread

from apexbridge._time import now_ms
from apexbridge.skills.models import Skill
from apexbridge.skills.package.fingerprint import sign
from apexbridge.skills.ports import IndexDocument, SkillIndex
from apexbridge.skills.store.catalog import Catalog, FolderKey, Row
from apexbridge.skills.store.library import Library
from apexbridge.skills.store.locks import NameLocks
from apexbridge.skills.store.marker import Marker, marker_path, read_marker, write_marker
from apexbridge.skills.store.roots import FoundFolder
from apexbridge.storage.directory import storage_faults

BATCH = 100
"""Skills per embedding call: large enough for throughput, small enough for a progress bar to move."""
FIRST_PAUSE_SECONDS = 5.0
LONGEST_PAUSE_SECONDS = 40.0

logger = logging.getLogger(__name__)
Progress = Callable[[int, int], None]
"""Called with the number done and the total."""


class Indexer:
    """Writes the scanner's results to the index. If the model is unavailable, embedding is retried later."""

    def __init__(
        self,
        *,
        catalog: Catalog,
        library: Library,
        index: SkillIndex,
        locks: NameLocks,
        turn: anyio.Lock,
        folder_of: Callable[[FolderKey], FoundFolder],
    ) -> None:
        self._catalog = catalog
        self._library = library
        self._index = index
        self._locks = locks
        self._turn = turn
        self._folder_of = folder_of
        self._catching_up = anyio.Lock()
        self._is_owed = False
        """Whether a live skill lacks its vector."""
        self._owed = anyio.Event()

    @property
    def signature(self) -> str:
        """Identifies the current model. Vectors of any other model are stale."""
        return f"{self._index.embedder}/{self._index.dimensions}"

    # ----------------------------------------------------------------------------------------------- immediate
    async def put(self, rows: Sequence[Row], prepared: Mapping[str, Any]) -> dict[FolderKey, Row]:
        """Index these rows: with the prepared vector if there is one, else by words until a vector is computed."""
        if not rows:
            return {}
        vectors = [prepared.get(row.name) for row in rows]
        try:
            await self._index.upsert([_document(row) for row in rows], vectors)
        except Exception:
            logger.exception("%d skills could not be indexed; they stay usable by name", len(rows))
            vectors = [None] * len(rows)
        both = list(zip(rows, vectors, strict=True))
        return await anyio.to_thread.run_sync(
            lambda: {
                row.key: replace(row, embedder=None) if vector is None else self._mark(row) for row, vector in both
            }
        )

    async def missing(self, versions: Mapping[str, str]) -> set[str]:
        """The names that the index does not hold with this content hash."""
        try:
            return set(await self._index.missing(versions))
        except Exception:
            logger.exception("the index cannot say what it holds")
            return set()

    async def forget(self, names: Collection[str]) -> None:
        """Remove skills from the index. If that fails, stale vectors remain until the next start."""
        if names:
            try:
                await self._index.remove(names)
            except Exception:
                logger.exception("%d skills could not be removed from the index", len(names))

    async def retain(self, names: Collection[str]) -> int:
        """Remove all other skills from the index; returns how many were removed."""
        try:
            return await self._index.retain(names)
        except Exception:
            logger.exception("the index could not be cleared of skills that are gone")
            return 0

    # -------------------------------------------------------------------------------------------- background
    async def keep_up(self) -> None:
        """Embed pending skills until cancelled. After a failure of the model, retry with back-off."""
        pause = FIRST_PAUSE_SECONDS
        while True:
            if not self._is_owed:
                await self._owed.wait()
            try:
                await self.catch_up()
            except Exception:
                logger.exception("skills could not be indexed by meaning")
            if self._is_owed:
                with anyio.move_on_after(pause):
                    await self._owed.wait()
                pause = min(pause * 2, LONGEST_PAUSE_SECONDS)
            else:
                pause = FIRST_PAUSE_SECONDS

    async def catch_up(self, progress: Progress | None = None, *, names: Collection[str] | None = None) -> int:
        """Embed live skills that lack a vector, and return how many were embedded.

        With `names`, embed only these and do not wait for another pass.
        """
        if names is not None:
            return await self._catch_up(progress, names)
        async with self.alone() as catch_up:
            return await catch_up(progress)

    @asynccontextmanager
    async def alone(self) -> AsyncIterator[Callable[[Progress | None], Awaitable[int]]]:
        """Exclude other passes while the block runs; yields the function that embeds pending skills."""
        async with self._catching_up:
            yield self._catch_up

    async def _catch_up(self, progress: Progress | None, names: Collection[str] | None = None) -> int:
        if names is None:
            self._is_owed = False  # before reading the catalog: skills added meanwhile set it again
        keys = [
            key
            for key, row in (await self._catalog.glance()).items()
            if row.state == "live" and row.embedder != self.signature and (names is None or row.name in names)
        ]
        done = 0
        for start in range(0, len(keys), BATCH):
            count = await self._embed(await self._catalog.at(keys[start : start + BATCH]))
            if count is None:
                self.owe()
                break
            done += count
            if progress:
                progress(min(start + BATCH, len(keys)), len(keys))
        return done

    def owe(self) -> None:
        """Mark that a live skill lacks its vector, and wake `keep_up`."""
        self._is_owed = True
        self._owed.set()
        self._owed = anyio.Event()

    async def _embed(self, known: Mapping[FolderKey, Row]) -> int | None:
        """The number of rows indexed; None if the model fails. No lock is held while the model computes."""
        rows = [row for row in known.values() if row.state == "live"]
        try:
            vectors = await self._index.embed([_document(row) for row in rows])
        except Exception:
            logger.exception("%d skills could not be indexed; they stay usable by name", len(rows))
            return None
        if any(vector is None for vector in vectors):
            return None
        async with self._locks.hold(*(row.name for row in rows)), self._turn:
            now = await self._catalog.at(known.keys())
            same = [
                (row, vector)
                for row, vector in zip(rows, vectors, strict=True)
                if (current := now.get(row.key)) is not None
                and (current.state, current.content_hash) == (row.state, row.content_hash)
            ]
            await self._index.upsert([_document(row) for row, _ in same], [vector for _, vector in same])
            with storage_faults():
                marked = await anyio.to_thread.run_sync(lambda: [self._mark(now[row.key]) for row, _ in same])
                await self._catalog.save(marked)
        return len(same)

    # ------------------------------------------------------------------------------------------------- markers
    def marker(self, found: FoundFolder) -> Marker | None:
        """The folder's marker, which is outside the folder if that is read-only; None if missing."""
        return read_marker(self._marker_path(found))

    def holds(self, marker: Marker | None, skill: Skill) -> bool:
        """Whether the marker matches this content and the current model."""
        return marker is not None and marker.matches(
            size=skill.size,
            content_hash=skill.content_hash,
            embedder=self._index.embedder,
            dimensions=self._index.dimensions,
        )

    def marker_signature(self, found: FoundFolder) -> str:
        """Signature of the marker file from `stat`; empty if there is no marker."""
        try:
            return sign(self._marker_path(found).stat())
        except OSError:
            return ""

    def _mark(self, row: Row) -> Row:
        found = self._folder_of(row.key)
        marker = Marker(
            indexed_at=now_ms(),
            skill_size=row.size,
            skill_hash=row.content_hash,
            embedder=self._index.embedder,
            dimensions=self._index.dimensions,
        )
        try:
            path = self._marker_path(found)
            write_marker(path, marker, beside=self._library.place_beside(path))
        except OSError as error:
            logger.warning("the marker of %s cannot be written: %s", row.name, error.strerror)
        return replace(row, embedder=self.signature, marker=self.marker_signature(found))

    def _marker_path(self, found: FoundFolder) -> Path:
        writable = found.root.is_writable(found.path)
        return marker_path(found.path, outside=self._library.markers, root_key=found.root.key, writable=writable)


def _document(row: Row) -> IndexDocument:
    return IndexDocument(
        metadata=row.metadata, derived_tags=row.derived_tags, summary=row.summary, version=row.content_hash
    )
