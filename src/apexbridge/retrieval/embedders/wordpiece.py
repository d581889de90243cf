"""BERT's way from text to numbers: words in lower case, then the longest pieces that the vocabulary has."""

import unicodedata
from collections.abc import Iterator, Mapping
from functools import lru_cache

from apexbridge._text import normalized

MAX_WORD_CHARACTERS = 100


class WordPieceTokenizer:
    """Tokens of an uncased BERT vocabulary."""

    def __init__(self, vocabulary: Mapping[str, int]) -> None:
        self._vocabulary = vocabulary
        self._unknown = vocabulary["[UNK]"]
        self._begin, self._end = vocabulary["[CLS]"], vocabulary["[SEP]"]
        self._pieces = lru_cache(maxsize=20_000)(self._split)

    def encode(self, text: str, limit: int) -> list[int]:
        """At most `limit` numbers, the two that mark begin and end among them."""
        found = [self._begin]
        for word in _words(text):
            # Long words stay out of the cache, where they would take memory.
            found.extend(self._pieces(word) if len(word) <= MAX_WORD_CHARACTERS else (self._unknown,))
            if len(found) >= limit:
                break
        return [*found[: limit - 1], self._end]

    def _split(self, word: str) -> tuple[int, ...]:
        pieces: list[int] = []
        start = 0
        while start < len(word):
            prefix = "##" if start else ""
            for end in range(len(word), start, -1):
                piece = self._vocabulary.get(prefix + word[start:end])
                if piece is not None:
                    break
            else:
                return (self._unknown,)
            pieces.append(piece)
            start = end
        return tuple(pieces)


def _words(text: str) -> Iterator[str]:
    """Words without accents; every punctuation mark and every ideograph is one of its own."""
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
    """All of ASCII that is neither letter nor digit counts, as BERT counts it."""
    return category.startswith("P") or (character.isascii() and not character.isalnum())
