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
BLOCK_ROWS = 512
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
    matrices: list[Floats]
    """One for each model, a row for each document."""

    @classmethod
    def copy_of(cls, indexes: Sequence[VectorIndex]) -> "Compared":
        """The caller holds the lock of the indexes."""
        dimensions = indexes[0].dimensions
        has_vector = np.concatenate([index.has_vector for index in indexes])
        matrix = np.zeros((len(has_vector), sum(dimensions)), np.float32)
        found = [index.vectors.vectors(np.flatnonzero(index.has_vector)) for index in indexes]
        matrix[has_vector] = np.concatenate(found)
        return cls(
            documents=[document for index in indexes for document in index.documents],
            has_vector=has_vector,
            matrices=np.split(matrix, np.cumsum(dimensions)[:-1], axis=1),
        )


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
        matrices = [own[chosen] for own in compared.matrices]
        meaning = _Meaning([compared.documents[number] for number in chosen], matrices, models)
        for row, other_row, likeness in meaning.near_pairs():
            first, second = sorted((int(chosen[row]), int(chosen[other_row])))
            score = MEANING_WEIGHT * likeness + WORDS_WEIGHT * self._words.similarity(first, second)
            if score >= MIN_SCORE:
                yield ScoredPair(first, second, min(score, 1.0), is_duplicate=False)

    def described(self, pair: ScoredPair) -> ConfusablePair:
        """The pair with the words that both share, and those that tell them apart."""
        one, other = self._words.of[pair.first], self._words.of[pair.second]
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
    """Similarity of meaning of all pairs: 0 is unrelated, 1 is the same."""

    def __init__(self, documents: Sequence[Document], matrices: Sequence[Floats], models: Sequence[Model]) -> None:
        multilingual = [number for number, model in enumerate(models) if not model.english_only]
        self._all, self._all_offset = _combined(matrices, models, range(len(models)))
        self._multilingual, self._multilingual_offset = self._all, self._all_offset
        self._foreign = np.zeros(0, np.int64)
        """Rows that an English model cannot read."""
        if multilingual and len(multilingual) < len(models):
            self._multilingual, self._multilingual_offset = _combined(matrices, models, multilingual)
            self._foreign = np.flatnonzero([not is_english(document.description) for document in documents])

    def near_pairs(self) -> Iterator[tuple[int, int, float]]:
        """Pairs that stand out by their meaning: two rows, and how far they do, 0 to 1."""
        size = len(self._all)
        count = min(NEIGHBOURS, size - 1)
        nearest = np.empty((size, count), np.int64)
        likeness = np.empty((size, count), np.float32)
        for start in range(0, size, BLOCK_ROWS):
            block = self._rows(start, min(start + BLOCK_ROWS, size))
            rows = np.arange(len(block))
            block[rows, start + rows] = -np.inf
            nearest[start : start + len(block)] = np.argpartition(block, -count, axis=1)[:, -count:]
            likeness[start : start + len(block)] = np.take_along_axis(block, nearest[start : start + len(block)], 1)
        usual = np.zeros(size, np.float32) if count < NEIGHBOURS else likeness.min(axis=1).clip(0, 0.999)
        first, second = np.repeat(np.arange(size), count), nearest.ravel()
        base = (usual[first] + usual[second]) / 2
        standing_out = (likeness.ravel() - base) / (1 - base)
        enough = standing_out >= (MIN_SCORE - WORDS_WEIGHT) / MEANING_WEIGHT
        found = {
            (min(one, other), max(one, other)): value
            for one, other, value in zip(
                first[enough].tolist(), second[enough].tolist(), standing_out[enough].tolist(), strict=True
            )
        }
        for (one, other), value in found.items():
            yield one, other, value

    def _rows(self, start: int, end: int) -> Floats:
        rows: Floats = self._all[start:end] @ self._all.T - self._all_offset
        if len(self._foreign):
            matrix, offset = self._multilingual, self._multilingual_offset
            rows[:, self._foreign] = matrix[start:end] @ matrix[self._foreign].T - offset
            own = self._foreign[(self._foreign >= start) & (self._foreign < end)]
            rows[own - start] = matrix[own] @ matrix.T - offset
        return rows


def _combined(matrices: Sequence[Floats], models: Sequence[Model], chosen: Collection[int]) -> tuple[Floats, float]:
    """A matrix whose product with itself, minus the offset, is the weighted mean of the models' similarities."""
    total = sum(models[number].weight for number in chosen)
    columns: list[Floats] = []
    offset = 0.0
    for number in chosen:
        unrelated = models[number].scale().unrelated
        weight = models[number].weight / total / (1 - unrelated)
        columns.append(np.float32(math.sqrt(weight)) * normalized(matrices[number]))
        offset += weight * unrelated
    return np.concatenate(columns, axis=1), offset


class _Words:
    """Compares documents by their words; rare words count more."""

    def __init__(self, documents: Sequence[Document]) -> None:
        self._documents = documents
        self.of = [frozenset(document.keywords()) for document in documents]
        counts = Counter(word for own in self.of for word in own)
        size = len(documents) + UNSEEN_DOCUMENTS
        self._rarity = {word: math.log(size / count) for word, count in counts.items()}

    def similarity(self, first: int, second: int) -> float:
        """0 without a word in common, 1 with the same words."""
        length = math.sqrt(self._weight(self.of[first]) * self._weight(self.of[second]))
        return self._weight(self.of[first] & self.of[second]) / length if length else 0.0

    def _weight(self, words: Collection[str]) -> float:
        return sum(self._rarity[word] ** 2 for word in words)

    def rarest(self, number: int, words: Collection[str]) -> list[str]:
        """As the document has them, not as stems."""
        document = self._documents[number]
        words_of_text = plain_words(f"{document.label} {document.description} {' '.join(document.tags)}")
        written = {token: word for word in reversed(words_of_text) if not has_cjk(word) for token in tokens(word)}
        rarest = sorted(words, key=lambda word: (-self._rarity[word], word))[:MAX_WORDS]
        return [written.get(word, word) for word in rarest]
