"""Limits the rows of a table in number and bytes, for each caller and for all. The oldest are deleted first."""

import sqlite3
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from apexbridge._usage import ResourceUsage
from apexbridge.storage.database import Database

Row = tuple[int, str, int]
"""Rowid, caller and bytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RowLimits:
    own_rows: int
    own_bytes: int
    rows: int
    bytes: int
    spare: float
    """Part of a limit that is freed when it is reached, so that not every new row has to delete another."""


@dataclass(slots=True)
class _Usage:
    rows: int = 0
    bytes: int = 0


@dataclass(slots=True)
class _Usages:
    all: _Usage = field(default_factory=_Usage)
    of_callers: dict[str, _Usage] = field(default_factory=dict)


class BoundedRows:
    """For a table with the columns `caller` and `bytes`. Methods with a connection are for the writer thread only."""

    def __init__(self, table: str, *, order: str, limits: Callable[[], RowLimits]) -> None:
        """`order` are the columns by which rows are deleted."""
        self._table = table
        self._order = order
        self._limits = limits
        self._usages: _Usages | None = None

    def count_again(self) -> None:
        """To be called after a write that was rolled back."""
        self._usages = None

    def added(self, connection: sqlite3.Connection, caller: str, size: int) -> bool:
        """Count a new row, and delete the oldest beyond the limits: first the caller's own, then those of the caller
        that has the largest share. Returns whether there were any."""
        usages = self._usages
        if usages is None:
            usages = self._usages = self._counted(connection)
        else:
            for usage in (usages.all, usages.of_callers.setdefault(caller, _Usage())):
                usage.rows += 1
                usage.bytes += size
        limits, together, of_callers = self._limits(), usages.all, usages.of_callers
        own, is_any = of_callers[caller], False
        if own.rows > limits.own_rows or own.bytes > limits.own_bytes:
            rows = own.rows - int(limits.own_rows * (1 - limits.spare))
            size = own.bytes - int(limits.own_bytes * (1 - limits.spare))
            is_any = self._free(connection, usages, caller, rows=rows, size=size, keeps_newest=True)
        while together.rows > max(1, limits.rows) or (together.bytes > limits.bytes and together.rows > 1):
            largest = max(of_callers, key=lambda one: _share(of_callers[one], limits))
            its = of_callers[largest]
            rows, size = max(1, int(its.rows * limits.spare)), int(its.bytes * limits.spare)
            if not self._free(connection, usages, largest, rows=rows, size=size, keeps_newest=False):
                self._usages = None  # the counts are wrong
                break
            is_any = True
        return is_any

    def delete(self, connection: sqlite3.Connection, rows: Sequence[Row]) -> None:
        self._delete(connection, self._usages, rows)

    def _delete(self, connection: sqlite3.Connection, usages: _Usages | None, rows: Sequence[Row]) -> None:
        numbers = [(number,) for number, *_ in rows]
        connection.executemany(f"DELETE FROM {self._table} WHERE rowid = ?", numbers)  # noqa: S608
        if usages is None:
            return
        for _, caller, size in rows:
            for usage in (usages.all, usages.of_callers.setdefault(caller, _Usage())):
                usage.rows -= 1
                usage.bytes -= size
            if usages.of_callers[caller].rows <= 0:
                del usages.of_callers[caller]

    async def usage(self, database: Database, caller: str, *, rows: str, bytes: str) -> Sequence[ResourceUsage]:
        """What a caller has stored; `rows` and `bytes` are the names of the resources."""
        sums = f"SELECT count(*), coalesce(sum(bytes), 0) FROM {self._table}"  # noqa: S608
        own_rows, own_bytes = await database.row(f"{sums} WHERE caller = ?", caller)
        all_rows, all_bytes = await database.row(sums)
        limits = self._limits()
        return (
            ResourceUsage(
                resource=rows,
                used=own_rows,
                limit=limits.own_rows,
                total=all_rows,
                total_limit=limits.rows,
            ),
            ResourceUsage(
                resource=bytes,
                used=own_bytes,
                limit=limits.own_bytes,
                total=all_bytes,
                total_limit=limits.bytes,
                unit="bytes",
            ),
        )

    def _free(
        self,
        connection: sqlite3.Connection,
        usages: _Usages,
        caller: str,
        *,
        rows: int,
        size: int,
        keeps_newest: bool,
    ) -> bool:
        """Delete a caller's oldest rows: at least this number and these bytes."""
        found: list[Row] = []
        query = f"SELECT rowid, caller, bytes FROM {self._table} WHERE caller = ? ORDER BY {self._order} LIMIT ?"  # noqa: S608
        for row in connection.execute(query, (caller, usages.of_callers[caller].rows - keeps_newest)):
            if rows <= 0 and size <= 0:
                break
            found.append(row)
            rows -= 1
            size -= row[2]
        self._delete(connection, usages, found)
        return bool(found)

    def _counted(self, connection: sqlite3.Connection) -> _Usages:
        usages = _Usages()
        query = f"SELECT caller, count(*), sum(bytes) FROM {self._table} GROUP BY caller"  # noqa: S608
        for caller, rows, size in connection.execute(query):
            usages.of_callers[caller] = _Usage(rows, size)
            usages.all.rows += rows
            usages.all.bytes += size
        return usages


def _share(usage: _Usage, limits: RowLimits) -> float:
    return max(usage.rows / limits.rows, usage.bytes / limits.bytes)
