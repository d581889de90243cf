"""One SQLite file in WAL mode: many readers, one writer that commits what is waiting in one go."""

import asyncio
import logging
import os
import queue
import sqlite3
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError
from contextlib import closing, suppress
from importlib import resources
from pathlib import Path
from typing import Any, TypeVar

import anyio.to_thread

from apexbridge.errors import ServerError

T = TypeVar("T")
Job = Callable[[sqlite3.Connection], T]
MAX_BATCH = 500
"""Jobs in one commit: enough to spread the cost of it, few enough to answer soon."""
BUSY_TIMEOUT_MS = 10_000
ERASE_SECONDS = 0.2
"""Deletions are gathered this long before the log of changes is emptied."""
PRIVATE = 0o600

logger = logging.getLogger(__name__)


class Database:
    """The handle that rooms keep their tables through."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._writer = _open(path)
        self._closed = False
        self._jobs: queue.SimpleQueue[tuple[Job[Any], Future[Any], bool] | None] = queue.SimpleQueue()
        self._readers: queue.LifoQueue[sqlite3.Connection] = queue.LifoQueue()
        self._erase_lock = asyncio.Lock()
        self._erase_requests = 0
        self._erased_requests = 0
        """Requests to erase that an emptied log has served."""
        self._erase_timer: tuple[asyncio.AbstractEventLoop, asyncio.TimerHandle] | None = None
        self._erase_tasks: set[asyncio.Task[None]] = set()
        self._thread = threading.Thread(target=self._write_until_closed, name="sqlite-writer", daemon=True)
        self._thread.start()

    async def read(self, job: Job[T]) -> T:
        """Run a query on a reader's connection, off the event loop."""
        return await anyio.to_thread.run_sync(self.read_blocking, job)

    def read_blocking(self, job: Job[T]) -> T:
        """Run a query here and now: for other threads, and for a single row by its key, which is there at once."""
        try:
            connection = self._readers.get_nowait()
        except queue.Empty:
            connection = _connect(self._path)
            connection.execute("PRAGMA query_only = ON")
        try:
            return job(connection)
        finally:
            self._readers.put(connection)

    async def write(self, job: Job[T], *, durable: bool = False) -> T:
        """Run a change; gives its result once it is committed, together with whatever else was waiting.

        A crash of the process loses none of it. With `durable`, neither does one of the machine.
        """
        if self._closed:
            raise ServerError("The database is closed.", code="NOT_READY")
        future: Future[T] = Future()
        self._jobs.put((job, future, durable))
        return await asyncio.wrap_future(future)

    async def erase(self) -> None:
        """Take what was deleted out of the log of changes beside the file, too, by emptying that.

        Requests that arrive while the log is being emptied share the next time.
        """
        self._erase_requests += 1
        own = self._erase_requests
        async with self._erase_lock:
            if self._erased_requests >= own or self._closed:
                return
            served = self._erase_requests
            await anyio.to_thread.run_sync(self._empty_log)
            self._erased_requests = served

    def erase_soon(self) -> None:
        """Erase what was deleted in a moment, once for everything that is deleted until then.

        A database that is closed before empties its log as it closes.
        """
        loop = asyncio.get_running_loop()
        if self._erase_timer is None or self._erase_timer[0] is not loop:
            self._erase_timer = loop, loop.call_later(ERASE_SECONDS, self._begin_erasing, loop)

    def _begin_erasing(self, loop: asyncio.AbstractEventLoop) -> None:
        self._erase_timer = None
        if not self._closed:
            task = loop.create_task(self.erase())
            self._erase_tasks.add(task)
            task.add_done_callback(self._erase_tasks.discard)

    def _empty_log(self) -> None:
        try:
            with closing(_connect(self._path)) as connection:
                (is_busy, *_) = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        except sqlite3.Error:
            is_busy = True
        if is_busy:
            logger.warning("deleted rows remain in %s-wal until the next checkpoint", self._path.name)

    def close(self) -> None:
        """Finish what is waiting and close every connection."""
        self._closed = True
        self._jobs.put(None)
        self._thread.join()
        with suppress(queue.Empty):
            while True:
                self._readers.get_nowait().close()
        self._writer.close()

    def _write_until_closed(self) -> None:
        while (first := self._jobs.get()) is not None:
            batch, closing = [first], False
            with suppress(queue.Empty):
                while len(batch) < MAX_BATCH:
                    more = self._jobs.get_nowait()
                    if more is None:
                        closing = True
                        break
                    batch.append(more)
            self._commit(batch)
            if closing:
                return

    def _commit(self, batch: list[tuple[Job[Any], Future[Any], bool]]) -> None:
        """One transaction for the batch; a job that fails takes back only its own changes."""
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
                    if not self._writer.in_transaction:  # a full disk makes SQLite take the whole batch back
                        raise
                    self._writer.execute("ROLLBACK TO job")
                    outcomes.append((future, None, error))
                self._writer.execute("RELEASE job")
            self._writer.execute("COMMIT")
        except BaseException as error:  # whatever it is, this thread goes on and every caller hears of it
            with suppress(sqlite3.Error):
                self._writer.execute("ROLLBACK")
            outcomes = [(future, None, error) for _, future, _ in batch]
        for future, result, failure in outcomes:
            with suppress(InvalidStateError):  # its caller gave up in the meantime
                if failure is None:
                    future.set_result(result)
                else:
                    future.set_exception(failure)


