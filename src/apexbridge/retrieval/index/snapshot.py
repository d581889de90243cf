"""A snapshot of the index in memory, for a quick start without LanceDB."""

import json
import logging
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from hashlib import sha256
from importlib.resources import files
from pathlib import Path
from typing import Any, get_args

import numpy as np
from numpy.typing import NDArray

from apexbridge._fs import PRIVATE_FILE
from apexbridge.retrieval.embedders.model import Floats
from apexbridge.retrieval.index.vector_file import VectorFile
from apexbridge.retrieval.index.vector_index import VectorIndex
from apexbridge.retrieval.kinds import Kind
from apexbridge.retrieval.usage import UsagePair

FORMAT = 6
"""Snapshots of format 1 contain the text of past requests."""
TOKENIZER = ("documents.py", "text.py")
"""Modules that decide what is in the keyword index."""
logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    signature: str
    """The commit of the tables that it was made from."""
    indexes: Mapping[Kind, VectorIndex]
    pairs: list[tuple[UsagePair, Floats]]


def vectors_path(snapshot: Path, kind: Kind) -> Path:
    """The file with the vectors of a large index."""
    return snapshot.with_name(f"{snapshot.name}.{kind}-vectors")


def new_vectors_path(snapshot: Path, kind: Kind) -> Path:
    """The same for other models, until they are in use."""
    return snapshot.with_name(f"{snapshot.name}.{kind}-vectors.next")


def draft_of(path: Path) -> Path:
    return path.with_name(f"{path.name}.new")


def is_current(path: Path) -> bool:
    """Whether the file is a snapshot of this format."""
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as stored:
            return int(stored["format"]) == FORMAT
    except Exception:  # missing; or damaged, so that its content is unknown
        return False


def write_snapshot(path: Path, snapshot: Snapshot, *, embedder: str) -> None:
    """Write it atomically. A failure is only logged: the next start reads the tables."""
    about = {
        "signature": snapshot.signature,
        "embedder": embedder,
        "tokenizer": _tokenizer(),
        "pairs": [asdict(pair) for pair, _ in snapshot.pairs],
    }
    arrays: dict[str, NDArray[Any]] = {
        f"{kind}/{name}": array for kind, index in snapshot.indexes.items() for name, array in index.packed().items()
    }
    draft = draft_of(path)
    try:
        draft.unlink(missing_ok=True)
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, PRIVATE_FILE)
        with os.fdopen(descriptor, "wb") as file:
            np.savez(
                file,
                allow_pickle=False,
                format=np.array(FORMAT),
                about=np.frombuffer(json.dumps(about).encode(), np.uint8),
                pairs=np.array([vector for _, vector in snapshot.pairs], np.float32),
                **arrays,
            )
        draft.replace(path)
    except OSError as error:
        with suppress(OSError):
            draft.unlink(missing_ok=True)
        logger.warning("the snapshot of the index could not be written: %s", error.strerror)


def read_snapshot(path: Path, *, embedder: str, dimensions: tuple[int, ...]) -> Snapshot | None:
    """The snapshot; None if it is missing, damaged, or of another model or version of apexbridge."""
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as stored:
            about = json.loads(stored["about"].tobytes())
            if (int(stored["format"]), about["embedder"], about["tokenizer"]) != (FORMAT, embedder, _tokenizer()):
                return None
            indexes = {kind: _index(path, kind, dimensions, stored) for kind in get_args(Kind)}
            vectors = stored["pairs"]
        if len(vectors) and vectors.shape[1] != sum(dimensions):
            return None
        pairs = [(UsagePair(**fields), vector) for fields, vector in zip(about["pairs"], vectors, strict=True)]
        return Snapshot(signature=about["signature"], indexes=indexes, pairs=pairs)
    except FileNotFoundError:
        return None
    except Exception as error:  # numpy and zipfile raise many types for damaged files
        logger.warning("the snapshot of the index is unusable: %s", type(error).__name__)
        return None


def _index(path: Path, kind: Kind, dimensions: tuple[int, ...], stored: Mapping[str, NDArray[Any]]) -> VectorIndex:
    def open_file(id: str, checksums: NDArray[np.uint32]) -> VectorFile:
        return VectorFile.open(vectors_path(path, kind), sum(dimensions), id=id, checksums=checksums)

    packed = {name.removeprefix(f"{kind}/"): stored[name] for name in stored if name.startswith(f"{kind}/")}
    return VectorIndex.unpacked(dimensions, packed, open_file=open_file)


def _tokenizer() -> str:
    """Changes with the code that decides which words a skill has."""
    sources = [files("apexbridge.retrieval").joinpath(module).read_bytes() for module in TOKENIZER]
    return sha256(b"".join(sources)).hexdigest()
