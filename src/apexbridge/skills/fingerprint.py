"""What a skill's folder holds, whether it changed, and the hash that names its content."""

import hashlib
import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from apexbridge.skills.models import MARKER_FILE, PackageFile

MAX_FILES = 20_000
"""A folder with more is no skill but somebody's home directory."""


MAX_FOLDERS_DEEP = 64


class FolderTooLargeError(Exception):
    """The folder holds more files than any skill."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sight:
    """A folder as `stat` shows it, without one file opened."""

    signature: str
    """Changes with any file's name, size, mode, identity or time of change; the marker counts for nothing."""
    marker: str
    """The same of the marker alone; empty where there is none."""
    stats: tuple[tuple[str, os.stat_result], ...]
    """Relative path and status of everything that is no folder, sorted, the marker left out."""

    @property
    def files(self) -> list[PackageFile]:
        """The regular files; links and devices are never part of a skill."""
        return [
            PackageFile(path=path, size=status.st_size, executable=bool(status.st_mode & 0o111))
            for path, status in self.stats
            if stat.S_ISREG(status.st_mode)
        ]

    @property
    def size(self) -> int:
        """Bytes of all regular files together."""
        return sum(file.size for file in self.files)


def look(folder: Path) -> Sight:
    """See a folder's files.

    Raises:
        FolderTooLargeError: more than `MAX_FILES` files.
        OSError: the folder cannot be read.
    """
    marker = ""
    stats: list[tuple[str, os.stat_result]] = []
    for path, status in _walk(str(folder)):
        if path == MARKER_FILE:
            marker = sign(status)
            continue
        stats.append((path, status))
        if len(stats) > MAX_FILES:
            raise FolderTooLargeError(f"more than {MAX_FILES} files")
    stats.sort(key=lambda item: item[0])
    digest = hashlib.blake2b(digest_size=16)
    for path, status in stats:
        digest.update(f"{path}\0{sign(status)}\0".encode("utf-8", "surrogateescape"))
    return Sight(signature=digest.hexdigest(), marker=marker, stats=tuple(stats))


def sign(status: os.stat_result) -> str:
    """A file's state in one word. The time of change cannot be set by hand, so a same-size edit always shows."""
    return f"{status.st_mode:o}.{status.st_size}.{status.st_ino}.{status.st_ctime_ns}"


def hash_folder(folder: Path, files: list[PackageFile]) -> str:
    """The content hash of the files as they stand."""
    return content_hash([(file, _hash_file(folder / file.path)) for file in files])


def content_hash(files: list[tuple[PackageFile, str]]) -> str:
    """SHA-256 over the sorted list of path, mode and content; each file comes with its own SHA-256."""
    digest = hashlib.sha256()
    for file, file_hash in sorted(files, key=lambda item: item[0].path):
        mode = "755" if file.executable else "644"
        digest.update(f"{mode} {file_hash} {file.path}\n".encode("utf-8", "surrogateescape"))
    return digest.hexdigest()


def _hash_file(path: Path) -> str:
    with os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW), "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _walk(folder: str) -> Iterator[tuple[str, os.stat_result]]:
    waiting = [(folder, "", 0)]
    while waiting:
        place, prefix, depth = waiting.pop()
        if depth > MAX_FOLDERS_DEEP:
            raise FolderTooLargeError(f"deeper than {MAX_FOLDERS_DEEP} folders")
        with os.scandir(place) as entries:
            for entry in entries:
                path = prefix + entry.name
                if entry.is_dir(follow_symlinks=False):
                    waiting.append((entry.path, f"{path}/", depth + 1))
                else:
                    yield path, entry.stat(follow_symlinks=False)
