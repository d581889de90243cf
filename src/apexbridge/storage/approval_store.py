"""Approvals of dangerous calls; each is used at most once. Decided ones are kept as records."""

import asyncio
import logging
import sqlite3
from collections import Counter
from typing import Any

from apexbridge._time import MS_PER_DAY, now_ms
from apexbridge.storage.database import Database

KEEP_EXPIRED_MS = 60 * 60 * 1000
"""How long approvals that were not decided stay in the database after they expired."""
MAX_DECIDED = 2_000
"""Decided approvals that are kept; beyond that the oldest are deleted."""
KEPT_CHARACTERS = 64 * 1024
"""A call up to this size is kept with its decision, if calls are kept."""
SWEEP_SECONDS = 300
"""How often expired approvals are cleaned up."""
_COLUMNS = (
    "id, tool, confirm, summary, content_hash, digest, caller, created_at, expires_at, state, decided_at, decided_by"
)
_NAMES = _COLUMNS.split(", ")
_SELECT = f"SELECT {_COLUMNS} FROM approvals"  # noqa: S608
_INSERT = f"INSERT INTO approvals ({_COLUMNS}) VALUES ({', '.join('?' * len(_NAMES))})"  # noqa: S608
_IS_WAITING = "state = 'waiting' AND expires_at > ?"
_WAITING = f"FROM approvals WHERE {_IS_WAITING}"
_LARGEST = f"SELECT caller, count(*) {_WAITING} GROUP BY caller ORDER BY count(*) DESC, max(created_at) DESC LIMIT 1"
_OLDEST = f"SELECT id {_WAITING} AND caller = ? ORDER BY created_at DESC, id LIMIT -1 OFFSET ?"
_SIZES = (
    "SELECT id, caller, size FROM approvals JOIN approval_calls ON approval = id"
    " WHERE state = 'waiting' AND expires_at > ? ORDER BY created_at, id"
)
_HAS_CALL = "(summary <> '' OR EXISTS (SELECT 1 FROM approval_calls WHERE approval = id))"
_UNDECIDED_WITH_CALL = f"state = 'waiting' AND expires_at <= ? AND {_HAS_CALL}"
_OLD = (
    "(state = 'waiting' AND expires_at <= ?) OR (state <> 'waiting' AND expires_at <= ?)"
    " OR id IN (SELECT id FROM approvals WHERE state <> 'waiting' AND expires_at <= ?"
    " ORDER BY created_at DESC LIMIT -1 OFFSET ?)"
)
_LISTED = {"all": "? > 0", "waiting": _IS_WAITING, "expired": "state = 'waiting' AND expires_at <= ?"}
"""Conditions with the current time; other states are stored as they are."""
Limit = tuple[int, int]
"""Number of pending approvals, and characters of their calls."""

logger = logging.getLogger(__name__)


