"""Permissions that an operator granted to skills."""

from dataclasses import astuple, dataclass

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
        await self._database.execute("INSERT OR REPLACE INTO grants VALUES (?, ?, ?, ?)", skill, *astuple(grant))

    async def remove(self, skill: str, permission: str | None = None) -> int:
        """Revoke one permission, or all; returns how many there were."""
        delete = "DELETE FROM grants WHERE skill = ? AND permission = coalesce(?, permission)"
        return await self._database.execute(delete, skill, permission)

    async def of(self, skill: str) -> list[GrantRow]:
        """All grants of a skill, also those of other contents."""
        query = "SELECT permission, content_hash, granted_at FROM grants WHERE skill = ? ORDER BY permission"
        rows = await self._database.rows(query, skill)
        return [GrantRow(permission=row[0], content_hash=row[1], granted_at=row[2]) for row in rows]
