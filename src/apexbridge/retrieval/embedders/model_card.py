"""How to use a model: a file in its folder, written when it is added."""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from apexbridge.retrieval.embedders.model import EmbeddingError, Scale

CARD_FILE = "apex-model.json"
"""Everything in it can be edited."""
TOKENIZER_FILE = "tokenizer.json"
MAX_TOKENS = 128
"""Longer texts cost time, and a description says at its beginning what a skill is for."""
RERANKER_TOKENS = 192
"""Of the request and a skill's text together."""
MAX_JSON_BYTES = 1_000_000
DEFAULT_WEIGHT = 2.4
NAME_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$"
Pooling = Literal["mean", "cls", "last"]
ModelKind = Literal["embedding", "reranker"]


class ModelCard(BaseModel):
    """How to use a model."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str = Field(pattern=NAME_PATTERN)
    kind: ModelKind = Field(
        default="embedding", description="A reranker reads a request and a skill together and returns one number."
    )
    file: str = Field(description="The path of the ONNX file in the folder.")
    data_files: tuple[str, ...] = Field(default=(), description="Paths of the files with the rest of its weights.")
    dimensions: int = Field(ge=1, le=8192)
    max_tokens: int = Field(default=MAX_TOKENS, ge=8, le=8192)
    output: str = Field(default="", description="The name of the output that is used; empty for the usual one.")
    pooling: Pooling = Field(default="mean", description="Not used if the output is one vector per text already.")
    request_prefix: str = ""
    document_prefix: str = ""
    english_only: bool = False
    weight: float = Field(default=DEFAULT_WEIGHT, gt=0, le=100)
    scale: tuple[float, float] | None = Field(
        default=None, description="Typical cosines of an unrelated and a related pair; measured if it is missing."
    )
    source: str = ""
    sha256: str = Field(default="", description="Of the ONNX file and its data files, as `weights_digest` returns it.")

    @property
    def known_scale(self) -> Scale | None:
        return None if self.scale is None else Scale(unrelated=self.scale[0], related=self.scale[1])

    def digest(self, folder: Path) -> str:
        """Of everything that decides the vectors. Raises EmbeddingError."""
        try:
            tokenizer = digest_of(folder / TOKENIZER_FILE)
        except OSError as error:
            raise EmbeddingError(f"The model in {folder} has no file {TOKENIZER_FILE}.") from error
        parts = [self.sha256, tokenizer, self.pooling, self.max_tokens, self.request_prefix, self.document_prefix]
        return hashlib.sha256(json.dumps(parts + ([self.output] if self.output else [])).encode()).hexdigest()

    def weights_digest(self, folder: Path) -> str:
        """The SHA-256 of its ONNX file; with data files, of the digests of all of them. Raises OSError."""
        digests = [digest_of(folder / name) for name in (self.file, *self.data_files)]
        return digests[0] if len(digests) == 1 else hashlib.sha256(json.dumps(digests).encode()).hexdigest()


def stored_card(folder: Path) -> ModelCard:
    """The card in a model's folder. Raises EmbeddingError."""
    return checked_card(folder, read_json(folder / CARD_FILE))


def checked_card(folder: Path, fields: Mapping[str, Any]) -> ModelCard:
    """A card whose files are there. Raises EmbeddingError."""
    try:
        card = ModelCard.model_validate(fields)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise EmbeddingError(f"The model in {folder} cannot be used: {where}: {first['msg']}.") from error
    for path in (card.file, TOKENIZER_FILE, *card.data_files):
        if not (folder / path).resolve().is_relative_to(folder.resolve()) or not (folder / path).is_file():
            raise EmbeddingError(f"The model in {folder} has no file {path}.")
    return card


def read_json(path: Path) -> dict[str, Any]:
    """An object from a file. Raises EmbeddingError."""
    content = read_any_json(path)
    if not isinstance(content, dict):
        raise EmbeddingError(f"{path} cannot be read: it is not an object.")
    return content


def read_any_json(path: Path) -> Any:
    """Raises EmbeddingError."""
    try:
        if path.stat().st_size > MAX_JSON_BYTES:
            raise ValueError("it is too large")
        return json.loads(path.read_bytes())
    except FileNotFoundError as error:
        raise EmbeddingError(f"The model in {path.parent} has no file {path.name}.") from error
    except (OSError, ValueError, RecursionError) as error:
        raise EmbeddingError(f"{path} cannot be read: {error}.") from error


def digest_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
