"""Limits on the shape of a JSON body, checked before it is parsed: how deep it is nested and how many values it has."""

from apexbridge.errors import InvalidInputError

MAX_DEPTH = 64
MAX_VALUES = 100_000
"""Parsing, validating and encoding cost about a microsecond a value each; together they must not stall the server."""
_QUOTES_PER_VALUE = 4
"""A value that is a string, and its key."""
_ALL_BUT_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))
_OPENING = frozenset(b"[{")


def check_json(body: bytes, *, max_depth: int = MAX_DEPTH, max_values: int = MAX_VALUES) -> None:
    """Refuse JSON that is too deep or has too many values; text in strings does not count.

    Malformed JSON is left to the parser: it stops at the first mistake, and up to there the counts are right.

    Raises:
        InvalidInputError: a limit is exceeded.
    """
    opening = body.count(b"[") + body.count(b"{")
    if opening <= max_depth and opening + body.count(b",") < max_values:
        return
    # Backslashes only occur in strings. Without escaped backslashes and escaped quotes, each quote opens or closes one.
    unescaped = body.replace(b"\\\\", b"").replace(b'\\"', b"")
    if unescaped.count(b'"') > _QUOTES_PER_VALUE * max_values:
        raise _too_many_values(max_values)
    outside_strings = b"".join(unescaped.split(b'"')[::2])
    if outside_strings.count(b",") + outside_strings.count(b"[") + outside_strings.count(b"{") >= max_values:
        raise _too_many_values(max_values)
    depth = 0
    for byte in outside_strings.translate(None, _ALL_BUT_BRACKETS):
        depth += 1 if byte in _OPENING else -1
        if depth > max_depth:
            raise InvalidInputError(f"The JSON of the body is nested deeper than {max_depth} levels")
        if depth < 0:
            return


def _too_many_values(limit: int) -> InvalidInputError:
    return InvalidInputError(
        f"The JSON of the body has more than {limit:,} values. Send large data as a file (POST /api/uploads)."
    )
