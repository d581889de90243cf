"""A sentence-embedding model from a folder, run by onnxruntime. Only its weights and its tokenizer file are loaded."""

import itertools
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from apexbridge.retrieval.embedders.model import EmbeddingError, Floats, Scale, normalized
from apexbridge.retrieval.embedders.model_card import TOKENIZER_FILE, ModelCard
from apexbridge.retrieval.embedders.model_files import POOLED_OUTPUT, TOKEN_OUTPUTS
from apexbridge.retrieval.embedders.scale import measure_scale

BATCH = 16
MAX_THREADS = 2
OUTPUTS = (*TOKEN_OUTPUTS, POOLED_OUTPUT, "logits")
KNOWN_INPUTS = frozenset({"input_ids", "attention_mask", "token_type_ids", "position_ids"})
PAST = "past_key_values."
"""Prefix of the inputs of a decoder for the texts before: [batch, heads, tokens, size of a head]."""
DTYPES = {
    "tensor(int64)": np.int64,
    "tensor(int32)": np.int32,
    "tensor(float)": np.float32,
    "tensor(float16)": np.float16,
}
Integers = NDArray[np.int64]
T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedModel:
    name: str
    session: Any
    tokenizer: Any
    output: str

    @property
    def needs_equal_lengths(self) -> bool:
        """Whether only rows of the same length may be read together. Decoders differ in the side of the padding."""
        return any(each.name == "position_ids" or each.name.startswith(PAST) for each in self.session.get_inputs())

    def encode(self, texts: Sequence[Any]) -> list[Any]:
        """The tokens of texts, or of pairs of texts. Raises EmbeddingError."""
        try:
            encoded: list[Any] = self.tokenizer.encode_batch(list(texts))
        except Exception as error:  # tokenizers raises plain exceptions
            raise EmbeddingError(f"The tokenizer of the model {self.name} failed: {error}.") from error
        return encoded

    def run(self, ids: Integers, mask: Integers, types: Integers) -> Floats:
        """The output for a batch of tokenized texts. Raises EmbeddingError."""
        known = {
            "input_ids": ids,
            "attention_mask": mask,
            "token_type_ids": types,
            "position_ids": np.broadcast_to(np.arange(ids.shape[1]), ids.shape),
        }
        try:
            feed = {
                each.name: np.ascontiguousarray(known[each.name], DTYPES[each.type])
                if each.name in known
                else np.zeros((len(ids), each.shape[1], 0, each.shape[3]), DTYPES[each.type])
                for each in self.session.get_inputs()
            }
            (output,) = self.session.run([self.output], feed)
        except Exception as error:  # onnxruntime raises its own types
            raise EmbeddingError(f"The model {self.name} failed ({type(error).__name__}).") from error
        result: Floats = output.astype(np.float32, copy=False)
        return result

    def finite(self, values: Floats) -> Floats:
        """The values. Raises EmbeddingError if they are not numbers, which would spread through the ranking."""
        if not np.isfinite(values).all():
            raise EmbeddingError(f"The model {self.name} returned values that are not numbers (NaN).")
        return values


