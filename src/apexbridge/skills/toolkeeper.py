"""Keeps the tools in step with the skills: registered while live and enabled, gone with the skill."""

from collections.abc import Callable
from typing import Any

from apexbridge.skills.catalog import Row
from apexbridge.skills.ports import SkillToolSource, ToolRegistrar


class ToolKeeper:
    """Hears what became of skills and tells the registrar, where there is one."""

    def __init__(self, registrar: ToolRegistrar | None, source_of: Callable[[Row], SkillToolSource]) -> None:
        self._registrar = registrar
        self._source_of = source_of

    @property
    def is_needed(self) -> bool:
        """Whether anybody wants to know about tools."""
        return self._registrar is not None

    def skill_is_live(self, row: Row) -> None:
        """This skill is new, or not what it was."""
        if row.enabled:
            self.register(row)
        else:
            self.skill_is_gone(row.name)

    def skill_is_gone(self, name: str) -> None:
        """No folder serves this name any more."""
        self.unregister(name)

    def register(self, row: Row) -> Any:
        """Add or replace the skill's tool; gives its definition."""
        return self._registrar.register(self._source_of(row)) if self._registrar is not None else None

    def unregister(self, name: str) -> bool:
        """Take the skill's tool away; False where there was none."""
        return self._registrar.unregister(name) if self._registrar is not None else False
