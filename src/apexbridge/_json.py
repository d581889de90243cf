"""JSON: fast encoding, and untrusted JSON, whose shape is checked before it is parsed.

Deeply nested or crowded JSON is cheap to send and expensive to parse, validate and encode again.
"""

import json
from typing import Any

import orjson

MAX_DEPTH = 64
MAX_VALUES = 100_000
"""Parsing, validating and encoding each cost about a microsecond per value; they must not stall the event loop."""
MAX_DIGITS = 1_000
"""Digits of one number: parsing and comparing it takes time quadratic in its digits."""
SMALL_BYTES = 64 * 1024
"""Long numbers are cheap in smaller documents: no check. The parser itself refuses more than 4,300 digits."""
_DIGITS = b"0" * (MAX_DIGITS + 1)
_AS_ZEROS = bytes.maketrans(b"123456789", b"000000000")
_QUOTES_PER_VALUE = 4
"""Two of a string value, two of its key."""
_ALL_BUT_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))
_OPENING = frozenset(b"[{")


class JsonShapeError(ValueError):
    """The document is nested too deeply or has too many values."""


def dumped(value: Any) -> bytes:
    try:
        return orjson.dumps(value)
    except TypeError:  # an integer beyond 64 bits, or a lone surrogate
        return json.dumps(value, ensure_ascii=True).encode()


def loads_stored(data: bytes) -> Any:
    """Parse what `dumped` encoded."""
    try:
        return orjson.loads(data)
    except orjson.JSONDecodeError:  # a lone surrogate
        return json.loads(data)


def loads_untrusted(text: str) -> Any:
    """Parse JSON of bounded shape. Raises ValueError."""
    check_shape(text.encode("utf-8", "surrogatepass"))
    try:
        return json.loads(text)
    except RecursionError as error:  # the depth was checked, so the text is malformed
        raise ValueError("not valid JSON") from error


def loads_or(text: str, default: Any) -> Any:
    """Parse JSON of bounded shape; returns the default if that is not possible."""
    try:
        return loads_untrusted(text)
    except ValueError:
        return default


def check_shape(body: bytes, *, max_depth: int = MAX_DEPTH, max_values: int = MAX_VALUES) -> None:
    """Refuse JSON that is too deep or has too many values; text in strings does not count.

    Malformed JSON is left to the parser: it stops at the first error, and the counts are correct up to there.

    Raises:
        JsonShapeError: a limit is exceeded.
    """
    if len(body) > SMALL_BYTES and _DIGITS in body.translate(_AS_ZEROS):
        _check_numbers(body)
    opening = body.count(b"[") + body.count(b"{")
    if opening <= max_depth and opening + body.count(b",") < max_values:
        return
    unescaped = _unescaped(body)
    if unescaped.count(b'"') > _QUOTES_PER_VALUE * max_values:
        raise _too_many_values(max_values)
    outside_strings = _outside_strings(unescaped)
    if outside_strings.count(b",") + outside_strings.count(b"[") + outside_strings.count(b"{") >= max_values:
        raise _too_many_values(max_values)
    depth = 0
    for byte in outside_strings.translate(None, _ALL_BUT_BRACKETS):
        depth += 1 if byte in _OPENING else -1
        if depth > max_depth:
            raise JsonShapeError(f"nested deeper than {max_depth} levels")
        if depth < 0:
            return


def _check_numbers(body: bytes) -> None:
    unescaped = _unescaped(body)
    if unescaped.count(b'"') > _QUOTES_PER_VALUE * MAX_VALUES:
        raise _too_many_values(MAX_VALUES)
    if _DIGITS in _outside_strings(unescaped).translate(_AS_ZEROS):
        raise JsonShapeError(f"a number of more than {MAX_DIGITS:,} digits")


def _unescaped(body: bytes) -> bytes:
    """The document without escaped backslashes and escaped quotes: each quote then opens or closes a string.

    Backslashes only occur in strings.
    """
    return body.replace(b"\\\\", b"").replace(b'\\"', b"")


def _outside_strings(unescaped: bytes) -> bytes:
    return b'"'.join(unescaped.split(b'"')[::2])


def _too_many_values(limit: int) -> JsonShapeError:
    return JsonShapeError(f"more than {limit:,} values")
