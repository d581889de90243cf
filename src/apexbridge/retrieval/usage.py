"""Past use: each confirmed pair of request and skill is one more vector of that skill.

Neither the text of a request nor a hash of it is stored. Two requests are the same if their vectors are.
"""

import uuid
from collections import Counter, OrderedDict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from apexbridge._time import now_ms
from apexbridge.retrieval.embedders.embedder import RequestVectors
from apexbridge.retrieval.embedders.model import Floats

MAX_PER_SKILL = 50
MAX_PAIRS = 20_000
"""In total; beyond that the caller with the most loses its oldest."""
UNRELATED = 0.1
"""Cosine of unrelated requests. Models whose cosines begin at 0.7 are shifted to it."""
SAME_COSINE = 0.9999
"""Cosine from which two requests are the same. An embedding endpoint may round one text differently each time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UsagePair:
    """A past request, without its text, and the skill that then ran successfully."""

    key: str
    """Random; identifies the row on disk."""
    skill: str
    caller: str
    """Whose request it was; empty if callers are not distinguished."""
    chat: str
    """The link of the chat that confirmed it last; empty if a client confirmed it."""
    taught_at: int
    """Milliseconds since 1970."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PastUse:
    """The past requests of one skill, compared with the current request."""

    nearest: float
    """Cosine of the nearest past request."""
    count: int
    """How many past requests the skill answered."""


class UsageMemory:
    """Confirmed pairs, the newest last. Not thread-safe: its user holds the memory index's lock."""

    def __init__(self, dimensions: Sequence[int]) -> None:
        self.dimensions = tuple(dimensions)
        """Vector length of each model."""
        self._pairs: OrderedDict[str, tuple[UsagePair, Floats]] = OrderedDict()
        self._keys: dict[tuple[str, str], OrderedDict[str, None]] = {}
        """By caller and skill, the oldest first."""
        self._matrix: Floats | None = None

    def __len__(self) -> int:
        return len(self._pairs)

    def __contains__(self, pair: UsagePair) -> bool:
        return pair.key in self._pairs

    def teach(
        self, skill: str, vector: Floats, *, caller: str, chat: str = "", now: int | None = None
    ) -> tuple[UsagePair, list[UsagePair]]:
        """Remember a pair; returns it, and the pairs evicted for it."""
        pair = UsagePair(
            key=self._same_request(skill, caller, vector) or uuid.uuid4().hex,
            skill=skill,
            caller=caller,
            chat=chat,
            taught_at=now_ms() if now is None else now,
        )
        return pair, self.restore(pair, vector)

    def restore(self, pair: UsagePair, vector: Floats) -> list[UsagePair]:
        """Add a pair, or replace the one with its key; returns the pairs evicted for it."""
        self._drop([pair.key] if pair.key in self._pairs else [])
        self._matrix = None
        self._pairs[pair.key] = (pair, vector)
        keys = self._keys.setdefault((pair.caller, pair.skill), OrderedDict())
        keys[pair.key] = None
        evicted = [next(iter(keys))] if len(keys) > MAX_PER_SKILL else []
        if len(self._pairs) - len(evicted) > MAX_PAIRS:
            evicted.append(self._oldest_of_largest())
        return self._drop(evicted)

    def count_of(self, caller: str) -> int:
        return sum(len(keys) for (owner, _), keys in self._keys.items() if owner == caller)

    def _oldest_of_largest(self) -> str:
        counts: Counter[str] = Counter()
        for (caller, _), keys in self._keys.items():
            counts[caller] += len(keys)
        ((largest, _),) = counts.most_common(1)
        return next(key for key, (pair, _) in self._pairs.items() if pair.caller == largest)

    def reshape(self, dimensions: Sequence[int]) -> None:
        """Change the length of vectors. Pairs stay, with zeros for vectors of another length."""
        if tuple(dimensions) != self.dimensions:
            self.dimensions = tuple(dimensions)
            zeros = np.zeros(sum(self.dimensions), np.float32)
            self.replace({pair: zeros for pair, _ in self._pairs.values()})

    def replace(self, vectors: Mapping[UsagePair, Floats]) -> list[UsagePair]:
        """Give these pairs other vectors, and drop all others; returns those that were dropped."""
        dropped = self.forget(lambda pair: pair not in vectors)
        self._pairs = OrderedDict((key, (pair, vectors[pair])) for key, (pair, _) in self._pairs.items())
        self._matrix = None
        return dropped

    def _same_request(self, skill: str, caller: str, vector: Floats) -> str | None:
        keys = list(self._keys.get((caller, skill), ()))
        if not keys:
            return None
        cosines = same_text_cosines(np.stack([self._pairs[key][1] for key in keys]), vector, self.dimensions)
        nearest = int(cosines.argmax())
        return keys[nearest] if cosines[nearest] >= SAME_COSINE else None

    def forget(self, is_forgotten: Callable[[UsagePair], bool]) -> list[UsagePair]:
        return self._drop([key for key, (pair, _) in self._pairs.items() if is_forgotten(pair)])

    def skills(self) -> set[str]:
        return {skill for _, skill in self._keys}

    def pairs(self) -> list[tuple[UsagePair, Floats]]:
        """All pairs, the oldest first."""
        return list(self._pairs.values())

    def recall(self, vectors: RequestVectors, *, caller: str, shared: bool) -> dict[str, PastUse]:
        """Past use by skill, of the caller's own requests or, if `shared`, of all."""
        if not self._pairs:
            return {}
        if self._matrix is None:
            self._matrix = np.stack([known for _, known in self._pairs.values()])
        cosines: dict[str, list[float]] = {}
        for (pair, _), cosine in zip(
            self._pairs.values(), _cosines(self._matrix, vectors, self.dimensions).tolist(), strict=True
        ):
            if shared or pair.caller == caller:
                cosines.setdefault(pair.skill, []).append(cosine)
        return {skill: PastUse(nearest=max(own), count=len(own)) for skill, own in cosines.items()}

    def _drop(self, keys: Collection[str]) -> list[UsagePair]:
        if keys:
            self._matrix = None
        dropped = [self._pairs.pop(key)[0] for key in keys]
        for pair in dropped:
            remaining = self._keys[pair.caller, pair.skill]
            del remaining[pair.key]
            if not remaining:
                del self._keys[pair.caller, pair.skill]
        return dropped


