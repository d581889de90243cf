"""Rows of a table are limited for each caller and for all."""

import asyncio
import sqlite3
from pathlib import Path

import pytest

from apexbridge.storage.bounded_rows import BoundedRows, RowLimits
from apexbridge.storage.database import Database

LIMITS = RowLimits(own_rows=5, own_bytes=1_000, rows=8, bytes=1_500, spare=0)


class Table:
    def __init__(self, path: Path) -> None:
        self.database = Database(path)
        self.rows = self._bounded()

    def _bounded(self) -> BoundedRows:
        return BoundedRows("things", order="rowid", limits=lambda: LIMITS)

    def reopen(self) -> None:
        """As after a restart: the counts have to be read again."""
        self.rows = self._bounded()

    async def add(self, caller: str, size: int = 1) -> None:
        def job(connection: sqlite3.Connection) -> None:
            connection.execute("INSERT INTO things (caller, bytes) VALUES (?, ?)", (caller, size))
            self.rows.added(connection, caller, size)

        await self.database.write(job)

    async def count(self, caller: str) -> int:
        (count,) = await self.database.row("SELECT count(*) FROM things WHERE caller = ?", caller)
        return int(count)


@pytest.fixture
def table(tmp_path: Path) -> Table:
    opened = Table(tmp_path / "x.sqlite3")
    asyncio.run(opened.database.execute("CREATE TABLE things (caller TEXT, bytes INTEGER)"))
    return opened


def test_one_caller_cannot_push_out_rows_of_another(table: Table) -> None:
    async def run() -> None:
        await table.add("quiet")
        for _ in range(100):
            await table.add("loud")
        assert (await table.count("quiet"), await table.count("loud")) == (1, 5)

    asyncio.run(run())


def test_beyond_the_limits_of_all_the_caller_with_the_most_loses_its_oldest(table: Table) -> None:
    async def run() -> None:
        for caller in ("quiet", *["a"] * 5, *["b"] * 5, "quiet"):
            await table.add(caller)
        assert [await table.count(caller) for caller in ("quiet", "a", "b")] == [2, 3, 3]

    asyncio.run(run())


def test_bytes_are_limited_as_well_as_rows(table: Table) -> None:
    async def run() -> None:
        for _ in range(3):
            await table.add("a", 400)
        assert await table.count("a") == 2
        for _ in range(3):
            await table.add("b", 400)
        assert [await table.count(caller) for caller in ("a", "b")] == [1, 2]

    asyncio.run(run())


def test_deleting_rows_makes_room_and_a_restart_counts_them_again(table: Table) -> None:
    async def run() -> None:
        for _ in range(5):
            await table.add("a")
        table.reopen()
        await table.add("a")
        assert await table.count("a") == 5
        await table.database.write(lambda connection: table.rows.delete(connection, [(6, "a", 1), (5, "a", 1)]))
        for _ in range(2):
            await table.add("a")
        (usage, _) = await table.rows.usage(table.database, "a", rows="things", bytes="thing-bytes")
        assert (usage.used, usage.limit, usage.total, usage.total_limit) == (5, 5, 5, 8)

    asyncio.run(run())
