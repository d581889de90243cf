"""What can be told of a request without a word of anybody: of its steps, and of its failure."""

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
"""Of what an upstream counted; those that are known to nest, nest twice."""
_WORD = re.compile(r"\w[\w.-]{0,63}", re.ASCII)
_RUN = re.compile(r"[0-9a-f-]{32,36}")
_NUMBERS = frozenset({int, float, bool})


def redact_steps(steps: Iterable[Json]) -> list[Json]:
    """The steps with nothing in them that a user, a model or a tool said: names that are ours, and numbers."""
    return [_without_texts(step) for step in steps]


def error_summary(error: BaseException | None, *, has_texts: bool) -> tuple[str, str]:
    """Code and words of an error; where no texts are kept, in ours, because others quote what they were sent."""
    if isinstance(error, UpstreamError):
        told = error.error
        code, message = told.get("code") or told.get("type"), told.get("message")
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
    # An upstream's code can be any JSON, of any depth.
    is_word = isinstance(code, str | int) and _WORD.fullmatch(str(code)) is not None
    word = str(code) if is_word else "upstream_error"
    return word, str(message)[:MAX_MESSAGE] if has_texts and message else ours


def log_safe(name: str) -> str:
    """A name that somebody else gave, fit for a line of a log."""
    return "".join(letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in name[:MAX_NAME])


def _without_texts(step: Json) -> Json:
    # A tool that does not exist has a name that a model made up.
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
        elif key == "executionId" and _RUN.fullmatch(str(value)):  # any tool may answer with something of that name
            kept[key] = value
    return kept


def _counts(usage: Json, depth: int = MAX_DEPTH) -> Json:
    """What an upstream counted: numbers under names that upstreams use."""
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
