"""What is known of a model in a folder: read from the files that its publisher ships."""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from apexbridge.retrieval.embedders.model import EmbeddingError, Scale

CARD_FILE = "apex-model.json"
"""Written when a model is added; everything in it can be edited."""
MODEL_FILES = (
    "onnx/model_quantized.onnx",
    "onnx/model_int8.onnx",
    "model_quantized.onnx",
    "onnx/model.onnx",
    "model.onnx",
)
"""Of several, the quantized one: a quarter of the size, and several times as fast."""
TOKENIZER_FILE = "tokenizer.json"
MAX_TOKENS = 128
"""Longer texts cost time, and a description says at its beginning what a skill is for."""
MAX_CONFIG_BYTES = 1_000_000
ENGLISH_BERT_WORDS = 30_522
"""Size of the vocabulary of English BERT, which nearly all English models use."""
DEFAULT_WEIGHT = 2.4
PREFIXES = {
    "e5": ("query: ", "passage: "),
    "bge-small-en": ("Represent this sentence for searching relevant passages: ", ""),
    "bge-base-en": ("Represent this sentence for searching relevant passages: ", ""),
    "bge-large-en": ("Represent this sentence for searching relevant passages: ", ""),
}
"""Of the request and of the document, for models whose files do not name them."""
NAME_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$"
Pooling = Literal["mean", "cls", "last"]
ModelKind = Literal["embedding", "reranker"]
RERANKER_TOKENS = 192
"""Of the request and a skill's text together."""


class ModelCard(BaseModel):
    """How to use a model."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str = Field(pattern=NAME_PATTERN)
    kind: ModelKind = Field(
        default="embedding", description="A reranker reads a request and a skill together and returns one number."
    )
    file: str = Field(description="The path of the ONNX file in the folder.")
    dimensions: int = Field(ge=1, le=8192)
    max_tokens: int = Field(default=MAX_TOKENS, ge=8, le=8192)
    pooling: Pooling = "mean"
    request_prefix: str = ""
    document_prefix: str = ""
    english_only: bool = False
    weight: float = Field(default=DEFAULT_WEIGHT, gt=0, le=100)
    scale: tuple[float, float] | None = Field(
        default=None, description="Typical cosines of an unrelated and a related pair; measured if it is missing."
    )
    source: str = ""
    sha256: str = Field(default="", description="Of the ONNX file.")

    @property
    def known_scale(self) -> Scale | None:
        return None if self.scale is None else Scale(unrelated=self.scale[0], related=self.scale[1])

    def digest(self, folder: Path) -> str:
        """Of everything that decides the vectors. Raises EmbeddingError."""
        try:
            tokenizer = digest_of(folder / TOKENIZER_FILE)
        except OSError as error:
            raise EmbeddingError(f"The model in {folder} has no file {TOKENIZER_FILE}.") from error
        parts = (self.sha256, tokenizer, self.pooling, self.max_tokens, self.request_prefix, self.document_prefix)
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def read_card(folder: Path, name: str | None = None) -> ModelCard:
    """The card of a model's folder; without one, it is derived from the model's own files. Raises EmbeddingError."""
    name = name or folder.name
    if (folder / CARD_FILE).exists():
        return _checked(folder, _json(folder / CARD_FILE))
    config = _json(folder / "config.json")
    sentence = _json(folder / "sentence_bert_config.json", is_required=False)
    request_prefix, document_prefix = _prefixes(folder, str(config.get("_name_or_path") or name))
    kind = _kind(config)
    most = MAX_TOKENS if kind == "embedding" else RERANKER_TOKENS
    limits = (sentence.get("max_seq_length"), config.get("max_position_embeddings"), most)
    tokenizer = _json(folder / "tokenizer_config.json", is_required=False)
    fields = {
        "name": name,
        "kind": kind,
        "file": next((name for name in MODEL_FILES if (folder / name).is_file()), MODEL_FILES[-1]),
        "dimensions": config.get("hidden_size") if kind == "embedding" else 1,
        "max_tokens": min(limit for limit in limits if isinstance(limit, int)),
        "pooling": _pooling(folder),
        "request_prefix": request_prefix,
        "document_prefix": document_prefix,
        "english_only": tokenizer.get("tokenizer_class") == "BertTokenizer"
        and config.get("vocab_size") == ENGLISH_BERT_WORDS,
    }
    return _checked(folder, fields)


def digest_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _checked(folder: Path, fields: Mapping[str, Any]) -> ModelCard:
    try:
        card = ModelCard.model_validate(fields)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise EmbeddingError(f"The model in {folder} cannot be used: {where}: {first['msg']}.") from error
    for name in (card.file, TOKENIZER_FILE):
        path = folder / name
        if not path.resolve().is_relative_to(folder.resolve()) or not path.is_file():
            raise EmbeddingError(f"The model in {folder} has no file {name}.")
    return card


def _kind(config: Mapping[str, Any]) -> ModelKind:
    architectures = config.get("architectures")
    named = architectures[0] if isinstance(architectures, list) and architectures else ""
    return "reranker" if str(named).endswith("ForSequenceClassification") else "embedding"


def _pooling(folder: Path) -> Pooling:
    config = _json(folder / "1_Pooling/config.json", is_required=False)
    if config.get("pooling_mode_cls_token"):
        return "cls"
    return "last" if config.get("pooling_mode_lasttoken") else "mean"


def _prefixes(folder: Path, name: str) -> tuple[str, str]:
    prompts = _json(folder / "config_sentence_transformers.json", is_required=False).get("prompts")
    if isinstance(prompts, dict) and prompts:
        document = prompts.get("document", prompts.get("passage", ""))
        return str(prompts.get("query") or ""), str(document or "")
    return next((own for family, own in PREFIXES.items() if family in name.lower()), ("", ""))


def _json(path: Path, *, is_required: bool = True) -> dict[str, Any]:
    """An object from a file; an empty one for a file that is missing and not required."""
    if not is_required and not path.exists():
        return {}
    try:
        if path.stat().st_size > MAX_CONFIG_BYTES:
            raise ValueError("it is too large")
        content = json.loads(path.read_bytes())
        if not isinstance(content, dict):
            raise ValueError("it is not an object")
    except FileNotFoundError as error:
        raise EmbeddingError(f"The model in {path.parent} has no file {path.name}.") from error
    except (OSError, ValueError, RecursionError) as error:
        raise EmbeddingError(f"{path} cannot be read: {error}.") from error
    return content
