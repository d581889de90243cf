"""BERT's WordPiece tokenizer: words in lower case, split into the longest subwords of the vocabulary."""

import unicodedata
from collections.abc import Iterator, Mapping
from functools import lru_cache

from apexbridge._text import normalized

MAX_WORD_CHARACTERS = 100


class WordPieceTokenizer:
    """For an uncased BERT vocabulary."""

    def __init__(self, vocabulary: Mapping[str, int]) -> None:
        self._vocabulary = vocabulary
        self._unknown = vocabulary["[UNK]"]
        self._begin, self._end = vocabulary["[CLS]"], vocabulary["[SEP]"]
        self._subwords = lru_cache(maxsize=20_000)(self._split)

    def encode(self, text: str, limit: int) -> list[int]:
        """At most `limit` token ids, including those that mark begin and end."""
        ids = [self._begin]
        for word in _words(text):
            # Long words would fill the cache.
            ids.extend(self._subwords(word) if len(word) <= MAX_WORD_CHARACTERS else (self._unknown,))
            if len(ids) >= limit:
                break
        return [*ids[: limit - 1], self._end]

    def _split(self, word: str) -> tuple[int, ...]:
        subwords: list[int] = []
        start = 0
        while start < len(word):
            prefix = "##" if start else ""
            for end in range(len(word), start, -1):
                subword = self._vocabulary.get(prefix + word[start:end])
                if subword is not None:
                    break
            else:
                return (self._unknown,)
            subwords.append(subword)
            start = end
        return tuple(subwords)


def _words(text: str) -> Iterator[str]:
    """Words without accents; every punctuation mark and every ideograph is a word."""
    word: list[str] = []
    for character in normalized("NFD", text.lower()):
        category = unicodedata.category(character)
        if category == "Mn" or (category.startswith("C") and character not in "\t\n\r"):
            continue
        if character.isspace():
            alone = ""
        elif _is_punctuation(character, category) or 0x3400 <= ord(character) <= 0x9FFF:
            alone = character
        else:
            word.append(character)
            continue
        if word:
            yield "".join(word)
            word = []
        if alone:
            yield alone
    if word:
        yield "".join(word)


def _is_punctuation(character: str, category: str) -> bool:
    """As in BERT, every ASCII character that is neither letter nor digit."""
    return category.startswith("P") or (character.isascii() and not character.isalnum())
