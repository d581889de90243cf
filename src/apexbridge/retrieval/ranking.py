"""Ranks the skills for a request by meaning, words and past use.

The weights were chosen on public request sets (docs/concepts/search.md has the figures). One set of weights serves
every corpus, so what depends on the corpus is measured from it: its size, the length of its descriptions, its words.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from apexbridge.retrieval.embedders.embedder import RequestVectors
from apexbridge.retrieval.embedders.model import Floats, Model
from apexbridge.retrieval.index.slot_vectors import in_batches
from apexbridge.retrieval.index.vector_index import VectorIndex
from apexbridge.retrieval.text import has_cjk, is_chinese, is_english, tokens, translated
from apexbridge.retrieval.usage import PastUse

DENSE_WEIGHT = 0.7
GIST_SHARE = 0.5
"""Share of the dense weight of the English models, if they read a translation of the request, word by word."""
CLAUSE_WEIGHT, CLAUSE_WEIGHT_CJK = 0.1, 0.35
COVERAGE_WEIGHT, NAME_WEIGHT = 0.5, 0.06
"""Of the share of the request's words that a skill has, and of the share of its name's words that the request has."""
BM25_WEIGHT, MAX_BM25_WEIGHT = 0.15, 1.0
BODY_BM25_WEIGHT = 0.1
"""Added where skills have bodies, whose words say more than those of descriptions alone."""
DESCRIBED_TOKENS, INSTRUCTED_TOKENS = 40.0, 80.0
"""Mean length of skills without bodies at the most, and with bodies at least."""
CORRECTED_WEIGHT = 0.7
"""Weight of a word that was probably meant, relative to one that was typed."""
BM25_GROWTH, BM25_GROWTH_FROM = 0.63, 5500
"""In a large library many skills mean nearly the same and words decide: weight added per tenfold size."""
KNOWN_LITTLE, KNOWN_ENOUGH, KNOWN_WELL = 0.1, 0.3, 0.7
"""Share of the request's words that the index has. If low, the skills are in another language."""
COMPARED, COMPARED_BY_MODEL = 512, 32
"""In a large index, skills that are compared exactly: the best by approximate scores, and the nearest of each model."""
TYPICAL_CROWD, MAX_CROWD = 10, 3.0
FOREIGN_RAREST, FOREIGN_KNOWN = 0.35, 0.7
"""For the confidence, at least this, if the words cannot be compared: that none matches says nothing then."""
MIN_SPREAD = 1e-9
"""Below this difference all values count as equal."""
USAGE_WEIGHT = 0.5
USAGE_FAR, USAGE_NEAR = 0.35, 0.7
"""Cosines of a past request that is unrelated to this one, and of one that is practically the same."""
USAGE_FLOOR = 0.2
"""Cosine below which a past request is ignored."""
HABIT_WEIGHT, HABIT_PAIRS = 0.3, 50
"""If few of many skills are used, those are likelier. With this many pairs the weight is half."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    text: str
    vectors: RequestVectors | None
    """None if only words can be compared."""
    words: list[str] = field(default_factory=list)
    translated: list[str] = field(default_factory=list)
    """Its tokens in the other language."""
    by_dictionary: list[str] = field(default_factory=list)
    """More of them, from a general dictionary."""
    corrections: Mapping[str, list[str]] = field(default_factory=dict)
    """Words that were probably meant, by token, for those that the library does not have."""
    past: Mapping[str, PastUse] = field(default_factory=dict)
    """Past use by skill."""
    is_foreign: bool = False
    """Whether it is neither English nor Chinese, so that only its meaning can be compared with English skills."""

    @property
    def corrected(self) -> list[str]:
        """All corrections."""
        return [word for words in self.corrections.values() for word in words]

    @property
    def meant(self) -> list[str]:
        """Its words, with corrections instead of those that have some."""
        return [meant for word in self.words for meant in self.corrections.get(word, [word])]

    @classmethod
    def of(cls, text: str, vectors: RequestVectors | None, past: Mapping[str, PastUse] | None = None) -> "Request":
        known, others = translated(text)
        return cls(
            text=text,
            vectors=vectors,
            words=tokens(text),
            translated=known,
            by_dictionary=others,
            past=past or {},
            is_foreign=not is_english(text) and not is_chinese(text),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A skill with the evidence for it."""

    slot: int
    score: float
    """In the ranking; meaningful within one request only."""
    likeness: float | None
    """Similarity of meaning: 0 is unrelated, 1 is the same; None if it was not compared."""
    vector_rank: int | None
    keyword_rank: int | None
    matched: list[str]
    share: float
    """Share of the request's words that its name, description and tags have, weighted by rarity."""
    rarest: float
    """Rarity of the two rarest words that match: the mean, 0 to 1. If only one matches, the other one counts 0."""
    known: float
    """Share of the request's words that the library has, 0 to 1."""
    field: float
    """Mean likeness of all skills: how far the request is in the library's field."""
    variation: float
    """Standard deviation of their likeness: small talk is equally far from all."""
    past: float
    """Similarity of the nearest past request, 0 to 1."""
    crowd: float
    """How many it was chosen from: 0 for ten, 1 more for each tenfold. The more, the nearer one is by chance."""


