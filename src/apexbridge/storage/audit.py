"""The audit log: what was done to this server, by whom, in lines that nobody can change or take away unnoticed.

`audit.jsonl` holds the lines, the database where they end. A line is written before its act is answered, so whatever
was acknowledged can be found here.

A disk that takes no more lines does not stop the server: reading and running go on, and so does the answer to an act
that had begun. Its line waits in memory and goes first once there is room. Until then further acts are refused with
STORAGE_FULL before they change anything, because an act that leaves no trace is what this log is there to prevent.
"""

import asyncio
import logging
import os
import re
import sqlite3
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import anyio.to_thread

from apexbridge.errors import ServerError
from apexbridge.storage.chain import AuditReport, Head, walk
from apexbridge.storage.chainfile import appended, attached, is_at, lines_of, now
from apexbridge.storage.database import Database

AUDIT_FILE = "audit.jsonl"
MAX_TEXT = 300
"""Characters of any one value; what callers send can be of any length."""
REFUSALS_A_MINUTE = 60
"""Attempts that are written down one by one; above that they are counted, or strangers could fill the disk."""
MAX_WAITING = 10_000
_KEY = re.compile(r"apex_([0-9a-f]{8})_[\w-]+", re.ASCII)
logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Act:
    """One administrative act, or an attempt that was refused."""

    what: str
    """Such as `skills.install`."""
    who: str = ""
    """The id of the key; empty for whoever came without one."""
    target: str = ""
    detail: str | None = None
    content_hash: str | None = None
    outcome: int
    """The HTTP status."""
    request_id: str = ""
    omitted: int | None = None
    """Refused attempts before this one that were counted only."""


class AuditLog:
    """Writes acts down, many together, and tells whether all of them are still there."""

    def __init__(self, path: Path, database: Database) -> None:
        self._path = path
        self._database = database
        self._descriptor: int | None = None
        self._head = Head()
        self._waiting: list[tuple[dict[str, Any], asyncio.Future[None] | None]] = []
        self._unwritten: list[dict[str, Any]] = []
        self._writing: asyncio.Task[None] | None = None
        self._failure: Exception | None = None
        self._refusals = float(REFUSALS_A_MINUTE)
        self._refused_at = 0.0
        self._omitted = 0

    async def open(self) -> None:
        """Find the end of the log; a line that was cut off is told of, in the log itself too."""
        query = "SELECT count, hash, size FROM audit_head"
        rows = await self._database.read(lambda connection: connection.execute(query).fetchall())
        if rows:
            self._head = Head(count=rows[0][0], hash=rows[0][1], size=rows[0][2])
        self._start_writing()
        await self._written()

    async def close(self) -> None:
        """Write what is waiting."""
        if self._omitted:
            self._put(Act(what="access.refused", outcome=401, omitted=self._omitted), None)
        await self._written()
        if self._unwritten:
            logger.error("%s acts could not be written to the audit log", len(self._unwritten))
        self._detach()

    async def ready(self) -> None:
        """Make sure that an act can be written down; ask before it changes anything.

        Raises:
            ServerError: STORAGE_FULL.
        """
        if self._failure is None:
            return
        self._start_writing()
        await self._written()
        if self._failure is not None:
            raise ServerError(
                "The audit log cannot be written to, so nothing was changed. Free some space, or check the data "
                "directory's owner and mode, and try again.",
                code="STORAGE_FULL",
            ) from self._failure

    async def append(self, act: Act) -> None:
        """Write an act down; comes back when it is on the disk, or when the disk does not take it for now."""
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._put(act, done)
        await done

    def note_refusal(self, act: Act) -> None:
        """Write down an attempt that was refused; nobody waits for it."""
        now = asyncio.get_running_loop().time()
        refill = (now - self._refused_at) * REFUSALS_A_MINUTE / 60
        self._refusals, self._refused_at = min(float(REFUSALS_A_MINUTE), self._refusals + refill), now
        if self._refusals < 1 or self._failure is not None:
            self._omitted += 1
            return
        self._refusals -= 1
        self._put(replace(act, omitted=self._omitted or None), None)
        self._omitted = 0

    async def verify(self) -> AuditReport:
        """Walk the whole chain and name the first line that is not as it was written."""
        await self._written()
        try:
            with self._path.open("rb") as file:
                # Both at one moment: lines that are added while the walk goes on are none of its business.
                head, size = self._head, os.fstat(file.fileno()).st_size
                return await anyio.to_thread.run_sync(lambda: walk(lines_of(file, size), head))
        except FileNotFoundError:
            return walk((), self._head)

    # ------------------------------------------------------------------------------------------------- writing
    def _put(self, act: Act, done: asyncio.Future[None] | None) -> None:
        self._waiting.append((_fields(act), done))
        self._start_writing()

    def _start_writing(self) -> None:
        if self._writing is None or self._writing.done():
            self._writing = asyncio.get_running_loop().create_task(self._write_all())

    async def _written(self) -> None:
        while self._writing is not None and not self._writing.done():
            await asyncio.wait([self._writing])

    async def _write_all(self) -> None:
        """Write until nothing waits; whatever came while the disk was busy goes in one piece."""
        while True:
            batch, self._waiting = self._waiting, []
            lines = [*self._unwritten, *(fields for fields, _ in batch)]
            before = self._head
            try:
                head = await anyio.to_thread.run_sync(self._write, lines)
                self._failure, self._unwritten = None, []
                self._head = head
                if head != before:
                    await self._remember(head)
            except OSError as error:
                if self._failure is None:
                    logger.error("the audit log cannot be written to (%s); acts are refused until it can", error)
                self._failure, self._unwritten = error, lines[:MAX_WAITING]
            finally:
                for _, done in batch:
                    if done is not None and not done.done():
                        done.set_result(None)
            if not self._waiting:
                return

    def _write(self, acts: list[dict[str, Any]]) -> Head:
        """Append to the file; after any trouble with it, it is opened anew and looked at again."""
        if self._descriptor is not None and not is_at(self._path, self._descriptor):
            self._detach()
        if self._descriptor is None:
            flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
            descriptor = os.open(self._path, flags, 0o600)
            try:
                head = attached(descriptor, self._head)
            except BaseException:
                os.close(descriptor)
                raise
            self._descriptor, self._head = descriptor, head
        try:
            return appended(self._descriptor, self._head, acts) if acts else self._head
        except OSError:
            self._detach()
            raise

    def _detach(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    async def _remember(self, head: Head) -> None:
        """Where the file is ahead of what is remembered, the next start finds out by itself."""
        values = (head.count, head.hash, head.size)
        with suppress(sqlite3.Error):
            await self._database.write(
                lambda connection: connection.execute("INSERT OR REPLACE INTO audit_head VALUES (1, ?, ?, ?)", values)
            )


def masked(text: str) -> str:
    """Text that may have come from anybody, without a key in it and not too long."""
    return _KEY.sub(r"apex_\1_***", text)[:MAX_TEXT]


def _fields(act: Act) -> dict[str, Any]:
    told = {
        "time": now(),
        "who": act.who,
        "what": masked(act.what),
        "target": masked(act.target),
        "detail": masked(act.detail) if act.detail is not None else None,
        "contentHash": act.content_hash,
        "outcome": act.outcome,
        "requestId": masked(act.request_id),
        "omitted": act.omitted,
    }
    return {key: value for key, value in told.items() if value is not None}
