"""The MCP client: tools of other MCP servers, in the registry and in the search."""