class OnnxModel:
    """Loaded at first use."""

    def __init__(self, folder: Path, card: ModelCard, *, id: str | None = None) -> None:
        self._folder = folder
        self._id = id
        self.dimensions = card.dimensions
        self.english_only = card.english_only
        self.weight = card.weight
        self.card = card
        self._loaded = once(lambda: load_onnx(folder, card))
        self._scale = once(lambda: card.known_scale or measure_scale(self.embed, english_only=card.english_only))

    @cached_property
    def id(self) -> str:
        """Its name, and for an added model a digest. Raises EmbeddingError."""
        return self._id or f"{self.card.name}@{self.card.digest(self._folder)[:12]}"

    def scale(self) -> Scale:
        """Of its card, else measured once."""
        return self._scale()

    def embed(self, texts: Sequence[str], *, are_requests: bool = False) -> Floats:
        loaded = self._loaded()
        prefix = self.card.request_prefix if are_requests else self.card.document_prefix
        rows = [encoded.ids for encoded in loaded.encode([prefix + text for text in texts])]
        vectors = np.zeros((len(rows), self.dimensions), np.float32)
        for batch in _batches(rows, equal=loaded.needs_equal_lengths):
            vectors[batch] = loaded.finite(self._pooled(loaded, [rows[row] for row in batch]))
        return normalized(vectors)

    def _pooled(self, loaded: LoadedModel, rows: Sequence[Sequence[int]]) -> Floats:
        ids, mask = padded(rows), padded([[1] * len(row) for row in rows])
        hidden = loaded.run(ids, mask, np.zeros_like(ids))
        if hidden.shape[0] != len(rows) or hidden.ndim not in (2, 3) or hidden.shape[-1] != self.dimensions:
            raise EmbeddingError(
                f"The model {self.card.name} has vectors of {hidden.shape[-1]} dimensions instead of "
                f"{self.dimensions}. Correct its apex-model.json, or add it again."
            )
        if hidden.ndim == 2:
            pooled: Floats = hidden
        elif self.card.pooling == "cls":
            pooled = hidden[:, 0]
        elif self.card.pooling == "last":
            pooled = hidden[np.arange(len(rows)), mask.sum(axis=1) - 1]
        else:
            pooled = (hidden * mask[..., None]).sum(axis=1) / mask.sum(axis=1)[:, None]
        return pooled


def _batches(rows: Sequence[Sequence[int]], *, equal: bool) -> Iterator[list[int]]:
    """The numbers of the rows that are read together; rows without a token are left out.

    Sorted by length: a batch costs as much as its longest text.
    """
    order = sorted((number for number in range(len(rows)) if rows[number]), key=lambda number: len(rows[number]))
    groups = itertools.groupby(order, lambda number: len(rows[number]) if equal else 0)
    for _, group in groups:
        same = list(group)
        for start in range(0, len(same), BATCH):
            yield same[start : start + BATCH]


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
    """Raises EmbeddingError."""
    # On import, onnxruntime writes a device id and a telemetry database into the home directory.
    os.environ["ORT_DISABLE_TELEMETRY"] = "1"
    try:
        import onnxruntime
        import tokenizers
    except ImportError as error:
        raise EmbeddingError(f"The model {card.name} cannot be loaded: pip install 'apexbridge[models]'") from error
    try:
        has_changed = bool(card.sha256) and card.weights_digest(folder) != card.sha256
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = min(MAX_THREADS, os.cpu_count() or 1)
        options.log_severity_level = 3
        # Threads that wait actively take the processor from others: on a loaded machine everything slows down.
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        if not has_changed:
            session = onnxruntime.InferenceSession(folder / card.file, options, providers=["CPUExecutionProvider"])
            tokenizer = tokenizers.Tokenizer.from_file(str(folder / TOKENIZER_FILE))
            tokenizer.enable_truncation(card.max_tokens)
            tokenizer.no_padding()
    except Exception as error:  # a broken file raises many types
        raise EmbeddingError(
            f"The model {card.name} cannot be loaded ({type(error).__name__}): a file is damaged or incomplete. "
            "Download it again, and add it again."
        ) from error
    if has_changed:
        raise EmbeddingError(
            f"The model {card.name} cannot be loaded: its file has changed since it was added. Restart, or add it "
            "again."
        )
    _check_inputs(card.name, session.get_inputs())
    outputs = [output.name for output in session.get_outputs()]
    return LoadedModel(
        name=card.name,
        session=session,
        tokenizer=tokenizer,
        output=card.output or next((name for name in OUTPUTS if name in outputs), outputs[0]),
    )


def _check_inputs(name: str, inputs: Sequence[Any]) -> None:
    for each in inputs:
        is_past = each.name.startswith(PAST) and len(each.shape) == 4
        if each.type not in DTYPES or not (
            each.name in KNOWN_INPUTS or (is_past and all(isinstance(each.shape[axis], int) for axis in (1, 3)))
        ):
            raise EmbeddingError(
                f"The model {name} needs the input {each.name}, which is not supported. Export it for the task "
                "feature-extraction."
            )
