"""Reads a range of lines from a text file of any size."""

import io
import os
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, BinaryIO

from apexbridge.errors import InvalidInputError
from apexbridge.tools.builtin.files.encodings import Encoding, candidates, is_binary
from apexbridge.tools.executor import OUTPUT_BYTES

MAX_TEXT_BYTES = 256 * 1024
"""Size of the text as UTF-8."""
MAX_SKIPPED_LINES = 1_000_000
MAX_SKIPPED_CHARACTERS = 256 * 1024 * 1024
SHOWN_BYTES = OUTPUT_BYTES - 1024
"""Size of the text that a model gets; programs get everything that was read."""
MAX_LINE_CHARACTERS = 7_500
"""A longer line counts as several, so that every part of any file has an offset, and a model gets whole lines."""
_HEAD_BYTES = 8 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """The range to read."""

    name: str
    """For messages."""
    offset: int = 0
    """Lines to skip."""
    limit: int | None = None
    """Lines to read."""
    encoding: str | None = None
    """None detects it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stretch:
    """Lines of a text file."""

    lines: list[str]
    encoding: Encoding
    size: int
    """Bytes of the whole file."""
    before: int
    """Lines that were skipped."""
    is_last: bool
    """Whether the file ends here."""

    @property
    def next_offset(self) -> int:
        """The line after these; at the end, the number of lines of the file."""
        return self.before + len(self.lines)


class _NotTextError(Exception):
    """The bytes are not text."""


def read_stretch(file: BinaryIO, wanted: Wanted) -> Stretch:
    """Read the lines, up to `MAX_TEXT_BYTES`.

    Raises:
        InvalidInputError: the file is not text, or not in the requested encoding.
    """
    size = os.fstat(file.fileno()).st_size
    head = file.read(_HEAD_BYTES)
    try:
        for encoding in candidates(head, wanted.encoding):
            with suppress(UnicodeDecodeError):
                if not encoding.is_wide and is_binary(head):
                    raise _NotTextError
                return _read(file, size, wanted, encoding)
    except _NotTextError:
        raise InvalidInputError(f"{wanted.name} is a binary file of {size} bytes") from None
    raise InvalidInputError(f"{wanted.name} is not in {wanted.encoding} here; leave encoding out to have it found")


def told_to_programs(stretch: Stretch) -> dict[str, Any]:
    """The text and its metadata."""
    data: dict[str, Any] = {
        "success": True,
        "content": "".join(stretch.lines),
        "size": stretch.size,
        "truncated": not stretch.is_last,
        "encoding": stretch.encoding.name,
    }
    return data | {"lines" if stretch.is_last else "nextOffset": stretch.next_offset}


def told_to_model(stretch: Stretch) -> str:
    """As many lines as fit into `SHOWN_BYTES`, and the offset of the next one."""
    room = SHOWN_BYTES
    shown = 0
    for line in stretch.lines:
        room -= len(line.encode())
        if room < 0:
            break
        shown += 1
    text = "".join(stretch.lines[:shown])
    if shown < len(stretch.lines) or not stretch.is_last:
        return f"{text}\n[There is more, {stretch.size} bytes in all: go on with offset {stretch.before + shown}.]"
    return text or f"[Nothing there; the file has {stretch.size} bytes.]"


def _read(file: BinaryIO, size: int, wanted: Wanted, encoding: Encoding) -> Stretch:
    file.seek(len(encoding.mark))
    text = io.TextIOWrapper(file, encoding=encoding.codec, errors=encoding.errors, newline="\n")
    try:
        before = _skip(text, wanted)
        lines: list[str] = []
        room = MAX_TEXT_BYTES
        line = text.readline(MAX_LINE_CHARACTERS)
        while line and len(lines) != wanted.limit and (room := room - len(line.encode())) >= 0:
            lines.append(_checked(line))
            line = text.readline(MAX_LINE_CHARACTERS)
    finally:
        text.detach()  # the caller closes the file
    if not encoding.is_wide and is_binary("".join(lines).encode(encoding.codec, "replace")):
        raise _NotTextError
    return Stretch(lines=lines, encoding=encoding, size=size, before=before, is_last=not line)


def _skip(text: io.TextIOWrapper, wanted: Wanted) -> int:
    """Skip lines, and return how many there were."""
    characters = 0
    for number in range(wanted.offset):
        line = _checked(text.readline(MAX_LINE_CHARACTERS))
        if not line:
            return number
        characters += len(line)
        if number == MAX_SKIPPED_LINES or characters > MAX_SKIPPED_CHARACTERS:
            raise InvalidInputError(
                f"Line {wanted.offset} of {wanted.name} is too far from its beginning: at most "
                f"{MAX_SKIPPED_LINES:,} lines or {MAX_SKIPPED_CHARACTERS // 1024 // 1024} MB can be skipped"
            )
    return wanted.offset


def _checked(line: str) -> str:
    if "\0" in line:
        raise _NotTextError
    return line
