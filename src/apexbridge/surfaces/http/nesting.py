"""How deep JSON is nested, found without parsing it: a parser that follows strangers down has to come up again."""

import numpy as np

MAX_DEPTH = 64
_ALL_BUT_STRUCTURE = bytes(set(range(256)) - set(b'"[]{}'))
_STEPS = bytes.maketrans(b"[{]}", bytes([1, 1, 255, 255]))
"""Down is 1, up is -1 in a signed byte."""


def is_too_deep(body: bytes, limit: int = MAX_DEPTH) -> bool:
    """Whether the JSON goes deeper than the limit; text in strings does not count.

    Backslashes stand in strings only. Taken away in pairs, and then with the quote that they stand before, they leave
    quotes that open and close in turn, so each second stretch between quotes lies outside of strings. What is no JSON
    is the parser's to refuse: it gets no further down than to the first mistake, and up to there this is right.
    """
    if body.count(b"[") + body.count(b"{") <= limit:
        return False
    bare = body.replace(b"\\\\", b"").replace(b'\\"', b"").translate(None, _ALL_BUT_STRUCTURE)
    brackets = b"".join(bare.split(b'"')[::2])
    if not brackets:
        return False
    steps = np.frombuffer(brackets.translate(_STEPS), np.int8)
    return bool(np.cumsum(steps, dtype=np.int32).max() > limit)
