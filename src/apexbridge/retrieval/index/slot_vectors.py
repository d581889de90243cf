"""The vectors of an index by slot: a small index compares all of them, a large one only those that may be near."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from apexbridge.retrieval.embedders.model import Floats
from apexbridge.retrieval.index.projection import Codes, Projection, in_a_row
from apexbridge.retrieval.index.vector_file import VectorFile

FIRST_CAPACITY = 64
SAMPLE_ROWS = 8192
"""Vectors that a projection is computed from."""
BATCH_ROWS = 1024
"""Vectors read from a file at a time."""
NO_ROW = -1

Queries = Sequence[Floats | None]
"""For each model the request, then its clauses; None if the model cannot read it."""
Cosines = tuple[Floats, Floats | None]
"""One model's cosines with the request, and with the nearest of its clauses if it has some."""
NewFile = Callable[[int], VectorFile]
"""Creates a file for vectors of this length."""


class SlotVectors(Protocol):
    """Vectors by slot. A slot may have none."""

    is_exact: bool
    """Whether `cosines` are exact."""

    def __len__(self) -> int: ...

    @property
    def has_vector(self) -> NDArray[np.bool_]: ...

    def put(self, slot: int, vector: Floats | None) -> None:
        """Replace a slot, or add the next one."""

    def drop(self, slot: int) -> None:
        """Remove a slot; the last one takes its number."""

    def cosines(self, queries: Queries) -> list[Cosines | None]:
        """For each model the cosines of all slots; those without a vector are zero."""

    def cosines_of(self, slots: NDArray[np.int64], queries: Queries) -> list[Cosines | None]:
        """The exact cosines of some slots, which have vectors."""

    def vectors(self, slots: NDArray[np.int64]) -> Floats:
        """The vectors of all models in a row, for slots that have some."""

    def copy(self) -> "SlotVectors":
        """A copy that can be changed."""


class MatrixVectors:
    """All vectors in memory: a matrix for each model."""

    is_exact = True

    def __init__(self, dimensions: Sequence[int]) -> None:
        self._dimensions = tuple(dimensions)
        self._count = 0
        self._matrices = [np.zeros((FIRST_CAPACITY, size), np.float32) for size in self._dimensions]
        self._has_vector = np.zeros(FIRST_CAPACITY, np.bool_)

    @classmethod
    def of(cls, vectors: SlotVectors, dimensions: Sequence[int]) -> "MatrixVectors":
        """The same vectors in memory."""
        copy = cls(dimensions)
        has_vector = vectors.has_vector
        for slot in range(len(vectors)):
            copy.put(slot, vectors.vectors(np.array([slot]))[0] if has_vector[slot] else None)
        return copy

    def __len__(self) -> int:
        return self._count

    @property
    def has_vector(self) -> NDArray[np.bool_]:
        return self._has_vector[: self._count]

    def put(self, slot: int, vector: Floats | None) -> None:
        self._count = max(self._count, slot + 1)
        if slot >= len(self._has_vector):
            self._has_vector = _doubled(self._has_vector)
            self._matrices = [_doubled(matrix) for matrix in self._matrices]
        self._has_vector[slot] = vector is not None
        start = 0
        for matrix, size in zip(self._matrices, self._dimensions, strict=True):
            matrix[slot] = 0.0 if vector is None else vector[start : start + size]
            start += size

    def drop(self, slot: int) -> None:
        self._count -= 1
        for array in (self._has_vector, *self._matrices):
            array[slot] = array[self._count]

    def cosines(self, queries: Queries) -> list[Cosines | None]:
        return [
            None if own is None else _cosines(matrix[: self._count], own)
            for matrix, own in zip(self._matrices, queries, strict=True)
        ]

    def cosines_of(self, slots: NDArray[np.int64], queries: Queries) -> list[Cosines | None]:
        return [
            None if own is None else _cosines(matrix[slots], own)
            for matrix, own in zip(self._matrices, queries, strict=True)
        ]

    def vectors(self, slots: NDArray[np.int64]) -> Floats:
        return np.concatenate([matrix[slots] for matrix in self._matrices], axis=1)

    def copy(self) -> "MatrixVectors":
        copy = MatrixVectors(self._dimensions)
        copy._count, copy._has_vector = self._count, self._has_vector.copy()
        copy._matrices = [matrix.copy() for matrix in self._matrices]
        return copy


