"""Makes backups of an open data directory, while others read and change it.

What changes is copied first, without a lock. Then commits of skills, changes of workspaces and rows of the audit log
wait, only as long as it takes to copy what has changed since then and to begin a snapshot of both databases.
"""

import shutil
import sqlite3
import uuid
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import ExitStack, asynccontextmanager, closing, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from apexbridge._tasks import in_thread
from apexbridge.backup.archive import Item, pack
from apexbridge.backup.contents import (
    CHANGED_TOGETHER,
    EARLIER_LOG,
    FORMAT,
    HEADER_FILE,
    PAST_REQUESTS_FILE,
    SECRETS_FILE,
    WORKSPACES,
    BackupHeader,
)
from apexbridge.backup.past_requests import past_requests_as_lines
from apexbridge.backup.staging import FolderCopy, bytes_below, items_of
from apexbridge.disk import Disk
from apexbridge.errors import ServerError
from apexbridge.retrieval.embedders.model import Floats
from apexbridge.retrieval.service import ToolRetrievalService
from apexbridge.retrieval.usage import UsagePair
from apexbridge.sandbox.launcher.removal import remove_tree
from apexbridge.skills.store.skill_store import SkillStore
from apexbridge.storage.audit import AUDIT_FILE, AuditLog
from apexbridge.storage.database import Database, copy_to
from apexbridge.storage.directory import DATABASE_FILE, storage_faults
from apexbridge.workspaces.workspaces import Workspaces

