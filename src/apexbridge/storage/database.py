"""One SQLite file in WAL mode: many readers, and one writer thread that commits pending jobs together."""

import asyncio
import logging
import os
import queue
import sqlite3
import threading
import time
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Future, InvalidStateError, ThreadPoolExecutor
from contextlib import closing, suppress
from importlib import resources
from pathlib import Path
from typing import Any, TypeVar

from apexbridge._fs import PRIVATE_FILE
from apexbridge._tasks import start_shared, wait_up_to
from apexbridge.errors import ServerError

T = TypeVar("T")
Job = Callable[[sqlite3.Connection], T]
MAX_BATCH = 500
"""Jobs per commit: enough to spread its cost, few enough to respond soon."""
BUSY_TIMEOUT_MS = 10_000
ERASE_SECONDS = 0.2
"""Deletions are collected for this long before the WAL file is truncated."""
READER_THREADS = 16
COPIED_PAGES = 1024
"""Copied at a time."""
HEADER_BYTES = 100
_MAGIC = b"SQLite format 3\0"
_USER_VERSION = slice(60, 64)
"""Of the header of a SQLite file."""
_FIRST_PAGE = "SELECT count(*) FROM sqlite_master"
_NOT_OF_THE_MIGRATION = {
    sqlite3.SQLITE_BUSY,
    sqlite3.SQLITE_CANTOPEN,
    sqlite3.SQLITE_CORRUPT,
    sqlite3.SQLITE_FULL,
    sqlite3.SQLITE_IOERR,
    sqlite3.SQLITE_LOCKED,
    sqlite3.SQLITE_NOMEM,
    sqlite3.SQLITE_NOTADB,
    sqlite3.SQLITE_READONLY,
}
"""Errors of the disk, or of a damaged file."""

logger = logging.getLogger(__name__)


