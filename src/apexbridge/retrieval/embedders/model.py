"""What every embedding model offers."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]


class EmbeddingError(Exception):
    """The model cannot be used now; the message says why, for people."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """A model's own idea of near and far, as cosines."""

    unrelated: float
    """Of a request and a skill that have nothing to do with each other."""
    related: float
    """Of a request and the skill that it asks for."""


class Model(Protocol):
    """One embedding model. Its calls block, so they belong on a worker thread; several threads may call at once."""

    @property
    def id(self) -> str:
        """Kept with each vector; another id means that every vector is stale."""

    dimensions: int
    """Length of its vectors; 0 where that is known only once the model has answered."""

    @property
    def english_only(self) -> bool:
        """Whether other scripts mean nothing to it."""

    def scale(self) -> Scale:
        """How its cosines are to be read."""

    def embed(self, texts: Sequence[str]) -> Floats:
        """One vector of length 1 a text.

        Raises:
            EmbeddingError: the model cannot be loaded or does not answer.
        """


def normalised(vectors: Floats) -> Floats:
    """The same directions, length 1; a zero vector stays."""
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    unit: Floats = (vectors / np.maximum(lengths, 1e-12)).astype(np.float32)
    return unit
