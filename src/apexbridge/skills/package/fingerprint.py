"""Scans a skill's folder: its files, a signature that detects changes, and the hash of its content."""

import hashlib
import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from apexbridge.skills import MARKER_FILE, OWN_FILES
from apexbridge.skills.package.skill import PackageFile

MAX_FILES = 20_000
"""A folder with more files is not a skill; it may be a home directory."""
MAX_FOLDERS_DEEP = 64
READ_FORMAT = b"2"
"""Changes if more is read from a folder than before, so that known folders are read again."""


class FolderTooLargeError(Exception):
    """The folder has too many files, or is nested too deeply, for a skill."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FolderScan:
    """A scan of a folder with `stat`. No file is opened."""

    signature: str
    """Changes with the name, size, mode, inode or ctime of any file except those of this server."""
    marker: str
    """The signature of the marker alone; empty if missing."""
    stats: tuple[tuple[str, os.stat_result], ...]
    """Relative path and status of everything except folders and files of this server, sorted."""

    @property
    def files(self) -> list[PackageFile]:
        """Regular files only. Links and devices are never part of a skill."""
        return [
            PackageFile(path=path, size=status.st_size, executable=bool(status.st_mode & 0o111))
            for path, status in self.stats
            if stat.S_ISREG(status.st_mode)
        ]

    @property
    def size(self) -> int:
        """Total bytes of the regular files."""
        return sum(file.size for file in self.files)


def scan_folder(folder: Path) -> FolderScan:
    """Scan a folder.

    Raises:
        FolderTooLargeError: more than `MAX_FILES` files, or deeper than `MAX_FOLDERS_DEEP`.
        OSError: the folder cannot be read.
    """
    marker = ""
    stats: list[tuple[str, os.stat_result]] = []
    for path, status in _walk(str(folder)):
        if path in OWN_FILES:
            marker = sign(status) if path == MARKER_FILE else marker
            continue
        stats.append((path, status))
        if len(stats) > MAX_FILES:
            raise FolderTooLargeError(f"more than {MAX_FILES} files")
    stats.sort(key=lambda item: item[0])
    digest = hashlib.blake2b(READ_FORMAT, digest_size=16)
    for path, status in stats:
        digest.update(f"{path}\0{sign(status)}\0".encode("utf-8", "surrogateescape"))
    return FolderScan(signature=digest.hexdigest(), marker=marker, stats=tuple(stats))


def sign(status: os.stat_result) -> str:
    """A file's state as text. Programs cannot set ctime, so an edit that keeps the size is detected too."""
    return f"{status.st_mode:o}.{status.st_size}.{status.st_ino}.{status.st_ctime_ns}"


def hash_folder(folder: Path, files: list[PackageFile]) -> str:
    """The content hash of files on disk."""
    return content_hash([(file, hash_file(folder / file.path)) for file in files])


def content_hash(files: list[tuple[PackageFile, str]]) -> str:
    """SHA-256 of mode, content hash and path of all files, sorted by path. Each file comes with its own SHA-256."""
    digest = hashlib.sha256()
    for file, file_hash in sorted(files, key=lambda item: item[0].path):
        mode = "755" if file.executable else "644"
        digest.update(f"{mode} {file_hash} {file.path}\n".encode("utf-8", "surrogateescape"))
    return digest.hexdigest()


def hash_file(path: Path) -> str:
    with os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW), "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _walk(folder: str) -> Iterator[tuple[str, os.stat_result]]:
    waiting = [(folder, "", 0)]
    while waiting:
        current, prefix, depth = waiting.pop()
        if depth > MAX_FOLDERS_DEEP:
            raise FolderTooLargeError(f"deeper than {MAX_FOLDERS_DEEP} folders")
        with os.scandir(current) as entries:
            for entry in entries:
                path = prefix + entry.name
                if entry.is_dir(follow_symlinks=False):
                    waiting.append((entry.path, f"{path}/", depth + 1))
                else:
                    yield path, entry.stat(follow_symlinks=False)
