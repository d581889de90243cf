"""What may be called while a skill's instructions are in force: its `allowed-tools`, read generously."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from apexbridge.tools.naming import skill_tool_id, wire_name

NEVER_LIMITED = frozenset({"vector-search", "read-skill"})
"""Looking for skills and reading them does nothing but inform."""
RUN_SKILL = "run-skill"
MAX_PATTERN_CHARACTERS = 128
_READING = ("file-read", "list-files")
_COMMON_NAMES: Mapping[str, tuple[str, ...]] = {
    "read": _READING,
    "glob": _READING,
    "grep": _READING,
    "ls": _READING,
    "write": ("file-write",),
    "edit": ("file-write",),
}
"""What packages written for other agents call these tools."""
_SHELL = "bash"


@dataclass(frozen=True, slots=True, kw_only=True)
class Allowance:
    """What one skill allows."""

    skill: str
    patterns: tuple[str, ...]
    runs_own_scripts: bool
    warnings: tuple[str, ...] = ()

    @classmethod
    def of(cls, skill: str, names: Iterable[str], *, known: Collection[str]) -> "Allowance | None":
        """Read a skill's `allowed-tools`; None where it limits nothing."""
        patterns: list[str] = []
        warnings: list[str] = []
        runs_own_scripts = False
        given = [name.strip() for name in names if name.strip()]
        for whole in given:
            name = whole.partition("(")[0].strip()[
                :MAX_PATTERN_CHARACTERS
            ]  # `Bash(git add:*)` says more than we tell apart
            if name.lower() == _SHELL:
                runs_own_scripts = True
            elif meant := _COMMON_NAMES.get(name.lower()):
                patterns.extend(meant)
            else:
                patterns.append(name)
                if not any(_matches(name, id) for id in known):
                    warnings.append(f"allowed-tools of {skill} names {name}, which is no tool here")
        if not given:
            return None
        return cls(
            skill=skill,
            patterns=tuple(dict.fromkeys(patterns)),
            runs_own_scripts=runs_own_scripts,
            warnings=tuple(warnings),
        )

    def permits(self, id: str, input: Mapping[str, Any]) -> bool:
        """Whether a call is within it."""
        if id in NEVER_LIMITED or any(_matches(pattern, id) for pattern in self.patterns):
            return True
        is_own = id == skill_tool_id(self.skill) or (id == RUN_SKILL and input.get("name") == self.skill)
        return is_own and self.runs_own_scripts

    @property
    def told(self) -> str:
        """What is allowed, in words."""
        own = [f"run-skill with {self.skill}'s scripts"] if self.runs_own_scripts else []
        return ", ".join([*self.patterns, *own]) or "nothing but searching and reading skills"


def _matches(pattern: str, id: str) -> bool:
    return pattern in (id, wire_name(id)) or ("*" in pattern and _fits(pattern, id))


def _fits(pattern: str, id: str) -> bool:
    plain = pattern.replace("[", "[[]").replace("?", "[?]")  # nothing but the star is special
    return fnmatchcase(id, plain) or fnmatchcase(wire_name(id), plain)
