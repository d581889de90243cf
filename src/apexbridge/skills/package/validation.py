"""Reads and checks a package before it is installed."""

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import PurePath
from typing import BinaryIO

from apexbridge.errors import InvalidArchiveError, InvalidSkillStructureError, SkillError
from apexbridge.skills.models import SKILL_FILE, PackageFile, Profile, SkillMetadata, ValidationReport
from apexbridge.skills.package.archive import Entry, inspect, read_entry
from apexbridge.skills.package.examiner import skill_file_among
from apexbridge.skills.package.layout import Layout, Parts, find_layout
from apexbridge.skills.package.names import lenient_name, name_problem
from apexbridge.skills.package.skill_md import MAX_SKILL_FILE_BYTES
from apexbridge.skills.package.validator import Assessment, assess

MAX_MANIFEST_BYTES = 64 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class PackagedSkill:
    """A valid skill of an archive."""

    root: Parts
    entries: tuple[Entry, ...]
    metadata: SkillMetadata
    verdict: Assessment


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
            for warning in skill.verdict.warnings
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
        verdict = _assess(file, own, root, folder=folder, profile=profile, require_entry_script=require_entry_script)
        if verdict.metadata is None:
            where = f"{folder}: " if layout.plugin is not None else ""
            errors += [f"{where}{error}" for error in verdict.errors]
        else:
            skills.append(PackagedSkill(root=root, entries=own, metadata=verdict.metadata, verdict=verdict))
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
) -> Assessment:
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
    told = _read_manifest(file, entries, layout)
    folder = layout.plugin[-1] if layout.plugin else stem
    written = told.get("name")
    name = lenient_name(written if isinstance(written, str) else "", folder)
    if problem := name_problem(name):
        raise InvalidSkillStructureError([f"plugin: {problem}"])
    texts = {
        key: str(told[key]).encode("utf-8", "replace").decode()[:1024]
        for key in ("version", "description")
        if isinstance(told.get(key), (str, int, float))
    }
    return PluginManifest(name=name, version=texts.get("version"), description=texts.get("description"))


def _read_manifest(file: BinaryIO, entries: list[Entry], layout: Layout) -> dict[str, object]:
    entry = next((entry for entry in entries if entry.parts == layout.manifest), None)
    if entry is None:
        return {}
    if entry.size > MAX_MANIFEST_BYTES:
        raise InvalidSkillStructureError(["plugin.json is larger than 64 KB"])
    try:
        told = json.loads(b"".join(read_entry(file, entry)))
    except (ValueError, RecursionError) as error:
        raise InvalidSkillStructureError(["plugin.json is not valid JSON"]) from error
    return told if isinstance(told, dict) else {}
