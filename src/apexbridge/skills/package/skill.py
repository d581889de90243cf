"""What a skill is: its metadata, its name, its files and its scripts."""

import hashlib
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from apexbridge._text import normalized
from apexbridge.skills import MAX_NAME_CHARACTERS, NAME_PATTERN, RESERVED_NAMES, SKILL_FILE, DefaultMode, Mode
from apexbridge.skills.package.script_arguments.model import ScriptArguments


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
    user_invocable: bool = True
    """Whether clients offer it to people, such as an MCP prompt."""
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
class Needs:
    """The packages that a skill declares, and those that its code uses."""

    python: tuple[str, ...] = ()
    """Declared requirements, as in `Dependencies`."""
    node: tuple[tuple[str, str], ...] = ()
    uses: tuple[tuple[str, str], ...] = ()
    """Kind and name of each package that the code uses, `("python", "pandas")`, if a known package provides it."""
    has_problems: bool = False
    """Whether a declaration is refused, so that nothing can be installed."""

    def to_json(self) -> dict[str, Any]:
        """Without what is empty."""
        fields = {"python": self.python, "node": self.node, "uses": self.uses, "problems": self.has_problems}
        return {key: value for key, value in fields.items() if value}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> "Needs":
        return cls(
            python=tuple(data.get("python", ())),
            node=tuple((name, versions) for name, versions in data.get("node", ())),
            uses=tuple((kind, package) for kind, package in data.get("uses", ())),
            has_problems=bool(data.get("problems")),
        )


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
    body: str = ""
    """What of its body is searched."""
    warnings: tuple[str, ...] = ()
    arguments: dict[str, ScriptArguments] = field(default_factory=dict)
    """Arguments of its scripts by path, if they could be determined."""
    needs: Needs = field(default_factory=Needs)

    @property
    def name(self) -> str:
        return self.metadata.name

    def renamed(self, name: str) -> "Skill":
        """The same skill under another name."""
        return replace(self, metadata=replace(self.metadata, name=name))


def effective_mode(declared: str | None, entry: str | None, default: DefaultMode) -> Mode:
    """The declared mode, else the default. `auto` means `sandbox` if there is an entry script, else `direct`."""
    if declared in ("sandbox", "direct"):
        return declared  # type: ignore[return-value]  # narrowed by the line above
    if default == "auto":
        return "sandbox" if entry else "direct"
    return default


MAX_READ_CHARACTERS = 1_000
"""Limit for the text that a name is derived from."""
_STRICT_NAME = re.compile(r"[a-z0-9]+(?:-[a-z0-9]+)*\Z")


def name_problem(name: str, *, strict: bool = False) -> str | None:
    """Why this name is invalid; None if it is valid."""
    if len(name) > MAX_NAME_CHARACTERS:
        return f"name is longer than {MAX_NAME_CHARACTERS} characters"
    if not NAME_PATTERN.match(name):
        return f'name "{name}" may hold only lower-case letters, digits and hyphens, and begins with a letter or digit'
    if strict and not _STRICT_NAME.match(name):
        return f'name "{name}" may not end with a hyphen or hold two in a row'
    if name in RESERVED_NAMES:
        return f'name "{name}" is reserved; choose another one'
    return None


def slug(text: str) -> str:
    """The text as a name: without accents, hyphens for other characters than letters and digits. May be empty."""
    plain = normalized("NFKD", text[:MAX_READ_CHARACTERS]).encode("ascii", "ignore").decode().lower()
    return re.sub(r"[^a-z0-9]+", "-", plain).strip("-")[:MAX_NAME_CHARACTERS].rstrip("-")


def lenient_name(written: str, folder: str) -> str:
    """A valid name for any text: its slug, else the slug of the folder, else one with a hash of the text."""
    for candidate in (written, folder):
        made = candidate if NAME_PATTERN.match(candidate) else slug(candidate)  # a valid name is kept as it is
        if re.search("[A-Za-z]", made):
            return made
    digest = hashlib.sha256((written or folder).encode("utf-8", "surrogatepass")).hexdigest()
    return f"skill-{digest[:8]}"


RUNNABLE_SUFFIXES = (".js", ".mjs", ".cjs", ".py", ".sh")
_ENTRY_SCRIPTS = tuple(f"scripts/execute{suffix}" for suffix in RUNNABLE_SUFFIXES)


def find_entry(paths: Collection[str], declared: str | None = None) -> str | None:
    """The declared script, or without a declaration `scripts/execute.*`, then `index.js`; None if missing."""
    if declared is not None:
        return declared if declared in paths else None
    return next((path for path in (*_ENTRY_SCRIPTS, "index.js") if path in paths), None)


def runnable_scripts(paths: Iterable[str]) -> list[str]:
    """The scripts that can be run by name: all files below `scripts/` with a known interpreter."""
    return sorted(path for path in paths if path.startswith("scripts/") and is_runnable(path))


def is_runnable(path: str) -> bool:
    """Whether a file has a known interpreter, and is not only the mark of a Python package."""
    return path.endswith(RUNNABLE_SUFFIXES) and not f"/{path}".endswith("/__init__.py")
