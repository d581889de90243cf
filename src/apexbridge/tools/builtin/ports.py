"""Interfaces through which built-in tools use skills and search; the bridge passes the implementations."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, BinaryIO, Protocol

from apexbridge.tools.tool import ToolContext, ToolResult


class FoundSkill(Protocol):
    """A skill that a search found."""

    @property
    def name(self) -> str:
        """The skill's name."""

    @property
    def description(self) -> str:
        """The skill's description."""

    @property
    def score(self) -> float:
        """Confidence, 0 to 1."""

    @property
    def mode(self) -> str | None:
        """`sandbox` if the skill runs, `direct` if it consists of instructions."""


class FoundSkills(Protocol):
    """The result of a search."""

    @property
    def results(self) -> Sequence[FoundSkill]:
        """Best first."""

    @property
    def warnings(self) -> Sequence[str]:
        """Warnings for the caller."""

    def model_dump(self, *, mode: str, by_alias: bool) -> dict[str, Any]:
        """The result as the search route returns it."""


class SkillSearch(Protocol):
    """Finds skills by meaning."""

    async def __call__(self, query: str, *, limit: int | None, for_model: bool, caller: str) -> FoundSkills:
        """The skills that match; `for_model` omits skills that a model must not find on its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Instructions:
    """A skill's instructions, with its files and scripts."""

    name: str
    mode: str
    content: str
    """The text of its SKILL.md, without the frontmatter."""
    files: Sequence[str]
    scripts: Sequence[str]
    """Path of each script that can run, with its arguments if known."""
    allowed_tools: Sequence[str] = field(default_factory=tuple)


class Skills(Protocol):
    """The installed skills."""

    async def instructions(self, name: str) -> Instructions:
        """The instructions of a skill."""

    async def open_file(self, name: str, path: str) -> BinaryIO:
        """Open one of the skill's files for reading."""

    async def run(self, call: Any, context: ToolContext) -> ToolResult:
        """Run a skill, or one of its scripts, as `RunSkillInput` names it."""
