"""Responses of `/v1/responses` that a client can continue, read and delete by their ids, limited in number, size, time.

A response is used when it is stored and whenever a conversation continues with it. Those that were not used for the
longest time are deleted first.
"""

import asyncio
import logging
import sqlite3
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from apexbridge._json import dumped, loads_stored
from apexbridge._tasks import start_shared
from apexbridge._time import MS_PER_DAY, now_ms
from apexbridge._usage import ResourceUsage
from apexbridge.errors import ServerError
from apexbridge.storage.bounded_rows import BoundedRows, RowLimits
from apexbridge.storage.database import Database, WriteBehind

Json = dict[str, Any]
MAX_RESPONSES_OF_A_KEY = 1_000
MAX_BYTES_OF_A_KEY = 64 * 1024 * 1024
MAX_RESPONSES = 20_000
MAX_BYTES = 512 * 1024 * 1024
MAX_CHAIN = 1_000
"""Responses of one conversation that are read."""
MAX_CHAIN_BYTES = 32 * 1024 * 1024
SPARE = 0.05
USE_MS = 3600 * 1000
"""Uses are noted this exactly: noting one rewrites the row with its texts."""
FLUSH_SECONDS = 0.1
MAX_WAITING_BYTES = 8 * 1024 * 1024
SWEEP_SECONDS = 3600
_CHAIN = """
WITH RECURSIVE chain (id, previous, bytes, position) AS (
    SELECT id, previous, bytes, 1 FROM responses WHERE id = ?1 AND caller = ?2 AND used_at > ?3
    UNION ALL
    SELECT responses.id, responses.previous, responses.bytes, position + 1 FROM responses, chain
    WHERE responses.id = chain.previous AND caller = ?2 AND used_at > ?3 AND position < ?4
)
SELECT id, previous, bytes FROM chain ORDER BY position
"""
_INSERT = (
    "INSERT INTO responses (id, caller, created_at, used_at, previous, workspace, bytes, response, input, output) "
    "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
)
logger = logging.getLogger(__name__)


