"""The search index: skills, tools and past use in memory, with a durable copy in LanceDB."""

import asyncio
import logging
import threading
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TypeVar

import numpy as np

from apexbridge._tasks import run_to_completion
from apexbridge._time import MS_PER_DAY, now_ms
from apexbridge.retrieval.documents import Document, kind_of
from apexbridge.retrieval.embedders.embedder import Embedder
from apexbridge.retrieval.embedders.model import EmbeddingError, Floats
from apexbridge.retrieval.index.lance_store import Contents, LanceStore, StoreError
from apexbridge.retrieval.index.snapshot import Snapshot, read_snapshot, vectors_path
from apexbridge.retrieval.index.vector_file import VectorFile
from apexbridge.retrieval.index.vector_index import VectorIndex
from apexbridge.retrieval.index.writer import Changes, IndexWriter
from apexbridge.retrieval.kinds import Kind
from apexbridge.retrieval.usage import UsageMemory, UsagePair

STORE = "skills.lance"
IGNORED_CHATS = 1000
"""A chat teaches after its answer was sent, so its record may be deleted first."""

T = TypeVar("T")
logger = logging.getLogger(__name__)


class SearchIndex:
    """Loads the index, changes it in memory, and hands every change to the writer.

    Searches read `memory` and `usage` from threads, holding the memory's lock.
    """

    def __init__(self, data_dir: Path, embedder: Embedder, *, usage_days: int) -> None:
        lock = threading.Lock()
        self._store = LanceStore(data_dir / STORE)
        dimensions = embedder.dimensions_by_model
        self.memory = VectorIndex(dimensions, lock=lock, new_file=partial(self._new_file, "skill"))
        """The skills."""
        self.tools = VectorIndex(dimensions, lock=lock, new_file=partial(self._new_file, "tool"))
        """The tools. They are ranked apart, so that they do not change how skills are ranked."""
        self.usage = UsageMemory()
        self.unavailable: str | None = None
        """Why the store cannot be opened. Nothing is embedded then, and search compares words only."""
        self.is_loaded = False
        self._embedder = embedder
        self._usage_days = usage_days
        self.writer = IndexWriter(
            self._store,
            embedder,
            contents=self._contents,
            snapshot_contents=partial(self._contents, in_files=True),
            pairs=self._pairs,
            size=lambda: len(self.memory) + len(self.tools),
        )
        self._is_owner = False
        self._loaded_signature = ""
        self._loading = asyncio.Lock()
        self._ignored_chats: OrderedDict[str, None] = OrderedDict()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Write changes to disk while the block runs, and what is pending when it ends."""
        self._is_owner = True
        await asyncio.to_thread(self._remove_texts)
        # Not a task group: it would wrap the block's own errors in an exception group.
        writing = asyncio.create_task(self.writer.run())
        try:
            yield
        finally:
            self.writer.stop()
            await run_to_completion(writing)

    async def load(self) -> None:
        async with self._loading:
            if not self.is_loaded:
                await run_to_completion(self._load())

    async def reload(self) -> None:
        """Read the vectors again from the tables, because their file is damaged."""
        async with self._loading:
            await self.writer.flush()
            await run_to_completion(self._load(is_damaged=True))

    async def refresh(self) -> None:
        async with self._loading:
            if self.is_loaded and await asyncio.to_thread(self._store.signature) != self._loaded_signature:
                await run_to_completion(self._load())

    @property
    def version(self) -> int:
        """Grows with every change."""
        return self.memory.version + self.tools.version

    def __contains__(self, key: str) -> bool:
        return key in self._memory_of(key)

    def _memory_of(self, key: str) -> VectorIndex:
        return self.tools if kind_of(key) == "tool" else self.memory

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to load."""
        return not self.is_loaded and not self._store.exists()

    async def put(self, documents: Sequence[Document], vectors: Sequence[Floats | None]) -> None:
        """Add or replace skills and tools. One without a vector is found by its words only, and is not stored."""
        skills = list(zip(documents, vectors, strict=True))

        def change() -> tuple[None, Changes]:
            self._reshape()
            for document, vector in skills:
                self._memory_of(document.name).put(document, vector)
            return None, Changes(
                skills={
                    document.name: (document, vector) if vector is not None else None for document, vector in skills
                }
            )

        await self._change(change)

    async def remove(self, names: Collection[str]) -> list[str]:
        def change() -> tuple[list[str], Changes]:
            return [*self.memory.drop(names), *self.tools.drop(names)], self._removal(names)

        return await self._change(change)

    async def retain(self, names: Collection[str], *, kind: Kind = "skill") -> list[str]:
        """Remove all others of this kind."""

        def change() -> tuple[list[str], Changes]:
            removed = (self.tools if kind == "tool" else self.memory).retain(names)
            used = {key for key in self.usage.skills() if kind_of(key) == kind}
            return removed, self._removal({*removed, *used} - set(names))

        return await self._change(change)

    def _removal(self, names: Collection[str]) -> Changes:
        skills = dict.fromkeys(names)
        return Changes(skills=skills, erase_pairs=bool(self.usage.forget(lambda pair: pair.skill in skills)))

    async def teach(self, skill: str, vector: Floats, *, caller: str, chat: str) -> bool:
        """Remember that a request was answered by a skill; False if the skill or the chat is gone."""

        def change() -> tuple[bool, Changes]:
            if skill not in self or chat in self._ignored_chats:
                return False, Changes()
            self.memory.version += 1
            pair, evicted = self.usage.teach(skill, vector, caller=caller, chat=chat)
            return True, Changes(pairs={pair.key: (pair, vector)} | dict.fromkeys(old.key for old in evicted))

        return await self._change(change)

    def ignore_chat(self, chat: str) -> None:
        """Learn nothing from a chat any more."""
        self._ignored_chats[chat] = None
        if len(self._ignored_chats) > IGNORED_CHATS:
            self._ignored_chats.popitem(last=False)

    async def forget(self, is_forgotten: Callable[[UsagePair], bool]) -> int:
        """Drop pairs of past use; on return they are gone from the disk, unless it cannot be written now."""

        def change() -> tuple[list[UsagePair], Changes]:
            self.memory.version += 1
            pairs = self.usage.forget(is_forgotten)
            return pairs, Changes(pairs=dict.fromkeys(pair.key for pair in pairs), erase_pairs=bool(pairs))

        pairs = await self._change(change)
        if pairs:
            await self.writer.flush()
        return len(pairs)

    async def missing(self, versions: Mapping[str, str]) -> list[str]:
        """Names that the index does not have in this version, or not with a vector."""

        def missing() -> list[str]:
            with self.memory.locked():
                has_vector = {memory: memory.has_vector for memory in (self.memory, self.tools)}
                return [
                    name
                    for name, version in versions.items()
                    if (slot := (memory := self._memory_of(name)).slot(name)) is None
                    or memory.documents[slot].version != version
                    or (self.unavailable is None and not has_vector[memory][slot])
                ]

        return await asyncio.to_thread(missing)

    async def _change(self, change: Callable[[], tuple[T, Changes]]) -> T:
        """Change the memory on a thread, then queue it for the writer; a cancellation cannot come between the two."""

        def locked() -> tuple[T, Changes]:
            with self.memory.locked():
                return change()

        async def work() -> T:
            result, changes = await asyncio.to_thread(locked)
            # A pair may have been forgotten while this thread ended: it must not be written after its deletion.
            changes.pairs = {key: row for key, row in changes.pairs.items() if row is None or row[0] in self.usage}
            if changes:
                self.writer.queue(changes)
            return result

        return await run_to_completion(work())

    def _contents(self, *, in_files: bool = False) -> Contents:
        """Copies of everything. With `in_files`, the vectors of large indexes are on disk when it returns."""
        indexes: dict[Kind, VectorIndex] = {"skill": self.memory, "tool": self.tools}
        with self.memory.locked():
            for kind, index in indexes.items() if in_files else ():
                if not index.ensure_file(vectors_path(self._store.snapshot, kind)):
                    raise StoreError("the file of vectors cannot be written")
            return Contents(indexes={kind: index.copy() for kind, index in indexes.items()}, pairs=self.usage.pairs())

    def _pairs(self) -> list[tuple[UsagePair, Floats]]:
        with self.memory.locked():
            return self.usage.pairs()

    def _new_file(self, kind: Kind, dimensions: int) -> VectorFile:
        """A file for the vectors of a large index. Other processes than the one that writes use one without a name."""
        if self._is_owner:
            try:
                return VectorFile.create(vectors_path(self._store.snapshot, kind), dimensions)
            except OSError as error:
                logger.warning("the file of vectors cannot be created: %s", error.strerror)
        return VectorFile.temporary(dimensions)

    def is_expired(self, pair: UsagePair) -> bool:
        return pair.taught_at < now_ms() - self._usage_days * MS_PER_DAY

    async def _load(self, *, is_damaged: bool = False) -> None:
        must_erase = await asyncio.to_thread(self._load_blocking, is_damaged)
        self.is_loaded = True
        if self.unavailable is None:
            self.writer.open(self._loaded_signature)
            if must_erase:
                self.writer.queue(Changes(erase_pairs=True))

    def _load_blocking(self, is_damaged: bool) -> bool:
        """Read the store into memory; returns whether past use on disk has expired or belongs to another model."""
        signature = self._store.signature()
        self.unavailable = None
        pairs: list[tuple[UsagePair, Floats]] = []
        has_others = False
        snapshot: Snapshot | None = None
        failure: StoreError | None = None
        try:
            exists = self._learn_dimensions(signature)
        except StoreError as error:
            exists, failure = False, error
        embedder, dimensions = self._embedder.id, self._embedder.dimensions_by_model
        if exists and not is_damaged:
            snapshot = read_snapshot(self._store.snapshot, embedder=embedder, dimensions=dimensions)
        with self.memory.locked():
            self._reshape()
            if is_damaged:
                self.memory.drop_vectors()
                self.tools.drop_vectors()
            if snapshot is not None:
                self.memory.replace_all(snapshot.indexes["skill"])
                self.tools.replace_all(snapshot.indexes["tool"])
                pairs = snapshot.pairs
            if exists and (snapshot is None or snapshot.signature != signature):
                try:
                    self._read_tables()
                    pairs, has_others = self._store.pairs(embedder, sum(dimensions))
                except StoreError as error:
                    exists, failure = False, error
            if not exists:
                self.memory.retain([])
                self.tools.retain([])
                pairs = []
            self.usage.forget(lambda _: True)
            for pair, vector in pairs:
                self.usage.restore(pair, vector)
            expired = self.usage.forget(self.is_expired)
        if failure is not None:
            self.unavailable = self._quarantine(failure)
            signature = self._store.signature()
        self._loaded_signature = signature
        return bool(expired) or has_others

    def _reshape(self) -> None:
        self.memory.reshape(self._embedder.dimensions_by_model)
        self.tools.reshape(self._embedder.dimensions_by_model)

    def _learn_dimensions(self, signature: str) -> bool:
        """Ask a remote model for the length of its vectors; returns whether there is a store."""
        exists = bool(signature) or self._store.exists()
        if self._embedder.is_remote:
            if exists and not self._embedder.dimensions:
                self._embedder.assume_dimensions(self._store.model())
            with suppress(EmbeddingError):  # every search asks it again
                self._embedder.probe()
        return exists

    def _read_tables(self) -> None:
        """Take over what differs from the memory. The same text has the same vector, so most vectors are not read."""
        dimensions = self._embedder.dimensions
        stored = {document.name: document for document in self._store.documents(self._embedder.id, dimensions)}
        self.memory.retain(stored)
        self.tools.retain(stored)
        changed = stored.keys() - self._with_vector(stored)
        if changed:
            for name, vector in self._store.vectors(changed, dimensions):
                self._memory_of(name).put(stored[name], np.array(vector))

    def _with_vector(self, documents: Mapping[str, Document]) -> set[str]:
        """The names of those that are in memory like this, with a vector."""
        return {
            document.name
            for memory in (self.memory, self.tools)
            for document, has_vector in zip(memory.documents, memory.has_vector.tolist(), strict=True)
            if has_vector and documents.get(document.name) == document
        }

    def _quarantine(self, error: StoreError) -> str | None:
        """Move a damaged store out of the way; returns the reason if the store stays unusable."""
        if error.is_damage and self._is_owner:
            try:
                self._store.quarantine()
            except StoreError as failure:
                error = failure
            else:
                logger.warning("the index on disk was unusable (%s) and is rebuilt", error)
                return None
        logger.warning("the index cannot be opened (%s); search compares words only", error)
        return str(error)

    def _remove_texts(self) -> None:
        """Remove files of earlier versions that contain the text of past requests, with the past use in them."""
        try:
            if self._store.remove_texts():
                logger.warning("removed past use that was stored with the text of requests; it starts again")
        except StoreError as error:
            logger.error("the text of past requests could not be removed from the index: %s", error)
