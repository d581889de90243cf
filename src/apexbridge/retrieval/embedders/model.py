"""The interface of an embedding model."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]


class EmbeddingError(Exception):
    """The model cannot be used now. The message is shown to users."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """Typical cosines of a model, to compare models with each other."""

    unrelated: float
    """Of a request and an unrelated skill."""
    related: float
    """Of a request and the right skill."""


class Model(Protocol):
    """An embedding model. Its calls block; several threads may call at once."""

    @property
    def id(self) -> str:
        """Stored with each vector; if it changes, every vector is stale."""

    dimensions: int
    """Length of its vectors; 0 until a remote model has answered."""

    @property
    def english_only(self) -> bool: ...

    @property
    def weight(self) -> float:
        """Its weight in the ranking, relative to the other models that read a request."""

    def scale(self) -> Scale: ...

    def embed(self, texts: Sequence[str], *, are_requests: bool = False) -> Floats:
        """One vector of length 1 per text; raises EmbeddingError. Some models tell requests from documents."""


def normalized(vectors: Floats) -> Floats:
    """The vectors scaled to length 1; a zero vector stays zero."""
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    unit: Floats = (vectors / np.maximum(lengths, 1e-12)).astype(np.float32)
    return unit
