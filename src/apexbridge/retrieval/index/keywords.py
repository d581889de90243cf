"""Keyword search: BM25 over tokens, in compact arrays."""

import math
from collections import Counter
from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from apexbridge.retrieval.embedders.model import Floats

K1 = 1.2
B_SHORT, B_LONG = 0.75, 0.4
SHORT_TOKENS, LONG_TOKENS = 14.0, 22.0
"""`b` falls between these mean lengths: among short descriptions a long one is vague, among long ones specific."""


class KeywordIndex:
    """Tokens by slot; a slot is a document's position in the index."""

    def __init__(self) -> None:
        self._vocabulary: dict[str, int] = {}
        self._terms: list[NDArray[np.int32]] = []
        self._counts: list[Floats] = []
        self._built = False
        self._starts: NDArray[np.int64] = np.zeros(1, np.int64)
        self._slots: NDArray[np.int64] = np.zeros(0, np.int64)
        self._weights: Floats = np.zeros(0, np.float32)
        self._rarity: Floats = np.zeros(0, np.float32)

    def put(self, slot: int, tokens: Iterable[str]) -> None:
        """Set a slot's tokens; a new slot is the next free one."""
        counted = Counter(tokens)
        terms = np.fromiter(
            (self._vocabulary.setdefault(token, len(self._vocabulary)) for token in counted), np.int32, len(counted)
        )
        counts = np.fromiter(counted.values(), np.float32, len(counted))
        if slot == len(self._terms):
            self._terms.append(terms)
            self._counts.append(counts)
        else:
            self._terms[slot], self._counts[slot] = terms, counts
        self._built = False

    def drop(self, slot: int) -> None:
        """Remove a slot; the last one takes its number."""
        self._terms[slot], self._counts[slot] = self._terms[-1], self._counts[-1]
        self._terms.pop()
        self._counts.pop()
        self._built = False

    def score(self, tokens: Sequence[str]) -> Floats:
        """BM25 of every slot for a request."""
        self._build()
        scores = np.zeros(len(self._terms), np.float32)
        for term, times in Counter(self._known(tokens)).items():
            postings = slice(self._starts[term], self._starts[term + 1])
            scores[self._slots[postings]] += times * self._weights[postings]
        return scores

    def coverage(self, tokens: Sequence[str], translated: Sequence[str] = ()) -> float:
        """Share of the request's tokens that the index has; known translations count as well."""
        self._build()
        return (len(self._known(tokens)) + len(self._known(translated))) / len(tokens) if tokens else 0.0

    def matched(self, slot: int, tokens: Sequence[str]) -> tuple[list[str], float]:
        """The request's tokens that a slot has, and their share of the request's weight."""
        self._build()
        own = set(self._terms[slot].tolist())
        found, weight, total = [], 0.0, 0.0
        for token in dict.fromkeys(tokens):
            term = self._vocabulary.get(token)
            rarity = float(self._rarity[term]) if term is not None else _rarity(0, len(self._terms))
            total += rarity
            if term in own:
                found.append(token)
                weight += rarity
        return found, weight / total if total else 0.0

    def _known(self, tokens: Sequence[str]) -> list[int]:
        terms = (self._vocabulary.get(token) for token in tokens)
        return [term for term in terms if term is not None and self._starts[term + 1] > self._starts[term]]

    def _build(self) -> None:
        """Build the postings; done at the first query after a change."""
        if self._built:
            return
        self._built = True
        size, words = len(self._terms), len(self._vocabulary)
        lengths = np.fromiter((counts.sum() for counts in self._counts), np.float32, size)
        terms = np.concatenate(self._terms) if size else np.zeros(0, np.int32)
        counts = np.concatenate(self._counts) if size else np.zeros(0, np.float32)
        slots = np.repeat(np.arange(size), [len(own) for own in self._terms])
        order = np.argsort(terms, kind="stable")
        spread = np.bincount(terms, minlength=words)
        self._starts = np.concatenate(([0], np.cumsum(spread)))
        self._slots = slots[order]
        self._rarity = np.log1p((size - spread + 0.5) / (spread + 0.5)).astype(np.float32)
        mean = float(lengths.mean()) if size else 1.0
        b = np.interp(mean, (SHORT_TOKENS, LONG_TOKENS), (B_SHORT, B_LONG))
        counts = counts[order]
        damp = K1 * (1 - b + b * lengths[self._slots] / max(mean, 1e-9))
        self._weights = (self._rarity[terms[order]] * counts * (K1 + 1) / (counts + damp)).astype(np.float32)


def _rarity(spread: int, size: int) -> float:
    return math.log1p((size - spread + 0.5) / (spread + 0.5))
