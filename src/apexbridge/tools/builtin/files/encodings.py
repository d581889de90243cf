"""Encodings of text files, and their detection."""

import codecs
from dataclasses import dataclass

from apexbridge.errors import InvalidInputError

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
