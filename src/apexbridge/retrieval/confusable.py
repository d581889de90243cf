"""Finds pairs of skills and tools that are easily confused: a request for one would plausibly be answered by the other.

Two are compared as search compares a request with them: by the meaning and by the words of name, description and tags.
What counts is how far a pair stands out. Hundreds of skills whose descriptions follow one pattern are near each other,
but requests distinguish them by the one word that differs.
"""

import math
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from apexbridge.retrieval.documents import Document
from apexbridge.retrieval.embedders.model import EmbeddingError, Floats, Model, normalized
from apexbridge.retrieval.index.projection import Codes, Projection
from apexbridge.retrieval.index.slot_vectors import SlotVectors, in_batches
from apexbridge.retrieval.index.vector_index import VectorIndex
from apexbridge.retrieval.kinds import Kind
from apexbridge.retrieval.text import has_cjk, is_english, plain_words, tokens
from apexbridge.wire import WireModel

MIN_SCORE = 0.45
"""Of a pair that is reported. See docs/adr/0093."""
MEANING_WEIGHT, WORDS_WEIGHT = 0.7, 0.3
NEIGHBOURS = 20
"""Nearest documents that each one is compared with. The last of them shows how near others are anyway."""
UNSEEN_DOCUMENTS = 20
"""Added to the size of the library: in a small one, a word of two documents is not common yet."""
MIN_DISTANCE = 0.01
"""Where all are nearly the same, how much nearer than the others a pair must be to count as the same."""
MAX_NEAR_PAIRS = 50_000
"""The pairs that stand out most are compared by their words."""
BLOCK_ROWS = 2048
"""Documents whose products are computed at a time."""
FIRST_ROWS = 128
READ_ROWS = 64
"""Documents that are read with their neighbours at a time."""
SAMPLED_ROWS = 2048
"""Documents that the codes are computed from."""
EXACT_ROWS = 10_000
"""Up to this number, the vectors are compared. Above it, short codes of them find the neighbours."""
CODES_MARGIN = 0.1
"""How much less a pair may stand out by the codes, to be compared exactly."""
MAX_WORDS = 5


class ConfusableOne(WireModel):
    """One of a pair."""

    kind: Kind = Field(description="skill, or tool for a tool of an MCP server.")
    name: str = Field(description="The name of the skill, or the id of the tool.")
    own_words: list[str] = Field(description="Words that the other one does not have, the rarest first, at most 5.")


class ConfusablePair(WireModel):
    """Two skills or tools that are easily confused."""

    first: ConfusableOne
    second: ConfusableOne
    score: float = Field(description="0 to 1; 1 is the same description.")
    duplicate: bool = Field(description="Whether both have the same description.")
    shared_words: list[str] = Field(description="Words that both have, the rarest first, at most 5.")


