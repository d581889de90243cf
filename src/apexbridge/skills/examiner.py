"""One folder on disk, looked at: a skill, or the reason why it is none."""

from pathlib import Path

from apexbridge.skills.fingerprint import Sight, hash_folder
from apexbridge.skills.layout import is_skill_file
from apexbridge.skills.models import SKILL_FILE, Skill
from apexbridge.skills.paths import is_text
from apexbridge.skills.reader import MAX_SKILL_FILE_BYTES
from apexbridge.skills.validator import assess


class BrokenFolderError(Exception):
    """The folder holds no skill that could be served; the message says why."""


def examine(path: Path, sight: Sight, *, require_entry_script: bool) -> Skill:
    """Read a folder as leniently as possible.

    Raises:
        BrokenFolderError: it is no skill.
        OSError: it cannot be read.
    """
    files = sight.files
    filename = skill_file_among([file.path for file in files])
    if filename is None:
        raise BrokenFolderError(f"{SKILL_FILE} not found")
    if not all(is_text(file.path) for file in files):
        raise BrokenFolderError("a file's name is not UTF-8; rename it")
    with (path / filename).open("rb") as file:
        markdown = file.read(MAX_SKILL_FILE_BYTES + 1)
    verdict = assess(
        markdown,
        files,
        filename=filename,
        folder=path.name,
        profile="lenient",
        require_entry_script=require_entry_script,
    )
    if verdict.metadata is None:
        raise BrokenFolderError("; ".join(str(error) for error in verdict.errors))
    return Skill(
        metadata=verdict.metadata,
        filename=filename,
        entry=verdict.entry,
        size=sight.size,
        content_hash=hash_folder(path, files),
        summary=verdict.summary,
        warnings=tuple(str(warning) for warning in verdict.warnings),
    )


def skill_file_among(paths: list[str]) -> str | None:
    """The SKILL.md of a folder; the right spelling wins over others."""
    spelled = sorted(path for path in paths if is_skill_file(path))
    return SKILL_FILE if SKILL_FILE in spelled else next(iter(spelled), None)
