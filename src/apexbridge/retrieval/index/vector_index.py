"""The index in memory, which searches read: documents, vectors and keywords, by slot.

A slot is a document's position in the index.
"""

import json
import threading
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from operator import attrgetter
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from apexbridge.retrieval.documents import Document
from apexbridge.retrieval.embedders.model import Floats
from apexbridge.retrieval.index.keyword_index import KeywordIndex
from apexbridge.retrieval.index.slot_vectors import (
    BATCH_ROWS,
    FiledVectors,
    MatrixVectors,
    NewFile,
    OpenFile,
    SlotVectors,
    in_batches,
    unpacked_vectors,
)
from apexbridge.retrieval.index.vector_draft import VectorDraft
from apexbridge.retrieval.index.vector_file import VectorFile
from apexbridge.retrieval.packed_body import BodyFile, PackedBody
from apexbridge.retrieval.text import tokens

MAX_UNUSED_BODY_BYTES = 10_000_000
"""Of bodies that were replaced or removed, in the file."""
EXACT_LIMIT = 10_000
"""Up to this size, all vectors are in memory and compared. Above it, they are in a file, and the nearest compared."""


class VectorIndex:
    """Readers and writers hold its lock, so that no reader sees a partial change."""

    def __init__(
        self,
        dimensions: Sequence[int],
        *,
        lock: "threading.Lock | None" = None,
        exact_limit: int | None = None,
        new_file: NewFile = VectorFile.temporary,
    ) -> None:
        """Two indexes with the same `lock` change together. `new_file` creates the file of a large index."""
        self.dimensions = tuple(dimensions)
        """Vector length of each model."""
        self.documents: list[Document] = []
        self.keywords = KeywordIndex()
        self.vectors: SlotVectors = MatrixVectors(self.dimensions)
        self._bodies: BodyFile | None = None
        """Of a large index."""
        self.version = 0
        """Grows with every change."""
        self._slots: dict[str, int] = {}
        self._tags = KeywordIndex()
        """Tags in lower case, as words that are found whole."""
        self._hidden: set[str] = set()
        """Names that models must not find."""
        self._exact_limit = EXACT_LIMIT if exact_limit is None else exact_limit
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
        vector: Floats = self.vectors.vectors(np.array([slot]))[0]
        return vector

    def without_vector(self) -> list[str]:
        """Skills that are found by their words only."""
        return [self.documents[slot].name for slot in np.flatnonzero(~self.has_vector)]

    def put(self, document: Document, vector: Floats | None) -> None:
        slot = self._slots.setdefault(document.name, len(self.documents))
        if slot == len(self.documents) or self.documents[slot] != document:
            self.documents[slot : slot + 1] = [self._held(document)]
            self.keywords.put(slot, document.keywords(), body=tokens(document.body), name=tokens(document.label))
            self._tags.put(slot, document.folded_tags)
            (self._hidden.add if document.hidden else self._hidden.discard)(document.name)
        self.vectors.put(slot, vector)
        self._changed()

    def copy(self) -> "VectorIndex":
        """A copy that can be changed. The caller holds the lock of this one, not of the copy."""
        copy = VectorIndex(self.dimensions, exact_limit=max(self._exact_limit, len(self) + 1), new_file=self._new_file)
        copy.replace_all(self)
        copy.documents, copy._slots, copy._hidden = list(self.documents), dict(self._slots), set(self._hidden)
        copy._bodies = None  # the file belongs to the original
        copy.keywords, copy._tags, copy.vectors = self.keywords.copy(), self._tags.copy(), self.vectors.copy()
        return copy

    def replace_all(self, other: "VectorIndex") -> None:
        """Take over everything of another index, which is not used any more."""
        self.documents, self._slots, self._hidden = other.documents, other._slots, other._hidden
        self.keywords, self._tags, self.vectors = other.keywords, other._tags, other.vectors
        self._bodies = other._bodies
        self.dimensions = other.dimensions
        self.version += 1

    def draft(self, dimensions: Sequence[int], new_file: NewFile) -> VectorDraft:
        """For vectors of other models. Raises VectorFileError."""
        is_filed = not self.vectors.is_exact
        return VectorDraft(dimensions, exact_limit=self._exact_limit, new_file=new_file, is_filed=is_filed)

    def set_vectors(self, dimensions: Sequence[int], vectors: SlotVectors) -> None:
        """Replace the vectors of all slots by those of other models."""
        self.dimensions, self.vectors = tuple(dimensions), vectors
        self._changed()

    def drop_vectors(self) -> None:
        """Keep the words only."""
        self.vectors = MatrixVectors(self.dimensions)
        for slot in range(len(self)):
            self.vectors.put(slot, None)
        self._changed()

    def ensure_file(self, path: Path) -> bool:
        """Make sure that the vectors of a large index are at this path and on disk; False if that failed.

        The vectors of a small index are in memory. They need no file, so one at this path is removed.
        """
        if not isinstance(self.vectors, FiledVectors):
            path.unlink(missing_ok=True)
            return True
        if self._bodies is not None and self._bodies.size > 2 * self._body_bytes() + MAX_UNUSED_BODY_BYTES:
            self._file_bodies()
        with suppress(OSError):
            self.vectors.file.move(path)
        if self.vectors.is_mostly_unused or not self.vectors.file.is_at(path):
            self.vectors.start_new_file(self._new_file)
        return self.vectors.file.is_at(path) and self.vectors.file.flush()

    def flush(self) -> None:
        """Write the vectors of a large index to the disk, as far as possible. The caller need not hold the lock."""
        if isinstance(vectors := self.vectors, FiledVectors):
            vectors.file.flush()

    def stored(self) -> Iterator[list[tuple[Document, Floats]]]:
        """All documents that have a vector, with it, in batches."""
        for slots in in_batches(np.flatnonzero(self.has_vector)):
            yield [
                (self.documents[slot], vector)
                for slot, vector in zip(slots.tolist(), self.vectors.vectors(slots), strict=True)
            ]

    def packed(self) -> dict[str, NDArray[Any]]:
        """All documents that have a vector, as arrays. `unpacked` accepts it."""
        slots = np.flatnonzero(self.has_vector)
        documents = [self.documents[slot] for slot in slots]
        lines = [_json_of(documents[start : start + BATCH_ROWS]) for start in range(0, len(documents), BATCH_ROWS)]
        parts: dict[str, Mapping[str, NDArray[Any]]] = {
            "keywords": self.keywords.packed(slots),
            "tags": self._tags.packed(slots),
            "vectors": self.vectors.packed(slots),
        }
        bodies = bytearray()  # a list of them would need twice the memory
        for document in documents:
            bodies += document.packed_body.data()
        return {
            "documents": np.frombuffer("\n".join(lines).encode(), np.uint8),
            "bodies": np.frombuffer(bodies, np.uint8),
            "body_sizes": np.array([document.packed_body.size for document in documents], np.int32),
            "body_digests": np.array([document.packed_body.digest for document in documents], np.uint64),
            **{f"{part}/{name}": array for part, arrays in parts.items() for name, array in arrays.items()},
        }

    @classmethod
    def unpacked(
        cls,
        dimensions: Sequence[int],
        packed: Mapping[str, NDArray[Any]],
        *,
        open_file: OpenFile,
    ) -> "VectorIndex":
        """What `packed` returned. `open_file` opens the file of a large index."""
        index = cls(dimensions)
        index.vectors = unpacked_vectors(index.dimensions, _part(packed, "vectors"), open_file=open_file)
        bodies = index._unpacked_bodies(packed)
        text = packed["documents"].tobytes().decode()
        index.documents = [document for line in text.splitlines() for document in _documents_of(line, bodies)]
        index._slots = {document.name: slot for slot, document in enumerate(index.documents)}
        index._hidden = {document.name for document in index.documents if document.hidden}
        index.keywords.restore(_part(packed, "keywords"))
        index._tags.restore(_part(packed, "tags"))
        if not len(index) == len(index.vectors) == len(index.keywords) == len(index._tags):
            raise ValueError("the parts of the index have different sizes")
        return index

    def with_document(self, document: Document, vector: Floats | None) -> "VectorIndex":
        """A copy in which one document is replaced or added. The caller holds the lock of this one, not of the copy."""
        copy = self.copy()
        copy.put(document, vector)
        return copy

    def reshape(self, dimensions: Sequence[int]) -> None:
        """Change the length of vectors; vectors of another length are dropped."""
        if tuple(dimensions) != self.dimensions:
            self.dimensions = tuple(dimensions)
            self.drop_vectors()

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
            self._file_bodies()
        elif not self.vectors.is_exact and len(self) < self._exact_limit // 2:
            self.vectors = MatrixVectors.of(self.vectors, self.dimensions)

    def _held(self, document: Document) -> Document:
        """The document as this index keeps it: bodies of a large index are in a file, if there can be one."""
        if self.vectors.is_exact or document.packed_body.is_filed:
            return document
        try:
            self._bodies = self._bodies or BodyFile()
            return replace(document, packed_body=document.packed_body.filed(self._bodies))
        except OSError:
            return document

    def _file_bodies(self) -> None:
        """Write the bodies of all documents to a new file."""
        with suppress(OSError):
            file = BodyFile()
            filed = [replace(document, packed_body=document.packed_body.filed(file)) for document in self.documents]
            self.documents, self._bodies = filed, file

    def _unpacked_bodies(self, packed: Mapping[str, NDArray[Any]]) -> Iterator[PackedBody]:
        """The bodies of all documents, in a file if the index is large."""
        data, begin = packed["bodies"].tobytes(), 0
        if not self.vectors.is_exact:
            with suppress(OSError):
                file = BodyFile()
                file.append(data)
                self._bodies = file
        for size, digest in zip(packed["body_sizes"].tolist(), packed["body_digests"].tolist(), strict=True):
            if self._bodies is None:
                yield PackedBody.known(digest, data[begin : begin + size])
            else:
                yield PackedBody.in_file(digest, self._bodies, begin, size)
            begin += size

    def _body_bytes(self) -> int:
        return sum(document.packed_body.size for document in self.documents)

    def allowed(self, tags: Collection[str], *, for_model: bool) -> NDArray[np.bool_] | None:
        """Which slots have one of the tags, in lower case, and may be found by a model; None without filters."""
        if not tags and not for_model:
            return None
        is_allowed = self._tags.score(list(tags)) > 0 if tags else np.ones(len(self), np.bool_)
        if for_model:
            is_allowed[[self._slots[name] for name in self._hidden]] = False
        return is_allowed


_COLUMNS = ("name", "description", "tags", "derived_tags", "hidden", "version")
_values = attrgetter(*_COLUMNS)


def _json_of(documents: Sequence[Document]) -> str:
    """A line of JSON with a list for each column. One line for all would block other threads while it is encoded."""
    return json.dumps(list(zip(*map(_values, documents), strict=True)))


def _documents_of(line: str, bodies: Iterator[PackedBody]) -> Iterator[Document]:
    for name, description, tags, derived_tags, hidden, version in zip(*json.loads(line), strict=True):
        yield Document(
            name=name,
            description=description,
            tags=tuple(tags),
            derived_tags=tuple(derived_tags),
            packed_body=next(bodies),
            hidden=hidden,
            version=version,
        )


def _part(packed: Mapping[str, NDArray[Any]], part: str) -> dict[str, NDArray[Any]]:
    return {name.removeprefix(f"{part}/"): packed[name] for name in packed if name.startswith(f"{part}/")}
