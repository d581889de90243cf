"""Text of unknown origin, made fit to be shown and compared."""

import unicodedata
from typing import Literal

_PIECE = 500
"""Characters that are normalised together."""
CJK_RANGES = "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\uac00-\ud7af"
"""Chinese, Japanese and Korean characters, for a character class of a regular expression."""


def normalized(form: Literal["NFC", "NFD", "NFKC", "NFKD"], text: str) -> str:
    """Unicode normalisation in linear time: combining marks are sorted, which takes quadratic time for a run of them.

    A long text is normalised in pieces; only a character that is composed across their border stays decomposed.
    """
    if len(text) <= _PIECE or text.isascii():
        return unicodedata.normalize(form, text)
    pieces = (text[start : start + _PIECE] for start in range(0, len(text), _PIECE))
    return "".join(unicodedata.normalize(form, piece) for piece in pieces)


def escaped(text: str) -> str:
    """The text with everything that cannot be seen as an escape: controls, line ends, direction marks, surrogates."""
    if text.isprintable():
        return text
    return "".join(
        character if character.isprintable() else character.encode("unicode_escape", "surrogatepass").decode()
        for character in text
    )
