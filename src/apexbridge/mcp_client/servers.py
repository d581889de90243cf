"""All MCP servers: those of apex.toml and those that were added. Their tools are in the registry and in the search."""

import asyncio
import logging
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import datetime
from typing import Any

from pydantic import Field

from apexbridge._text import near_names
from apexbridge._time import from_ms
from apexbridge.errors import RequestError, did_you_mean
from apexbridge.mcp_client.config import ApprovalPolicy, McpServerConfig, shown_values
from apexbridge.mcp_client.definitions import Listing, McpParameters, ToolDefinition
from apexbridge.mcp_client.limits import MAX_SERVERS
from apexbridge.mcp_client.names import tool_ids
from apexbridge.mcp_client.processes import StartProcess
from apexbridge.mcp_client.secret_values import SecretOf
from apexbridge.mcp_client.server import McpServer, OnState, Origin, ServerState
from apexbridge.mcp_client.tool_index import IndexedTool, SearchableIndex, ToolIndex
from apexbridge.retrieval.documents import TOOL_PREFIX, SkillFacts
from apexbridge.storage.mcp_store import McpStore, StoredListing
from apexbridge.tools.approvals import Approvals
from apexbridge.tools.naming import MCP_CATEGORY, wire_name
from apexbridge.tools.registry import ToolRegistry
from apexbridge.tools.tool import Tool, ToolContext, ToolMetadata, ToolResult
from apexbridge.wire import WireModel

logger = logging.getLogger(__name__)


class McpServerView(WireModel):
    """An MCP server: how it is reached, and its state."""

    name: str
    origin: Origin = Field(description="apex.toml, or added; only an added server can be removed.")
    transport: str = Field(description="stdio or http.")
    command: str | None
    args: list[str]
    env: dict[str, str] = Field(description="Variables; values that are not references to secrets are masked.")
    cwd: str | None
    url: str | None = Field(description="Without its query.")
    headers: dict[str, str] = Field(description="Headers; values that are not references to secrets are masked.")
    approval: ApprovalPolicy
    timeout_seconds: int
    sandbox: bool
    permissions: list[str]
    state: ServerState = Field(description="idle, connecting, connected, or waiting for the next attempt.")
    since: datetime = Field(description="When the state began.")
    protocol_version: str | None = Field(description="Of the last connection.")
    era: str | None = Field(description="modern without a handshake, or legacy.")
    server_info: str | None = Field(description="Name and version, as the server says.")
    tools: int = Field(description="How many of its tools are registered.")
    problems: list[str] = Field(description="Tools that were left out, and why.")
    last_error: str | None


