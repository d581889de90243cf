"""The `.vectorized` marker: the content hash and the model of a skill's vector in the index."""

import hashlib
import json
import os
from pathlib import Path

from pydantic import Field, ValidationError

from apexbridge._fs import make_private_folder, replace_file
from apexbridge._time import MAX_MS
from apexbridge.skills import MARKER_FILE
from apexbridge.wire import WireModel


class Marker(WireModel):
    """What the marker records; the marker itself counts in neither size nor hash."""

    indexed_at: int = Field(ge=0, le=MAX_MS)
    """Milliseconds since 1970."""
    skill_size: int
    skill_hash: str
    embedder: str
    dimensions: int

    def matches(self, *, size: int, content_hash: str, embedder: str, dimensions: int) -> bool:
        """Whether the index still holds this content, embedded by this model."""
        return (size, content_hash, embedder, dimensions) == (
            self.skill_size,
            self.skill_hash,
            self.embedder,
            self.dimensions,
        )


def read_marker(path: Path) -> Marker | None:
    """The marker; None if it is missing or invalid."""
    try:
        return Marker.model_validate(json.loads(path.read_bytes()))
    except (OSError, ValueError, ValidationError):
        return None


def write_marker(path: Path, marker: Marker, *, beside: Path) -> None:
    """Replace the marker atomically, but without fsync: a crash may lose it, which costs one embedding."""
    make_private_folder(path.parent)
    mode = 0o644 if path.name == MARKER_FILE else 0o600  # in a skill's folder it must be readable by runs
    replace_file(path, marker.model_dump_json().encode() + b"\n", beside=beside, mode=mode)


def marker_path(folder: Path, *, outside: Path, root_key: str, writable: bool) -> Path:
    """Path of a skill's marker: in its folder, or in `outside` if the folder is read-only."""
    if writable:
        return folder / MARKER_FILE
    return outside / root_key / f"{hashlib.sha256(os.fsencode(folder)).hexdigest()[:32]}.json"
