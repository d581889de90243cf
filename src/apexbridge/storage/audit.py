"""The audit log: one row per administrative act, in a SQLite file of its own that is never rebuilt.

Each row holds the hash of the row before it, so a row that was changed, removed or inserted breaks the chain. The end
of the chain (the head) is also in the main database, so a log that was cut, replaced or extended is found as well.

Two files cannot be committed together. Acts are therefore announced first: they are synced to the main database, then
to the log. After a crash the log ends either before or after the announced rows, and missing ones are added. An act is
answered after its row is on the disk.

If the log cannot be written, the server keeps running: the row of an act that has already begun waits in memory, and
further acts are refused with STORAGE_FULL before they change anything.
"""

import asyncio
import errno
import hashlib
import json
import logging
import os
import sqlite3
import stat
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, closing, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from apexbridge._tasks import in_thread, start_shared
from apexbridge._text import without_keys
from apexbridge.disk import Ballast
from apexbridge.errors import ServerError
from apexbridge.storage.database import BUSY_TIMEOUT_MS, Database, connect

AUDIT_FILE = "audit.sqlite3"
EARLIER_FILES = "audit*.jsonl"
"""Logs of earlier versions. They are left as they are; the first rows of a new log hold their hashes."""
GENESIS = "0" * 64
"""The `prev` of the first row."""
MAX_TEXT = 300
"""Characters of any one value; what callers send can be of any length."""
REFUSALS_A_MINUTE = 60
"""Refused attempts that get a row of their own; the others are only counted, so that they cannot fill the disk."""
MAX_WAITING = 10_000
RESERVE_BYTES = 256 * 1024
"""Free space without which no act is begun: its row, and what the main database needs to announce it."""
ACT_BYTES = 4 * 1024 * 1024
"""Free space below which the ballast is released: the act itself also needs some disk space."""
DAMAGED = "audit.damaged"
"""The log did not end with the row it should end with. The chain goes on from the row that the main database names."""
ANCHORED = "audit.anchored"
"""The main database was lost and did not know where the log ends. The rows before were accepted as they were."""
EARLIER = "audit.earlier"
"""A log of an earlier version was found when this one was created."""
RESTORED = "backup.restore"
"""The data directory was restored from a backup, which `target` names."""
_IS_RESTORED = f'"what":"{RESTORED}"'
_SETUP = (
    f"PRAGMA busy_timeout = {BUSY_TIMEOUT_MS}",
    "PRAGMA journal_mode = WAL",  # one sync for each commit, and readers never wait
    "PRAGMA synchronous = FULL",
    "CREATE TABLE IF NOT EXISTS audit"
    " (seq INTEGER PRIMARY KEY, act TEXT NOT NULL, prev TEXT NOT NULL, hash TEXT NOT NULL)",
    "CREATE TRIGGER IF NOT EXISTS audit_no_update BEFORE UPDATE ON audit BEGIN SELECT RAISE(ABORT, 'append-only'); END",
    "CREATE TRIGGER IF NOT EXISTS audit_no_delete BEFORE DELETE ON audit BEGIN SELECT RAISE(ABORT, 'append-only'); END",
)
_ROWS = "SELECT seq, act, prev, hash FROM audit ORDER BY seq"
_LAST = "SELECT seq, hash FROM audit ORDER BY seq DESC LIMIT 1"
_ANCHOR = "INSERT OR REPLACE INTO audit_head (id, count, hash, pending) VALUES (1, ?, ?, ?)"
logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Act:
    """One administrative act, or an attempt that was refused."""

    what: str
    """Such as `skills.install`."""
    who: str = ""
    """The id of the API key; empty if the request had none."""
    target: str = ""
    detail: str | None = None
    content_hash: str | None = None
    outcome: int
    """The HTTP status."""
    request_id: str = ""
    omitted: int | None = None
    """Refused attempts before this one that were only counted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditReport:
    """The result of a verification."""

    intact: bool
    count: int
    """Sound rows, up to the first that is not."""
    row: int | None = None
    """The `seq` of the first row that is broken or missing."""
    problem: str | None = None
    restored_at: str | None = None
    """When the data directory was last restored from a backup. Rows that followed the backup are not in the log."""


class Head(NamedTuple):
    """Where a chain ends."""

    seq: int = 0
    hash: str = GENESIS


class Row(NamedTuple):
    seq: int
    act: str
    """JSON in ASCII, so no value of a request can contain a line break."""
    prev: str
    hash: str


class AuditLog:
    """Writes acts, many in one commit, and verifies the chain."""

    def __init__(self, path: Path, database: Database, *, ballast: Ballast | None = None) -> None:
        """`database` is the main one, which keeps the head. `ballast` is released when the disk is full."""
        self._path = path
        self._database = database
        self._ballast = ballast
        self._connection: sqlite3.Connection | None = None
        self._file: os.stat_result | None = None
        """The open file, to notice if another one takes its place."""
        self._head = Head()
        self._is_anchored = False
        """Whether the main database knows the head, at this moment or an earlier one."""
        self._is_head_recorded = False
        """Whether the main database knows that all rows are written."""
        self._lock = asyncio.Lock()
        """Held while rows are written, and while a verification takes its snapshot."""
        self._waiting: list[tuple[str, asyncio.Future[None] | None]] = []
        self._unwritten: list[str] = []
        self._writing: asyncio.Task[None] | None = None
        self._failure: Exception | None = None
        self._refusals = float(REFUSALS_A_MINUTE)
        self._refused_at = 0.0
        self._omitted = 0
        self.last_report: AuditReport | None = None
        """The result of the last verification since the start."""

    async def open(self) -> None:
        """Open the file, compare its end with the main database, and add rows that a crash kept from the file."""
        known = await self._database.row("SELECT count, hash, pending FROM audit_head")
        if known is not None:
            self._head, self._is_anchored = Head(*known[:2]), True
            self._unwritten = known[2].splitlines()
            self._is_head_recorded = not self._unwritten
        self._start_writing()
        await self._written()

    @asynccontextmanager
    async def paused(self) -> AsyncIterator[None]:
        """No row is written during the block, so the log and what the main database knows of it agree."""
        async with self._lock:
            yield

    async def close(self) -> None:
        """Write the rows that are waiting, and close the file."""
        if self._omitted:
            self._put(Act(what="access.refused", outcome=401, omitted=self._omitted))
        await self._written()
        if self._unwritten:
            logger.error("%s acts could not be written to the audit log", len(self._unwritten))
        await asyncio.to_thread(self._close_file)

    async def ready(self) -> None:
        """Check that an act can be written. Call it before the act changes anything.

        Raises ServerError (STORAGE_FULL).
        """
        folder = self._path.parent
        if self._ballast is not None:
            if not _has_space(folder, ACT_BYTES):
                self._ballast.release()
            elif self._ballast.is_released:
                await in_thread(self._ballast.fill)
        if self._failure is None and self._is_in_place and _has_space(folder):
            return
        await self._written()
        self._start_writing()  # opens the file again if necessary
        await self._written()
        failure = self._failure
        if failure is None and not _has_space(folder):
            failure = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        if failure is not None:
            raise ServerError(
                f"Refused, and nothing was changed: every administrative act needs a row in the audit log, and "
                f"{self._path.name} cannot be written now ({_reason(failure)}). Free some space outside of this "
                "server, or check the owner and mode of the data directory, and try again. Reading and running go on.",
                code="STORAGE_FULL",
            ) from failure

    async def append(self, act: Act) -> None:
        """Write an act. Returns when its row is on the disk, or when the disk does not take it for now."""
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._put(act, done)
        await done

    async def note_restore(self, *, target: str, detail: str) -> None:
        """Write that the data directory was restored from a backup."""
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((_json(RESTORED, target=target, detail=detail), done))
        self._start_writing()
        await done
        if self._failure is not None:
            raise self._failure

    def note_refusal(self, act: Act) -> None:
        """Write an attempt that was refused, without waiting for it."""
        now = asyncio.get_running_loop().time()
        refill = (now - self._refused_at) * REFUSALS_A_MINUTE / 60
        self._refusals, self._refused_at = min(float(REFUSALS_A_MINUTE), self._refusals + refill), now
        if self._refusals < 1 or self._failure is not None:
            self._omitted += 1
            return
        self._refusals -= 1
        self._put(replace(act, omitted=self._omitted or None))
        self._omitted = 0

    async def verify(self) -> AuditReport:
        """Check every row and the end of the chain, and report the first row that is not as it was written."""
        self.last_report = await self._verify()
        return self.last_report

    async def page(
        self, *, page: int, limit: int, action: str | None = None, actor: str | None = None
    ) -> tuple[list[dict[str, Any]], int]:
        """Rows as `exported` has them, the newest first, and how many there are. Raises ServerError (NOT_READY)."""
        try:
            return await in_thread(_page, self._path, (page - 1) * limit, limit, action, actor)
        except (OSError, sqlite3.Error) as error:
            raise ServerError(f"The audit log cannot be read ({_reason(error)}).", code="NOT_READY") from error

    async def _verify(self) -> AuditReport:
        async with self._lock:  # no row may be added between reading the head and taking the snapshot
            head = self._head
            try:
                snapshot = await in_thread(self.snapshot)
            except (OSError, sqlite3.Error) as error:
                problem = f"{self._path.name} cannot be read ({_reason(error)})"
                return AuditReport(intact=False, count=0, row=1, problem=problem)
        with closing(snapshot):
            return await in_thread(_verified, snapshot, head)

    # ------------------------------------------------------------------------------------------------- writing
    def _put(self, act: Act, done: asyncio.Future[None] | None = None) -> None:
        self._waiting.append((_json_of(act), done))
        self._start_writing()

    def _start_writing(self) -> None:
        if self._writing is None or self._writing.done():
            self._writing = start_shared(self._write_all())

    async def _written(self) -> None:
        while self._writing is not None and not self._writing.done():
            await asyncio.wait([self._writing])

    async def _write_all(self) -> None:
        """Write until nothing waits. Acts that arrive while the disk is busy share the next commit."""
        while True:
            batch, self._waiting = self._waiting, []
            self._unwritten = [*self._unwritten, *(act for act, _ in batch)][:MAX_WAITING]
            try:
                async with self._lock:
                    await self._write()
                self._failure = None
            except (OSError, sqlite3.Error) as error:
                if self._failure is None:
                    logger.error("the audit log cannot be written (%s); acts are refused until it can", error)
                self._failure = error
            finally:
                for _, done in batch:
                    if done is not None and not done.done():
                        done.set_result(None)
            if not self._waiting and self._failure is None:
                await self._record_head()
            if not self._waiting:
                return

    async def _write(self) -> None:
        """Announce acts in the main database, then add their rows. Also completes what a crash or an error cut off."""
        if not self._is_in_place:
            await asyncio.to_thread(self._open_file)
        last = self._last_row()  # one row from the page cache, quicker than another thread
        if not self._is_anchored:
            notes = await asyncio.to_thread(_first_notes, self._path.parent, last)
            self._unwritten = [*notes, *self._unwritten]
            self._head, self._is_anchored = last, True
        head, acts = self._head, self._unwritten
        rows = _chained(head, acts)
        ends = [head, *(Head(row.seq, row.hash) for row in rows)]
        if last not in ends:
            logger.error("the audit log does not end where this server left it; see: apex audit verify")
            # If the numbers alone disagree, the hash would fit, and the disagreement would not be found later.
            head = Head(max(head.seq, last.seq), head.hash if head.hash != last.hash else "")
            detail = f"expected the end at row {self._head.seq}, found it at row {last.seq}"
            rows = _chained(head, [_json(DAMAGED, detail=detail), *acts])
            ends = [last, *(Head(row.seq, row.hash) for row in rows)]
        if missing := rows[ends.index(last) :]:
            await self._anchor(head, [row.act for row in rows], durable=True)
            await asyncio.to_thread(self._insert, missing)
        self._head, self._unwritten = ends[-1], []

    async def _record_head(self) -> None:
        """Record in the main database that all rows are written. If that fails, the next start finds them there."""
        if not self._is_head_recorded:
            with suppress(sqlite3.Error):
                await self._anchor(self._head, [], durable=False)
                self._is_head_recorded = True

    async def _anchor(self, head: Head, pending: list[str], *, durable: bool) -> None:
        """Record the head and the acts that follow it.

        An announcement must be durable before its rows are, or after a power loss they would look inserted.
        """
        self._is_head_recorded = False
        values = (*head, "\n".join(pending))
        await self._database.write(lambda connection: connection.execute(_ANCHOR, values), durable=durable)

    # ------------------------------------------------------------------------------------------------- the file
    @property
    def _is_in_place(self) -> bool:
        """Whether the path still names the open file."""
        try:
            found = self._path.lstat()
        except OSError:
            return False
        return self._file is not None and os.path.samestat(found, self._file) and found.st_size > 0

    def _open_file(self) -> None:
        self._close_file()
        self._connection = _connect(self._path)
        self._file = self._path.lstat()

    def _close_file(self) -> None:
        if self._connection is not None:
            self._connection.close()
        self._connection = self._file = None

    def _last_row(self) -> Head:
        assert self._connection is not None  # noqa: S101  # the file is in place
        last = Head(*self._connection.execute(_LAST).fetchone() or ())
        return last if isinstance(last.seq, int) else Head(0, "")  # the table was replaced by one of another shape

    def _insert(self, rows: Sequence[Row]) -> None:
        connection = self._connection
        assert connection is not None  # noqa: S101  # the file is in place
        with connection:  # commits, or rolls back after an error
            connection.execute("BEGIN IMMEDIATE")
            connection.executemany("INSERT INTO audit VALUES (?, ?, ?, ?)", rows)

    def snapshot(self) -> sqlite3.Connection:
        """A connection that sees the rows of this moment. Raises OSError or sqlite3.Error.

        A new one: the pages that the other one remembers would hide a change to the file.
        """
        _check_kind(self._path)
        if self._file is not None and not self._is_in_place:  # SQLite would combine it with the journal of the other
            raise OSError(errno.ESTALE, "it is not the file that this server wrote")
        return _reader(self._path)


def exported(path: Path) -> Iterator[dict[str, Any]]:
    """Every row as it is in the file, whether the log is intact or not. A server may use the file meanwhile."""
    with closing(_reader(path)) as connection:
        yield from map(_exported_row, connection.execute(_ROWS))


def _page(
    path: Path, offset: int, limit: int, action: str | None, actor: str | None
) -> tuple[list[dict[str, Any]], int]:
    filters = {"$.what": action, "$.who": actor}
    used = {field: value for field, value in filters.items() if value is not None}
    # A row that was damaged may not be JSON, for which json_extract fails.
    match = "CASE WHEN json_valid(act) THEN json_extract(act, ?) = ? END"
    source = f"FROM audit WHERE {' AND '.join(['TRUE', *[match] * len(used)])}"
    values = [text for pair in used.items() for text in pair]
    with closing(_reader(path)) as connection:
        (total,) = connection.execute(f"SELECT count(*) {source}", values).fetchone()
        query = f"SELECT seq, act, prev, hash {source} ORDER BY seq DESC LIMIT ? OFFSET ?"
        rows = connection.execute(query, [*values, limit, offset])
        return list(map(_exported_row, rows)), total


def _exported_row(row: Sequence[Any]) -> dict[str, Any]:
    seq, act, prev, digest = row
    try:
        fields = dict(json.loads(act))
    except (ValueError, TypeError, RecursionError):
        fields = {"act": str(act)}
    return {"seq": seq, **fields, "prev": prev, "hash": digest}


def masked(text: str) -> str:
    """Text of a request, without API keys and not too long."""
    return without_keys(text)[:MAX_TEXT]


def _connect(path: Path) -> sqlite3.Connection:
    with suppress(FileExistsError):
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    _check_kind(path)
    return connect(path, *_SETUP)


def _reader(path: Path) -> sqlite3.Connection:
    """A connection that sees the rows of this moment."""
    _check_kind(path)
    # Not mode=ro: the last connection to close removes the journal, and only one that may write can.
    return connect(f"{path.absolute().as_uri()}?mode=rw", "PRAGMA query_only = ON", "BEGIN", _LAST)


def _check_kind(path: Path) -> None:
    """Refuse a link, a folder, a pipe, a socket or a device. Raises OSError if it is not a file, or there is none."""
    mode = path.lstat().st_mode
    if not stat.S_ISREG(mode):
        kinds = {stat.S_IFLNK: "a link", stat.S_IFDIR: "a folder", stat.S_IFIFO: "a pipe", stat.S_IFSOCK: "a socket"}
        raise OSError(errno.EINVAL, f"it is {kinds.get(stat.S_IFMT(mode), 'a device')}, not a file")


def _digest(seq: int, act: str, prev: str) -> str:
    return hashlib.sha256(f"{seq}\n{prev}\n{act}".encode()).hexdigest()


def _chained(head: Head, acts: Sequence[str]) -> list[Row]:
    """The rows that follow a head."""
    rows = []
    prev = head.hash
    for seq, act in enumerate(acts, head.seq + 1):
        rows.append(Row(seq, act, prev, _digest(seq, act, prev)))
        prev = rows[-1].hash
    return rows


def _verified(connection: sqlite3.Connection, head: Head) -> AuditReport:
    """Follow the chain from the first row, and compare its end with the head."""
    end = Head()
    restored_at: str | None = None

    def broken(row: int, problem: str) -> AuditReport:
        return AuditReport(intact=False, count=row - 1, row=row, problem=problem)

    try:
        for seq, act, prev, digest in connection.execute(_ROWS):
            expected = end.seq + 1
            if seq != expected:
                return broken(expected, f"row {expected} is missing; the next one is row {seq}")
            if digest != _digest(seq, act, prev):
                return broken(seq, f"row {seq} was changed after it was written")
            if prev != end.hash:
                query = "SELECT seq + 1 FROM audit WHERE hash = ? AND seq < ?"
                first = (1,) if prev == GENESIS else connection.execute(query, (prev, seq)).fetchone()
                if first:
                    return broken(first[0], f"rows {first[0]} to {end.seq} were not written by this server")
                return broken(end.seq, f"row {end.seq} was replaced; row {seq} does not follow from it")
            end = Head(seq, digest)
            restored_at = _time_of_restore(act) or restored_at
    except sqlite3.Error as error:
        return broken(end.seq + 1, f"row {end.seq + 1} cannot be read ({error})")
    if end.seq < head.seq:
        return broken(end.seq + 1, f"rows {end.seq + 1} to {head.seq} are missing at the end")
    if end.seq > head.seq:
        return broken(head.seq + 1, f"rows {head.seq + 1} to {end.seq} were not written by this server")
    if end != head:
        return broken(end.seq, f"row {end.seq} is not the last row that was written; the log was replaced")
    return AuditReport(intact=True, count=end.seq, restored_at=restored_at)


def _time_of_restore(act: str) -> str | None:
    with suppress(ValueError, TypeError, KeyError):
        if _IS_RESTORED in act and "outcome" not in (fields := json.loads(act)):  # else it was a request
            return str(fields["time"])
    return None


def _first_notes(folder: Path, last: Head) -> list[str]:
    """The notes of a log whose end the main database does not know."""
    if last.seq:
        logger.warning("the database does not know where the audit log ends; its %s rows are accepted", last.seq)
        return [_json(ANCHORED, detail=f"{last.seq} rows")]
    notes = []
    for path in sorted(folder.glob(EARLIER_FILES)):
        with suppress(OSError), path.open("rb") as file:
            notes.append(_json(EARLIER, target=path.name, contentHash=hashlib.file_digest(file, "sha256").hexdigest()))
            logger.info("the audit log goes on in %s; %s is left as it is", AUDIT_FILE, path.name)
    return notes


def _json(what: str, **fields: object) -> str:
    time = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    known = {key: value for key, value in fields.items() if value is not None}
    return json.dumps({"time": time, "who": "", "what": what, **known}, separators=(",", ":"))


def _json_of(act: Act) -> str:
    return _json(
        masked(act.what),
        who=act.who,
        target=masked(act.target),
        detail=masked(act.detail) if act.detail is not None else None,
        contentHash=act.content_hash,
        outcome=act.outcome,
        requestId=masked(act.request_id),
        omitted=act.omitted,
    )


def _reason(error: Exception) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or str(error)


def _has_space(folder: Path, size: int = RESERVE_BYTES) -> bool:
    """Whether this much of the disk is free. If that is unknown, the write itself will show it."""
    try:
        disk = os.statvfs(folder)
    except OSError:
        return True
    free = disk.f_bfree if os.geteuid() == 0 else disk.f_bavail
    return not disk.f_blocks or free * disk.f_frsize >= size
