"""Writes the files of a repository into a new folder. Git's own checkout, with its filters and links, is not used."""

import os
import stat
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from apexbridge.errors import InvalidArchiveError

MAX_FILES = 100_000
MB = 1024 * 1024
_LINK, _SUBMODULE = 0o120000, 0o160000
MAX_LINK_BYTES = 4096
SMALLER_PART = "Name the folder of one skill in it"
RAISE_LIMIT = f"{SMALLER_PART}, or raise APEX_INSTALL_MAX_MB"


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeEntry:
    """A file or a link of a repository."""

    path: str
    mode: int
    size: int
    id: str
    """The name of its content, for the reader of the contents."""

    @property
    def is_link(self) -> bool:
        return stat.S_IFMT(self.mode) == _LINK

    @property
    def is_submodule(self) -> bool:
        return stat.S_IFMT(self.mode) == _SUBMODULE


class Listing:
    """Collects the entries of a tree. A tree can name the same few objects millions of times, so it is counted."""

    def __init__(self, *, max_bytes: int) -> None:
        self.entries: list[TreeEntry] = []
        self._max_bytes = max_bytes
        self._bytes = 0

    def add(self, entry: TreeEntry) -> None:
        """Add an entry; submodules are left out.

        Raises:
            InvalidArchiveError: UNSAFE_PATH for a path that leads elsewhere, ARCHIVE_TOO_LARGE.
        """
        if entry.is_submodule:
            return
        parts = entry.path.split("/")
        if any(part in ("", ".", "..") or part.lower() == ".git" for part in parts):
            raise InvalidArchiveError(f"Unsafe path {entry.path!a}", code="UNSAFE_PATH", entry=entry.path)
        self._bytes += entry.size
        if len(self.entries) >= MAX_FILES:
            raise too_large(f"more than {MAX_FILES:,} files", advice=SMALLER_PART)
        if self._bytes > self._max_bytes or (entry.is_link and entry.size > MAX_LINK_BYTES):
            raise too_large(f"more than {self._max_bytes // MB} MB")
        self.entries.append(entry)


def write_tree(folder: Path, contents: Iterable[tuple[TreeEntry, bytes]]) -> None:
    """Write files into a new folder. Links come last, so that no file is written through one.

    Where links lead is checked when the folder is packed for the install, as for every folder.
    """
    folder.mkdir(parents=True)
    links: list[tuple[Path, bytes]] = []
    try:
        for entry, data in contents:
            path = folder / entry.path
            path.parent.mkdir(parents=True, exist_ok=True)
            if entry.is_link:
                links.append((path, data))
                continue
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
            with os.fdopen(descriptor, "wb") as file:
                file.write(data)
                os.fchmod(descriptor, 0o700 if entry.mode & 0o111 else 0o600)
        for path, target in links:
            path.symlink_to(os.fsdecode(target))
    except (FileExistsError, NotADirectoryError, ValueError) as error:
        raise InvalidArchiveError(
            "Unsafe path: two files of the source have the same path", code="UNSAFE_PATH"
        ) from error


def too_large(what: str, *, advice: str = RAISE_LIMIT) -> InvalidArchiveError:
    return InvalidArchiveError(f"Archive too large: the source has {what}. {advice}.", code="ARCHIVE_TOO_LARGE")
