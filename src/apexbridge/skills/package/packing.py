"""Packs folders as ZIP archives, for install, export and discovery.

The same files give the same bytes: entries are sorted, with a fixed date, system and mode. Only another version of zlib
compresses differently.
"""

import io
import os
import stat
import tempfile
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, cast

from apexbridge.errors import InvalidArchiveError, InvalidSkillStructureError, RequestError
from apexbridge.skills import OWN_FILES, SKILL_FILE
from apexbridge.skills.package.archive import (
    MAX_ENTRIES,
    MAX_FILE_BYTES,
    MAX_RATIO,
    MAX_TOTAL_BYTES,
    MEGABYTE,
    RATIO_FREE_BYTES,
)
from apexbridge.skills.package.entry_names import MAX_DEPTH, SKIPPED_FOLDERS, is_skill_file, is_text
from apexbridge.skills.package.manifests import MARKETPLACE_MANIFEST, PLUGIN_MANIFEST

if TYPE_CHECKING:
    from apexbridge.disk import Claim, Disk

MAX_SCANNED = 100_000
"""Files and folders that are searched for skills."""
_DATE = (1980, 1, 1, 0, 0, 0)
"""Date of every entry, so that archives are reproducible."""
_SKIPPED_FILES = {*OWN_FILES, ".DS_Store", "Thumbs.db"}


def pack_folder(
    folder: Path,
    target: IO[bytes],
    *,
    name: str | None = None,
    keep_everything: bool = False,
    is_flat: bool = False,
) -> None:
    """Write a folder as a ZIP with one top folder: a skill whole, of a repository the skills and the manifests.

    Skips version control, caches and `node_modules`, unless `keep_everything` is true. Follows links inside the folder.
    With `is_flat`, there is no top folder: the SKILL.md of a skill is at the root of the archive.

    Raises:
        InvalidArchiveError: UNSAFE_ENTRY for a link out of the folder or a special file; ARCHIVE_TOO_LARGE.
        RequestError: FILE_NOT_FOUND, a file cannot be read.
    """
    with _reading(folder):
        folder = folder.resolve(strict=True)
        top = "" if is_flat else f"{name or folder.name}/"
        packer = _Packer(folder, keep_everything)
        with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
            if keep_everything or _skill_files(folder):
                for path, relative in packer.files(folder, ""):
                    _add(archive, path, f"{top}{relative}")
                return
            skills, manifests, links = _find_skills(folder)
            if not skills and not manifests:
                raise InvalidSkillStructureError([f"{SKILL_FILE} not found in {folder.name}"])
            for relative in manifests:
                packer.take(folder / relative, relative)
                _add(archive, folder / relative, f"{top}{relative}")
            for relative in links if manifests else ():
                _add_link(archive, f"{top}{relative}")
            for skill in skills:
                _add_skill(archive, packer, folder / skill, prefix=f"{skill}/", top=top)


def pack_file(path: Path, target: IO[bytes], *, name: str) -> None:
    """Write a single SKILL.md as a ZIP with one top folder. Raises RequestError: FILE_NOT_FOUND."""
    with _reading(path), zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        _Packer(path.parent, False).take(path, path.name)
        _add(archive, path, f"{name}/{path.name}")


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    try:
        yield
    except (OSError, RuntimeError) as error:  # before Python 3.13, a link loop raises RuntimeError
        reason = (error.strerror if isinstance(error, OSError) else None) or "a link that leads to itself"
        shown = getattr(error, "filename", None) or path
        raise RequestError(f"Cannot read {Path(os.fsdecode(shown)).name}: {reason}", code="FILE_NOT_FOUND") from error


def packed(folder: Path, name: str, *, staging: Path, disk: "Disk", caller: str, is_flat: bool = False) -> IO[bytes]:
    """The whole folder as a ZIP in an unnamed file below `staging`, positioned at its start; the caller closes it.

    The file counts against the caller's quota until it is closed.

    Raises:
        ServerError: STORAGE_FULL.
    """
    with ExitStack() as stack:
        claim = stack.enter_context(disk.claim(caller, staging))
        raw = cast(io.RawIOBase, stack.enter_context(tempfile.TemporaryFile(dir=staging, buffering=0)))
        target = _ClaimedFile(raw, claim, stack.pop_all())
    try:
        pack_folder(folder, cast(IO[bytes], target), name=name, keep_everything=True, is_flat=is_flat)
        target.seek(0)
        claim.wrote()
    except BaseException:
        target.close()
        raise
    return cast(IO[bytes], target)


class _ClaimedFile(io.BufferedRandom):
    """An unnamed file that claims disk space before each write, and releases it when closed."""

    def __init__(self, raw: io.RawIOBase, claim: "Claim", claims: ExitStack) -> None:
        self._claim = claim
        self._claims = claims
        super().__init__(raw)

    def write(self, data: Any, /) -> int:
        self._claim.take(len(data))
        return super().write(data)

    def close(self) -> None:
        try:
            super().close()
        finally:
            self._claims.close()


