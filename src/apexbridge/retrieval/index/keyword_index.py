"""Keyword search: BM25 over the tokens of each slot, with changes that cost little in a large index."""

import itertools
import json
import math
import string
from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from rapidfuzz import process
from rapidfuzz.distance import DamerauLevenshtein

from apexbridge.retrieval.embedders.model import Floats

MIN_CORRECTED_LETTERS, LONG_WORD_LETTERS = 5, 8
"""A word may have one wrong letter from the first length on, and two from the second."""
MIN_PREFIX_LETTERS = 4
MAX_CORRECTED_WORDS = 8
"""Of a request."""
MAX_CORRECTIONS = 2
"""For each word."""
K1 = 1.2
B_SHORT, B_LONG = 0.75, 0.4
SHORT_TOKENS, LONG_TOKENS = 14.0, 22.0
"""`b` falls between these mean lengths: among short descriptions a long one is vague, among long ones specific."""
RECENT_DOCUMENTS = 512
"""Changed documents that are indexed again at the next query. More become a segment."""
LETTER_WEIGHT = 0.5
"""Of the rarity of a single Latin letter: few texts have one, and it says little. `X` can be a site or anything."""
LETTERS = frozenset(string.ascii_lowercase)
BODY_WEIGHT = 0.5
"""Of a word in the body, relative to one in the name, the description or the tags."""
NAME_FLAG = 1 << 15
"""In the counts of a posting: the word is in the name."""
MAX_OWN_COUNT, MAX_BODY_COUNT = 127, 255
MIN_SLOTS = 20
"""In a library of five skills, a word that one of them has is not common."""
MAX_INSERTED_WORDS = 100
"""New words inserted into the sorted ones. If there are more, all are sorted again."""

Integers = NDArray[np.int32]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Segment:
    """Postings of some documents, by term. It never changes."""

    starts: Integers
    """Where the postings of each term begin; one more entry at the end."""
    documents: Integers
    """Ascending within a term."""
    counts: NDArray[np.uint16]
    """How often the document has the term.

    The lower byte is for its body. The upper one is for its name, description and tags; its first bit says whether the
    name has it.
    """

    @classmethod
    def of(cls, terms: Integers, documents: Integers, counts: NDArray[np.uint16], words: int) -> "_Segment":
        """From postings in any order of terms."""
        order = np.argsort(terms, kind="stable")
        starts = np.zeros(words + 1, np.int32)
        np.cumsum(np.bincount(terms, minlength=words), out=starts[1:])
        return cls(starts=starts, documents=documents[order], counts=counts[order])

    @property
    def terms(self) -> Integers:
        """The term of each posting."""
        return np.repeat(np.arange(len(self.starts) - 1, dtype=np.int32), np.diff(self.starts))

    def postings(self, term: int) -> slice:
        if term + 1 >= len(self.starts):  # the word came later
            return slice(0, 0)
        return slice(int(self.starts[term]), int(self.starts[term + 1]))

    def spread(self, is_alive: NDArray[np.bool_]) -> NDArray[np.int64]:
        """How many documents have each term, without those that were replaced or removed."""
        alive = is_alive[self.documents]
        if alive.all():
            return np.diff(self.starts).astype(np.int64)
        before = np.concatenate(([0], np.cumsum(alive)))
        return np.diff(before[self.starts])


class Overlap(NamedTuple):
    """Per slot, how far the words of a request and of the slot are the same."""

    request: Floats
    """Share of the request's words that the slot has, weighted by rarity."""
    request_by_name: Floats
    """Share of them that its name has."""
    name: Floats
    """Share of the name's words that the request has."""


