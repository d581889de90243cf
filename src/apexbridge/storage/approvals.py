"""Approvals of dangerous calls; each is used at most once."""

import asyncio
import logging
import sqlite3
from collections.abc import Sequence
from typing import Any

from apexbridge._time import now_ms
from apexbridge.storage.database import Database

KEEP_EXPIRED_MS = 60 * 60 * 1000
"""How long expired approvals stay in the database."""
SWEEP_SECONDS = 300
"""How often expired approvals are cleaned up."""
_COLUMNS = ("id", "tool", "confirm", "summary", "content_hash", "digest", "caller", "created_at", "expires_at", "state")
_SELECT = f"SELECT {', '.join(_COLUMNS)} FROM approvals"  # noqa: S608
_COUNT = "SELECT count(*) FROM approvals WHERE state = 'waiting' AND expires_at > ?"
_EXPIRED_WITH_CALL = "expires_at <= ? AND (summary <> '' OR call <> '')"
_EMPTY_EXPIRED = f"UPDATE approvals SET summary = '', call = '' WHERE {_EXPIRED_WITH_CALL}"  # noqa: S608
_LARGEST = (
    "SELECT caller, count(*) FROM approvals WHERE state = 'waiting' AND expires_at > ?"
    " GROUP BY caller ORDER BY count(*) DESC, max(created_at) DESC LIMIT 1"
)
_OLDEST = (
    "SELECT id FROM approvals WHERE state = 'waiting' AND expires_at > ? AND caller = ?"
    " ORDER BY created_at DESC, id LIMIT -1 OFFSET ?"
)

logger = logging.getLogger(__name__)


