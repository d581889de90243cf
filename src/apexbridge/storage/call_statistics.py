"""Call counters, one row per tool."""

import logging
import sqlite3
from collections.abc import Mapping
from dataclasses import dataclass

from apexbridge._time import now_ms
from apexbridge.storage.call_days import count_call
from apexbridge.storage.database import Database, WriteBehind

FLUSH_SECONDS = 1.0
_ADD = """INSERT INTO call_statistics (tool, call_count, success_count, total_duration, last_called_at)
          VALUES (?, ?, ?, ?, ?) ON CONFLICT (tool) DO UPDATE SET
          call_count = call_count + excluded.call_count,
          success_count = success_count + excluded.success_count,
          total_duration = total_duration + excluded.total_duration,
          last_called_at = excluded.last_called_at"""
_SELECT = "SELECT tool, call_count, success_count, total_duration FROM call_statistics"
logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class CallCounts:
    """Calls of one tool: number, successes, total duration."""

    calls: int = 0
    successes: int = 0
    duration_ms: int = 0

    @property
    def average_ms(self) -> int:
        return round(self.duration_ms / self.calls) if self.calls else 0

    @property
    def success_rate(self) -> float:
        """Share of successful calls, with two decimals."""
        return round(self.successes / self.calls, 2) if self.calls else 0.0

    def __add__(self, other: "CallCounts") -> "CallCounts":
        return CallCounts(
            calls=self.calls + other.calls,
            successes=self.successes + other.successes,
            duration_ms=self.duration_ms + other.duration_ms,
        )


class CallStatisticsStore:
    def __init__(self, database: Database) -> None:
        self._database = database

    async def record(self, skill: str, *, success: bool, duration_ms: int) -> None:
        """Count one call of a skill that started, in total and for this day."""

        def job(connection: sqlite3.Connection) -> None:
            connection.execute(_ADD, (skill, 1, int(success), duration_ms, now_ms()))
            count_call(connection, skill, success=success, duration_ms=duration_ms)

        await self._database.write(job)

    async def add(self, tallies: Mapping[str, CallCounts]) -> None:
        now = now_ms()
        rows = [(tool, counts.calls, counts.successes, counts.duration_ms, now) for tool, counts in tallies.items()]
        await self._database.write(lambda connection: connection.executemany(_ADD, rows))

    async def all(self) -> dict[str, CallCounts]:
        """The counts of all tools that were ever called."""
        rows = await self._database.rows(_SELECT)
        return {tool: CallCounts(calls=calls, successes=good, duration_ms=ms) for tool, calls, good, ms in rows}

    async def of(self, tool: str) -> CallCounts:
        """The counts of one tool; zeros if it was never called."""
        row = await self._database.row(f"{_SELECT} WHERE tool = ?", tool)
        return CallCounts(calls=row[1], successes=row[2], duration_ms=row[3]) if row else CallCounts()


class CallTally:
    """Counts in memory and writes to the database in batches, for calls that take microseconds."""

    def __init__(self, store: CallStatisticsStore) -> None:
        self._store = store
        self._pending: dict[str, CallCounts] = {}
        self._behind = WriteBehind(self._flush, FLUSH_SECONDS)

    def count(self, tool: str, success: bool, duration_ms: int) -> None:
        self._add(tool, CallCounts(calls=1, successes=int(success), duration_ms=duration_ms))
        self._behind.schedule()

    async def all(self) -> dict[str, CallCounts]:
        await self._flush()
        return await self._store.all()

    async def close(self) -> None:
        await self._behind.close()

    def _add(self, tool: str, counts: CallCounts) -> None:
        self._pending[tool] = self._pending.get(tool, CallCounts()) + counts

    async def _flush(self) -> bool:
        pending, self._pending = self._pending, {}
        if not pending:
            return False
        try:
            await self._store.add(pending)
        except sqlite3.Error:  # a counter must not make calls fail; the next flush tries again
            logger.warning("calls of %s could not be counted yet", ", ".join(pending), exc_info=True)
            for tool, counts in pending.items():
                self._add(tool, counts)
            return False
        return bool(self._pending)
