"""Results of a search: confidence, reasons and the models sent to clients."""

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field

from apexbridge.retrieval.kinds import Kind
from apexbridge.wire import SparseModel, WireModel

if TYPE_CHECKING:  # clients read results without numpy
    from apexbridge.retrieval.ranking import Candidate

SearchMode = Literal["hybrid", "vector"]
BIAS, LIKENESS, RAREST, KNOWN, CROWD = -4.45, 8.0, 4.0, 1.5, -1.0
"""Logistic weights, fitted on public request sets: right skills against the best skills for requests without one."""
ANSWER_BIAS, ANSWER_LIKENESS, ANSWER_RAREST, ANSWER_KNOWN, ANSWER_CROWD = -7.0, 5.2, 6.1, 1.6, -1.35
ANSWER_FIELD, ANSWER_VARIATION = 10.5, 34.0
"""The same for requests: those that a skill answers against the others, by the first skill of each."""
PAST = 12.0
"""Of the square of past use: a confirmed request is answered, even if its words say nothing."""
KEYWORD_BIAS, KEYWORD_SHARE = -1.2, 11.5
"""The same by words alone, against skills picked at random."""


class Why(WireModel):
    """Why a skill matches."""

    vector_rank: int | None = Field(description="Rank by meaning alone; 1 is the nearest.")
    keyword_rank: int | None = Field(description="Rank by words alone; null if no word matches.")
    likeness: float | None = Field(description="Similarity of meaning: 0 is unrelated, 1 is the same.")
    matched_words: list[str] = Field(description="Words of the request that the skill has, translated ones included.")
    past_use: float = Field(description="Similarity of the nearest past request that this skill answered, 0 to 1.")


class SkillMatch(WireModel):
    """One matching skill, or a matching tool of an MCP server."""

    kind: Kind = Field(default="skill", description="skill, or tool for a tool of an MCP server.")
    name: str = Field(description="The name of the skill, or the id of the tool.")
    description: str
    score: float = Field(description="Confidence, 0 to 1; comparable between requests.")
    tags: list[str]
    mode: str | None = Field(default=None, description="sandbox or direct; null for a tool.")
    why: Why


class RankPreview(WireModel):
    """What a new description would change in the rank of a skill for a request."""

    request: str
    before: int | None
    """From 1; None if it is not indexed yet."""
    after: int | None
    passed: list[str]
    """The first skills that would fall behind it."""
    falls_behind: list[str]
    """The first skills that would overtake it."""


class SearchAnswer(SparseModel):
    """The matching skills and tools, best first."""

    OMITTED_IF_EMPTY: ClassVar[frozenset[str]] = frozenset({"degraded"})

    results: list[SkillMatch]
    took: float = Field(description="Milliseconds.")
    degraded: Literal["keyword"] | None = Field(default=None, description="Present if only words could be compared.")
    warnings: list[str] = Field(default_factory=list)


def confidence(candidate: "Candidate") -> float:
    """Probability that this skill is the right one, 0 to 1."""
    if candidate.likeness is None:
        evidence = KEYWORD_BIAS + KEYWORD_SHARE * candidate.share
    else:
        evidence = (
            BIAS
            + LIKENESS * candidate.likeness
            + RAREST * candidate.rarest
            + KNOWN * candidate.known
            + CROWD * candidate.crowd
        )
    return _probability(evidence + PAST * candidate.past**2)


def confidence_of_any(first: "Candidate") -> float:
    """Probability that any skill is right, 0 to 1, by the one that ranks first."""
    if first.likeness is None:
        return 1.0
    return _probability(
        ANSWER_BIAS
        + ANSWER_LIKENESS * first.likeness
        + ANSWER_RAREST * first.rarest
        + ANSWER_KNOWN * first.known
        + ANSWER_CROWD * first.crowd
        + ANSWER_FIELD * first.field
        + ANSWER_VARIATION * first.variation
        + PAST * first.past**2
    )


def shown_scores(ranked: Sequence["Candidate"], threshold: float) -> list[float | None] | None:
    """The confidence that a search shows for each candidate, best first, and None for one below the threshold.

    None instead of the list if the first one says that no skill fits. Scores follow the ranking, even if the confidence
    of a later one is higher.
    """
    likely = confidence_of_any(ranked[0]) if ranked else 1.0
    if likely < threshold:
        return None
    scores: list[float | None] = []
    lowest = 1.0
    for candidate in ranked:
        score = round(min(likely, confidence(candidate)), 4)
        if is_shown := score >= threshold:
            lowest = min(lowest, score)
        scores.append(lowest if is_shown else None)
    return scores


def explain(candidate: "Candidate", words: Mapping[str, str]) -> Why:
    """The reasons for a match. `words` are those of the request, by token."""
    likeness = candidate.likeness
    return Why(
        vector_rank=candidate.vector_rank,
        keyword_rank=candidate.keyword_rank,
        likeness=None if likeness is None else round(min(1.0, max(0.0, likeness)), 3),
        matched_words=list(dict.fromkeys(words.get(token, token) for token in candidate.matched)),
        past_use=round(candidate.past, 3),
    )


def _probability(evidence: float) -> float:
    return 1 / (1 + math.exp(-evidence))
