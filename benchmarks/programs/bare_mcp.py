"""The smallest MCP server over stdin and stdout, with one tool: what the `mcp` package itself costs."""

import anyio
import mcp.types as types
from mcp.server.lowlevel import Server
from mcp.server.stdio import stdio_server


async def list_tools(context: object, parameters: object) -> types.ListToolsResult:
    """List one tool."""
    return types.ListToolsResult(tools=[types.Tool(name="nothing", input_schema={"type": "object"})])


async def main() -> None:
    """Serve until stdin is closed."""
    server: Server = Server("bare", version="1", on_list_tools=list_tools)
    async with stdio_server() as (reader, writer):
        await server.run(reader, writer, server.create_initialization_options())


if __name__ == "__main__":
    anyio.run(main)
