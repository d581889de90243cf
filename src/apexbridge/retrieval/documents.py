"""A skill or a tool as search sees it, and the text of it that is embedded."""

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from apexbridge.retrieval.kinds import Kind
from apexbridge.retrieval.packed_body import EMPTY_BODY, PackedBody
from apexbridge.retrieval.text import name_words, plain_words, tokens, word_count

MAX_EMBEDDED_CHARACTERS = 2000
MAX_EMBEDDED_TAG_CHARACTERS = 500
"""A model needs about 5 KB of memory per token, and a skill may have a megabyte of tags."""
NAME_WEIGHT = 0.3
SHORT_WORDS, LONG_WORDS = 10, 30
"""The name has its full weight up to ten words of description, and none from thirty words on."""
TOOL_PREFIX = "tool/"
"""Keys of tools in the index begin with it. Names of skills contain no slash, so the two never collide."""


def tool_key(id: str) -> str:
    """The key of a tool in the index."""
    return f"{TOOL_PREFIX}{id}"


def kind_of(key: str) -> Kind:
    return "tool" if key.startswith(TOOL_PREFIX) else "skill"


class Searchable(Protocol):
    """What can be indexed."""

    @property
    def name(self) -> str: ...

    @property
    def description(self) -> str: ...

    @property
    def tags(self) -> Sequence[str]: ...

    @property
    def derived_tags(self) -> Sequence[str]:
        """Derived from name and description, for a skill that declares none."""

    @property
    def body(self) -> str:
        """The searchable part of its instructions, as `searchable_body` returns it; empty if it has none."""

    @property
    def hidden(self) -> bool:
        """Whether models must not find it on their own."""

    @property
    def version(self) -> str:
        """Identifies the content under this name; empty if versions are not compared."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    name: str
    """The key in the index: the name of a skill, or the key of a tool."""
    description: str
    tags: tuple[str, ...] = ()
    derived_tags: tuple[str, ...] = ()
    packed_body: PackedBody = EMPTY_BODY
    hidden: bool = False
    version: str = ""

    @classmethod
    def from_skill(cls, skill: Searchable) -> "Document":
        """An immutable copy. Lone surrogates, which no store accepts, are replaced."""
        return cls(
            name=skill.name,
            description=_storable(skill.description),
            tags=tuple(_storable(tag) for tag in skill.tags),
            derived_tags=tuple(_storable(tag) for tag in skill.derived_tags),
            packed_body=PackedBody.of(skill.body),
            hidden=skill.hidden,
            version=skill.version,
        )

    @classmethod
    def from_stored(cls, fields: Mapping[str, Any]) -> "Document":
        """From the columns of a table."""
        stored = {"tags": tuple(fields["tags"]), "derived_tags": tuple(fields["derived_tags"])}
        return cls(**{**fields, **stored, "packed_body": PackedBody.of_stored(fields["packed_body"])})

    @property
    def kind(self) -> Kind:
        return kind_of(self.name)

    @property
    def label(self) -> str:
        """The name of the skill, or the id of the tool."""
        return self.name.removeprefix(TOOL_PREFIX)

    @property
    def text(self) -> str:
        tags = ", ".join(self.informative_tags)[:MAX_EMBEDDED_TAG_CHARACTERS]
        return f"{name_words(self.label)}: {self.description[:MAX_EMBEDDED_CHARACTERS]}{f' ({tags})' if tags else ''}"

    @property
    def informative_tags(self) -> list[str]:
        """Declared tags with a word that neither the name nor the description has."""
        known = set(plain_words(f"{self.label} {self.description}"))
        return [tag for tag in self.tags if not known.issuperset(plain_words(tag))]

    @property
    def folded_tags(self) -> set[str]:
        """All tags, derived ones too, in the form that filters compare."""
        return {tag.casefold() for tag in (*self.tags, *self.derived_tags)}

    @property
    def title(self) -> str:
        """The name as words, embedded separately if it has weight."""
        return name_words(self.label)

    @property
    def name_weight(self) -> float:
        """Weight of the name against the text: the shorter the description, the higher."""
        missing = (LONG_WORDS - word_count(self.description)) / (LONG_WORDS - SHORT_WORDS)
        return NAME_WEIGHT * min(1.0, max(0.0, missing))

    @property
    def body(self) -> str:
        return self.packed_body.text

    def keywords(self) -> list[str]:
        """Tokens for keyword search. Derived tags are words of the description, so they are included."""
        return tokens(f"{self.label} {self.description} {' '.join(self.informative_tags)}")


def _storable(text: str) -> str:
    return text.encode("utf-8", "replace").decode()


@dataclass(frozen=True, slots=True, kw_only=True)
class SkillFacts:
    """The current state of a skill in the library, or of a tool."""

    mode: str | None
    """None for a tool."""
    enabled: bool


FactsOf = Callable[[Collection[str]], Awaitable[Mapping[str, SkillFacts]]]
"""Returns the facts of the skills and tools with these keys that exist."""
