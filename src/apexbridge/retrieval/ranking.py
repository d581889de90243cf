"""From a request to an order of skills: meaning, words and past use weighed against each other.

The weights were chosen on public request sets (docs/concepts/search.md has the figures); one set of weights serves
every corpus, so what depends on the corpus is measured from it: its size, the length of its descriptions, the words
it knows.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from apexbridge.retrieval.embedders.embedder import RequestVectors
from apexbridge.retrieval.embedders.model import Model
from apexbridge.retrieval.glossary import translated
from apexbridge.retrieval.index.memory import MemoryIndex
from apexbridge.retrieval.text import has_cjk, tokens

Floats = NDArray[np.float32]

DENSE_WEIGHT = 0.7
ENGLISH_SHARE, GIST_SHARE = 0.6, 0.3
"""Of the dense weight, what the English model has where it read the request, or a few translated words of it."""
CLAUSE_WEIGHT, CLAUSE_WEIGHT_CJK = 0.1, 0.35
LEXICAL_WEIGHT, MOST_LEXICAL_WEIGHT = 0.3, 0.7
LEXICAL_GROWTH, LEXICAL_GROWTH_FROM = 0.4, 4000
"""In a large library many skills mean nearly the same and the words decide; the weight grows by decades of size."""
KNOWN_LITTLE, KNOWN_ENOUGH = 0.1, 0.3
"""Share of the request's words that the index knows. Below, it is in another language than the skills."""
LEAST_REACH = 1e-9
"""Where everything is equally near, nothing is nearer."""
USAGE_WEIGHT = 0.5
USAGE_FAR, USAGE_NEAR = 0.35, 0.7
"""Cosine of a past request: nothing to do with this one, and as good as the same."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What is asked, ready to be ranked for."""

    text: str
    vectors: RequestVectors | None
    """None where only words can be compared."""
    words: list[str] = field(default_factory=list)
    translated: list[str] = field(default_factory=list)
    """Its words in the other language."""
    past: Mapping[str, float] = field(default_factory=dict)
    """Cosine of the nearest past request, for each skill that has one."""

    @classmethod
    def of(cls, text: str, vectors: RequestVectors | None, past: Mapping[str, float] | None = None) -> "Request":
        """A request with its words."""
        return cls(text=text, vectors=vectors, words=tokens(text), translated=translated(text), past=past or {})


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A skill with everything that speaks for it."""

    slot: int
    score: float
    """Orders the candidates of one request; means nothing between requests."""
    likeness: float | None
    """By meaning: 0 unrelated, 1 the very thing; None where meaning was not compared."""
    vector_rank: int | None
    keyword_rank: int | None
    matched: list[str]
    share: float
    """Of the request's words, weighed by how rare they are, the skill has this much."""
    past: float
    """Nearest past request, 0 to 1."""


def rank(
    memory: MemoryIndex,
    models: Sequence[Model],
    request: Request,
    *,
    count: int,
    allowed: NDArray[np.bool_] | None = None,
    lexical: bool = True,
) -> list[Candidate]:
    """The best candidates, best first; the caller holds the index."""
    if not len(memory):
        return []
    meaning, likeness = _meaning(memory, models, request)
    words = memory.keywords.score(request.words) + memory.keywords.score(request.translated)
    score = meaning if lexical is False else meaning + _lexical_weight(memory, request) * _over_max(words)
    past = _past(memory, request)
    if past is not None:
        trust = USAGE_WEIGHT * float(past.max())
        score = (1 - trust) * score + trust * _spread(past)
    if allowed is not None:
        score = np.where(allowed, score, -np.inf)
    return [
        _candidate(memory, request, int(slot), score, likeness, words, past)
        for slot in _top(score, count)
        if score[slot] > -np.inf
    ]


