"""What a new description of a skill wins and loses over past requests.

Past use stores the vector of a request, not its text. Such a request is ranked by meaning; one whose text is known, by
words too. Past use itself does not count: it would hide the change.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from pydantic import Field

from apexbridge.retrieval.embedders.embedder import Embedder, ModelVectors, RequestVectors
from apexbridge.retrieval.embedders.model import Floats, Model
from apexbridge.retrieval.index.vector_index import VectorIndex
from apexbridge.retrieval.ranking import Request, rank_of_slot, ranks_by_meaning
from apexbridge.retrieval.usage import SAME_COSINE, UsagePair, request_vector
from apexbridge.wire import WireModel

FIRST_FIVE = 5
MAX_OWN, MAX_OTHERS = 100, 500
"""Past requests of the skill, and of all others, that are ranked: the newest."""
MAX_LISTED = 20
BLOCK = 64
"""Requests that are compared with all skills at a time."""


class RankTally(WireModel):
    """For how many requests the right skill is there."""

    before: int
    after: int
    won: int = Field(description="Not before, but after.")
    lost: int = Field(description="Before, but not after.")


class PastRanks(WireModel):
    """The right skills of past requests in the search."""

    requests: int
    first: RankTally = Field(description="In the first place.")
    first_five: RankTally = Field(description="Among the first five.")


class HarmedSkill(WireModel):
    """Another skill that would lose past requests."""

    name: str
    requests: int
    first: int = Field(description="Requests for which it would no longer be first.")
    first_five: int = Field(description="Requests for which it would no longer be among the first five.")


class PastRank(WireModel):
    """A past request whose text is known, with the rank of its skill."""

    request: str
    name: str = Field(description="The skill that answered it.")
    before: int | None
    after: int


class PastPreview(WireModel):
    """What a new description would change for past requests."""

    own: PastRanks = Field(description="Requests that this skill answered.")
    others: PastRanks = Field(description="Requests that other skills answered.")
    harmed: list[HarmedSkill] = Field(description="Other skills that would lose a place, at most 20.")
    changed: list[PastRank] = Field(
        description="Requests that are won or lost, as far as their text may be shown, at most 20."
    )
    left_out: int = Field(description="Older requests that were not compared.")


@dataclass(frozen=True, slots=True, kw_only=True)
class PastRequest:
    skill: str
    request: Request
    """Its text is empty if it is not known."""


class PastRequests:
    """The past requests that a preview compares: the newest of the skill, and the newest of others."""

    def __init__(self, name: str, pairs: Iterable[tuple[UsagePair, Floats]]) -> None:
        newest_first = list(pairs)[::-1]
        own = [(pair.skill, vector) for pair, vector in newest_first if pair.skill == name]
        others = [(pair.skill, vector) for pair, vector in newest_first if pair.skill != name]
        self._pairs = [*own[:MAX_OWN], *others[:MAX_OTHERS]]
        self.left_out = len(newest_first) - len(self._pairs)

    def requests(self, embedder: Embedder, texts: Sequence[str]) -> list[PastRequest]:
        """The requests; those among `texts` have their text. Raises EmbeddingError."""
        if not self._pairs:
            return []
        known = _known(embedder, texts, np.stack([vector for _, vector in self._pairs]))
        return [
            PastRequest(
                skill=skill,
                request=known.get(row) or Request(text="", vectors=_split(vector, embedder.models)),
            )
            for row, (skill, vector) in enumerate(self._pairs)
            if vector.any()  # no model could read it
        ]


def _known(embedder: Embedder, texts: Sequence[str], matrix: Floats) -> dict[int, Request]:
    """The requests with these texts, by row of the matrix."""
    found: dict[int, Request] = {}
    lengths = np.linalg.norm(matrix, axis=1)
    for text in texts:
        vectors = embedder.embed_request(text)
        vector = request_vector(vectors, embedder.dimensions_by_model)
        cosines = matrix @ vector / np.maximum(lengths * np.linalg.norm(vector), 1e-12)
        for row in np.flatnonzero(cosines >= SAME_COSINE):
            found[int(row)] = Request.of(text, vectors)
    return found


def _split(vector: Floats, models: Sequence[Model]) -> RequestVectors:
    """The vectors of each model, of a stored request."""
    split: list[ModelVectors | None] = []
    start = 0
    for model in models:
        own = vector[start : start + model.dimensions]
        start += model.dimensions
        clauses = np.zeros((0, model.dimensions), np.float32)
        split.append(ModelVectors(whole=own, clauses=clauses, scale=model.scale()) if own.any() else None)
    return tuple(split)


def compare(
    name: str,
    before: VectorIndex,
    after: VectorIndex,
    models: Sequence[Model],
    requests: Sequence[PastRequest],
    *,
    left_out: int,
) -> PastPreview:
    """Rank the right skill of each request with the old and with the new description of the skill `name`."""
    pairs = zip(requests, _ranks_in(before, models, requests), _ranks_in(after, models, requests), strict=True)
    ranks = [(past, old, new) for past, old, new in pairs if new is not None]  # else it is not indexed
    own = [(old, new) for past, old, new in ranks if past.skill == name]
    others: dict[str, list[tuple[int | None, int]]] = {}
    for past, old, new in ranks:
        if past.skill != name:
            others.setdefault(past.skill, []).append((old, new))
    harmed = [_harmed(skill, own_ranks) for skill, own_ranks in others.items()]
    changed = [
        PastRank(request=past.request.text, name=past.skill, before=old, after=new)
        for past, old, new in ranks
        if past.request.text and any(_is_within(old, limit) != _is_within(new, limit) for limit in (1, FIRST_FIVE))
    ]
    return PastPreview(
        own=_ranks(own),
        others=_ranks([pair for own_ranks in others.values() for pair in own_ranks]),
        harmed=sorted(
            (skill for skill in harmed if skill.first or skill.first_five),
            key=lambda skill: (-skill.first_five, -skill.first, skill.name),
        )[:MAX_LISTED],
        changed=sorted(changed, key=lambda rank: rank.before is None or rank.after < rank.before)[:MAX_LISTED],
        left_out=left_out,
    )


def _ranks_in(memory: VectorIndex, models: Sequence[Model], requests: Sequence[PastRequest]) -> list[int | None]:
    """The rank of the right skill of each request; None if it is not indexed."""
    ranks: list[int | None] = [None] * len(requests)
    slots = [memory.slot(past.skill) for past in requests]
    by_vector: list[tuple[int, int, RequestVectors]] = []
    for number, (past, slot) in enumerate(zip(requests, slots, strict=True)):
        if slot is not None and past.request.text:
            ranks[number] = rank_of_slot(memory, models, past.request, slot)
        elif slot is not None and past.request.vectors is not None:
            by_vector.append((number, slot, past.request.vectors))
    for start in range(0, len(by_vector), BLOCK):
        block = by_vector[start : start + BLOCK]
        found = ranks_by_meaning(memory, models, [vectors for *_, vectors in block], [slot for _, slot, _ in block])
        for (number, *_), rank in zip(block, found, strict=True):
            ranks[number] = rank
    return ranks


def _is_within(rank: int | None, limit: int) -> bool:
    return rank is not None and rank <= limit


def _tally(ranks: Sequence[tuple[int | None, int]], limit: int) -> RankTally:
    pairs = [(_is_within(old, limit), _is_within(new, limit)) for old, new in ranks]
    return RankTally(
        before=sum(was for was, _ in pairs),
        after=sum(is_now for _, is_now in pairs),
        won=sum(is_now and not was for was, is_now in pairs),
        lost=sum(was and not is_now for was, is_now in pairs),
    )


def _ranks(ranks: Sequence[tuple[int | None, int]]) -> PastRanks:
    return PastRanks(requests=len(ranks), first=_tally(ranks, 1), first_five=_tally(ranks, FIRST_FIVE))


def _harmed(name: str, ranks: Sequence[tuple[int | None, int]]) -> HarmedSkill:
    tallies = _ranks(ranks)
    return HarmedSkill(name=name, requests=len(ranks), first=tallies.first.lost, first_five=tallies.first_five.lost)
