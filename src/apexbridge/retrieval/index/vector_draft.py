"""Vectors of other models for the documents of an index, which is searched by its own vectors meanwhile."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager

import numpy as np
from numpy.typing import NDArray

from apexbridge.retrieval.documents import Document, kind_of
from apexbridge.retrieval.embedders.model import Floats
from apexbridge.retrieval.index.slot_vectors import FiledVectors, MatrixVectors, NewFile, SlotVectors
from apexbridge.retrieval.index.vector_file import VectorFileError
from apexbridge.retrieval.kinds import Kind


class VectorDraft:
    """Of one index. Those of many documents are in a file of their own. Not thread-safe."""

    def __init__(
        self, dimensions: Sequence[int], *, exact_limit: int, new_file: NewFile, is_filed: bool = False
    ) -> None:
        """`new_file` may raise OSError, and then this raises VectorFileError. `is_filed` is for a large index."""
        self._dimensions = tuple(dimensions)
        self._exact_limit = exact_limit
        self._new_file = new_file
        self._documents: list[Document] = []
        """By slot. Some of them are not in the index any more."""
        self._slots: dict[str, int] = {}
        self._vectors: SlotVectors = MatrixVectors(dimensions)
        if is_filed:
            with _file_errors():
                self._vectors = FiledVectors.draft(dimensions, new_file)

    def __len__(self) -> int:
        return len(self._slots)

    def has(self, document: Document) -> bool:
        slot = self._slots.get(document.name)
        return slot is not None and (self._documents[slot] is document or self._documents[slot] == document)

    def put(self, document: Document, vector: Floats) -> None:
        """Add or replace a document. Raises VectorFileError."""
        slot = self._slots.setdefault(document.name, len(self._documents))
        self._documents[slot : slot + 1] = [document]
        self._vectors.put(slot, vector)
        if self._vectors.is_exact and len(self._documents) > self._exact_limit:
            with _file_errors():
                self._vectors = FiledVectors.of(self._vectors, self._dimensions, self._new_file)

    def retain(self, names: Collection[str]) -> None:
        for name in [name for name in self._slots if name not in names]:
            del self._slots[name]

    def write(self) -> None:
        """Write what is due. Raises VectorFileError if the disk is full or read-only."""
        if isinstance(self._vectors, FiledVectors):
            self._vectors.file.write()

    def finish(self) -> None:
        """Write everything to the disk, and make it comparable. Raises VectorFileError."""
        if isinstance(self._vectors, FiledVectors):
            self._vectors.file.write(to_disk=True)
            self._vectors.finish()

    def arranged(self, documents: Sequence[Document]) -> SlotVectors | None:
        """The vectors in the order of these documents; None if one is missing. The draft is not used afterwards."""
        slots: NDArray[np.int64] = np.empty(len(documents), np.int64)
        known, own = self._slots, self._documents
        for position, document in enumerate(documents):
            slot = known.get(document.name)
            if slot is None or (own[slot] is not document and own[slot] != document):
                return None
            slots[position] = slot
        return self._vectors.arranged(slots)

    def discard(self) -> None:
        """Remove the file."""
        if isinstance(self._vectors, FiledVectors):
            self._vectors.file.remove()


@contextmanager
def _file_errors() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise VectorFileError(f"The new vectors cannot be written: {error.strerror}.") from error


class VectorDrafts:
    """Those of skills and of tools."""

    def __init__(self, new: Callable[[Kind], VectorDraft]) -> None:
        self.by_kind: Mapping[Kind, VectorDraft] = {"skill": new("skill"), "tool": new("tool")}

    def __len__(self) -> int:
        return sum(map(len, self.by_kind.values()))

    def missing(self, documents: Sequence[Document]) -> list[Document]:
        """Those of the documents that have no vector yet."""
        return [document for document in documents if not self.by_kind[document.kind].has(document)]

    def retain(self, names: Collection[str]) -> None:
        """Forget all others."""
        for draft in self.by_kind.values():
            draft.retain(names)

    def put(self, documents: Sequence[Document], vectors: Sequence[Floats]) -> None:
        """Add or replace documents. Raises VectorFileError."""
        for document, vector in zip(documents, vectors, strict=True):
            self.by_kind[kind_of(document.name)].put(document, vector)
        self.write()

    def write(self) -> None:
        """Write what is due. Raises VectorFileError."""
        for draft in self.by_kind.values():
            draft.write()

    def finish(self) -> None:
        """Prepare everything for the switch. Raises VectorFileError."""
        for draft in self.by_kind.values():
            draft.finish()

    def discard(self) -> None:
        """Remove the files."""
        for draft in self.by_kind.values():
            draft.discard()
