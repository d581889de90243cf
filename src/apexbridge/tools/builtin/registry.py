"""The built-in tools: a view of the registry, and an executor for Python users."""

from collections.abc import Mapping
from typing import Any

from apexbridge.errors import InvalidInputError, ToolNotFoundError
from apexbridge.tools.registry import ToolRegistry
from apexbridge.tools.tool import Tool

CATEGORY = "builtin"


class BuiltInToolsRegistry:
    """A view of the registry that contains only built-in tools."""

    def __init__(self, registry: ToolRegistry) -> None:
        self._registry = registry

    def get(self, name: str) -> Tool:
        """A built-in tool by its id.

        Raises:
            ToolNotFoundError: the tool does not exist.
        """
        tool = self._registry.find(name)
        if tool is None or tool.metadata.category != CATEGORY:
            raise ToolNotFoundError(f"BuiltIn tool not found: {name[:200]}", tool=name[:200])
        return tool

    def register(self, tool: Tool) -> Tool:
        """Add a built-in tool.

        Raises:
            InvalidInputError: its id is taken, or its category is not `builtin`.
        """
        if tool.metadata.category != CATEGORY:
            raise InvalidInputError(f"{tool.id} is of the category {tool.metadata.category}, not {CATEGORY}")
        return self._registry.register(tool)

    def list(self) -> list[Tool]:
        """All built-in tools, sorted by id."""
        return self._registry.list_by_category(CATEGORY)


class BuiltInExecutor:
    """Calls built-in tools by name, for Python users who only want the result object."""

    def __init__(self, registry: ToolRegistry) -> None:
        self.tools = BuiltInToolsRegistry(registry)
        self._registry = registry

    async def execute(self, name: str, input: Mapping[str, Any] | None = None) -> Any:
        """Call a built-in tool; returns its result object.

        Raises:
            ToolNotFoundError: the tool does not exist.
            InvalidInputError: the input is invalid.
        """
        self.tools.get(name)
        return (await self._registry.execute(name, input)).data
