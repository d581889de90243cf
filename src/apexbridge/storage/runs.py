"""Records of runs; they survive restarts."""

import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from apexbridge.storage.database import Database

RunState = Literal["pending", "running", "completed", "error"]
ROW_BYTES = 512
_SUMMARY = "id, skill, script, content_hash, caller, state, status, created_at, started_at, ended_at, input_digest"
_COLUMNS = f"{_SUMMARY}, input, result"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRow:
    """One run; times in milliseconds since 1970."""

    id: str
    skill: str
    script: str
    content_hash: str
    caller: str = ""
    """Whose it is: an API key's id; empty for whoever came without one."""
    state: RunState
    status: str | None = None
    created_at: int
    started_at: int | None = None
    ended_at: int | None = None
    input_digest: str
    input: str | None = None
    result: str | None = None
    """The result as JSON, without what is kept beside the record."""

    @property
    def size(self) -> int:
        """About what the record takes in the database."""
        return ROW_BYTES + len(self.result or "") + len(self.input or "")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFilter:
    """Which runs are wanted."""

    skill: str | None = None
    state: str | None = None
    status: str | None = None
    caller: str | None = None
    """Only those of this one; None for everybody's."""


class RunStore:
    """Keeps what is known of each run."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def put(self, row: RunRow) -> None:
        """Write a run down, in place of what was known of it before."""
        await self._database.write(lambda connection: _put(connection, row))

    async def get(self, identity: str) -> RunRow | None:
        """One run."""
        query = f"SELECT {_COLUMNS} FROM runs WHERE id = ?"  # noqa: S608
        rows = await self._database.read(lambda connection: connection.execute(query, (identity,)).fetchall())
        return _row(rows[0]) if rows else None

    def owner(self, identity: str) -> str | None:
        """Whose run it is, at once; None where there is none."""
        query = "SELECT caller FROM runs WHERE id = ?"
        row = self._database.read_blocking(lambda connection: connection.execute(query, (identity,)).fetchone())
        return None if row is None else str(row[0])

    def taken_by(self, caller: str) -> tuple[set[str], int]:
        """The ids of a caller's runs, and about what their records take in the database."""
        query = "SELECT id, ? + length(coalesce(result, '')) + length(coalesce(input, '')) FROM runs WHERE caller = ?"
        rows = self._database.read_blocking(
            lambda connection: connection.execute(query, (ROW_BYTES, caller)).fetchall()
        )
        return {identity for identity, _ in rows}, sum(size for _, size in rows)

    async def page(
        self, wanted: RunFilter, *, besides: Sequence[str] = (), offset: int, limit: int
    ) -> tuple[list[RunRow], int]:
        """The newest first without inputs and results, and how many there are, leaving some out."""
        given = {"skill": wanted.skill, "state": wanted.state, "status": wanted.status, "caller": wanted.caller}
        used = {column: value for column, value in given.items() if value is not None}
        left_out = f"id NOT IN ({', '.join('?' * len(besides))})"
        where = " AND ".join([*(f"{column} = ?" for column in used), left_out])
        values = [*used.values(), *besides]

        def job(connection: sqlite3.Connection) -> tuple[list[RunRow], int]:
            (total,) = connection.execute(f"SELECT count(*) FROM runs WHERE {where}", values).fetchone()  # noqa: S608
            rows = connection.execute(
                f"SELECT {_SUMMARY}, NULL, NULL FROM runs WHERE {where} "  # noqa: S608
                "ORDER BY created_at DESC, id LIMIT ? OFFSET ?",
                (*values, limit, offset),
            ).fetchall()
            return [_row(row) for row in rows], total

        return await self._database.read(job)

    async def delete(self, identity: str) -> bool:
        """Forget a run; False where there was none."""
        query = "DELETE FROM runs WHERE id = ?"
        return await self._database.write(lambda connection: connection.execute(query, (identity,)).rowcount > 0)

    async def erase(self) -> None:
        """Leave nothing of deleted records in the database's files."""
        await self._database.erase()

    async def ended_before(self, moment: int, *, limit: int) -> list[str]:
        """Runs that ended before a moment, the oldest first."""
        query = "SELECT id FROM runs WHERE created_at < ? AND ended_at < ? ORDER BY created_at LIMIT ?"
        rows = await self._database.read(
            lambda connection: connection.execute(query, (moment, moment, limit)).fetchall()
        )
        return [identity for (identity,) in rows]

    async def unfinished(self) -> list[RunRow]:
        """Runs that had begun when the server went away."""
        query = f"SELECT {_COLUMNS} FROM runs WHERE state IN ('pending', 'running')"  # noqa: S608
        rows = await self._database.read(lambda connection: connection.execute(query).fetchall())
        return [_row(row) for row in rows]


def _put(connection: sqlite3.Connection, row: RunRow) -> None:
    values = [getattr(row, name) for name in _COLUMNS.split(", ")]
    marks = ", ".join("?" * len(values))
    connection.execute(f"INSERT OR REPLACE INTO runs ({_COLUMNS}) VALUES ({marks})", values)  # noqa: S608


def _row(values: tuple[object, ...]) -> RunRow:
    return RunRow(**dict(zip(_COLUMNS.split(", "), values, strict=True)))  # type: ignore[arg-type]
