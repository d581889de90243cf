"""Restores a backup: checks all of it, builds a whole data directory beside the old content, then swaps both."""

import asyncio
import errno
import os
import shutil
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from apexbridge._fs import PRIVATE_FILE
from apexbridge._time import from_ms, now_ms
from apexbridge.backup.archive import BackupError, Checked, check, extract, printable
from apexbridge.backup.contents import FILES, PAST_REQUESTS_FILE, WORKSPACES, BackupHeader
from apexbridge.backup.past_requests import restore_past_requests
from apexbridge.disk import MB
from apexbridge.errors import InvalidInputError, ServerError
from apexbridge.sandbox.launcher.removal import remove_tree
from apexbridge.storage.audit import AUDIT_FILE, AuditLog
from apexbridge.storage.database import Database, check_database, newest_schema
from apexbridge.storage.directory import DATABASE_FILE, LOCK_FILE, PRIVATE, READ_BY_RUNS, owned, storage_faults
from apexbridge.storage.restore_plan import NEW_FOLDER, RESTORE_FOLDER, aside_name, commit_restore, entries_of

SPARE_BYTES = 64 * MB
"""Free space beyond the content of the backup: migrations, the index of past requests."""
INDEX_FOLDER = "skills.lance"
_STAYS = (LOCK_FILE, ".ballast", RESTORE_FOLDER)
_CURRENT = "current"
Progress = Callable[[int, int], None]
"""Called with the bytes that were read so far, and their number as far as it is known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Restored:
    header: BackupHeader
    size: int
    aside: Path | None
    """Where the earlier content is, if there was any."""
    warnings: tuple[str, ...]


def check_backup(path: Path, progress: Progress) -> Checked:
    """Read a backup to its end and check everything. Raises BackupError."""
    with _opened(path) as file:
        return _check(file, progress)


def restore_backup(path: Path, data_dir: Path, *, force: bool, checking: Progress, copying: Progress) -> Restored:
    """Restore a backup to a data directory. With `force`, what is in it moves aside.

    Raises:
        BackupError: the backup cannot be used. Nothing was changed, nor by the errors below.
        ServerError: DATA_DIR_IN_USE, DATA_DIR_NOT_EMPTY, STORAGE_FULL, NEWER_VERSION, MIGRATION_FAILED.
    """
    with _opened(path) as file:
        checked = _check(file, checking)
        existed = data_dir.is_dir()
        try:
            with owned(data_dir), storage_faults():
                return _restore(file, checked, data_dir, force=force, progress=copying)
        except BaseException:
            if not existed:
                _remove_new(data_dir)
            raise


def _restore(file: BinaryIO, checked: Checked, data_dir: Path, *, force: bool, progress: Progress) -> Restored:
    present = sorted(set(os.listdir(data_dir)) - {LOCK_FILE, RESTORE_FOLDER})  # noqa: PTH208  # names, not paths
    if present and not force:
        raise ServerError(
            f"{data_dir} is not empty. Nothing was changed. Name another directory with --data-dir, or move what is in "
            "it aside with --force.",
            code="DATA_DIR_NOT_EMPTY",
        )
    moved = [name for name in entries_of(data_dir, (*PRIVATE, *READ_BY_RUNS)) if not _stays(name)]
    for name in moved:
        if os.path.ismount(data_dir / name):
            raise InvalidInputError(
                f"{name} in {data_dir} is a file system of its own, so it cannot be moved aside. Nothing was changed. "
                "Restore to another directory, and move the files of each part to its place."
            )
    needed = checked.size + SPARE_BYTES
    if shutil.disk_usage(data_dir).free < needed:
        raise ServerError(
            f"The disk of {data_dir} has no {-(-needed // MB)} MB free, which the backup needs. Nothing was changed.",
            code="STORAGE_FULL",
        )
    folder = data_dir / RESTORE_FOLDER
    new = folder / NEW_FOLDER
    try:
        folder.mkdir(mode=0o700)
        new.mkdir(mode=0o700)
        extract(file, new, checked, lambda size: progress(size, checked.size))
        warnings = _complete(new, checked.header)
        aside = aside_name(f"{from_ms(now_ms()):%Y%m%dT%H%M%S.%f}")
        for name in FILES:
            with suppress(FileNotFoundError):
                (new / name).chmod(PRIVATE_FILE)
        os.sync()  # all of it at once: one by one, thousands of files take minutes
    except BaseException:
        remove_tree(str(folder))
        raise
    commit_restore(data_dir, moved_aside=moved, aside=aside)
    remove_tree(str(folder))
    return Restored(
        header=checked.header,
        size=checked.size,
        aside=data_dir / aside if moved else None,
        warnings=tuple(warnings),
    )


def _complete(new: Path, header: BackupHeader) -> list[str]:
    """Turn what a backup contains into a data directory of this release."""
    warnings = []
    for name in (DATABASE_FILE, AUDIT_FILE):
        if (new / name).exists() and (problem := check_database(new / name)):
            raise BackupError(f"The backup has a database that cannot be used: {name}: {problem}")
    _restore_workspaces(new / WORKSPACES)
    past = new / PAST_REQUESTS_FILE
    if past.exists():
        with past.open("rb") as file:
            if problem := restore_past_requests(file, new / INDEX_FOLDER):
                warnings.append(f"Past requests of search could not be restored: {problem}.")
        past.unlink()
    made = f"made at {header.created_at:%Y-%m-%dT%H:%M:%SZ} by apexbridge {printable(header.version)}"
    asyncio.run(_note_restore(new, target=header.id, detail=made))
    return warnings


async def _note_restore(new: Path, *, target: str, detail: str) -> None:
    """Migrate the database, if it is of an older release, and write the restore to the audit log."""
    database = Database(new / DATABASE_FILE)
    try:
        log = AuditLog(new / AUDIT_FILE, database)
        await log.open()
        try:
            await log.note_restore(target=target, detail=detail)
        finally:
            await log.close()
    finally:
        database.close()


def _restore_workspaces(folder: Path) -> None:
    """Each workspace has the folder of one generation, which becomes the current one."""
    for workspace in folder.iterdir() if folder.is_dir() else ():
        generations = list(workspace.iterdir())
        if len(generations) != 1 or not generations[0].name.startswith("generation-"):
            raise BackupError(f"The backup is damaged: the workspace {printable(workspace.name)} has no files.")
        (workspace / _CURRENT).symlink_to(generations[0].name)


def _check(file: BinaryIO, progress: Progress) -> Checked:
    total = os.fstat(file.fileno()).st_size
    checked = check(file, lambda size: progress(min(file.tell(), total), total))
    version = checked.header.schema_version
    if version > newest_schema():
        raise BackupError(
            f"The backup was made by a newer version of apexbridge, {printable(checked.header.version)}: its data have "
            f"schema {version}, and this version knows {newest_schema()}. Restore it with that version. Nothing was "
            "changed.",
            code="NEWER_VERSION",
        )
    if DATABASE_FILE not in checked.entries:
        raise BackupError(f"The backup is incomplete: it has no {DATABASE_FILE}.")
    return checked


def _opened(path: Path) -> BinaryIO:
    try:
        file = path.open("rb")
        if not path.is_file():  # a folder cannot be opened; a pipe cannot be read twice
            file.close()
            raise OSError(errno.EINVAL, "it is not a file")
    except OSError as error:
        raise InvalidInputError(f"{path} cannot be read: {error.strerror}") from error
    return file


def _stays(name: str) -> bool:
    return name in _STAYS or name.startswith(aside_name(""))


def _remove_new(data_dir: Path) -> None:
    """Remove a data directory that this restore has created and not filled."""
    with suppress(OSError):
        (data_dir / LOCK_FILE).unlink(missing_ok=True)
        data_dir.rmdir()