def rank(
    memory: VectorIndex,
    models: Sequence[Model],
    request: Request,
    *,
    count: int,
    allowed: NDArray[np.bool_] | None = None,
    lexical: bool = True,
) -> list[Candidate]:
    """The best candidates, best first. The caller holds the index's lock."""
    if not len(memory):
        return []
    request = _adapted(memory, request)
    score, likeness, words = _scores(memory, models, request, lexical=lexical, allowed=allowed, count=count)
    known = max(min(1.0, _known(memory, request)), FOREIGN_KNOWN if request.is_foreign else 0.0)
    compared = None if likeness is None or not memory.has_vector.any() else likeness[memory.has_vector]
    field, variation = (0.0, 0.0) if compared is None else (float(compared.mean()), float(compared.std()))
    return [
        _candidate(memory, request, slot, float(score[slot]), likeness, words, known, field, variation)
        for slot in _top(score, count)
        if score[slot] > -np.inf
    ]


def rank_of_slot(memory: VectorIndex, models: Sequence[Model], request: Request, slot: int) -> int:
    """The rank of one skill among all, 1 being the best. The caller holds the index's lock."""
    return _rank_in(scores_of_all(memory, models, request, slot=slot), slot)


def ranks_by_meaning(
    memory: VectorIndex, models: Sequence[Model], requests: Sequence[RequestVectors], slots: Sequence[int]
) -> list[int]:
    """For each request the rank of one skill, by meaning alone, all at once. The caller holds the index's lock."""
    has_vector = memory.has_vector
    cosines = [np.zeros((len(requests), len(memory)), np.float32) for _ in models]
    for batch in in_batches(np.flatnonzero(has_vector)):
        columns = np.split(memory.vectors.vectors(batch), np.cumsum(memory.dimensions)[:-1], axis=1)
        for model, (found, vectors) in enumerate(zip(cosines, columns, strict=True)):
            unread = np.zeros(vectors.shape[1], np.float32)
            wholes = [unread if (own := request[model]) is None else own.whole for request in requests]
            found[:, batch] = np.stack(wholes) @ vectors.T
    ranks = []
    for row, (request, slot) in enumerate(zip(requests, slots, strict=True)):
        weights = _model_weights(models, request)
        scores = [weight * _spread(found[row], has_vector) for weight, found in zip(weights, cosines, strict=True)]
        ranks.append(_rank_in(np.sum(scores, axis=0), slot))
    return ranks


def scores_of_all(memory: VectorIndex, models: Sequence[Model], request: Request, *, slot: int) -> Floats:
    """The score of each slot; in a large index, exact for this one and for the best. The caller holds the lock."""
    return _scores(memory, models, _adapted(memory, request), slot=slot)[0]


def best_of(score: Floats, among: NDArray[np.bool_], count: int) -> list[int]:
    """The slots with the highest scores among some, highest first."""
    chosen = np.where(among, score, -np.inf)
    return [slot for slot in _top(chosen, count) if among[slot]]


def _adapted(memory: VectorIndex, request: Request) -> Request:
    """The request with what this library needs of it: corrections of its words, and its translation."""
    return _with_needed_translation(memory, replace(request, corrections=memory.keywords.corrections(request.words)))


def _with_needed_translation(memory: VectorIndex, request: Request) -> Request:
    """The request with as much of its translation as this library needs.

    An English request whose words the library has needs none. A Chinese request keeps that of the glossary, because
    skills described in Chinese mostly have English names; the dictionary serves a library that is not Chinese.
    """
    known = memory.keywords.coverage(request.words)
    if not has_cjk(request.text):
        return request if known < KNOWN_WELL else replace(request, translated=[])
    if known >= KNOWN_ENOUGH:
        return request
    return replace(request, translated=[*request.translated, *request.by_dictionary])


