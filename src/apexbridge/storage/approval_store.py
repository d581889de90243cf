"""Approvals of dangerous calls; each is used at most once."""

import asyncio
import logging
import sqlite3
from typing import Any

from apexbridge._time import now_ms
from apexbridge.storage.database import Database

KEEP_EXPIRED_MS = 60 * 60 * 1000
"""How long expired approvals stay in the database."""
SWEEP_SECONDS = 300
"""How often expired approvals are cleaned up."""
_COLUMNS = "id, tool, confirm, summary, content_hash, digest, caller, created_at, expires_at, state"
_NAMES = _COLUMNS.split(", ")
_SELECT = f"SELECT {_COLUMNS} FROM approvals"  # noqa: S608
_INSERT = f"INSERT INTO approvals ({_COLUMNS}, call) VALUES ({', '.join('?' * len(_NAMES))}, ?)"  # noqa: S608
_WAITING = "FROM approvals WHERE state = 'waiting' AND expires_at > ?"
_LARGEST = f"SELECT caller, count(*) {_WAITING} GROUP BY caller ORDER BY count(*) DESC, max(created_at) DESC LIMIT 1"
_OLDEST = f"SELECT id {_WAITING} AND caller = ? ORDER BY created_at DESC, id LIMIT -1 OFFSET ?"
_EXPIRED_WITH_CALL = "expires_at <= ? AND (summary <> '' OR call <> '')"

logger = logging.getLogger(__name__)


class SqliteApprovals:
    """Times are in milliseconds since 1970."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def put(self, approval: dict[str, Any], *, call: str, own: int, total: int) -> list[str]:
        """Store a pending approval with its call; returns the ids of those that were dropped for it.

        Beyond `own` pending approvals a caller loses its oldest. Beyond `total` of all callers, the caller with the
        most loses its oldest. Expired approvals are deleted.
        """
        now, caller = approval["created_at"], approval["caller"]

        def job(connection: sqlite3.Connection) -> tuple[list[str], bool]:
            has_expired = _delete_expired(connection, now)
            # Later than all others even within a millisecond, or the newest could be dropped as the oldest.
            (last,) = connection.execute("SELECT max(created_at) FROM approvals").fetchone()
            ordered = {**approval, "created_at": max(now, (last or 0) + 1)}
            connection.execute(_INSERT, [*(ordered[name] for name in _NAMES), call])
            dropped = _drop_oldest(connection, caller, keep=own, now=now)
            (count,) = connection.execute(f"SELECT count(*) {_WAITING}", (now,)).fetchone()
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
        try:
            if await self._database.row(query, now - KEEP_EXPIRED_MS, now):
                await self._database.write(lambda connection: _delete_expired(connection, now))
                await self._database.erase()
        except sqlite3.Error as error:  # the server must start on a full disk too
            logger.warning("the calls of expired approvals could not be deleted: %s", error)

    async def get(self, id: str) -> dict[str, Any] | None:
        """One approval with its call; without call and summary if it has expired."""
        row = await self._database.row(f"SELECT {_COLUMNS}, call FROM approvals WHERE id = ?", id)  # noqa: S608
        if row is None:
            return None
        found = dict(zip((*_NAMES, "call"), row, strict=True))
        return found | {"summary": "", "call": ""} if found["expires_at"] <= now_ms() else found

    async def latest(self, digest: str, state: str, *, now: int) -> dict[str, Any] | None:
        """The newest approval of the same call in this state; None if missing."""
        query = f"{_SELECT} WHERE digest = ? AND state = ? AND expires_at > ? ORDER BY created_at DESC LIMIT 1"
        row = await self._database.row(query, digest, state, now)
        return dict(zip(_NAMES, row, strict=True)) if row else None

    async def waiting(self, *, now: int) -> list[dict[str, Any]]:
        """All pending approvals, the oldest first."""
        rows = await self._database.rows(f"SELECT {_COLUMNS} {_WAITING} ORDER BY created_at, id", now)
        return [dict(zip(_NAMES, row, strict=True)) for row in rows]

    # Each change is one statement, so that check and change are atomic.
    async def decide(self, id: str, *, state: str, now: int) -> bool:
        """Decide a pending approval and delete its call; False if it is not pending."""
        update = (
            "UPDATE approvals SET state = ?, summary = '', call = ''"
            " WHERE id = ? AND state = 'waiting' AND expires_at > ?"
        )
        is_decided = await self._database.execute(update, state, id, now) == 1
        if is_decided:
            self._database.erase_soon()
        return is_decided

    async def use(self, id: str, *, admission: str, now: int) -> bool:
        """Use an approval for one admission; False if it was used or is not approved."""
        update = (
            "UPDATE approvals SET state = 'used', admission = ? WHERE id = ? AND state = 'approved' AND expires_at > ?"
        )
        return await self._database.execute(update, admission, id, now) == 1

    async def release(self, id: str, *, admission: str) -> bool:
        """Make an approval usable again; False if this admission did not use it."""
        update = (
            "UPDATE approvals SET state = 'approved', admission = NULL"
            " WHERE id = ? AND state = 'used' AND admission = ?"
        )
        return await self._database.execute(update, id, admission) == 1

    async def forget(self, tool: str) -> list[str]:
        """Delete the approvals of a tool; returns their ids."""
        delete = "DELETE FROM approvals WHERE tool = ? RETURNING id"
        forgotten = await self._database.write(lambda connection: connection.execute(delete, (tool,)).fetchall())
        if forgotten:
            self._database.erase_soon()
        return [id for (id,) in forgotten]


def _delete_expired(connection: sqlite3.Connection, now: int) -> bool:
    """Delete the calls of expired approvals, and approvals that expired long ago; returns whether there were any."""
    deleted = connection.execute("DELETE FROM approvals WHERE expires_at <= ?", (now - KEEP_EXPIRED_MS,)).rowcount
    empty = f"UPDATE approvals SET summary = '', call = '' WHERE {_EXPIRED_WITH_CALL}"  # noqa: S608
    return deleted + connection.execute(empty, (now,)).rowcount > 0


def _drop_oldest(connection: sqlite3.Connection, caller: str, *, keep: int, now: int) -> list[str]:
    """Delete a caller's pending approvals but the newest."""
    dropped = [id for (id,) in connection.execute(_OLDEST, (now, caller, max(0, keep)))]
    connection.executemany("DELETE FROM approvals WHERE id = ?", [(id,) for id in dropped])
    return dropped