class SqliteApprovals:
    """Times are in milliseconds since 1970."""

    def __init__(self, database: Database, *, retention_days: int = 30, keeps_calls: bool = False) -> None:
        """`retention_days` is for decided approvals. With `keeps_calls`, calls stay after they are decided."""
        self._database = database
        self._retention_ms = max(KEEP_EXPIRED_MS, retention_days * MS_PER_DAY)
        self._keeps_calls = keeps_calls

    async def put(
        self, approval: dict[str, Any], *, call: str, is_truncated: bool, own: Limit, total: Limit
    ) -> list[str]:
        """Store a pending approval with its call; returns the ids of those that were dropped for it.

        Beyond `own` a caller loses its oldest. Beyond `total` of all callers, the caller with the most loses its
        oldest. Expired approvals are deleted.
        """
        now, caller = approval["created_at"], approval["caller"]

        def job(connection: sqlite3.Connection) -> tuple[list[str], bool]:
            has_expired = self._delete_expired(connection, now)
            # Later than all others even within a millisecond, or the newest could be dropped as the oldest.
            (last,) = connection.execute("SELECT max(created_at) FROM approvals").fetchone()
            ordered = {**approval, "created_at": max(now, (last or 0) + 1)}
            connection.execute(_INSERT, [ordered[name] for name in _NAMES])
            size = len(call)
            connection.execute(
                "INSERT INTO approval_calls VALUES (?, ?, ?, ?)", (ordered["id"], size, is_truncated, call)
            )
            dropped = _drop_oldest(connection, caller, keep=own[0], now=now)
            (count,) = connection.execute(f"SELECT count(*) {_WAITING}", (now,)).fetchone()
            if count > total[0]:
                largest, its = connection.execute(_LARGEST, (now,)).fetchone()
                dropped += _drop_oldest(connection, largest, keep=its - (count - total[0]), now=now)
            dropped += _drop_largest(connection, own=own[1], total=total[1], now=now)
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
        """Delete the calls of expired approvals, and approvals that are too old, from the files too."""
        now = now_ms()
        query = f"SELECT 1 FROM approvals WHERE {_OLD} OR ({_UNDECIDED_WITH_CALL})"  # noqa: S608
        try:
            if await self._database.row(query, *self._old(now), now):
                await self._database.write(lambda connection: self._delete_expired(connection, now))
                await self._database.erase()
        except sqlite3.Error as error:  # the server must start on a full disk too
            logger.warning("the calls of expired approvals could not be deleted: %s", error)

    async def get(self, id: str) -> dict[str, Any] | None:
        """One approval; without its summary if it has expired."""
        row = await self._database.row(f"{_SELECT} WHERE id = ?", id)
        return _read(row, now_ms()) if row is not None else None

    async def call_of(self, id: str) -> tuple[str, bool] | None:
        """The call of an approval, and whether it is truncated; None if it has expired or was deleted."""
        query = (
            "SELECT call, is_truncated FROM approval_calls JOIN approvals ON id = approval"
            " WHERE approval = ? AND (state <> 'waiting' OR expires_at > ?)"
        )
        row = await self._database.row(query, id, now_ms())
        return (row[0], bool(row[1])) if row else None

    async def latest(self, digest: str, state: str, *, now: int) -> dict[str, Any] | None:
        """The newest approval of the same call in this state; None if missing."""
        query = f"{_SELECT} WHERE digest = ? AND state = ? AND expires_at > ? ORDER BY created_at DESC LIMIT 1"
        row = await self._database.row(query, digest, state, now)
        return dict(zip(_NAMES, row, strict=True)) if row else None

    async def waiting(self, *, now: int) -> list[dict[str, Any]]:
        """All pending approvals, the oldest first."""
        rows = await self._database.rows(f"SELECT {_COLUMNS} {_WAITING} ORDER BY created_at, id", now)
        return [dict(zip(_NAMES, row, strict=True)) for row in rows]

    async def sizes(self, *, now: int) -> list[tuple[str, int]]:
        """The caller and the characters of the call of each pending approval."""
        rows = await self._database.rows(_SIZES, now)
        return [(caller, size) for _, caller, size in rows]

    async def withdraw(self, caller: str) -> list[str]:
        """Delete a caller's approvals that are pending or can be used; returns their ids."""
        delete = "DELETE FROM approvals WHERE caller = ? AND state IN ('waiting', 'approved') RETURNING id"
        return await self._forget(delete, caller)

    async def page(self, state: str, *, now: int, offset: int, limit: int) -> list[dict[str, Any]]:
        """Approvals in a state, the newest first. `expired`: not decided in time; `all`: in any state."""
        query = f"{_SELECT} WHERE {_LISTED.get(state, 'state = ?')} ORDER BY created_at DESC, id LIMIT ? OFFSET ?"
        value: object = now if state in _LISTED else state
        return [_read(row, now) for row in await self._database.rows(query, value, limit, offset)]

    # Each change is one transaction, so that check and change are atomic.
    async def decide(self, id: str, *, state: str, by: str, now: int) -> bool:
        """Decide a pending approval, and delete its call unless calls are kept; False if it is not pending."""
        update = f"UPDATE approvals SET state = ?, decided_at = ?, decided_by = ? WHERE id = ? AND {_IS_WAITING}"  # noqa: S608
        largest = KEPT_CHARACTERS if self._keeps_calls else -1

        def job(connection: sqlite3.Connection) -> bool:
            if connection.execute(update, (state, now, by, id, now)).rowcount != 1:
                return False
            connection.execute("DELETE FROM approval_calls WHERE approval = ? AND size > ?", (id, largest))
            if not self._keeps_calls:
                connection.execute("UPDATE approvals SET summary = '' WHERE id = ?", (id,))
            return True

        is_decided = await self._database.write(job)
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
        """Delete the approvals of a tool that are pending or can be used; returns their ids."""
        delete = "DELETE FROM approvals WHERE tool = ? AND state IN ('waiting', 'approved') RETURNING id"
        return await self._forget(delete, tool)

    async def _forget(self, delete: str, value: str) -> list[str]:
        forgotten = await self._database.write(lambda connection: connection.execute(delete, (value,)).fetchall())
        if forgotten:
            self._database.erase_soon()
        return [id for (id,) in forgotten]

    def _old(self, now: int) -> tuple[int, int, int, int]:
        return now - KEEP_EXPIRED_MS, now - self._retention_ms, now - KEEP_EXPIRED_MS, MAX_DECIDED

    def _delete_expired(self, connection: sqlite3.Connection, now: int) -> bool:
        """Delete the calls of expired approvals, and approvals that are too old; returns whether there were any."""
        deleted = connection.execute(f"DELETE FROM approvals WHERE {_OLD}", self._old(now)).rowcount  # noqa: S608
        expired = connection.execute(f"SELECT id FROM approvals WHERE {_UNDECIDED_WITH_CALL}", (now,)).fetchall()  # noqa: S608
        connection.executemany("DELETE FROM approval_calls WHERE approval = ?", expired)
        connection.executemany("UPDATE approvals SET summary = '' WHERE id = ?", expired)
        return deleted + len(expired) > 0


def _read(row: Any, now: int) -> dict[str, Any]:
    found = dict(zip(_NAMES, row, strict=True))
    is_expired = found["state"] == "waiting" and found["expires_at"] <= now
    return found | {"summary": ""} if is_expired else found


def _drop_oldest(connection: sqlite3.Connection, caller: str, *, keep: int, now: int) -> list[str]:
    """Delete a caller's pending approvals but the newest."""
    dropped = [id for (id,) in connection.execute(_OLDEST, (now, caller, max(0, keep)))]
    _delete(connection, dropped)
    return dropped


def _drop_largest(connection: sqlite3.Connection, *, own: int, total: int, now: int) -> list[str]:
    """Delete pending approvals until the calls of each caller, and of all, are small enough.

    The caller with the most characters loses its oldest.
    """
    pending = connection.execute(_SIZES, (now,)).fetchall()
    sizes: Counter[str] = Counter()
    for _, caller, size in pending:
        sizes[caller] += size
    dropped: list[str] = []
    while sizes and (max(sizes.values()) > own or sizes.total() > total):
        largest = max(sizes.values())
        index = next(index for index, (_, caller, _) in enumerate(pending) if sizes[caller] == largest)
        id, caller, size = pending.pop(index)
        sizes[caller] -= size
        dropped.append(id)
    _delete(connection, dropped)
    return dropped


def _delete(connection: sqlite3.Connection, ids: list[str]) -> None:
    connection.executemany("DELETE FROM approvals WHERE id = ?", [(id,) for id in ids])
