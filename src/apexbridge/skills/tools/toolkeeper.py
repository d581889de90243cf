"""Keeps the tool registry in sync with the skills: registered, disabled and removed with the skill."""

from collections.abc import Callable

from apexbridge.skills.store.catalog import Row
from apexbridge.tools.naming import skill_tool_id
from apexbridge.tools.registry import ToolRegistry
from apexbridge.tools.tool import Tool


class ToolKeeper:
    """Applies changes of skills to the tool registry."""

    def __init__(self, registry: ToolRegistry, tool_of: Callable[[Row], Tool]) -> None:
        self._registry = registry
        self._tool_of = tool_of

    def skill_is_live(self, row: Row) -> None:
        self.register(row)

    def skill_is_gone(self, name: str) -> None:
        self.unregister(name)

    def register(self, row: Row) -> Tool:
        """Register or replace the skill's tool; returns it."""
        tool = self._tool_of(row)
        self._registry.put(tool, enabled=row.enabled)
        return tool

    def unregister(self, name: str) -> bool:
        """Unregister the skill's tool; False if it was not registered."""
        return self._registry.unregister(skill_tool_id(name))
