"""Untrusted text: normalisation for comparison, escaping for display, an estimate of its tokens."""

import re
import unicodedata
from typing import Literal

_CHUNK = 500
"""Characters that are normalised at a time."""
CJK_RANGES = "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\uac00-\ud7af"
"""Chinese, Japanese and Korean characters, for a character class of a regular expression."""
_CJK = re.compile(f"[{CJK_RANGES}]")
_CJK_BYTES, _BYTES_PER_TOKEN = 3, 4


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


def estimated_tokens(text: str) -> float:
    """One token for each CJK character, and one for four bytes of other text."""
    wide = len(_CJK.findall(text))
    return wide + (len(text.encode("utf-8", "replace")) - _CJK_BYTES * wide) / _BYTES_PER_TOKEN
