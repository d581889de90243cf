"""Reads and checks skills, in an archive or in a folder, without writing anything."""

import re
from bisect import bisect_left
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import BinaryIO

from apexbridge._safe_open import open_file_beneath
from apexbridge.errors import InvalidArchiveError, InvalidSkillStructureError, SkillError
from apexbridge.retrieval.body import searchable_body
from apexbridge.skills import MAX_SKILL_FILE_BYTES, SKILL_FILE, Profile
from apexbridge.skills.models import SUMMARY_CHARACTERS, LeftOut, ValidationReport
from apexbridge.skills.package.advice import advice
from apexbridge.skills.package.archive import MAX_SKILL_ENTRIES, Entry, inspect, read_entry
from apexbridge.skills.package.entry_names import is_skill_file, is_text
from apexbridge.skills.package.fingerprint import FolderScan, hash_folder
from apexbridge.skills.package.layout import Layout, PluginLayout, find_layout
from apexbridge.skills.package.manifests import MAX_MARKETPLACE_BYTES, Parts
from apexbridge.skills.package.needs import read_needs
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
from apexbridge.skills.package.skill_md import read_skill_markdown

MAX_SCRIPTS = 20
"""Scripts whose arguments are derived. A package can contain hundreds of scripts."""
MAX_SKILLS = 2_000
"""Of one package."""
MAX_LEFT_OUT = 500
"""That are named. An untrusted manifest may list many thousands."""
_TEMPLATES = frozenset({"template", "template-skill", "skill-template"})
_REVISION = re.compile(r"-(?:main|master|[0-9a-f]{40})\Z")
"""What GitHub appends to the name of a repository in the top folder of its archives."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PackagedSkill:
    """A valid skill of an archive."""

    root: Parts
    entries: tuple[Entry, ...]
    metadata: SkillMetadata
    assessment: "Assessment"


@dataclass(frozen=True, slots=True, kw_only=True)
class PackagedPlugin:
    """A plugin of an archive with its valid skills."""

    name: str
    is_declared: bool
    """Whether a manifest names it; otherwise its folder does."""
    version: str | None = None
    description: str | None = None
    skills: tuple[PackagedSkill, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Package:
    """An archive that passed every check: a single skill, or plugins."""

    name: str
    """Of the skill, of the only plugin, or of the marketplace."""
    skill: PackagedSkill | None = None
    plugins: tuple[PackagedPlugin, ...] = ()
    left_out: tuple[LeftOut, ...] = ()

    @property
    def skills(self) -> list[PackagedSkill]:
        """All skills, in the order of the plugins."""
        return [self.skill] if self.skill else [skill for plugin in self.plugins for skill in plugin.skills]

    @property
    def warnings(self) -> list[str]:
        """What was left out, and all warnings; prefixed with the skill's name if there are several skills."""
        many = len(self.skills) > 1
        return [str(one) for one in self.left_out] + [
            f"{skill.metadata.name}: {warning}" if many else str(warning)
            for skill in self.skills
            for warning in skill.assessment.warnings
        ]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadOptions:
    """How an archive is read."""

    profile: Profile
    """For an archive of one skill."""
    profile_of_several: Profile | None = None
    """For plugins; None: `profile`."""
    require_entry_script: bool = False
    long_description: bool = False
    """Whether the profile `seed` accepts a long description with a warning."""
    only_skill: bool = False
    """Whether the archive must be exactly one skill: in a folder of any name or at its top, with nothing beside it."""
    strict: bool = False
    """Whether skills of plugins that cannot be installed refuse the whole archive. Otherwise they are left out."""


def open_package(file: BinaryIO, options: ReadOptions, *, filename: str | None) -> Package:
    """Read an archive without writing anything.

    Raises:
        SkillError: the archive is invalid, or nothing in it can be installed; the error lists all problems of its kind.
    """
    entries = inspect(file, keep_refused=True)
    files = {entry.parts: entry for entry in entries if not entry.refusal}
    refused = [(entry.parts, entry.refusal) for entry in entries if entry.refusal]
    links = [parts for parts, refusal in refused if refusal.code == "UNSAFE_ENTRY"]
    if refused and not any(is_skill_file(parts[-1]) for parts in files):
        raise refused[0][1]
    is_flat = options.profile == "lenient"
    accepts_flat = is_flat or options.only_skill
    layout = find_layout(files, lambda parts: _read_start(file, files[parts]), flat=accepts_flat, links=links)
    stem = re.sub(r"\.(zip|skill)\Z", "", PurePath(filename or "").name, flags=re.IGNORECASE)
    if options.only_skill:
        _check_only_skill(layout, files)
    if layout.skill is not None:
        if refused:
            raise refused[0][1]
        reader = _Reader(
            file,
            entries,
            profile=options.profile,
            require_entry_script=options.require_entry_script,
            long_description=options.long_description,
        )
        folder = "" if options.only_skill else layout.skill[-1] if layout.skill else stem
        skill, errors = reader.read(layout.skill, folder)
        if skill is None:
            other = {} if is_flat else {"profile": "lenient"}
            raise InvalidSkillStructureError(errors, skill=folder or None, **other)
        return Package(name=skill.metadata.name, skill=skill)
    profile = options.profile_of_several or options.profile
    reader = _Reader(file, entries, profile=profile, require_entry_script=options.require_entry_script)
    return _read_plugins(layout, reader, stem, strict=options.strict)


