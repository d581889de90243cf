"""Checks a package and collects all errors and warnings, without writing anything."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from urllib.parse import unquote

from apexbridge.skills.models import (
    SKILL_FILE,
    SUMMARY_CHARACTERS,
    Diagnostic,
    PackageFile,
    Profile,
    SkillMetadata,
)
from apexbridge.skills.package.entry_names import is_odd
from apexbridge.skills.package.entrypoint import find_entry
from apexbridge.skills.package.skill_md import read_skill_markdown

MAX_TOKENS = 5_000
MIN_DESCRIPTION_CHARACTERS = 20
MAX_ODD_NAMES_SHOWN = 5
_BYTES_PER_TOKEN = 4
_CJK = re.compile("[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af\uf900-\ufaff]")
_LINK = re.compile(r"\]\([ \t]{0,8}<?([^)\s>]{1,300})")
_WORD = re.compile(r"[a-z0-9]+|[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]")
_FENCE = re.compile(r"\s*(`{3,}|~{3,})")
_BACKTICKS = re.compile(r"`+")


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
        warnings += _advice(reading.metadata, markdown, reading.body, paths, filename)
    return Assessment(
        metadata=None if errors else reading.metadata,
        filename=filename,
        entry=entry,
        body=reading.body,
        errors=tuple(errors),
        warnings=tuple(warnings),
    )


def estimate_tokens(text: str) -> int:
    """Estimate the tokens: one for each CJK character, one for every 4 bytes of other text."""
    wide = len(_CJK.findall(text))
    return wide + (len(text.encode("utf-8", "replace")) - 3 * wide) // _BYTES_PER_TOKEN


def _structure_errors(
    metadata: SkillMetadata, paths: set[str], entry: str | None, require_entry_script: bool
) -> Iterator[Diagnostic]:
    has_scripts = any(path.startswith("scripts/") for path in paths)
    if metadata.entrypoint and not entry:
        yield Diagnostic(message=f"metadata.apex.entrypoint names {metadata.entrypoint}, which is not in the package")
    elif not entry and has_scripts and (metadata.mode == "sandbox" or require_entry_script):
        yield Diagnostic(message="scripts/ holds no entry script: add scripts/execute.js, .mjs, .cjs, .py or .sh")


def _advice(
    metadata: SkillMetadata, markdown: bytes, body: str, paths: set[str], filename: str
) -> Iterator[Diagnostic]:
    """Recommendations for a valid package."""
    if filename != SKILL_FILE:
        yield Diagnostic(message=f"the file is named {filename}; rename it to {SKILL_FILE}")
    tokens = estimate_tokens(markdown.decode("utf-8", "replace"))
    if tokens > MAX_TOKENS:
        yield Diagnostic(
            message=f"{SKILL_FILE} has about {tokens} tokens; above {MAX_TOKENS}, move details into linked files"
        )
    if len(metadata.description) < MIN_DESCRIPTION_CHARACTERS:
        yield Diagnostic(
            message=f"description is shorter than {MIN_DESCRIPTION_CHARACTERS} characters; say what it does and when"
        )
    elif not set(_WORD.findall(metadata.description.lower())) - set(_WORD.findall(metadata.name)):
        yield Diagnostic(message="description says nothing beyond the name; say what it does and when to use it")
    for target in sorted(_missing_links(body, paths)):
        yield Diagnostic(message=f"link to {target}, which is not in the package")
    odd = sorted(path for path in paths if is_odd(path))
    if odd:
        shown = ", ".join(odd[:MAX_ODD_NAMES_SHOWN]) + (" …" if len(odd) > MAX_ODD_NAMES_SHOWN else "")
        yield Diagnostic(message=f"odd file names, better without spaces and special characters: {shown}")


def _missing_links(body: str, paths: set[str]) -> set[str]:
    """Targets of relative links outside code whose file is missing."""
    folders = {path[:index] for path in paths for index, character in enumerate(path) if character == "/"}
    missing = set()
    for line in _prose(body):
        for link in _LINK.findall(_without_code_spans(line)):
            target = unquote(link).split("#")[0].split("?")[0].removeprefix("./").rstrip("/")
            outside = not target or re.match(r"[a-zA-Z][a-zA-Z0-9+.-]*:|/|\.\./|[{$<]", target)
            if not outside and target not in paths and target not in folders:
                missing.add(target)
    return missing


def _without_code_spans(line: str) -> str:
    """The line without code spans, which are delimited by equal numbers of backticks. Linear time for any input."""
    runs = list(_BACKTICKS.finditer(line))
    last_of_length = {len(run[0]): number for number, run in enumerate(runs)}
    kept, position, number = [], 0, 0
    while number < len(runs):
        length = len(runs[number][0])
        if last_of_length[length] == number:
            number += 1
            continue
        kept.append(line[position : runs[number].start()])
        number += 1
        while len(runs[number][0]) != length:
            number += 1
        position = runs[number].end()
        number += 1
    return "".join([*kept, line[position:]])


def _prose(body: str) -> Iterator[str]:
    """The lines outside code blocks. A block ends at a fence of the same kind that is at least as long."""
    fence = ""
    for line in body.splitlines():
        mark = _FENCE.match(line)
        if not fence:
            if mark:
                fence = mark[1]
            else:
                yield line
        elif mark and mark[1].startswith(fence) and not line[mark.end() :].strip():
            fence = ""
