"""Permissions that an operator granted to skills."""

import sqlite3
from dataclasses import dataclass

from apexbridge.storage.database import Database


@dataclass(frozen=True, slots=True, kw_only=True)
class GrantRow:
    """One permission of a skill with this content."""

    permission: str
    content_hash: str
    granted_at: int
    """Milliseconds since 1970."""


class GrantStore:
    def __init__(self, database: Database) -> None:
        self._database = database

    async def put(self, skill: str, grant: GrantRow) -> None:
        """Store a grant; it replaces an earlier one of the same permission."""
        values = (skill, grant.permission, grant.content_hash, grant.granted_at)
        await self._database.write(
            lambda connection: connection.execute("INSERT OR REPLACE INTO grants VALUES (?, ?, ?, ?)", values)
        )

    async def remove(self, skill: str, permission: str | None = None) -> int:
        """Revoke one permission, or all; returns how many there were."""

        def job(connection: sqlite3.Connection) -> int:
            if permission is None:
                return connection.execute("DELETE FROM grants WHERE skill = ?", (skill,)).rowcount
            return connection.execute(
                "DELETE FROM grants WHERE skill = ? AND permission = ?", (skill, permission)
            ).rowcount

        return await self._database.write(job)

    async def of(self, skill: str) -> list[GrantRow]:
        """All grants of a skill, also those of other contents."""
        query = "SELECT permission, content_hash, granted_at FROM grants WHERE skill = ? ORDER BY permission"
        rows = await self._database.read(lambda connection: connection.execute(query, (skill,)).fetchall())
        return [GrantRow(permission=row[0], content_hash=row[1], granted_at=row[2]) for row in rows]
