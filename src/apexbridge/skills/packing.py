"""Folders as ZIP archives: to install one, to export one."""

import os
import stat
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from apexbridge.errors import InvalidArchiveError, RequestError
from apexbridge.skills.models import MARKER_FILE
from apexbridge.skills.paths import is_text

_SKIPPED_FOLDERS = {".git", ".hg", ".svn", "node_modules", "__pycache__", ".venv"}
_DATE = (1980, 1, 1, 0, 0, 0)
"""Of every entry, so that the same content makes the same archive."""
_SKIPPED_FILES = {MARKER_FILE, ".DS_Store", "Thumbs.db"}


def pack_folder(folder: Path, target: IO[bytes], *, name: str | None = None, keep_everything: bool = False) -> None:
    """Write a folder as a ZIP with one top folder.

    Version control, caches and `node_modules` are left out, unless everything is to be kept. Links are followed
    inside the folder.

    Raises:
        InvalidArchiveError: UNSAFE_ENTRY for a link that leads out, or something that is no file.
        RequestError: the folder is not there.
    """
    if not folder.is_dir():
        raise RequestError(f"No such folder: {folder.name}", code="FILE_NOT_FOUND")
    folder = folder.resolve()
    top = name or folder.name
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        for path, relative in _files(folder, "", keep_everything, above=(folder,)):
            _add(archive, path, f"{top}/{relative}")


def packed(folder: Path, name: str) -> IO[bytes]:
    """The whole folder as a ZIP in an unnamed file, positioned at its start; the caller closes it."""
    target = tempfile.TemporaryFile()  # noqa: SIM115
    try:
        pack_folder(folder, target, name=name, keep_everything=True)
    except BaseException:
        target.close()
        raise
    target.seek(0)
    return target


def _files(folder: Path, prefix: str, keep_everything: bool, above: tuple[Path, ...]) -> Iterator[tuple[Path, str]]:
    """The regular files below; `above` are the real folders on the way here, the first one the root."""
    for entry in sorted(os.scandir(folder), key=lambda entry: entry.name):
        path, relative = Path(entry.path), prefix + entry.name
        if not is_text(entry.name):
            raise _unsafe(ascii(relative), "its name is not UTF-8; rename it")
        real = path.resolve() if entry.is_symlink() else path
        if not real.is_relative_to(above[0]):
            raise _unsafe(relative, "a link that leads out of the folder; replace it by the file itself")
        if not real.exists():
            raise _unsafe(relative, "a link that leads nowhere; remove it")
        if real.is_dir():
            if real in above:
                raise _unsafe(relative, "a link to a folder that holds it")
            if keep_everything or entry.name not in _SKIPPED_FOLDERS:
                yield from _files(path, f"{relative}/", keep_everything, (*above, real))
        elif not real.is_file():
            raise _unsafe(relative, "not a regular file; remove it")
        elif entry.name not in _SKIPPED_FILES:
            yield path, relative


def _add(archive: zipfile.ZipFile, path: Path, name: str) -> None:
    info = zipfile.ZipInfo(name, _DATE)
    info.create_system = 3
    info.compress_type = zipfile.ZIP_DEFLATED
    info.external_attr = (stat.S_IFREG | (0o755 if path.stat().st_mode & 0o111 else 0o644)) << 16
    with path.open("rb") as source, archive.open(info, "w") as target:
        while piece := source.read(1024 * 1024):
            target.write(piece)


def _unsafe(relative: str, why: str) -> InvalidArchiveError:
    return InvalidArchiveError(f"Unsafe entry {relative}: {why}", code="UNSAFE_ENTRY", entry=relative)
