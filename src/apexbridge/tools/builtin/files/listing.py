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
from typing import Literal

from apexbridge.tools.builtin.files.beneath import OPEN_FOLDER, Opener

_Indexes = frozenset[int]


class Glob:
    """A pattern. Its state is the set of segments that the rest of a path can match, so a folder is matched once."""

    def __init__(self, pattern: str) -> None:
        segments = pattern.split("/")
        merged = [key for key, run in itertools.groupby(segments) for key in (["**"] if key == "**" else run)]
        self._segments = [None if segment == "**" else _compiled(segment) for segment in merged]
        self.start = self._expanded({0})

    def matches(self, state: _Indexes, name: str) -> bool:
        """Whether an entry of this name matches the whole pattern."""
        last = len(self._segments) - 1
        segment = self._segments[last]
        return last in state and (segment is None or segment.match(name) is not None)

    def enter(self, state: _Indexes, name: str) -> _Indexes:
        """The state below a folder of this name; empty if nothing below can match."""
        reached = set()
        for index in state:
            segment = self._segments[index]
            if segment is None:
                reached.add(index)
            elif index < len(self._segments) - 1 and segment.match(name):
                reached.add(index + 1)
        return self._expanded(reached)

    def _expanded(self, indexes: set[int]) -> _Indexes:
        """`**/` also matches no folder at all."""
        after = {index + 1 for index in indexes if self._segments[index] is None}
        return frozenset(indexes | after & set(range(len(self._segments))))


def _compiled(segment: str) -> re.Pattern[str]:
    # fnmatch compiles `*` to an expression that does not backtrack, so patterns with many `*` are fast. `[` is literal.
    return re.compile(fnmatch.translate(segment.replace("[", "[[]")))


MAX_LOOKED_AT = 10_000
_LAST_SECOND = 253_402_300_799  # of the year 9999, the last one that datetime supports
_ANY = frozenset({0})

EntryType = Literal["file", "folder", "link", "other"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """An entry of a folder."""

    path: str
    type: EntryType
    size: int
    """Bytes of a file; 0 for anything else."""
    modified: datetime


def entry_of(path: str, status: os.stat_result) -> Entry:
    """An entry from the result of `stat`."""
    mode = status.st_mode
    kind: EntryType = (
        "file" if stat.S_ISREG(mode) else "folder" if stat.S_ISDIR(mode) else "link" if stat.S_ISLNK(mode) else "other"
    )
    return Entry(
        path=path,
        type=kind,
        size=status.st_size if kind == "file" else 0,
        modified=datetime.fromtimestamp(min(max(status.st_mtime, 0), _LAST_SECOND), UTC),
    )


def list_entries(
    folder: int, opener: Opener, *, glob: Glob | None = None, deep: bool = False, most: int = MAX_LOOKED_AT
) -> tuple[list[Entry], bool]:
    """All matching entries, sorted by path, and whether some may be missing.

    The walk is breadth-first, so that a single large folder does not hide all others.
    """
    found: list[Entry] = []
    left = most
    waiting = deque([("", "", glob.start if glob else _ANY)])
    while waiting:
        place, shown, state = waiting.popleft()
        below = []
        for name, status in _looked_at(folder, opener, place.removesuffix("/")):
            if left == 0:
                return sorted(found, key=_path), True
            left -= 1
            readable = _readable(name)
            if glob is None or glob.matches(state, readable):
                found.append(entry_of(f"{shown}{readable}", status))
            if deep and stat.S_ISDIR(status.st_mode):
                reached = glob.enter(state, readable) if glob else _ANY
                below.append((f"{place}{name}/", f"{shown}{readable}/", reached))
        waiting.extend(entry for entry in sorted(below) if entry[2])
    return sorted(found, key=_path), False


def _looked_at(folder: int, opener: Opener, place: str) -> Iterator[tuple[str, os.stat_result]]:
    """The entries of one folder; none if it was removed, cannot be read, or was replaced by a symlink."""
    try:
        descriptor = opener(folder, place or ".", OPEN_FOLDER, links=False)
    except OSError:
        return
    try:
        with os.scandir(descriptor) as entries:
            for entry in entries:
                with suppress(OSError):
                    yield entry.name, entry.stat(follow_symlinks=False)
    finally:
        os.close(descriptor)


def _path(entry: Entry) -> str:
    return entry.path


def _readable(name: str) -> str:
    """A name as valid Unicode: bytes that are not UTF-8 are replaced, because JSON cannot contain them."""
    return name if name.isprintable() else os.fsencode(name).decode("utf-8", "replace")
