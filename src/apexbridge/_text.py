"""Untrusted text: normalisation for comparison, escaping for display, an estimate of its tokens, similar names."""

import difflib
import re
import unicodedata
from collections.abc import Iterable
from typing import Literal

_CHUNK = 500
"""Characters that are normalised at a time."""
CJK_RANGES = "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\uac00-\ud7af"
"""Chinese, Japanese and Korean characters, for a character class of a regular expression."""
_CJK = re.compile(f"[{CJK_RANGES}]")
_CJK_BYTES, _BYTES_PER_TOKEN = 3, 4
_DIRECTIONS = frozenset({"LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI"})
_API_KEY = re.compile(r"apex_([0-9a-f]{8})_[\w-]+", re.ASCII)
_NAME_CHARACTERS = 64
_COMPARED_NAMES = 1_000
"""The comparison takes about 20 µs for each name."""


def normalized(form: Literal["NFC", "NFD", "NFKC", "NFKD"], text: str) -> str:
    """Unicode normalisation in linear time.

    Normalisation sorts combining marks, which takes quadratic time for a long run of them. A long text is therefore
    normalised in chunks; only a character that is composed across a chunk border stays decomposed.
    """
    if len(text) <= _CHUNK or text.isascii():
        return unicodedata.normalize(form, text)
    chunks = (text[start : start + _CHUNK] for start in range(0, len(text), _CHUNK))
    return "".join(unicodedata.normalize(form, chunk) for chunk in chunks)


def without_keys(text: str) -> str:
    """The text with API keys masked: a client may put one anywhere, such as into a path."""
    return _API_KEY.sub(r"apex_\1_***", text) if "apex_" in text else text


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


def near_names(name: str, names: Iterable[str], *, limit: int = 3, cutoff: float = 0.6) -> list[str]:
    """The names that a mistyped name may stand for, the nearest first: similar ones, then ones that begin with it."""
    asked = name[:_NAME_CHARACTERS]
    known = sorted(names)
    most = 2 / cutoff - 1  # a longer or shorter name cannot reach the cutoff
    similar = [other for other in known if len(asked) / most <= len(other[:_NAME_CHARACTERS]) <= len(asked) * most]
    found = difflib.get_close_matches(asked, similar[:_COMPARED_NAMES], limit, cutoff)
    begun = [other for other in known if len(asked) > 2 and other.startswith(asked) and other not in found]
    return [*found, *begun][:limit]


def control_character(text: str) -> str | None:
    """The first character that no file name should have: it ends the line, or changes the direction of the text."""
    for letter in text:
        if unicodedata.category(letter) in ("Cc", "Zl", "Zp") or unicodedata.bidirectional(letter) in _DIRECTIONS:
            return letter
    return None