def _check_only_skill(layout: Layout, files: Collection[Parts]) -> None:
    """Raises InvalidSkillStructureError: there are several skills, or files beside the skill's folder."""
    count = sum(is_skill_file(parts[-1]) for parts in files)
    if layout.skill is None or count != 1:
        raise InvalidSkillStructureError([f"exactly one {SKILL_FILE} is allowed; the package has {count}"])
    root = layout.skill
    outside = sorted("/".join(parts) for parts in files if parts[: len(root)] != root)
    if outside:
        problem = f"all files must be in one top folder, with {SKILL_FILE} in it; outside of it is {outside[0]}"
        raise InvalidSkillStructureError([problem])


def _read_plugins(layout: Layout, reader: "_Reader", stem: str, *, strict: bool) -> Package:
    count = sum(len(plugin.skills) for plugin in layout.plugins)
    if count > MAX_SKILLS:
        raise InvalidSkillStructureError([f"{count:,} skills; at most {MAX_SKILLS:,} are installed at once"])
    plugins: list[PackagedPlugin] = []
    left_out = list(layout.left_out)
    for one in layout.plugins:
        name = _plugin_name(one, stem)
        problem = name_problem(name)
        if any(name == plugin.name for plugin in plugins):
            problem = "another plugin of this package has the same name; install its folder on its own"
        if problem:
            left_out.append(LeftOut(name=f"plugin {name}", path="/".join(one.folder), reason=problem))
            continue
        skills: dict[str, PackagedSkill] = {}
        for root in one.skills:
            try:
                skill, errors = reader.read(root, root[-1] if root else stem)
            except InvalidArchiveError as error:
                if error.code != "ARCHIVE_TOO_LARGE":
                    raise
                skill, errors = None, [error.message]
            if skill is None:
                reason = f"{'; '.join(errors)}. Correct it and install the package again with --overwrite"
                left_out.append(_left_out(root, reason))
            elif not _TEMPLATES.isdisjoint((skill.metadata.name, *root[-1:])):
                left_out.append(_left_out(root, "it is a template; install its folder on its own if you need it"))
            elif other := skills.get(skill.metadata.name):
                where = "/".join(other.root)
                left_out.append(_left_out(root, f'{where} is also named "{skill.metadata.name}"; rename one of them'))
            else:
                skills[skill.metadata.name] = skill
        if skills:
            manifest = one.manifest
            plugins.append(
                PackagedPlugin(
                    name=name,
                    is_declared=manifest.name is not None,
                    version=manifest.version,
                    description=manifest.description,
                    skills=tuple(skills.values()),
                )
            )
    if len(left_out) > MAX_LEFT_OUT:
        more = len(left_out) - MAX_LEFT_OUT
        left_out[MAX_LEFT_OUT:] = [LeftOut(name=f"{more:,} more", path="", reason="too many to be named")]
    if left_out and (strict or not plugins):
        raise InvalidSkillStructureError([f"{one.name}: {one.reason}" for one in left_out])
    if not plugins:
        raise InvalidSkillStructureError([f"{SKILL_FILE} not found"])
    name = plugins[0].name if len(plugins) == 1 else layout.name or stem or plugins[0].name
    return Package(name=name, plugins=tuple(plugins), left_out=tuple(left_out))


def _left_out(root: Parts, reason: str) -> LeftOut:
    return LeftOut(name=root[-1] if root else SKILL_FILE, path="/".join(root), reason=reason)


def _plugin_name(plugin: PluginLayout, stem: str) -> str:
    """The name in its manifest, else that of its folder; dot folders such as `.claude` name nothing."""
    folder = next((part for part in reversed(plugin.folder) if not part.startswith(".")), stem)
    return lenient_name(plugin.manifest.name or "", _REVISION.sub("", folder))


