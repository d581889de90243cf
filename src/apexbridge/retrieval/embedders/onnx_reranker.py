"""A cross-encoder from a folder, run by onnxruntime: reads a request and a text together and says how well they fit."""

import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from apexbridge.retrieval.embedders.model import EmbeddingError, Floats
from apexbridge.retrieval.embedders.model_card import ModelCard
from apexbridge.retrieval.embedders.onnx_model import load_onnx, once, padded

BATCH = 4
"""Small, so that the time limit is kept."""


class OnnxReranker:
    """Loaded by `load`, else at first use. Several threads may call at once."""

    def __init__(self, folder: Path, card: ModelCard) -> None:
        self.id = f"{card.name}@{card.sha256[:12]}"
        self.english_only = card.english_only
        self.is_loading = False
        self._card = card
        self._loaded = once(lambda: load_onnx(folder, card))

    def load(self) -> None:
        """Load it, which takes longer than a search may wait. Raises EmbeddingError."""
        self.is_loading = True
        try:
            self._loaded()
        finally:
            self.is_loading = False

    def score(self, request: str, texts: Sequence[str], *, budget_seconds: float) -> Floats:
        """How well each text answers the request, as far as the time allows: the first ones. Raises EmbeddingError."""
        loaded = self._loaded()
        if loaded.needs_equal_lengths:
            raise EmbeddingError(f"The model {self._card.name} is a decoder, which is not supported as a reranker.")
        end = time.monotonic() + budget_seconds
        scores: list[Floats] = []
        for start in range(0, len(texts), BATCH):
            if time.monotonic() >= end:
                break
            pairs = [(request, text) for text in texts[start : start + BATCH]]
            encoded = loaded.encode(pairs)
            ids, mask, types = (
                padded([getattr(one, field) for one in encoded]) for field in ("ids", "attention_mask", "type_ids")
            )
            logits = loaded.run(ids, mask, types)
            if logits.ndim != 2 or logits.shape[1] > 2:
                raise EmbeddingError(f"The model {self._card.name} is not a reranker of one or two labels.")
            # With two labels, the second one is "relevant".
            scores.append(loaded.finite(logits[:, 0] if logits.shape[1] == 1 else logits[:, 1] - logits[:, 0]))
        return np.concatenate(scores) if scores else np.zeros(0, np.float32)
