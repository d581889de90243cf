"""From a request to an order of skills: meaning, words and past use weighed against each other.

The weights were chosen on public request sets (docs/concepts/search.md has the figures); one set of weights serves
every corpus, so what depends on the corpus is measured from it: its size, the length of its descriptions, the words
it knows.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from apexbridge.retrieval.embedders.embedder import RequestVectors
from apexbridge.retrieval.embedders.model import Model
from apexbridge.retrieval.glossary import translated
from apexbridge.retrieval.index.memory import MemoryIndex
from apexbridge.retrieval.text import has_cjk, tokens
from apexbridge.retrieval.usage import PastUse

Floats = NDArray[np.float32]

DENSE_WEIGHT = 0.7
ENGLISH_SHARE, GIST_SHARE = 0.6, 0.3
"""Of the dense weight, what the English model has where it read the request, or a few translated words of it."""
CLAUSE_WEIGHT, CLAUSE_WEIGHT_CJK = 0.1, 0.35
LEXICAL_WEIGHT, MOST_LEXICAL_WEIGHT = 0.3, 0.7
LEXICAL_GROWTH, LEXICAL_GROWTH_FROM = 0.4, 4000
"""In a large library many skills mean nearly the same and the words decide; the weight grows by decades of size."""
KNOWN_LITTLE, KNOWN_ENOUGH, KNOWN_WELL = 0.1, 0.3, 0.7
"""Share of the request's words that the index knows. Below, it is in another language than the skills."""
LEAST_REACH = 1e-9
"""Where everything is equally near, nothing is nearer."""
USAGE_WEIGHT = 0.5
USAGE_FAR, USAGE_NEAR = 0.35, 0.7
"""Cosine of a past request: nothing to do with this one, and as good as the same."""
USAGE_FLOOR = 0.2
"""Cosine below which a past request does not count at all."""
HABIT_WEIGHT, HABIT_PAIRS = 0.3, 50
"""Where few of many skills are ever used, those are the likelier ones; this many pairs make half a habit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What is asked, ready to be ranked for."""

    text: str
    vectors: RequestVectors | None
    """None where only words can be compared."""
    words: list[str] = field(default_factory=list)
    translated: list[str] = field(default_factory=list)
    """Its words in the other language."""
    past: Mapping[str, PastUse] = field(default_factory=dict)
    """By skill, for those that were asked for before."""

    @classmethod
    def of(cls, text: str, vectors: RequestVectors | None, past: Mapping[str, PastUse] | None = None) -> "Request":
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
    request = _in_the_librarys_words(memory, request)
    score, likeness, words = _scores(memory, models, request, lexical=lexical)
    if allowed is not None:
        score = np.where(allowed, score, -np.inf)
    return [
        _candidate(memory, request, int(slot), score, likeness, words)
        for slot in _top(score, count)
        if score[slot] > -np.inf
    ]


def rank_of_slot(memory: MemoryIndex, models: Sequence[Model], request: Request, slot: int) -> int:
    """The place of one skill among all, 1 being the first; the caller holds the index."""
    return _place(_scores(memory, models, _in_the_librarys_words(memory, request), lexical=True)[0], slot)


def _in_the_librarys_words(memory: MemoryIndex, request: Request) -> Request:
    """Without Chinese words for an English request that the library understands as it is.

    The other way round they are kept: skills described in Chinese mostly have English names.
    """
    if has_cjk(request.text) or memory.keywords.coverage(request.words) < KNOWN_WELL:
        return request
    return replace(request, translated=[])


def _scores(
    memory: MemoryIndex, models: Sequence[Model], request: Request, *, lexical: bool
) -> tuple[Floats, Floats | None, Floats]:
    """What orders the skills, how alike in meaning they are, and what their words are worth."""
    meaning, likeness = _meaning(memory, models, request)
    words = memory.keywords.score(request.words) + memory.keywords.score(request.translated)
    score = meaning + _lexical_weight(memory, request) * _over_max(words) if lexical else meaning
    nearness = _nearness(memory, request)
    return score if nearness is None else _with_past(score, nearness), likeness, words


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


def _nearness(memory: MemoryIndex, request: Request) -> tuple[Floats, Floats] | None:
    """Cosine of each skill's nearest past request, and how many it answered; None where none was ever asked for."""
    nearest, counts = np.zeros(len(memory), np.float32), np.zeros(len(memory), np.float32)
    for name, past in request.past.items():
        slot = memory.slot(name)
        if slot is not None:
            nearest[slot], counts[slot] = past.nearest, past.count
    return (nearest, counts) if nearest.max() > USAGE_FLOOR else None


def _with_past(score: Floats, nearness: tuple[Floats, Floats]) -> Floats:
    """Weigh in what past requests taught: the more, the nearer they are and the more of the library they cover."""
    nearest, counts = nearness
    covered = float((counts > 0).mean())
    trust = USAGE_WEIGHT * max(_past_use(float(nearest.max())), covered)
    near = np.maximum(nearest - USAGE_FLOOR, 0) / (1 - USAGE_FLOOR)
    pairs = float(counts.sum())
    habit = HABIT_WEIGHT * (1 - covered) * pairs / (pairs + HABIT_PAIRS)
    mixed: Floats = (1 - trust) * score + trust * _spread(near) + habit * np.log1p(counts) / np.log1p(counts.max())
    return mixed


def _past_use(cosine: float) -> float:
    """0 for a past request that has nothing to do with this one, 1 for one that is as good as the same."""
    return min(1.0, max(0.0, (cosine - USAGE_FAR) / (USAGE_NEAR - USAGE_FAR)))


def _candidate(
    memory: MemoryIndex,
    request: Request,
    slot: int,
    score: Floats,
    likeness: Floats | None,
    words: Floats,
) -> Candidate:
    matched, share = memory.keywords.matched(slot, request.words)
    others, other_share = memory.keywords.matched(slot, request.translated)
    past = request.past.get(memory.documents[slot].name)
    return Candidate(
        slot=slot,
        score=float(score[slot]),
        likeness=None if likeness is None or not memory.has_vector[slot] else float(likeness[slot]),
        vector_rank=None if likeness is None or not memory.has_vector[slot] else _place(likeness, slot),
        keyword_rank=_place(words, slot) if words[slot] > 0 else None,
        matched=list(dict.fromkeys([*matched, *others])),
        share=max(share, other_share),
        past=_past_use(past.nearest) if past else 0.0,
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
