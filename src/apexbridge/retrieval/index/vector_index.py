"""The index in memory, which searches read: documents, vectors and keywords, by slot.

A slot is a document's position in the index.
"""

import itertools
import math
import threading
from bisect import bisect_left
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager

import numpy as np
from numpy.typing import NDArray
from rapidfuzz import process
from rapidfuzz.distance import DamerauLevenshtein

from apexbridge.retrieval.documents import Document
from apexbridge.retrieval.embedders.model import Floats

FIRST_CAPACITY = 64
MIN_CORRECTED_LETTERS, LONG_WORD_LETTERS = 5, 8
"""A word may have one wrong letter from the first length on, and two from the second."""
MIN_PREFIX_LETTERS = 4
MAX_CORRECTED_WORDS = 8
"""Of a request."""
MAX_CORRECTIONS = 2
"""For each word."""
K1 = 1.2
B_SHORT, B_LONG = 0.75, 0.4
SHORT_TOKENS, LONG_TOKENS = 14.0, 22.0
"""`b` falls between these mean lengths: among short descriptions a long one is vague, among long ones specific."""


class VectorIndex:
    """Readers and writers hold its lock, so that no reader sees a partial change."""

    def __init__(self, dimensions: Sequence[int], *, lock: "threading.Lock | None" = None) -> None:
        """Two indexes with the same `lock` change together."""
        self.dimensions = tuple(dimensions)
        """Vector length of each model."""
        self.documents: list[Document] = []
        self.keywords = KeywordIndex()
        self.version = 0
        """Grows with every change."""
        self._slots: dict[str, int] = {}
        self._matrices = [np.zeros((FIRST_CAPACITY, size), np.float32) for size in self.dimensions]
        self._has_vector = np.zeros(FIRST_CAPACITY, np.bool_)
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
        slot = self._slots.get(document.name)
        if slot is None:
            slot = self._slots[document.name] = len(self.documents)
            self._ensure_capacity(slot + 1)
        self.documents[slot : slot + 1] = [document]
        self.keywords.put(slot, document.keywords())
        self._set_vector(slot, vector)
        self.version += 1

    def set_vectors(self, vectors: Sequence[Floats]) -> None:
        """Replace the vectors of all slots, in their order."""
        for slot, vector in enumerate(vectors):
            self._set_vector(slot, vector)
        self.version += 1

    def _set_vector(self, slot: int, vector: Floats | None) -> None:
        self._has_vector[slot] = vector is not None
        start = 0
        for matrix, size in zip(self._matrices, self.dimensions, strict=True):
            matrix[slot] = 0.0 if vector is None else vector[start : start + size]
            start += size

    def with_document(self, document: Document, vector: Floats | None) -> "VectorIndex":
        """A copy in which one document is replaced or added. The caller holds the lock of this one, not of the copy."""
        copy = VectorIndex(self.dimensions)
        copy.documents = list(self.documents)
        copy.keywords = self.keywords.copy()
        copy._slots = dict(self._slots)
        copy._matrices = [matrix.copy() for matrix in self._matrices]
        copy._has_vector = self._has_vector.copy()
        copy.put(document, vector)
        return copy

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
        self.version += bool(dropped)
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

    def _ensure_capacity(self, count: int) -> None:
        capacity = len(self._has_vector)
        if count > capacity:
            self._has_vector = np.concatenate((self._has_vector, np.zeros(capacity, np.bool_)))
            self._matrices = [
                np.concatenate((matrix, np.zeros((capacity, matrix.shape[1]), np.float32))) for matrix in self._matrices
            ]


