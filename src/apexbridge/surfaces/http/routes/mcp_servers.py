"""MCP servers whose tools are served, over HTTP."""

from typing import Annotated

from fastapi import APIRouter, Path, Query, Request

from apexbridge.errors import RequestError
from apexbridge.mcp_client.config import McpServerConfig
from apexbridge.mcp_client.servers import McpServerView
from apexbridge.surfaces.http.deps import ServedBridge
from apexbridge.surfaces.http.middleware.audit_trail import note

MAX_WAIT_SECONDS = 60
router = APIRouter(prefix="/api/mcp/servers", tags=["mcp"])
ServerName = Annotated[str, Path(description="The server's name.")]
Wait = Annotated[
    float, Query(ge=0, le=MAX_WAIT_SECONDS, description="Seconds to wait until each server was tried; 0 does not wait.")
]


@router.get("")
async def list_mcp_servers(bridge: ServedBridge, wait: Wait = 0) -> list[McpServerView]:
    """List the MCP servers with their state. Secrets are not shown."""
    return await bridge.mcp.views(wait_seconds=wait)


@router.post("", status_code=201)
async def add_mcp_server(
    request: Request, config: McpServerConfig, bridge: ServedBridge, wait: Wait = 0
) -> McpServerView:
    """Add an MCP server and serve its tools.

    Only the owner of the data directory can add a command that runs outside the sandbox.
    """
    note(request, target=config.name, detail=config.transport)
    if config.command is not None and not config.sandbox and not request.scope["state"].get("is_owner"):
        raise RequestError(
            "A command outside the sandbox is added with `apex mcp add` on the server's machine, or in apex.toml. "
            "Over HTTP, set sandbox: true, or add a url.",
            code="FORBIDDEN",
        )
    return await bridge.mcp.add(config, wait_seconds=wait)


@router.get("/{name}")
async def show_mcp_server(name: ServerName, bridge: ServedBridge) -> McpServerView:
    """Show one MCP server with its state."""
    return await bridge.mcp.view(name)


@router.delete("/{name}")
async def remove_mcp_server(name: ServerName, bridge: ServedBridge) -> McpServerView:
    """Disconnect from an added MCP server and remove its tools."""
    return await bridge.mcp.remove(name)


@router.post("/{name}/reconnect")
async def reconnect_mcp_server(name: ServerName, bridge: ServedBridge, wait: Wait = 0) -> McpServerView:
    """Connect now instead of at the next attempt; if it is connected, check the connection and read its tools."""
    return await bridge.mcp.reconnect(name, wait_seconds=wait)
