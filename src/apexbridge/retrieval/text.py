"""Text as search sees it: words of a name, keyword tokens, clauses of a request."""

import re
import threading
import unicodedata
from functools import cache, lru_cache
from typing import Any

from apexbridge._text import normalized

MAX_CLAUSES = 6
MAX_MARKS = 30
"""Combining marks on one character, as in Unicode's stream-safe text: normalising sorts them, in quadratic time."""
MAX_STEMMED_CHARACTERS = 64
"""A longer run of letters is not a word of a language; stems are cached, so each would take memory for long."""
MIN_CLAUSE_WORDS = 3
MIN_CLAUSE_CHARACTERS = 4
"""For scripts without spaces."""
# fmt: off
STOP_WORDS = frozenset({
    "a", "an", "and", "are", "as", "at", "be", "by", "can", "could", "do", "does", "for", "from", "help", "how", "i",
    "in", "is", "it", "me", "my", "need", "needs", "of", "on", "or", "please", "that", "the", "these", "this", "those",
    "to", "use", "used", "user", "users", "using", "want", "wants", "we", "what", "when", "which", "with", "would",
    "you", "your",
})
# fmt: on

_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
_CJK = "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\uac00-\ud7af"
_CJK_CHARACTER = re.compile(f"[{_CJK}]")
_WORD = re.compile(rf"[{_CJK}]+|[^\W_{_CJK}]+")
_CUT = re.compile(
    # Without the lookbehind, a run of spaces would be scanned again from each of them.
    r"[.;!?。；！？\n]+\s*|[,，、:：]\s*|(?<!\s)\s+(?:and|then|also|but|so|after|before|while|plus)\s+"
    r"|然后|并且|并|再|同时|接着|以及|还有|另外|最后|之后",
    re.IGNORECASE,
)
_INVISIBLE = {"Cc", "Cf", "Cs", "Co", "Cn"}
_stemming = threading.Lock()
"""A stemmer keeps the word it works on in itself."""


def visible(text: str) -> str:
    """The text without control characters and half characters, its white space single; composed (NFKC)."""
    kept: list[str] = []
    marks = 0
    for character in text:
        marks = marks + 1 if unicodedata.combining(character) else 0
        if marks <= MAX_MARKS:
            kept.append(" " if unicodedata.category(character) in _INVISIBLE else character)
    return " ".join(normalized("NFKC", "".join(kept)).split())


def has_cjk(text: str) -> bool:
    """Whether there is a Chinese, Japanese or Korean character in it."""
    return _CJK_CHARACTER.search(text) is not None


def is_mostly_ascii(text: str) -> bool:
    """Whether a model that knows English alone can make something of it."""
    letters = [character for character in text if character.isalpha()]
    return sum(character.isascii() for character in letters) >= 0.8 * len(letters)


def name_words(name: str) -> str:
    """A name as words: `gitCommit` and `git-commit` are both "git Commit"-like."""
    return " ".join(_WORD.findall(_CAMEL.sub(" ", name)))


def plain_words(text: str) -> list[str]:
    """The words in lower case, whole; a run of CJK characters counts as one."""
    return [word.lower() for word in _WORD.findall(_CAMEL.sub(" ", text))]


def word_count(text: str) -> float:
    """How long a text is in words; CJK has about 1.7 characters a word."""
    characters = len(_CJK_CHARACTER.findall(text))
    return sum(1 for word in _WORD.findall(text) if not has_cjk(word)) + characters / 1.7


def tokens(text: str) -> list[str]:
    """What keyword search compares: stems of words, pairs of CJK characters; no stop words."""
    found: list[str] = []
    for word in plain_words(text):
        if has_cjk(word):
            found.extend(word[place : place + 2] for place in range(len(word) - 1))
            if len(word) == 1:
                found.append(word)
        elif len(word) > MAX_STEMMED_CHARACTERS:
            found.append(word[:MAX_STEMMED_CHARACTERS])
        elif word not in STOP_WORDS:
            found.append(_stem(word))
    return found


def clauses(text: str) -> list[str]:
    """The parts of a request that asks for several things; none where it asks for one."""
    parts = [part.strip(" \"'“”‘’") for part in _CUT.split(text)]
    whole = [
        part
        for part in parts
        if len(part.split()) >= MIN_CLAUSE_WORDS or len(_CJK_CHARACTER.findall(part)) >= MIN_CLAUSE_CHARACTERS
    ]
    return whole[:MAX_CLAUSES] if len(whole) > 1 else []


@lru_cache(maxsize=50_000)
def _stem(word: str) -> str:
    with _stemming:
        return str(_stemmer().stemWord(word))


@cache
def _stemmer() -> Any:
    import snowballstemmer

    return snowballstemmer.stemmer("english")
