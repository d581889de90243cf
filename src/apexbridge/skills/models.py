"""Models of skills that cross the API, and constants that all subpackages use."""

import re
from collections.abc import Iterator
from datetime import datetime
from typing import Any, Literal

from pydantic import Field

from apexbridge.wire import WireModel

Profile = Literal["seed", "lenient", "strict"]
Mode = Literal["sandbox", "direct"]
DefaultMode = Literal["auto", "sandbox", "direct"]

SKILL_FILE = "SKILL.md"
MARKER_FILE = ".vectorized"
NAME_PATTERN = re.compile(r"[a-z0-9][a-z0-9-]{0,63}\Z")
MAX_NAME_CHARACTERS = 64
MAX_DESCRIPTION_CHARACTERS = 1024
SUMMARY_CHARACTERS = 200


class SkillSummary(WireModel):
    """One line of the list."""

    name: str
    description: str
    version: str | None
    author: str | None
    tags: list[str]
    derived_tags: list[str]
    category: str | None
    mode: Mode
    enabled: bool
    source: str
    """`installed`, or the label of the root that it was found in."""
    plugin: str | None
    installed_at: datetime
    updated_at: datetime
    dangerous: bool


class SkillFile(WireModel):
    """A bundled file."""

    path: str
    size: int


class SkillDetail(SkillSummary):
    """Everything about one skill."""

    entry: str | None
    content: str
    """The Markdown body."""
    summary: str
    filename: str
    source_path: str
    """Relative to its root; never a path of the server."""
    files: list[SkillFile]
    scripts: list[str]
    """What can be run by name."""
    content_hash: str
    size: int
    warnings: list[str]
    parameters: dict[str, Any] | None
    """JSON Schema of the input: as declared, else as derived from the entry script."""
    script_parameters: dict[str, dict[str, Any]]
    """What scripts were seen to take, by their paths."""
    permissions: list[str]
    grants: list[str]
    allowed_tools: list[str]
    timeout: int | None
    confirm: str | None
    license: str | None
    compatibility: str | None
    disable_model_invocation: bool
    metadata: dict[str, Any]
    read_only: bool


class SkillPage(WireModel):
    """A page of the list; iterating gives its skills."""

    skills: list[SkillSummary]
    total: int
    page: int = 1
    limit: int | None = None

    def __iter__(self) -> Iterator[SkillSummary]:  # type: ignore[override]  # a page is a collection of skills
        return iter(self.skills)

    def __len__(self) -> int:
        return len(self.skills)


class Receipt(WireModel):
    """The answer to a change that was made."""

    success: Literal[True] = True
    name: str
    message: str


class InstallReceipt(Receipt):
    """The answer to an install; for a plugin `name` is the plugin and `names` its skills."""

    names: list[str]
    replaced: bool = False
    warnings: list[str] = Field(default_factory=list)
    duration: int = 0
    """Milliseconds."""


class ValidationReport(WireModel):
    """Whether a package could be installed, and everything that was found."""

    valid: bool
    name: str | None = None
    errors: list[str]
    warnings: list[str]


class Problem(WireModel):
    """A folder that is not served as a skill, and why."""

    name: str
    source: str
    source_path: str
    kind: Literal["broken", "shadowed"]
    reason: str


class SkillStatistics(WireModel):
    """The library in numbers."""

    total: int
    by_tag: dict[str, int]
    by_derived_tag: dict[str, int]
    by_mode: dict[str, int]
    calls: int
    success_rate: float
    unused: int
    """How many skills were never called."""
    unused_names: list[str]
    """The first of them by name, at most 100."""


class CallStatistics(WireModel):
    """How often one skill was called and how it went."""

    tool_name: str
    call_count: int
    success_count: int
    average_duration: int
    """Milliseconds."""
    success_rate: float


class GrowthPoint(WireModel):
    """How many skills were installed for the first time on a day or in a week."""

    date: str
    count: int


class PluginSummary(WireModel):
    """A plugin and the skills that came with it."""

    name: str
    version: str | None
    description: str | None
    installed_at: datetime
    skills: list[str]


class ScanReport(WireModel):
    """What a look at the disk changed in the index."""

    indexed: int = 0
    skipped: int = 0
    removed: int = 0


class DirectMetadata(WireModel):
    """Where a direct answer came from."""

    skill_name: str
    source_path: str
    generated_at: int
    """Milliseconds since 1970."""


class DirectSkillResult(WireModel):
    """A skill's instructions, with the input filled in."""

    mode: Literal["direct"] = "direct"
    content: str
    metadata: DirectMetadata
    warnings: list[str] = Field(default_factory=list)
