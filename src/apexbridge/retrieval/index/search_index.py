"""The search index: skills, tools and past use in memory, with a durable copy in LanceDB."""

import asyncio
import logging
import threading
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeVar, get_args

import numpy as np

from apexbridge._tasks import run_to_completion
from apexbridge._time import MS_PER_DAY, now_ms
from apexbridge.retrieval.documents import Document, kind_of
from apexbridge.retrieval.embedders.embedder import DocumentVector, Embedder, columns_of
from apexbridge.retrieval.embedders.model import EmbeddingError, Floats, Model
from apexbridge.retrieval.index.lance_store import Contents, LanceStore, StoreError
from apexbridge.retrieval.index.snapshot import Snapshot, new_vectors_path, read_snapshot, vectors_path
from apexbridge.retrieval.index.vector_draft import VectorDrafts
from apexbridge.retrieval.index.vector_file import VectorFile
from apexbridge.retrieval.index.vector_index import VectorIndex
from apexbridge.retrieval.index.writer import Changes, IndexWriter
from apexbridge.retrieval.kinds import Kind
from apexbridge.retrieval.usage import UsageMemory, UsagePair

STORE = "skills.lance"
IGNORED_CHATS = 1000
"""A chat teaches after its answer was sent, so its record may be deleted first."""

T = TypeVar("T")
InstalledModels = Callable[[], Iterable[Model]]
logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Source:
    """Whose vectors are read from the store."""

    embedder: Embedder
    """Of the vectors in memory."""
    id: str
    """Of the models that made the stored vectors."""
    length: int
    columns: Mapping[str, slice] | None = None
    """What is left of a stored vector, if some of those models are not installed any more."""

    @classmethod
    def of(cls, embedder: Embedder) -> "_Source":
        return cls(embedder=embedder, id=embedder.id, length=embedder.dimensions)

    def converted(self, vector: Floats) -> Floats:
        return vector if self.columns is None else self.embedder.projected(vector, self.columns)


class ModelsSwitchedError(Exception):
    """A vector was made by the models that were in use a moment ago."""


