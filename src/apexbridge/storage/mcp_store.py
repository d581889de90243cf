"""MCP servers that were added, and the tools that each server listed last."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from apexbridge._time import now_ms
from apexbridge.storage.database import Database

Json = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredListing:
    """The tools of a server with one configuration."""

    fingerprint: str
    tools: Mapping[str, Json]
    """Definitions by id."""


class McpStore:
    def __init__(self, database: Database) -> None:
        self._database = database

    async def servers(self) -> list[str]:
        """The configurations as JSON, the oldest first."""
        return [row[0] for row in await self._database.rows("SELECT config FROM mcp_servers ORDER BY added_at, name")]

    async def add(self, name: str, config: str) -> None:
        await self._database.execute("INSERT INTO mcp_servers VALUES (?, ?, ?)", name, config, now_ms())

    async def remove(self, name: str) -> None:
        def job(connection: Any) -> None:
            connection.execute("DELETE FROM mcp_servers WHERE name = ?", (name,))
            connection.execute("DELETE FROM mcp_listings WHERE server = ?", (name,))

        await self._database.write(job)

    async def listings(self) -> dict[str, StoredListing]:
        """The last listing of each server."""
        rows = await self._database.rows("SELECT server, fingerprint, tools FROM mcp_listings")
        return {row[0]: StoredListing(fingerprint=row[1], tools=json.loads(row[2])) for row in rows}

    async def put_listing(self, server: str, listing: StoredListing) -> None:
        tools = json.dumps(listing.tools)
        await self._database.execute(
            "INSERT OR REPLACE INTO mcp_listings VALUES (?, ?, ?)", server, listing.fingerprint, tools
        )

    async def remove_listing(self, server: str) -> None:
        await self._database.execute("DELETE FROM mcp_listings WHERE server = ?", server)
