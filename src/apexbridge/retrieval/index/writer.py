"""Writes the in-memory index to LanceDB: group commits, retries, repair, and a snapshot for a quick start."""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from apexbridge._tasks import run_to_completion, wait_up_to
from apexbridge.retrieval.documents import Document
from apexbridge.retrieval.embedders.embedder import Embedder
from apexbridge.retrieval.embedders.model import Floats
from apexbridge.retrieval.index.lance_store import SKILLS, USAGE, Contents, LanceStore, StoreError
from apexbridge.retrieval.index.snapshot import Snapshot, write_snapshot
from apexbridge.retrieval.index.vector_index import EXACT_LIMIT
from apexbridge.retrieval.usage import UsagePair

GROUP_SECONDS = 0.05
"""Changes that arrive this close together become one commit."""
CHECK_SECONDS = 2.0
"""How often to check that the store on disk was not removed or changed."""
FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 1.0, 30.0
"""Between attempts to write after a failure."""
COMMITS_BEFORE_OPTIMIZE, ROWS_PER_COMMIT = 30, 500
"""Commits until a table is optimized: the first, or one for each of these rows."""
SNAPSHOT_AFTER_SECONDS, SNAPSHOT_SECONDS_PER_SKILL = 2.0, 0.0002
"""Time without changes until a snapshot is written. Without one, a start reads the changed skills from the tables."""

logger = logging.getLogger(__name__)


@dataclass(slots=True, kw_only=True)
class Changes:
    """Changes of the index that are not on disk yet."""

    skills: dict[str, tuple[Document, Floats] | None] = field(default_factory=dict)
    """By name; None deletes the skill, but not its past use."""
    pairs: dict[str, tuple[UsagePair, Floats] | None] = field(default_factory=dict)
    """By key; None deletes the row. LanceDB keeps deleted rows in its files for a while; see `erase_pairs`."""
    erase_pairs: bool = False
    """Whether pairs that are not in memory must be removed from every file, old table versions too."""
    rewrite: bool = False
    """Whether to write everything again from memory."""

    def __bool__(self) -> bool:
        return bool(self.skills or self.pairs or self.erase_pairs or self.rewrite)

    def add(self, later: "Changes") -> None:
        self.skills |= later.skills
        self.pairs |= later.pairs
        self.erase_pairs |= later.erase_pairs
        self.rewrite |= later.rewrite


