"""`apex backup` and `apex restore`."""

import fcntl
import os
import secrets as random
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from glob import escape
from pathlib import Path
from typing import Annotated, Any, BinaryIO

import typer

from apexbridge._fs import PRIVATE_FILE, sync_folder
from apexbridge.backup.archive import Checked
from apexbridge.backup.contents import BackupHeader
from apexbridge.backup.restore import check_backup, restore_backup
from apexbridge.disk import MB
from apexbridge.errors import InvalidInputError, ServerError
from apexbridge.settings import load_settings
from apexbridge.surfaces.cli.client import Api
from apexbridge.surfaces.cli.console import plural
from apexbridge.surfaces.cli.session import DataDir, Session, command

BACKUP_PATH = "/api/backup"
MAX_SHOWN = 20
app = typer.Typer(no_args_is_help=True, rich_markup_mode=None)
BackupFile = Annotated[Path, typer.Argument(metavar="FILE", help="The backup, such as apex-2026-01-02.backup.")]
Force = Annotated[bool, typer.Option("--force", help="Replace FILE if it exists.")]


@command(app, "backup")
def backup(
    session: Session,
    file: BackupFile,
    secrets: Annotated[bool, typer.Option("--secrets", help="Include the values of secrets, in plain text.")] = False,
    force: Force = False,
) -> None:
    """Write everything of the data directory that cannot be made again to one file, and check it.

    A server may run and change everything meanwhile.
    """
    if not file.parent.is_dir():
        raise InvalidInputError(f"{file.parent} is not a folder.")
    if not force and os.path.lexists(file):
        raise _exists(file)
    with _new_file(file) as (draft, opened):

        async def work(api: Api) -> None:
            with session.console.progress_bar("backing up") as progress:
                body = {"secrets": secrets}
                await api.receive("POST", BACKUP_PATH, opened, json=body, on_chunk=_Unpacked(progress).add)

        session.call(work, creates=False)
        opened.flush()
        os.fsync(opened.fileno())
        with session.console.progress_bar("checking") as progress:
            checked = check_backup(draft, progress)
        _put(draft, file, force=force)
        size = file.stat().st_size
    view = _view(checked.header, checked) | {"file": str(file), "fileBytes": size}
    if not session.show_json(view):
        session.console.say(
            f"{file} is written and checked: {plural(checked.header.skills, 'skill')}, {_shown_size(size)}. "
            f"Restore it with: apex restore {file}"
        )
        session.console.warn(_warnings(checked.header))


@command(app, "restore", connects=False)
def restore(
    session: Session,
    file: BackupFile,
    check: Annotated[
        bool, typer.Option("--check", help="Check FILE and show what it contains. Change nothing.")
    ] = False,
    force: Annotated[
        bool, typer.Option("--force", help="Move what is in the data directory aside, into a folder there.")
    ] = False,
    data_dir: DataDir = None,
) -> None:
    """Restore a backup to an empty or missing data directory, completely or not at all. No server may use it.

    Everything is checked before anything is changed.
    """
    if check:
        with session.console.progress_bar("checking") as progress:
            checked = check_backup(file, progress)
        if not session.show_json(_view(checked.header, checked)):
            _show(session, checked)
        return
    folder = load_settings(data_dir=data_dir).data_dir.absolute()
    with (
        session.console.progress_bar("checking") as checking,
        session.console.progress_bar("restoring") as copying,
    ):
        restored = restore_backup(file, folder, force=force, checking=checking, copying=copying)
    view = _view(restored.header) | {
        "dataDir": str(folder),
        "movedTo": str(restored.aside) if restored.aside else None,
        "warnings": list(restored.warnings),
    }
    if session.show_json(view):
        return
    made = f"{restored.header.created_at:%Y-%m-%d %H:%M:%S} UTC"
    session.console.say(f"{folder} is restored as it was at {made}: {plural(restored.header.skills, 'skill')}.")
    if restored.aside:
        session.console.say(f"What was there before is in {restored.aside}. Delete it when you no longer need it.")
    session.console.warn([*restored.warnings, *_warnings(restored.header)])
    session.console.say(_NOT_INCLUDED)


