"""Text files: their encodings, and ranges of lines from files of any size."""

import codecs
import io
import os
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, BinaryIO

from apexbridge.errors import InvalidInputError
from apexbridge.tools.executor import OUTPUT_BYTES

DEFAULT_ENCODING = "utf-8"
MAX_TEXT_BYTES = 256 * 1024
"""Size of the text as UTF-8."""
MAX_SKIPPED_LINES = 1_000_000
MAX_SKIPPED_CHARACTERS = 256 * 1024 * 1024
SHOWN_BYTES = OUTPUT_BYTES - 1024
"""Size of the text that a model gets; programs get everything that was read."""
MAX_LINE_CHARACTERS = 7_500
"""A longer line counts as several, so that every part of any file has an offset, and a model gets whole lines."""
_HEAD_BYTES = 8 * 1024
_MARKED = (
    (codecs.BOM_UTF8, "utf-8-sig", "utf-8"),
    (codecs.BOM_UTF16_LE, "utf-16", "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16", "utf-16-be"),
)
"""Byte order mark, name and codec of the encodings with a mark; the first of a name is the one that is written."""
_CODECS = {"windows-1252": "cp1252", "iso-8859-1": "latin-1"}
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
    """An encoding by its name, with the mark of a new file.

    Raises InvalidInputError if it is unknown, or not a text encoding.
    """
    known = name.strip().lower().replace("_", "-")
    known = _UNHYPHENED.get(known, known)
    if known not in _KNOWN:
        raise InvalidInputError(f"{name[:40]!r} is not a known encoding: {', '.join(sorted(_KNOWN))}")
    for mark, marked, codec in _MARKED:
        if known == marked:
            return Encoding(name=known, codec=codec, mark=mark)
    return Encoding(name=known, codec=_CODECS.get(known, known))


def _candidates(head: bytes, name: str | None) -> list[Encoding]:
    """The possible encodings of a file that begins with `head`, the likeliest first."""
    marked = None
    if not head.startswith((codecs.BOM_UTF32_LE, codecs.BOM_UTF32_BE)):  # begins like the mark of UTF-16
        for mark, marked_name, codec in _MARKED:
            if head.startswith(mark):
                marked = Encoding(name=marked_name, codec=codec, mark=mark, errors="replace")
    if name is None:
        names = (DEFAULT_ENCODING, "gb18030", "latin-1")
        return [marked] if marked else [Encoding(name=likely, codec=likely) for likely in names]
    asked = encoding_named(name)
    if marked and asked.family == marked.family:
        return [marked]
    return [Encoding(name=asked.name, codec=asked.codec)]


def _is_binary(data: bytes) -> bool:
    """Whether these bytes are not text in any single-byte encoding."""
    return b"\0" in data or len(data) - len(data.translate(None, _CONTROLS)) > len(data) * _MAX_CONTROLS


@dataclass(frozen=True, slots=True, kw_only=True)
class LineRange:
    """The lines to read."""

    name: str
    """The file's name for messages."""
    offset: int = 0
    """Lines to skip."""
    limit: int | None = None
    encoding: str | None = None
    """None detects it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lines:
    """Lines of a text file."""

    lines: list[str]
    encoding: Encoding
    size: int
    """Bytes of the whole file."""
    skipped: int
    is_last: bool
    """Whether the file ends here."""

    @property
    def data(self) -> dict[str, Any]:
        """The result object. At the end of the file, the number of its lines replaces the next offset."""
        return {
            "success": True,
            "content": "".join(self.lines),
            "size": self.size,
            "truncated": not self.is_last,
            "encoding": self.encoding.name,
            "lines" if self.is_last else "nextOffset": self.skipped + len(self.lines),
        }

    @property
    def text(self) -> str:
        """For a model: the lines that fit into `SHOWN_BYTES`, and the offset of the next one."""
        bytes_left = SHOWN_BYTES
        count = 0
        for line in self.lines:
            bytes_left -= len(line.encode())
            if bytes_left < 0:
                break
            count += 1
        text = "".join(self.lines[:count])
        if count < len(self.lines) or not self.is_last:
            return f"{text}\n[There is more, {self.size} bytes in all: go on with offset {self.skipped + count}.]"
        return text or f"[Nothing there; the file has {self.size} bytes.]"


class _NotTextError(Exception):
    """The bytes are not text."""


def read_lines(file: BinaryIO, line_range: LineRange) -> Lines:
    """Read the lines, up to `MAX_TEXT_BYTES`.

    Raises InvalidInputError if the file is not text, or not in the requested encoding.
    """
    size = os.fstat(file.fileno()).st_size
    head = file.read(_HEAD_BYTES)
    try:
        for encoding in _candidates(head, line_range.encoding):
            with suppress(UnicodeDecodeError):
                if not encoding.is_wide and _is_binary(head):
                    raise _NotTextError
                return _read(file, size, line_range, encoding)
    except _NotTextError:
        raise InvalidInputError(f"{line_range.name} is a binary file of {size} bytes") from None
    raise InvalidInputError(
        f"{line_range.name} is not in {line_range.encoding} here; leave encoding out to have it found"
    )


def _read(file: BinaryIO, size: int, line_range: LineRange, encoding: Encoding) -> Lines:
    file.seek(len(encoding.mark))
    text = io.TextIOWrapper(file, encoding=encoding.codec, errors=encoding.errors, newline="\n")
    try:
        skipped = _skip(text, line_range)
        lines: list[str] = []
        bytes_left = MAX_TEXT_BYTES
        line = text.readline(MAX_LINE_CHARACTERS)
        while line and len(lines) != line_range.limit and (bytes_left := bytes_left - len(line.encode())) >= 0:
            lines.append(_without_nul(line))
            line = text.readline(MAX_LINE_CHARACTERS)
    finally:
        text.detach()  # the caller closes the file
    if not encoding.is_wide and _is_binary("".join(lines).encode(encoding.codec, "replace")):
        raise _NotTextError
    return Lines(lines=lines, encoding=encoding, size=size, skipped=skipped, is_last=not line)


def _skip(text: io.TextIOWrapper, line_range: LineRange) -> int:
    """Skip lines, and return how many there were."""
    characters = 0
    for number in range(line_range.offset):
        line = _without_nul(text.readline(MAX_LINE_CHARACTERS))
        if not line:
            return number
        characters += len(line)
        if number == MAX_SKIPPED_LINES or characters > MAX_SKIPPED_CHARACTERS:
            raise InvalidInputError(
                f"Line {line_range.offset} of {line_range.name} is too far from its beginning: at most "
                f"{MAX_SKIPPED_LINES:,} lines or {MAX_SKIPPED_CHARACTERS // 1024 // 1024} MB can be skipped"
            )
    return line_range.offset


def _without_nul(line: str) -> str:
    if "\0" in line:
        raise _NotTextError
    return line
