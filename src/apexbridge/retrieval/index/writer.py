"""Writes the in-memory index to LanceDB: group commits, retries, repair, and a snapshot for a quick start."""

import asyncio
import logging
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from apexbridge._tasks import run_to_completion, wait_up_to
from apexbridge.retrieval.embedders.model import Floats
from apexbridge.retrieval.index.lance import Contents, IndexedSkill, LanceStore, StoreError
from apexbridge.retrieval.index.snapshot import write_snapshot
from apexbridge.retrieval.usage import UsagePair

GROUP_SECONDS = 0.05
"""Changes that arrive this close together become one commit."""
CHECK_SECONDS = 2.0
"""How often to check that the store on disk was not removed or changed."""
FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 1.0, 30.0
"""Between attempts to write after a failure."""
COMMITS_BEFORE_OPTIMIZE = 30
SNAPSHOT_AFTER_SECONDS = 2.0

logger = logging.getLogger(__name__)


class IndexWriter:
    """A write-behind queue: changes are accepted on the event loop, and written soon and until they succeed."""

    def __init__(
        self,
        store: LanceStore,
        snapshot: Path,
        *,
        model: Callable[[], tuple[str, int]],
        contents: Callable[[], Contents],
    ) -> None:
        self.problem: str | None = None
        """Why the last write failed."""
        self._store = store
        self._snapshot = snapshot
        self._model = model
        """Id and vector length of the embedding model."""
        self._contents = contents
        self._skills: dict[str, IndexedSkill | None] = {}
        """Pending changes by name; None deletes."""
        self._pairs: dict[str, tuple[UsagePair, Floats] | None] = {}
        """Pending changes by key; None deletes."""
        self._erase = False
        """Whether past requests were forgotten. Their rows must then leave every file, old table versions too."""
        self._rewrite = False
        """Whether to write everything again from memory."""
        self._is_writing = False
        self._signature: str | None = None
        """The store as this process last saw it; None before it was opened."""
        self._commits = 0
        self._snapshot_due: float | None = None
        self._changed = asyncio.Event()
        self._stop = asyncio.Event()
        self._lock = asyncio.Lock()

    def put_skills(self, skills: Iterable[IndexedSkill]) -> None:
        self._skills |= {skill.document.name: skill for skill in skills}
        self._changed.set()

    def drop_skills(self, names: Iterable[str]) -> None:
        """Delete skills, but not their past use."""
        self._skills |= dict.fromkeys(names)
        self._changed.set()

    def put_pair(self, pair: UsagePair, vector: Floats) -> None:
        self._pairs[pair.key] = (pair, vector)
        self._changed.set()

    def drop_pairs(self, pairs: Iterable[UsagePair]) -> None:
        """Delete rows. LanceDB keeps deleted rows in its files for a while; see `erase_pairs`."""
        self._pairs |= dict.fromkeys(pair.key for pair in pairs)
        self._changed.set()

    def erase_pairs(self) -> None:
        """Keep the pairs that are in memory, and remove every other pair from every file."""
        self._erase = True
        self._changed.set()

    @property
    def is_behind(self) -> bool:
        """Whether a change is pending or being written."""
        return self._is_writing or self._has_changes

    @property
    def _has_changes(self) -> bool:
        return self._rewrite or self._erase or bool(self._skills or self._pairs)

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
            self._rewrite = True

    async def _sync(self) -> None:
        if self._signature is None:
            return
        if await asyncio.to_thread(self._store.signature) != self._signature:
            logger.warning("the index on disk was removed or changed by another process; writing it again")
            self._rewrite = True
        if self._has_changes:
            self._is_writing = True
            try:
                await self._write()
            finally:
                self._is_writing = False
        elif self._snapshot_due is not None and time.monotonic() >= self._snapshot_due:
            await self._write_snapshot()

    async def _write(self) -> None:
        rewrite, self._rewrite = self._rewrite, False
        skills, self._skills = self._skills, {}
        pairs, self._pairs = self._pairs, {}
        erase, self._erase = self._erase, False
        try:
            if erase:
                await asyncio.to_thread(self._snapshot.unlink, missing_ok=True)
            if rewrite:
                await asyncio.to_thread(self._write_all)
            else:
                await asyncio.to_thread(self._write_changes, skills, pairs)
            if erase:
                await asyncio.to_thread(self._rewrite_pairs)
        except (StoreError, OSError) as error:
            self._skills, self._pairs = {**skills, **self._skills}, {**pairs, **self._pairs}
            self._erase = self._erase or erase
            self._rewrite = rewrite or getattr(error, "is_damage", False)
            if self.problem != str(error):
                logger.warning("the index on disk cannot be written (%s); search works from memory", error)
            self.problem = str(error)
            return
        self.problem = None
        self._signature = await asyncio.to_thread(self._store.signature)
        if self._signature:
            self._snapshot_due = time.monotonic() + SNAPSHOT_AFTER_SECONDS

    def _write_all(self) -> None:
        # New tables count their commits from one: an old snapshot could match a later commit.
        self._snapshot.unlink(missing_ok=True)
        self._store.replace(self._model()[0], self._contents())

    def _write_changes(
        self, skills: dict[str, IndexedSkill | None], pairs: dict[str, tuple[UsagePair, Floats] | None]
    ) -> None:
        embedder, _ = self._model()
        put_skills = [skill for skill in skills.values() if skill is not None]
        dropped_skills = [name for name, skill in skills.items() if skill is None]
        if put_skills or dropped_skills:
            self._store.write_skills(embedder, put_skills, dropped_skills)
        put_pairs = [pair for pair in pairs.values() if pair is not None]
        dropped_pairs = [key for key, pair in pairs.items() if pair is None]
        if put_pairs or dropped_pairs:
            self._store.write_pairs(embedder, put_pairs, dropped_pairs)
        self._commits += 1
        if self._commits % COMMITS_BEFORE_OPTIMIZE == 0:
            self._store.optimize()

    def _rewrite_pairs(self) -> None:
        self._store.rewrite_pairs(self._model()[0], self._contents().pairs)

    async def _optimize_and_snapshot(self) -> None:
        try:
            async with self._lock:
                if self._commits:
                    await asyncio.to_thread(self._store.optimize)
                    self._signature = self._store.signature()
                if self._snapshot_due is not None:
                    await self._write_snapshot()
        except StoreError as error:
            logger.warning("the index on disk could not be optimized: %s", error)

    async def _write_snapshot(self) -> None:
        self._snapshot_due = None
        embedder, dimensions = self._model()
        signature = self._signature or ""

        def write() -> None:
            write_snapshot(
                self._snapshot, self._contents(), signature=signature, embedder=embedder, dimensions=dimensions
            )

        await asyncio.to_thread(write)
