"""The MCP server: `/mcp` over HTTP, and `apex mcp` on stdio. The package `mcp` is imported when it is first used."""