class KeywordIndex:
    """BM25 over the tokens of each slot.

    Each change makes a new document number. Postings refer to numbers, so a slot can be replaced, removed or renumbered
    without touching them. Postings are in segments, each at least twice as large as the next: a change only builds the
    small last one again. Weights are computed from counts at each query, because every change affects all of them.
    """

    def __init__(self) -> None:
        self._vocabulary: dict[str, int] = {}
        self._segments: list[_Segment] = []
        self._spreads: list[NDArray[np.int64] | None] = []
        """Of each segment; None if one of its documents is gone since."""
        self._recent: list[tuple[int, Integers, NDArray[np.uint16]]] = []
        """Documents without a segment: number, terms, counts."""
        self._size = 0
        """Number of slots."""
        self._numbers: Integers = np.zeros(0, np.int32)
        """The document of each slot."""
        self._next = 0
        """The next document number."""
        self._lengths: Floats = np.zeros(0, np.float32)
        """Tokens of each document."""
        self._name_lengths: Floats = np.zeros(0, np.float32)
        """Different tokens in the name of each document."""
        self._is_alive: NDArray[np.bool_] = np.zeros(0, np.bool_)
        self._is_built = False
        self._last: _Segment | None = None
        """The segment of the recent documents."""
        self._spread: NDArray[np.int64] = np.zeros(0, np.int64)
        self._rarity: Floats = np.zeros(0, np.float32)
        self._damp: NDArray[np.float64] = np.zeros(0, np.float64)
        self._mean_length = 1.0
        self._plain_words: list[str] | None = None
        """Known words of ASCII letters, sorted; None until they are needed."""

    def copy(self) -> "KeywordIndex":
        """A copy that can be changed."""
        copy = KeywordIndex()
        copy._vocabulary = dict(self._vocabulary)
        copy._segments, copy._spreads = list(self._segments), list(self._spreads)
        copy._recent = list(self._recent)
        copy._size, copy._next = self._size, self._next
        copy._numbers, copy._lengths = self._numbers.copy(), self._lengths.copy()
        copy._name_lengths = self._name_lengths.copy()
        copy._is_alive = self._is_alive.copy()
        return copy

    def __len__(self) -> int:
        return self._size

    def put(
        self, slot: int, tokens: Iterable[str], *, body: Iterable[str] = (), name: Collection[str] = frozenset()
    ) -> None:
        """`tokens` are those of name, description and tags; `name` has those of the name alone."""
        own, others, named = Counter(tokens), Counter(body), set(name)
        words = [*own, *(word for word in others if word not in own)]
        terms = [self._vocabulary.setdefault(word, len(self._vocabulary)) for word in words]
        counts = np.array([_count_of(own[word], others[word], in_name=word in named) for word in words], np.uint16)
        number, self._next = self._next, self._next + 1
        self._numbers = _grown(self._numbers, slot + 1)
        self._lengths, self._is_alive = _grown(self._lengths, self._next), _grown(self._is_alive, self._next)
        self._name_lengths = _grown(self._name_lengths, self._next)
        if slot < self._size:
            self._remove(int(self._numbers[slot]))
        self._size = max(self._size, slot + 1)
        self._numbers[slot] = number
        self._lengths[number] = own.total() + BODY_WEIGHT * others.total()
        self._name_lengths[number] = len(named)
        self._is_alive[number] = True
        self._recent.append((number, np.array(terms, np.int32), counts))
        self._is_built = False
        if len(self._recent) >= RECENT_DOCUMENTS:
            self._add_segment()

    def drop(self, slot: int) -> None:
        """Remove a slot; the last one takes its number."""
        self._remove(int(self._numbers[slot]))
        self._size -= 1
        self._numbers[slot] = self._numbers[self._size]
        self._is_built = False

    def _remove(self, number: int) -> None:
        self._is_alive[number] = False
        if self._recent and number >= self._recent[0][0]:
            self._recent = [recent for recent in self._recent if recent[0] != number]
        else:
            self._spreads = [None] * len(self._segments)

    def score(self, tokens: Sequence[str]) -> Floats:
        """BM25 of every slot for a request."""
        self._build()
        scores = np.zeros(self._next, np.float32)
        for term, times in Counter(self._known(tokens)).items():
            for segment in self._all_segments():
                postings = segment.postings(term)
                documents = segment.documents[postings]
                counts = _weighted(segment.counts[postings])
                weights = self._rarity[term] * counts * (K1 + 1) / (counts + self._damp[documents])
                scores[documents] += times * weights.astype(np.float32)
        return scores[self._numbers[: self._size]]

    def overlap(self, tokens: Iterable[str], translated: Iterable[str] = ()) -> Overlap:
        """How far the words of a request are those of each slot. Its translations count for names only."""
        self._build()
        covered, by_name, named = (np.zeros(self._next, np.float32) for _ in range(3))
        rarities = {token: self._rarity_of(token) for token in tokens}
        for token in {**dict.fromkeys(translated), **rarities}:
            if (term := self._vocabulary.get(token)) is None:
                continue
            rarity = rarities.get(token, 0.0)
            for segment in self._all_segments():
                postings = segment.postings(term)
                documents = segment.documents[postings]
                in_name = documents[segment.counts[postings] >= NAME_FLAG]
                named[in_name] += 1
                if rarity:
                    covered[documents] += rarity
                    by_name[in_name] += rarity
        numbers = self._numbers[: self._size]
        total = np.float32(max(sum(rarities.values()), 1e-9))
        name = named[numbers] / np.maximum(self._name_lengths[numbers], 1)
        return Overlap(
            request=covered[numbers] / total,
            request_by_name=by_name[numbers] / total,
            name=name.astype(np.float32, copy=False),
        )

    def rarity(self, token: str) -> float:
        """1 for a token that no slot has, near 0 for one that all have. A small index counts as one of 20 slots."""
        self._build()
        size = max(self._size, MIN_SLOTS)
        term = self._vocabulary.get(token)
        spread = 0 if term is None else int(self._spread[term])
        return _weight(token) * _rarity(size, spread) / _rarity(size, 0)

    def _rarity_of(self, token: str) -> float:
        term = self._vocabulary.get(token)
        return _weight(token) * _rarity(self._size, 0) if term is None else float(self._rarity[term])

    def coverage(self, tokens: Sequence[str], translated: Sequence[str] = ()) -> float:
        """Share of the request's tokens that the index has; known translations count as well."""
        self._build()
        return (len(self._known(tokens)) + len(self._known(translated))) / len(tokens) if tokens else 0.0

    @property
    def mean_length(self) -> float:
        """Tokens of a document, those of bodies by their weight."""
        self._build()
        return self._mean_length

    def matched(self, slot: int, tokens: Sequence[str]) -> tuple[list[str], float]:
        """The request's tokens that a slot has, and their share of the request's weight without those of the body."""
        self._build()
        number = self._numbers[slot]
        found, weight, total = [], 0.0, 0.0
        for token in dict.fromkeys(tokens):
            term, rarity = self._vocabulary.get(token), self._rarity_of(token)
            total += rarity
            count = 0 if term is None else self._count(number, term)
            if count:
                found.append(token)
                weight += rarity if count >> 8 else 0.0
        return found, weight / total if total else 0.0

    def _count(self, number: np.int32, term: int) -> int:
        """How often a document has a term, as in a segment."""
        for segment in self._all_segments():
            postings = segment.postings(term)
            documents = segment.documents[postings]
            position = int(np.searchsorted(documents, number))
            if position < len(documents) and documents[position] == number:
                return int(segment.counts[postings][position])
        return 0

    def corrections(self, tokens: Sequence[str]) -> dict[str, list[str]]:
        """For words that the index does not have, those that it has and that were probably meant.

        A word is mistyped, or only its beginning was typed.
        """
        self._build()
        unknown = [
            token
            for token in dict.fromkeys(tokens)
            if len(token) >= MIN_PREFIX_LETTERS and _is_plain(token) and not self._known([token])
        ]
        if not unknown:
            return {}
        if self._plain_words is None:
            self._plain_words = sorted(word for word in self._vocabulary if _is_plain(word) and self._known([word]))
        found = {token: _nearest(token, self._plain_words) for token in unknown[:MAX_CORRECTED_WORDS]}
        return {token: nearest for token, nearest in found.items() if nearest}

    def _known(self, tokens: Sequence[str]) -> list[int]:
        terms = (self._vocabulary.get(token) for token in tokens)
        return [term for term in terms if term is not None and self._spread[term]]

    def _all_segments(self) -> Iterator[_Segment]:
        yield from self._segments
        if self._last is not None:
            yield self._last

    def _build(self) -> None:
        """Take changes into account; done at the first query after a change."""
        if self._is_built:
            return
        self._is_built = True
        if self._next > 2 * self._size + RECENT_DOCUMENTS:
            self._renumber()
        self._last = self._recent_segment()
        words = len(self._vocabulary)
        spread = np.zeros(words, np.int64)
        for position, segment in enumerate(self._segments):
            own = self._spreads[position]
            if own is None:
                own = self._spreads[position] = segment.spread(self._is_alive)
            spread[: len(own)] += own
        if self._last is not None:
            spread += np.diff(self._last.starts)
        self._update_plain_words(spread)
        self._spread = spread
        self._rarity = np.log1p((self._size - spread + 0.5) / (spread + 0.5)).astype(np.float32)
        self._rarity[[self._vocabulary[letter] for letter in LETTERS if letter in self._vocabulary]] *= LETTER_WEIGHT
        mean = self._mean_length = float(self._lengths[self._numbers[: self._size]].mean()) if self._size else 1.0
        b = np.interp(mean, (SHORT_TOKENS, LONG_TOKENS), (B_SHORT, B_LONG))
        self._damp = K1 * (1 - b + b * self._lengths[: self._next] / max(mean, 1e-9))

    def _update_plain_words(self, spread: NDArray[np.int64]) -> None:
        """Keep the sorted words if only a few were added."""
        if self._plain_words is None:
            return
        known, new = self._spread > 0, spread > 0
        added = np.flatnonzero(new[len(known) :]) + len(known)
        if len(added) > MAX_INSERTED_WORDS or not np.array_equal(known, new[: len(known)]):
            self._plain_words = None
        elif len(added):
            for word in itertools.islice(self._vocabulary, len(known), None):
                if new[self._vocabulary[word]] and _is_plain(word):
                    insort(self._plain_words, word)

    def _recent_segment(self) -> _Segment | None:
        if not self._recent:
            return None
        return _Segment.of(
            np.concatenate([terms for _, terms, _ in self._recent]),
            np.repeat(
                np.array([number for number, _, _ in self._recent], np.int32), [len(own) for _, own, _ in self._recent]
            ),
            np.concatenate([counts for _, _, counts in self._recent]),
            len(self._vocabulary),
        )

    def _add_segment(self) -> None:
        """Make a segment of the recent documents, and merge segments of similar size."""
        last, self._recent, self._last = self._recent_segment(), [], None
        while last is not None and self._segments and len(self._segments[-1].documents) < 2 * len(last.documents):
            last = self._merged([self._segments.pop(), last])
            self._spreads.pop()
        if last is not None:
            self._segments.append(last)
            self._spreads.append(None)

    def _merged(self, segments: Sequence[_Segment], numbers: Integers | None = None) -> _Segment:
        """One segment without removed documents, which get other numbers if there are any."""
        terms = np.concatenate([segment.terms for segment in segments])
        documents = np.concatenate([segment.documents for segment in segments])
        counts = np.concatenate([segment.counts for segment in segments])
        if numbers is None:
            alive = self._is_alive[documents]
        else:
            documents = numbers[documents]
            alive = documents >= 0
        if not alive.all():
            terms, documents, counts = terms[alive], documents[alive], counts[alive]
        if numbers is not None:
            order = np.argsort(documents, kind="stable")
            terms, documents, counts = terms[order], documents[order], counts[order]
        return _Segment.of(terms, documents, counts, len(self._vocabulary))

    def _renumber(self) -> None:
        """Number the documents as their slots, to drop those that are gone."""
        self.restore(self.packed(np.arange(self._size)))

    def packed(self, slots: NDArray[np.int64]) -> dict[str, NDArray[Any]]:
        """The documents of some slots, numbered in this order. `restore` accepts it."""
        documents = self._numbers[slots]
        segments = [*self._segments, *filter(None, [self._recent_segment()])]
        numbers = np.full(self._next, -1, np.int32)
        numbers[documents] = np.arange(len(documents))
        empty = _Segment(starts=np.zeros(1, np.int32), documents=np.zeros(0, np.int32), counts=np.zeros(0, np.uint16))
        merged = self._merged([empty, *segments], numbers)
        spread = np.diff(merged.starts)
        words = [word for word, count in zip(self._vocabulary, spread.tolist(), strict=True) if count]
        return {
            "words": np.frombuffer(json.dumps(words).encode(), np.uint8),
            "starts": np.concatenate(([0], merged.starts[1:][spread > 0])).astype(np.int32),
            "documents": merged.documents,
            "counts": merged.counts,
            "lengths": self._lengths[documents],
            "name_lengths": self._name_lengths[documents],
        }

    def restore(self, packed: Mapping[str, NDArray[Any]]) -> None:
        """Replace everything by what was packed."""
        self._vocabulary = {word: term for term, word in enumerate(json.loads(packed["words"].tobytes()))}
        self._segments = [
            _Segment(starts=packed["starts"], documents=packed["documents"], counts=packed["counts"]),
        ]
        self._spreads, self._recent, self._last = [None], [], None
        self._size = self._next = len(packed["lengths"])
        self._numbers = np.arange(self._size, dtype=np.int32)
        self._lengths, self._name_lengths = packed["lengths"].copy(), packed["name_lengths"].copy()
        self._is_alive = np.ones(self._size, np.bool_)
        self._plain_words = None
        self._spread = np.zeros(0, np.int64)
        self._is_built = False


