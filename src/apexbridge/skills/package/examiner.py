"""Reads a folder on disk as a skill."""

from contextlib import suppress
from pathlib import Path

from apexbridge.skills.files import open_beneath
from apexbridge.skills.models import SKILL_FILE, Skill
from apexbridge.skills.package.entry_names import is_text
from apexbridge.skills.package.entrypoint import runnable_scripts
from apexbridge.skills.package.fingerprint import Sight, hash_folder
from apexbridge.skills.package.layout import is_skill_file
from apexbridge.skills.package.script_arguments import MAX_SOURCE_BYTES, ScriptArguments, derive
from apexbridge.skills.package.skill_md import MAX_SKILL_FILE_BYTES
from apexbridge.skills.package.validator import assess

MAX_SCRIPTS = 20
"""Scripts whose arguments are derived. A package can contain hundreds of scripts."""


class BrokenFolderError(Exception):
    """The folder is not a usable skill; the message is the reason."""


def examine(path: Path, sight: Sight, *, require_entry_script: bool) -> Skill:
    """Read a folder with the lenient profile.

    Raises:
        BrokenFolderError: it is not a skill.
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
        arguments=_arguments(path, verdict.entry, [file.path for file in files]),
    )


def _arguments(folder: Path, entry: str | None, paths: list[str]) -> dict[str, ScriptArguments]:
    """The arguments that scripts declare in their sources. Scripts that cannot be read are skipped."""
    scripts = dict.fromkeys([*([entry] if entry else []), *runnable_scripts(paths)])
    found: dict[str, ScriptArguments] = {}
    for script in list(scripts)[:MAX_SCRIPTS]:
        with suppress(OSError, ValueError), open_beneath(folder, script) as file:
            if arguments := derive(script, file.read(MAX_SOURCE_BYTES + 1)):
                found[script] = arguments
    return found


def skill_file_among(paths: list[str]) -> str | None:
    """The SKILL.md of a folder; another spelling, such as `skill.md`, if the exact one is missing."""
    spelled = sorted(path for path in paths if is_skill_file(path))
    return SKILL_FILE if SKILL_FILE in spelled else next(iter(spelled), None)