_NOT_INCLUDED = (
    "Packages of skills and added embedding models are not part of a backup. Install them again: apex skills deps "
    "NAME, apex packages install, apex models add. The search index is made again at the first start."
)


class _Unpacked:
    """Counts the bytes of a backup before compression, for a progress bar."""

    def __init__(self, progress: Callable[[int, int], None]) -> None:
        self._progress = progress
        self._unpacker = zlib.decompressobj(16 + zlib.MAX_WBITS)
        self._done = 0

    def add(self, chunk: bytes, size: str | None) -> None:
        with suppress(zlib.error):  # the check of the file will tell
            self._done += len(self._unpacker.decompress(chunk))
        if size and size.isdigit():
            self._progress(min(self._done, int(size)), int(size) + 1)


@contextmanager
def _new_file(file: Path) -> Iterator[tuple[Path, BinaryIO]]:
    """A new file beside `file`, which only its owner can read. It is removed unless it was renamed.

    Files that a killed command has left are removed first: they are not locked.
    """
    prefix = f".{file.name}."
    try:
        for left in file.parent.glob(f"{escape(prefix)}*.partial"):
            with suppress(OSError), left.open("rb") as found:
                fcntl.flock(found, fcntl.LOCK_EX | fcntl.LOCK_NB)
                left.unlink()
        draft = file.with_name(f"{prefix}{random.token_hex(6)}.partial")
        descriptor = os.open(draft, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, PRIVATE_FILE)
    except OSError as error:
        raise _cannot_write(file, error) from error
    try:
        with os.fdopen(descriptor, "w+b") as opened:
            fcntl.flock(opened, fcntl.LOCK_EX)
            yield draft, opened
    except OSError as error:
        raise _cannot_write(file, error) from error
    finally:
        draft.unlink(missing_ok=True)


def _put(draft: Path, file: Path, *, force: bool) -> None:
    """Give a complete backup its name. Without `force`, a file that appeared meanwhile is not replaced."""
    if not force:
        try:
            os.link(draft, file)
        except FileExistsError as error:
            raise _exists(file) from error
        except OSError:  # not every file system has links
            if os.path.lexists(file):
                raise _exists(file) from None
            draft.rename(file)
    else:
        draft.rename(file)
    sync_folder(file.parent)


def _exists(file: Path) -> ServerError:
    return ServerError(f"{file} exists already. Choose another name, or replace it with --force.", code="FILE_EXISTS")


def _cannot_write(file: Path, error: OSError) -> ServerError:
    return ServerError(f"{file} cannot be written: {error.strerror}. Nothing is left of it.", code="STORAGE_FULL")


def _view(header: BackupHeader, checked: Checked | None = None) -> dict[str, Any]:
    view: dict[str, Any] = header.model_dump(mode="json")
    if checked is not None:
        view |= {"entries": len(checked.entries), "bytes": checked.size}
    return view


def _show(session: Session, checked: Checked) -> None:
    header = checked.header
    counts: dict[str, list[int]] = {}
    for path, entry in checked.entries.items():
        part = counts.setdefault(path.partition("/")[0], [0, 0])
        part[0] += not entry.is_folder
        part[1] += entry.size
    session.console.facts(
        {
            "made": f"{header.created_at:%Y-%m-%d %H:%M:%S} UTC",
            "by": f"apexbridge {header.version}",
            "schema": header.schema_version,
            "skills": header.skills,
            "secrets": header.has_secrets,
            "embedding models": header.embedder,
        }
    )
    rows = [(name, files, _shown_size(size)) for name, (files, size) in sorted(counts.items())]
    session.console.table(("PART", "FILES", "SIZE"), rows)
    session.console.warn(_warnings(header))
    session.console.say("Every entry is complete and as it was backed up.", style="bold")


def _warnings(header: BackupHeader) -> list[str]:
    shown = [f"not in the backup: {name}" for name in header.left_out[:MAX_SHOWN]]
    more = len(header.left_out) - MAX_SHOWN
    return [*shown, *([f"and {more} more are not in the backup"] if more > 0 else [])]


def _shown_size(size: int) -> str:
    return f"{size / MB:,.1f} MB" if size >= MB else f"{-(-size // 1024)} KB"
