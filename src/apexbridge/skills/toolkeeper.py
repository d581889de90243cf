"""Keeps the tools in step with the skills: there while the skill is, switched off with it, gone with it."""

from collections.abc import Callable

from apexbridge.skills.catalog import Row
from apexbridge.tools.naming import skill_tool_id
from apexbridge.tools.registry import ToolRegistry
from apexbridge.tools.tool import Tool


class ToolKeeper:
    """Hears what became of skills and has the registry follow."""

    def __init__(self, registry: ToolRegistry, tool_of: Callable[[Row], Tool]) -> None:
        self._registry = registry
        self._tool_of = tool_of

    def skill_is_live(self, row: Row) -> None:
        """This skill is new, or not what it was."""
        self.register(row)

    def skill_is_gone(self, name: str) -> None:
        """No folder serves this name any more."""
        self.unregister(name)

    def register(self, row: Row) -> Tool:
        """Have the skill's tool as the skill is now."""
        tool = self._tool_of(row)
        self._registry.put(tool, enabled=row.enabled)
        return tool

    def unregister(self, name: str) -> bool:
        """Take the skill's tool away; False where there was none."""
        return self._registry.unregister(skill_tool_id(name))
