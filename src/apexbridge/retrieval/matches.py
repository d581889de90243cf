"""What a search answers."""

import math
from typing import Any, Literal

from pydantic import Field, SerializerFunctionWrapHandler, model_serializer

from apexbridge.retrieval.ranking import Candidate
from apexbridge.wire import WireModel

SearchMode = Literal["hybrid", "vector"]
BIAS, LIKENESS, SHARE, PAST = -3.2, 7.2, 3.2, 4.0
BIAS_OF_WORDS, SHARE_OF_WORDS = -1.2, 11.5
"""Fitted on public request sets: the skill that was asked for against skills picked at random."""


class Why(WireModel):
    """What speaks for a skill."""

    vector_rank: int | None = Field(description="Its place by meaning alone, 1 being the nearest.")
    keyword_rank: int | None = Field(description="Its place by words alone; null where no word matches.")
    likeness: float | None = Field(description="By meaning: 0 unrelated, 1 the very thing.")
    matched_words: list[str] = Field(description="Words of the request that it has, as stems; translated ones too.")
    past_use: float = Field(description="How near it was asked for before, 0 to 1.")


class SkillMatch(WireModel):
    """One skill that fits."""

    name: str
    description: str
    score: float = Field(description="Confidence, 0 to 1; comparable between requests.")
    tags: list[str]
    mode: str | None = Field(default=None, description="sandbox or direct.")
    why: Why


class SearchAnswer(WireModel):
    """The skills that fit, best first."""

    results: list[SkillMatch]
    took: float = Field(description="Milliseconds.")
    degraded: Literal["keyword"] | None = Field(
        default=None, description="Present where meaning could not be compared and words alone decided."
    )
    warnings: list[str] = Field(default_factory=list)

    @model_serializer(mode="wrap")
    def _without_nothing(self, serialize: SerializerFunctionWrapHandler) -> dict[str, Any]:
        said: dict[str, Any] = serialize(self)
        return {key: value for key, value in said.items() if (key, value) != ("degraded", None)}


def confidence(candidate: Candidate) -> float:
    """How sure it is that this skill is meant, 0 to 1."""
    if candidate.likeness is None:
        evidence = BIAS_OF_WORDS + SHARE_OF_WORDS * candidate.share
    else:
        evidence = BIAS + LIKENESS * candidate.likeness + SHARE * candidate.share
    return 1 / (1 + math.exp(-(evidence + PAST * candidate.past)))


def explain(candidate: Candidate) -> Why:
    """The candidate's evidence as people read it."""
    likeness = candidate.likeness
    return Why(
        vector_rank=candidate.vector_rank,
        keyword_rank=candidate.keyword_rank,
        likeness=None if likeness is None else round(min(1.0, max(0.0, likeness)), 3),
        matched_words=candidate.matched,
        past_use=round(candidate.past, 3),
    )
