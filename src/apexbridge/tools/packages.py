"""Tools of other Python packages, from the entry point group `apexbridge.tools`."""

import logging
from collections.abc import Iterable, Iterator
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from apexbridge.errors import ApexBridgeError, InvalidInputError
from apexbridge.tools.naming import SKILL_PREFIX
from apexbridge.tools.registry import ToolRegistry
from apexbridge.tools.tool import Tool

GROUP = "apexbridge.tools"
RESERVED_CATEGORIES = ("builtin", "skill")
logger = logging.getLogger(__name__)


def register_packages(registry: ToolRegistry, points: Iterable[EntryPoint] | None = None) -> list[str]:
    """Register the tools of installed packages; returns their ids. An entry point that fails is logged and skipped.

    An entry point names a `Tool`, a list or tuple of them, or a function without arguments that returns either.
    """
    registered: list[str] = []
    for point in entry_points(group=GROUP) if points is None else points:
        try:
            offered = list(_offered(point.load()))
            for tool in offered:
                _check(registry, tool)
            registered.extend(registry.register(tool).id for tool in offered)
        except ApexBridgeError as error:
            logger.error("the tools of %s (%s) are ignored: %s", point.name, point.value, error.message)
        except (Exception, SystemExit):  # a broken package must not prevent the server from starting
            logger.exception("the tools of %s (%s) could not be loaded", point.name, point.value)
    return registered


def _offered(value: Any) -> Iterator[Tool]:
    if callable(value) and not isinstance(value, Tool):
        value = value()
    for tool in [value] if isinstance(value, Tool) else value:
        if not isinstance(tool, Tool):
            raise TypeError(f"{tool!r} is not a Tool; define it with Tool.define")
        yield tool


def _check(registry: ToolRegistry, tool: Tool) -> None:
    """Refuse reserved names and taken ids, before any tool of the entry point is registered."""
    if tool.id.startswith(SKILL_PREFIX) or tool.metadata.category in RESERVED_CATEGORIES:
        raise InvalidInputError(f"{tool.id} ({tool.metadata.category}) is a reserved name")
    if registry.find(tool.id) is not None:
        raise InvalidInputError(f"There is a tool {tool.id} already")