def _scores(
    memory: VectorIndex,
    models: Sequence[Model],
    request: Request,
    *,
    lexical: bool = True,
    allowed: NDArray[np.bool_] | None = None,
    count: int = 1,
    slot: int | None = None,
) -> tuple[Floats, Floats | None, Floats]:
    """Per skill: the score, the similarity of meaning, and the keyword score.

    In a large index, all of them are computed from approximate cosines first. Then those of the best are replaced by
    exact ones. If `slot` is None, the others are left out.
    """
    words = memory.keywords.score(request.words) + memory.keywords.score(request.translated)
    if request.corrections:
        words = words + CORRECTED_WEIGHT * memory.keywords.score(request.corrected)
    weighted_words = _weighted_words(memory, request, words) if lexical else None
    nearness = _nearness(memory, request)

    def scores(cosines: _Cosines) -> tuple[Floats, Floats | None]:
        meaning, likeness = _meaning(memory, models, request, cosines)
        score = meaning if weighted_words is None else meaning + weighted_words
        score = score if nearness is None else _with_past(score, nearness)
        return score if allowed is None else np.where(allowed, score, -np.inf), likeness

    cosines = _request_cosines(memory, request)
    score, likeness = scores(cosines)
    if memory.vectors.is_exact or request.vectors is None:
        return score, likeness, words
    chosen = set(_top(score, max(COMPARED, 2 * count)))
    for own in cosines:
        chosen.update(_top(own, COMPARED_BY_MODEL) if own is not None else ())
    chosen.update(() if slot is None else (slot,))
    slots = np.array(sorted(chosen))
    compared = slots[memory.has_vector[slots]]
    for own, exact in zip(cosines, _request_cosines(memory, request, compared), strict=True):
        if own is not None and exact is not None and len(exact):
            np.minimum(own, exact.max(), out=own)  # an approximate cosine must not be the largest
            own[compared] = exact
    score, likeness = scores(cosines)
    if slot is None:
        others = np.ones(len(memory), np.bool_)
        others[slots] = False
        score = np.where(others, -np.inf, score)
    return score, likeness, words


_Cosines = list[Floats | None]
"""For each model the cosines of the skills; None if it cannot read the request."""


def _request_cosines(memory: VectorIndex, request: Request, slots: NDArray[np.int64] | None = None) -> _Cosines:
    """The cosines of all skills, or the exact ones of some. Those of clauses are mixed in."""
    if request.vectors is None:
        return []
    queries = [None if own is None else np.vstack((own.whole, own.clauses)) for own in request.vectors]
    found = memory.vectors.cosines(queries) if slots is None else memory.vectors.cosines_of(slots, queries)
    weight = CLAUSE_WEIGHT_CJK if has_cjk(request.text) else CLAUSE_WEIGHT
    mixed: _Cosines = []
    for own in found:
        if own is None or own[1] is None:
            mixed.append(None if own is None else own[0])
        else:
            mixed.append((1 - weight) * own[0] + weight * own[1])
    return mixed


def _meaning(
    memory: VectorIndex, models: Sequence[Model], request: Request, cosines: _Cosines
) -> tuple[Floats, Floats | None]:
    """Per skill: the dense score, and the similarity of meaning, 0 to 1."""
    zeros = np.zeros(len(memory), np.float32)
    if request.vectors is None:
        return zeros, None
    has_vector = memory.has_vector
    weights = _model_weights(models, request.vectors)
    score, likeness = zeros, zeros.copy()
    for weight, vectors, own in zip(weights, request.vectors, cosines, strict=True):
        if vectors is None or own is None:
            continue
        scale = vectors.scale
        score = score + weight * _spread(own, has_vector)
        likeness += weight / DENSE_WEIGHT * (own - scale.unrelated) / (scale.related - scale.unrelated)
    return score, np.where(has_vector, likeness, 0.0).astype(np.float32)


def _model_weights(models: Sequence[Model], vectors: RequestVectors) -> list[float]:
    """The dense weight, divided among the models that read the request."""
    weights = np.array([0.0 if own is None else model.weight for model, own in zip(models, vectors, strict=True)])
    is_gist = np.array([own is not None and own.is_gist for own in vectors])
    if is_gist.any() and weights[~is_gist].any():
        weights[is_gist] *= GIST_SHARE / weights[is_gist].sum()
        weights[~is_gist] *= (1 - GIST_SHARE) / weights[~is_gist].sum()
    return list(DENSE_WEIGHT * weights / max(weights.sum(), MIN_SPREAD))


def _weighted_words(memory: VectorIndex, request: Request, bm25: Floats) -> Floats:
    """Per slot: what the words add to the score."""
    if request.vectors is None:
        return _over_max(bm25)
    growth = BM25_GROWTH * math.log10(len(memory) / BM25_GROWTH_FROM)
    lengths = (DESCRIBED_TOKENS, INSTRUCTED_TOKENS)
    bodies = float(np.interp(memory.keywords.mean_length, lengths, (0, BODY_BM25_WEIGHT)))
    weight = min(MAX_BM25_WEIGHT, BM25_WEIGHT + bodies + max(0.0, growth))
    overlap = memory.keywords.overlap(request.meant, request.translated)
    # Words of the name count in the vector and BM25 already, unless the request is the name or there is no vector yet.
    is_name = (overlap.name * overlap.request_by_name) ** 2
    covered = overlap.request - overlap.request_by_name * (1 - is_name) * memory.has_vector
    words: Floats = weight * _over_max(bm25) + COVERAGE_WEIGHT * covered + NAME_WEIGHT * overlap.name
    gate = min(1.0, max(0.0, (_known(memory, request) - KNOWN_LITTLE) / (KNOWN_ENOUGH - KNOWN_LITTLE)))
    return words * np.float32(gate)