class IndexWriter:
    """A write-behind queue: changes are accepted on the event loop, and written soon and until they succeed."""

    def __init__(
        self,
        store: LanceStore,
        embedder: Callable[[], Embedder],
        *,
        contents: Callable[[], Contents],
        snapshot_contents: Callable[[], Contents],
        pairs: Callable[[], list[tuple[UsagePair, Floats]]],
        size: Callable[[], int],
    ) -> None:
        """`snapshot_contents` has vectors that are in files on disk; it raises StoreError if they cannot be written."""
        self.problem: str | None = None
        """Why the last write failed."""
        self._store = store
        self._embedder = embedder
        self._contents = contents
        self._snapshot_contents = snapshot_contents
        self._pairs = pairs
        self._size = size
        self._pending = Changes()
        self._is_writing = False
        self._signature: str | None = None
        """The store as this process last saw it; None before it was opened."""
        self._commits = 0
        """Since the tables were last optimized."""
        self._snapshot_due: float | None = None
        self._changed = asyncio.Event()
        self._stop = asyncio.Event()
        self._lock = asyncio.Lock()

    def queue(self, changes: Changes) -> None:
        self._pending.add(changes)
        self._changed.set()

    @property
    def is_behind(self) -> bool:
        """Whether a change is pending or being written."""
        return self._is_writing or bool(self._pending)

    def open(self, signature: str) -> None:
        """Start writing; the signature is that of the store as it was loaded."""
        self._signature = signature

    async def run(self) -> None:
        """Write changes until `stop`, then write what is pending."""
        pause = 0.0
        while not self._stop.is_set():
            await wait_up_to(pause or CHECK_SECONDS, self._stop if pause else self._changed)
            self._changed.clear()
            await wait_up_to(GROUP_SECONDS, self._stop)
            await self._sync_and_log_errors()
            pause = min(max(pause * 2, FIRST_PAUSE_SECONDS), LONGEST_PAUSE_SECONDS) if self.problem else 0.0
        if self.is_behind:  # changes that arrived during the last sync
            await self._sync_and_log_errors()
        if not self.problem and self._signature is not None:
            await self._optimize_and_snapshot()

    def stop(self) -> None:
        self._stop.set()
        self._changed.set()

    @asynccontextmanager
    async def paused(self) -> AsyncIterator[None]:
        """Write nothing while the block runs; waits for a write that has begun."""
        async with self._lock:
            yield

    async def flush(self) -> None:
        """Write pending changes now. If that fails they stay pending, and `problem` says why."""
        await run_to_completion(self._sync_and_log_errors())  # a cancelled sync would lose its changes

    async def _sync_and_log_errors(self) -> None:
        try:
            async with self._lock:
                await self._sync()
        except Exception as error:  # search works from memory, and the next sync tries again
            logger.exception("the index on disk could not be updated")
            self.problem = type(error).__name__
            self._pending.rewrite = True

    async def _sync(self) -> None:
        if self._signature is None:
            return
        if await asyncio.to_thread(self._store.signature) != self._signature:
            logger.warning("the index on disk was removed or changed by another process; writing it again")
            self._pending.rewrite = True
        if self._pending:
            self._is_writing = True
            try:
                await self._write()
            finally:
                self._is_writing = False
        elif self._snapshot_due is not None and time.monotonic() >= self._snapshot_due:
            await self._write_snapshot()

    async def _write(self) -> None:
        changes, self._pending = self._pending, Changes()
        try:
            await asyncio.to_thread(self._write_blocking, changes)
        except (StoreError, OSError) as error:
            changes.rewrite |= getattr(error, "is_damage", False)
            changes.add(self._pending)
            self._pending = changes
            if self.problem != str(error):
                logger.warning("the index on disk cannot be written (%s); search works from memory", error)
            self.problem = str(error)
            return
        self.problem = None
        self._signature = await asyncio.to_thread(self._store.signature)
        if self._signature:
            pause = max(SNAPSHOT_AFTER_SECONDS, self._size() * SNAPSHOT_SECONDS_PER_SKILL)
            self._snapshot_due = time.monotonic() + pause

    def _write_blocking(self, changes: Changes) -> None:
        embedder = self._embedder().id
        if changes.erase_pairs:
            self._store.snapshot.unlink(missing_ok=True)
        if changes.rewrite:
            self._store.replace(embedder, self._contents())
        else:
            for table, rows in ((SKILLS, changes.skills), (USAGE, changes.pairs)):
                if rows:
                    puts = [row for row in rows.values() if row is not None]
                    self._store.write(table, embedder, puts, [key for key, row in rows.items() if row is None])
            self._commits += 1
            if self._is_optimize_due():
                self._optimize()
        if changes.erase_pairs:
            self._store.rewrite_pairs(embedder, self._pairs())

    def _is_optimize_due(self) -> bool:
        """It writes the whole table again, so a large one waits longer."""
        return self._commits >= max(COMMITS_BEFORE_OPTIMIZE, self._size() // ROWS_PER_COMMIT)

    def _optimize(self) -> None:
        self._store.optimize()
        self._commits = 0

    async def _optimize_and_snapshot(self) -> None:
        try:
            async with self._lock:
                if self._commits and (self._size() <= EXACT_LIMIT or self._is_optimize_due()):
                    await asyncio.to_thread(self._optimize)
                    self._signature = self._store.signature()
                if self._snapshot_due is not None:
                    await self._write_snapshot()
        except StoreError as error:
            logger.warning("the index on disk could not be optimized: %s", error)

    async def _write_snapshot(self) -> None:
        self._snapshot_due = None
        signature = self._signature or ""

        def write() -> None:
            contents = self._snapshot_contents()
            snapshot = Snapshot(signature=signature, indexes=contents.indexes, pairs=contents.pairs)
            write_snapshot(self._store.snapshot, snapshot, embedder=self._embedder().id)

        try:
            await asyncio.to_thread(write)
        except StoreError as error:
            logger.warning("the snapshot of the index could not be written: %s", error)
