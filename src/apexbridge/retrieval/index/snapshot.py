"""A copy of the index in one file, so that a start needs neither LanceDB's import nor its tables.

It names the commit of the tables that it was made from. With any other commit it is ignored.
"""

import json
import logging
import os
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from apexbridge._fs import PRIVATE_FILE
from apexbridge.retrieval.documents import Document
from apexbridge.retrieval.index.lance import Contents, IndexedSkill
from apexbridge.retrieval.usage import UsagePair

FORMAT = 2
"""Files of format 1 contain the text of past requests."""
logger = logging.getLogger(__name__)


def write_snapshot(path: Path, contents: Contents, *, signature: str, embedder: str, dimensions: int) -> None:
    """Write the snapshot atomically. A failure is only logged: the next start reads the tables."""
    about = {
        "signature": signature,
        "embedder": embedder,
        "skills": [asdict(skill.document) for skill in contents.skills],
        "pairs": [asdict(pair) for pair, _ in contents.pairs],
    }
    temporary = path.with_name(f"{path.name}.new")
    try:
        temporary.unlink(missing_ok=True)
        with os.fdopen(
            os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, PRIVATE_FILE), "wb"
        ) as file:
            np.savez(
                file,
                format=np.array(FORMAT),
                about=np.frombuffer(json.dumps(about).encode(), np.uint8),
                skills=_stacked([skill.vector for skill in contents.skills], dimensions),
                pairs=_stacked([vector for _, vector in contents.pairs], dimensions),
            )
        temporary.replace(path)
    except OSError as error:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
        logger.warning("the snapshot of the index could not be written: %s", error.strerror)


def read_snapshot(path: Path, *, signature: str, embedder: str, dimensions: int) -> Contents | None:
    """The contents; None if the snapshot is missing, damaged, or of another commit or model."""
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as stored:
            about = json.loads(stored["about"].tobytes())
            if (int(stored["format"]), about["signature"], about["embedder"]) != (FORMAT, signature, embedder):
                return None
            skills, pairs = stored["skills"], stored["pairs"]
        if skills.shape != (len(about["skills"]), dimensions) or pairs.shape != (len(about["pairs"]), dimensions):
            return None
        return Contents(
            skills=[
                IndexedSkill(document=Document.from_stored(fields), vector=vector)
                for fields, vector in zip(about["skills"], skills, strict=True)
            ],
            pairs=[(UsagePair(**fields), vector) for fields, vector in zip(about["pairs"], pairs, strict=True)],
        )
    except FileNotFoundError:
        return None
    except Exception as error:  # numpy and zipfile raise many types for damaged files
        logger.warning("the snapshot of the index is unusable: %s", type(error).__name__)
        return None


def remove_snapshot_with_texts(path: Path) -> None:
    """Remove a snapshot of an earlier version, which may contain the text of past requests.

    Raises:
        OSError: it could not be removed.
    """
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as stored:
            is_ours = int(stored["format"]) == FORMAT
    except FileNotFoundError:
        is_ours = True
    except Exception:  # damaged, so its content is unknown
        is_ours = False
    if not is_ours:
        path.unlink(missing_ok=True)
    path.with_name(f"{path.name}.new").unlink(missing_ok=True)  # left by a crash


def _stacked(vectors: list[Any], dimensions: int) -> Any:
    return np.stack(vectors) if vectors else np.zeros((0, dimensions), np.float32)
