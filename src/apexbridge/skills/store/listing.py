"""The list of skills: what it can be filtered by, its orders, and their SQL."""

import json
from collections.abc import Collection
from dataclasses import dataclass

from apexbridge.skills import DefaultMode, Mode
from apexbridge.skills.models import SkillHealth, SkillSort

FOLDED = "casefolded"
"""The name of an SQL function; SQLite's own `lower` knows only ASCII."""

_ORDERS: dict[SkillSort, str] = {
    "name": "name",
    "-name": "name DESC",
    "updated": "updated_at DESC, name",
    "installed": "installed_at DESC, name",
    "calls": "COALESCE(call_count, 0) DESC, name",
    "failures": "COALESCE(call_count - success_count, 0) DESC, name",
}
_INDEXES: dict[SkillSort, str] = {"updated": "skills_by_update", "installed": "skills_by_install"}
NEEDS_ACCESS = """EXISTS (
    SELECT 1 FROM json_each(skills.permissions) AS asked WHERE NOT EXISTS (
        SELECT 1 FROM grants WHERE skill = skills.name AND permission = asked.value
        AND grants.content_hash = skills.content_hash))"""
"""Whether a skill asks for a permission that is not granted to its present content."""
_TAGGED = (
    "EXISTS (SELECT 1 FROM skill_tags t WHERE t.root = skills.root AND t.folder = skills.folder AND t.tag IN ({}))"
)
_CALLS = " LEFT JOIN call_statistics ON tool = name"


@dataclass(frozen=True, slots=True, kw_only=True)
class SkillFilter:
    """Which live skills are listed; None and empty values do not filter."""

    name: str | None = None
    """A part of the name."""
    query: str | None = None
    """Words that must all occur in the name or the description."""
    tags: Collection[str] = ()
    """Any of them."""
    mode: Mode | None = None
    enabled: bool | None = None
    roots: Collection[str] | None = None
    """Ids of roots."""
    plugin: str | None = None
    health: SkillHealth | None = None
    lacking: Collection[str] = ()
    """The names of skills that lack packages, if `health` is `packages`."""

    @property
    def is_empty(self) -> bool:
        return self == SkillFilter()

    def condition(self, default_mode: DefaultMode) -> tuple[str, list[object]]:
        """The text after WHERE, and its values."""
        parts: list[str] = ["state = 'live'"]
        values: list[object] = []
        if self.name:
            parts.append("instr(name, ?) > 0")
            values.append(self.name.lower())
        for word in dict.fromkeys((self.query or "").casefold().split()):
            # Most texts have no letters with a case but those of ASCII, and the function of Python is slower.
            fold = "lower" if word.isascii() or word.upper() == word else FOLDED
            parts.append(f"(instr(name, ?) > 0 OR instr({fold}(description), ?) > 0)")
            values += [word, word]
        if self.tags:
            parts.append(_TAGGED.format(", ".join("?" * len(self.tags))))
            values += [tag.casefold() for tag in self.tags]
        if self.mode is not None:
            parts.append(f"{_mode(default_mode)} = ?")
            values.append(self.mode)
        if self.enabled is not None:
            parts.append("enabled = ?")
            values.append(int(self.enabled))
        if self.roots is not None:
            parts.append("root IN (SELECT value FROM json_each(?))")
            values.append(json.dumps(list(self.roots)))
        if self.plugin is not None:
            parts.append("plugin = ?")
            values.append(self.plugin)
        match self.health:
            case "warnings":
                parts.append("warning_count > 0")
            case "access":
                parts.append(f"permissions <> '[]' AND {NEEDS_ACCESS}")
            case "confirm":
                parts.append("dangerous")
            case "packages":
                parts.append("name IN (SELECT value FROM json_each(?))")
                values.append(json.dumps(sorted(self.lacking)))
        return " AND ".join(parts), values


def keys_query(filter: SkillFilter, sort: SkillSort, default_mode: DefaultMode) -> tuple[str, str, list[object]]:
    """The queries for the row ids of a page, with LIMIT and OFFSET, and for the total number; and their values.

    They read an index that has all their columns: rows are large, because of their records.
    """
    condition, values = filter.condition(default_mode)
    index = _INDEXES.get(sort, "skills_listed") if filter.is_empty else "skills_listed"
    calls = _CALLS if sort in ("calls", "failures") else ""
    page = (
        f"SELECT skills.rowid FROM skills INDEXED BY {index}{calls} WHERE {condition} "  # noqa: S608
        f"ORDER BY {_ORDERS[sort]} LIMIT ? OFFSET ?"
    )
    total = f"SELECT COUNT(*) FROM skills INDEXED BY skills_listed WHERE {condition}"  # noqa: S608
    return page, total, values


def _mode(default_mode: DefaultMode) -> str:
    """`effective_mode` in SQL."""
    other = "iif(entry IS NULL, 'direct', 'sandbox')" if default_mode == "auto" else f"'{default_mode}'"
    return f"iif(declared_mode IN ('sandbox', 'direct'), declared_mode, {other})"
