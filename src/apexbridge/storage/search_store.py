"""Texts that were searched for, with the number of results. Written in the background, so that no search waits."""

import logging
import sqlite3
from dataclasses import dataclass

from apexbridge._time import MS_PER_DAY, now_ms
from apexbridge.storage.database import Database, WriteBehind

MAX_QUERY_CHARACTERS = 200
MAX_SEARCHES = 1_000
"""Different texts that are stored; the oldest are deleted first."""
FLUSH_SECONDS = 2.0
_ADD = """INSERT INTO searches VALUES (?, ?, ?, ?) ON CONFLICT (query) DO UPDATE SET
          count = count + excluded.count, last_at = excluded.last_at, results = excluded.results"""
_OLDEST = "SELECT query FROM searches ORDER BY last_at DESC, query LIMIT -1 OFFSET ?"
logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchRow:
    """A text that was searched for; the time in milliseconds since 1970."""

    query: str
    count: int
    last_at: int
    results: int


class SearchRecords:
    def __init__(self, database: Database, *, is_enabled: bool, retention_days: int) -> None:
        self._database = database
        self._is_enabled = is_enabled
        self._retention_days = retention_days
        self._pending: dict[str, SearchRow] = {}
        self._behind = WriteBehind(self._flush, FLUSH_SECONDS)

    def note(self, query: str, results: int) -> None:
        """Record a search."""
        text = query[:MAX_QUERY_CHARACTERS].encode("utf-8", "replace").decode()
        before = self._pending.get(text)
        if not self._is_enabled or (before is None and len(self._pending) >= MAX_SEARCHES):
            return
        count = 1 + (before.count if before else 0)
        self._pending[text] = SearchRow(query=text, count=count, last_at=now_ms(), results=results)
        self._behind.schedule()

    async def list(
        self, *, days: int, without_results: bool, limit: int, offset: int = 0
    ) -> tuple[list[SearchRow], int]:
        """The searches of the last days, the most frequent first, and how many there are."""
        await self._flush()
        rows, total = await self._database.page(
            "query, count, last_at, results",
            f"searches WHERE last_at >= ?{' AND results = 0' if without_results else ''}",
            (now_ms() - days * MS_PER_DAY,),
            order="count DESC, last_at DESC, query",
            offset=offset,
            limit=limit,
        )
        return [
            SearchRow(query=query, count=count, last_at=at, results=found) for query, count, at, found in rows
        ], total

    async def sweep(self) -> None:
        """Delete searches that are too old, or all if they are no longer recorded."""
        before = now_ms() - self._retention_days * MS_PER_DAY if self._is_enabled else now_ms() + MS_PER_DAY
        try:
            if await self._database.execute("DELETE FROM searches WHERE last_at < ?", before):
                self._database.erase_soon()
        except sqlite3.Error:  # the server must start on a full disk too
            logger.warning("old searches could not be deleted", exc_info=True)

    async def close(self) -> None:
        await self._behind.close()

    async def _flush(self) -> bool:
        pending, self._pending = self._pending, {}
        if not pending:
            return False

        def job(connection: sqlite3.Connection) -> int:
            rows = [(row.query, row.count, row.last_at, row.results) for row in pending.values()]
            connection.executemany(_ADD, rows)
            (total,) = connection.execute("SELECT count(*) FROM searches").fetchone()
            if total <= MAX_SEARCHES:
                return 0
            return connection.execute(f"DELETE FROM searches WHERE query IN ({_OLDEST})", (MAX_SEARCHES,)).rowcount  # noqa: S608

        try:
            if await self._database.write(job):
                self._database.erase_soon()
        except sqlite3.Error:  # figures only: they are not worth another try
            logger.warning("%s searches could not be recorded", len(pending), exc_info=True)
        return bool(self._pending)
