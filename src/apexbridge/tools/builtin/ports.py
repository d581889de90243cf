"""What built-in tools need from the rooms of skills and search; the bridge hands it over."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, BinaryIO, Protocol

from apexbridge.tools.tool import ToolContext, ToolResult


class FoundSkill(Protocol):
    """One skill that fits a request."""

    @property
    def name(self) -> str:
        """Its name."""

    @property
    def description(self) -> str:
        """What it says of itself."""

    @property
    def score(self) -> float:
        """Confidence, 0 to 1."""

    @property
    def mode(self) -> str | None:
        """`sandbox`: it runs; `direct`: it is instructions."""


class FoundSkills(Protocol):
    """What a search answered."""

    @property
    def results(self) -> Sequence[FoundSkill]:
        """Best first."""

    @property
    def warnings(self) -> Sequence[str]:
        """What the searcher should know."""

    def model_dump(self, *, mode: str, by_alias: bool) -> dict[str, Any]:
        """As the search route answers."""


class SkillSearch(Protocol):
    """Finds skills by meaning."""

    async def __call__(self, query: str, *, limit: int | None, for_model: bool, caller: str) -> FoundSkills:
        """The skills that fit; those that a model must not find are left out for one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Instructions:
    """A skill, as whoever is to follow it needs it."""

    name: str
    mode: str
    content: str
    """The text of its SKILL.md, without the frontmatter."""
    files: Sequence[str]
    scripts: Sequence[str]
    """How each script that can be run is called."""
    allowed_tools: Sequence[str] = field(default_factory=tuple)


class Skills(Protocol):
    """The skills that are installed."""

    async def instructions(self, name: str) -> Instructions:
        """What a skill says."""

    async def open_file(self, name: str, path: str) -> BinaryIO:
        """One of its files, open."""

    async def run(self, name: str, call: "SkillCall", context: ToolContext) -> ToolResult:
        """Run it, or one of its scripts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SkillCall:
    """A call of a skill."""

    input: dict[str, Any]
    script: str | None
    args: Sequence[str]
    files: Sequence[str]
