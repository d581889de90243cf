"""A sentence-embedding model from a folder, run by onnxruntime. Only its weights and its tokenizer file are loaded."""

import os
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from apexbridge.retrieval.embedders.model import EmbeddingError, Floats, Scale, normalized
from apexbridge.retrieval.embedders.model_card import TOKENIZER_FILE, ModelCard
from apexbridge.retrieval.embedders.scale import measure_scale

BATCH = 16
MAX_THREADS = 2
OUTPUTS = ("last_hidden_state", "token_embeddings", "sentence_embedding")
T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Loaded:
    session: Any
    tokenizer: Any
    inputs: frozenset[str]
    output: str


class OnnxModel:
    """Loaded at first use."""

    def __init__(self, folder: Path, card: ModelCard, *, id: str | None = None) -> None:
        self.id = id or f"{card.name}@{card.sha256[:12]}"
        self.dimensions = card.dimensions
        self.english_only = card.english_only
        self.weight = card.weight
        self._card = card
        self._loaded = once(lambda: _load(folder, card))
        self._scale = once(lambda: card.known_scale or measure_scale(self.embed, english_only=card.english_only))

    def scale(self) -> Scale:
        """Of its card, else measured once."""
        return self._scale()

    def embed(self, texts: Sequence[str], *, are_requests: bool = False) -> Floats:
        loaded = self._loaded()
        prefix = self._card.request_prefix if are_requests else self._card.document_prefix
        rows = [encoded.ids for encoded in loaded.tokenizer.encode_batch([prefix + text for text in texts])]
        vectors = np.zeros((len(rows), self.dimensions), np.float32)
        # Sorted by length: a batch costs as much as its longest text.
        order = sorted(range(len(rows)), key=lambda row: len(rows[row]))
        for start in range(0, len(order), BATCH):
            batch = order[start : start + BATCH]
            vectors[batch] = self._pooled(loaded, [rows[row] for row in batch])
        return normalized(vectors)

    def _pooled(self, loaded: _Loaded, rows: Sequence[Sequence[int]]) -> Floats:
        ids = np.zeros((len(rows), max(map(len, rows))), np.int64)
        mask = np.zeros_like(ids)
        for number, row in enumerate(rows):
            ids[number, : len(row)] = row
            mask[number, : len(row)] = 1
        feed = {"input_ids": ids, "attention_mask": mask, "token_type_ids": np.zeros_like(ids)}
        try:
            (hidden,) = loaded.session.run(
                [loaded.output], {name: array for name, array in feed.items() if name in loaded.inputs}
            )
        except Exception as error:  # onnxruntime raises its own types
            raise EmbeddingError(f"The model {self._card.name} failed ({type(error).__name__}).") from error
        if hidden.shape[-1] != self.dimensions:
            raise EmbeddingError(
                f"The model {self._card.name} has vectors of {hidden.shape[-1]} dimensions instead of "
                f"{self.dimensions}. Correct its apex-model.json, or add it again."
            )
        if hidden.ndim == 2:
            pooled: Floats = hidden
        elif self._card.pooling == "cls":
            pooled = hidden[:, 0]
        elif self._card.pooling == "last":
            pooled = hidden[np.arange(len(rows)), mask.sum(axis=1) - 1]
        else:
            pooled = (hidden * mask[..., None]).sum(axis=1) / np.maximum(mask.sum(axis=1), 1)[:, None]
        return pooled


def once(load: Callable[[], T]) -> Callable[[], T]:
    """Load on the first call, also if several threads call at once. A failure is not remembered."""
    lock = threading.RLock()
    loaded: list[T] = []

    def get() -> T:
        with lock:
            if not loaded:
                loaded.append(load())
            return loaded[0]

    return get


def _load(folder: Path, card: ModelCard) -> _Loaded:
    # On import, onnxruntime writes a device id and a telemetry database into the home directory.
    os.environ["ORT_DISABLE_TELEMETRY"] = "1"
    try:
        import onnxruntime
        import tokenizers

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = min(MAX_THREADS, os.cpu_count() or 1)
        options.log_severity_level = 3
        session = onnxruntime.InferenceSession(folder / card.file, options, providers=["CPUExecutionProvider"])
        tokenizer = tokenizers.Tokenizer.from_file(str(folder / TOKENIZER_FILE))
    except Exception as error:  # a broken installation raises many types
        raise EmbeddingError(
            f"The embedding model {card.name} cannot be loaded ({type(error).__name__}); reinstall it."
        ) from error
    tokenizer.enable_truncation(card.max_tokens)
    tokenizer.no_padding()
    outputs = [output.name for output in session.get_outputs()]
    return _Loaded(
        session=session,
        tokenizer=tokenizer,
        inputs=frozenset(each.name for each in session.get_inputs()),
        output=next((name for name in OUTPUTS if name in outputs), outputs[0]),
    )
