"""Bounds the size of a record. Truncated parts carry a mark."""

import json
from typing import Any

import orjson

Json = dict[str, Any]
MAX_RECORD_BYTES = 256 * 1024
"""Steps, messages and answer of one request together."""
STEPS_BYTES = 64 * 1024
ANSWER_BYTES = 64 * 1024
MAX_DEPTH = 100
"""Deeper JSON of a client or an upstream would end in a RecursionError, here or in a reader of the record."""
MESSAGES_BYTES = 120 * 1024
"""How much of each part is kept if they are too long together; the rest is for the marks."""


def bounded(steps: list[Json], messages: list[Any] | None, answer: str | None) -> tuple[str, str | None, str | None]:
    """Steps and messages as JSON, the answer as text, truncated if needed."""
    steps_json = _dumped(steps)
    messages_json = _dumped(messages) if messages is not None else None
    text = clean(answer) if answer is not None else None
    if _size(steps_json, messages_json, text) <= MAX_RECORD_BYTES:
        return steps_json, messages_json, text
    return (
        steps_json if _size(steps_json) <= STEPS_BYTES else _dumped(_first(steps)),
        _dumped(_last(messages)) if messages is not None and _size(messages_json) > MESSAGES_BYTES else messages_json,
        _cut(text, ANSWER_BYTES) if text is not None else None,
    )


def clean(text: str) -> str:
    """Replace lone surrogates, which SQLite rejects."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode()


def _first(steps: list[Json]) -> list[Json]:
    """The first steps, as many as fit."""
    kept: list[Json] = []
    left = STEPS_BYTES
    for step in steps:
        left -= _size(_dumped(step)) + 1
        if left < 0:
            return [*kept, {"kind": "cut", "text": f"[cut: {len(steps) - len(kept)} more steps]"}]
        kept.append(step)
    return kept


def _last(messages: list[Any]) -> list[Any]:
    """The last messages, as many as fit."""
    kept: list[Any] = []
    left = MESSAGES_BYTES
    for message in reversed(messages):
        size = _size(_dumped(message)) + 1
        if size > left and not kept:
            role = str(message.get("role"))[:64] if isinstance(message, dict) else None
            content = message.get("content") if isinstance(message, dict) else message
            text = content if isinstance(content, str) else _dumped(content)
            # JSON escapes can take six bytes for one character.
            kept.append({"role": role, "content": _cut(clean(text), MESSAGES_BYTES // 6)})
            break
        if size > left:
            break
        left -= size
        kept.append(message)
    missing = len(messages) - len(kept)
    marks = [{"role": "cut", "content": f"[cut: {missing} earlier messages]"}] if missing else []
    return [*marks, *reversed(kept)]


def _cut(text: str, limit: int) -> str:
    data = text.encode()
    if len(data) <= limit:
        return text
    return f"{data[:limit].decode('utf-8', 'ignore')} [cut: {len(data) - limit} more bytes]"


def _size(*texts: str | None) -> int:
    return sum(len(text) if text.isascii() else len(text.encode()) for text in texts if text)


def _dumped(value: Any) -> str:
    try:
        return orjson.dumps(value).decode()
    except TypeError:  # a number beyond 64 bits, a lone surrogate, or too deep for orjson
        return clean(json.dumps(_shallow(value, MAX_DEPTH), ensure_ascii=False, default=str))


def _shallow(value: Any, depth: int) -> Any:
    """The value down to a depth; deeper levels are replaced by a mark."""
    if not isinstance(value, dict | list):
        return value
    if depth == 0:
        return "[cut: nested too deep]"
    if isinstance(value, dict):
        return {key: _shallow(below, depth - 1) for key, below in value.items()}
    return [_shallow(below, depth - 1) for below in value]
