"""Opens the source of an install as an archive: bytes, a file or a folder."""

import io
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, cast

from apexbridge.errors import RequestError
from apexbridge.skills.models import Profile
from apexbridge.skills.package.packing import pack_folder

SkillSource = bytes | bytearray | Path | str | BinaryIO
"""Bytes of an archive, the path of a .zip, a .skill or a folder, or an open file."""


@contextmanager
def open_source(source: SkillSource) -> Iterator[tuple[BinaryIO, str | None]]:
    """The source as a seekable archive, and its file name if it has one. Raises RequestError: FILE_NOT_FOUND."""
    if isinstance(source, (bytes, bytearray)):
        yield io.BytesIO(source), None
        return
    if not isinstance(source, (Path, str)):
        yield source, None
        return
    path = Path(source)
    if path.is_dir():
        with tempfile.TemporaryFile() as packed:
            pack_folder(path, packed)
            yield cast(BinaryIO, packed), path.resolve().name
        return
    try:
        file = path.open("rb")
    except OSError as error:
        raise RequestError(f"Cannot open {path.name}: {error.strerror}", code="FILE_NOT_FOUND") from error
    with file:
        yield file, path.name


def default_profile_of(source: SkillSource, configured: Profile) -> Profile:
    """`lenient` for folders, which are often work in progress; the operator's setting for archives."""
    return "lenient" if is_folder(source) else configured


def is_folder(source: SkillSource) -> bool:
    """Whether the source is the path of a folder."""
    return isinstance(source, (Path, str)) and Path(source).is_dir()
