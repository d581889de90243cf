"""Views of untrusted text for the rules: what people do not see, and what remains without it."""

import re
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass

from apexbridge._text import normalized

_LOOKALIKES = {
    **dict(zip("аеорсухіјѕԁԛԝһɡӏ", "aeopcyxijsdqwhgl", strict=True)),
    **dict(zip("АВЕКМНОРСТУХІЈЅ", "abekmhopctyxijs", strict=True)),
    **dict(zip("οανιρτυκωΑΒΕΖΗΙΚΜΝΟΡΤΥΧ", "oaviptukwabezhikmnoptyx", strict=True)),
    **dict(zip("‘’“”‐‑‒–—−", "''\"\"------", strict=True)),
}
_INVISIBLE = "\u00ad\u034f\u115f\u1160\u17b4\u17b5\u180e\u200b-\u200f\u202a-\u202e\u2060-\u206f\u3164\ufeff\uffa0\ufe00-\ufe0f\U000e0000-\U000e01ef"
INVISIBLE = re.compile(f"[{_INVISIBLE}]")
_CYRILLIC_OR_GREEK = "\u0370-\u03ff\u0400-\u052f"
MIXED_WORD = re.compile(
    rf"[A-Za-z]{{2,40}}[{_CYRILLIC_OR_GREEK}]{{1,3}}[A-Za-z]|[A-Za-z][{_CYRILLIC_OR_GREEK}]{{1,3}}[A-Za-z]{{2}}"
)
BETWEEN_LETTERS = re.compile(
    "[A-Za-z][\u00ad\u200b\u200c\u200d\u2060-\u2064\ufeff\u180e\u115f\u1160\u3164\uffa0]{1,8}(?=[A-Za-z])"
)
DIRECTIONS = re.compile("[\u202a-\u202e\u2066-\u2069]")
TAGS = re.compile("[\U000e0001-\U000e007f]{3,}")
FLAG = "\U0001f3f4"
"""Flags such as that of Scotland are this character and tags."""
SELECTORS = re.compile("[\ufe00-\ufe0f\U000e0100-\U000e01ef]{4,}")

_MAX_HIDDEN = 4_000
"""Characters of one hidden text."""
_MAX_BLOCKS = 200
_WINDOW, _MAX_MARK = 8_000, 1_000
"""Characters that are searched at a time, and those of the mark of a hidden text."""
_MARKS = re.compile(
    r"<!--|^[ \t]{0,3}\[(?://|comment|_|#|//[a-z0-9 -]{1,20})\]:?\s{0,3}(?:<>|#|/)\s{0,3}[(\"']"
    r"|<[a-z][a-z0-9]{0,15}\s[^<>]{0,300}?(?:display\s{0,2}:\s{0,2}none|visibility\s{0,2}:\s{0,2}hidden|font-size\s{0,2}:\s{0,2}"
    r"[01](?:px|pt|em|rem|%)?\s{0,2}[;\"']|opacity\s{0,2}:\s{0,2}0(?:\.0\d?)?\s{0,2}[;\"']|[\s\"';]color\s{0,2}[:=]\s{0,2}[\"']?(?:white|#fff(?:fff)?\b|"
    r"transparent|rgba?\(255,\s{0,2}255,\s{0,2}255)|\shidden\b|left\s{0,2}:\s{0,2}-\d{3,5}|(?:height|width)\s{0,2}:\s{0,2}0(?:px)?\s{0,2}[;\"'])[^<>]{0,300}>",
    re.IGNORECASE | re.MULTILINE,
)
_TAG = re.compile(r"<([a-z][a-z0-9]{0,15})", re.IGNORECASE)
_LINE_END = re.compile("\n")
_FENCE = re.compile(r"^[ \t]{0,3}(?:```|~~~)", re.MULTILINE)
_SINGLE_LINE_END = re.compile(r"(?<!\n)\n(?![\n\s]{0,4}(?:\n|[-*+#|>]|\d{1,3}[.)]|```|~~~))")


@dataclass(frozen=True, slots=True)
class Hidden:
    """A text that a renderer does not show."""

    start: int
    text: str
    by_style: bool


class Lines:
    """Line numbers of positions."""

    def __init__(self, text: str) -> None:
        self._ends = [found.start() for found in _LINE_END.finditer(text)]

    def number(self, position: int) -> int:
        return bisect_right(self._ends, position - 1) + 1


def plain(text: str) -> str:
    """Lower case, without invisible characters, look-alikes replaced. Line ends stay, and so do line numbers."""
    if not text.isascii():
        text = normalized("NFKC", INVISIBLE.sub("", text).translate(_TABLE))
    return text.lower()


_TABLE = str.maketrans(_LOOKALIKES)


def paragraphs(text: str) -> str:
    """The text with each paragraph on one line. Positions and line numbers are those of the text."""
    return _SINGLE_LINE_END.sub(" ", text)


def fences(text: str) -> list[tuple[int, int]]:
    """Code blocks of Markdown, from fence to fence."""
    marks = [found.start() for found in _FENCE.finditer(text)]
    return list(zip(marks[::2], [*marks[1::2], len(text)], strict=False))


def hidden_texts(text: str) -> Iterator[Hidden]:
    """Comments, and elements that a style makes invisible, outside of code blocks."""
    blocks = fences(text)[:_MAX_BLOCKS]
    position = 0
    while position < len(text):
        found = _MARKS.search(text, position, position + _WINDOW)
        if found is None:
            position += _WINDOW - _MAX_MARK
            continue
        position = found.end()
        if any(start <= found.start() < end for start, end in blocks):
            continue
        end, by_style = _end(text, found)
        yield Hidden(found.start(), text[found.end() : end], by_style)
        position = max(position, end)


def _end(text: str, found: re.Match[str]) -> tuple[int, bool]:
    mark = found[0]
    limit = found.end() + _MAX_HIDDEN
    if mark == "<!--":
        end = text.find("-->", found.end(), limit)
        return (end if end >= 0 else limit), False
    if mark.startswith("<"):
        tag = _TAG.match(mark)
        end = text.find(f"</{tag[1] if tag else ''}", found.end(), limit)
        return (end if end >= 0 else limit), True
    end = text.find("\n", found.end(), limit)
    return (end if end >= 0 else limit), False