class SearchIndex:
    """Loads the index, changes it in memory, and hands every change to the writer.

    Searches read `memory` and `usage` from threads, holding the memory's lock.
    """

    def __init__(
        self, data_dir: Path, embedder: Embedder, *, usage_days: int, installed: InstalledModels = tuple
    ) -> None:
        """`installed` returns models that stored vectors may have been made by."""
        lock = threading.Lock()
        self._store = LanceStore(data_dir / STORE)
        self.embedder = embedder
        """Made the vectors in memory. Changes with them, under the lock."""
        self.target = embedder
        """Is to make them. Differs from the other one until everything is embedded again."""
        dimensions = embedder.dimensions_by_model
        self.memory = VectorIndex(dimensions, lock=lock, new_file=partial(self._new_file, "skill"))
        """The skills."""
        self.tools = VectorIndex(dimensions, lock=lock, new_file=partial(self._new_file, "tool"))
        """The tools. They are ranked apart, so that they do not change how skills are ranked."""
        self.usage = UsageMemory(embedder.dimensions_by_model)
        self.unavailable: str | None = None
        """Why the store cannot be opened. Nothing is embedded then, and search compares words only."""
        self.is_loaded = False
        self._installed = installed
        self._usage_days = usage_days
        self.writer = IndexWriter(
            self._store,
            lambda: self.embedder,
            contents=self._contents,
            snapshot_contents=partial(self._contents, in_files=True),
            pairs=self.pairs,
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
        await asyncio.to_thread(self._remove_leftovers)
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
        return self._index_of(kind_of(key))

    def _index_of(self, kind: Kind) -> VectorIndex:
        return self.tools if kind == "tool" else self.memory

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to load."""
        return not self.is_loaded and not self._store.exists()

    async def put(self, documents: Sequence[Document], vectors: Sequence[DocumentVector | None]) -> list[Document]:
        """Add or replace skills and tools. One without a vector is found by its words only, and is not stored.

        A vector of the same content is kept. Returns those whose vector was made by models that are not in use any
        more; they are without one.
        """
        skills = list(zip(documents, vectors, strict=True))

        def change() -> tuple[list[Document], Changes]:
            self._reshape()
            stale, changes = [], Changes()
            for document, made in skills:
                is_stale = made is not None and made.embedder != self.embedder.id
                vector = None if made is None or is_stale else made.vector
                held = self._held(document)
                if held is not None and (vector is None or np.array_equal(held, vector)):
                    continue
                if is_stale:
                    stale.append(document)
                self._memory_of(document.name).put(document, vector)
                changes.skills[document.name] = (document, vector) if vector is not None else None
            return stale, changes

        return await self._change(change)

    def held(self, documents: Sequence[Document]) -> list[DocumentVector | None]:
        """The vectors that the index has for exactly these documents."""
        with self.memory.locked():
            vectors = [self._held(document) for document in documents]
            return [None if own is None else DocumentVector(vector=own, embedder=self.embedder.id) for own in vectors]

    def _held(self, document: Document) -> Floats | None:
        memory = self._memory_of(document.name)
        slot = memory.slot(document.name)
        if slot is None or not memory.has_vector[slot] or memory.documents[slot] != document:
            return None
        return memory.vector(slot)

    @property
    def document_count(self) -> int:
        return len(self.memory) + len(self.tools)

    def documents(self) -> list[Document]:
        """All skills and tools."""
        with self.memory.locked():
            return [*self.memory.documents, *self.tools.documents]

    def pairs(self) -> list[tuple[UsagePair, Floats]]:
        """All pairs of past use, the oldest first."""
        with self.memory.locked():
            return self.usage.pairs()

    def drafts(self, embedder: Embedder) -> VectorDrafts:
        """For the vectors of another embedder. Raises VectorFileError."""
        dimensions = embedder.dimensions_by_model
        return VectorDrafts(
            lambda kind: self._index_of(kind).draft(dimensions, partial(self._new_draft_file, kind)),
        )

    async def switch(
        self,
        embedder: Embedder,
        drafts: VectorDrafts | None,
        pairs: Mapping[UsagePair, Floats | None],
    ) -> list[UsagePair] | None:
        """Replace all vectors at once by those of another embedder; pairs with None are dropped and returned.

        Without `drafts`, those of the pairs alone. Returns None if a document or a pair is missing, or if the target
        is another one by now. Nothing has changed then.
        """

        def change() -> list[UsagePair] | None:
            with self.memory.locked():
                if self.target is not embedder or not all(pair in pairs for pair, _ in self.usage.pairs()):
                    return None
                if drafts is not None:
                    skills = drafts.by_kind["skill"].arranged(self.memory.documents)
                    tools = drafts.by_kind["tool"].arranged(self.tools.documents)
                    if skills is None or tools is None:
                        return None
                    self.memory.set_vectors(embedder.dimensions_by_model, skills)
                    self.tools.set_vectors(embedder.dimensions_by_model, tools)
                    self.embedder = embedder
                self.memory.version += 1
                self.usage.dimensions = embedder.dimensions_by_model
                return self.usage.replace({pair: vector for pair, vector in pairs.items() if vector is not None})

        async def work() -> list[UsagePair] | None:
            async with self.writer.paused():  # a write that has begun stores vectors of the old models
                dropped = await asyncio.to_thread(change)
                if dropped is not None:
                    self.writer.queue(Changes(rewrite=True, erase_pairs=True))
            return dropped

        dropped = await run_to_completion(work())
        if dropped is not None:
            await self.writer.flush()
        return dropped

    async def remove(self, names: Collection[str]) -> list[str]:
        def change() -> tuple[list[str], Changes]:
            return [*self.memory.drop(names), *self.tools.drop(names)], self._removal(names)

        return await self._change(change)

    async def retain(self, names: Collection[str], *, kind: Kind = "skill") -> list[str]:
        """Remove all others of this kind."""

        def change() -> tuple[list[str], Changes]:
            removed = self._index_of(kind).retain(names)
            used = {key for key in self.usage.skills() if kind_of(key) == kind}
            return removed, self._removal({*removed, *used} - set(names))

        return await self._change(change)

    def _removal(self, names: Collection[str]) -> Changes:
        skills = dict.fromkeys(names)
        return Changes(skills=skills, erase_pairs=bool(self.usage.forget(lambda pair: pair.skill in skills)))

    async def teach(self, skill: str, vector: Floats, *, embedder: str, caller: str, chat: str) -> UsagePair | None:
        """Remember that a request was answered by a skill; None if the skill or the chat is gone.

        Raises ModelsSwitchedError if the embedder with this id is not in use any more.
        """

        def change() -> tuple[UsagePair | None, Changes]:
            if embedder != self.embedder.id:
                raise ModelsSwitchedError
            if skill not in self or chat in self._ignored_chats:
                return None, Changes()
            self.memory.version += 1
            pair, evicted = self.usage.teach(skill, vector, caller=caller, chat=chat)
            return pair, Changes(pairs={pair.key: (pair, vector)} | dict.fromkeys(old.key for old in evicted))

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

        def locked() -> tuple[T, Changes, Embedder]:
            with self.memory.locked():
                return *change(), self.embedder

        async def work() -> T:
            result, changes, embedder = await asyncio.to_thread(locked)
            if embedder is not self.embedder:  # the models were switched while this thread ended
                changes = Changes(rewrite=True, erase_pairs=changes.erase_pairs)
            # A pair may have been forgotten while this thread ended: it must not be written after its deletion.
            changes.pairs = {key: row for key, row in changes.pairs.items() if row is None or row[0] in self.usage}
            if changes:
                self.writer.queue(changes)
            return result

        return await run_to_completion(work())

    def _contents(self, *, in_files: bool = False) -> Contents:
        """Copies of everything. With `in_files`, the vectors of large indexes are on disk when it returns."""
        indexes: dict[Kind, VectorIndex] = {"skill": self.memory, "tool": self.tools}
        for index in indexes.values() if in_files else ():
            index.flush()  # so that little is left to write while searches wait
        with self.memory.locked():
            for kind, index in indexes.items() if in_files else ():
                if not index.ensure_file(vectors_path(self._store.snapshot, kind)):
                    raise StoreError("the file of vectors cannot be written")
            return Contents(indexes={kind: index.copy() for kind, index in indexes.items()}, pairs=self.usage.pairs())

    def _new_file(self, kind: Kind, dimensions: int) -> VectorFile:
        """A file for the vectors of a large index. Other processes than the one that writes use one without a name."""
        if self._is_owner:
            try:
                return VectorFile.create(vectors_path(self._store.snapshot, kind), dimensions)
            except OSError as error:
                logger.warning("the file of vectors cannot be created: %s", error.strerror)
        return VectorFile.temporary(dimensions)

    def _new_draft_file(self, kind: Kind, dimensions: int) -> VectorFile:
        if self._is_owner:
            return VectorFile.create(new_vectors_path(self._store.snapshot, kind), dimensions)
        return VectorFile.temporary(dimensions)

    def is_expired(self, pair: UsagePair) -> bool:
        return pair.taught_at < now_ms() - self._usage_days * MS_PER_DAY

    async def _load(self, *, is_damaged: bool = False) -> None:
        changes = await asyncio.to_thread(self._load_blocking, is_damaged)
        self.is_loaded = True
        if self.unavailable is None:
            self.writer.open(self._loaded_signature)
            if changes:
                self.writer.queue(changes)

    def _load_blocking(self, is_damaged: bool) -> Changes:
        """Read the store into memory; returns what of the store must change."""
        signature = self._store.signature()
        self.unavailable = None
        pairs: list[tuple[UsagePair, Floats]] = []
        changes = Changes()
        source, snapshot, failure = _Source.of(self.target), None, None
        exists = bool(signature) or self._store.exists()
        try:
            if exists:
                source, snapshot = self._find_source(signature, is_damaged=is_damaged)
            else:
                self._probe()
        except StoreError as error:
            exists, failure = False, error
        with self.memory.locked():
            if is_damaged or source.embedder.id != self.embedder.id:
                self.memory.drop_vectors()
                self.tools.drop_vectors()
            self.embedder = source.embedder
            self.usage.forget(lambda _: True)
            self._reshape()
            if snapshot is not None:
                self.memory.replace_all(snapshot.indexes["skill"])
                self.tools.replace_all(snapshot.indexes["tool"])
                pairs = snapshot.pairs
            if exists and (snapshot is None or snapshot.signature != signature):
                try:
                    self._read_tables(source)
                    pairs, changes.erase_pairs = self._store.pairs(source.id, source.length)
                except StoreError as error:
                    exists, failure = False, error
            if not exists:
                self.memory.retain([])
                self.tools.retain([])
            if not exists or not self.embedder.dimensions:  # of a remote model that did not answer
                pairs = []
            for pair, vector in pairs:
                self.usage.restore(pair, source.converted(vector))
            expired = self.usage.forget(self.is_expired)
        if failure is not None:
            self.unavailable = self._quarantine(failure)
            signature = self._store.signature()
        elif source.columns is not None:
            changes.rewrite = changes.erase_pairs = True
        self._loaded_signature = signature
        changes.erase_pairs |= bool(expired)
        return changes

    def _reshape(self) -> None:
        for memory in (self.memory, self.tools, self.usage):
            memory.reshape(self.embedder.dimensions_by_model)

    def _find_source(self, signature: str, *, is_damaged: bool) -> tuple["_Source", Snapshot | None]:
        """Whose vectors the store has, and the snapshot of them. Raises StoreError."""
        target, stored = self.target, None
        if target.is_remote:
            stored = self._store.model()
            if not target.dimensions:
                target.assume_dimensions(stored)
            if stored is None or stored[0] == target.id:  # else vectors of other models may serve without it
                self._probe()
        source = _Source.of(target)
        snapshot = None if is_damaged else self._snapshot_of(target)
        if snapshot is None or snapshot.signature != signature:
            stored = stored or self._store.model()
            if stored is not None and stored[0] != target.id:
                source = self._source_of_other_models(*stored)
                snapshot = None if is_damaged or source.columns is not None else self._snapshot_of(source.embedder)
        return source, snapshot

    def _snapshot_of(self, embedder: Embedder) -> Snapshot | None:
        return read_snapshot(self._store.snapshot, embedder=embedder.id, dimensions=embedder.dimensions_by_model)

    def _probe(self) -> None:
        """Learn the length of a remote model's vectors."""
        if self.target.is_remote:
            with suppress(EmbeddingError):  # every search asks it again
                self.target.probe()

    def _source_of_other_models(self, id: str, length: int) -> "_Source":
        """What other models have made, as far as they are still installed."""
        target = self.target
        # Models of the target come last and win: each model is loaded once.
        models = {model.id: model for model in (*self._installed(), *target.models)}
        columns = columns_of(id, length, {own: model.dimensions for own, model in models.items()})
        if not columns:
            self._probe()
            return _Source(embedder=target, id=id, length=length, columns={})
        embedder = Embedder(models[own] for own in columns)
        if embedder.id == id:
            return _Source.of(embedder)
        return _Source(embedder=target if embedder.id == target.id else embedder, id=id, length=length, columns=columns)

    def _read_tables(self, source: "_Source") -> None:
        """Take over what differs from the memory. The same text has the same vector, so most vectors are not read."""
        documents = self._store.documents(source.id, source.length) if source.columns != {} else []
        stored = {document.name: document for document in documents}
        self.memory.retain(stored)
        self.tools.retain(stored)
        changed = stored.keys() - self._with_vector(stored)
        if changed:
            for name, vector in self._store.vectors(changed, source.length):
                self._memory_of(name).put(stored[name], np.array(source.converted(vector)))

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

    def _remove_leftovers(self) -> None:
        """Remove vectors of a change of models that a crash interrupted, and the files of earlier versions.

        These contain the text of past requests. They are removed with the past use in them.
        """
        try:
            for kind in get_args(Kind):
                new_vectors_path(self._store.snapshot, kind).unlink(missing_ok=True)
        except OSError as error:
            logger.warning("vectors of an unfinished change of models cannot be removed: %s", error.strerror)
        try:
            if self._store.remove_texts():
                logger.warning("removed past use that was stored with the text of requests; it starts again")
        except StoreError as error:
            logger.error("the text of past requests could not be removed from the index: %s", error)
