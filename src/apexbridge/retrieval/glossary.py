"""Chinese and English words for the same thing, so that a request matches skills in the other language too."""

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files

from apexbridge.retrieval.text import has_cjk, tokens

MIN_GIST_WORDS = 2
"""One word alone is too ambiguous."""


def translated(text: str) -> list[str]:
    """Keyword tokens of a request in the other language, for the words that the glossary has."""
    glossary = _glossary()
    if has_cjk(text):
        found = (token for match in glossary.terms.finditer(text) for token in glossary.english_of[match.group()])
    else:
        found = (token for word in tokens(text) for token in glossary.chinese_of.get(word, ()))
    return list(dict.fromkeys(found))


def english_gist(text: str) -> str | None:
    """A Chinese request as a few English words; None if the glossary has too few of its words."""
    glossary = _glossary()
    found = [glossary.gist_of[match.group()] for match in glossary.terms.finditer(text)]
    words = found[0][:MIN_GIST_WORDS] if len(found) == 1 else [first for first, *_ in found]
    return " ".join(words) if len(words) >= MIN_GIST_WORDS else None


@dataclass(slots=True)
class _Glossary:
    english_of: dict[str, list[str]] = field(default_factory=dict)
    """Tokens by Chinese term."""
    gist_of: dict[str, list[str]] = field(default_factory=dict)
    """English words by Chinese term, best first."""
    chinese_of: dict[str, list[str]] = field(default_factory=dict)
    """Tokens by English stem."""
    terms: re.Pattern[str] = re.compile(r"(?!)")
    """Any Chinese term, the longest first."""

    def add(self, chinese: Iterable[str], english: list[str]) -> None:
        stems = tokens(" ".join(english))
        for term in chinese:
            self.english_of.setdefault(term, []).extend(stems)
            self.gist_of.setdefault(term, english)
            for stem in stems:
                self.chinese_of.setdefault(stem, []).extend(tokens(term))


@cache
def _glossary() -> _Glossary:
    glossary = _Glossary()
    for line in files("apexbridge.retrieval").joinpath("glossary.txt").read_text("utf-8").splitlines():
        if not line.startswith("#"):
            words = line.split()
            glossary.add(filter(has_cjk, words), [word for word in words if not has_cjk(word)])
    glossary.terms = re.compile("|".join(sorted(map(re.escape, glossary.english_of), key=len, reverse=True)))
    return glossary