def request_vector(vectors: RequestVectors, dimensions: Sequence[int]) -> Floats:
    """The vector stored for a request: those of all models in a row, zeros for a model that could not read it."""
    return np.concatenate(
        [
            np.zeros(size, np.float32) if own is None or own.is_gist else own.whole
            for own, size in zip(vectors, dimensions, strict=True)
        ]
    )


def same_text_cosines(known: Floats, vector: Floats, dimensions: Sequence[int]) -> Floats:
    """Cosine of each known vector with another: the mean over the models that read both texts, 0 if none did."""
    total, read = np.zeros(len(known), np.float32), np.zeros(len(known), np.float32)
    for columns in _columns(dimensions):
        lengths = np.linalg.norm(known[:, columns], axis=1) * np.linalg.norm(vector[columns])
        total += known[:, columns] @ vector[columns] / np.maximum(lengths, 1e-12).astype(np.float32)
        read += lengths > 0
    return (total / np.maximum(read, 1)).astype(np.float32)


def _cosines(matrix: Floats, vectors: RequestVectors, dimensions: Sequence[int]) -> Floats:
    """Similarity of each past request to this one or its nearest clause: the mean over the models that read both."""
    total: Floats = np.zeros((len(matrix), 1), np.float32)
    read = np.zeros((len(matrix), 1), np.float32)
    for own, span in zip(vectors, _columns(dimensions), strict=True):
        if own is None or own.is_gist:
            continue
        columns = matrix[:, span]
        shift = max(0.0, (own.scale.unrelated - UNRELATED) / (1 - UNRELATED))
        cosines = columns @ np.vstack((own.whole, own.clauses)).T
        similar = np.where(columns.any(axis=1, keepdims=True), (cosines - shift) / (1 - shift), 0.0)
        total = (total + similar).astype(np.float32)
        read += columns.any(axis=1, keepdims=True)
    similarity: Floats = (total / np.maximum(read, 1)).max(axis=1).astype(np.float32)
    return similarity


def _columns(dimensions: Sequence[int]) -> Iterator[slice]:
    """Where the vectors of each model are in a row."""
    start = 0
    for size in dimensions:
        yield slice(start, start + size)
        start += size
