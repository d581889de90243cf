"""Reads and checks skills, in an archive or in a folder, without writing anything."""

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import BinaryIO

from apexbridge._safe_open import open_file_beneath
from apexbridge.errors import InvalidArchiveError, InvalidSkillStructureError, SkillError
from apexbridge.skills.models import SKILL_FILE, SUMMARY_CHARACTERS, Profile, ValidationReport
from apexbridge.skills.package.advice import advice
from apexbridge.skills.package.archive import Entry, inspect, read_entry
from apexbridge.skills.package.entry_names import is_text
from apexbridge.skills.package.fingerprint import FolderScan, hash_folder
from apexbridge.skills.package.layout import Layout, Parts, find_layout, is_skill_file
from apexbridge.skills.package.script_arguments import MAX_SOURCE_BYTES, ScriptArguments, derive
from apexbridge.skills.package.skill import (
    Diagnostic,
    PackageFile,
    Skill,
    SkillMetadata,
    find_entry,
    lenient_name,
    name_problem,
    runnable_scripts,
)
from apexbridge.skills.package.skill_md import MAX_SKILL_FILE_BYTES, read_skill_markdown

MAX_MANIFEST_BYTES = 64 * 1024
MAX_SCRIPTS = 20
"""Scripts whose arguments are derived. A package can contain hundreds of scripts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PackagedSkill:
    """A valid skill of an archive."""

    root: Parts
    entries: tuple[Entry, ...]
    metadata: SkillMetadata
    assessment: "Assessment"


@dataclass(frozen=True, slots=True, kw_only=True)
class PluginManifest:
    """The fields used from a plugin's `plugin.json`."""

    name: str
    version: str | None = None
    description: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Package:
    """An archive that passed every check."""

    skills: tuple[PackagedSkill, ...]
    plugin: PluginManifest | None

    @property
    def warnings(self) -> list[str]:
        """All warnings; prefixed with the skill's name if there are several skills."""
        many = len(self.skills) > 1
        return [
            f"{skill.metadata.name}: {warning}" if many else str(warning)
            for skill in self.skills
            for warning in skill.assessment.warnings
        ]


def open_package(file: BinaryIO, *, filename: str | None, profile: Profile, require_entry_script: bool) -> Package:
    """Read an archive without writing anything.

    Raises:
        SkillError: the archive is invalid; the error lists all problems of its kind.
    """
    entries = inspect(file)
    layout = find_layout((entry.parts for entry in entries), profile)
    stem = re.sub(r"\.(zip|skill)\Z", "", PurePath(filename or "").name, flags=re.IGNORECASE)
    skills, errors = [], []
    for root in layout.skills:
        own = tuple(entry for entry in entries if entry.parts[: len(root)] == root and len(entry.parts) > len(root))
        folder = root[-1] if root else stem
        assessment = _assess(file, own, root, folder=folder, profile=profile, require_entry_script=require_entry_script)
        if assessment.metadata is None:
            where = f"{folder}: " if layout.plugin is not None else ""
            errors += [f"{where}{error}" for error in assessment.errors]
        else:
            skills.append(PackagedSkill(root=root, entries=own, metadata=assessment.metadata, assessment=assessment))
    errors += _same_names(skills)
    if errors:
        raise InvalidSkillStructureError(errors, skill=None if layout.plugin is not None else folder or None)
    return Package(skills=tuple(skills), plugin=_plugin(file, entries, layout, stem))


def validate_package(
    file: BinaryIO, *, filename: str | None, profile: Profile, require_entry_script: bool
) -> ValidationReport:
    """Check whether an archive could be installed. Decompresses every entry and writes nothing."""
    try:
        package = open_package(file, filename=filename, profile=profile, require_entry_script=require_entry_script)
        for skill in package.skills:
            for entry in skill.entries:
                for _ in read_entry(file, entry):
                    pass
    except SkillError as error:
        return ValidationReport(valid=False, errors=error.details.get("errors") or [error.message], warnings=[])
    name = package.plugin.name if package.plugin else package.skills[0].metadata.name
    return ValidationReport(valid=True, name=name, errors=[], warnings=package.warnings)


def _assess(
    file: BinaryIO, entries: Iterable[Entry], root: Parts, *, folder: str, profile: Profile, require_entry_script: bool
) -> "Assessment":
    by_path = {"/".join(entry.parts[len(root) :]): entry for entry in entries}
    filename = skill_file_among(list(by_path)) or SKILL_FILE
    markdown = by_path[filename]
    if markdown.size > MAX_SKILL_FILE_BYTES:
        raise InvalidArchiveError(f"Archive too large: {markdown.path} is larger than 1 MB", code="ARCHIVE_TOO_LARGE")
    return assess(
        b"".join(read_entry(file, markdown)),
        [PackageFile(path=path, size=entry.size, executable=entry.executable) for path, entry in by_path.items()],
        filename=filename,
        folder=folder,
        profile=profile,
        require_entry_script=require_entry_script,
    )


def _same_names(skills: list[PackagedSkill]) -> list[str]:
    folders: dict[str, list[str]] = {}
    for skill in skills:
        folders.setdefault(skill.metadata.name, []).append("/".join(skill.root))
    return [f'{", ".join(where)} are all named "{name}"' for name, where in folders.items() if len(where) > 1]


