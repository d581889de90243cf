"""Counters of calls, one row a tool; they survive restarts."""

import sqlite3
from dataclasses import dataclass

from apexbridge.storage.database import Database


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


class CallStatisticsStore:
    """Counts calls and tells the counts."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def record(self, tool: str, *, success: bool, duration_ms: int) -> None:
        """Count one call that began to run."""

        def job(connection: sqlite3.Connection) -> None:
            connection.execute(
                """INSERT INTO call_statistics VALUES (?, 1, ?, ?) ON CONFLICT (tool) DO UPDATE SET
                   call_count = call_count + 1,
                   success_count = success_count + excluded.success_count,
                   total_duration = total_duration + excluded.total_duration""",
                (tool, int(success), duration_ms),
            )

        await self._database.write(job)

    async def of(self, tool: str) -> CallCounts:
        """The counts of one tool; zeros where it was never called."""

        def job(connection: sqlite3.Connection) -> CallCounts:
            row = connection.execute(
                "SELECT call_count, success_count, total_duration FROM call_statistics WHERE tool = ?", (tool,)
            ).fetchone()
            return CallCounts(calls=row[0], successes=row[1], duration_ms=row[2]) if row else CallCounts()

        return await self._database.read(job)
