"""How skills come into the index and stay there: embedding, memory, the durable copy."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import anyio
import anyio.to_thread
import numpy as np

from apexbridge._time import MS_PER_DAY, now_ms
from apexbridge._turns import Turns
from apexbridge.retrieval.documents import Document, Searchable
from apexbridge.retrieval.embedders.embedder import Embedder
from apexbridge.retrieval.embedders.model import EmbeddingError, Floats
from apexbridge.retrieval.index.lance import Contents, IndexedSkill, LanceStore, StoreError
from apexbridge.retrieval.index.memory import MemoryIndex
from apexbridge.retrieval.index.snapshot import read_snapshot, remove_snapshot_with_texts
from apexbridge.retrieval.index.writer import IndexWriter
from apexbridge.retrieval.usage import UsageMemory, UsagePair

STORE = "skills.lance"
SNAPSHOT = "skills.snapshot"
BATCH = 100
"""Skills embedded at a time."""
MODEL_THREADS = 8
"""For models and what waits for them; a model that hangs must not take the threads of everything else."""

logger = logging.getLogger(__name__)
Progress = Callable[[int, int], None]


class SearchIndex:
    """The feeding half of the `ToolRetrievalService`: skills and past requests, in memory and on disk."""

    def __init__(self, data_dir: Path, embedder: Embedder, *, usage_days: int) -> None:
        self._embedder = embedder
        self._usage_days = usage_days
        self._memory = MemoryIndex(embedder.dimensions_by_model)
        self._usage = UsageMemory()
        self._store = LanceStore(data_dir / STORE)
        self._snapshot = data_dir / SNAPSHOT
        self._writer = IndexWriter(
            self._store,
            self._snapshot,
            model=lambda: (embedder.id, embedder.dimensions),
            contents=self._contents,
        )
        self._awake = False
        self._is_owner = False
        self._loaded = ""
        self._asking = anyio.CapacityLimiter(MODEL_THREADS)
        self._turns = Turns(MODEL_THREADS)
        """Callers take turns at these threads, so that many requests of one do not delay those of the others."""
        self._closed_store: str | None = None
        self._model_problem: str | None = None
        self._waking = anyio.Lock()

    # --------------------------------------------------------------------------------------------------- life
    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Keep the durable copy in step while the block lasts, and complete at its end."""
        self._is_owner = True
        await anyio.to_thread.run_sync(self._remove_texts)
        # No task group: it would wrap the block's own errors in a group.
        keeping = asyncio.create_task(self._writer.run())
        try:
            yield
        finally:
            self._writer.stop()
            with anyio.CancelScope(shield=True):
                await keeping

    def _remove_texts(self) -> None:
        """Remove files of earlier versions that hold the text of past requests. What those taught is lost."""
        try:
            remove_snapshot_with_texts(self._snapshot)
            if self._store.remove_texts():
                logger.warning("past use was stored with the text of requests; it was removed and starts again")
        except (StoreError, OSError) as error:
            logger.error("the text of past requests could not be removed from the index: %s", error)

    async def wake(self) -> None:
        """Load the index, if that was not done yet."""
        async with self._waking:
            if not self._awake:
                await anyio.to_thread.run_sync(self._load)
                self._awake = True

    async def refresh(self) -> None:
        """Load the index anew where somebody else has changed it on disk; for those who only read it."""
        async with self._waking:
            if self._awake and await anyio.to_thread.run_sync(self._store.signature) != self._loaded:
                await anyio.to_thread.run_sync(self._load)

    @property
    def is_behind(self) -> bool:
        """Whether the durable copy lacks something that memory has."""
        return self._writer.is_behind

    @property
    def problem(self) -> str | None:
        """Why the durable copy cannot be written, where it cannot."""
        return self._writer.problem

    def _load(self) -> None:
        signature = self._store.signature()
        self._closed_store = None
        try:
            contents = self._stored(signature)
        except StoreError as error:
            contents = Contents(skills=[], pairs=[])
            self._closed_store = self._repaired(error)
            signature = self._store.signature()
        with self._memory.locked():
            self._memory.reshape(self._embedder.dimensions_by_model)
            self._memory.retain([skill.document.name for skill in contents.skills])
            self._usage.forget_all_but(())
            for skill in contents.skills:
                self._memory.put(skill.document, skill.vector)
            for pair, vector in contents.pairs:
                self._usage.restore(pair, vector)
            expired = self._usage.forget_before(self._oldest_moment())
        self._loaded = signature
        if self._closed_store is None:
            self._writer.begin(signature)
            if expired or contents.has_others:
                self._writer.erase_pairs()

    def _repaired(self, error: StoreError) -> str | None:
        """Put a damaged index out of the way; gives why that was not done, where it was not."""
        if error.is_damage and self._is_owner:
            try:
                self._store.quarantine()
                self._snapshot.unlink(missing_ok=True)
            except (StoreError, OSError) as failed:
                error = StoreError(str(failed))
            else:
                logger.warning("the index on disk was of no use (%s) and is made anew", error)
                return None
        logger.warning("the index cannot be opened (%s); search compares words only", error)
        return str(error)

    def _stored(self, signature: str) -> Contents:
        """What is on disk for the model in use; the quick copy where it is one of this very commit."""
        is_there = bool(signature) or self._store.exists()
        if self._embedder.is_remote:
            if is_there and not self._embedder.dimensions:
                self._embedder.expect(self._store.model())
            with suppress(EmbeddingError):  # it is asked again for every search
                self._embedder.probe()
        if not is_there:
            return Contents(skills=[], pairs=[])
        embedder, dimensions = self._embedder.id, self._embedder.dimensions
        copy = read_snapshot(self._snapshot, signature=signature, embedder=embedder, dimensions=dimensions)
        return copy or self._store.read(embedder, dimensions)

    def _oldest_moment(self) -> int:
        """Past use that was last confirmed before this is over; in milliseconds."""
        return now_ms() - self._usage_days * MS_PER_DAY

    def _contents(self) -> Contents:
        with self._memory.locked():
            return Contents(
                skills=[
                    IndexedSkill(document=self._memory.documents[slot], vector=self._memory.vector(int(slot)))
                    for slot in np.flatnonzero(self._memory.has_vector)
                ],
                pairs=self._usage.pairs(),
            )

    # --------------------------------------------------------------------------------------- feeding the index
    @property
    def embedder(self) -> str:
        """Names the embedding model; another name means that every vector is stale."""
        return self._embedder.id

    @property
    def dimensions(self) -> int:
        """Length of its vectors."""
        return self._embedder.dimensions

    async def index_skill(self, skill: Searchable) -> bool:
        """Make a skill findable; False where the model failed and it is found by its words only."""
        return await self.index_skills([skill]) == 1

    async def index_skills(self, skills: Sequence[Searchable], progress: Progress | None = None) -> int:
        """Make many findable; gives how many of them are found by meaning too."""
        done = 0
        for start in range(0, len(skills), BATCH):
            batch = skills[start : start + BATCH]
            vectors = await self.embed(batch)
            await self.upsert(batch, vectors)
            done += sum(vector is not None for vector in vectors)
            if progress:
                progress(min(start + BATCH, len(skills)), len(skills))
        return done

    async def remove_skill(self, name: str) -> bool:
        """Forget a skill with everything its past taught; False where it was not known."""
        await self.wake()
        return bool(await self.remove([name]))

    async def embed(self, skills: Sequence[Searchable]) -> list[Floats | None]:
        """A vector for each, in order; None for all where the model cannot be used now."""
        await self.wake()
        if self._closed_store is not None:
            return [None] * len(skills)
        documents = [Document.from_skill(skill) for skill in skills]
        try:
            async with self._turns.turn():
                vectors = await anyio.to_thread.run_sync(
                    self._embedder.embed_documents, documents, limiter=self._asking, abandon_on_cancel=True
                )
        except EmbeddingError as error:
            self._note_model(str(error))
            return [None] * len(skills)
        self._note_model(None)
        return list(vectors)

    async def upsert(self, skills: Sequence[Searchable], vectors: Sequence[Floats | None]) -> None:
        """Put these into the index, each in place of what it had under that name."""
        await self.wake()
        documents = [Document.from_skill(skill) for skill in skills]
        await anyio.to_thread.run_sync(self._put, documents, vectors)
        both = list(zip(documents, vectors, strict=True))
        self._writer.put_skills(IndexedSkill(document=own, vector=vector) for own, vector in both if vector is not None)
        self._writer.drop_skills(own.name for own, vector in both if vector is None)

    async def remove(self, names: Collection[str]) -> list[str]:
        """Forget these with what past requests taught of them; gives those that were known."""
        if not self._awake and not self._store.exists():
            return []
        await self.wake()
        return await self._drop(lambda: self._memory.drop(names), names)

    async def missing(self, versions: Mapping[str, str]) -> list[str]:
        """Which of these the index does not hold in this version; nobody knows as long as it was not loaded."""
        return await anyio.to_thread.run_sync(self._missing, versions) if self._awake else []

    def _missing(self, versions: Mapping[str, str]) -> list[str]:
        with self._memory.locked():
            lacking = set(self._memory.without_vector()) if self._closed_store is None else set()
            return [
                name
                for name, version in versions.items()
                if name in lacking
                or (slot := self._memory.slot(name)) is None
                or self._memory.documents[slot].version != version
            ]

    async def retain(self, names: Collection[str]) -> int:
        """Forget everything but these; gives how many were forgotten."""
        if not self._awake:
            return 0
        with_past = await anyio.to_thread.run_sync(lambda: self._usage.skills() - set(names))
        return len(await self._drop(lambda: self._memory.retain(names), with_past))

    def _put(self, documents: Sequence[Document], vectors: Sequence[Floats | None]) -> None:
        with self._memory.locked():
            self._memory.reshape(self._embedder.dimensions_by_model)
            for document, vector in zip(documents, vectors, strict=True):
                self._memory.put(document, vector)

    async def _drop(self, drop: Callable[[], list[str]], with_past: Collection[str]) -> list[str]:
        def work() -> tuple[list[str], list[UsagePair]]:
            with self._memory.locked():
                gone = drop()
                return gone, self._usage.forget({*gone, *with_past})

        gone, pairs = await anyio.to_thread.run_sync(work)
        self._writer.drop_skills({*gone, *with_past})
        if pairs:
            self._writer.erase_pairs()
        return gone

    def _note_model(self, problem: str | None) -> None:
        if problem and problem != self._model_problem:
            logger.warning("%s Search compares words only.", problem)
        self._model_problem = problem
