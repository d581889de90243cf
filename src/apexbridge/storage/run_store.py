"""Records of runs."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from operator import attrgetter
from typing import Literal

from apexbridge._usage import ResourceUsage
from apexbridge.storage.database import Database

RunState = Literal["pending", "running", "completed", "error"]
ROW_BYTES = 512
_SUMMARY = (
    "id, skill, script, content_hash, caller, state, status, created_at, started_at, ended_at, input_digest,"
    " origin, origin_id, duration_ms, error_code, exit_code, file_count"
)
_COLUMNS = f"{_SUMMARY}, input, result"
_CONDITIONS = {"since": "created_at >= ?", "until": "created_at < ?"}
_NAMES = _COLUMNS.split(", ")
_values = attrgetter(*_NAMES)
_PUT = f"INSERT OR REPLACE INTO runs ({_COLUMNS}) VALUES ({', '.join('?' * len(_NAMES))})"  # noqa: S608


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRow:
    """One run; times in milliseconds since 1970."""

    id: str
    skill: str
    script: str
    content_hash: str
    caller: str = ""
    """The owner: an API key's id, or empty if the caller had none."""
    state: RunState
    status: str | None = None
    created_at: int
    started_at: int | None = None
    ended_at: int | None = None
    input_digest: str
    origin: str | None = None
    """What started it: `api`, `tool`, `chat` or `mcp`; None if it is not known."""
    origin_id: str | None = None
    duration_ms: int | None = None
    error_code: str | None = None
    exit_code: int | None = None
    file_count: int = 0
    input: str | None = None
    result: str | None = None
    """The result as JSON, without the output that is stored in files."""

    @property
    def size(self) -> int:
        """Estimated bytes in the database."""
        return ROW_BYTES + len(self.result or "") + len(self.input or "")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFilter:
    skill: str | None = None
    state: str | None = None
    status: str | None = None
    caller: str | None = None
    """Only runs of this caller; None for all."""
    origin: str | None = None
    since: int | None = None
    """Only runs that were created at this time in milliseconds or later."""
    until: int | None = None
    """Only runs that were created before this time."""


class RunStore:
    def __init__(self, database: Database) -> None:
        self._database = database

    async def put(self, row: RunRow) -> None:
        """Add or replace a run."""
        await self._database.execute(_PUT, *_values(row))

    async def get(self, identity: str) -> RunRow | None:
        rows = await self._rows(f"SELECT {_COLUMNS} FROM runs WHERE id = ?", identity)  # noqa: S608
        return rows[0] if rows else None

    def owner(self, identity: str) -> str | None:
        """The caller of a run, read on this thread; None if it does not exist."""
        query = "SELECT caller FROM runs WHERE id = ?"
        row = self._database.read_blocking(lambda connection: connection.execute(query, (identity,)).fetchone())
        return None if row is None else str(row[0])

    def taken_by(self, caller: str) -> tuple[set[str], int]:
        """The ids of a caller's runs, and the estimated bytes of their records."""
        query = "SELECT id, ? + length(coalesce(result, '')) + length(coalesce(input, '')) FROM runs WHERE caller = ?"
        rows = self._database.read_blocking(
            lambda connection: connection.execute(query, (ROW_BYTES, caller)).fetchall()
        )
        return {identity for identity, _ in rows}, sum(size for _, size in rows)

    async def usage(self, caller: str) -> Sequence[ResourceUsage]:
        """The number of a caller's records. Their bytes count with its disk usage."""
        (own,) = await self._database.row("SELECT count(*) FROM runs WHERE caller = ?", caller)
        (total,) = await self._database.row("SELECT count(*) FROM runs")
        return (ResourceUsage(resource="run-records", used=own, total=total),)

    async def page(
        self, filter: RunFilter, *, besides: Sequence[str] = (), offset: int, limit: int
    ) -> tuple[list[RunRow], int]:
        """The newest first without inputs and results, and the total; `besides` are left out."""
        used = {name: value for name, value in asdict(filter).items() if value is not None}
        not_besides = f"id NOT IN ({', '.join('?' * len(besides))})"
        where = " AND ".join([*(_CONDITIONS.get(name, f"{name} = ?") for name in used), not_besides])
        rows, total = await self._database.page(
            f"{_SUMMARY}, NULL, NULL",
            f"runs WHERE {where}",
            (*used.values(), *besides),
            order="created_at DESC, id",
            offset=offset,
            limit=limit,
        )
        return [_row(row) for row in rows], total

    async def delete(self, identity: str) -> bool:
        """Delete a run; False if there was none."""
        return await self._database.execute("DELETE FROM runs WHERE id = ?", identity) > 0

    async def erase(self) -> None:
        """Remove deleted records from the database's files."""
        await self._database.erase()

    async def ended_before(self, time_ms: int, *, limit: int) -> list[str]:
        """Runs that ended before a time in milliseconds, the oldest first."""
        query = "SELECT id FROM runs WHERE created_at < ? AND ended_at < ? ORDER BY created_at LIMIT ?"
        return [identity for (identity,) in await self._database.rows(query, time_ms, time_ms, limit)]

    async def unfinished(self) -> list[RunRow]:
        """Runs that were pending or running when the server stopped."""
        return await self._rows(f"SELECT {_COLUMNS} FROM runs WHERE state IN ('pending', 'running')")  # noqa: S608

    async def _rows(self, query: str, *values: object) -> list[RunRow]:
        return [_row(row) for row in await self._database.rows(query, *values)]


def _row(values: Sequence[object]) -> RunRow:
    return RunRow(**dict(zip(_NAMES, values, strict=True)))  # type: ignore[arg-type]
