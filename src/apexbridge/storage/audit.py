"""The audit log: what was done to this server, by whom, in lines that nobody can change or take away unnoticed.

`audit.jsonl` holds the lines, the database where they end. Lines are announced there first, so that after a crash our
own can be told from what somebody else added. A line is written before its act is answered, so whatever was
acknowledged can be found here.

A disk that takes no more lines does not stop the server: reading and running go on, and so does the answer to an act
that had begun. Its line waits in memory and goes first once there is room. Until then further acts are refused with
STORAGE_FULL before they change anything, because an act that leaves no trace is what this log is there to prevent.
"""

import asyncio
import errno
import logging
import os
import re
import sqlite3
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import anyio.to_thread

from apexbridge.disk import Ballast
from apexbridge.errors import ServerError
from apexbridge.storage.anchor import AnchorStore
from apexbridge.storage.chain import AuditReport, Walk, chained_all
from apexbridge.storage.chainfile import MAX_FILE_BYTES, Anchor, ChainFile, now
from apexbridge.storage.database import Database

AUDIT_FILE = "audit.jsonl"
MAX_TEXT = 300
"""Characters of any one value; what callers send can be of any length."""
REFUSALS_A_MINUTE = 60
"""Attempts that are written down one by one; above that they are counted, or strangers could fill the disk."""
MAX_WAITING = 10_000
RESERVE_BYTES = 256 * 1024
"""Free space without which no act is begun: its line, and what the database needs to announce it."""
ACT_BYTES = 4 * 1024 * 1024
"""Free space below which an act gets the room of the ballast: what acts change on the disk needs some, too."""
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

    def __init__(
        self,
        path: Path,
        database: Database,
        *,
        ballast: Ballast | None = None,
        max_file_bytes: int = MAX_FILE_BYTES,
    ) -> None:
        """`ballast` gives way when the disk is full."""
        self._ballast = ballast
        self._file = ChainFile(path, max_bytes=max_file_bytes)
        self._anchors = AnchorStore(database)
        self._anchor = Anchor()
        """What is to be found in the file, and what is still to be added to it."""
        self._stored = Anchor()
        """What the database was told last."""
        self._waiting: list[tuple[dict[str, Any], asyncio.Future[None] | None]] = []
        self._unwritten: list[dict[str, Any]] = []
        self._writing: asyncio.Task[None] | None = None
        self._failure: Exception | None = None
        self._is_starting = True
        self._refusals = float(REFUSALS_A_MINUTE)
        self._refused_at = 0.0
        self._omitted = 0

    async def open(self) -> None:
        """Find the end of the log; whatever is not as it was left is told of, in the log itself too."""
        self._anchor = self._stored = await self._anchors.load()
        self._start_writing()
        await self._written()

    async def close(self) -> None:
        """Write what is waiting."""
        if self._omitted:
            self._put(Act(what="access.refused", outcome=401, omitted=self._omitted), None)
        await self._written()
        if self._unwritten:
            logger.error("%s acts could not be written to the audit log", len(self._unwritten))
        self._file.detach()

    async def ready(self) -> None:
        """Make sure that an act can be written down; ask before it changes anything.

        Raises:
            ServerError: STORAGE_FULL.
        """
        if self._ballast is not None:
            if not _has_room(self._file.path.parent, ACT_BYTES):
                self._ballast.release()
            elif self._ballast.is_released:
                await anyio.to_thread.run_sync(self._ballast.fill)
        if self._failure is None and self._file.is_in_place and _has_room(self._file.path.parent):
            return
        await self._written()
        self._start_writing()  # which looks at the file first
        await self._written()
        failure = self._failure
        if failure is None and not _has_room(self._file.path.parent):
            failure = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        if failure is not None:
            why = failure.strerror if isinstance(failure, OSError) else str(failure)
            raise ServerError(
                f"Refused, and nothing was changed: every administrative act needs a line in the audit log, and that "
                f"cannot be written now ({why}). Free some space outside of this server, or check the owner and mode "
                "of the data directory, and try again. Reading and running go on.",
                code="STORAGE_FULL",
            ) from failure

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
        """Walk the whole chain and name the first line that is not as it was written.

        The end is compared with what the database knows, also if the file could not be opened. A log that is not a
        readable file is never intact.
        """
        await self._written()
        # Both at one moment: lines that are added while the walk goes on are none of its business.
        head, walk = self._anchor.head, Walk()
        with self._file.all_lines() as files:
            report = await anyio.to_thread.run_sync(walk.through, files) or walk.end(head)
        found = self._file.oddity()
        if found is None:
            return report
        problem = found if report.intact else f"{found}; {report.problem}"
        name = report.file or self._file.path.name
        return replace(report, intact=False, file=name, line=report.line or walk.number + 1, problem=problem)

    # ------------------------------------------------------------------------------------------------- writing
    def _put(self, act: Act, done: asyncio.Future[None] | None) -> None:
        self._waiting.append((_fields(act), done))
        self._start_writing()

    def _start_writing(self) -> None:
        if not self._is_writing:
            self._writing = asyncio.get_running_loop().create_task(self._write_all())

    @property
    def _is_writing(self) -> bool:
        return self._writing is not None and not self._writing.done()

    async def _written(self) -> None:
        while self._writing is not None and not self._writing.done():
            await asyncio.wait([self._writing])

    async def _write_all(self) -> None:
        """Write until nothing waits; whatever came while the disk was busy goes in one piece."""
        while True:
            batch, self._waiting = self._waiting, []
            self._unwritten = [*self._unwritten, *(fields for fields, _ in batch)][:MAX_WAITING]
            try:
                await self._write()
                self._failure = None
            except (OSError, sqlite3.Error) as error:
                if self._failure is None:
                    logger.error("the audit log cannot be written to (%s); acts are refused until it can", error)
                self._failure = error
            finally:
                for _, done in batch:
                    if done is not None and not done.done():
                        done.set_result(None)
            if not self._waiting and self._failure is None:
                await self._settle()
            if not self._waiting:
                return

    async def _write(self) -> None:
        """Announce lines in the database, then add them to the file; a crash in between leaves them to the next start.

        After any trouble with the file, it is opened anew and looked at again.
        """
        file = self._file
        if not file.is_attached:
            notes = await anyio.to_thread.run_sync(lambda: file.attach(self._anchor, at_start=self._is_starting))
            self._anchor, self._is_starting = Anchor(head=file.head), False
            self._unwritten = [*notes, *self._unwritten]
        if not self._unwritten:
            return
        if file.is_full:
            await self._settle()
            await anyio.to_thread.run_sync(file.put_aside)
        lines, after = chained_all(file.head, self._unwritten, first=file.first)
        await self._anchors.announce(file.head, lines)
        self._anchor = self._stored = Anchor(head=file.head, announced=lines)
        self._unwritten = []  # from here on the next start would write them, too
        await anyio.to_thread.run_sync(file.append, lines, after)
        self._anchor = Anchor(head=file.head)

    async def _settle(self) -> None:
        """Tell the database that all is written."""
        settled = Anchor(head=self._file.head)
        if self._stored != settled:
            await self._anchors.settle(settled.head)
            self._stored = settled


def _has_room(folder: Path, size: int = RESERVE_BYTES) -> bool:
    """Whether a line would fit onto the disk; where nobody can tell, it is tried."""
    try:
        disk = os.statvfs(folder)
    except OSError:
        return True
    free = disk.f_bfree if os.geteuid() == 0 else disk.f_bavail
    return not disk.f_blocks or free * disk.f_frsize >= size


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
