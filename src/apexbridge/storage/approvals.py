"""Confirmations of dangerous calls; they survive restarts, and nobody uses one twice."""

import sqlite3
from collections.abc import Sequence
from typing import Any

from apexbridge.storage.database import Database

REMEMBERED_MS = 60 * 60 * 1000
"""How long one that has expired can still be asked about."""
_COLUMNS = ("id", "tool", "confirm", "summary", "content_hash", "digest", "caller", "created_at", "expires_at", "state")
_SELECT = f"SELECT {', '.join(_COLUMNS)} FROM approvals"  # noqa: S608


class SqliteApprovals:
    """Keeps questions and answers."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def put(self, approval: dict[str, Any], *, keep: int) -> None:
        """Write one down; forget what has expired, and all but so many of the newest that still wait."""
        marks = ", ".join("?" * len(_COLUMNS))
        values = [approval[name] for name in _COLUMNS]

        def job(connection: sqlite3.Connection) -> None:
            connection.execute(f"INSERT INTO approvals ({', '.join(_COLUMNS)}) VALUES ({marks})", values)  # noqa: S608
            forgotten = approval["created_at"] - REMEMBERED_MS
            connection.execute("DELETE FROM approvals WHERE expires_at <= ?", (forgotten,))
            old = "SELECT id FROM approvals WHERE state = 'waiting' ORDER BY created_at DESC, id LIMIT -1 OFFSET ?"
            connection.execute(f"DELETE FROM approvals WHERE id IN ({old})", (keep,))  # noqa: S608

        await self._database.write(job)

    async def get(self, id: str) -> dict[str, Any] | None:
        """One of them."""
        found = await self._query(f"{_SELECT} WHERE id = ?", id)
        return found[0] if found else None

    async def waiting_for(self, digest: str, *, now: int) -> dict[str, Any] | None:
        """The question that is already open for the same call."""
        return await self._latest(digest, "waiting", now)

    async def approved_for(self, digest: str, *, now: int) -> dict[str, Any] | None:
        """An approval for the same call that nobody has used."""
        return await self._latest(digest, "approved", now)

    async def _latest(self, digest: str, state: str, now: int) -> dict[str, Any] | None:
        query = f"{_SELECT} WHERE digest = ? AND state = ? AND expires_at > ? ORDER BY created_at DESC LIMIT 1"
        found = await self._query(query, digest, state, now)
        return found[0] if found else None

    async def open(self, *, now: int) -> Sequence[dict[str, Any]]:
        """All that wait for an answer, the oldest first."""
        return await self._query(f"{_SELECT} WHERE state = 'waiting' AND expires_at > ? ORDER BY created_at, id", now)

    async def move(self, id: str, *, before: str, after: str, now: int) -> bool:
        """Change a state, if it is the expected one and not expired; one statement, so nobody comes between."""
        # What the call was is shown to whoever decides, and kept no longer than that.
        query = "UPDATE approvals SET state = ?, summary = '' WHERE id = ? AND state = ? AND expires_at > ?"
        values = (after, id, before, now)
        return await self._database.write(lambda connection: connection.execute(query, values).rowcount == 1)

    async def forget(self, tool: str) -> None:
        """Drop everything about a tool."""
        query = "DELETE FROM approvals WHERE tool = ?"
        await self._database.write(lambda connection: connection.execute(query, (tool,)))

    async def _query(self, query: str, *values: Any) -> list[dict[str, Any]]:
        rows = await self._database.read(lambda connection: connection.execute(query, values).fetchall())
        return [dict(zip(_COLUMNS, row, strict=True)) for row in rows]
