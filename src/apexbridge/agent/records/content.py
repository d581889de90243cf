"""What a record of a chat contains: no text of users, models or tools unless texts are recorded, in bounded size."""

import json
import re
from collections.abc import Iterable
from functools import lru_cache
from typing import Any

import orjson

from apexbridge.agent.request import BadRequestError
from apexbridge.errors import ApexBridgeError
from apexbridge.llm.upstream_errors import UpstreamError

Json = dict[str, Any]
MAX_NAME = 200
MAX_MESSAGE = 1_000
MAX_USAGE_DEPTH = 8
"""Upstreams nest usage at most two levels deep; deeper data is untrusted."""
MAX_RECORD_BYTES = 256 * 1024
"""Steps, messages and answer of one request together."""
STEPS_BYTES = 64 * 1024
ANSWER_BYTES = 64 * 1024
MAX_JSON_DEPTH = 100
"""Deeper JSON of a client or an upstream would end in a RecursionError, here or in a reader of the record."""
MESSAGES_BYTES = 120 * 1024
"""Limits of each if they are too long together; the marks need some bytes too."""
_WORD = re.compile(r"\w[\w.-]{0,63}", re.ASCII)
_RUN = re.compile(r"[0-9a-f-]{32,36}")
_NUMBERS = frozenset({int, float, bool})


def redact_steps(steps: Iterable[Json]) -> list[Json]:
    """The steps with names of our own tools and numbers only."""
    return [_redacted(step) for step in steps]


def error_summary(error: BaseException | None, *, has_texts: bool) -> tuple[str, str]:
    """Code and message of an error. Without texts the message is a fixed one: others may quote the request."""
    if isinstance(error, UpstreamError):
        fields = error.error
        code, message = fields.get("code") or fields.get("type"), fields.get("message")
        ours = f"Answered with the status {error.status}."
    elif isinstance(error, BadRequestError):
        code, message, ours = (
            error.openai_code or "invalid_request",
            error.message,
            "The request could not be answered.",
        )
    elif isinstance(error, ApexBridgeError):
        code, message, ours = error.code.lower(), error.message, f"Answered with the status {error.status}."
    else:
        code, message, ours = "internal_error", None, "Something went wrong here; the log has more."
    # An upstream's code can be any JSON value.
    is_word = isinstance(code, str | int) and _WORD.fullmatch(str(code)) is not None
    word = str(code) if is_word else "upstream_error"
    return word, str(message)[:MAX_MESSAGE] if has_texts and message else ours


def log_safe(name: str) -> str:
    """An untrusted name without control characters, for a log line."""
    return "".join(letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in name[:MAX_NAME])


def _redacted(step: Json) -> Json:
    # Names of unknown tools come from the model.
    has_our_name = step.get("kind") == "model" or step.get("tool") is not None
    fields: Json = {}
    for key, value in step.items():
        if type(value) in _NUMBERS:
            fields[key] = value
        elif key in ("kind", "tool") or (key == "name" and has_our_name):
            fields[key] = str(value)[:MAX_NAME] if value is not None else None
        elif key == "usage" and type(value) is dict:
            fields[key] = _counts(value)
        elif key == "results" and type(value) is list:
            fields[key] = [{"name": hit.get("name"), "score": hit.get("score")} for hit in value if type(hit) is dict]
        elif key == "executionId" and _RUN.fullmatch(str(value)):  # any tool can return a field of that name
            fields[key] = value
    return fields


def _counts(usage: Json, depth: int = MAX_USAGE_DEPTH) -> Json:
    """Numbers of an upstream's usage under plain names."""
    fields: Json = {}
    for key, value in usage.items():
        if len(key) <= MAX_NAME and _is_word(key):
            if type(value) in _NUMBERS:
                fields[key] = value
            elif type(value) is dict and depth > 1:
                fields[key] = _counts(value, depth - 1)
    return fields


@lru_cache(maxsize=1024)
def _is_word(text: str) -> bool:
    return _WORD.fullmatch(text) is not None


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
    left = STEPS_BYTES
    for count, step in enumerate(steps):
        left -= _size(_dumped(step)) + 1
        if left < 0:
            return [*steps[:count], {"kind": "cut", "text": f"[cut: {len(steps) - count} more steps]"}]
    return steps


def _last(messages: list[Any]) -> list[Any]:
    """The last messages, as many as fit."""
    last: list[Any] = []
    left = MESSAGES_BYTES
    for message in reversed(messages):
        size = _size(_dumped(message)) + 1
        if size > left and not last:
            role = str(message.get("role"))[:64] if isinstance(message, dict) else None
            content = message.get("content") if isinstance(message, dict) else message
            text = content if isinstance(content, str) else _dumped(content)
            # JSON escapes can take six bytes for one character.
            last.append({"role": role, "content": _cut(clean(text), MESSAGES_BYTES // 6)})
            break
        if size > left:
            break
        left -= size
        last.append(message)
    missing = len(messages) - len(last)
    marks = [{"role": "cut", "content": f"[cut: {missing} earlier messages]"}] if missing else []
    return [*marks, *reversed(last)]


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
        return clean(json.dumps(_shallow(value, MAX_JSON_DEPTH), ensure_ascii=False, default=str))


def _shallow(value: Any, depth: int) -> Any:
    """The value down to a depth; deeper levels are replaced by a mark."""
    if not isinstance(value, dict | list):
        return value
    if depth == 0:
        return "[cut: nested too deep]"
    if isinstance(value, dict):
        return {key: _shallow(below, depth - 1) for key, below in value.items()}
    return [_shallow(below, depth - 1) for below in value]