def _read_start(file: BinaryIO, entry: Entry) -> bytes:
    """The first bytes of a manifest: enough to see that it is too large."""
    data = b""
    for chunk in read_entry(file, entry):
        data += chunk
        if len(data) > MAX_MARKETPLACE_BYTES:
            break
    return data


def validate_package(file: BinaryIO, options: ReadOptions, *, filename: str | None) -> ValidationReport:
    """Check whether an archive could be installed. Decompresses every entry and writes nothing."""
    return check_package(file, options, filename=filename)[0]


def check_package(
    file: BinaryIO, options: ReadOptions, *, filename: str | None
) -> tuple[ValidationReport, Package | None]:
    """As `validate_package`, with the package if it is valid."""
    try:
        package = open_package(file, options, filename=filename)
        for skill in package.skills:
            for entry in skill.entries:
                for _ in read_entry(file, entry):
                    pass
    except SkillError as error:
        errors = error.details.get("errors") or [error.message]
        return ValidationReport(valid=False, errors=errors, warnings=[]), None
    report = ValidationReport(
        valid=True,
        name=package.name,
        names=[skill.metadata.name for skill in package.skills],
        errors=[],
        warnings=package.warnings,
        left_out=list(package.left_out),
    )
    return report, package


class _Reader:
    """Reads and checks the skills of one archive by one profile."""

    def __init__(
        self,
        file: BinaryIO,
        entries: Sequence[Entry],
        *,
        profile: Profile,
        require_entry_script: bool,
        long_description: bool = False,
    ) -> None:
        self._file = file
        self._profile: Profile = profile
        self._require_entry_script = require_entry_script
        self._long_description = long_description
        self._by_parts = {entry.parts: entry for entry in entries}
        self._sorted = sorted(self._by_parts)

    def read(self, root: Parts, folder: str) -> tuple[PackagedSkill | None, list[str]]:
        """The skill in this folder; None with the reasons if it is not valid.

        Raises:
            InvalidArchiveError: INVALID_ZIP if its SKILL.md cannot be inflated.
        """
        entries = self._below(root)
        by_path = {"/".join(entry.parts[len(root) :]): entry for entry in entries}
        if refusal := next((entry.refusal for entry in entries if entry.refusal), None):
            return None, [refusal.message]
        if len(entries) > MAX_SKILL_ENTRIES:
            raise InvalidArchiveError(
                f"Archive too large: {folder} has more than {MAX_SKILL_ENTRIES:,} files", code="ARCHIVE_TOO_LARGE"
            )
        filename = skill_file_among(list(by_path)) or SKILL_FILE
        markdown = by_path[filename]
        if markdown.size > MAX_SKILL_FILE_BYTES:
            message = f"Archive too large: {markdown.path} is larger than 1 MB"
            raise InvalidArchiveError(message, code="ARCHIVE_TOO_LARGE")
        assessment = assess(
            b"".join(read_entry(self._file, markdown)),
            [PackageFile(path=path, size=entry.size, executable=entry.executable) for path, entry in by_path.items()],
            filename=filename,
            folder=folder,
            profile=self._profile,
            require_entry_script=self._require_entry_script,
            long_description=self._long_description,
        )
        if assessment.metadata is None:
            return None, [str(error) for error in assessment.errors]
        skill = PackagedSkill(root=root, entries=tuple(entries), metadata=assessment.metadata, assessment=assessment)
        return skill, []

    def _below(self, root: Parts) -> list[Entry]:
        """The entries of a folder; found by bisection, because a repository has many folders."""
        index = bisect_left(self._sorted, root)
        found = []
        while index < len(self._sorted) and self._sorted[index][: len(root)] == root:
            found.append(self._by_parts[self._sorted[index]])
            index += 1
        return found


class BrokenFolderError(Exception):
    """The folder is not a usable skill; the message is the reason."""


def read_folder(path: Path, scan: FolderScan, *, require_entry_script: bool, folder: str | None = None) -> Skill:
    """Read a folder with the lenient profile. `folder` is the name that its skill should have (default: its own).

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
        folder=path.name if folder is None else folder,
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
            body=searchable_body(self.body),
            warnings=tuple(str(warning) for warning in self.warnings),
            arguments=_arguments(folder, self.entry, [file.path for file in scan.files]),
            needs=read_needs(folder),
        )


def assess(
    markdown: bytes,
    files: Sequence[PackageFile],
    *,
    filename: str,
    folder: str,
    profile: Profile,
    require_entry_script: bool,
    long_description: bool = False,
) -> Assessment:
    """Check a package by its SKILL.md and the list of its files."""
    reading = read_skill_markdown(markdown, folder=folder, profile=profile, long_description=long_description)
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