class ConfusableReport(WireModel):
    pairs: list[ConfusablePair] = Field(description="The most similar first.")
    total: int = Field(description="Pairs of all pages.")
    page: int
    limit: int
    compared: int = Field(description="Skills and tools.")
    warnings: list[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """A copy of what is compared, so that the index is not locked meanwhile."""

    documents: list[Document]
    has_vector: NDArray[np.bool_]
    dimensions: tuple[int, ...]
    vectors: list[SlotVectors]
    """One for each index. Those of a large index stay in its file."""

    @classmethod
    def copy_of(cls, indexes: Sequence[VectorIndex]) -> "Compared":
        """The caller holds the lock of the indexes."""
        return cls(
            documents=[document for index in indexes for document in index.documents],
            has_vector=np.concatenate([index.has_vector for index in indexes]),
            dimensions=indexes[0].dimensions,
            vectors=[index.vectors.copy() for index in indexes],
        )

    def matrices(self, numbers: NDArray[np.int64]) -> list[Floats]:
        """The vectors of some documents that have one: a matrix for each model."""
        found = np.empty((len(numbers), sum(self.dimensions)), np.float32)
        begin = 0
        for own in self.vectors:
            is_own = (numbers >= begin) & (numbers < begin + len(own))
            found[is_own] = own.vectors(numbers[is_own] - begin)
            begin += len(own)
        return np.split(found, np.cumsum(self.dimensions)[:-1], axis=1)


class ScoredPair(NamedTuple):
    """Two documents, by their number, and how similar they are."""

    first: int
    second: int
    score: float
    is_duplicate: bool


class ConfusablePairs:
    """The pairs of a library, the most similar first."""

    def __init__(self, compared: Compared, models: Sequence[Model]) -> None:
        self.documents = compared.documents
        self.warnings: list[str] = []
        self._words = _Words(compared.documents)
        pairs: list[ScoredPair] = []
        same: dict[str, list[int]] = {}
        for number, document in enumerate(compared.documents):
            same.setdefault(" ".join(document.description.casefold().split()), []).append(number)
        for first, *others in same.values():
            pairs += [ScoredPair(first, other, 1.0, is_duplicate=True) for other in others]
        chosen = np.array([first for first, *_ in same.values() if compared.has_vector[first]], np.int64)
        try:
            pairs += self._similar(compared, chosen, models)
        except EmbeddingError as error:
            self.warnings.append(f"{error} Only equal descriptions are listed.")
        if without := int(np.count_nonzero(~compared.has_vector)):
            self.warnings.append(
                f"{without} of {len(self.documents)} skills and tools are not indexed by meaning yet. "
                "Of these, only equal descriptions are listed."
            )
        self.scored = sorted(pairs, key=lambda pair: (-pair.score, not pair.is_duplicate, pair.first, pair.second))

    def _similar(self, compared: Compared, chosen: NDArray[np.int64], models: Sequence[Model]) -> Iterator[ScoredPair]:
        if len(chosen) < 2:
            return
        meaning = _Meaning(compared, chosen, models)
        for row, other_row, likeness in meaning.near_pairs():
            first, second = sorted((row, other_row))
            score = MEANING_WEIGHT * likeness + WORDS_WEIGHT * self._words.similarity(first, second)
            if score >= MIN_SCORE:
                yield ScoredPair(first, second, min(score, 1.0), is_duplicate=False)

    def described(self, pair: ScoredPair) -> ConfusablePair:
        """The pair with the words that both share, and those that tell them apart."""
        one, other = self._words.of(pair.first), self._words.of(pair.second)
        return ConfusablePair(
            first=self._one(pair.first, one - other),
            second=self._one(pair.second, other - one),
            score=round(pair.score, 2),
            duplicate=pair.is_duplicate,
            shared_words=self._words.rarest(pair.first, one & other),
        )

    def _one(self, number: int, own_words: Collection[str]) -> ConfusableOne:
        document = self.documents[number]
        return ConfusableOne(kind=document.kind, name=document.label, own_words=self._words.rarest(number, own_words))


class _Meaning:
    """Similarity of meaning of pairs: 0 is unrelated, 1 is the same."""

    def __init__(self, compared: Compared, chosen: NDArray[np.int64], models: Sequence[Model]) -> None:
        self._compared = compared
        self._every = _Weighting(models, range(len(models)))
        multilingual = [number for number, model in enumerate(models) if not model.english_only]
        self._multilingual = self._every
        self._first_foreign = len(chosen)
        """The documents from this row on are those that an English model cannot read."""
        if multilingual and len(multilingual) < len(models):
            self._multilingual = _Weighting(models, multilingual)
            is_foreign = np.array([not is_english(compared.documents[number].description) for number in chosen])
            chosen = np.concatenate((chosen[~is_foreign], chosen[is_foreign]))
            self._first_foreign -= int(np.count_nonzero(is_foreign))
        self._numbers = chosen

    def near_pairs(self) -> Iterator[tuple[int, int, float]]:
        """Pairs that stand out by their meaning: the numbers of two documents, and how far they do, 0 to 1."""
        size = len(self._numbers)
        nearest, likeness = self._nearest(min(NEIGHBOURS, size - 1))
        required = (MIN_SCORE - WORDS_WEIGHT) / MEANING_WEIGHT
        standing_out = _standing_out(nearest, likeness)
        if size > EXACT_ROWS:
            promising = standing_out >= required - CODES_MARGIN
            involved = np.unique(np.concatenate((np.flatnonzero(promising.any(axis=1)), nearest[promising])))
            for start in range(0, len(involved), READ_ROWS):
                rows = involved[start : start + READ_ROWS]
                likeness[rows] = self._exact(rows, nearest[rows])
            standing_out = _standing_out(nearest, likeness)
            standing_out[~promising] = -np.inf
        found: dict[tuple[int, int], float] = {}
        enough = np.argwhere(standing_out >= required)
        if len(enough) > 2 * MAX_NEAR_PAIRS:  # most pairs are found from both sides
            order = np.argsort(-standing_out[tuple(enough.T)], kind="stable")
            enough = enough[order[: 2 * MAX_NEAR_PAIRS]]
        for row, column in enough.tolist():
            one, other = int(self._numbers[row]), int(self._numbers[nearest[row, column]])
            found[min(one, other), max(one, other)] = float(standing_out[row, column])
        for (one, other), value in found.items():
            yield one, other, value

    def _nearest(self, count: int) -> tuple[NDArray[np.int32], Floats]:
        """The nearest rows of each row, and their similarity. Each block of the symmetric products is computed once."""
        every = self._every.rows_of(self._compared, self._numbers)
        has_foreign = self._first_foreign < len(self._numbers)
        multilingual = self._multilingual.rows_of(self._compared, self._numbers) if has_foreign else every

        def products(rows: slice, columns: slice) -> Floats:
            block = every.products(rows, columns)
            foreign = slice(max(self._first_foreign, columns.start), columns.stop)
            if foreign.start < foreign.stop:
                block[:, foreign.start - columns.start :] = multilingual.products(rows, foreign)
            foreign = slice(max(self._first_foreign, rows.start), rows.stop)
            if foreign.start < foreign.stop:
                block[foreign.start - rows.start :] = multilingual.products(foreign, columns)
            return block

        found = _Nearest(len(self._numbers), count)
        blocks = [
            slice(start, min(start + BLOCK_ROWS, len(self._numbers)))
            for start in range(0, len(self._numbers), BLOCK_ROWS)
        ]
        for rows in blocks:  # first, because the nearest of them are a limit that most others do not reach
            block = products(rows, rows)
            np.fill_diagonal(block, -np.inf)
            for start in range(0, len(block), FIRST_ROWS):  # all are near so far, which takes memory
                part = block[start : start + FIRST_ROWS]
                found.add(slice(rows.start + start, rows.start + start + len(part)), rows, part)
        for number, rows in enumerate(blocks):
            for columns in blocks[number + 1 :]:
                block = products(rows, columns)
                found.add(rows, columns, block)
                found.add(columns, rows, block.T)
        return found.rows, found.similarity

    def _exact(self, rows: NDArray[np.int64], nearest: NDArray[np.int32]) -> Floats:
        """The similarity of some rows and their neighbours."""
        read, places = np.unique(np.concatenate((rows[:, None], nearest), axis=1), return_inverse=True)
        places = places.reshape(len(rows), -1)
        matrices = self._compared.matrices(self._numbers[read])

        def similarity(weighting: "_Weighting") -> Floats:
            vectors = weighting.combined(matrices)
            own = np.stack([vectors[place[1:]] @ vectors[place[0]] for place in places])
            return (own - np.float32(weighting.offset)).astype(np.float32)

        found = similarity(self._every)
        if self._multilingual is not self._every:
            is_foreign = np.maximum(rows[:, None], nearest) >= self._first_foreign
            found[is_foreign] = similarity(self._multilingual)[is_foreign]
        return found


def _standing_out(nearest: NDArray[np.int32], likeness: Floats) -> Floats:
    """How far each neighbour is nearer than others are anyway."""
    size, count = nearest.shape
    usual = np.zeros(size, np.float32) if count < NEIGHBOURS else likeness.min(axis=1).clip(0, 1)
    base = (usual[:, None] + usual[nearest]) / 2
    return ((likeness - base) / np.maximum(1 - base, MIN_DISTANCE)).astype(np.float32, copy=False)


class _Weighting:
    """Combines the vectors of models, so that products minus an offset are the weighted mean of their similarities."""

    def __init__(self, models: Sequence[Model], chosen: Collection[int]) -> None:
        total = sum(models[number].weight for number in chosen)
        self._factors: dict[int, np.float32] = {}
        self.offset = 0.0
        for number in chosen:
            unrelated = models[number].scale().unrelated
            weight = models[number].weight / total / (1 - unrelated)
            self._factors[number] = np.float32(math.sqrt(weight))
            self.offset += weight * unrelated

    def combined(self, matrices: Sequence[Floats]) -> Floats:
        return np.concatenate([factor * normalized(matrices[own]) for own, factor in self._factors.items()], axis=1)

    def rows_of(self, compared: Compared, numbers: NDArray[np.int64]) -> "_Rows":
        """The combined vectors of some documents; codes of them if they are many."""

        def combined(some: NDArray[np.int64]) -> Floats:
            return self.combined(compared.matrices(some))

        if len(numbers) <= EXACT_ROWS:
            return _Rows(combined(numbers), np.float32(1), np.float32(0), self.offset)
        sample = np.linspace(0, len(numbers) - 1, min(SAMPLED_ROWS, len(numbers))).astype(np.int64)
        projection = Projection.fit(combined(numbers[sample]))
        codes = np.concatenate([projection.encode(combined(batch)) for batch in in_batches(numbers)])
        mean = projection.mean @ projection.basis
        # What the mean has outside of the subspace is the same in all products.
        return _Rows(
            codes, projection.steps, mean, self.offset - float(projection.mean @ projection.mean - mean @ mean)
        )


@dataclass(frozen=True, slots=True)
class _Rows:
    """Vectors, or codes of them."""

    _matrix: Floats | Codes
    _steps: Floats | np.float32
    _shift: Floats | np.float32
    _offset: float

    def products(self, rows: slice, columns: slice) -> Floats:
        products: Floats = self._decoded(rows) @ self._decoded(columns).T
        products -= np.float32(self._offset)
        return products

    def _decoded(self, rows: slice) -> Floats:
        return (self._matrix[rows] * self._steps + self._shift).astype(np.float32, copy=False)


class _Nearest:
    """The nearest neighbours found so far."""

    def __init__(self, size: int, count: int) -> None:
        self.rows: NDArray[np.int32] = np.zeros((size, count), np.int32)
        self.similarity: Floats = np.full((size, count), -np.inf, np.float32)

    def add(self, rows: slice, columns: slice, block: Floats) -> None:
        """Take over those that are nearer, of the similarities of some rows to others."""
        known = self.similarity[rows]
        limit = known.min(axis=1)
        if block.flags.c_contiguous:
            own, other = np.divmod(np.flatnonzero(block > limit[:, None]), block.shape[1])
        else:  # in the order of memory, which is much faster
            other, own = np.divmod(np.flatnonzero(limit < block.T), block.shape[0])
            order = np.argsort(own, kind="stable")
            own, other = own[order], other[order]
        if not len(own):
            return
        counts = np.bincount(own, minlength=len(known))
        changed = np.flatnonzero(counts)
        count = known.shape[1]
        line = np.repeat(np.arange(len(changed)), counts[changed])
        place = count + np.arange(len(own)) - np.repeat(np.cumsum(counts[changed]) - counts[changed], counts[changed])
        similarity = np.full((len(changed), count + counts.max()), -np.inf, np.float32)
        found = np.zeros(similarity.shape, np.int32)
        similarity[:, :count], found[:, :count] = known[changed], self.rows[rows][changed]
        similarity[line, place], found[line, place] = block[own, other], columns.start + other
        best = np.argpartition(similarity, -count, axis=1)[:, -count:]
        self.similarity[rows.start + changed] = np.take_along_axis(similarity, best, axis=1)
        self.rows[rows.start + changed] = np.take_along_axis(found, best, axis=1)


class _Words:
    """Compares documents by their words; rare words count more."""

    def __init__(self, documents: Sequence[Document]) -> None:
        self._documents = documents
        self._known: dict[int, frozenset[str]] = {}
        counts = Counter(word for document in documents for word in set(document.keywords()))
        size = len(documents) + UNSEEN_DOCUMENTS
        self._rarity = {word: math.log(size / count) for word, count in counts.items()}

    def of(self, number: int) -> frozenset[str]:
        """Those of a document, which are kept: only documents of near pairs are asked for."""
        if number not in self._known:
            self._known[number] = frozenset(self._documents[number].keywords())
        return self._known[number]

    def similarity(self, first: int, second: int) -> float:
        """0 without a word in common, 1 with the same words."""
        one, other = self.of(first), self.of(second)
        length = math.sqrt(self._weight(one) * self._weight(other))
        return self._weight(one & other) / length if length else 0.0

    def _weight(self, words: Collection[str]) -> float:
        return sum(self._rarity[word] ** 2 for word in words)

    def rarest(self, number: int, words: Collection[str]) -> list[str]:
        """As the document has them, not as stems."""
        document = self._documents[number]
        words_of_text = plain_words(f"{document.label} {document.description} {' '.join(document.tags)}")
        written = {token: word for word in reversed(words_of_text) if not has_cjk(word) for token in tokens(word)}
        rarest = sorted(words, key=lambda word: (-self._rarity[word], word))[:MAX_WORDS]
        return [written.get(word, word) for word in rarest]
