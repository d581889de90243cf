"""What search knows of a skill, and how that becomes text to embed."""

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from apexbridge.retrieval.text import name_words, plain_words, tokens, word_count

MAX_EMBEDDED_CHARACTERS = 2000
MAX_EMBEDDED_TAG_CHARACTERS = 500
"""A model takes about 5 KB of memory for each token, and a skill may have a megabyte of tags."""
NAME_WEIGHT = 0.3
SHORT_WORDS, LONG_WORDS = 10, 30
"""A description of ten words leans on its name with the whole weight, one of thirty not at all."""


class Searchable(Protocol):
    """A skill as whoever indexes it describes it."""

    @property
    def name(self) -> str:
        """The key in the index."""

    @property
    def description(self) -> str:
        """What the skill says of itself."""

    @property
    def tags(self) -> Sequence[str]:
        """As declared."""

    @property
    def derived_tags(self) -> Sequence[str]:
        """As found in its words, where it declares none."""

    @property
    def hidden(self) -> bool:
        """Whether a model must not find it by itself."""

    @property
    def version(self) -> str:
        """Tells this content from any other content under the name; empty where nobody asks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """A skill in the index."""

    name: str
    description: str
    tags: tuple[str, ...] = ()
    derived_tags: tuple[str, ...] = ()
    hidden: bool = False
    version: str = ""

    @classmethod
    def from_skill(cls, skill: Searchable) -> "Document":
        """A copy that does not change with the skill; half characters, which no store takes, are replaced."""
        return cls(
            name=skill.name,
            description=skill.description.encode("utf-8", "replace").decode(),
            tags=tuple(skill.tags),
            derived_tags=tuple(skill.derived_tags),
            hidden=skill.hidden,
            version=skill.version,
        )

    @property
    def text(self) -> str:
        """What is embedded."""
        tags = ", ".join(self.informative_tags)[:MAX_EMBEDDED_TAG_CHARACTERS]
        return f"{name_words(self.name)}: {self.description[:MAX_EMBEDDED_CHARACTERS]}{f' ({tags})' if tags else ''}"

    @property
    def informative_tags(self) -> list[str]:
        """Declared tags that say more than the name and the description; a word said twice is not truer."""
        said = set(plain_words(f"{self.name} {self.description}"))
        return [tag for tag in self.tags if not said.issuperset(plain_words(tag))]

    @property
    def title(self) -> str:
        """The name as words, embedded by itself where it has weight."""
        return name_words(self.name)

    @property
    def name_weight(self) -> float:
        """How much the name counts beside the text: the more, the less the description says."""
        missing = (LONG_WORDS - word_count(self.description)) / (LONG_WORDS - SHORT_WORDS)
        return NAME_WEIGHT * min(1.0, max(0.0, missing))

    def keywords(self) -> list[str]:
        """The tokens that keyword search knows it by; derived tags are among them already."""
        return tokens(f"{self.name} {self.description} {' '.join(self.informative_tags)}")


@dataclass(frozen=True, slots=True, kw_only=True)
class SkillFacts:
    """What the library says of a skill at this moment."""

    mode: str
    enabled: bool


FactsOf = Callable[[Collection[str]], Awaitable[Mapping[str, SkillFacts]]]
"""The facts of those that are there."""