class _Packer:
    """Walks a folder within the limits of an archive, so that the walk ends even with many links."""

    def __init__(self, root: Path, keep_everything: bool) -> None:
        self._root = root
        self._keep_everything = keep_everything
        self.seen = {root}
        self._limits = PackLimits()

    def files(self, folder: Path, prefix: str) -> Iterator[tuple[Path, str]]:
        """Every regular file below `folder`, with its path in the archive."""
        for entry in sorted(os.scandir(folder), key=lambda entry: entry.name):
            path, relative = Path(entry.path), prefix + entry.name
            if not is_text(entry.name):
                raise _unsafe(ascii(relative), "its name is not UTF-8; rename it")
            real = path.resolve() if entry.is_symlink() else path
            if not real.is_relative_to(self._root):
                raise _unsafe(relative, "a link that leads out of the folder; replace it by the file itself")
            if not real.exists():
                raise _unsafe(relative, "a link that leads nowhere; remove it")
            if real.is_dir():
                yield from self._folder(path, real, relative)
            elif not real.is_file():
                raise _unsafe(relative, "not a regular file; remove it")
            elif entry.name not in _SKIPPED_FILES:
                self.take(real, relative)
                yield path, relative

    def _folder(self, path: Path, real: Path, relative: str) -> Iterator[tuple[Path, str]]:
        if not self._keep_everything and path.name in SKIPPED_FOLDERS:
            return
        if real in self.seen:
            raise _unsafe(relative, "a link to a folder that is packed already")
        self.seen.add(real)
        if relative.count("/") >= MAX_DEPTH:
            raise _unsafe(relative, f"deeper than {MAX_DEPTH} folders")
        yield from self.files(path, f"{relative}/")

    def take(self, real: Path, relative: str) -> None:
        self._limits.take(real.stat().st_size, relative)


class PackLimits:
    """Counts the files of an archive that is being written."""

    def __init__(self) -> None:
        self._count = 0
        self._bytes = 0

    def take(self, size: int, relative: str) -> None:
        """Count a file. Raises InvalidArchiveError: ARCHIVE_TOO_LARGE."""
        self._count += 1
        self._bytes += size
        if self._count > MAX_ENTRIES or self._bytes > MAX_TOTAL_BYTES or size > MAX_FILE_BYTES:
            limits = (
                f"{MAX_ENTRIES:,} files, {MAX_FILE_BYTES // MEGABYTE} MB each, {MAX_TOTAL_BYTES // MEGABYTE} MB in all"
            )
            raise InvalidArchiveError(
                f"Archive too large: {relative} ({size:,} bytes) is beyond what a package may hold ({limits})",
                code="ARCHIVE_TOO_LARGE",
                entry=relative,
            )


def _add_skill(archive: zipfile.ZipFile, packer: _Packer, folder: Path, *, prefix: str, top: str) -> None:
    """Add one skill of several. A link out of the package is added as a link, so that only this skill is left out."""
    packer.seen.clear()  # two skills may link to the same folder
    try:
        files = list(packer.files(folder, prefix))
    except InvalidArchiveError as error:
        if error.code != "UNSAFE_ENTRY":
            raise
        for name in _skill_files(folder)[:1]:
            _add(archive, folder / name, f"{top}{prefix}{name}")
        _add_link(archive, f"{top}{error.details['entry']}")
        return
    for path, relative in files:
        _add(archive, path, f"{top}{relative}")


def _add_link(archive: zipfile.ZipFile, name: str) -> None:
    """Add a link without its target: the reader refuses what depends on it."""
    link = zipfile.ZipInfo(name, _DATE)
    link.create_system, link.external_attr = 3, (stat.S_IFLNK | 0o777) << 16
    archive.writestr(link, b"")


def _skill_files(folder: Path) -> list[str]:
    with os.scandir(folder) as entries:
        return sorted(entry.name for entry in entries if is_skill_file(entry.name))


def _find_skills(folder: Path) -> tuple[list[str], list[str], list[str]]:
    """The topmost skill folders, the manifests and the links to folders of a repository, relative to it.

    Links are not followed.

    Raises:
        InvalidArchiveError: ARCHIVE_TOO_LARGE, more than `MAX_SCANNED` files and folders.
    """
    skills: list[str] = []
    manifests: list[str] = []
    links: list[str] = []
    scanned = 0
    for current, folders, files in os.walk(folder):
        scanned += len(folders) + len(files)
        if scanned > MAX_SCANNED:
            raise InvalidArchiveError(
                f"Archive too large: {folder.name} has more than {MAX_SCANNED:,} files; "
                "install the folder in it that contains the skills",
                code="ARCHIVE_TOO_LARGE",
            )
        relative = os.path.relpath(current, folder)
        path = Path(current)
        if relative != "." and any(is_skill_file(name) and not (path / name).is_symlink() for name in files):
            skills.append(Path(relative).as_posix())
            folders.clear()
            continue
        links += sorted(
            Path(os.path.relpath(path / name, folder)).as_posix() for name in folders if (path / name).is_symlink()
        )
        folders[:] = sorted(name for name in folders if name not in SKIPPED_FOLDERS)
        manifests += [
            f"{Path(relative).as_posix()}/{name}"
            for folder_name, name in (PLUGIN_MANIFEST, MARKETPLACE_MANIFEST)
            if path.name == folder_name and name in files and not (path / name).is_symlink()
        ]
    return skills, manifests, links


def _add(archive: zipfile.ZipFile, path: Path, name: str) -> None:
    add_file(archive, path.read_bytes(), name, executable=bool(path.stat().st_mode & 0o111))


def add_file(archive: zipfile.ZipFile, data: bytes, name: str, *, executable: bool) -> None:
    """Write one file into an archive, always as the same bytes."""
    info = zipfile.ZipInfo(name, _DATE)
    info.create_system = 3
    # Store files that compress too well: an install would reject them as a ZIP bomb.
    too_well = len(data) > RATIO_FREE_BYTES and len(zlib.compress(data)) * MAX_RATIO < len(data) * 1.1
    info.compress_type = zipfile.ZIP_STORED if too_well else zipfile.ZIP_DEFLATED
    info.external_attr = (stat.S_IFREG | (0o755 if executable else 0o644)) << 16
    archive.writestr(info, data)


def _unsafe(relative: str, why: str) -> InvalidArchiveError:
    return InvalidArchiveError(f"Unsafe entry {relative}: {why}", code="UNSAFE_ENTRY", entry=relative)
