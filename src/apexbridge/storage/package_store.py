"""Packages that an operator added to skills."""

import sqlite3
from collections.abc import Sequence
from dataclasses import astuple, dataclass

from apexbridge.storage.database import Database


@dataclass(frozen=True, slots=True, kw_only=True)
class PackageRow:
    """A package of one skill."""

    kind: str
    """`python` or `node`."""
    name: str
    requirement: str
    """For Python as in PEP 508, without marker; for Node `name@range`."""


class PackageStore:
    def __init__(self, database: Database) -> None:
        self._database = database

    async def of(self, skill: str) -> list[PackageRow]:
        """All packages of a skill, sorted."""
        query = "SELECT kind, name, requirement FROM skill_packages WHERE skill = ? ORDER BY kind DESC, name"
        rows = await self._database.rows(query, skill)
        return [PackageRow(kind=row[0], name=row[1], requirement=row[2]) for row in rows]

    async def of_all(self) -> dict[str, list[PackageRow]]:
        """The packages of all skills that have any."""
        found: dict[str, list[PackageRow]] = {}
        query = "SELECT skill, kind, name, requirement FROM skill_packages"
        for skill, kind, name, requirement in await self._database.rows(query):
            found.setdefault(skill, []).append(PackageRow(kind=kind, name=name, requirement=requirement))
        return found

    async def change(self, skill: str, *, add: Sequence[PackageRow], remove: Sequence[tuple[str, str]]) -> None:
        """Remove packages, by kind and name, and add others, which replace those of the same name; all or nothing."""

        def job(connection: sqlite3.Connection) -> None:
            delete = "DELETE FROM skill_packages WHERE skill = ? AND kind = ? AND name = ?"
            connection.executemany(delete, [(skill, *key) for key in remove])
            insert = "INSERT OR REPLACE INTO skill_packages VALUES (?, ?, ?, ?)"
            connection.executemany(insert, [(skill, *astuple(row)) for row in add])

        await self._database.write(job)

    async def forget(self, skill: str) -> None:
        await self._database.execute("DELETE FROM skill_packages WHERE skill = ?", skill)
