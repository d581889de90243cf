"""What past requests taught: each confirmed pair of request and skill is one more vector of that skill."""

import time
from collections import OrderedDict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from apexbridge.retrieval.embedders.embedder import RequestVectors
from apexbridge.retrieval.embedders.model import Floats

MAX_PER_SKILL = 50
MAX_PAIRS = 20_000
"""In all; the oldest go first."""
MAX_REQUEST_CHARACTERS = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """A request, and the skill that then ran well."""

    request: str
    skill: str
    caller: str
    """Whose request it was; empty where callers are not told apart."""
    taught_at: int
    """Milliseconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PastUse:
    """What past requests say about a skill for this one."""

    nearest: float
    """Cosine of the past request that is most like this one."""
    count: int
    """How many past requests it answered."""


Key = tuple[str, str, str]


class UsageMemory:
    """Confirmed pairs, the newest last. Its user holds the index's lock."""

    def __init__(self) -> None:
        self._pairs: OrderedDict[Key, tuple[Pair, Floats]] = OrderedDict()
        self._own: dict[tuple[str, str], OrderedDict[Key, None]] = {}
        """Keys by caller and skill, the oldest first."""
        self._matrix: Floats | None = None

    def __len__(self) -> int:
        return len(self._pairs)

    def teach(
        self, request: str, skill: str, vector: Floats, *, caller: str, now: int | None = None
    ) -> tuple[Pair, list[Pair]]:
        """Remember a pair; gives it, and those that had to go for it."""
        pair = Pair(
            request=request[:MAX_REQUEST_CHARACTERS],
            skill=skill,
            caller=caller,
            taught_at=int(time.time() * 1000) if now is None else now,
        )
        key = _key(pair)
        self._drop([key] if key in self._pairs else [])
        self._matrix = None
        self._pairs[key] = (pair, vector)
        own = self._own.setdefault(key[:2], OrderedDict())
        own[key] = None
        crowded = [next(iter(own))] if len(own) > MAX_PER_SKILL else []
        if len(self._pairs) - len(crowded) > MAX_PAIRS:
            crowded.append(next(iter(self._pairs)))
        return pair, self._drop(crowded)

    def forget(self, skills: Iterable[str]) -> list[Pair]:
        """Drop everything about these skills."""
        gone = set(skills)
        return self._drop([key for key, (pair, _) in self._pairs.items() if pair.skill in gone])

    def forget_all_but(self, skills: Collection[str]) -> list[Pair]:
        """Drop everything about other skills."""
        return self._drop([key for key, (pair, _) in self._pairs.items() if pair.skill not in skills])

    def skills(self) -> set[str]:
        """Those with a past."""
        return {skill for _, skill in self._own}

    def pairs(self) -> list[tuple[Pair, Floats]]:
        """Everything, the oldest first."""
        return list(self._pairs.values())

    def recall(self, vectors: RequestVectors, *, caller: str, shared: bool) -> dict[str, PastUse]:
        """Each skill with a past; of the caller's own requests, or of all."""
        if not self._pairs:
            return {}
        if self._matrix is None:
            self._matrix = np.stack([known for _, known in self._pairs.values()])
        cosines: dict[str, list[float]] = {}
        for (pair, _), cosine in zip(self._pairs.values(), _cosines(self._matrix, vectors).tolist(), strict=True):
            if shared or pair.caller == caller:
                cosines.setdefault(pair.skill, []).append(cosine)
        return {skill: PastUse(nearest=max(own), count=len(own)) for skill, own in cosines.items()}

    def _drop(self, keys: Collection[Key]) -> list[Pair]:
        if keys:
            self._matrix = None
        for key in keys:
            own = self._own[key[:2]]
            del own[key]
            if not own:
                del self._own[key[:2]]
        return [self._pairs.pop(key)[0] for key in keys]


def request_vector(vectors: RequestVectors, dimensions: Sequence[int]) -> Floats:
    """A request as it is remembered: what each model read of it in a row, zeros where one could not read it."""
    return np.concatenate(
        [
            np.zeros(size, np.float32) if own is None or own.is_gist else own.whole
            for own, size in zip(vectors, dimensions, strict=True)
        ]
    )


def _cosines(matrix: Floats, vectors: RequestVectors) -> Floats:
    """Of each past request: its likeness to this one or to the likest of its clauses.

    It is the mean over the models that read both.
    """
    readers = [own for own in vectors if own is not None and not own.is_gist]
    total = np.zeros((len(matrix), 1 + len(readers[0].clauses)), np.float32)
    read = np.zeros((len(matrix), 1), np.float32)
    start = 0
    for own in readers:  # only the last model may be missing, so no part is misplaced
        part = matrix[:, start : start + len(own.whole)]
        start += len(own.whole)
        total += part @ np.vstack((own.whole, own.clauses)).T
        read += part.any(axis=1, keepdims=True)
    likeness: Floats = (total / np.maximum(read, 1)).max(axis=1).astype(np.float32)
    return likeness


def _key(pair: Pair) -> Key:
    return pair.caller, pair.skill, pair.request