class FiledVectors:
    """Vectors in a file, and a short code of each in memory, for approximate cosines.

    Codes are made again from all vectors each time that their number has doubled.
    """

    is_exact = False

    def __init__(self, dimensions: Sequence[int], new_file: NewFile) -> None:
        self.file = new_file(sum(dimensions))
        self._dimensions = tuple(dimensions)
        self._new_file = new_file
        self._count = 0
        self._rows = np.full(FIRST_CAPACITY, NO_ROW, np.int32)
        """The row of each slot in the file."""
        self._projection: Projection | None = None
        self._projected = 0
        """The number of slots when the projection was computed."""
        self._codes: Codes = np.zeros((FIRST_CAPACITY, 0), np.int8)
        self._private: dict[int, Floats] | None = None
        """In a copy, the vectors of changed slots: the file belongs to the original."""

    @classmethod
    def of(cls, vectors: SlotVectors, dimensions: Sequence[int], new_file: NewFile) -> "FiledVectors":
        """The same vectors in a file."""
        filed = cls(dimensions, new_file)
        filed._rows = np.full(max(FIRST_CAPACITY, len(vectors)), NO_ROW, np.int32)
        filed._count = len(vectors)
        found = np.flatnonzero(vectors.has_vector)
        for slots in _batches(found):
            first = filed.file.append(vectors.vectors(slots))
            filed._rows[slots] = np.arange(first, first + len(slots))
        filed._project()
        return filed

    @classmethod
    def restored(
        cls, dimensions: Sequence[int], new_file: NewFile, file: VectorFile, packed: Mapping[str, NDArray[Any]]
    ) -> "FiledVectors":
        """What `packed` returned, and its file."""
        filed = cls.__new__(cls)
        filed.file, filed._new_file, filed._dimensions = file, new_file, tuple(dimensions)
        filed._rows, filed._codes = packed["rows"], packed["codes"]
        filed._count, filed._projected = len(filed._rows), int(packed["projected"])
        filed._projection = Projection.unpacked(packed)
        filed._private = None
        return filed

    def packed(self, slots: NDArray[np.int64]) -> dict[str, NDArray[Any]]:
        """Everything but the file, for some slots, which have vectors."""
        projection = self._projection or Projection.fit(np.zeros((1, sum(self._dimensions)), np.float32))
        codes = self._codes if self._codes.shape[1] else np.zeros((len(self._rows), len(projection.steps)), np.int8)
        return {
            **projection.packed(),
            "rows": self._rows[slots],
            "codes": codes[slots],
            "projected": np.array(self._projected),
            "checksums": self.file.checksums.copy(),
            "file": np.array(self.file.id),
        }

    def __len__(self) -> int:
        return self._count

    @property
    def has_vector(self) -> NDArray[np.bool_]:
        return self._rows[: self._count] != NO_ROW

    def put(self, slot: int, vector: Floats | None) -> None:
        self._count = max(self._count, slot + 1)
        if slot >= len(self._rows):
            self._rows, self._codes = _doubled(self._rows), _doubled(self._codes)
        if vector is None:
            self._rows[slot] = NO_ROW
            return
        if self._private is None:
            self._rows[slot] = self.file.append(vector[None])
        else:
            self._rows[slot], self._private[slot] = len(self.file), vector
        if self._projection is not None:
            self._codes[slot] = self._projection.encode(vector[None])[0]
        if self._private is None and self._count >= 2 * self._projected:
            self._project()

    def drop(self, slot: int) -> None:
        self._count -= 1
        for array in (self._rows, self._codes):
            array[slot] = array[self._count]

    def cosines(self, queries: Queries) -> list[Cosines | None]:
        if self._projection is None or all(own is None for own in queries):
            return [None if own is None else (np.zeros(self._count, np.float32), None) for own in queries]
        codes = self._codes[: self._count]
        products = iter(self._projection.products(codes, in_a_row(queries, self._dimensions)))
        without = ~self.has_vector
        found: list[Cosines | None] = []
        for own in queries:
            if own is None:
                found.append(None)
                continue
            whole, *clauses = [next(products) for _ in own]
            nearest = np.maximum.reduce(clauses) if clauses else None
            for cosines in (whole, nearest):
                if cosines is not None:
                    cosines[without] = 0.0
            found.append((whole, nearest))
        return found

    def cosines_of(self, slots: NDArray[np.int64], queries: Queries) -> list[Cosines | None]:
        products = [np.zeros((0 if own is None else len(own), len(slots)), np.float32) for own in queries]
        ends = np.cumsum(self._dimensions)
        for batch in _batches(np.arange(len(slots))):
            vectors = self.vectors(slots[batch])
            for own, end, size, found in zip(queries, ends, self._dimensions, products, strict=True):
                if own is not None:
                    found[:, batch] = own @ vectors[:, end - size : end].T
        return [
            None if own is None else (found[0], found[1:].max(axis=0) if len(found) > 1 else None)
            for own, found in zip(queries, products, strict=True)
        ]

    def vectors(self, slots: NDArray[np.int64]) -> Floats:
        if not self._private:
            return self.file.read(self._rows[slots])
        is_private = np.isin(slots, list(self._private))
        found = np.empty((len(slots), sum(self._dimensions)), np.float32)
        found[~is_private] = self.file.read(self._rows[slots[~is_private]])
        found[is_private] = [self._private[slot] for slot in slots[is_private].tolist()]
        return found

    def rows(self, slots: NDArray[np.int64]) -> NDArray[np.int32]:
        """The rows of some slots in the file, which stay the same."""
        return self._rows[slots]

    def copy(self) -> "FiledVectors":
        copy = FiledVectors.restored(
            self._dimensions, self._new_file, self.file, self.packed(np.arange(self._count, dtype=np.int64))
        )
        copy._private = dict(self._private or {})
        return copy

    def compact(self) -> None:
        """Start a new file if most rows of this one are not used any more."""
        used = np.flatnonzero(self.has_vector)
        if len(self.file) <= 2 * len(used) + SAMPLE_ROWS:
            return
        file = self._new_file(sum(self._dimensions))
        rows = self._rows.copy()
        for slots in _batches(used):
            first = file.append(self.vectors(slots))
            rows[slots] = np.arange(first, first + len(slots))
        self.file, self._rows = file, rows

    def _project(self) -> None:
        """Compute the projection and all codes."""
        self._projected = self._count
        found = np.flatnonzero(self.has_vector)
        if not len(found):
            return
        sample = found[np.linspace(0, len(found) - 1, min(SAMPLE_ROWS, len(found))).astype(np.int64)]
        projection = Projection.fit(self.vectors(sample))
        codes = np.zeros((len(self._rows), len(projection.steps)), np.int8)
        for slots in _batches(found):
            codes[slots] = projection.encode(self.vectors(slots))
        self._projection, self._codes = projection, codes


def _cosines(matrix: Floats, queries: Floats) -> Cosines:
    return matrix @ queries[0], (matrix @ queries[1:].T).max(axis=1) if len(queries) > 1 else None


def _batches(slots: NDArray[np.int64]) -> list[NDArray[np.int64]]:
    return [slots[start : start + BATCH_ROWS] for start in range(0, len(slots), BATCH_ROWS)]


def _doubled(array: NDArray[Any]) -> NDArray[Any]:
    return np.concatenate((array, np.zeros_like(array)))