RUN_IDS = "SELECT id FROM runs"
_INTERNAL = (".staging", ".trash", ".versions", ".apex-", ".probe-")
"""Prefixes of folders in `skills/` that are not skills."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Backup:
    """A backup that is ready to be written."""

    header: BackupHeader
    chunks: Iterator[bytes]
    """Blocking; to be read once, within the block that made it."""


class Backups:
    def __init__(
        self,
        data_dir: Path,
        *,
        version: str,
        database: Database,
        audit: AuditLog,
        store: SkillStore,
        workspaces: Workspaces,
        retrieval: ToolRetrievalService,
        disk: Disk,
    ) -> None:
        self._data_dir = data_dir
        self._version = version
        self._database = database
        self._audit = audit
        self._store = store
        self._workspaces = workspaces
        self._retrieval = retrieval
        self._disk = disk
        self._is_running = False

    @asynccontextmanager
    async def prepared(self, *, secrets: bool) -> AsyncIterator[Backup]:
        """A backup of this moment. `secrets` are left out unless they are asked for.

        Raises:
            ServerError: BUSY, another backup is being made; STORAGE_FULL.
        """
        if self._is_running:
            raise ServerError("Another backup is being made; try again when it is done.", code="BUSY")
        self._is_running = True
        stack = ExitStack()
        try:
            with storage_faults():
                backup = await self._prepare(stack, secrets=secrets)
            yield backup
        finally:
            self._is_running = False
            await in_thread(stack.close)
            await self._database.erase()  # rows that were deleted meanwhile are still in the WAL file

    async def _prepare(self, stack: ExitStack, *, secrets: bool) -> Backup:
        past = await self._retrieval.past_use()
        async with self._store.gate.working():
            stage = self._store.library.staging / f"backup-{uuid.uuid4().hex}"
            stack.callback(remove_tree, str(stage))
            copies = _Copies(self._data_dir, self._store, stage)
            await in_thread(self._begin, copies, stack)
            async with self._store.unchanged(), self._workspaces.unchanged(), self._audit.paused():
                snapshots, workspaces = await in_thread(self._finish, copies, stack, secrets)
        return await in_thread(self._ready, copies, snapshots, workspaces, past)

    def _begin(self, copies: "_Copies", stack: ExitStack) -> None:
        claim = stack.enter_context(self._disk.claim("", copies.stage.parent))
        claim.take(copies.bytes_needed())
        copies.stage.mkdir(mode=0o700)
        copies.begin()
        claim.wrote()

    def _finish(self, copies: "_Copies", stack: ExitStack, secrets: bool) -> tuple["_Snapshots", dict[str, Path]]:
        """What has to be done while nothing changes."""
        snapshots = _Snapshots(main=stack.enter_context(closing(self._database.snapshot())))
        try:
            snapshots.audit = stack.enter_context(closing(self._audit.snapshot()))
        except (OSError, sqlite3.Error) as error:
            copies.left_out.append(f"{AUDIT_FILE} ({error})")
        with self._store.library.unchanged():
            copies.finish(secrets=secrets)
        return snapshots, self._workspaces.acquire_all(stack)

    def _ready(
        self,
        copies: "_Copies",
        snapshots: "_Snapshots",
        workspaces: dict[str, Path],
        past: Sequence[tuple[UsagePair, Floats]],
    ) -> Backup:
        copy_to(snapshots.main, copies.stage / DATABASE_FILE)
        if snapshots.audit is not None:
            copy_to(snapshots.audit, copies.stage / AUDIT_FILE)
        with (copies.stage / PAST_REQUESTS_FILE).open("xb") as file:
            file.writelines(past_requests_as_lines(self._retrieval.embedder, past))
        runs = {id for (id,) in snapshots.main.execute(RUN_IDS)}
        (schema,) = snapshots.main.execute("PRAGMA user_version").fetchone()
        (skills,) = snapshots.main.execute("SELECT count(*) FROM skills WHERE state = 'live'").fetchone()
        header = BackupHeader(
            format=FORMAT,
            id=uuid.uuid4().hex,
            version=self._version,
            schema_version=schema,
            created_at=datetime.now(UTC),
            skills=skills,
            bytes=bytes_below(copies.stage) + sum(map(bytes_below, workspaces.values())),
            has_secrets=(copies.stage / SECRETS_FILE).exists(),
            embedder=self._retrieval.embedder,
            left_out=tuple(copies.all_left_out()),
        )
        items = _items(copies.stage, workspaces, is_run=runs.__contains__)
        return Backup(header=header, chunks=pack(header, items, copies.stage))


@dataclass(slots=True, kw_only=True)
class _Snapshots:
    """Connections that see the databases at the moment of the backup."""

    main: sqlite3.Connection
    audit: sqlite3.Connection | None = None


class _Copies:
    """Copies of everything that changes, in a folder that the next start removes after a crash."""

    def __init__(self, data_dir: Path, store: SkillStore, stage: Path) -> None:
        self.stage = stage
        self.left_out: list[str] = []
        self._data_dir = data_dir
        library = store.library
        own = library.skills.absolute() == (data_dir / "skills").absolute()
        versions = library.versions.folder if own else data_dir / "versions"
        trash = library.trash if own else data_dir / "trash"
        # A link changes the ctime of a file, by which edits of skills are detected.
        self._skills = FolderCopy(data_dir / "skills", stage / "skills", links=False, is_included=_is_skill)
        self._others = [
            FolderCopy(versions, stage / "versions", links=True),
            FolderCopy(library.plugins.folder, stage / "plugins", links=False),
            FolderCopy(trash, stage / "trash", links=True),
            FolderCopy(data_dir / "uploads", stage / "uploads", links=True, is_included=_is_upload),
            FolderCopy(data_dir / "workspace", stage / "workspace", links=True),
        ]
        self._runs = FolderCopy(data_dir / "runs", stage / "runs", links=True)
        self._answered = FolderCopy(data_dir / "answered", stage / "answered", links=False)

    def bytes_needed(self) -> int:
        databases = (DATABASE_FILE, f"{DATABASE_FILE}-wal", AUDIT_FILE, f"{AUDIT_FILE}-wal")
        copied = bytes_below(self._data_dir / "skills") + bytes_below(self._data_dir / "answered")
        return copied + sum(_size(self._data_dir / name) for name in databases)

    def begin(self) -> None:
        for copy in (self._skills, *self._others, self._runs):
            copy.begin()

    def finish(self, *, secrets: bool) -> None:
        for copy in (self._skills, *self._others):
            copy.finish()
        # A run that was deleted a moment ago may be in the snapshot of the database.
        self._runs.finish(keep=True)
        self._answered.finish()
        logs = [path.name for path in self._data_dir.iterdir() if EARLIER_LOG.match(path.name)]
        for name in (*CHANGED_TOGETHER, *logs, *([SECRETS_FILE] if secrets else [])):
            with suppress(FileNotFoundError):
                shutil.copyfile(self._data_dir / name, self.stage / name, follow_symlinks=False)
                (self.stage / name).chmod(0o600)

    def all_left_out(self) -> list[str]:
        found = [path for copy in (self._skills, *self._others, self._runs) for path in copy.left_out]
        return [*self.left_out, *sorted(set(found))]


def _items(stage: Path, workspaces: dict[str, Path], *, is_run: Callable[[str], bool]) -> Iterator[Item]:
    for path in sorted(stage.iterdir()):
        if path.is_dir():
            yield from items_of(path, path.name, is_included=is_run if path.name == "runs" else lambda name: True)
        elif path.name != HEADER_FILE:
            yield Item(path.name, path)
    if workspaces:
        yield Item(WORKSPACES, stage, is_folder=True)
        for id, generation in sorted(workspaces.items()):
            if generation.is_dir():
                yield Item(f"{WORKSPACES}/{id}", generation.parent, is_folder=True)
                yield from items_of(generation, f"{WORKSPACES}/{id}/{generation.name}")


def _is_skill(name: str) -> bool:
    return not name.startswith(_INTERNAL)


def _is_upload(name: str) -> bool:
    return not name.startswith("new-")


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0
