"""A copy of the index in one file, so that a start needs neither LanceDB's import nor its tables.

It says which commit of the tables it was made of; beside any other commit it counts for nothing.
"""

import json
import logging
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from apexbridge.retrieval.documents import Document
from apexbridge.retrieval.index.lance import Contents, IndexedSkill
from apexbridge.retrieval.usage import Pair

FORMAT = 1
logger = logging.getLogger(__name__)


def write_snapshot(path: Path, contents: Contents, *, signature: str, embedder: str, dimensions: int) -> None:
    """Put the copy in place in one step; one that cannot be written is only missing."""
    about = {
        "format": FORMAT,
        "signature": signature,
        "embedder": embedder,
        "skills": [asdict(skill.document) for skill in contents.skills],
        "pairs": [asdict(pair) for pair, _ in contents.pairs],
    }
    beside = path.with_name(f"{path.name}.new")
    try:
        with beside.open("wb") as file:
            np.savez(
                file,
                about=np.frombuffer(json.dumps(about).encode(), np.uint8),
                skills=_stacked([skill.vector for skill in contents.skills], dimensions),
                pairs=_stacked([vector for _, vector in contents.pairs], dimensions),
            )
        beside.replace(path)
    except OSError as error:
        with suppress(OSError):
            beside.unlink(missing_ok=True)
        logger.warning("the copy of the index could not be written: %s", error.strerror)


def read_snapshot(path: Path, *, signature: str, embedder: str, dimensions: int) -> Contents | None:
    """The copy, where it is one of this commit and this model."""
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as stored:
            about = json.loads(stored["about"].tobytes())
            if (about["format"], about["signature"], about["embedder"]) != (FORMAT, signature, embedder):
                return None
            skills, pairs = stored["skills"], stored["pairs"]
        if skills.shape != (len(about["skills"]), dimensions) or pairs.shape != (len(about["pairs"]), dimensions):
            return None
        return Contents(
            skills=[
                IndexedSkill(document=_document(own), vector=vector)
                for own, vector in zip(about["skills"], skills, strict=True)
            ],
            pairs=[(Pair(**own), vector) for own, vector in zip(about["pairs"], pairs, strict=True)],
        )
    except FileNotFoundError:
        return None
    except Exception as error:  # a file of unknown content: whatever is wrong with it, it is not a copy
        logger.warning("the copy of the index is of no use: %s", type(error).__name__)
        return None


def _stacked(vectors: list[Any], dimensions: int) -> Any:
    return np.stack(vectors) if vectors else np.zeros((0, dimensions), np.float32)


def _document(own: dict[str, Any]) -> Document:
    return Document(**{**own, "tags": tuple(own["tags"]), "derived_tags": tuple(own["derived_tags"])})
