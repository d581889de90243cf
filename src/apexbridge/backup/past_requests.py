"""Past use of search in a backup: a line for each request, with its vector. The index itself can be made again."""

import base64
import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import BinaryIO

import numpy as np

from apexbridge._time import MAX_MS
from apexbridge.backup.archive import BackupError
from apexbridge.retrieval.embedders.model import Floats
from apexbridge.retrieval.index.lance_store import USAGE, LanceStore, StoreError
from apexbridge.retrieval.usage import MAX_PAIRS, UsagePair

MAX_LINE_BYTES = 1024 * 1024
MAX_TEXT = 1_000
"""Characters of a key, a skill, a caller or a chat."""
MAX_DIMENSIONS = 100_000


def past_requests_as_lines(embedder: str, pairs: Sequence[tuple[UsagePair, Floats]]) -> Iterator[bytes]:
    yield json.dumps({"embedder": embedder}).encode() + b"\n"
    for pair, vector in pairs:
        if not len(vector):  # of a remote model that has not answered yet
            continue
        text = base64.b64encode(np.asarray(vector, "<f4").tobytes()).decode("ascii")
        yield json.dumps({**asdict(pair), "vector": text}).encode() + b"\n"


def restore_past_requests(file: BinaryIO, index: Path) -> str | None:
    """Write past use to a new index; returns why that is not possible, if it is not.

    Raises BackupError if the file is not valid.
    """
    try:
        embedder = str(json.loads(file.readline(MAX_LINE_BYTES))["embedder"])
        pairs = [_pair(line) for line in iter(lambda: file.readline(MAX_LINE_BYTES), b"")]
        lengths = {len(vector) for _, vector in pairs}
        if len(embedder) > MAX_TEXT or len(lengths) > 1 or len(pairs) > MAX_PAIRS:
            raise ValueError("sizes")
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise BackupError("The backup is damaged: past requests of search cannot be read.") from error
    try:
        if pairs:
            LanceStore(index).write(USAGE, embedder, pairs)
    except StoreError as error:
        return str(error)
    return None


def _pair(line: bytes) -> tuple[UsagePair, Floats]:
    fields = json.loads(line)
    vector = np.frombuffer(base64.b64decode(fields.pop("vector"), validate=True), "<f4").astype(np.float32)
    if not 0 < len(vector) <= MAX_DIMENSIONS or not np.isfinite(vector).all():
        raise ValueError("vector")
    pair = UsagePair(**fields)
    texts = (pair.key, pair.skill, pair.caller, pair.chat)
    if not all(isinstance(text, str) and len(text) <= MAX_TEXT for text in texts):
        raise ValueError("text")
    if not isinstance(pair.taught_at, int) or not 0 <= pair.taught_at <= MAX_MS:
        raise ValueError("time")
    return pair, vector
