"""Lists an open folder: bounded, sorted, and without following symlinks."""

import fnmatch
import itertools
import os
import re
import stat
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from operator import attrgetter
from typing import Literal

from apexbridge._safe_open import OPEN_FOLDER, Opener, opened

MAX_ENTRIES = 10_000
_LAST_SECOND = 253_402_300_799  # of the year 9999, the last one that datetime supports
_ANY = frozenset({0})

EntryType = Literal["file", "folder", "link", "other"]
_TYPES: dict[int, EntryType] = {stat.S_IFREG: "file", stat.S_IFDIR: "folder", stat.S_IFLNK: "link"}
Indexes = frozenset[int]


class Glob:
    """A pattern of `*`, `?` and `**`, matched one folder at a time.

    The state of a folder is the set of segments that the names below it can match, so each folder is matched once.
    """

    def __init__(self, pattern: str) -> None:
        segments = pattern.split("/")
        merged = [key for key, run in itertools.groupby(segments) for key in (["**"] if key == "**" else run)]
        self._segments = [None if segment == "**" else _compiled(segment) for segment in merged]
        self.start = self._expanded({0})

    def matches(self, state: Indexes, name: str) -> bool:
        """Whether an entry of this name matches the whole pattern."""
        last = len(self._segments) - 1
        segment = self._segments[last]
        return last in state and (segment is None or segment.match(name) is not None)

    def enter(self, state: Indexes, name: str) -> Indexes:
        """The state below a folder of this name; empty if nothing below can match."""
        reached = set()
        for index in state:
            segment = self._segments[index]
            if segment is None:
                reached.add(index)
            elif index < len(self._segments) - 1 and segment.match(name):
                reached.add(index + 1)
        return self._expanded(reached)

    def _expanded(self, indexes: set[int]) -> Indexes:
        """`**/` also matches no folder at all."""
        after = {index + 1 for index in indexes if self._segments[index] is None}
        return frozenset(indexes | after & set(range(len(self._segments))))


def _compiled(segment: str) -> re.Pattern[str]:
    # fnmatch compiles `*` to an expression that does not backtrack, so patterns with many `*` are fast. `[` is literal.
    return re.compile(fnmatch.translate(segment.replace("[", "[[]")))


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """An entry of a folder."""

    path: str
    type: EntryType
    size: int
    """Bytes of a file; 0 for anything else."""
    modified: datetime
    is_beneath: bool = False
    """Whether it is only in the folder of the caller, not in that of the conversation."""


def list_entries(
    folder: int, opener: Opener, *, glob: Glob | None = None, deep: bool = False, most: int = MAX_ENTRIES
) -> tuple[list[Entry], bool]:
    """All matching entries, sorted by path, and whether some may be missing.

    The walk is breadth-first, so that a single large folder does not hide all others.
    """
    found: list[Entry] = []
    left = most
    waiting = deque([("", "", glob.start if glob else _ANY)])
    while waiting and left >= 0:
        prefix, shown_prefix, state = waiting.popleft()
        below = []
        for name, status in _scanned(folder, opener, prefix.removesuffix("/")):
            left -= 1
            if left < 0:
                break
            # Bytes that are not UTF-8 are replaced, because JSON cannot contain them.
            readable = name if name.isprintable() else os.fsencode(name).decode("utf-8", "replace")
            if glob is None or glob.matches(state, readable):
                found.append(_entry(f"{shown_prefix}{readable}", status))
            if deep and stat.S_ISDIR(status.st_mode):
                reached = glob.enter(state, readable) if glob else _ANY
                below.append((f"{prefix}{name}/", f"{shown_prefix}{readable}/", reached))
        waiting.extend(entry for entry in sorted(below) if entry[2])
    return sorted(found, key=attrgetter("path")), left < 0


def _scanned(folder: int, opener: Opener, path: str) -> Iterator[tuple[str, os.stat_result]]:
    """The entries of one folder; none if it was removed, cannot be read, or was replaced by a symlink."""
    try:
        descriptor = opener(folder, path or ".", OPEN_FOLDER, links=False)
    except OSError:
        return
    with opened(descriptor), os.scandir(descriptor) as entries:
        for entry in entries:
            with suppress(OSError):
                yield entry.name, entry.stat(follow_symlinks=False)


def _entry(path: str, status: os.stat_result) -> Entry:
    kind = _TYPES.get(stat.S_IFMT(status.st_mode), "other")
    modified = datetime.fromtimestamp(min(max(status.st_mtime, 0), _LAST_SECOND), UTC)
    return Entry(path=path, type=kind, size=status.st_size if kind == "file" else 0, modified=modified)
