"""Counters of calls, one row a tool; they survive restarts."""

import logging
import sqlite3
from collections.abc import Mapping
from dataclasses import dataclass

from apexbridge.storage.database import Database
from apexbridge.storage.write_behind import WriteBehind

FLUSH_SECONDS = 1.0
_ADD = """INSERT INTO call_statistics VALUES (?, ?, ?, ?) ON CONFLICT (tool) DO UPDATE SET
          call_count = call_count + excluded.call_count,
          success_count = success_count + excluded.success_count,
          total_duration = total_duration + excluded.total_duration"""
logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class CallCounts:
    """How often one tool was called and how it went."""

    calls: int = 0
    successes: int = 0
    duration_ms: int = 0

    @property
    def average_ms(self) -> int:
        """Mean duration in whole milliseconds."""
        return round(self.duration_ms / self.calls) if self.calls else 0

    @property
    def success_rate(self) -> float:
        """Share of calls that went well, two decimals."""
        return round(self.successes / self.calls, 2) if self.calls else 0.0

    def __add__(self, other: "CallCounts") -> "CallCounts":
        return CallCounts(
            calls=self.calls + other.calls,
            successes=self.successes + other.successes,
            duration_ms=self.duration_ms + other.duration_ms,
        )


class CallStatisticsStore:
    """Counts calls and tells the counts."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def record(self, tool: str, *, success: bool, duration_ms: int) -> None:
        """Count one call that began to run."""
        await self.add({tool: CallCounts(calls=1, successes=int(success), duration_ms=duration_ms)})

    async def add(self, tallies: Mapping[str, CallCounts]) -> None:
        """Count many calls at once."""
        rows = [(tool, own.calls, own.successes, own.duration_ms) for tool, own in tallies.items()]
        await self._database.write(lambda connection: connection.executemany(_ADD, rows))

    async def all(self) -> dict[str, CallCounts]:
        """The counts of everything that was ever called."""
        query = "SELECT tool, call_count, success_count, total_duration FROM call_statistics"
        rows = await self._database.read(lambda connection: connection.execute(query).fetchall())
        return {tool: CallCounts(calls=calls, successes=good, duration_ms=ms) for tool, calls, good, ms in rows}

    async def of(self, tool: str) -> CallCounts:
        """The counts of one tool; zeros where it was never called."""

        def job(connection: sqlite3.Connection) -> CallCounts:
            row = connection.execute(
                "SELECT call_count, success_count, total_duration FROM call_statistics WHERE tool = ?", (tool,)
            ).fetchone()
            return CallCounts(calls=row[0], successes=row[1], duration_ms=row[2]) if row else CallCounts()

        return await self._database.read(job)


class CallTally:
    """Counts calls that take microseconds: in memory at once, in the database a moment later, many together."""

    def __init__(self, store: CallStatisticsStore) -> None:
        self._store = store
        self._waiting: dict[str, CallCounts] = {}
        self._behind = WriteBehind(self._flush, FLUSH_SECONDS)

    def count(self, tool: str, success: bool, duration_ms: int) -> None:
        """Count one call."""
        one = CallCounts(calls=1, successes=int(success), duration_ms=duration_ms)
        self._waiting[tool] = self._waiting.get(tool, CallCounts()) + one
        self._behind.schedule()

    async def all(self) -> dict[str, CallCounts]:
        """The counts of everything."""
        await self._flush()
        return await self._store.all()

    async def close(self) -> None:
        """Write what is waiting."""
        await self._behind.close()

    async def _flush(self) -> bool:
        waiting, self._waiting = self._waiting, {}
        if not waiting:
            return False
        try:
            await self._store.add(waiting)
        except sqlite3.Error:  # a count is not worth a failure; what cannot be written now may be later
            logger.warning("calls of %s could not be counted yet", ", ".join(waiting), exc_info=True)
            for tool, own in waiting.items():
                self._waiting[tool] = self._waiting.get(tool, CallCounts()) + own
            return False
        return bool(self._waiting)
