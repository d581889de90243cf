"""Untrusted text: normalisation for comparison, escaping for display."""

import unicodedata
from typing import Literal

_CHUNK = 500
"""Characters that are normalised at a time."""
CJK_RANGES = "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\uac00-\ud7af"
"""Chinese, Japanese and Korean characters, for a character class of a regular expression."""


def normalized(form: Literal["NFC", "NFD", "NFKC", "NFKD"], text: str) -> str:
    """Unicode normalisation in linear time.

    Normalisation sorts combining marks, which takes quadratic time for a long run of them. A long text is therefore
    normalised in chunks; only a character that is composed across a chunk border stays decomposed.
    """
    if len(text) <= _CHUNK or text.isascii():
        return unicodedata.normalize(form, text)
    chunks = (text[start : start + _CHUNK] for start in range(0, len(text), _CHUNK))
    return "".join(unicodedata.normalize(form, chunk) for chunk in chunks)


def escaped(text: str) -> str:
    """The text with unprintable characters escaped: control characters, line ends, direction marks, surrogates."""
    if text.isprintable():
        return text
    return "".join(
        character if character.isprintable() else character.encode("unicode_escape", "surrogatepass").decode()
        for character in text
    )
