"""A call as shown to the person who approves it: omitted text is replaced by its size and SHA-256.

The values that decide what runs (script, timeout, arguments, files) come first, each with its own share of the length,
so that padding one cannot hide the others. Marks such as `<<12 characters hidden, sha256 …>>` are outside all quotes,
so no value can forge one.
"""

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

SUMMARY_CHARACTERS = 5_000
"""Approximate length of a summary: one value and the marks may exceed it."""
STORED_CHARACTERS = 64 * 1024
"""A call up to this size is stored in full."""
MAX_DEPTH = 20
_FIRST = ("script", "timeout", "args", "files")
_SHARES = {"script": 0.1, "timeout": 0.02, "args": 0.2, "files": 0.3}
_INPUT_SHARE = 0.3


@dataclass(slots=True)
class _Room:
    """The remaining length of the output, and limits for single values."""

    left: int
    text: int
    """Characters of one value."""
    items: int
    """Entries of one list or object."""
    digits: int
    """Hexadecimal digits of a SHA-256."""

    def mark(self, count: int, unit: str, hidden: str) -> str:
        """The mark that replaces hidden text."""
        digest = hashlib.sha256(hidden.encode("utf-8", "surrogatepass")).hexdigest()
        return f"<<{count:,} {unit}{'' if count == 1 else 's'} hidden, sha256 {digest[: self.digits]}>>"


def summary_of(call: Mapping[str, Any]) -> str:
    """The call, shortened for an approval question."""
    return _sections(call, lambda share: _Room(int(SUMMARY_CHARACTERS * share), text=240, items=25, digits=16))


def whole_of(call: Mapping[str, Any]) -> str:
    """The call as JSON; if it is too long, without the middle of long values."""
    plain = json.dumps({key: call[key] for key in _ordered(call)}, ensure_ascii=False, default=str)
    if len(plain) <= STORED_CHARACTERS and len(text := _escaped(plain)) <= STORED_CHARACTERS:
        return text
    return _sections(call, lambda share: _Room(int(STORED_CHARACTERS * share), text=8_192, items=500, digits=64))


def _sections(call: Mapping[str, Any], room: Callable[[float], _Room]) -> str:
    parts = [
        f"{_json(str(key))}: {_shown(call[key], room(_SHARES.get(key, _INPUT_SHARE)), 0)}" for key in _ordered(call)
    ]
    return f"{{{', '.join(parts)}}}"


def _ordered(call: Mapping[str, Any]) -> list[str]:
    return [*(key for key in _FIRST if key in call), *(key for key in call if key not in _FIRST)]


def _shown(value: Any, room: _Room, depth: int) -> str:
    if isinstance(value, Mapping):
        entries = [(key, item) for key, item in value.items()]
        return f"{{{_entries(entries, room, depth, dict, lambda pair: _pair(pair, room, depth))}}}"
    if isinstance(value, Sequence) and not isinstance(value, str | bytes):
        return f"[{_entries(list(value), room, depth, list, lambda item: _shown(item, room, depth + 1))}]"
    return _scalar(value, room)


def _pair(pair: tuple[Any, Any], room: _Room, depth: int) -> str:
    return f"{_scalar(str(pair[0]), room)}: {_shown(pair[1], room, depth + 1)}"


def _entries(
    entries: list[Any],
    room: _Room,
    depth: int,
    kind: Callable[[list[Any]], Any],
    shown: Callable[[Any], str],
) -> str:
    parts: list[str] = []
    for number, entry in enumerate(entries):
        if number == room.items or room.left <= 0 or depth == MAX_DEPTH:
            rest = entries[number:]
            parts.append(room.mark(len(rest), "item", json.dumps(kind(rest), ensure_ascii=False, default=str)))
            break
        room.left -= len(", ")
        parts.append(shown(entry))
    return ", ".join(parts)


def _scalar(value: Any, room: _Room) -> str:
    text = value if isinstance(value, str) else _json(value)
    quoted = _json if isinstance(value, str) else str
    half = max(0, min(room.text, room.left)) // 2
    if len(text) <= 2 * half:
        shown = [quoted(text)]
    else:
        ends = (text[:half], text[len(text) - half :]) if half else ()
        hidden = text[half : len(text) - half]
        shown = [quoted(end) for end in ends]
        shown.insert(1, room.mark(len(hidden), "character", hidden))
    room.left -= sum(map(len, shown))
    return " ".join(shown)


def _json(value: Any) -> str:
    """JSON on one line, with unprintable characters escaped."""
    return _escaped(json.dumps(value, ensure_ascii=False, default=str))


def _escaped(text: str) -> str:
    if text.isprintable():
        return text
    return "".join(letter if letter.isprintable() else json.dumps(letter)[1:-1] for letter in text)