def _rarity(size: int, spread: int) -> float:
    """Of a token that `spread` of the slots have."""
    return math.log1p((size - spread + 0.5) / (spread + 0.5))


def _weight(token: str) -> float:
    return LETTER_WEIGHT if token in LETTERS else 1.0


def _weighted(counts: NDArray[np.uint16]) -> Floats:
    own, body = (counts >> 8) & MAX_OWN_COUNT, counts & MAX_BODY_COUNT
    weighted: Floats = (own + np.float32(BODY_WEIGHT) * body).astype(np.float32, copy=False)
    return weighted


def _count_of(own: int, body: int, *, in_name: bool) -> int:
    """The counts of a posting, as a segment has them."""
    return in_name * NAME_FLAG | min(own, MAX_OWN_COUNT) << 8 | min(body, MAX_BODY_COUNT)


def _is_plain(word: str) -> bool:
    return word.isascii() and word.isalpha()


def _grown(array: NDArray[Any], size: int) -> NDArray[Any]:
    """The array with room for at least `size` entries."""
    if size <= len(array):
        return array
    return np.concatenate((array, np.zeros(max(64, size, 2 * len(array)) - len(array), array.dtype)))


def _nearest(token: str, words: Sequence[str]) -> list[str]:
    """Words with the same first letter and few other letters; else those that begin with the token."""
    first, end = bisect_left(words, token[0]), bisect_left(words, chr(ord(token[0]) + 1))
    if len(token) >= MIN_CORRECTED_LETTERS:
        limit = 1 if len(token) < LONG_WORD_LETTERS else 2
        found = process.extract(
            token, words[first:end], scorer=DamerauLevenshtein.distance, score_cutoff=limit, limit=MAX_CORRECTIONS
        )
        if found:
            return [word for word, distance, _ in found if distance == found[0][1]]
    start = bisect_left(words, token)
    longer = itertools.takewhile(lambda word: word.startswith(token), itertools.islice(words, start, None))
    return sorted(itertools.islice(longer, MAX_CORRECTIONS * 10), key=len)[:MAX_CORRECTIONS]
