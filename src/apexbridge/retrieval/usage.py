"""What past requests taught: each confirmed pair of request and skill is one more vector of that skill.

The text of a request is not kept, nor a hash of it: two requests are the same if their vectors are.
"""

import uuid
from collections import OrderedDict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from apexbridge._time import now_ms
from apexbridge.retrieval.embedders.embedder import RequestVectors
from apexbridge.retrieval.embedders.model import Floats

MAX_PER_SKILL = 50
MAX_PAIRS = 20_000
"""In all; the oldest go first."""
SAME_COSINE = 0.9999
"""From here on two requests count as one; an embedding endpoint may round the same text differently each time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UsagePair:
    """A past request, of which only the vector is known, and the skill that then ran well."""

    key: str
    """Random; names the row on disk."""
    skill: str
    caller: str
    """Whose request it was; empty where callers are not told apart."""
    chat: str
    """The link of the chat that confirmed it last; empty if a client confirmed it."""
    taught_at: int
    """Milliseconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PastUse:
    """What past requests say about a skill for this one."""

    nearest: float
    """Cosine of the past request that is most like this one."""
    count: int
    """How many past requests it answered."""


class UsageMemory:
    """Confirmed pairs, the newest last. Its user holds the index's lock."""

    def __init__(self) -> None:
        self._pairs: OrderedDict[str, tuple[UsagePair, Floats]] = OrderedDict()
        self._own: dict[tuple[str, str], OrderedDict[str, None]] = {}
        """Keys by caller and skill, the oldest first."""
        self._matrix: Floats | None = None

    def __len__(self) -> int:
        return len(self._pairs)

    def __contains__(self, pair: UsagePair) -> bool:
        return pair.key in self._pairs

    def teach(
        self, skill: str, vector: Floats, *, caller: str, chat: str = "", now: int | None = None
    ) -> tuple[UsagePair, list[UsagePair]]:
        """Remember a pair; returns it, and those that had to go for it."""
        pair = UsagePair(
            key=self._same(skill, caller, vector) or uuid.uuid4().hex,
            skill=skill,
            caller=caller,
            chat=chat,
            taught_at=now_ms() if now is None else now,
        )
        return pair, self.restore(pair, vector)

    def restore(self, pair: UsagePair, vector: Floats) -> list[UsagePair]:
        """Put a pair in, in place of one with its key; returns those that had to go for it."""
        self._drop([pair.key] if pair.key in self._pairs else [])
        self._matrix = None
        self._pairs[pair.key] = (pair, vector)
        own = self._own.setdefault((pair.caller, pair.skill), OrderedDict())
        own[pair.key] = None
        crowded = [next(iter(own))] if len(own) > MAX_PER_SKILL else []
        if len(self._pairs) - len(crowded) > MAX_PAIRS:
            crowded.append(next(iter(self._pairs)))
        return self._drop(crowded)

    def _same(self, skill: str, caller: str, vector: Floats) -> str | None:
        """The key of the pair with the same request, if there is one."""
        keys = list(self._own.get((caller, skill), ()))
        if not keys:
            return None
        known = np.stack([self._pairs[key][1] for key in keys])
        lengths = np.linalg.norm(known, axis=1) * np.linalg.norm(vector)
        cosines = known @ vector / np.maximum(lengths, 1e-12)
        nearest = int(cosines.argmax())
        return keys[nearest] if cosines[nearest] >= SAME_COSINE else None

    def forget(self, skills: Iterable[str]) -> list[UsagePair]:
        """Drop everything about these skills."""
        gone = set(skills)
        return self._drop([key for key, (pair, _) in self._pairs.items() if pair.skill in gone])

    def forget_all_but(self, skills: Collection[str]) -> list[UsagePair]:
        """Drop everything about other skills."""
        return self._drop([key for key, (pair, _) in self._pairs.items() if pair.skill not in skills])

    def forget_chat(self, chat: str) -> list[UsagePair]:
        """Drop what a chat taught."""
        return self._drop([key for key, (pair, _) in self._pairs.items() if pair.chat == chat])

    def forget_before(self, moment: int) -> list[UsagePair]:
        """Drop what was last confirmed before a moment, in milliseconds."""
        return self._drop([key for key, (pair, _) in self._pairs.items() if pair.taught_at < moment])

    def skills(self) -> set[str]:
        """Those with a past."""
        return {skill for _, skill in self._own}

    def pairs(self) -> list[tuple[UsagePair, Floats]]:
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

    def _drop(self, keys: Collection[str]) -> list[UsagePair]:
        if keys:
            self._matrix = None
        dropped = [self._pairs.pop(key)[0] for key in keys]
        for pair in dropped:
            own = self._own[pair.caller, pair.skill]
            del own[pair.key]
            if not own:
                del self._own[pair.caller, pair.skill]
        return dropped


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
