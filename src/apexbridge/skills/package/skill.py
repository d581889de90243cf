"""What a skill is: its metadata, its files and what was found out about it."""

from dataclasses import dataclass, field
from typing import Any

from apexbridge.skills.models import SKILL_FILE, DefaultMode, Mode
from apexbridge.skills.package.script_arguments import ScriptArguments


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnostic:
    """One finding about a skill, with its line in SKILL.md if known."""

    message: str
    line: int | None = None

    def __str__(self) -> str:
        return self.message if self.line is None else f"{SKILL_FILE} line {self.line}: {self.message}"


@dataclass(frozen=True, slots=True, kw_only=True)
class SkillMetadata:
    """The frontmatter, interpreted by a profile."""

    name: str
    description: str
    version: str | None = None
    author: str | None = None
    category: str | None = None
    license: str | None = None
    compatibility: str | None = None
    tags: tuple[str, ...] = ()
    allowed_tools: tuple[str, ...] = ()
    permissions: tuple[str, ...] = ()
    mode: Mode | None = None
    """As declared; None selects the default mode."""
    entrypoint: str | None = None
    timeout_ms: int | None = None
    dangerous: bool = False
    confirm: str | None = None
    disable_model_invocation: bool = False
    parameters: dict[str, Any] | None = None
    metadata: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """A SKILL.md parsed by one profile; `metadata` is None if there are errors."""

    metadata: SkillMetadata | None
    body: str
    errors: tuple[Diagnostic, ...]
    warnings: tuple[Diagnostic, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PackageFile:
    """One regular file of a skill's folder."""

    path: str
    """Relative to the folder, separated by `/`."""
    size: int
    executable: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Skill:
    """One skill on disk, parsed and fingerprinted."""

    metadata: SkillMetadata
    filename: str
    """`SKILL.md` in the spelling of the package, such as `skill.md`."""
    entry: str | None
    size: int
    content_hash: str
    summary: str
    warnings: tuple[str, ...] = ()
    arguments: dict[str, ScriptArguments] = field(default_factory=dict)
    """Arguments of its scripts by path, if they could be determined."""

    @property
    def name(self) -> str:
        return self.metadata.name


def effective_mode(declared: str | None, entry: str | None, default: DefaultMode) -> Mode:
    """The declared mode, else the default. `auto` means `sandbox` if there is an entry script, else `direct`."""
    if declared in ("sandbox", "direct"):
        return declared  # type: ignore[return-value]  # narrowed by the line above
    if default == "auto":
        return "sandbox" if entry else "direct"
    return default
