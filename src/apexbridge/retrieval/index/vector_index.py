"""The index in memory, which searches read: documents, vectors and keywords, by slot.

A slot is a document's position in the index.
"""

import threading
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager

import numpy as np
from numpy.typing import NDArray

from apexbridge.retrieval.documents import Document
from apexbridge.retrieval.embedders.model import Floats
from apexbridge.retrieval.index.keyword_index import KeywordIndex
from apexbridge.retrieval.index.slot_vectors import FiledVectors, MatrixVectors, NewFile, SlotVectors
from apexbridge.retrieval.index.vector_file import VectorFile

EXACT_LIMIT = 10_000
"""Up to this size, all vectors are in memory and compared. Above it, they are in a file, and the nearest compared."""


class VectorIndex:
    """Readers and writers hold its lock, so that no reader sees a partial change."""

    def __init__(
        self,
        dimensions: Sequence[int],
        *,
        lock: "threading.Lock | None" = None,
        exact_limit: int = EXACT_LIMIT,
        new_file: NewFile = VectorFile.temporary,
    ) -> None:
        """Two indexes with the same `lock` change together. `new_file` creates the file of a large index."""
        self.dimensions = tuple(dimensions)
        """Vector length of each model."""
        self.documents: list[Document] = []
        self.keywords = KeywordIndex()
        self.vectors: SlotVectors = MatrixVectors(self.dimensions)
        self.version = 0
        """Grows with every change."""
        self._slots: dict[str, int] = {}
        self._tags = KeywordIndex()
        """Tags in lower case, as words that are found whole."""
        self._hidden: set[str] = set()
        """Names that models must not find."""
        self._exact_limit = exact_limit
        self._new_file = new_file
        self._lock = lock or threading.Lock()

    @contextmanager
    def locked(self) -> Iterator["VectorIndex"]:
        with self._lock:
            yield self

    def __len__(self) -> int:
        return len(self.documents)

    def __contains__(self, name: str) -> bool:
        return name in self._slots

    def slot(self, name: str) -> int | None:
        return self._slots.get(name)

    @property
    def has_vector(self) -> NDArray[np.bool_]:
        """Which slots can be found by meaning."""
        return self.vectors.has_vector

    def vector(self, slot: int) -> Floats:
        """A slot's vectors of all models in a row."""
        return self.vectors.vectors(np.array([slot]))[0]

    def without_vector(self) -> list[str]:
        """Skills that are found by their words only."""
        return [self.documents[slot].name for slot in np.flatnonzero(~self.has_vector)]

    def put(self, document: Document, vector: Floats | None) -> None:
        slot = self._slots.setdefault(document.name, len(self.documents))
        self.documents[slot : slot + 1] = [document]
        self.keywords.put(slot, document.keywords())
        self._tags.put(slot, document.folded_tags)
        (self._hidden.add if document.hidden else self._hidden.discard)(document.name)
        self.vectors.put(slot, vector)
        self._changed()

    def with_document(self, document: Document, vector: Floats | None) -> "VectorIndex":
        """A copy in which one document is replaced or added. The caller holds the lock of this one, not of the copy."""
        copy = VectorIndex(self.dimensions, exact_limit=max(self._exact_limit, len(self) + 1), new_file=self._new_file)
        copy.documents = list(self.documents)
        copy.keywords = self.keywords.copy()
        copy._tags, copy._hidden = self._tags.copy(), set(self._hidden)
        copy._slots = dict(self._slots)
        copy.vectors = self.vectors.copy()
        copy.put(document, vector)
        return copy

    def reshape(self, dimensions: Sequence[int]) -> None:
        """Change the length of vectors; vectors of another length are dropped."""
        if tuple(dimensions) != self.dimensions:
            self.dimensions = tuple(dimensions)
            self.vectors = MatrixVectors(self.dimensions)
            for slot in range(len(self)):
                self.vectors.put(slot, None)
            self._changed()

    def drop(self, names: Iterable[str]) -> list[str]:
        """Remove skills; returns those that were known."""
        dropped = [name for name in names if name in self._slots]
        for name in dropped:
            self._drop(name)
        if dropped:
            self._changed()
        return dropped

    def retain(self, names: Collection[str]) -> list[str]:
        """Remove all other skills; returns what was removed."""
        retained = set(names)
        return self.drop([name for name in self._slots if name not in retained])

    def _drop(self, name: str) -> None:
        """Remove a skill; the last slot moves into the free one."""
        slot, last = self._slots.pop(name), len(self.documents) - 1
        moved = self.documents.pop()
        self.keywords.drop(slot)
        self._tags.drop(slot)
        self._hidden.discard(name)
        self.vectors.drop(slot)
        if slot != last:
            self.documents[slot] = moved
            self._slots[moved.name] = slot

    def _changed(self) -> None:
        self.version += 1
        if self.vectors.is_exact and len(self) > self._exact_limit:
            self.vectors = FiledVectors.of(self.vectors, self.dimensions, self._new_file)
        elif not self.vectors.is_exact and len(self) < self._exact_limit // 2:
            self.vectors = MatrixVectors.of(self.vectors, self.dimensions)

    def allowed(self, tags: Collection[str], *, for_model: bool) -> NDArray[np.bool_] | None:
        """Which slots have one of the tags, in lower case, and may be found by a model; None without filters."""
        if not tags and not for_model:
            return None
        is_allowed = self._tags.score(list(tags)) > 0 if tags else np.ones(len(self), np.bool_)
        if for_model:
            is_allowed[[self._slots[name] for name in self._hidden]] = False
        return is_allowed
