"""Short codes of vectors, to find the nearest ones approximately."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from apexbridge.retrieval.embedders.model import Floats

CODE_LENGTH, CLAUSE_CODE_LENGTH = 192, 64
SPARE_DIRECTIONS, ITERATIONS = 16, 3
"""Of the subspace iteration."""
CLIPPED_DEVIATIONS = 5.0
"""Components further from the mean are clipped."""
MAX_CODE = 127
CHUNK_ROWS = 512
"""Codes decoded at a time, so that they stay in the CPU's cache."""

Codes = NDArray[np.int8]


@dataclass(frozen=True, slots=True, kw_only=True)
class Projection:
    """The principal components of all models' vectors in a row, in eight bits each."""

    mean: Floats
    basis: Floats
    """A column for each component."""
    steps: Floats
    """What one unit of a code means, for each component."""

    @classmethod
    def fit(cls, sample: Floats) -> "Projection":
        """The components with the largest variance, by subspace iteration. The sample is changed."""
        mean = sample.mean(axis=0, dtype=np.float64).astype(np.float32)
        centred = np.subtract(sample, mean, out=sample)  # in place: a copy is 42 MB
        dimensions = sample.shape[1]
        if dimensions <= CODE_LENGTH:
            basis = np.eye(dimensions, dtype=np.float32)
        else:
            start = np.random.default_rng(0).standard_normal((dimensions, CODE_LENGTH + SPARE_DIRECTIONS), np.float32)
            directions = np.linalg.qr(start)[0]
            for _ in range(ITERATIONS):
                directions = np.linalg.qr(centred.T @ (centred @ directions))[0]
            _, _, rotation = np.linalg.svd(centred @ directions, full_matrices=False)
            basis = np.ascontiguousarray((directions @ rotation.T)[:, :CODE_LENGTH])
        deviations = (centred @ basis).std(axis=0)
        steps = np.maximum(CLIPPED_DEVIATIONS * deviations / MAX_CODE, 1e-9).astype(np.float32)
        return cls(mean=mean, basis=basis, steps=steps)

    @classmethod
    def unpacked(cls, packed: Mapping[str, NDArray[Any]]) -> "Projection":
        return cls(mean=packed["mean"], basis=packed["basis"], steps=packed["steps"])

    def packed(self) -> dict[str, NDArray[Any]]:
        return {"mean": self.mean, "basis": self.basis, "steps": self.steps}

    def encode(self, vectors: Floats) -> Codes:
        components = (vectors - self.mean) @ self.basis / self.steps
        return np.clip(np.rint(components), -MAX_CODE, MAX_CODE).astype(np.int8)

    def products(self, codes: Codes, vectors: Floats, clauses: Sequence[Floats]) -> tuple[Floats, Floats]:
        """Approximate dot products of each code with vectors, and with the nearest clause of each group of clauses.

        A row for each vector or group. Clauses count little, so fewer components are used for them.
        """
        of_clauses = np.concatenate([np.zeros((0, vectors.shape[1]), np.float32), *clauses])
        components = np.ascontiguousarray(((vectors @ self.basis) * self.steps).T)
        clause_components = np.ascontiguousarray(((of_clauses @ self.basis) * self.steps).T[:CLAUSE_CODE_LENGTH])
        clause_means = (of_clauses @ self.mean)[:, None]
        groups = np.cumsum([0, *map(len, clauses)])
        found = np.empty((len(vectors), len(codes)), np.float32)
        nearest = np.empty((len(clauses), len(codes)), np.float32)
        decoded = np.empty((CHUNK_ROWS, codes.shape[1]), np.float32)
        for start in range(0, len(codes), CHUNK_ROWS):
            end = min(start + CHUNK_ROWS, len(codes))
            own = decoded[: end - start]
            np.copyto(own, codes[start:end])
            found[:, start:end] = (own @ components).T
            if clauses:
                # Contiguous: numpy reduces the rows of a transposed view slowly.
                products = np.ascontiguousarray((own[:, :CLAUSE_CODE_LENGTH] @ clause_components).T)
                products += clause_means
                for group, first in enumerate(groups[:-1]):
                    np.max(products[first : groups[group + 1]], axis=0, out=nearest[group, start:end])
        found += (vectors @ self.mean)[:, None]
        return found, nearest
