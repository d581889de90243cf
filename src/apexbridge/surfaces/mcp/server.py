"""Builds the MCP server over a bridge, for every transport and both eras of the protocol."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import mcp_types as types
from mcp.server.caching import CacheHint
from mcp.server.lowlevel.server import NotificationOptions, Server
from mcp.server.models import InitializationOptions
from mcp.server.subscriptions import InMemorySubscriptionBus, ListenHandler
from mcp.shared.exceptions import MCPError
from mcp_types import INTERNAL_ERROR

import apexbridge
from apexbridge._usage import ResourceUsage
from apexbridge.bridge import Bridge
from apexbridge.surfaces.mcp.calls import Context, McpTool, caller_in
from apexbridge.surfaces.mcp.changes import ChangeNotices, OpenSessions
from apexbridge.surfaces.mcp.identity import INSTRUCTIONS, NAME, TITLE, TTL_MS
from apexbridge.surfaces.mcp.prompts import FixedPrompt, PromptCatalog
from apexbridge.surfaces.mcp.resources import FixedResource, ResourceCatalog
from apexbridge.surfaces.mcp.skills_extension import EXTENSION, DirectoryParams, SkillParams, SkillsExtension
from apexbridge.surfaces.mcp.tools import ToolCatalog, product_tools

MAX_LISTENERS, MAX_KEY_LISTENERS = 1_000, 100
_LIST_HINT = CacheHint(ttl_ms=TTL_MS, scope="private")


class _Server(Server[Any]):
    """A server whose handshake declares that lists can change."""

    def create_initialization_options(
        self,
        notification_options: NotificationOptions | None = None,
        experimental_capabilities: dict[str, dict[str, Any]] | None = None,
        extensions: dict[str, dict[str, Any]] | None = None,
    ) -> InitializationOptions:
        options = notification_options or NotificationOptions(prompts_changed=True, resources_changed=True)
        return super().create_initialization_options(options, experimental_capabilities, extensions)


class McpServer:
    """The server with its parts."""

    def __init__(
        self,
        bridge: Bridge,
        *,
        tools: Sequence[McpTool] = (),
        resources: Sequence[FixedResource] = (),
        prompts: Sequence[FixedPrompt] = (),
        extend: Callable[[Server[Any]], None] = lambda server: None,
    ) -> None:
        """Serve the tools, resources and prompts of a bridge, and further ones; `extend` can add methods."""
        self.sessions = OpenSessions()
        self._listeners: Counter[str] = Counter()
        bus = InMemorySubscriptionBus()
        self._listen = ListenHandler(bus, max_subscriptions=MAX_LISTENERS)
        self._notices = ChangeNotices(bridge.tools, bus, self.sessions)
        tool_catalog = ToolCatalog(bridge, [*product_tools(bridge), *tools])
        resource_catalog = ResourceCatalog(bridge, resources)
        prompt_catalog = PromptCatalog(bridge, prompts)
        skills = SkillsExtension(bridge)
        self.server = _Server(
            NAME,
            version=apexbridge.__version__,
            title=TITLE,
            instructions=INSTRUCTIONS,
            cache_hints={
                "server/discover": _LIST_HINT,
                "tools/list": _LIST_HINT,
                "resources/list": _LIST_HINT,
                "resources/templates/list": _LIST_HINT,
                "resources/read": _LIST_HINT,
                "prompts/list": _LIST_HINT,
            },
            lifespan=self._lifespan,
            get_tool_input_schema=tool_catalog.schema_of,
            on_list_tools=tool_catalog.list,
            on_call_tool=tool_catalog.call,
            on_list_resources=resource_catalog.list,
            on_list_resource_templates=resource_catalog.list_templates,
            on_read_resource=resource_catalog.read,
            on_subscribe_resource=self.sessions.subscribe,
            on_unsubscribe_resource=self.sessions.unsubscribe,
            on_subscriptions_listen=self._limited_listen,
            on_list_prompts=prompt_catalog.list,
            on_get_prompt=prompt_catalog.get,
            on_completion=resource_catalog.complete,
        )
        self.server.middleware[:] = [self.sessions]  # no spans: nothing here exports them
        self.server.extensions[EXTENSION] = {"directoryRead": True}
        self.server.add_request_handler("skills/list", types.PaginatedRequestParams, skills.list)
        self.server.add_request_handler("skills/get", SkillParams, skills.get)
        self.server.add_request_handler("resources/directory/read", DirectoryParams, skills.read_directory)
        extend(self.server)

    async def _limited_listen(
        self, context: Context, params: types.SubscriptionsListenRequestParams
    ) -> types.SubscriptionsListenResult:
        caller = caller_in(context)
        if caller and self._listeners[caller] >= MAX_KEY_LISTENERS:
            raise MCPError(INTERNAL_ERROR, f"A key can have {MAX_KEY_LISTENERS} subscriptions at most.")
        self._listeners[caller] += 1
        try:
            return await self._listen(context, params)
        finally:
            self._listeners[caller] -= 1
            if not self._listeners[caller]:
                del self._listeners[caller]

    def usage(self, caller: str, *, max_sessions: int) -> Sequence[ResourceUsage]:
        return (
            self.sessions.usage(caller, max_sessions=max_sessions),
            ResourceUsage(
                resource="mcp-subscriptions",
                used=self._listeners[caller],
                limit=MAX_KEY_LISTENERS if caller else MAX_LISTENERS,
                total=self._listeners.total(),
                total_limit=MAX_LISTENERS,
            ),
        )

    def end_streams(self) -> None:
        """End all subscriptions."""
        self._listen.close()

    @asynccontextmanager
    async def _lifespan(self, server: Server[Any]) -> AsyncIterator[dict[str, Any]]:
        notifying = asyncio.ensure_future(self._notices.run())
        try:
            yield {}
        finally:
            self._listen.close()
            notifying.cancel()
            await asyncio.wait([notifying])
