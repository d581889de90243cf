"""The built-in tools by themselves: those of the one registry that run in the server's process."""

from collections.abc import Mapping
from typing import Any

from apexbridge.errors import InvalidInputError, ToolNotFoundError
from apexbridge.tools.registry import ToolRegistry
from apexbridge.tools.tool import Tool

CATEGORY = "builtin"


class BuiltInToolsRegistry:
    """A view of the registry that shows the built-ins only."""

    def __init__(self, registry: ToolRegistry) -> None:
        self._registry = registry

    def get(self, name: str) -> Tool:
        """A built-in by its id.

        Raises:
            ToolNotFoundError: there is none.
        """
        tool = self._registry.find(name)
        if tool is None or tool.metadata.category != CATEGORY:
            raise ToolNotFoundError(f"BuiltIn tool not found: {name[:200]}", tool=name[:200])
        return tool

    def register(self, tool: Tool) -> Tool:
        """Add a built-in.

        Raises:
            InvalidInputError: its id is taken, or its category is another one.
        """
        if tool.metadata.category != CATEGORY:
            raise InvalidInputError(f"{tool.id} is of the category {tool.metadata.category}, not {CATEGORY}")
        return self._registry.register(tool)

    def list(self) -> list[Tool]:
        """All of them, sorted by id."""
        return self._registry.list_by_category(CATEGORY)


class BuiltInExecutor:
    """Calls built-ins by name, for Python users who want the result object and nothing else."""

    def __init__(self, registry: ToolRegistry) -> None:
        self.tools = BuiltInToolsRegistry(registry)
        self._registry = registry

    async def execute(self, name: str, input: Mapping[str, Any] | None = None) -> Any:
        """Call one; gives its result object.

        Raises:
            ToolNotFoundError: there is none of that name.
            InvalidInputError: the input does not fit.
        """
        self.tools.get(name)
        return (await self._registry.execute(name, input)).data
