"""A sentence-embedding model from a folder, run by onnxruntime. Only its weights and its tokenizer file are loaded."""

import os
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from apexbridge.retrieval.embedders.model import EmbeddingError, Floats, Scale, normalized
from apexbridge.retrieval.embedders.model_card import TOKENIZER_FILE, ModelCard, digest_of
from apexbridge.retrieval.embedders.scale import measure_scale

BATCH = 16
MAX_THREADS = 2
OUTPUTS = ("last_hidden_state", "token_embeddings", "sentence_embedding", "logits")
Integers = NDArray[np.int64]
T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedModel:
    session: Any
    tokenizer: Any
    inputs: frozenset[str]
    output: str

    def run(self, name: str, ids: Integers, mask: Integers, types: Integers) -> Floats:
        """The output for a batch of tokenized texts. Raises EmbeddingError."""
        feed = {"input_ids": ids, "attention_mask": mask, "token_type_ids": types}
        try:
            (output,) = self.session.run(
                [self.output], {name: array for name, array in feed.items() if name in self.inputs}
            )
        except Exception as error:  # onnxruntime raises its own types
            raise EmbeddingError(f"The model {name} failed ({type(error).__name__}).") from error
        result: Floats = output
        return result


class OnnxModel:
    """Loaded at first use."""

    def __init__(self, folder: Path, card: ModelCard, *, id: str | None = None) -> None:
        self.id = id or f"{card.name}@{card.digest(folder)[:12]}"
        self.dimensions = card.dimensions
        self.english_only = card.english_only
        self.weight = card.weight
        self._card = card
        self._loaded = once(lambda: load_onnx(folder, card))
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
        if not np.isfinite(vectors).all():
            raise EmbeddingError(f"The model {self._card.name} returned values that are not numbers (NaN).")
        return normalized(vectors)

    def _pooled(self, loaded: LoadedModel, rows: Sequence[Sequence[int]]) -> Floats:
        ids, mask = padded(rows), padded([[1] * len(row) for row in rows])
        hidden = loaded.run(self._card.name, ids, mask, np.zeros_like(ids))
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


def padded(rows: Sequence[Sequence[int]]) -> Integers:
    """Rows of different lengths as a matrix, filled up with zeros."""
    matrix = np.zeros((len(rows), max(map(len, rows))), np.int64)
    for number, row in enumerate(rows):
        matrix[number, : len(row)] = row
    return matrix


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


def load_onnx(folder: Path, card: ModelCard) -> LoadedModel:
    # On import, onnxruntime writes a device id and a telemetry database into the home directory.
    os.environ["ORT_DISABLE_TELEMETRY"] = "1"
    try:
        import onnxruntime
        import tokenizers

        if card.sha256 and digest_of(folder / card.file) != card.sha256:
            raise EmbeddingError(
                f"The model {card.name} cannot be loaded: its file has changed since it was added. Restart, or add it "
                "again."
            )
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = min(MAX_THREADS, os.cpu_count() or 1)
        options.log_severity_level = 3
        # Threads that wait actively take the processor from others: on a loaded machine everything slows down.
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        session = onnxruntime.InferenceSession(folder / card.file, options, providers=["CPUExecutionProvider"])
        tokenizer = tokenizers.Tokenizer.from_file(str(folder / TOKENIZER_FILE))
    except EmbeddingError:
        raise
    except Exception as error:  # a broken installation raises many types
        raise EmbeddingError(
            f"The model {card.name} cannot be loaded ({type(error).__name__}); reinstall it."
        ) from error
    tokenizer.enable_truncation(card.max_tokens)
    tokenizer.no_padding()
    outputs = [output.name for output in session.get_outputs()]
    return LoadedModel(
        session=session,
        tokenizer=tokenizer,
        inputs=frozenset(each.name for each in session.get_inputs()),
        output=next((name for name in OUTPUTS if name in outputs), outputs[0]),
    )
