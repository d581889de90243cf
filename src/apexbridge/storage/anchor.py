"""Where the audit log ends, in the database: told before lines are written, and again when they are."""

import sqlite3
from contextlib import suppress

from apexbridge.storage.chain import Head
from apexbridge.storage.chainfile import Anchor
from apexbridge.storage.database import Database

_PUT = "INSERT OR REPLACE INTO audit_head (id, count, hash, size, announced) VALUES (1, ?, ?, ?, ?)"


class AnchorStore:
    """Keeps the end of one chain."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def load(self) -> Anchor:
        """What is known."""
        query = "SELECT count, hash, size, announced FROM audit_head"
        row = await self._database.read(lambda connection: connection.execute(query).fetchone())
        if row is None:
            return Anchor(is_known=False)
        return Anchor(head=Head(count=row[0], hash=row[1], size=row[2]), announced=row[3])

    async def announce(self, head: Head, lines: bytes) -> None:
        """These lines come next. It is on the disk before they are, or lines of our own would look like others'.

        Raises:
            sqlite3.Error: the database does not take it.
        """
        await self._put(head, lines, durable=True)

    async def settle(self, head: Head) -> None:
        """Everything up to here is written. Nothing is lost where this cannot be kept: the file will show it."""
        with suppress(sqlite3.Error):
            await self._put(head, b"", durable=False)

    async def _put(self, head: Head, lines: bytes, *, durable: bool) -> None:
        values = (head.count, head.hash, head.size, lines)
        await self._database.write(lambda connection: connection.execute(_PUT, values), durable=durable)
