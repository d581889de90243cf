"""Text files: their encodings, and ranges of lines from files of any size."""

import codecs
import io
import os
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, BinaryIO

from apexbridge.errors import InvalidInputError
from apexbridge.tools.executor import OUTPUT_BYTES

DEFAULT = "utf-8"
_MARKS = {"utf-8-sig": codecs.BOM_UTF8, "utf-16": codecs.BOM_UTF16_LE}
_CODECS = {"utf-8-sig": "utf-8", "utf-16": "utf-16-le", "windows-1252": "cp1252", "iso-8859-1": "latin-1"}
_KNOWN = {
    "ascii", "big5", "cp1252", "euc-jp", "euc-kr", "gb18030", "gb2312", "gbk", "iso-8859-1", "latin-1", "shift-jis",
    "utf-16", "utf-16-be", "utf-16-le", "utf-8", "utf-8-sig", "windows-1252",
}  # fmt: skip
_UNHYPHENED = {"utf8": "utf-8", "utf16": "utf-16", "latin1": "latin-1", "sjis": "shift-jis"}
_TEXT_CONTROLS = b"\t\n\r\f\b\x1b"
_CONTROLS = bytes(byte for byte in range(32) if byte not in _TEXT_CONTROLS) + b"\x7f"
_MAX_CONTROLS = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Encoding:
    """The encoding of a text file."""

    name: str
    """The name that callers use."""
    codec: str
    mark: bytes = b""
    """The byte order mark at the start of the file."""
    errors: str = "strict"

    @property
    def family(self) -> str:
        """The encoding without its byte order."""
        return self.codec.removesuffix("-le").removesuffix("-be")

    @property
    def is_wide(self) -> bool:
        """Whether every character, including line ends, takes two or four bytes."""
        return self.family == "utf-16"


def encoding_named(name: str) -> Encoding:
    """An encoding by its name.

    Raises:
        InvalidInputError: it is unknown, or not a text encoding.
    """
    wanted = name.strip().lower().replace("_", "-")
    wanted = _UNHYPHENED.get(wanted, wanted)
    if wanted not in _KNOWN:
        raise InvalidInputError(f"{name[:40]!r} is no known encoding: {', '.join(sorted(_KNOWN))}")
    return Encoding(name=wanted, codec=_CODECS.get(wanted, wanted), mark=_MARKS.get(wanted, b""))


def candidates(head: bytes, asked: str | None) -> list[Encoding]:
    """The possible encodings of a file that begins with `head`, the likeliest first."""
    marked = _marked(head)
    if asked is not None:
        known = encoding_named(asked)
        if marked is not None and known.family == marked.family:
            return [marked]
        return [Encoding(name=known.name, codec=known.codec)]
    if marked is not None:
        return [marked]
    return [Encoding(name=name, codec=name) for name in (DEFAULT, "gb18030", "latin-1")]


def is_binary(data: bytes) -> bool:
    """Whether these bytes are not text in any single-byte encoding."""
    if b"\0" in data:
        return True
    return len(data) - len(data.translate(None, _CONTROLS)) > len(data) * _MAX_CONTROLS


def _marked(head: bytes) -> Encoding | None:
    if head.startswith(codecs.BOM_UTF8):
        return Encoding(name="utf-8-sig", codec="utf-8", mark=codecs.BOM_UTF8, errors="replace")
    if head.startswith((codecs.BOM_UTF32_LE, codecs.BOM_UTF32_BE)):
        return None
    for mark, codec in ((codecs.BOM_UTF16_LE, "utf-16-le"), (codecs.BOM_UTF16_BE, "utf-16-be")):
        if head.startswith(mark):
            return Encoding(name="utf-16", codec=codec, mark=mark, errors="replace")
    return None


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
