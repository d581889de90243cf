"""The tools that may be called while a skill's instructions are active: its `allowed-tools`, parsed leniently."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from apexbridge.tools.naming import skill_tool_id, wire_name

NEVER_LIMITED = frozenset({"vector-search", "read-skill"})
"""Searching and reading skills has no side effects."""
RUN_SKILL, RUN_CODE = "run-skill", "run-code"
MAX_PATTERN_CHARACTERS = 128
MAX_NAMES = 100
MAX_WILDCARDS = 10
"""Wildcard patterns that are compared with every tool, to warn about those that match none."""
_READING = ("file-read", "list-files")
_COMMON_NAMES: Mapping[str, tuple[str, ...]] = {
    "read": _READING,
    "glob": _READING,
    "grep": _READING,
    "ls": _READING,
    "write": ("file-write",),
    "edit": ("file-write",),
}
"""Names of these tools in packages written for other agents."""
_SHELL = "bash"


@dataclass(frozen=True, slots=True, kw_only=True)
class Allowance:
    """The tools that one skill allows."""

    skill: str
    patterns: tuple[str, ...]
    runs_own_scripts: bool
    warnings: tuple[str, ...] = ()

    @classmethod
    def of(cls, skill: str, names: Iterable[str], *, known: Collection[str]) -> "Allowance | None":
        """Parse a skill's `allowed-tools`; None if it limits nothing."""
        stripped = [name.strip() for name in names if name.strip()]
        if not stripped:
            return None
        patterns: list[str] = []
        warnings: list[str] = []
        if len(stripped) > MAX_NAMES:
            warnings.append(f"allowed-tools of {skill} has {len(stripped)} names; those after {MAX_NAMES} are ignored")
        runs_own_scripts, wildcards = False, 0
        spellings = {spelling for id in known for spelling in (id, wire_name(id))}
        for entry in stripped[:MAX_NAMES]:
            # The scope in `Bash(git add:*)` is ignored: only whole tools can be allowed.
            name = " ".join(entry.partition("(")[0].split())[:MAX_PATTERN_CHARACTERS]
            if name.lower() == _SHELL:
                runs_own_scripts = True
                continue
            if tools := _COMMON_NAMES.get(name.lower()):
                patterns.extend(tools)
                continue
            patterns.append(name)
            wildcards += "*" in name
            is_known = name in spellings or (
                "*" in name and (wildcards > MAX_WILDCARDS or any(_fits(name, spelling) for spelling in spellings))
            )
            if not is_known:
                warnings.append(f"allowed-tools of {skill} names {name}, which is not a tool here")
        return cls(
            skill=skill,
            patterns=tuple(dict.fromkeys(patterns)),
            runs_own_scripts=runs_own_scripts,
            warnings=tuple(warnings),
        )

    def permits(self, id: str, input: Mapping[str, Any]) -> bool:
        """Whether a call is allowed."""
        if id in NEVER_LIMITED or self._names(id):
            return True
        skill = input.get("name") if id == RUN_SKILL else None
        if isinstance(skill, str) and (self._names(skill_tool_id(skill)) or self._names(skill)):
            return True
        is_own = id in (RUN_CODE, skill_tool_id(self.skill)) or skill == self.skill
        return is_own and self.runs_own_scripts

    def _names(self, id: str) -> bool:
        name = wire_name(id)
        return any(_fits(pattern, id) or _fits(pattern, name) for pattern in self.patterns)

    @property
    def text(self) -> str:
        """The allowed tools, by the names that models know."""
        named = [pattern if "*" in pattern else wire_name(pattern) for pattern in self.patterns]
        own = [wire_name(RUN_CODE), f"{wire_name(RUN_SKILL)} with {self.skill}'s scripts"]
        return (
            ", ".join([*named, *(own if self.runs_own_scripts else [])]) or "nothing but searching and reading skills"
        )


def _fits(pattern: str, text: str) -> bool:
    """Whether a text matches a pattern with `*`, in one pass without backtracking."""
    if "*" not in pattern:
        return pattern == text
    first, *middle, last = pattern.split("*")
    if not text.startswith(first) or not text.endswith(last) or len(first) + len(last) > len(text):
        return False
    start, end = len(first), len(text) - len(last)
    for segment in middle:
        found = text.find(segment, start, end)
        if found < 0:
            return False
        start = found + len(segment)
    return True
