"""Steps and errors of a chat without text of users, models or tools."""

import re
from collections.abc import Iterable
from functools import lru_cache
from typing import Any

from apexbridge.agent.request import BadRequestError
from apexbridge.errors import ApexBridgeError
from apexbridge.llm.errors import UpstreamError

Json = dict[str, Any]
MAX_NAME = 200
MAX_MESSAGE = 1_000
MAX_DEPTH = 8
"""Upstreams nest usage at most two levels deep; deeper data is untrusted."""
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
    kept: Json = {}
    for key, value in step.items():
        if type(value) in _NUMBERS:
            kept[key] = value
        elif key in ("kind", "tool") or (key == "name" and has_our_name):
            kept[key] = str(value)[:MAX_NAME] if value is not None else None
        elif key == "usage" and type(value) is dict:
            kept[key] = _counts(value)
        elif key == "results" and type(value) is list:
            kept[key] = [{"name": hit.get("name"), "score": hit.get("score")} for hit in value if type(hit) is dict]
        elif key == "executionId" and _RUN.fullmatch(str(value)):  # any tool can return a field of that name
            kept[key] = value
    return kept


def _counts(usage: Json, depth: int = MAX_DEPTH) -> Json:
    """Numbers of an upstream's usage under plain names."""
    kept: Json = {}
    for key, value in usage.items():
        if len(key) <= MAX_NAME and _is_word(key):
            if type(value) in _NUMBERS:
                kept[key] = value
            elif type(value) is dict and depth > 1:
                kept[key] = _counts(value, depth - 1)
    return kept


@lru_cache(maxsize=1024)
def _is_word(text: str) -> bool:
    return _WORD.fullmatch(text) is not None
