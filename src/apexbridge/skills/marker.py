"""The `.vectorized` marker: which content of a skill the index holds, and by which model."""

import hashlib
import json
import os
from pathlib import Path

from pydantic import Field, ValidationError

from apexbridge._fs import make_private_folder
from apexbridge.skills.files import replace_file
from apexbridge.skills.models import MARKER_FILE
from apexbridge.wire import WireModel

MAX_MILLISECONDS = 253_402_300_799_000
"""The end of the year 9999: later moments cannot be shown."""


class Marker(WireModel):
    """What the marker records; the marker itself counts in neither size nor hash."""

    indexed_at: int = Field(ge=0, le=MAX_MILLISECONDS)
    """Milliseconds since 1970."""
    skill_size: int
    skill_hash: str
    embedder: str
    dimensions: int

    def matches(self, *, size: int, content_hash: str, embedder: str, dimensions: int) -> bool:
        """Whether the index still holds this content by this model."""
        wanted = (size, content_hash, embedder, dimensions)
        return wanted == (self.skill_size, self.skill_hash, self.embedder, self.dimensions)


def read_marker(path: Path) -> Marker | None:
    """The marker, or None where there is none that can be read."""
    try:
        return Marker.model_validate(json.loads(path.read_bytes()))
    except (OSError, ValueError, ValidationError):
        return None


def write_marker(path: Path, marker: Marker, *, beside: Path) -> None:
    """Put the marker in place in one step; a crash may lose it, which costs one embedding."""
    make_private_folder(path.parent)
    mode = 0o644 if path.name == MARKER_FILE else 0o600  # in a skill's folder, a run may read it
    replace_file(path, marker.model_dump_json().encode() + b"\n", beside=beside, mode=mode)


def marker_path(folder: Path, *, outside: Path, root_key: str, writable: bool) -> Path:
    """Where a skill's marker stands: in its folder, or for one that is never written to, in `outside`."""
    if writable:
        return folder / MARKER_FILE
    return outside / root_key / f"{hashlib.sha256(os.fsencode(folder)).hexdigest()[:32]}.json"
