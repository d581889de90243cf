"""The index in memory, which searches read: documents, vectors and keywords, by slot."""

import threading
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager

import numpy as np
from numpy.typing import NDArray

from apexbridge.retrieval.documents import Document
from apexbridge.retrieval.embedders.model import Floats
from apexbridge.retrieval.index.keywords import KeywordIndex

FIRST_CAPACITY = 64


class MemoryIndex:
    """Readers and writers hold its lock, so that no reader sees a partial change."""

    def __init__(self, dimensions: Sequence[int]) -> None:
        self.dimensions = tuple(dimensions)
        """Vector length of each model."""
        self.documents: list[Document] = []
        self.keywords = KeywordIndex()
        self.version = 0
        """Grows with every change."""
        self._slots: dict[str, int] = {}
        self._matrices = [np.zeros((FIRST_CAPACITY, size), np.float32) for size in self.dimensions]
        self._has_vector = np.zeros(FIRST_CAPACITY, np.bool_)
        self._lock = threading.Lock()

    @contextmanager
    def locked(self) -> Iterator["MemoryIndex"]:
        with self._lock:
            yield self

    def __len__(self) -> int:
        return len(self.documents)

    def __contains__(self, name: str) -> bool:
        return name in self._slots

    def slot(self, name: str) -> int | None:
        return self._slots.get(name)

    def matrix(self, model: int) -> Floats:
        """One model's vectors, a row per slot; rows without a vector are zero."""
        return self._matrices[model][: len(self.documents)]

    @property
    def has_vector(self) -> NDArray[np.bool_]:
        """Which slots can be found by meaning."""
        return self._has_vector[: len(self.documents)]

    def vector(self, slot: int) -> Floats:
        """A slot's vectors of all models in a row."""
        return np.concatenate([matrix[slot] for matrix in self._matrices])

    def without_vector(self) -> list[str]:
        """Skills that are found by their words only."""
        return [self.documents[slot].name for slot in np.flatnonzero(~self.has_vector)]

    def put(self, document: Document, vector: Floats | None) -> None:
        """Add or replace a skill."""
        slot = self._slots.get(document.name)
        if slot is None:
            slot = len(self.documents)
            self._slots[document.name] = slot
            self.documents.append(document)
            self._ensure_capacity()
        self.documents[slot] = document
        self.keywords.put(slot, document.keywords())
        self._has_vector[slot] = vector is not None
        start = 0
        for matrix, size in zip(self._matrices, self.dimensions, strict=True):
            matrix[slot] = 0.0 if vector is None else vector[start : start + size]
            start += size
        self.version += 1

    def reshape(self, dimensions: Sequence[int]) -> None:
        """Change the length of vectors; vectors of another length are dropped."""
        if tuple(dimensions) != self.dimensions:
            self.dimensions = tuple(dimensions)
            capacity = len(self._has_vector)
            self._matrices = [np.zeros((capacity, size), np.float32) for size in self.dimensions]
            self._has_vector = np.zeros(capacity, np.bool_)
            self.version += 1

    def drop(self, names: Iterable[str]) -> list[str]:
        """Remove skills; returns those that were known."""
        dropped = [name for name in names if name in self._slots]
        for name in dropped:
            self._drop(name)
        if dropped:
            self.version += 1
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
        if slot != last:
            self.documents[slot] = moved
            self._slots[moved.name] = slot
            for matrix in self._matrices:
                matrix[slot] = matrix[last]
            self._has_vector[slot] = self._has_vector[last]

    def _ensure_capacity(self) -> None:
        capacity = len(self._has_vector)
        if len(self.documents) > capacity:
            self._has_vector = np.concatenate((self._has_vector, np.zeros(capacity, np.bool_)))
            self._matrices = [
                np.concatenate((matrix, np.zeros((capacity, matrix.shape[1]), np.float32))) for matrix in self._matrices
            ]
