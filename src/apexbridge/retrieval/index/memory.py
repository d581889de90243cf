"""The index in memory, where searches run: documents, their vectors and their keywords, by slot."""

import threading
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager

import numpy as np
from numpy.typing import NDArray

from apexbridge.retrieval.documents import Document
from apexbridge.retrieval.index.keywords import KeywordIndex

Floats = NDArray[np.float32]
FIRST_CAPACITY = 64


class MemoryIndex:
    """Everything a search looks at. Whoever reads or changes it holds it, so that nobody sees half a change."""

    def __init__(self, dimensions: Sequence[int]) -> None:
        self.dimensions = tuple(dimensions)
        """Of each model's part of a vector."""
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
        """Keep it as it is for as long as the block lasts."""
        with self._lock:
            yield self

    def __len__(self) -> int:
        return len(self.documents)

    def __contains__(self, name: str) -> bool:
        return name in self._slots

    # ------------------------------------------------------------------------------------------------- looking
    def slot(self, name: str) -> int | None:
        """Where a skill stands."""
        return self._slots.get(name)

    def matrix(self, part: int) -> Floats:
        """One model's vectors, a row a slot; rows without a vector are zero."""
        return self._matrices[part][: len(self.documents)]

    @property
    def has_vector(self) -> NDArray[np.bool_]:
        """Which slots can be found by meaning."""
        return self._has_vector[: len(self.documents)]

    def vector(self, slot: int) -> Floats:
        """A slot's whole vector, all parts in a row."""
        return np.concatenate([matrix[slot] for matrix in self._matrices])

    def without_vector(self) -> list[str]:
        """Skills that are known by their words only."""
        return [self.documents[slot].name for slot in np.flatnonzero(~self.has_vector)]

    # ------------------------------------------------------------------------------------------------ changing
    def put(self, document: Document, vector: Floats | None) -> None:
        """Add a skill, or replace what is known of it; without a vector it is found by its words alone."""
        slot = self._slots.get(document.name)
        if slot is None:
            slot = len(self.documents)
            self._slots[document.name] = slot
            self.documents.append(document)
            self._make_room()
        self.documents[slot] = document
        self.keywords.put(slot, document.keywords())
        self._has_vector[slot] = vector is not None
        start = 0
        for matrix, size in zip(self._matrices, self.dimensions, strict=True):
            matrix[slot] = 0.0 if vector is None else vector[start : start + size]
            start += size
        self.version += 1

    def reshape(self, dimensions: Sequence[int]) -> None:
        """Vectors are of another length from now on; those there were are of no use any more."""
        if tuple(dimensions) != self.dimensions:
            self.dimensions = tuple(dimensions)
            capacity = len(self._has_vector)
            self._matrices = [np.zeros((capacity, size), np.float32) for size in self.dimensions]
            self._has_vector = np.zeros(capacity, np.bool_)
            self.version += 1

    def drop(self, names: Iterable[str]) -> list[str]:
        """Forget these; gives those that were there."""
        gone = [name for name in names if name in self._slots]
        for name in gone:
            self._drop(name)
        if gone:
            self.version += 1
        return gone

    def retain(self, names: Collection[str]) -> list[str]:
        """Forget the others; gives what was forgotten."""
        kept = set(names)
        return self.drop([name for name in self._slots if name not in kept])

    def _drop(self, name: str) -> None:
        """The last slot moves into the free place."""
        slot, last = self._slots.pop(name), len(self.documents) - 1
        moved = self.documents.pop()
        self.keywords.drop(slot)
        if slot != last:
            self.documents[slot] = moved
            self._slots[moved.name] = slot
            for matrix in self._matrices:
                matrix[slot] = matrix[last]
            self._has_vector[slot] = self._has_vector[last]

    def _make_room(self) -> None:
        capacity = len(self._has_vector)
        if len(self.documents) > capacity:
            self._has_vector = np.concatenate((self._has_vector, np.zeros(capacity, np.bool_)))
            self._matrices = [
                np.concatenate((matrix, np.zeros((capacity, matrix.shape[1]), np.float32))) for matrix in self._matrices
            ]