def _open(path: Path) -> sqlite3.Connection:
    """A connection to a database of the newest shape; one that cannot be read is set aside and built anew."""
    try:
        return _migrated(path)
    except sqlite3.DatabaseError as error:
        if isinstance(error, sqlite3.OperationalError) or not path.exists():
            raise
        aside = path.with_name(f"{path.name}.broken-{int(time.time())}")
        logger.error(
            "%s cannot be read; it is kept as %s and built anew from the skills' folders", path.name, aside.name
        )
        path.rename(aside)
        for suffix in ("-wal", "-shm"):
            path.with_name(path.name + suffix).unlink(missing_ok=True)
        return _migrated(path)


def _migrated(path: Path) -> sqlite3.Connection:
    _keep_private(path)
    connection = _connect(path)
    try:
        connection.execute("PRAGMA journal_mode = WAL")
        _migrate(connection)
        _check(connection)
    except BaseException:
        connection.close()
        raise
    return connection


def _keep_private(path: Path) -> None:
    """It may hold what was said in chats: for its owner only, and so are the files that SQLite puts beside it."""
    with suppress(OSError):  # whatever is wrong with the place, SQLite says it better
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, PRIVATE))
        for suffix in ("", "-wal", "-shm"):
            with suppress(FileNotFoundError):
                path.with_name(path.name + suffix).chmod(PRIVATE)


class _DamagedError(sqlite3.DatabaseError):
    """The file opens, but is not whole."""


def _check(connection: sqlite3.Connection) -> None:
    """Damage beyond the first page shows only when that page is read, so read them all now."""
    verdict = connection.execute("PRAGMA quick_check(1)").fetchone()[0]
    if verdict != "ok":
        raise _DamagedError(verdict)
    with closing(sqlite3.connect(":memory:")) as blank:
        _migrate(blank)
        if missing := _schema_of(blank) - _schema_of(connection):
            raise _DamagedError(f"missing: {', '.join(sorted(missing))}")


def _schema_of(connection: sqlite3.Connection) -> set[str]:
    return {name for (name,) in connection.execute("SELECT name FROM sqlite_master")}


def _connect(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    try:
        connection.execute(f"PRAGMA busy_timeout = {BUSY_TIMEOUT_MS}")
        connection.execute("PRAGMA synchronous = NORMAL")
        connection.execute("PRAGMA foreign_keys = ON")
        connection.execute("PRAGMA secure_delete = ON")  # what is deleted or moved is overwritten, not only let go
    except BaseException:
        connection.close()
        raise
    return connection


def _migrate(connection: sqlite3.Connection) -> None:
    """Apply every numbered migration that this file has not seen, also one that came after a higher number."""
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    known = _migrations()
    if version > known[-1][0]:
        raise ServerError(
            "The data directory was written by a newer version of apexbridge; update, or name another directory.",
            code="NOT_READY",
        )
    seen = _seen(connection, version)
    for number, statements in known:
        if number not in seen:
            version = max(version, number)
            noted = f"INSERT INTO migrations VALUES ({number});\nPRAGMA user_version = {version};"  # noqa: S608
            connection.executescript(f"BEGIN;\n{statements}\n{noted}\nCOMMIT;")


def _seen(connection: sqlite3.Connection, version: int) -> set[int]:
    """The numbers that were applied; a file from before they were written down has all up to its version."""
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
