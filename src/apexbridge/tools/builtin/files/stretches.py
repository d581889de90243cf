"""Reads a stretch of a text file of any size, by lines or by bytes."""

import codecs
import os
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, BinaryIO, Literal

from apexbridge.errors import InvalidInputError
from apexbridge.tools.builtin.files.encodings import DEFAULT, Encoding, candidates, is_binary
from apexbridge.tools.executor import OUTPUT_BYTES

MAX_TEXT_BYTES = 256 * 1024
"""Of the text as UTF-8; other encodings take up to twice their bytes."""
MAX_SKIPPED_BYTES = 256 * 1024 * 1024
"""How far lines are counted from a file's beginning."""
SHOWN_BYTES = OUTPUT_BYTES - 1024
"""What a model is shown at once; programs get all that was read."""
_HEAD_BYTES = 8 * 1024
_LONGEST_CHARACTER = 4
_CONTINUES = range(0x80, 0xC0)

Unit = Literal["lines", "bytes"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What somebody wants to see of a file."""

    name: str
    """For messages."""
    offset: int = 0
    """How much is skipped."""
    limit: int | None = None
    unit: Unit = "lines"
    encoding: str | None = None
    """None finds out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stretch:
    """A part of a text file, or all of it."""

    text: str
    encoding: Encoding
    size: int
    """Bytes of the whole file."""
    start: int
    """The first byte that is shown."""
    end: int
    is_last: bool
    """Whether nothing comes after it."""
    unit: Unit
    """What the next offset counts: bytes also in the middle of a line that is too long to be read at once."""
    before: int = 0
    """Lines that were skipped."""
    lines: int | None = None
    """Of the whole file, where all of it was seen."""

    @property
    def next_offset(self) -> int | None:
        """Where to go on; None at the end."""
        if self.is_last:
            return None
        return self.end if self.unit == "bytes" else self.before + self.text.count("\n")


class _NotTextError(Exception):
    """Raised for bytes that no text has."""


def read_stretch(file: BinaryIO, wanted: Wanted) -> Stretch:
    """Read what is wanted, and never more than fits.

    Raises:
        InvalidInputError: it is no text, or not in the encoding that was named.
    """
    size = os.fstat(file.fileno()).st_size
    head = file.read(_HEAD_BYTES)
    read = _by_lines if wanted.unit == "lines" else _by_bytes
    try:
        for encoding in candidates(head, wanted.encoding):
            with suppress(UnicodeDecodeError):
                _check_text(head, encoding)
                return read(file, size, wanted, encoding)
    except _NotTextError:
        raise InvalidInputError(f"{wanted.name} is a binary file of {size} bytes") from None
    raise InvalidInputError(f"{wanted.name} is not in {wanted.encoding} here; leave encoding out to have it found")


def told_to_programs(stretch: Stretch) -> dict[str, Any]:
    """The text with everything known of it."""
    data: dict[str, Any] = {
        "success": True,
        "content": stretch.text,
        "size": stretch.size,
        "truncated": not stretch.is_last,
        "encoding": stretch.encoding.name,
    }
    if stretch.lines is not None:
        data["lines"] = stretch.lines
    if stretch.next_offset is not None:
        data |= {"nextOffset": stretch.next_offset, "unit": stretch.unit}
    return data


def told_to_model(stretch: Stretch) -> str:
    """The text, as much as a model is shown at once, and how to go on."""
    text, offset, unit = stretch.text, stretch.next_offset, stretch.unit
    data = text.encode()
    if len(data) > SHOWN_BYTES:
        text = data[:SHOWN_BYTES].decode("utf-8", "ignore")
        whole = text[: text.rfind("\n") + 1]
        if unit == "lines" and whole:
            text, offset = whole, stretch.before + whole.count("\n")
        else:
            offset, unit = stretch.start + len(text.encode(stretch.encoding.codec, "replace")), "bytes"
    if offset is not None:
        return f"{text}\n[There is more, {stretch.size} bytes in all: go on with offset {offset}, unit {unit}.]"
    if not text:
        return f"[Nothing there; the file has {stretch.size} bytes.]"
    return text


def _by_lines(file: BinaryIO, size: int, wanted: Wanted, encoding: Encoding) -> Stretch:
    lines = _Lines(encoding)
    start, before, is_unfinished = _skip(file, wanted, encoding, lines)
    data, at_end = _read(file, start, _room(encoding), size)
    kept = len(data)
    unit: Unit = "lines"
    if wanted.limit is not None and lines.count(data) >= wanted.limit:
        kept = lines.length(data, wanted.limit)
    elif not at_end and (whole := lines.count(data)):
        kept = lines.length(data, whole)
    elif not at_end:
        unit = "bytes"
    text, used = _decoded(data[:kept], encoding, final=unit == "lines")
    is_last = at_end and used == len(data)
    total = before + text.count("\n") + (not text.endswith("\n") if text else is_unfinished)
    return Stretch(
        text=text,
        encoding=encoding,
        size=size,
        start=start,
        end=start + used,
        is_last=is_last,
        unit=unit,
        before=before,
        lines=total if is_last else None,
    )


def _by_bytes(file: BinaryIO, size: int, wanted: Wanted, encoding: Encoding) -> Stretch:
    begin = len(encoding.mark)
    start = max(min(wanted.offset, size), begin)
    if encoding.is_wide:
        start -= (start - begin) % 2
    room = min(_room(encoding), max(wanted.limit or MAX_TEXT_BYTES, _LONGEST_CHARACTER))
    data, at_end = _read(file, start, room, size)
    if encoding.codec == DEFAULT and start > begin:
        middle = data[: _LONGEST_CHARACTER - 1]
        whole = next((number for number, byte in enumerate(middle) if byte not in _CONTINUES), len(middle))
        data, start = data[whole:], start + whole
    text, used = _decoded(data, encoding, final=at_end)
    is_last = at_end and used == len(data)
    total = text.count("\n") + (text != "" and not text.endswith("\n"))
    return Stretch(
        text=text,
        encoding=encoding,
        size=size,
        start=start,
        end=start + used,
        is_last=is_last,
        unit="bytes",
        lines=total if is_last and start == begin else None,
    )


class _Lines:
    """Finds the ends of lines among bytes."""

    def __init__(self, encoding: Encoding) -> None:
        # One character for each byte where an end of line is one byte: then broken text has lines as well.
        self._codec = encoding.codec if encoding.is_wide else "latin-1"
        self._width = 2 if encoding.is_wide else 1

    def count(self, data: bytes) -> int:
        """How many lines end here."""
        return self._plain(data).count("\n")

    def length(self, data: bytes, lines: int) -> int:
        """Bytes of so many lines, which are there."""
        text = self._plain(data)
        rest = text.split("\n", lines)[-1]
        return len(text[: len(text) - len(rest)].encode(self._codec, "surrogatepass"))

    def ends(self, data: bytes) -> bool:
        """Whether the last line ends here."""
        return self._plain(data[-self._width :]) == "\n"

    def _plain(self, data: bytes) -> str:
        return data[: len(data) // self._width * self._width].decode(self._codec, "surrogatepass")


def _skip(file: BinaryIO, wanted: Wanted, encoding: Encoding, lines: _Lines) -> tuple[int, int, bool]:
    """Where the wanted line begins, how many lines come before, and whether the file ended in the middle of one."""
    position, before, is_unfinished = len(encoding.mark), 0, False
    while before < wanted.offset:
        if position > MAX_SKIPPED_BYTES:
            limit = MAX_SKIPPED_BYTES // 1024 // 1024
            raise InvalidInputError(
                f"Line {wanted.offset} of {wanted.name} is not within its first {limit} MB; use unit bytes"
            )
        file.seek(position)
        data = file.read(MAX_TEXT_BYTES)
        if not data:
            break
        here = lines.count(data)
        if before + here >= wanted.offset:
            return position + lines.length(data, wanted.offset - before), wanted.offset, False
        before, position, is_unfinished = before + here, position + len(data), not lines.ends(data)
    return position, before, is_unfinished


def _read(file: BinaryIO, start: int, room: int, size: int) -> tuple[bytes, bool]:
    """Bytes, and whether they are the file's last; it may have become shorter meanwhile."""
    file.seek(start)
    data = file.read(room)
    return data, len(data) < room or start + len(data) >= size


def _room(encoding: Encoding) -> int:
    return MAX_TEXT_BYTES if encoding.codec == DEFAULT else MAX_TEXT_BYTES // 2


def _decoded(data: bytes, encoding: Encoding, *, final: bool) -> tuple[str, int]:
    """The text, and how many bytes it took: a character that is cut off stays for the next time."""
    _check_text(data, encoding)
    decoder = codecs.getincrementaldecoder(encoding.codec)(encoding.errors)
    text = decoder.decode(data, final)
    if "\0" in text:
        raise _NotTextError
    return text, len(data) - len(decoder.getstate()[0])


def _check_text(data: bytes, encoding: Encoding) -> None:
    if not encoding.is_wide and is_binary(data):
        raise _NotTextError