class Database:
    """Runs jobs on connections: reads on reader threads, writes on the writer thread."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._writer = _open(path)
        self._closed = False
        self._jobs: queue.SimpleQueue[tuple[Job[Any], Future[Any], bool] | None] = queue.SimpleQueue()
        self._readers: queue.LifoQueue[sqlite3.Connection] = queue.LifoQueue()
        self._reader_threads = ThreadPoolExecutor(READER_THREADS, thread_name_prefix="sqlite-reader")
        self._erase_lock = asyncio.Lock()
        self._erase_requests = 0
        self._erased_requests = 0
        """Requests to erase that a truncated WAL file has served."""
        self._erase_timer: tuple[asyncio.AbstractEventLoop, asyncio.TimerHandle] | None = None
        self._erase_tasks: set[asyncio.Task[None]] = set()
        self._writer_thread = threading.Thread(target=self._write_until_closed, name="sqlite-writer", daemon=True)
        self._writer_thread.start()

    async def read(self, job: Job[T]) -> T:
        """Run a query on a reader thread."""
        self._check_open()
        return await asyncio.get_running_loop().run_in_executor(self._reader_threads, self.read_blocking, job)

    def read_blocking(self, job: Job[T]) -> T:
        """Run a query on this thread. On the event loop only for a single row by its key."""
        try:
            connection = self._readers.get_nowait()
        except queue.Empty:
            connection = _connect(self._path)
            connection.execute("PRAGMA query_only = ON")
        try:
            return job(connection)
        finally:
            self._readers.put(connection)

    async def rows(self, query: str, *values: object) -> list[Any]:
        return await self.read(lambda connection: connection.execute(query, values).fetchall())

    async def row(self, query: str, *values: object) -> Any:
        """The first row of a query; None if it has none."""
        return await self.read(lambda connection: connection.execute(query, values).fetchone())

    async def page(
        self, columns: str, source: str, values: Sequence[object], *, order: str, offset: int, limit: int
    ) -> tuple[list[Any], int]:
        """Some rows of a query in this order, and the total number. `source` is the text after FROM."""

        def job(connection: sqlite3.Connection) -> tuple[list[Any], int]:
            (total,) = connection.execute(f"SELECT count(*) FROM {source}", values).fetchone()  # noqa: S608
            query = f"SELECT {columns} FROM {source} ORDER BY {order} LIMIT ? OFFSET ?"  # noqa: S608
            return connection.execute(query, (*values, limit, offset)).fetchall(), total

        return await self.read(job)

    async def execute(self, statement: str, *values: object) -> int:
        """Run one statement as a change of its own; returns the number of changed rows."""
        return await self.write(lambda connection: connection.execute(statement, values).rowcount)

    async def write(self, job: Job[T], *, durable: bool = False) -> T:
        """Run a change; returns its result once it is committed, together with other pending jobs.

        A committed change survives a crash of the process. With `durable`, it survives a crash of the machine.
        """
        self._check_open()
        future: Future[T] = Future()
        self._jobs.put((job, future, durable))
        return await asyncio.wrap_future(future)

    def snapshot(self) -> sqlite3.Connection:
        """A connection that sees what is committed now, until it is closed."""
        return snapshot_of(self._path)

    async def erase(self) -> None:
        """Remove deleted rows from the WAL file as well, by truncating it.

        Requests that arrive meanwhile are served together by the next truncation.
        """
        self._erase_requests += 1
        request = self._erase_requests
        async with self._erase_lock:
            if self._erased_requests >= request or self._closed:
                return
            served = self._erase_requests
            await asyncio.to_thread(self._truncate_wal)
            self._erased_requests = served

    def erase_soon(self) -> None:
        """Erase shortly, once for all rows deleted until then. Closing the database truncates the WAL file anyway."""
        loop = asyncio.get_running_loop()
        if self._erase_timer is None or self._erase_timer[0] is not loop:
            self._erase_timer = loop, loop.call_later(ERASE_SECONDS, self._start_erasing, loop)

    def _start_erasing(self, loop: asyncio.AbstractEventLoop) -> None:
        self._erase_timer = None
        if not self._closed:
            task = start_shared(self.erase())
            self._erase_tasks.add(task)
            task.add_done_callback(self._erase_tasks.discard)

    def _truncate_wal(self) -> None:
        try:
            with closing(_connect(self._path)) as connection:
                (is_busy, *_) = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        except sqlite3.Error:
            is_busy = True
        if is_busy:
            logger.warning("deleted rows remain in %s-wal until the next checkpoint", self._path.name)

    def close(self) -> None:
        """Run pending jobs and close every connection."""
        self._closed = True
        self._jobs.put(None)
        self._writer_thread.join()
        self._reader_threads.shutdown()
        with suppress(queue.Empty):
            while True:
                self._readers.get_nowait().close()
        self._writer.close()

    def _check_open(self) -> None:
        if self._closed:
            raise ServerError("The database is closed.", code="NOT_READY")

    def _write_until_closed(self) -> None:
        while (first := self._jobs.get()) is not None:
            batch = [first]
            with suppress(queue.Empty):
                while len(batch) < MAX_BATCH:
                    job = self._jobs.get_nowait()
                    if job is None:
                        self._jobs.put(None)  # ends the loop after this batch
                        break
                    batch.append(job)
            self._commit(batch)

    def _commit(self, batch: list[tuple[Job[Any], Future[Any], bool]]) -> None:
        """One transaction for the batch; a job that fails rolls back only its own changes."""
        outcomes: list[tuple[Future[Any], Any, BaseException | None]] = []
        durable = any(durable for *_, durable in batch)
        try:
            self._writer.execute(f"PRAGMA synchronous = {'FULL' if durable else 'NORMAL'}")
            self._writer.execute("BEGIN IMMEDIATE")
            for job, future, _ in batch:
                if not future.set_running_or_notify_cancel():
                    continue
                self._writer.execute("SAVEPOINT job")
                try:
                    outcomes.append((future, job(self._writer), None))
                except Exception as error:
                    if not self._writer.in_transaction:  # on a full disk SQLite rolls back the whole batch
                        raise
                    self._writer.execute("ROLLBACK TO job")
                    outcomes.append((future, None, error))
                self._writer.execute("RELEASE job")
            self._writer.execute("COMMIT")
        except BaseException as error:  # the thread must survive, and every caller gets the error
            with suppress(sqlite3.Error):
                self._writer.execute("ROLLBACK")
            outcomes = [(future, None, error) for _, future, _ in batch]
        for future, result, failure in outcomes:
            with suppress(InvalidStateError):  # the caller was cancelled
                if failure is None:
                    future.set_result(result)
                else:
                    future.set_exception(failure)


def _open(path: Path) -> sqlite3.Connection:
    """A connection to a database with the newest schema; a damaged file is renamed and created again.

    Raises ServerError: NEWER_VERSION or MIGRATION_FAILED. Nothing was changed.
    """
    _check_version_of(path)
    try:
        return _migrated(path)
    except sqlite3.DatabaseError as error:
        if isinstance(error, sqlite3.OperationalError) or not path.exists():
            raise
        broken = path.with_name(f"{path.name}.broken-{int(time.time())}")
        logger.error("%s cannot be read; it is kept as %s and rebuilt from the skills' folders", path.name, broken.name)
        path.rename(broken)
        for suffix in ("-wal", "-shm"):
            path.with_name(path.name + suffix).unlink(missing_ok=True)
        return _migrated(path)


def _migrated(path: Path) -> sqlite3.Connection:
    _restrict_mode(path)
    connection = _connect(path)
    try:
        connection.execute("PRAGMA journal_mode = WAL")
        _migrate(connection)
        _check(connection)
    except BaseException:
        connection.close()
        raise
    return connection


def _restrict_mode(path: Path) -> None:
    """Only the owner may read the database and its WAL files: they may contain chats."""
    with suppress(OSError):  # SQLite's own message is better
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, PRIVATE_FILE))
        for suffix in ("", "-wal", "-shm"):
            with suppress(FileNotFoundError):
                path.with_name(path.name + suffix).chmod(PRIVATE_FILE)


def _check(connection: sqlite3.Connection) -> None:
    """Read all pages: damage beyond the first page shows only when that page is read."""
    verdict = connection.execute("PRAGMA quick_check(1)").fetchone()[0]
    if verdict != "ok":
        raise sqlite3.DatabaseError(verdict)
    with closing(sqlite3.connect(":memory:")) as blank:
        _migrate(blank)
        if missing := _schema_of(blank) - _schema_of(connection):
            raise sqlite3.DatabaseError(f"missing: {', '.join(sorted(missing))}")


def _schema_of(connection: sqlite3.Connection) -> set[str]:
    return {name for (name,) in connection.execute("SELECT name FROM sqlite_master")}


def snapshot_of(path: Path) -> sqlite3.Connection:
    """A connection that sees the database as it is now, until it is closed. Others can write meanwhile."""
    return connect(path, f"PRAGMA busy_timeout = {BUSY_TIMEOUT_MS}", "PRAGMA query_only = ON", "BEGIN", _FIRST_PAGE)


def copy_to(source: sqlite3.Connection, target: Path) -> None:
    """Copy a database, as this connection sees it, to a new file, which only the owner can read."""
    os.close(os.open(target, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, PRIVATE_FILE))
    with closing(connect(target, "PRAGMA synchronous = OFF")) as connection:
        source.backup(connection, pages=COPIED_PAGES)


def check_database(path: Path) -> str | None:
    """What is wrong with a database, which is only read; None if nothing is. Raises ServerError: NEWER_VERSION."""
    _check_version_of(path)
    try:
        with closing(_reader(path)) as connection:
            verdict = str(connection.execute("PRAGMA quick_check(1)").fetchone()[0])
            return None if verdict == "ok" else verdict
    except sqlite3.Error as error:
        return str(error)


def schema_version(path: Path) -> int:
    """The number of the last migration of a database; 0 if it has none. Raises sqlite3.Error."""
    with closing(_reader(path)) as connection:
        return int(connection.execute("PRAGMA user_version").fetchone()[0])


def newest_schema() -> int:
    """The schema version that this release writes."""
    return _migrations()[-1][0]


def _reader(path: Path) -> sqlite3.Connection:
    # Not mode=ro: that cannot read the WAL file of a process that was killed.
    uri = f"{path.absolute().as_uri()}?mode=rw"
    return connect(uri, f"PRAGMA busy_timeout = {BUSY_TIMEOUT_MS}", "PRAGMA query_only = ON")


def _check_version_of(path: Path) -> None:
    """Refuse a database of a newer release before anything is changed. Raises ServerError: NEWER_VERSION."""
    known = {number for number, _ in _migrations()}
    newest = max(known)
    try:
        with path.open("rb") as file:
            header = file.read(HEADER_BYTES)
    except OSError:
        return
    # From the header as well: a file that this SQLite cannot read may be one of a newer release, not a damaged one.
    found = int.from_bytes(header[_USER_VERSION]) if header.startswith(_MAGIC) else 0
    with suppress(sqlite3.Error), closing(_reader(path)) as connection:
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        found = max(found, version)
        applied = {number for (number,) in connection.execute("SELECT number FROM migrations")}
        found = max(found, newest + 1 if applied - known else 0)
    if found > newest:
        raise _newer(found)


def _newer(version: int) -> ServerError:
    return ServerError(
        f"The data directory was written by a newer version of apexbridge (schema {version}; this one knows "
        f"{newest_schema()}). Nothing was changed. Use that version again, or name another directory with --data-dir. "
        "An older version can only use a backup that was made before the update.",
        code="NEWER_VERSION",
        schemaVersion=version,
    )


def _connect(path: Path) -> sqlite3.Connection:
    return connect(
        path,
        f"PRAGMA busy_timeout = {BUSY_TIMEOUT_MS}",
        "PRAGMA synchronous = NORMAL",
        "PRAGMA foreign_keys = ON",
        "PRAGMA secure_delete = ON",  # overwrite deleted and moved rows
    )


def connect(path: Path | str, *statements: str) -> sqlite3.Connection:
    """A connection for any thread, in autocommit mode, on which these statements were executed."""
    is_uri = isinstance(path, str)
    connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False, uri=is_uri)
    try:
        for statement in statements:
            connection.execute(statement)
    except BaseException:
        connection.close()
        raise
    return connection


def _migrate(connection: sqlite3.Connection) -> None:
    """Apply every migration that this file does not have, also one below the highest applied number.

    All of them are one transaction: if one fails, the older version can still use the file.
    """
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    applied = _applied(connection, version)
    pending = [(number, statements) for number, statements in _migrations() if number not in applied]
    if not pending:
        return
    script = ["BEGIN IMMEDIATE;"]
    for number, statements in pending:
        script += [statements, f"INSERT INTO migrations VALUES ({number});"]  # noqa: S608
    version = max(version, *(number for number, _ in pending))
    try:
        connection.executescript("\n".join([*script, f"PRAGMA user_version = {version};", "COMMIT;"]))
    except sqlite3.Error as error:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        if getattr(error, "sqlite_errorcode", 0) & 0xFF in _NOT_OF_THE_MIGRATION:
            raise
        raise ServerError(
            f"The database could not be migrated to schema {version} ({error}). Nothing was changed: the version of "
            "apexbridge that wrote it can still use it. Please report this.",
            code="MIGRATION_FAILED",
        ) from error


def _applied(connection: sqlite3.Connection, version: int) -> set[int]:
    """The applied migrations; a file of a version that did not record them has all up to its number."""
    if not connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'migrations'").fetchone():
        values = "".join(f"INSERT INTO migrations VALUES ({number});" for number in range(1, version + 1))  # noqa: S608
        connection.executescript(f"BEGIN;CREATE TABLE migrations (number INTEGER PRIMARY KEY);{values}COMMIT;")
    return {number for (number,) in connection.execute("SELECT number FROM migrations")}


def _migrations() -> list[tuple[int, str]]:
    folder = resources.files("apexbridge.storage") / "migrations"
    found = [
        (int(item.name.split("_")[0]), item.read_text("utf-8"))
        for item in folder.iterdir()
        if item.name.endswith(".sql")
    ]
    return sorted(found)


class WriteBehind:
    """Calls `write` at intervals while there is something to write.

    `write` writes what is pending, and returns whether something is left for another time.
    """

    def __init__(self, write: Callable[[], Awaitable[bool]], seconds: float) -> None:
        self._write = write
        self._seconds = seconds
        self._writing: asyncio.Task[None] | None = None
        self._closing = asyncio.Event()

    def schedule(self) -> None:
        if self._writing is None or self._writing.done():
            self._writing = start_shared(self._write_until_done())

    async def close(self) -> None:
        """Write what is pending, now."""
        self._closing.set()
        if self._writing is not None:
            await asyncio.wait([self._writing])
        await self._write()

    async def _write_until_done(self) -> None:
        is_left = True
        while is_left and not self._closing.is_set():
            await wait_up_to(self._seconds, self._closing)
            is_left = await self._write()
