"""Compares two versions of a skill file by file, with bounded time and output.

The files are untrusted. `difflib` needs quadratic time, so it compares only what lies between the first and the last
difference, up to a number of pairs of lines. Beyond that, the old lines are followed by the new ones.
"""

import difflib
import stat
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import PurePosixPath
from typing import IO, Literal

from apexbridge.skills.models import FileDiff

MAX_FILES = 500
MAX_DIFF_BYTES = 256 * 1024
"""Of all files together."""
MAX_FILE_BYTES = 256 * 1024
"""Larger files are compared, but their lines are not shown."""
MAX_LINE_PAIRS = 1_000_000
"""That `difflib` compares, of all files together."""
CONTEXT_LINES = 3
_CHUNK_BYTES = 64 * 1024
Change = Literal["added", "removed", "changed"]
_Members = dict[str, zipfile.ZipInfo]


def diff_archives(old: IO[bytes] | None, new: IO[bytes]) -> tuple[list[FileDiff], bool]:
    """The changed files of two archives with one top folder, by path, and whether there are more than are returned.

    Without `old`, all files are new.
    """
    with zipfile.ZipFile(new) as new_archive:
        if old is None:
            return _Comparison(None, new_archive).run()
        with zipfile.ZipFile(old) as old_archive:
            return _Comparison(old_archive, new_archive).run()


class _Comparison:
    def __init__(self, old: zipfile.ZipFile | None, new: zipfile.ZipFile) -> None:
        self._old, self._new = old, new
        self._old_members: _Members = _members(old) if old else {}
        self._new_members = _members(new)
        self._left = MAX_DIFF_BYTES
        self._pairs_left = MAX_LINE_PAIRS

    def run(self) -> tuple[list[FileDiff], bool]:
        files: list[FileDiff] = []
        for path in sorted({*self._old_members, *self._new_members}):
            before, after = self._old_members.get(path), self._new_members.get(path)
            if before and after and self._is_same(before, after):
                continue
            if len(files) == MAX_FILES:
                return files, True
            files.append(self._file(path, before, after))
        return files, False

    def _is_same(self, before: zipfile.ZipInfo, after: zipfile.ZipInfo) -> bool:
        """Whether content and mode are equal. Equal checksums do not prove it: they are easily forged."""
        if (before.CRC, before.file_size, _is_executable(before)) != (
            after.CRC,
            after.file_size,
            _is_executable(after),
        ):
            return False
        assert self._old is not None  # noqa: S101  # `before` is from there
        with self._old.open(before) as one, self._new.open(after) as other:
            while chunk := one.read(_CHUNK_BYTES):
                if chunk != other.read(_CHUNK_BYTES):
                    return False
        return True

    def _file(self, path: str, before: zipfile.ZipInfo | None, after: zipfile.ZipInfo | None) -> FileDiff:
        change: Change = "changed" if before and after else "added" if after else "removed"
        old = _read(self._old, before) if self._old and before else b""
        new = _read(self._new, after) if after else b""
        is_long = max(len(old), len(new)) > MAX_FILE_BYTES
        texts = [_text(old[:MAX_FILE_BYTES], is_cut=is_long), _text(new[:MAX_FILE_BYTES], is_cut=is_long)]
        if None in texts:
            return FileDiff(path=path, change=change, binary=True, diff=None, truncated=False)
        if is_long or self._left <= 0:
            return FileDiff(path=path, change=change, binary=False, diff=None, truncated=True)
        old_lines, new_lines = (text.split("\n") if text else [] for text in texts)
        diff, is_cut = self._cut(self._lines(old_lines, new_lines))
        return FileDiff(path=path, change=change, binary=False, diff=diff, truncated=is_cut)

    def _cut(self, lines: Iterator[str]) -> tuple[str, bool]:
        shown: list[str] = []
        for line in lines:
            self._left -= len(line.encode("utf-8", "replace")) + 1
            if self._left < 0:
                return "".join(f"{one}\n" for one in shown), True
            shown.append(line)
        return "".join(f"{one}\n" for one in shown), False

    def _lines(self, old: Sequence[str], new: Sequence[str]) -> Iterator[str]:
        """A unified diff without the names of the files."""
        start = _common(old, new)
        end = _common(old[start:][::-1], new[start:][::-1])
        first, last = max(0, start - CONTEXT_LINES), max(0, end - CONTEXT_LINES)
        old, new = old[first : len(old) - last], new[first : len(new) - last]
        before, after = start - first, end - last
        pairs = (len(old) - before - after) * (len(new) - before - after)
        if pairs <= self._pairs_left:
            self._pairs_left -= pairs
            groups = difflib.SequenceMatcher(None, old, new, autojunk=False).get_grouped_opcodes(CONTEXT_LINES)
        else:
            changed = ("replace", before, len(old) - after, before, len(new) - after)
            head = ("equal", 0, before, 0, before)
            tail = ("equal", len(old) - after, len(old), len(new) - after, len(new))
            groups = iter([[head, changed, tail]])
        for group in groups:
            (_, i1, _, j1, _), (_, _, i2, _, j2) = group[0], group[-1]
            yield f"@@ -{_range(first + i1, i2 - i1)} +{_range(first + j1, j2 - j1)} @@"
            for kind, a, b, c, d in group:
                if kind == "equal":
                    yield from (f" {line}" for line in old[a:b])
                    continue
                yield from (f"-{line}" for line in old[a:b])
                yield from (f"+{line}" for line in new[c:d])


def _members(archive: zipfile.ZipFile) -> _Members:
    """The files by their paths below the top folder."""
    return {"/".join(PurePosixPath(info.filename).parts[1:]): info for info in archive.infolist() if not info.is_dir()}


def _is_executable(info: zipfile.ZipInfo) -> bool:
    return bool(info.external_attr >> 16 & stat.S_IXUSR)


def _read(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> bytes:
    with archive.open(info) as file:
        return file.read(MAX_FILE_BYTES + 1)


def _text(data: bytes, *, is_cut: bool) -> str | None:
    """None if it is not text. A cut may divide the last character."""
    try:
        return None if b"\0" in data else data.decode("utf-8", "replace" if is_cut else "strict")
    except UnicodeDecodeError:
        return None


def _common(one: Sequence[str], other: Sequence[str]) -> int:
    """How many lines at the beginning are equal."""
    count = 0
    for left, right in zip(one, other, strict=False):
        if left != right:
            break
        count += 1
    return count


def _range(start: int, length: int) -> str:
    """As `diff -u` writes it."""
    return f"{start + 1 if length else start},{length}"
