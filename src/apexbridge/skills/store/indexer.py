"""Indexes live skills: their words immediately, their vectors once the model has computed them."""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

from apexbridge._tasks import in_thread, wait_up_to
from apexbridge._time import now_ms
from apexbridge.skills.package.fingerprint import sign
from apexbridge.skills.package.skill import Skill, SkillMetadata
from apexbridge.skills.store.catalog import Catalog, FolderKey, Row
from apexbridge.skills.store.library import Library
from apexbridge.skills.store.locks import NameLocks
from apexbridge.skills.store.markers import Marker, marker_path, read_marker, write_marker
from apexbridge.skills.store.roots import FoundFolder
from apexbridge.storage.directory import storage_faults

BATCH = 100
"""Skills per embedding call: large enough for throughput, small enough for a progress bar to move."""
FIRST_PAUSE_SECONDS = 5.0
LONGEST_PAUSE_SECONDS = 40.0

logger = logging.getLogger(__name__)
Progress = Callable[[int, int], None]
"""Called with the number done and the total."""


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexDocument:
    """The searchable data of a skill."""

    metadata: SkillMetadata
    derived_tags: tuple[str, ...] = ()
    body: str
    version: str = ""
    """The content hash; empty if not known yet."""

    @property
    def name(self) -> str:
        """The key in the index."""
        return self.metadata.name

    @property
    def description(self) -> str:
        return self.metadata.description

    @property
    def tags(self) -> tuple[str, ...]:
        return self.metadata.tags

    @property
    def hidden(self) -> bool:
        """Whether the skill is hidden from searches by a model."""
        return self.metadata.disable_model_invocation


class SkillIndex(Protocol):
    """A semantic index of skills."""

    @property
    def embedder(self) -> str:
        """Name of the embedding model. If it changes, every vector is stale."""

    @property
    def dimensions(self) -> int:
        """Length of the vectors."""

    async def embed(self, documents: Sequence[IndexDocument]) -> Sequence[Any]:
        """Vectors of the documents, in order; all None if the model is unavailable. Slow: hold no locks meanwhile."""

    async def upsert(self, documents: Sequence[IndexDocument], vectors: Sequence[Any]) -> None:
        """Add or replace documents. A document without a vector is found by its words only."""

    async def remove(self, names: Collection[str]) -> Any:
        """Remove documents by name."""

    async def missing(self, versions: Mapping[str, str]) -> Collection[str]:
        """The names that the index does not hold in this version."""

    async def retain(self, names: Collection[str]) -> int:
        """Remove all other documents; returns how many were removed."""


class Indexer:
    """Writes the scanner's results to the index. If the model is unavailable, embedding is retried later."""

    def __init__(
        self,
        *,
        catalog: Catalog,
        library: Library,
        index: SkillIndex,
        locks: NameLocks,
        settling: asyncio.Lock,
        folder_of: Callable[[FolderKey], FoundFolder],
        on_indexed: Callable[[Sequence[str]], None],
    ) -> None:
        self._catalog = catalog
        self._library = library
        self._index = index
        self._locks = locks
        self._settling = settling
        self._folder_of = folder_of
        self._on_indexed = on_indexed
        self._pass = asyncio.Lock()
        self._is_pending = asyncio.Event()
        """Set while a live skill lacks its vector."""
        self._changed = asyncio.Event()
        """Ends the pause after a failure."""

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
        return await in_thread(
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
    async def run(self) -> None:
        """Embed pending skills until cancelled. After a failure of the model, retry with back-off."""
        pause = FIRST_PAUSE_SECONDS
        while True:
            await self._is_pending.wait()
            try:
                await self.sync()
            except Exception:
                logger.exception("skills could not be indexed by meaning")
            if self._is_pending.is_set():
                self._changed.clear()
                await wait_up_to(pause, self._changed)
                pause = min(pause * 2, LONGEST_PAUSE_SECONDS)
            else:
                pause = FIRST_PAUSE_SECONDS

    async def sync(self, progress: Progress | None = None, *, names: Collection[str] | None = None) -> int:
        """Embed live skills that lack a vector, and return how many were embedded.

        With `names`, embed only these and do not wait for another pass.
        """
        if names is not None:
            return await self._sync(progress, names)
        async with self.exclusive() as sync:
            return await sync(progress)

    @asynccontextmanager
    async def exclusive(self) -> AsyncIterator[Callable[[Progress | None], Awaitable[int]]]:
        """Exclude other passes while the block runs; yields the function that embeds pending skills."""
        async with self._pass:
            yield self._sync

    async def _sync(self, progress: Progress | None, names: Collection[str] | None = None) -> int:
        if names is None:
            self._is_pending.clear()  # before reading the catalog: skills added meanwhile set it again
        keys = [
            key
            for key, row in (await self._catalog.states()).items()
            if row.state == "live" and row.embedder != self.signature and (names is None or row.name in names)
        ]
        done = 0
        for start in range(0, len(keys), BATCH):
            count = await self._embed(await self._catalog.at(keys[start : start + BATCH]))
            if count is None:
                self.mark_pending()
                break
            done += count
            if progress:
                progress(min(start + BATCH, len(keys)), len(keys))
        return done

    def mark_pending(self) -> None:
        """Note that a live skill lacks its vector, and wake `run`."""
        self._is_pending.set()
        self._changed.set()

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
        async with self._locks.hold(*(row.name for row in rows)), self._settling:
            now = await self._catalog.at(known.keys())
            same = [
                (row, vector)
                for row, vector in zip(rows, vectors, strict=True)
                if (current := now.get(row.key)) is not None
                and (current.state, current.content_hash) == (row.state, row.content_hash)
            ]
            await self._index.upsert([_document(row) for row, _ in same], [vector for _, vector in same])
            with storage_faults():
                marked = await in_thread(lambda: [self._mark(now[row.key]) for row, _ in same])
                await self._catalog.save(marked)
        self._on_indexed([row.name for row, _ in same])
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
            write_marker(path, marker, beside=self._library.draft_folder(path))
        except OSError as error:
            logger.warning("the marker of %s cannot be written: %s", row.name, error.strerror)
        return replace(row, embedder=self.signature, marker=self.marker_signature(found))

    def _marker_path(self, found: FoundFolder) -> Path:
        writable = found.root.is_writable(found.path)
        return marker_path(found.path, outside=self._library.markers, root_key=found.root.key, writable=writable)


def _document(row: Row) -> IndexDocument:
    return IndexDocument(metadata=row.metadata, derived_tags=row.derived_tags, body=row.body, version=row.content_hash)
