"""A request of an MCP client, and who sent it."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

import mcp_types as types
from mcp.server.context import ServerRequestContext
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

from apexbridge.storage.key_store import KeyScope
from apexbridge.surfaces.http.transport.requests import caller_of

Context = ServerRequestContext[Any, Any]
CALLS = "mcp_calls"
"""Key of the request's state: the tasks that end when its client disconnects."""
CallAnswer = types.CallToolResult | types.InputRequiredResult


@dataclass(frozen=True, slots=True, kw_only=True)
class McpCall:
    """A call of a tool."""

    context: Context
    params: types.CallToolRequestParams
    caller: str
    """The id of the API key; empty for callers without a key."""

    @property
    def arguments(self) -> Mapping[str, Any]:
        return self.params.arguments or {}


@dataclass(frozen=True, slots=True, kw_only=True)
class McpTool:
    """A tool as MCP clients see it."""

    definition: types.Tool
    call: Callable[[McpCall], Awaitable[CallAnswer]]
    scope: KeyScope = "run"
    """The scope that a key needs. Keys without it do not see the tool."""
    is_enabled: Callable[[], bool] = lambda: True


def caller_in(context: Context) -> str:
    """The id of the API key that sent a request; empty without a key."""
    return "" if context.request is None else caller_of(context.request.scope)


def is_modern(context: Context) -> bool:
    """Whether a request uses a stateless revision (2026-07-28), in which the server cannot send requests."""
    return context.protocol_version in MODERN_PROTOCOL_VERSIONS


def has_links(context: Context) -> bool:
    """Whether the revision has resource links and structured content, which came with 2025-06-18."""
    return context.protocol_version >= "2025-06-18"