def _plugin(file: BinaryIO, entries: list[Entry], layout: Layout, stem: str) -> PluginManifest | None:
    if layout.plugin is None:
        return None
    manifest = _read_manifest(file, entries, layout)
    folder = layout.plugin[-1] if layout.plugin else stem
    written = manifest.get("name")
    name = lenient_name(written if isinstance(written, str) else "", folder)
    if problem := name_problem(name):
        raise InvalidSkillStructureError([f"plugin: {problem}"])
    texts = {
        key: str(manifest[key]).encode("utf-8", "replace").decode()[:1024]
        for key in ("version", "description")
        if isinstance(manifest.get(key), (str, int, float))
    }
    return PluginManifest(name=name, version=texts.get("version"), description=texts.get("description"))


def _read_manifest(file: BinaryIO, entries: list[Entry], layout: Layout) -> dict[str, object]:
    entry = next((entry for entry in entries if entry.parts == layout.manifest), None)
    if entry is None:
        return {}
    if entry.size > MAX_MANIFEST_BYTES:
        raise InvalidSkillStructureError(["plugin.json is larger than 64 KB"])
    try:
        manifest = json.loads(b"".join(read_entry(file, entry)))
    except (ValueError, RecursionError) as error:
        raise InvalidSkillStructureError(["plugin.json is not valid JSON"]) from error
    return manifest if isinstance(manifest, dict) else {}


class BrokenFolderError(Exception):
    """The folder is not a usable skill; the message is the reason."""


def read_folder(path: Path, scan: FolderScan, *, require_entry_script: bool) -> Skill:
    """Read a folder with the lenient profile.

    Raises:
        BrokenFolderError: it is not a skill.
        OSError: it cannot be read.
    """
    files = scan.files
    filename = skill_file_among([file.path for file in files])
    if filename is None:
        raise BrokenFolderError(f"{SKILL_FILE} not found")
    if not all(is_text(file.path) for file in files):
        raise BrokenFolderError("a file's name is not UTF-8; rename it")
    with (path / filename).open("rb") as file:
        markdown = file.read(MAX_SKILL_FILE_BYTES + 1)
    assessment = assess(
        markdown,
        files,
        filename=filename,
        folder=path.name,
        profile="lenient",
        require_entry_script=require_entry_script,
    )
    if assessment.metadata is None:
        raise BrokenFolderError("; ".join(str(error) for error in assessment.errors))
    return assessment.skill(path, scan, hash_folder(path, files))


def _arguments(folder: Path, entry: str | None, paths: list[str]) -> dict[str, ScriptArguments]:
    """The arguments that scripts declare in their sources. Scripts that cannot be read are skipped."""
    scripts = dict.fromkeys([*([entry] if entry else []), *runnable_scripts(paths)])
    found: dict[str, ScriptArguments] = {}
    for script in list(scripts)[:MAX_SCRIPTS]:
        with suppress(OSError, ValueError), open_file_beneath(folder, script) as file:
            if arguments := derive(script, file.read(MAX_SOURCE_BYTES + 1)):
                found[script] = arguments
    return found


def skill_file_among(paths: list[str]) -> str | None:
    """The SKILL.md of a folder; another spelling, such as `skill.md`, if the exact one is missing."""
    spelled = sorted(path for path in paths if is_skill_file(path))
    return SKILL_FILE if SKILL_FILE in spelled else next(iter(spelled), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Assessment:
    """The findings about one package; `metadata` is None if there are errors."""

    metadata: SkillMetadata | None
    filename: str
    entry: str | None
    body: str
    errors: tuple[Diagnostic, ...]
    warnings: tuple[Diagnostic, ...]

    @property
    def summary(self) -> str:
        """The first characters of the Markdown body."""
        return self.body.strip()[:SUMMARY_CHARACTERS]

    def skill(self, folder: Path, scan: FolderScan, content_hash: str) -> Skill:
        """The skill in a folder on disk. There must be no errors."""
        assert self.metadata is not None  # noqa: S101  # it is None only if there are errors
        return Skill(
            metadata=self.metadata,
            filename=self.filename,
            entry=self.entry,
            size=scan.size,
            content_hash=content_hash,
            summary=self.summary,
            warnings=tuple(str(warning) for warning in self.warnings),
            arguments=_arguments(folder, self.entry, [file.path for file in scan.files]),
        )


def assess(
    markdown: bytes,
    files: Sequence[PackageFile],
    *,
    filename: str,
    folder: str,
    profile: Profile,
    require_entry_script: bool,
) -> Assessment:
    """Check a package by its SKILL.md and the list of its files."""
    reading = read_skill_markdown(markdown, folder=folder, profile=profile)
    errors, warnings = list(reading.errors), list(reading.warnings)
    entry: str | None = None
    if reading.metadata:
        paths = {file.path for file in files}
        entry = find_entry(paths, reading.metadata.entrypoint)
        structure = list(_structure_errors(reading.metadata, paths, entry, require_entry_script))
        (warnings if profile == "lenient" and not require_entry_script else errors).extend(structure)
        warnings += advice(reading.metadata, markdown, reading.body, paths, filename)
    return Assessment(
        metadata=None if errors else reading.metadata,
        filename=filename,
        entry=entry,
        body=reading.body,
        errors=tuple(errors),
        warnings=tuple(warnings),
    )


def _structure_errors(
    metadata: SkillMetadata, paths: set[str], entry: str | None, require_entry_script: bool
) -> Iterator[Diagnostic]:
    has_scripts = any(path.startswith("scripts/") for path in paths)
    if metadata.entrypoint and not entry:
        yield Diagnostic(message=f"metadata.apex.entrypoint names {metadata.entrypoint}, which is not in the package")
    elif not entry and has_scripts and (metadata.mode == "sandbox" or require_entry_script):
        yield Diagnostic(message="scripts/ holds no entry script: add scripts/execute.js, .mjs, .cjs, .py or .sh")