def _meaning(memory: MemoryIndex, models: Sequence[Model], request: Request) -> tuple[Floats, Floats | None]:
    """The dense part of the score, and how alike in meaning each skill is, 0 to 1."""
    nothing = np.zeros(len(memory), np.float32)
    if request.vectors is None:
        return nothing, None
    own = memory.has_vector
    weights = _part_weights(models, request.vectors)
    cut = CLAUSE_WEIGHT_CJK if has_cjk(request.text) else CLAUSE_WEIGHT
    score, likeness = nothing, nothing.copy()
    for part, vectors in enumerate(request.vectors):
        if vectors is None:
            continue
        matrix = memory.matrix(part)
        cosines = matrix @ vectors.whole
        if len(vectors.clauses):
            cosines = (1 - cut) * cosines + cut * (matrix @ vectors.clauses.T).max(axis=1)
        scale = vectors.scale
        score = score + weights[part] * _spread(cosines, own)
        likeness += weights[part] / DENSE_WEIGHT * (cosines - scale.unrelated) / (scale.related - scale.unrelated)
    return score, np.where(own, likeness, 0.0).astype(np.float32)


def _part_weights(models: Sequence[Model], vectors: RequestVectors) -> list[float]:
    """The dense weight, shared out among the models that read the request."""
    english = 0.0
    for model, own in zip(models, vectors, strict=True):
        if model.english_only and own is not None:
            english = GIST_SHARE if own.is_gist else ENGLISH_SHARE
    return [DENSE_WEIGHT * (english if model.english_only else 1 - english) for model in models]


def _lexical_weight(memory: MemoryIndex, request: Request) -> float:
    growth = LEXICAL_GROWTH * math.log10(len(memory) / LEXICAL_GROWTH_FROM)
    weight = min(MOST_LEXICAL_WEIGHT, max(LEXICAL_WEIGHT, LEXICAL_WEIGHT + growth))
    if request.vectors is None:
        return weight
    known = memory.keywords.coverage(request.words, request.translated)
    return weight * min(1.0, max(0.0, (known - KNOWN_LITTLE) / (KNOWN_ENOUGH - KNOWN_LITTLE)))


def _past(memory: MemoryIndex, request: Request) -> Floats | None:
    """How near each skill's past requests are, 0 to 1; None where none is near."""
    past = np.zeros(len(memory), np.float32)
    for name, cosine in request.past.items():
        slot = memory.slot(name)
        if slot is not None:
            past[slot] = min(1.0, max(0.0, (cosine - USAGE_FAR) / (USAGE_NEAR - USAGE_FAR)))
    return past if past.any() else None


def _candidate(
    memory: MemoryIndex,
    request: Request,
    slot: int,
    score: Floats,
    likeness: Floats | None,
    words: Floats,
    past: Floats | None,
) -> Candidate:
    matched, share = memory.keywords.matched(slot, request.words)
    others, other_share = memory.keywords.matched(slot, request.translated)
    return Candidate(
        slot=slot,
        score=float(score[slot]),
        likeness=None if likeness is None else float(likeness[slot]),
        vector_rank=None if likeness is None or not memory.has_vector[slot] else _place(likeness, slot),
        keyword_rank=_place(words, slot) if words[slot] > 0 else None,
        matched=[*matched, *(word for word in others if word not in matched)],
        share=max(share, other_share),
        past=0.0 if past is None else float(past[slot]),
    )


def _spread(values: Floats, among: NDArray[np.bool_] | None = None) -> Floats:
    """Values as distance from the mean, the largest being 1; outside `among` nothing is known, which is the mean."""
    if among is not None and not among.all():
        spread = np.zeros_like(values)
        spread[among] = _spread(values[among])
        return spread
    mean = values.mean() if len(values) else 0.0
    reach = float(values.max() - mean) if len(values) else 0.0
    if reach <= LEAST_REACH:
        return np.zeros_like(values)
    return ((values - mean) / reach).astype(np.float32, copy=False)


def _over_max(values: Floats) -> Floats:
    most = float(values.max())
    return values / most if most > 0 else values


def _top(score: Floats, count: int) -> list[int]:
    """The places of the largest, the largest first; equals in the order in which they stand."""
    count = min(count, len(score))
    places = np.argpartition(-score, count - 1)[:count]
    return [int(place) for place in places[np.lexsort((places, -score[places]))]]


def _place(values: Floats, slot: int) -> int:
    """1 for the largest."""
    return int((values > values[slot]).sum()) + 1
