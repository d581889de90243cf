"""Calls of skills by day. Durations are counted in classes, from which percentiles are computed."""

import math
import sqlite3
from collections import defaultdict
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import TypeVar

from apexbridge._time import MS_PER_DAY, now_ms
from apexbridge.storage.database import Database

KEEP_DAYS = 3650
STEPS = 8
"""Classes for each doubling of the duration: a percentile is at most 4.5 % off."""
_ADD = """INSERT INTO skill_call_days VALUES (?, ?, ?, 1, ?, ?) ON CONFLICT (day, skill, bucket) DO UPDATE SET
          calls = calls + 1, failed = failed + excluded.failed, last_at = max(last_at, excluded.last_at)"""
K = TypeVar("K")
Durations = Mapping[int, int]
"""Number of calls in each class."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CallFigures:
    """Calls of a time; times in milliseconds."""

    calls: int = 0
    failed: int = 0
    p50: int | None = None
    p95: int | None = None
    last_at: int | None = None


def today() -> int:
    return now_ms() // MS_PER_DAY


def bucket_of(duration_ms: int) -> int:
    return round(STEPS * math.log2(duration_ms)) if duration_ms > 0 else -1


def duration_of(bucket: int) -> int:
    return round(2 ** (bucket / STEPS)) if bucket >= 0 else 0


def percentile(durations: Durations, share: float) -> int | None:
    """The duration that this share of the calls did not exceed; None without calls."""
    left = math.ceil(share * sum(durations.values()))
    for bucket in sorted(durations):
        left -= durations[bucket]
        if left <= 0:
            return duration_of(bucket)
    return None


def count_call(connection: sqlite3.Connection, skill: str, *, success: bool, duration_ms: int) -> None:
    """Count a call, within the transaction of another change."""
    now = now_ms()
    connection.execute(_ADD, (now // MS_PER_DAY, skill, bucket_of(duration_ms), int(not success), now))


class CallDays:
    def __init__(self, database: Database) -> None:
        self._database = database

    async def by_day(self, since: int, *, days_per_point: int = 1, skill: str | None = None) -> dict[int, CallFigures]:
        """The calls since a day, by the first day of each point."""
        query = (
            "SELECT ?1 + (day - ?1) / ?2 * ?2 AS point, bucket, sum(calls), sum(failed), max(last_at) "
            "FROM skill_call_days WHERE day >= ?1 AND (?3 IS NULL OR skill = ?3) GROUP BY point, bucket"
        )
        values = (since, days_per_point, skill)
        return await self._database.read(lambda connection: _figures(connection.execute(query, values)))

    async def by_skill(self, since: int) -> dict[str, CallFigures]:
        query = (
            "SELECT skill, bucket, sum(calls), sum(failed), max(last_at) FROM skill_call_days WHERE day >= ? "
            "GROUP BY skill, bucket"
        )
        return await self._database.read(lambda connection: _figures(connection.execute(query, (since,))))

    async def last_uses(self) -> dict[str, int]:
        """When each skill was last called."""
        return dict(await self._database.rows("SELECT skill, max(last_at) FROM skill_call_days GROUP BY skill"))

    async def sweep(self) -> None:
        """Delete days that are too old."""
        with suppress(sqlite3.Error):  # the server must start on a full disk too
            await self._database.execute("DELETE FROM skill_call_days WHERE day < ?", today() - KEEP_DAYS)


def _figures(rows: Iterable[tuple[K, int, int, int, int]]) -> dict[K, CallFigures]:
    durations: dict[K, dict[int, int]] = defaultdict(dict)
    failed: dict[K, int] = defaultdict(int)
    last: dict[K, int] = defaultdict(int)
    for key, bucket, calls, failures, last_at in rows:
        durations[key][bucket] = calls
        failed[key] += failures
        last[key] = max(last[key], last_at)
    return {
        key: CallFigures(
            calls=sum(own.values()),
            failed=failed[key],
            p50=percentile(own, 0.5),
            p95=percentile(own, 0.95),
            last_at=last[key],
        )
        for key, own in durations.items()
    }
