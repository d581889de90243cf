"""A call as shown to the person who approves it: omitted text is replaced by its size and SHA-256.

The values that decide what runs (script, timeout, arguments, files) come first, each with its own share of the length,
so that padding one cannot hide the others. Marks such as `<<12 characters hidden, sha256 …>>` are outside all quotes,
so no value can forge one.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

SUMMARY_CHARACTERS = 5_000
"""Approximate length of a summary: one value and the marks may exceed it."""
STORED_CHARACTERS = 24 * 1024 * 1024
"""A call up to this size is stored in full. A request has up to 8 MB, and escapes make invisible characters of UTF-8 up
to three times as long."""
CUT_CHARACTERS = 64 * 1024
"""Approximate length of a larger one."""
MAX_DEPTH = 20
_SHARES = {"script": 0.1, "timeout": 0.02, "args": 0.2, "files": 0.3}
"""Shares of the length, in the order in which the values are shown; the input comes last."""
_INPUT_SHARE = 0.3


def summary_of(call: Mapping[str, Any]) -> str:
    """The call, shortened for an approval question."""
    return _sections(call, SUMMARY_CHARACTERS, text=240, items=25, digits=16)


def whole_of(call: Mapping[str, Any]) -> tuple[str, bool]:
    """The call as JSON, and whether it is too long and lacks the middle of long values."""
    plain = json.dumps({key: call[key] for key in _ordered(call)}, ensure_ascii=False, default=str)
    if len(plain) <= STORED_CHARACTERS and len(text := _escaped(plain)) <= STORED_CHARACTERS:
        return text, False
    return _sections(call, CUT_CHARACTERS, text=8_192, items=500, digits=64), True


def _sections(call: Mapping[str, Any], characters: int, **limits: int) -> str:
    sections = []
    for key in _ordered(call):
        view = _View(int(characters * _SHARES.get(key, _INPUT_SHARE)), **limits)
        sections.append(f"{_json(str(key))}: {view.render(call[key])}")
    return f"{{{', '.join(sections)}}}"


def _ordered(call: Mapping[str, Any]) -> list[str]:
    return [*(key for key in _SHARES if key in call), *(key for key in call if key not in _SHARES)]


@dataclass(slots=True)
class _View:
    """Renders one value within limits."""

    left: int
    """Remaining characters of the output."""
    text: int
    """Characters of one value."""
    items: int
    """Entries of one list or object."""
    digits: int
    """Hexadecimal digits of a SHA-256."""

    def render(self, value: Any, depth: int = 0) -> str:
        if isinstance(value, Mapping):
            return f"{{{self._entries(list(value.items()), dict, depth)}}}"
        if isinstance(value, Sequence) and not isinstance(value, str | bytes):
            return f"[{self._entries(list(value), list, depth)}]"
        return self._scalar(value)

    def _entries(self, entries: list[Any], kind: type[dict[Any, Any]] | type[list[Any]], depth: int) -> str:
        rendered: list[str] = []
        for number, entry in enumerate(entries):
            if number == self.items or self.left <= 0 or depth == MAX_DEPTH:
                hidden = json.dumps(kind(entries[number:]), ensure_ascii=False, default=str)
                rendered.append(self._mark(len(entries) - number, "item", hidden))
                break
            self.left -= len(", ")
            name, value = (f"{self._scalar(str(entry[0]))}: ", entry[1]) if kind is dict else ("", entry)
            rendered.append(f"{name}{self.render(value, depth + 1)}")
        return ", ".join(rendered)

    def _scalar(self, value: Any) -> str:
        text = value if isinstance(value, str) else _json(value)
        quoted = _json if isinstance(value, str) else str
        half = max(0, min(self.text, self.left)) // 2
        if len(text) <= 2 * half:
            shown = [quoted(text)]
        else:
            ends = (text[:half], text[len(text) - half :]) if half else ()
            hidden = text[half : len(text) - half]
            shown = [quoted(end) for end in ends]
            shown.insert(1, self._mark(len(hidden), "character", hidden))
        self.left -= sum(map(len, shown))
        return " ".join(shown)

    def _mark(self, count: int, unit: str, hidden: str) -> str:
        """The mark that replaces hidden text."""
        digest = hashlib.sha256(hidden.encode("utf-8", "surrogatepass")).hexdigest()
        return f"<<{count:,} {unit}{'' if count == 1 else 's'} hidden, sha256 {digest[: self.digits]}>>"


def _json(value: Any) -> str:
    """JSON on one line, with unprintable characters escaped."""
    return _escaped(json.dumps(value, ensure_ascii=False, default=str))


def _escaped(text: str) -> str:
    if text.isprintable():
        return text
    return text.translate({ord(letter): json.dumps(letter)[1:-1] for letter in set(text) if not letter.isprintable()})
