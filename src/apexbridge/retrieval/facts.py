"""What search asks the library about the skills it found."""

from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class SkillFacts:
    """What the library says of a skill at this moment."""

    mode: str
    enabled: bool


FactsOf = Callable[[Collection[str]], Awaitable[Mapping[str, SkillFacts]]]
"""The facts of those that are there."""