class KeywordIndex:
    """BM25 over the tokens of each slot, in compact arrays."""

    def __init__(self) -> None:
        self._vocabulary: dict[str, int] = {}
        self._terms: list[NDArray[np.int32]] = []
        self._counts: list[Floats] = []
        self._is_built = False
        self._starts: NDArray[np.int64] = np.zeros(1, np.int64)
        self._slots: NDArray[np.int64] = np.zeros(0, np.int64)
        self._weights: Floats = np.zeros(0, np.float32)
        self._rarity: Floats = np.zeros(0, np.float32)
        self._plain_words: list[str] | None = None
        """Known words of ASCII letters, sorted; None until they are needed."""

    def copy(self) -> "KeywordIndex":
        """A copy that can be changed; its postings are built again at its first query."""
        copy = KeywordIndex()
        copy._vocabulary = dict(self._vocabulary)
        copy._terms, copy._counts = list(self._terms), list(self._counts)
        return copy

    def put(self, slot: int, tokens: Iterable[str]) -> None:
        counted = Counter(tokens)
        terms = [self._vocabulary.setdefault(token, len(self._vocabulary)) for token in counted]
        self._terms[slot : slot + 1] = [np.array(terms, np.int32)]
        self._counts[slot : slot + 1] = [np.fromiter(counted.values(), np.float32, len(counted))]
        self._is_built = False

    def drop(self, slot: int) -> None:
        """Remove a slot; the last one takes its number."""
        self._terms[slot], self._counts[slot] = self._terms[-1], self._counts[-1]
        self._terms.pop()
        self._counts.pop()
        self._is_built = False

    def score(self, tokens: Sequence[str]) -> Floats:
        """BM25 of every slot for a request."""
        self._build()
        scores = np.zeros(len(self._terms), np.float32)
        for term, times in Counter(self._known(tokens)).items():
            postings = slice(self._starts[term], self._starts[term + 1])
            scores[self._slots[postings]] += times * self._weights[postings]
        return scores

    def coverage(self, tokens: Sequence[str], translated: Sequence[str] = ()) -> float:
        """Share of the request's tokens that the index has; known translations count as well."""
        self._build()
        return (len(self._known(tokens)) + len(self._known(translated))) / len(tokens) if tokens else 0.0

    def matched(self, slot: int, tokens: Sequence[str]) -> tuple[list[str], float]:
        """The request's tokens that a slot has, and their share of the request's weight."""
        self._build()
        own = set(self._terms[slot].tolist())
        found, weight, total = [], 0.0, 0.0
        for token in dict.fromkeys(tokens):
            term = self._vocabulary.get(token)
            rarity = math.log1p((len(self._terms) + 0.5) / 0.5) if term is None else float(self._rarity[term])
            total += rarity
            if term in own:
                found.append(token)
                weight += rarity
        return found, weight / total if total else 0.0

    def corrections(self, tokens: Sequence[str]) -> dict[str, list[str]]:
        """For words that the index does not have, those that it has and that were probably meant.

        A word is mistyped, or only its beginning was typed.
        """
        self._build()
        unknown = [
            token
            for token in dict.fromkeys(tokens)
            if len(token) >= MIN_PREFIX_LETTERS and token.isascii() and token.isalpha() and not self._known([token])
        ]
        if not unknown:
            return {}
        if self._plain_words is None:
            words = (word for word in self._vocabulary if word.isascii() and word.isalpha())
            self._plain_words = sorted(word for word in words if self._known([word]))
        found = {token: _nearest(token, self._plain_words) for token in unknown[:MAX_CORRECTED_WORDS]}
        return {token: nearest for token, nearest in found.items() if nearest}

    def _known(self, tokens: Sequence[str]) -> list[int]:
        terms = (self._vocabulary.get(token) for token in tokens)
        return [term for term in terms if term is not None and self._starts[term + 1] > self._starts[term]]

    def _build(self) -> None:
        """Build the postings; done at the first query after a change."""
        if self._is_built:
            return
        self._is_built = True
        self._plain_words = None
        size, words = len(self._terms), len(self._vocabulary)
        lengths = np.fromiter((counts.sum() for counts in self._counts), np.float32, size)
        terms = np.concatenate(self._terms) if size else np.zeros(0, np.int32)
        counts = np.concatenate(self._counts) if size else np.zeros(0, np.float32)
        slots = np.repeat(np.arange(size), [len(own) for own in self._terms])
        order = np.argsort(terms, kind="stable")
        spread = np.bincount(terms, minlength=words)
        self._starts = np.concatenate(([0], np.cumsum(spread)))
        self._slots = slots[order]
        self._rarity = np.log1p((size - spread + 0.5) / (spread + 0.5)).astype(np.float32)
        mean = float(lengths.mean()) if size else 1.0
        b = np.interp(mean, (SHORT_TOKENS, LONG_TOKENS), (B_SHORT, B_LONG))
        counts = counts[order]
        damp = K1 * (1 - b + b * lengths[self._slots] / max(mean, 1e-9))
        self._weights = (self._rarity[terms[order]] * counts * (K1 + 1) / (counts + damp)).astype(np.float32)


def _nearest(token: str, words: Sequence[str]) -> list[str]:
    """Words with the same first letter and few other letters; else those that begin with the token."""
    first, end = bisect_left(words, token[0]), bisect_left(words, chr(ord(token[0]) + 1))
    if len(token) >= MIN_CORRECTED_LETTERS:
        limit = 1 if len(token) < LONG_WORD_LETTERS else 2
        found = process.extract(
            token, words[first:end], scorer=DamerauLevenshtein.distance, score_cutoff=limit, limit=MAX_CORRECTIONS
        )
        if found:
            return [word for word, distance, _ in found if distance == found[0][1]]
    start = bisect_left(words, token)
    longer = itertools.takewhile(lambda word: word.startswith(token), itertools.islice(words, start, None))
    return sorted(itertools.islice(longer, MAX_CORRECTIONS * 10), key=len)[:MAX_CORRECTIONS]