def _known(memory: VectorIndex, request: Request) -> float:
    """Share of the request's words that the library has, also translated or corrected. May exceed 1."""
    corrected = (meant for meant, *_ in request.corrections.values())
    return memory.keywords.coverage(request.words, [*request.translated, *corrected])


def _nearness(memory: VectorIndex, request: Request) -> tuple[Floats, Floats] | None:
    """Per skill: cosine of its nearest past request, and their number. None if no past request is near."""
    nearest, counts = np.zeros(len(memory), np.float32), np.zeros(len(memory), np.float32)
    for name, past in request.past.items():
        slot = memory.slot(name)
        if slot is not None:
            nearest[slot], counts[slot] = past.nearest, past.count
    return (nearest, counts) if nearest.max() > USAGE_FLOOR else None


def _with_past(score: Floats, nearness: tuple[Floats, Floats]) -> Floats:
    """Mix past use into the score. It weighs more the nearer it is, and the more of the library it covers."""
    nearest, counts = nearness
    covered = float((counts > 0).mean())
    trust = USAGE_WEIGHT * max(_past_use(float(nearest.max())), covered)
    near = np.maximum(nearest - USAGE_FLOOR, 0) / (1 - USAGE_FLOOR)
    pairs = float(counts.sum())
    habit = HABIT_WEIGHT * (1 - covered) * pairs / (pairs + HABIT_PAIRS)
    mixed: Floats = (1 - trust) * score + trust * _spread(near) + habit * np.log1p(counts) / np.log1p(counts.max())
    return mixed


def _past_use(cosine: float) -> float:
    """0 for an unrelated past request, 1 for one that is practically the same."""
    return min(1.0, max(0.0, (cosine - USAGE_FAR) / (USAGE_NEAR - USAGE_FAR)))


def _candidate(
    memory: VectorIndex,
    request: Request,
    slot: int,
    score: float,
    likeness: Floats | None,
    words: Floats,
    known: float,
    field: float,
    variation: float,
) -> Candidate:
    matched, share = memory.keywords.matched(slot, request.meant)
    translated, translated_share = memory.keywords.matched(slot, request.translated)
    past = request.past.get(memory.documents[slot].name)
    words_found = list(dict.fromkeys([*matched, *translated]))
    rarest = sum(sorted(map(memory.keywords.rarity, words_found))[-2:]) / 2
    return Candidate(
        slot=slot,
        score=score,
        likeness=None if likeness is None or not memory.has_vector[slot] else float(likeness[slot]),
        vector_rank=None if likeness is None or not memory.has_vector[slot] else _rank_in(likeness, slot),
        keyword_rank=_rank_in(words, slot) if words[slot] > 0 else None,
        matched=words_found,
        share=max(share, translated_share),
        rarest=max(rarest, FOREIGN_RAREST if request.is_foreign else 0.0),
        known=known,
        field=field,
        variation=variation,
        past=_past_use(past.nearest) if past else 0.0,
        crowd=min(MAX_CROWD, math.log10(len(memory) / TYPICAL_CROWD)),
    )


def _spread(values: Floats, among: NDArray[np.bool_] | None = None) -> Floats:
    """Distances from the mean, scaled so that the largest is 1. Values outside `among` count as the mean."""
    if among is not None and not among.all():
        spread = np.zeros_like(values)
        spread[among] = _spread(values[among])
        return spread
    mean = values.mean() if len(values) else 0.0
    largest = float(values.max() - mean) if len(values) else 0.0
    if largest <= MIN_SPREAD:
        return np.zeros_like(values)
    return ((values - mean) / largest).astype(np.float32, copy=False)


def _over_max(values: Floats) -> Floats:
    largest = float(values.max())
    return values / largest if largest > 0 else values


def _top(score: Floats, count: int) -> list[int]:
    """The slots with the highest scores, highest first; equal scores by slot."""
    count = min(count, len(score))
    slots = np.argpartition(-score, count - 1)[:count]
    return [int(slot) for slot in slots[np.lexsort((slots, -score[slots]))]]


def _rank_in(values: Floats, slot: int) -> int:
    """1 for the largest."""
    return int(np.count_nonzero(values > values[slot])) + 1
