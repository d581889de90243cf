"""Embedding models that are installed beside the bundled ones: each is a folder with weights, tokenizer and card."""

import errno
import fcntl
import itertools
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from apexbridge._fs import exchange
from apexbridge.errors import InvalidInputError, RequestError, ServerError
from apexbridge.retrieval.embedders.bundled import MultilingualModel
from apexbridge.retrieval.embedders.model import EmbeddingError
from apexbridge.retrieval.embedders.model_card import CARD_FILE, NAME_PATTERN, ModelCard, stored_card
from apexbridge.retrieval.embedders.model_files import read_model
from apexbridge.retrieval.embedders.model_sources import fetch_model
from apexbridge.retrieval.embedders.onnx_file import read_onnx_file
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
    guesses: tuple[str, ...] = ()
    """When it is added: what its files do not say, and what is assumed instead."""

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
                found.append(InstalledModel(folder=folder, card=stored_card(folder)))
            except EmbeddingError as error:
                problems[name] = str(error)
        return found, problems

    def add(
        self,
        source: str,
        *,
        name: str | None = None,
        shared: bool = False,
        replace: bool = False,
        changes: Mapping[str, Any] | None = None,
        say: Say = print,
    ) -> InstalledModel:
        """Install a model from a folder, a name of the list of known ones, or the hub: `owner/name@revision`.

        It is loaded once and has to embed some texts. `changes` are fields of its card that the user sets. With
        `replace`, it takes the place of one with the same name, which stays if this fails. Raises InvalidInputError,
        and ServerError: STORAGE_FULL.
        """
        published_as = _name_of(source)
        target_name = name or published_as
        if not re.fullmatch(NAME_PATTERN, target_name):
            raise InvalidInputError(
                f"{target_name} cannot be the name of a model: use letters, digits, dots, hyphens and underscores, "
                "as in --name my-model"
            )
        if target_name == MultilingualModel.id:
            raise InvalidInputError(f"{target_name} is the model that is always installed: choose another --name")
        target = self._folders[-1 if shared else 0] / target_name
        if os.path.lexists(target) and not replace:
            raise InvalidInputError(_taken(target_name))
        with _files_of(target), _staged(target.parent) as folder:
            try:
                exact = fetch_model(source, folder, say)
                read = read_model(folder, target_name, published_as=published_as, changes=changes)
                data_files = read_onnx_file(folder / read.card.file).data_files
                parent = PurePosixPath(read.card.file).parent
                update = {"source": exact, "data_files": tuple(str(parent / path) for path in data_files)}
                card = read.card.model_copy(update=update)
                card = card.model_copy(update={"sha256": card.weights_digest(folder)})
                (folder / CARD_FILE).write_text(card.model_dump_json(indent=2, exclude_defaults=True) + "\n")
                InstalledModel(folder=folder, card=card).try_out()
            except EmbeddingError as error:
                raise InvalidInputError(str(error).replace(str(folder), source)) from error
            _put_in_place(folder, target, replace=replace)
        return InstalledModel(folder=target, card=card, guesses=read.guesses)

    def remove(self, name: str, *, shared: bool = False) -> None:
        """Remove a model of the data directory, or one of the installation.

        Raises RequestError: NOT_FOUND, and ServerError: STORAGE_FULL.
        """
        if name == MultilingualModel.id:
            raise InvalidInputError(f"{name} is always installed, and cannot be removed.")
        found = self.folders_of(name)
        own = [folder for folder in found if (folder.parent == self._folders[-1]) == shared]
        if found and not own:
            raise InvalidInputError(
                f"{name} is a model of this data directory: remove it without --shared"
                if shared
                else f"{name} is installed for every data directory of this installation. To remove it for all of "
                f"them: apex models remove {name} --shared"
            )
        if not own:
            message = f"No model named {name} is installed here. List them: apex models list"
            raise RequestError(message, code="NOT_FOUND")
        with _files_of(own[0]), _staged(own[0].parent) as folder:
            own[0].rename(folder / name)  # at once: a model is never left without half of its files

    def folders_of(self, name: str) -> list[Path]:
        """Where a model is installed; the first one is used."""
        folders = [folder / name for folder in self._folders] if re.fullmatch(NAME_PATTERN, name) else []
        return [folder for folder in folders if (folder / CARD_FILE).exists()]

    def _model_folders(self) -> dict[str, Path]:
        """By name. A model of the data directory comes before one of the installation."""
        cards = [path for folder in reversed(self._folders) for path in folder.glob(f"[!.]*/{CARD_FILE}")]
        return {path.parent.name: path.parent for path in cards}


def _name_of(source: str) -> str:
    """The last part of the path of a folder, or of the name of a model on the hub."""
    path = Path(source).expanduser()
    return (path if path.is_dir() else Path(source.partition("@")[0])).resolve().name


def _taken(name: str) -> str:
    return f"There is a model named {name} already. Replace it with --replace, or choose another --name."


def _put_in_place(staged: Path, target: Path, *, replace: bool) -> None:
    """Rename the folder to the target at once. The replaced one, if any, is then in the staged place."""
    if replace and os.path.lexists(target):
        try:
            return exchange(staged, target)
        except OSError as error:
            if error.errno not in (errno.ENOSYS, errno.EINVAL, errno.ENOTSUP):
                raise
        with _staged(target.parent) as old:  # the file system cannot exchange
            target.rename(old / target.name)
            try:
                staged.rename(target)
            except OSError:
                (old / target.name).rename(target)
                raise
        return None
    try:
        staged.rename(target)
    except OSError as error:
        if error.errno in (errno.ENOTEMPTY, errno.EEXIST):
            raise InvalidInputError(_taken(target.name)) from error  # it was added meanwhile
        raise
    return None


@contextmanager
def _files_of(target: Path) -> Iterator[None]:
    """Errors of the file system are errors with a code."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise ServerError(
                f"The disk of {target.parent} is full; nothing was changed. Free some space and try again.",
                code="STORAGE_FULL",
            ) from error
        raise InvalidInputError(
            f"{error.filename or target.parent}: {error.strerror or error}. Nothing was changed."
        ) from error


@contextmanager
def _staged(parent: Path) -> Iterator[Path]:
    """A new folder that is removed unless it is renamed. Its lock shows other processes that it is in use."""
    parent.mkdir(parents=True, exist_ok=True)
    with _locked(parent):
        _sweep(parent)
        folder = Path(tempfile.mkdtemp(prefix=STAGED, dir=parent))
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        fcntl.flock(descriptor, fcntl.LOCK_EX)
    try:
        folder.chmod(0o755)
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(descriptor)


def _sweep(parent: Path) -> None:
    """Remove what a process left that was killed."""
    for folder in parent.glob(f"{STAGED}*"):
        with suppress(OSError), _locked(folder, wait=False):
            shutil.rmtree(folder)


@contextmanager
def _locked(folder: Path, *, wait: bool = True) -> Iterator[None]:
    """Hold the lock of a folder. Without `wait`, raise OSError if another process holds it."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        yield
    finally:
        os.close(descriptor)
