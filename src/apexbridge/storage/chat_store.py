"""Records of chat requests."""

import json
import secrets
import sqlite3
from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass, replace
from operator import attrgetter
from typing import Literal, TypeVar

from apexbridge._time import MS_PER_DAY
from apexbridge._usage import ResourceUsage
from apexbridge.errors import ServerError
from apexbridge.storage.bounded_rows import BoundedRows, RowLimits
from apexbridge.storage.database import Database, Job

T = TypeVar("T")
ChatOutcome = Literal["answered", "failed", "cancelled"]
MAX_CHATS_OF_A_KEY = 100_000
MAX_BYTES_OF_A_KEY = 256 * 1024 * 1024
MAX_CHATS = 1_000_000
MAX_BYTES = 2 * 1024 * 1024 * 1024
SPARE = 0.01
ROW_BYTES = 512
MAX_MODELS = 100
"""Limits the sums by model, because clients choose the models' names."""
_SUMMARY = (
    "id, caller, model, upstream, started_at, duration_ms, is_stream, turns, calls, stop_cause, outcome, "
    "error_code, error_message, prompt_tokens, completion_tokens, total_tokens"
)
_COLUMNS = f"{_SUMMARY}, trajectory, messages, answer, link"
_NAMES = _COLUMNS.split(", ")
_values = attrgetter(*_NAMES)
_INSERT = f"INSERT INTO chats ({_COLUMNS}, bytes) VALUES ({', '.join('?' * len(_NAMES))}, ?)"  # noqa: S608
_SUMS = (
    "count(*), sum(outcome = 'failed'), sum(outcome = 'cancelled'), sum(prompt_tokens), sum(completion_tokens), "
    "sum(total_tokens), sum(turns), sum(calls), sum(duration_ms)"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatRow:
    """One request; times in milliseconds since 1970, JSON as text."""

    id: str
    caller: str
    model: str
    upstream: str
    started_at: int
    duration_ms: int
    is_stream: bool
    turns: int
    calls: int
    stop_cause: str
    outcome: ChatOutcome
    error_code: str | None = None
    error_message: str | None = None
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    total_tokens: int | None = None
    trajectory: str = "[]"
    messages: str | None = None
    answer: str | None = None
    link: str = ""
    """Connects the request with its past use in search."""

    @property
    def size(self) -> int:
        """Estimated bytes in the database."""
        return ROW_BYTES + len(self.trajectory) + len(self.messages or "") + len(self.answer or "")


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatFilter:
    model: str | None = None
    caller: str | None = None
    stop_cause: str | None = None
    outcome: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatSums:
    """Totals of many requests."""

    requests: int = 0
    failed: int = 0
    cancelled: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    total_tokens: int = 0
    turns: int = 0
    calls: int = 0
    duration_ms: int = 0


class ChatStore:
    def __init__(self, database: Database) -> None:
        self._database = database
        self._rows = BoundedRows("chats", order="started_at, rowid", limits=_limits)

    async def add(self, rows: Sequence[ChatRow]) -> None:
        """Add records; one whose id is taken gets another id. The oldest beyond the limits are deleted."""

        def job(connection: sqlite3.Connection) -> bool:
            is_any = False
            for row in _with_unique_ids(connection, rows):
                connection.execute(_INSERT, (*_values(row), row.size))
                is_any |= self._rows.added(connection, row.caller, row.size)
            return is_any

        if await self._write(job):
            self._database.erase_soon()

    async def usage(self, caller: str) -> Sequence[ResourceUsage]:
        return await self._rows.usage(self._database, caller, rows="chat-records", bytes="chat-record-bytes")

    async def get(self, identity: str) -> ChatRow | None:
        row = await self._database.row(f"SELECT {_COLUMNS} FROM chats WHERE id = ?", identity)  # noqa: S608
        return _row(row) if row else None

    async def messages(self, links: Collection[str]) -> dict[str, str]:
        """The recorded messages of requests as JSON, by link. Requests without texts are left out."""
        query = (
            "SELECT link, messages FROM chats WHERE messages IS NOT NULL AND link IN (SELECT value FROM json_each(?))"
        )
        return dict(await self._database.rows(query, json.dumps(list(links))))

    async def page(self, filter: ChatFilter, *, offset: int, limit: int) -> tuple[list[ChatRow], int]:
        """The newest first, without trajectory and texts, and the total."""
        used = {name: value for name, value in asdict(filter).items() if value is not None}
        where = " AND ".join(["TRUE", *(f"{name} = ?" for name in used)])
        rows, total = await self._database.page(
            _SUMMARY,
            f"chats WHERE {where}",
            tuple(used.values()),
            order="started_at DESC, rowid DESC",  # in one millisecond, the last one first
            offset=offset,
            limit=limit,
        )
        return [_row(row) for row in rows], total

    async def recent_messages(self, limit: int) -> list[str]:
        """The messages of the newest requests that have some, as JSON."""
        query = "SELECT messages FROM chats WHERE messages IS NOT NULL ORDER BY started_at DESC, rowid DESC LIMIT ?"
        return [messages for (messages,) in await self._database.rows(query, limit)]

    async def delete(self, identity: str) -> bool:
        """Delete a request; False if there was none."""
        is_deleted = await self._delete("WHERE id = ?", identity) > 0
        await self._database.erase()
        return is_deleted

    async def delete_before(self, time_ms: int, *, limit: int) -> int:
        """Delete the oldest requests that started before a time in milliseconds; returns how many."""
        count = await self._delete("WHERE started_at < ? ORDER BY started_at LIMIT ?", time_ms, limit)
        if count < limit:
            await self._database.erase()
        return count

    async def _delete(self, which: str, *values: object) -> int:
        def job(connection: sqlite3.Connection) -> int:
            query = f"SELECT rowid, caller, bytes FROM chats {which}"  # noqa: S608
            rows = connection.execute(query, values).fetchall()
            self._rows.delete(connection, rows)
            return len(rows)

        return await self._write(job)

    async def _write(self, job: Job[T]) -> T:
        try:
            return await self._database.write(job)
        except (sqlite3.Error, ServerError):
            self._rows.count_again()
            raise

    async def sums(self, since: int) -> tuple[ChatSums, dict[str, ChatSums]]:
        """Totals since a time in milliseconds: of all requests, and by model, the most used first."""
        recent = "FROM chats WHERE started_at >= ?"
        by_model = f"SELECT model, {_SUMS} {recent} GROUP BY model ORDER BY count(*) DESC, model LIMIT ?"

        def job(connection: sqlite3.Connection) -> tuple[ChatSums, dict[str, ChatSums]]:
            total = connection.execute(f"SELECT {_SUMS} {recent}", (since,)).fetchone()
            rows = connection.execute(by_model, (since, MAX_MODELS))
            return _sums(total), {model: _sums(sums) for model, *sums in rows}

        return await self._database.read(job)

    async def sums_by_day(self, since: int, *, days_per_point: int = 1) -> dict[int, tuple[int, int, int]]:
        """Prompt tokens, completion tokens and requests since a time, by the first day (since 1970) of each point."""
        query = (
            "SELECT ?1 / ?2 + (started_at - ?1) / ?2 / ?3 * ?3 AS point, sum(coalesce(prompt_tokens, 0)), "
            "sum(coalesce(completion_tokens, 0)), count(*) FROM chats WHERE started_at >= ?1 GROUP BY point"
        )
        rows = await self._database.rows(query, since, MS_PER_DAY, days_per_point)
        return {day: (prompt, completion, requests) for day, prompt, completion, requests in rows}


def _limits() -> RowLimits:
    return RowLimits(
        own_rows=MAX_CHATS_OF_A_KEY, own_bytes=MAX_BYTES_OF_A_KEY, rows=MAX_CHATS, bytes=MAX_BYTES, spare=SPARE
    )


def _with_unique_ids(connection: sqlite3.Connection, rows: Sequence[ChatRow]) -> list[ChatRow]:
    """Clients may choose the ids of requests, and some choose the same id again."""
    taken: set[str] = set()
    new = []
    for row in rows:
        identity = row.id
        while identity in taken or connection.execute("SELECT 1 FROM chats WHERE id = ?", (identity,)).fetchone():
            identity = f"{row.id}.{secrets.token_hex(4)}"
        taken.add(identity)
        new.append(row if identity == row.id else replace(row, id=identity))
    return new


def _row(values: Sequence[object]) -> ChatRow:
    known = dict(zip(_NAMES, values, strict=False))
    return ChatRow(**{**known, "is_stream": bool(known["is_stream"])})  # type: ignore[arg-type]


def _sums(values: Sequence[int | None]) -> ChatSums:
    names = ChatSums.__dataclass_fields__
    return ChatSums(**{name: value or 0 for name, value in zip(names, values, strict=True)})
