"""Opens the source of an install as an archive: bytes, an archive, a folder or a SKILL.md."""

import io
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, BinaryIO, cast

from apexbridge.errors import InvalidInputError, RequestError, SkillError
from apexbridge.skills import MAX_SKILL_FILE_BYTES, SKILL_FILE, Profile
from apexbridge.skills.package.archive import inspect
from apexbridge.skills.package.entry_names import is_skill_file
from apexbridge.skills.package.packing import pack_file, pack_folder

SkillSource = bytes | bytearray | Path | str | BinaryIO
"""Bytes of an archive, the path of a .zip, a .skill, a folder or a SKILL.md, or an open file."""


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
    if is_skill_file(path.name):
        with tempfile.TemporaryFile() as packed:
            yield cast(BinaryIO, packed), _pack_skill_file(path, packed)
        return
    with _opened(path) as file:
        if path.suffix.lower() == ".md":
            raise InvalidInputError(
                f"{path.name} is not a package. A skill's file is named {SKILL_FILE}: rename it, or name its folder."
            )
        yield file, path.name


def _pack_skill_file(path: Path, packed: IO[bytes]) -> str:
    """Pack the folder of a SKILL.md if it has the skill's name, else the file alone; returns the name."""
    # Commands that send archives and folders do not parse, and start faster without these.
    from apexbridge.skills.package.frontmatter import parse_leniently
    from apexbridge.skills.package.skill import lenient_name
    from apexbridge.skills.package.yaml_block import FrontmatterError

    with _opened(path) as file:
        text = file.read(MAX_SKILL_FILE_BYTES).decode("utf-8", "replace")
    try:
        field = parse_leniently(text).fields.get("name")
    except FrontmatterError:  # the validator reports it
        field = None
    folder = path.resolve().parent
    written = field.raw or "" if field else ""
    if written.strip() == folder.name:
        pack_folder(folder, packed)
        return folder.name
    name = lenient_name(written.strip(), folder.name)
    pack_file(path, packed, name=name)
    return name


@contextmanager
def _opened(path: Path) -> Iterator[BinaryIO]:
    try:
        file = path.open("rb")
    except OSError as error:
        raise RequestError(f"Cannot open {path.name}: {error.strerror}", code="FILE_NOT_FOUND") from error
    with file:
        yield file


def default_profile_of(source: SkillSource, configured: Profile) -> Profile:
    """The profile of a package with one skill, if none was requested.

    Uploads are read by the operator's setting. Paths, which a person chose, are read leniently, so that a skill gets
    the same result as a folder, as a SKILL.md and as an archive. Two cases remain with the setting: `strict`, and an
    archive with a SKILL.md at its top, which only an explicit `lenient` accepts.
    """
    if not isinstance(source, (Path, str)):
        return configured
    if is_folder(source) or is_skill_file(Path(source).name):
        return "lenient"
    return "lenient" if configured == "seed" and not _is_flat(Path(source)) else configured


def default_profile_of_several(source: SkillSource, configured: Profile) -> Profile:
    """The profile of plugins, if none was requested: lenient, unless the setting for an archive is strict.

    The rules of `seed` are for one skill: most public repositories would be installed incompletely.
    """
    return "strict" if configured == "strict" and not is_folder(source) else "lenient"


def _is_flat(path: Path) -> bool:
    """Whether an archive has a SKILL.md at its top. False if it cannot be read: the install reports why."""
    try:
        with path.open("rb") as file:
            return any(is_skill_file(entry.path) for entry in inspect(file, keep_refused=True))
    except (OSError, SkillError):
        return False


def is_folder(source: SkillSource) -> bool:
    """Whether the source is the path of a folder."""
    return isinstance(source, (Path, str)) and Path(source).is_dir()