class McpServers:
    def __init__(
        self,
        configured: Sequence[McpServerConfig],
        *,
        store: McpStore,
        registry: ToolRegistry,
        index: SearchableIndex,
        approvals: Approvals,
        secret_of: SecretOf,
        start_process: StartProcess,
        on_state: OnState = lambda name, state: None,
    ) -> None:
        self._configured = configured
        self._store = store
        self._registry = registry
        self._approvals = approvals
        self._secret_of = secret_of
        self._start_process = start_process
        self._on_state = on_state
        self.index = ToolIndex(index, self._indexed_tools)
        self._servers: dict[str, McpServer] = {}
        self._tools: dict[str, dict[str, ToolDefinition]] = {}
        """The definitions of each server's tools, by id."""
        self._changing = asyncio.Lock()
        self._is_eager = False

    @asynccontextmanager
    async def running(self, *, eager: bool) -> AsyncIterator[None]:
        """Serve the tools while the block runs. If `eager`, connect to all servers now; else when a tool is called."""
        self._is_eager = eager
        await self._load()
        indexing = asyncio.create_task(self.index.run()) if eager else None
        if self._tools:
            self.index.mark_stale()
        try:
            yield
        finally:
            if indexing is not None:
                indexing.cancel()
                await asyncio.wait([indexing])
            async with asyncio.TaskGroup() as stopping:
                for server in self._servers.values():
                    stopping.create_task(server.stop())

    async def _load(self) -> None:
        """Register the servers, and the tools that they listed when they were last connected."""
        added: list[McpServerConfig] = []
        for text in await self._store.servers():
            try:
                added.append(McpServerConfig.model_validate_json(text))
            except ValueError:  # written by a version with other rules
                logger.warning("a stored MCP server is not valid and is ignored")
        listings = await self._store.listings()
        for config, origin in [*((own, "apex.toml") for own in self._configured), *((own, "added") for own in added)]:
            if config.name in self._servers:
                logger.warning("the MCP server %s is in apex.toml; the added one is ignored", config.name)
                continue
            server = self._create(config, "apex.toml" if origin == "apex.toml" else "added")
            stored = listings.pop(config.name, None)
            if stored is not None and stored.fingerprint == config.fingerprint:
                for id, fields in stored.tools.items():
                    self._register(server, id, ToolDefinition(**fields))
            if self._is_eager:
                server.start()
        for name in listings:
            await self._store.remove_listing(name)

    def _create(self, config: McpServerConfig, origin: Origin) -> McpServer:
        server = McpServer(
            config,
            origin=origin,
            secret_of=self._secret_of,
            start_process=self._start_process,
            on_listing=self._take_listing,
            on_state=self._on_state,
        )
        self._servers[config.name] = server
        self._tools[config.name] = {}
        return server

    # ------------------------------------------------------------------------------------------------ administration
    async def add(self, config: McpServerConfig, *, wait_seconds: float = 0) -> McpServerView:
        """Add a server and connect to it. Raises RequestError: MCP_SERVER_EXISTS."""
        async with self._changing:
            if config.name in self._servers:
                raise RequestError(
                    f"There is an MCP server {config.name} already; remove it first.", code="MCP_SERVER_EXISTS"
                )
            if len(self._servers) >= MAX_SERVERS:
                raise RequestError(f"There are {MAX_SERVERS} MCP servers; remove one first.", code="MCP_SERVER_EXISTS")
            await self._store.add(config.name, config.model_dump_json(by_alias=False))
            server = self._create(config, "added")
            if self._is_eager:
                server.start()
        if wait_seconds:
            await server.wait_until_settled(wait_seconds)
        return self._view(server)

    async def remove(self, name: str) -> McpServerView:
        """Disconnect from a server and remove its tools.

        Raises RequestError: MCP_SERVER_NOT_FOUND; MCP_SERVER_READ_ONLY if it is in apex.toml.
        """
        async with self._changing:
            server = self._get(name)
            if server.origin == "apex.toml":
                raise RequestError(f"{name} is in apex.toml; remove it there.", code="MCP_SERVER_READ_ONLY")
            view = self._view(server)
            await self._store.remove(name)
            await server.stop()
            for id in list(self._tools[name]):
                await self._unregister(name, id)
            del self._servers[name], self._tools[name]
        self._on_state(name, "removed")
        await self._tools_changed()
        return view

    async def views(self, *, wait_seconds: float = 0) -> list[McpServerView]:
        """All servers by name; on request after waiting until each was tried."""
        if wait_seconds:
            async with asyncio.TaskGroup() as waiting:
                for server in self._servers.values():
                    waiting.create_task(server.wait_until_settled(wait_seconds))
        return [self._view(self._servers[name]) for name in sorted(self._servers)]

    async def view(self, name: str) -> McpServerView:
        """One server. Raises RequestError: MCP_SERVER_NOT_FOUND."""
        return self._view(self._get(name))

    async def reconnect(self, name: str, *, wait_seconds: float) -> McpServerView:
        """Try to connect now, or check the connection. Raises RequestError: MCP_SERVER_NOT_FOUND."""
        server = self._get(name)
        server.reconnect()
        await server.wait_until_settled(wait_seconds)
        return self._view(server)

    def _get(self, name: str) -> McpServer:
        server = self._servers.get(name)
        if server is None:
            near = did_you_mean(near_names(name, self._servers))
            raise RequestError(f"No MCP server named {name[:64]}{near or '.'}", code="MCP_SERVER_NOT_FOUND")
        return server

    def _view(self, server: McpServer) -> McpServerView:
        config = server.config
        era = None if server.is_modern is None else "modern" if server.is_modern else "legacy"
        return McpServerView(
            name=config.name,
            origin=server.origin,
            transport=config.transport,
            command=config.command,
            args=list(config.args),
            env=shown_values(config.env),
            cwd=config.cwd,
            url=config.shown_url,
            headers=shown_values(config.headers),
            approval=config.approval,
            timeout_seconds=config.timeout_seconds,
            sandbox=config.sandbox,
            permissions=list(config.permissions),
            state=server.state,
            since=from_ms(server.since),
            protocol_version=server.protocol_version,
            era=era,
            server_info=server.server_info,
            tools=len(self._tools[config.name]),
            problems=list(server.problems),
            last_error=server.last_error,
        )

    # --------------------------------------------------------------------------------------------------------- tools
    async def facts(self, keys: Collection[str]) -> Mapping[str, SkillFacts]:
        """Which tools a search may show: those that are enabled, of servers that are not known to be down."""
        server_of = {id: self._servers[name] for name, tools in self._tools.items() for id in tools}
        found: dict[str, SkillFacts] = {}
        for key in keys:
            id = key.removeprefix(TOOL_PREFIX)
            if (server := server_of.get(id)) is not None:
                is_shown = server.is_available and self._registry.is_enabled(id)
                found[key] = SkillFacts(mode=None, enabled=is_shown)
        return found

    async def _take_listing(self, server: McpServer, listing: Listing) -> None:
        """Register what a server lists, and unregister what it no longer lists."""
        name = server.config.name
        async with self._changing:
            if self._servers.get(name) is not server:
                return  # removed in the meantime
            known = self._tools[name]
            ids = tool_ids(
                name,
                [definition.tool for definition in listing.tools],
                taken=self._taken_names(name),
                earlier={definition.tool: id for id, definition in known.items()},
            )
            listed = {ids[definition.tool]: definition for definition in listing.tools}
            if listed == known:
                return
            for id in set(known) - set(listed):
                await self._unregister(name, id)
            for id, definition in listed.items():
                if known.get(id) != definition:
                    self._register(server, id, definition)
            stored = {id: definition.to_json() for id, definition in listed.items()}
            await self._store.put_listing(name, StoredListing(fingerprint=server.config.fingerprint, tools=stored))
        await self._tools_changed()

    def _taken_names(self, server: str) -> set[str]:
        """Ids of other tools, and the names by which models call them."""
        own = self._tools[server]
        others = [tool for tool in self._registry.list() if tool.id not in own]
        return {name for tool in others for name in (tool.id, wire_name(tool.id))}

    def _register(self, server: McpServer, id: str, definition: ToolDefinition) -> None:
        tool = _tool(server, id, definition)
        if self._registry.find(id) is None:
            self._registry.register(tool)
        elif id in self._tools[server.config.name]:
            self._registry.update(id, tool)
        else:
            return  # another tool took the id since the last start; the next listing chooses another one
        self._tools[server.config.name][id] = definition

    async def _unregister(self, server: str, id: str) -> None:
        del self._tools[server][id]
        self._registry.unregister(id)
        await self._approvals.forget(id)

    async def _tools_changed(self) -> None:
        self.index.mark_stale()
        if not self._is_eager:
            await self.index.sync()

    def _indexed_tools(self) -> list[IndexedTool]:
        return [
            IndexedTool(id=id, description=definition.description, tags=(name,), version=definition.digest)
            for name, tools in self._tools.items()
            for id, definition in tools.items()
        ]


def _tool(server: McpServer, id: str, definition: ToolDefinition) -> Tool:
    config = server.config
    needs_approval = definition.needs_approval(config.approval)

    async def execute(input: dict[str, Any], context: ToolContext) -> ToolResult:
        return await server.call(definition.tool, input, context)

    return Tool(
        id=id,
        description=definition.description,
        parameters=McpParameters(definition.schema),
        execute=execute,
        metadata=ToolMetadata(
            category=MCP_CATEGORY,
            timeout=config.timeout_seconds * 1000,
            dangerous=needs_approval,
            confirm=f"Call {id} of the MCP server {config.name}? It may change or delete something."
            if needs_approval
            else None,
            tags=(config.name,),
            content_hash=definition.digest,
        ),
    )