class SqliteApprovals:
    def __init__(self, database: Database) -> None:
        self._database = database

    async def put(self, approval: dict[str, Any], *, call: str, own: int, total: int) -> list[str]:
        """Store a pending approval with its call; returns the ids of those that were dropped for it.

        Beyond `own` pending approvals a caller loses its oldest. Beyond `total` of all callers, the caller with the
        most loses its oldest. Expired approvals are deleted.
        """
        marks = ", ".join("?" * (len(_COLUMNS) + 1))
        now, caller = approval["created_at"], approval["caller"]

        def job(connection: sqlite3.Connection) -> tuple[list[str], bool]:
            has_expired = _delete_expired(connection, now)
            # Later than all others even within a millisecond, or the newest could be dropped as the oldest.
            (last,) = connection.execute("SELECT max(created_at) FROM approvals").fetchone()
            ordered = {**approval, "created_at": max(now, (last or 0) + 1)}
            values = [*(ordered[name] for name in _COLUMNS), call]
            connection.execute(f"INSERT INTO approvals ({', '.join(_COLUMNS)}, call) VALUES ({marks})", values)  # noqa: S608
            dropped = _drop_oldest(connection, caller, keep=own, now=now)
            (count,) = connection.execute(_COUNT, (now,)).fetchone()
            if count > total:
                largest, its = connection.execute(_LARGEST, (now,)).fetchone()
                dropped += _drop_oldest(connection, largest, keep=its - (count - total), now=now)
            return dropped, has_expired

        dropped, has_expired = await self._database.write(job)
        if dropped or has_expired:
            self._database.erase_soon()
        return dropped

    async def keep_tidy(self) -> None:
        """Sweep at intervals, until cancelled."""
        while True:
            await asyncio.sleep(SWEEP_SECONDS)
            await self.sweep()

    async def sweep(self) -> None:
        """Delete the calls of expired approvals, and approvals that expired long ago, from the files too."""
        now = now_ms()
        query = f"SELECT 1 FROM approvals WHERE expires_at <= ? OR ({_EXPIRED_WITH_CALL})"  # noqa: S608
        values = (now - KEEP_EXPIRED_MS, now)
        try:
            has_any = await self._database.read(lambda connection: connection.execute(query, values).fetchone())
            if has_any:
                await self._database.write(lambda connection: _delete_expired(connection, now))
                await self._database.erase()
        except sqlite3.Error as error:  # the server must start on a full disk too
            logger.warning("the calls of expired approvals could not be deleted: %s", error)

    async def get(self, id: str) -> dict[str, Any] | None:
        """One approval; without its summary if it has expired."""
        found = await self._query(f"{_SELECT} WHERE id = ?", id)
        if not found:
            return None
        return {**found[0], "summary": ""} if found[0]["expires_at"] <= now_ms() else found[0]

    async def waiting_for(self, digest: str, *, now: int) -> dict[str, Any] | None:
        """The pending approval of the same call."""
        return await self._latest(digest, "waiting", now)

    async def approved_for(self, digest: str, *, now: int) -> dict[str, Any] | None:
        """An unused approval of the same call."""
        return await self._latest(digest, "approved", now)

    async def _latest(self, digest: str, state: str, now: int) -> dict[str, Any] | None:
        query = f"{_SELECT} WHERE digest = ? AND state = ? AND expires_at > ? ORDER BY created_at DESC LIMIT 1"
        found = await self._query(query, digest, state, now)
        return found[0] if found else None

    async def open(self, *, now: int) -> Sequence[dict[str, Any]]:
        """All pending approvals, the oldest first."""
        return await self._query(f"{_SELECT} WHERE state = 'waiting' AND expires_at > ? ORDER BY created_at, id", now)

    async def call_of(self, id: str) -> str:
        """The call to approve; empty once it was decided or has expired."""
        query = "SELECT call FROM approvals WHERE id = ? AND expires_at > ?"
        row = await self._database.read(lambda connection: connection.execute(query, (id, now_ms())).fetchone())
        return str(row[0]) if row else ""

    async def decide(self, id: str, *, state: str, now: int) -> bool:
        """Decide a pending approval and delete its call; False if it is not pending."""
        query = (
            "UPDATE approvals SET state = ?, summary = '', call = ''"
            " WHERE id = ? AND state = 'waiting' AND expires_at > ?"
        )
        is_decided = await self._change(query, state, id, now)
        if is_decided:
            self._database.erase_soon()
        return is_decided

    async def use(self, id: str, *, admission: str, now: int) -> bool:
        """Use an approval for one admission; False if it was used or is not approved."""
        query = (
            "UPDATE approvals SET state = 'used', admission = ? WHERE id = ? AND state = 'approved' AND expires_at > ?"
        )
        return await self._change(query, admission, id, now)

    async def release(self, id: str, *, admission: str) -> bool:
        """Make an approval usable again; False if this admission did not use it."""
        query = (
            "UPDATE approvals SET state = 'approved', admission = NULL"
            " WHERE id = ? AND state = 'used' AND admission = ?"
        )
        return await self._change(query, id, admission)

    async def _change(self, query: str, *values: Any) -> bool:
        """One statement, so that check and change are atomic."""
        return await self._database.write(lambda connection: connection.execute(query, values).rowcount == 1)

    async def forget(self, tool: str) -> list[str]:
        """Delete the approvals of a tool; returns their ids."""
        query = "DELETE FROM approvals WHERE tool = ? RETURNING id"
        forgotten = await self._database.write(
            lambda connection: [id for (id,) in connection.execute(query, (tool,)).fetchall()]
        )
        if forgotten:
            self._database.erase_soon()
        return forgotten

    async def _query(self, query: str, *values: Any) -> list[dict[str, Any]]:
        rows = await self._database.read(lambda connection: connection.execute(query, values).fetchall())
        return [dict(zip(_COLUMNS, row, strict=True)) for row in rows]


def _delete_expired(connection: sqlite3.Connection, now: int) -> bool:
    """Delete the calls of expired approvals, and approvals that expired long ago; returns whether there were any."""
    deleted = connection.execute("DELETE FROM approvals WHERE expires_at <= ?", (now - KEEP_EXPIRED_MS,)).rowcount
    return deleted + connection.execute(_EMPTY_EXPIRED, (now,)).rowcount > 0


def _drop_oldest(connection: sqlite3.Connection, caller: str, *, keep: int, now: int) -> list[str]:
    """Delete a caller's pending approvals but the newest."""
    dropped = [id for (id,) in connection.execute(_OLDEST, (now, caller, max(0, keep)))]
    connection.executemany("DELETE FROM approvals WHERE id = ?", [(id,) for id in dropped])
    return dropped