class ChainError(Exception):
    """A conversation that cannot be continued."""

    def __init__(self, missing: str | None) -> None:
        super().__init__(missing)
        self.missing = missing
        """The id of a response that does not exist; None if the conversation is too long."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredResponse:
    id: str
    caller: str
    created_at: int
    """Milliseconds since 1970."""
    previous: str | None = None
    """The response that it continues."""
    workspace: str | None = None
    response: Json
    """The response object without its output."""
    input: Sequence[Json]
    output: Sequence[Json]


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredItems:
    """What a conversation needs of a response."""

    id: str
    workspace: str | None
    items: Sequence[Json]
    """Input, then output."""


@dataclass(frozen=True, slots=True)
class _Waiting:
    """A response that is not written yet."""

    stored: StoredResponse
    texts: tuple[bytes, bytes, bytes]
    size: int
    used_at: int
    used: Sequence[str]


class ResponseStore:
    def __init__(
        self, database: Database, *, retention_days: int = 7, is_disk_short: Callable[[], bool] = lambda: False
    ) -> None:
        """`retention_days` counts from the last use; 0 stores nothing. Nothing is stored while the disk is short."""
        self._database = database
        self._retention_ms = retention_days * MS_PER_DAY
        self._is_disk_short = is_disk_short
        self._rows = BoundedRows("responses", order="used_at, number", limits=_limits)
        self._waiting: list[_Waiting] = []
        self._waiting_bytes = 0
        self._writing: asyncio.Task[None] | None = None
        self._behind = WriteBehind(self._flush, FLUSH_SECONDS)

    @property
    def is_storing(self) -> bool:
        return self._retention_ms > 0 and not self._is_disk_short()

    async def add(self, stored: StoredResponse, used: Iterable[str] = ()) -> None:
        """Store a response, and note that it used others. The oldest beyond the limits are deleted.

        It can be read at once, and is written soon, together with others: a commit for each would cost as much CPU as
        a third of a short answer.
        """
        texts = (dumped(stored.response), dumped(stored.input), dumped(stored.output))
        self._waiting.append(_Waiting(stored, texts, sum(map(len, texts)), now_ms(), list(used)))
        self._waiting_bytes += self._waiting[-1].size
        if self._waiting_bytes > MAX_WAITING_BYTES:
            await self._flush()
        else:
            self._behind.schedule()

    async def close(self) -> None:
        """Write what is pending."""
        await self._behind.close()

    async def _flush(self) -> bool:
        waiting, self._waiting, self._waiting_bytes = self._waiting, [], 0
        if not waiting:
            if self._writing is not None:
                await asyncio.wait([self._writing])  # a reader must find what is being written
            return False

        def job(connection: sqlite3.Connection) -> None:
            for one in waiting:
                self._insert(connection, one)

        async def write() -> None:
            try:
                await self._database.write(job)
            except (sqlite3.Error, ServerError):
                self._rows.count_again()
                logger.warning("%s responses could not be stored", len(waiting), exc_info=True)

        previous = self._writing
        self._writing = start_shared(write())
        await asyncio.wait([task for task in (previous, self._writing) if task is not None])
        return bool(self._waiting)

    async def get(self, id: str, *, caller: str) -> StoredResponse | None:
        """A response of a caller; None if it is missing, expired, or of another caller."""
        await self._flush()
        row = await self._database.row(
            "SELECT created_at, previous, workspace, response, input, output FROM responses "
            "WHERE id = ? AND caller = ? AND used_at > ?",
            id,
            caller,
            self._expired_before(),
        )
        if row is None:
            return None
        created_at, previous, workspace, response, input, output = row
        return StoredResponse(
            id=id,
            caller=caller,
            created_at=created_at,
            previous=previous,
            workspace=workspace,
            response=loads_stored(response),
            input=loads_stored(input),
            output=loads_stored(output),
        )

    async def chain(self, id: str, *, caller: str) -> list[StoredItems]:
        """A response and all that it continues, the oldest first. Raises ChainError."""
        await self._flush()
        limit = self._expired_before()

        def job(connection: sqlite3.Connection) -> list[StoredItems]:
            rows = connection.execute(_CHAIN, (id, caller, limit, MAX_CHAIN)).fetchall()
            if len(rows) == MAX_CHAIN or sum(size for *_, size in rows) > MAX_CHAIN_BYTES:
                raise ChainError(None)
            missing = rows[-1][1] if rows else id
            if missing is not None:
                raise ChainError(missing)
            found = _items(connection, [row[0] for row in reversed(rows)])
            if len(found) < len(rows):  # one was deleted meanwhile
                raise ChainError(id)
            return found

        return await self._database.read(job)

    async def referenced(self, ids: Sequence[str], *, caller: str) -> list[StoredItems]:
        """Those of these responses that exist for a caller, in this order. Raises ChainError if they are too large."""
        if len(ids) > MAX_RESPONSES_OF_A_KEY:
            raise ChainError(None)
        await self._flush()
        limit = self._expired_before()

        def job(connection: sqlite3.Connection) -> list[StoredItems]:
            found: list[str] = []
            size = 0
            for id in ids:
                query = "SELECT bytes FROM responses WHERE id = ? AND caller = ? AND used_at > ?"
                row = connection.execute(query, (id, caller, limit)).fetchone()
                if row is not None:
                    found.append(id)
                    size += row[0]
            if size > MAX_CHAIN_BYTES:
                raise ChainError(None)
            return _items(connection, found)

        return await self._database.read(job)

    async def delete(self, id: str, *, caller: str) -> bool:
        """Delete a response; False if there was none."""
        await self._flush()

        def job(connection: sqlite3.Connection) -> bool:
            query = "SELECT number, caller, bytes FROM responses WHERE id = ? AND caller = ?"
            rows = connection.execute(query, (id, caller)).fetchall()
            self._rows.delete(connection, rows)
            return bool(rows)

        is_deleted = await self._database.write(job)
        if is_deleted:
            await self._database.erase()
        return is_deleted

    async def sweep(self) -> None:
        """Delete responses that were not used within the retention time."""
        expired = "FROM responses WHERE used_at <= ?"
        limit = self._expired_before()

        def job(connection: sqlite3.Connection) -> None:
            query = f"SELECT number, caller, bytes {expired}"
            self._rows.delete(connection, connection.execute(query, (limit,)).fetchall())

        try:
            if await self._database.row(f"SELECT 1 {expired} LIMIT 1", limit):
                await self._database.write(job)
                await self._database.erase()
        except sqlite3.Error:
            self._rows.count_again()
            logger.warning("expired responses could not be deleted; trying again later", exc_info=True)

    async def usage(self, caller: str) -> Sequence[ResourceUsage]:
        await self._flush()
        return await self._rows.usage(self._database, caller, rows="responses", bytes="response-bytes")

    async def keep_tidy(self) -> None:
        while True:
            await self.sweep()
            await asyncio.sleep(SWEEP_SECONDS)

    def _expired_before(self) -> int:
        return now_ms() - self._retention_ms

    # ------------------------------------------------------------------------------------- in the writer thread
    def _insert(self, connection: sqlite3.Connection, waiting: "_Waiting") -> None:
        stored, now = waiting.stored, waiting.used_at
        if waiting.used:
            connection.executemany(
                "UPDATE responses SET used_at = ? WHERE id = ? AND caller = ? AND used_at < ?",
                [(now, id, stored.caller, now - USE_MS) for id in waiting.used],
            )
        row = (stored.id, stored.caller, stored.created_at, now, stored.previous, stored.workspace, waiting.size)
        connection.execute(_INSERT, (*row, *waiting.texts))
        self._rows.added(connection, stored.caller, waiting.size)


def _limits() -> RowLimits:
    return RowLimits(
        own_rows=MAX_RESPONSES_OF_A_KEY,
        own_bytes=MAX_BYTES_OF_A_KEY,
        rows=MAX_RESPONSES,
        bytes=MAX_BYTES,
        spare=SPARE,
    )


def _items(connection: sqlite3.Connection, ids: Sequence[str]) -> list[StoredItems]:
    found = []
    for id in ids:
        query = "SELECT workspace, input, output FROM responses WHERE id = ?"
        for workspace, input, output in connection.execute(query, (id,)):
            found.append(StoredItems(id=id, workspace=workspace, items=[*loads_stored(input), *loads_stored(output)]))
    return found
