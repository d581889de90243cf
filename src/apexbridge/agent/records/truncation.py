"""Records of bounded size: what is too long is cut, and says so."""

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
"""How much of each is left where they are too long together; some room is for the marks."""


def bounded(steps: list[Json], messages: list[Any] | None, answer: str | None) -> tuple[str, str | None, str | None]:
    """All three as they are stored: JSON, JSON and text."""
    told_steps = _dumped(steps)
    told_messages = _dumped(messages) if messages is not None else None
    told_answer = clean(answer) if answer is not None else None
    if _size(told_steps, told_messages, told_answer) <= MAX_RECORD_BYTES:
        return told_steps, told_messages, told_answer
    return (
        told_steps if _size(told_steps) <= STEPS_BYTES else _dumped(_first(steps)),
        _dumped(_last(messages)) if messages is not None and _size(told_messages) > MESSAGES_BYTES else told_messages,
        _cut(told_answer, ANSWER_BYTES) if told_answer is not None else None,
    )


def clean(text: str) -> str:
    """Without half characters, which no database takes."""
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
    """The last messages, as many as fit; they are what the request was about."""
    kept: list[Any] = []
    left = MESSAGES_BYTES
    for message in reversed(messages):
        size = _size(_dumped(message)) + 1
        if size > left and not kept:
            role = str(message.get("role"))[:64] if isinstance(message, dict) else None
            content = message.get("content") if isinstance(message, dict) else message
            text = content if isinstance(content, str) else _dumped(content)
            # As JSON it may take up to six times the room.
            kept.append({"role": role, "content": _cut(clean(text), MESSAGES_BYTES // 6)})
            break
        if size > left:
            break
        left -= size
        kept.append(message)
    missing = len(messages) - len(kept)
    marks = [{"role": "cut", "content": f"[cut: {missing} earlier messages]"}] if missing else []
    return [*marks, *reversed(kept)]


def _cut(text: str, room: int) -> str:
    data = text.encode()
    if len(data) <= room:
        return text
    return f"{data[:room].decode('utf-8', 'ignore')} [cut: {len(data) - room} more bytes]"


def _size(*texts: str | None) -> int:
    return sum(len(text) if text.isascii() else len(text.encode()) for text in texts if text)


def _dumped(value: Any) -> str:
    try:
        return orjson.dumps(value).decode()
    except TypeError:  # a number beyond 64 bits, a lone surrogate, or too deep for orjson
        return clean(json.dumps(_shallow(value, MAX_DEPTH), ensure_ascii=False, default=str))


def _shallow(value: Any, depth: int) -> Any:
    """The value down to some depth; what is below is cut."""
    if not isinstance(value, dict | list):
        return value
    if depth == 0:
        return "[cut: nested too deep]"
    if isinstance(value, dict):
        return {key: _shallow(below, depth - 1) for key, below in value.items()}
    return [_shallow(below, depth - 1) for below in value]
