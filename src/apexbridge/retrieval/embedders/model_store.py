"""Embedding models that are installed beside the bundled ones: each is a folder with weights, tokenizer and card."""

import itertools
import re
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from apexbridge.errors import InvalidInputError, RequestError
from apexbridge.retrieval.embedders.bundled import MultilingualModel
from apexbridge.retrieval.embedders.model import EmbeddingError
from apexbridge.retrieval.embedders.model_card import (
    CARD_FILE,
    NAME_PATTERN,
    TOKENIZER_FILE,
    ModelCard,
    digest_of,
    read_card,
)
from apexbridge.retrieval.embedders.model_sources import KNOWN_MODELS, fetch_from_hub, fetch_known_model
from apexbridge.retrieval.embedders.onnx_model import OnnxModel
from apexbridge.retrieval.embedders.onnx_reranker import OnnxReranker
from apexbridge.retrieval.embedders.scale import RELATED_PAIRS

SHARED_FOLDER = Path(sys.prefix) / "share/apexbridge/models"
"""For every data directory of this installation."""
STAGED = ".staged-"
PROBE = "merge two files"
Say = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class InstalledModel:
    folder: Path
    card: ModelCard

    @property
    def size(self) -> int:
        """Bytes on disk."""
        return sum(path.stat().st_size for path in self.folder.rglob("*") if path.is_file())

    def open(self) -> OnnxModel:
        return OnnxModel(self.folder, self.card)

    def open_reranker(self) -> OnnxReranker:
        return OnnxReranker(self.folder, self.card)

    def try_out(self) -> None:
        """Load it and let it read some texts. Raises EmbeddingError."""
        if self.card.kind == "reranker":
            self.open_reranker().score(PROBE, [PROBE], budget_seconds=1)
        elif not self.open().embed([PROBE, *itertools.chain(*RELATED_PAIRS)])[0].any():
            raise EmbeddingError(f"The model {self.card.name} returns a vector of zeros.")


class ModelStore:
    """The models of a data directory, and those of the installation."""

    def __init__(self, data_dir: Path | None = None) -> None:
        own = [data_dir / "models"] if data_dir is not None else []
        self._folders = [*own, SHARED_FOLDER]

    def models(self) -> tuple[list[InstalledModel], dict[str, str]]:
        """Those that can be used, by name, and why the others cannot."""
        found, problems = [], {}
        for name, folder in sorted(self._model_folders().items()):
            try:
                found.append(InstalledModel(folder=folder, card=read_card(folder)))
            except EmbeddingError as error:
                problems[name] = str(error)
        return found, problems

    def add(
        self, source: str, *, name: str | None = None, shared: bool = False, replace: bool = False, say: Say = print
    ) -> InstalledModel:
        """Install a model from a folder, a name of the list of known ones, or the hub: `owner/name@revision`.

        It is loaded once and has to embed a text. With `replace`, it takes the place of one with the same name, which
        stays if this fails. Raises InvalidInputError.
        """
        target_name = name or _name_of(source)
        if not re.fullmatch(NAME_PATTERN, target_name):
            raise InvalidInputError(
                f"{target_name} cannot be the name of a model: use letters, digits, dots, hyphens and underscores, "
                "as in --name my-model"
            )
        if target_name == MultilingualModel.id:
            raise InvalidInputError(f"{target_name} is the model that is always installed: choose another --name")
        target = self._folders[-1 if shared else 0] / target_name
        if target.exists() and not replace:
            raise InvalidInputError(
                f"There is a model named {target_name} already. Replace it with --replace, or choose another --name."
            )
        with _staged(target) as folder:
            try:
                if source in KNOWN_MODELS:
                    fetch_known_model(source, folder, say)
                elif Path(source).is_dir():
                    _copy(Path(source), folder, target_name)
                else:
                    fetch_from_hub(source, folder, say)
                card = read_card(folder, target_name).model_copy(update={"name": target_name, "source": source})
                card = card.model_copy(update={"sha256": digest_of(folder / card.file)})
                (folder / CARD_FILE).write_text(card.model_dump_json(indent=2, exclude_defaults=True) + "\n")
                InstalledModel(folder=folder, card=card).try_out()
            except EmbeddingError as error:
                raise InvalidInputError(str(error).replace(str(folder), source)) from error
            with _staged(target) as old:
                if target.exists():
                    target.rename(old / target.name)
                try:
                    folder.rename(target)
                except OSError:
                    if (old / target.name).exists():
                        (old / target.name).rename(target)
                    raise
        return InstalledModel(folder=target, card=card)

    def remove(self, name: str) -> None:
        """Raises RequestError: NOT_FOUND."""
        folder = self._model_folders().get(name)
        if folder is None:
            message = f"No model named {name} is installed here. List them: apex models list"
            raise RequestError(message, code="NOT_FOUND")
        shutil.rmtree(folder)

    def _model_folders(self) -> dict[str, Path]:
        """By name. A model of the data directory comes before one of the installation."""
        cards = [path for folder in reversed(self._folders) for path in folder.glob(f"[!.]*/{CARD_FILE}")]
        return {path.parent.name: path.parent for path in cards}


def _name_of(source: str) -> str:
    return Path(source.partition("@")[0] if not Path(source).is_dir() else source).resolve().name


def _copy(source: Path, target: Path, name: str) -> None:
    """What a model needs, and nothing else."""
    card = read_card(source, name)
    needed = [
        *(card.file, TOKENIZER_FILE, CARD_FILE, "config.json", "tokenizer_config.json", "sentence_bert_config.json"),
        *("config_sentence_transformers.json", "1_Pooling/config.json", f"{card.file}_data", f"{card.file}.data"),
    ]
    for name in needed:
        if (source / name).is_file():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source / name, target / name)


@contextmanager
def _staged(target: Path) -> Iterator[Path]:
    """A folder beside the target that is removed unless it is renamed."""
    target.parent.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix=STAGED, dir=target.parent))
    folder.chmod(0o755)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
