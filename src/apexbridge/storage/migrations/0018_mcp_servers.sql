-- MCP servers that were added by command or over HTTP, and the tools that each server listed last.
CREATE TABLE mcp_servers (
    name TEXT PRIMARY KEY,
    config TEXT NOT NULL,
    added_at INTEGER NOT NULL
) WITHOUT ROWID;

CREATE TABLE mcp_listings (
    server TEXT PRIMARY KEY,
    fingerprint TEXT NOT NULL,
    tools TEXT NOT NULL
) WITHOUT ROWID;
