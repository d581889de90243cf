"""The vectors of an index by slot: a small index compares all of them, a large one only those that may be near."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from apexbridge.retrieval.embedders.model import Floats
from apexbridge.retrieval.index.projection import Codes, Projection
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
OpenFile = Callable[[str, NDArray[np.uint32]], VectorFile]
"""Opens the file with this id and rows with these checksums."""


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

    def arranged(self, slots: NDArray[np.int64]) -> "SlotVectors":
        """Those of some slots in this order; these ones are not used any more."""

    def packed(self, slots: NDArray[np.int64]) -> dict[str, NDArray[Any]]:
        """The vectors of some slots as arrays, without those in a file. `unpacked_vectors` accepts it."""


def unpacked_vectors(
    dimensions: Sequence[int], packed: Mapping[str, NDArray[Any]], *, open_file: OpenFile
) -> SlotVectors:
    """What `packed` returned."""
    if "matrix" in packed:
        return MatrixVectors.unpacked(dimensions, packed)
    file = open_file(str(packed["file"]), packed["checksums"])
    return FiledVectors.unpacked(dimensions, file, packed)


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
            self._has_vector = _with_room(self._has_vector)
            self._matrices = [_with_room(matrix) for matrix in self._matrices]
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

    def packed(self, slots: NDArray[np.int64]) -> dict[str, NDArray[Any]]:
        return {"matrix": self.vectors(slots)}

    @classmethod
    def unpacked(cls, dimensions: Sequence[int], packed: Mapping[str, NDArray[Any]]) -> "MatrixVectors":
        """What `packed` returned."""
        unpacked, matrix = cls(dimensions), packed["matrix"]
        if matrix.shape[1] != sum(dimensions):
            raise ValueError("the vectors have another length")
        unpacked._count = len(matrix)
        if len(matrix):
            parts = np.split(matrix, np.cumsum(unpacked._dimensions)[:-1], axis=1)
            unpacked._matrices = [np.ascontiguousarray(part) for part in parts]
            unpacked._has_vector = np.ones(len(matrix), np.bool_)
        return unpacked

    def arranged(self, slots: NDArray[np.int64]) -> "MatrixVectors":
        arranged = MatrixVectors(self._dimensions)
        arranged._count = len(slots)
        if len(slots):
            arranged._matrices = [matrix[slots] for matrix in self._matrices]
            arranged._has_vector = self._has_vector[slots]
        return arranged

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

    def __init__(self, dimensions: Sequence[int], file: VectorFile) -> None:
        self.file = file
        self._dimensions = tuple(dimensions)
        self._count = 0
        self._rows = np.full(FIRST_CAPACITY, NO_ROW, np.int32)
        """The row of each slot in the file."""
        self._projection: Projection | None = None
        self._filled = self._projected = 0
        """The number of vectors now, and when the projection was computed."""
        self._codes: Codes = np.zeros((FIRST_CAPACITY, 0), np.int8)
        self._is_draft = False
        """Whether there are no codes until `finish`."""
        self._private: dict[int, Floats] | None = None
        """In a copy, the vectors of changed slots: the file belongs to the original."""

    @classmethod
    def of(cls, vectors: SlotVectors, dimensions: Sequence[int], new_file: NewFile) -> "FiledVectors":
        """The same vectors in a file."""
        filed = cls(dimensions, new_file(sum(dimensions)))
        filed._rows = np.full(max(FIRST_CAPACITY, len(vectors)), NO_ROW, np.int32)
        filed._count = len(vectors)
        found = np.flatnonzero(vectors.has_vector)
        for slots in in_batches(found):
            first = filed.file.append(vectors.vectors(slots))
            filed._rows[slots] = np.arange(first, first + len(slots))
        filed._filled = len(found)
        filed._project()
        return filed

    @classmethod
    def draft(cls, dimensions: Sequence[int], new_file: NewFile) -> "FiledVectors":
        """For many vectors that are compared later, after `finish`."""
        filed = cls(dimensions, new_file(sum(dimensions)))
        filed._is_draft = True
        return filed

    def finish(self) -> None:
        """Compute the codes of a draft."""
        if self._is_draft:
            self._is_draft = False
            self._project()

    @classmethod
    def unpacked(
        cls, dimensions: Sequence[int], file: VectorFile, packed: Mapping[str, NDArray[Any]]
    ) -> "FiledVectors":
        """What `packed` returned, and its file."""
        if len(packed["rows"]) != len(packed["codes"]):
            raise ValueError("each vector needs a code")
        filed = cls(dimensions, file)
        filed._rows, filed._codes = packed["rows"], packed["codes"]
        filed._count, filed._projected = len(filed._rows), int(packed["projected"])
        filed._filled = int(np.count_nonzero(filed._rows != NO_ROW))
        filed._projection = Projection.unpacked(packed) if filed._projected else None
        return filed

    def packed(self, slots: NDArray[np.int64]) -> dict[str, NDArray[Any]]:
        """Everything but the file, for some slots."""
        return {
            **({} if self._projection is None else self._projection.packed()),
            "rows": self._rows[slots],
            "codes": self._codes[slots],
            "projected": np.array(self._projected),
            "checksums": self.file.checksums.copy(),
            "file": np.array(self.file.id),
        }

    def __len__(self) -> int:
        return self._count

    @property
    def has_vector(self) -> NDArray[np.bool_]:
        found: NDArray[np.bool_] = self._rows[: self._count] != NO_ROW
        return found

    def put(self, slot: int, vector: Floats | None) -> None:
        self._count = max(self._count, slot + 1)
        if slot >= len(self._rows):
            self._rows, self._codes = _with_room(self._rows), _with_room(self._codes)
            self._rows[slot:] = NO_ROW
        self._filled += int(vector is not None) - int(self._rows[slot] != NO_ROW)
        if vector is None:
            self._rows[slot] = NO_ROW
            return
        if self._private is None:
            self._rows[slot] = self.file.append(vector[None])
        else:
            self._rows[slot], self._private[slot] = len(self.file), vector
        if self._is_draft:
            return
        if self._projection is not None:
            self._codes[slot] = self._projection.encode(vector[None])[0]
        if self._private is None and self._filled >= 2 * self._projected:
            self._project()

    def drop(self, slot: int) -> None:
        self._count -= 1
        self._filled -= int(self._rows[slot] != NO_ROW)
        for array in (self._rows, self._codes):
            array[slot] = array[self._count]
        self._rows[self._count] = NO_ROW

    def cosines(self, queries: Queries) -> list[Cosines | None]:
        if self._projection is None or all(own is None for own in queries):
            return [None if own is None else (np.zeros(self._count, np.float32), None) for own in queries]
        ends = np.cumsum(self._dimensions)
        in_a_row = [  # for each model its own columns, and zeros for the other models
            None if own is None else np.pad(own, ((0, 0), (end - size, ends[-1] - end)))
            for own, size, end in zip(queries, self._dimensions, ends, strict=True)
        ]
        wholes = [own[0] for own in in_a_row if own is not None]
        clauses = [own[1:] for own in in_a_row if own is not None and len(own) > 1]
        products, of_clauses = self._projection.products(self._codes[: self._count], np.stack(wholes), clauses)
        if self._filled < self._count:
            without_vector = ~self.has_vector
            products[:, without_vector] = of_clauses[:, without_vector] = 0.0
        whole, nearest = iter(products), iter(of_clauses)
        return [None if own is None else (next(whole), next(nearest) if len(own) > 1 else None) for own in queries]

    def cosines_of(self, slots: NDArray[np.int64], queries: Queries) -> list[Cosines | None]:
        products = [np.zeros((0 if own is None else len(own), len(slots)), np.float32) for own in queries]
        ends = np.cumsum(self._dimensions)
        for batch in in_batches(np.arange(len(slots))):
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

    def copy(self) -> "FiledVectors":
        copy = FiledVectors.unpacked(self._dimensions, self.file, self.packed(np.arange(self._count, dtype=np.int64)))
        copy._private = dict(self._private or {})
        return copy

    def arranged(self, slots: NDArray[np.int64]) -> "FiledVectors":
        arranged = FiledVectors(self._dimensions, self.file)
        arranged._count = len(slots)
        if len(slots):
            arranged._rows, arranged._codes = self._rows[slots], self._codes[slots]
        arranged._filled = int(np.count_nonzero(arranged.has_vector))
        arranged._projection, arranged._projected = self._projection, self._projected
        return arranged

    def start_new_file(self, new_file: NewFile) -> None:
        """Copy the rows that are used to a new file."""
        used = np.flatnonzero(self.has_vector)
        file = new_file(sum(self._dimensions))
        rows = self._rows.copy()
        for slots in in_batches(used):
            first = file.append(self.vectors(slots))
            rows[slots] = np.arange(first, first + len(slots))
        self.file, self._rows = file, rows

    @property
    def is_mostly_unused(self) -> bool:
        """Whether most rows of the file belong to vectors that were replaced or removed."""
        return len(self.file) > 2 * self._filled + SAMPLE_ROWS

    def _project(self) -> None:
        """Compute the projection and all codes."""
        self._projected = self._filled
        found = np.flatnonzero(self.has_vector)
        if not len(found):
            return
        sample = found[np.linspace(0, len(found) - 1, min(SAMPLE_ROWS, len(found))).astype(np.int64)]
        projection = Projection.fit(self.vectors(sample))
        codes = np.zeros((len(self._rows), len(projection.steps)), np.int8)
        for slots in in_batches(found):
            codes[slots] = projection.encode(self.vectors(slots))
        self._projection, self._codes = projection, codes


def _cosines(matrix: Floats, queries: Floats) -> Cosines:
    return matrix @ queries[0], (matrix @ queries[1:].T).max(axis=1) if len(queries) > 1 else None


def in_batches(slots: NDArray[np.int64]) -> list[NDArray[np.int64]]:
    return [slots[start : start + BATCH_ROWS] for start in range(0, len(slots), BATCH_ROWS)]


def _with_room(array: NDArray[Any]) -> NDArray[Any]:
    """The array with room for more rows."""
    more = max(FIRST_CAPACITY, len(array) // 4)
    return np.concatenate((array, np.zeros((more, *array.shape[1:]), array.dtype)))
