"""Diagnoses a SKILL.md line by line, and repairs what can be repaired without guessing."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from apexbridge._fs import replace_file
from apexbridge.errors import RequestError
from apexbridge.skills import SKILL_FILE
from apexbridge.skills.package.entry_names import is_skill_file
from apexbridge.skills.package.frontmatter import (
    Document,
    chunks,
    key_line,
    newline_of,
    parse,
    parse_leniently,
    with_new_block,
    with_value,
)
from apexbridge.skills.package.skill import Diagnostic, name_problem, slug
from apexbridge.skills.package.skill_md import read_skill_markdown
from apexbridge.skills.package.yaml_block import FrontmatterError, quote
from apexbridge.wire import WireModel


class Finding(WireModel):
    """One line of the diagnosis."""

    line: int | None
    severity: Literal["error", "warning"]
    message: str


class Diagnosis(WireModel):
    """What is wrong with a file, what was or can be repaired, and what is left to its author."""

    file: str
    findings: list[Finding]
    repairable: bool
    """Whether a repair would change anything."""
    repaired: bool = False
    remaining: list[Finding]
    """What a repair cannot settle."""


@dataclass(frozen=True, slots=True)
class _Patient:
    path: Path
    data: bytes

    @property
    def folder(self) -> str:
        return self.path.resolve().parent.name


def diagnose(path: Path, *, write: bool = False) -> Diagnosis:
    """Check a SKILL.md, or the one in a folder. With `write`, replace it with the repaired text.

    Raises:
        RequestError: FILE_NOT_FOUND.
    """
    patient = _open(path)
    findings = _findings(patient.data, patient.folder)
    healed = repair(patient.data, patient.folder)
    changed = healed != patient.data
    if write and changed:
        mode = patient.path.stat().st_mode & 0o777
        replace_file(patient.path, healed, beside=patient.path.parent, mode=mode, durable=True)
    return Diagnosis(
        file=patient.path.name,
        findings=findings,
        repairable=changed,
        repaired=write and changed,
        remaining=_findings(healed, patient.folder) if changed else findings,
    )


def repair(data: bytes, folder: str) -> bytes:
    """Return the file with a well-formed block and a valid name.

    The file is unchanged if it needs no repair, or if a repair would lose values.
    """
    text = data.decode("utf-8", "surrogateescape").removeprefix("\ufeff")
    try:
        document = parse_leniently(text)
    except FrontmatterError:
        return data
    if document.block_start is not None:
        text = _with_sound_block(document)
    reading = read_skill_markdown(text.encode("utf-8", "surrogateescape"), folder=folder, profile="lenient")
    written = str(document.value("name") or "")
    name = slug(written or folder)
    description = reading.metadata.description if reading.metadata else ""
    if document.block_start is None:
        values = {key: value for key, value in (("name", name), ("description", description)) if value}
        text = with_new_block(text, values)
    else:
        for key, value, is_needed in (
            ("description", description, not document.value("description")),
            ("name", name, name_problem(written) is not None and name_problem(name) is None),
        ):
            if value and is_needed:
                text = with_value(parse_leniently(text), key, value)
    return text.encode("utf-8", "surrogateescape") if _keeps_everything(document, text) else data


def _keeps_everything(before: Document, text: str) -> bool:
    """Whether the repaired text is well-formed and has all values of the old one, except the name."""
    try:
        after = parse(text)
    except FrontmatterError:
        return False
    values = {key: field.value for key, field in before.fields.items() if key != "name"}
    return all(str(after.value(key)) == str(value) or value in (None, "") for key, value in values.items())


def _with_sound_block(document: Document) -> str:
    """Rewrite a broken block.

    Values that are not valid YAML are quoted. Repeated keys and lines without a key become comments.
    """
    try:
        return parse(document.text).text
    except FrontmatterError:
        pass
    newline = newline_of(document.text)
    start = document.block_start or 0
    block = document.text[start : document.block_end]
    lines: list[str] = []
    seen: set[str] = set()
    for begin, end in chunks(block):
        chunk = block[begin:end]
        head = key_line(chunk)
        if head is None or head[1].strip("\"'") in seen:
            lines += [
                line if line.lstrip().startswith("#") else f"# {line}" for line in chunk.splitlines() if line.strip()
            ]
            continue
        key = head[1].strip("\"'")
        seen.add(key)
        try:
            parse(f"---\n{chunk}\n---\n")
            lines.append(chunk.rstrip("\r\n"))
        except FrontmatterError:
            written = document.fields[key]
            lines.append(f"{head[1]}: {quote(str(written.value))}")
            lines += document.text[written.end : start + end].strip("\r\n").splitlines()
    return newline.join(["---", *lines, "---", ""]) + document.body.lstrip("\r\n")


def _findings(data: bytes, folder: str) -> list[Finding]:
    """Errors of the seed profile, and warnings of the lenient profile for other lines."""
    strictly = read_skill_markdown(data, folder=folder, profile="seed")
    found = [(_finding(item, "error")) for item in strictly.errors]
    leniently = read_skill_markdown(data, folder=folder, profile="lenient")
    lines = {finding.line for finding in found}
    found += [_finding(item, "warning") for item in leniently.warnings if item.line is None or item.line not in lines]
    return sorted(found, key=lambda finding: (finding.line or 0, finding.severity))


def _finding(item: Diagnostic, severity: Literal["error", "warning"]) -> Finding:
    return Finding(line=item.line, severity=severity, message=item.message)


def _open(path: Path) -> _Patient:
    if path.is_dir():
        named = sorted(item for item in path.iterdir() if is_skill_file(item.name))
        path = next((item for item in named if item.name == SKILL_FILE), named[0] if named else path / SKILL_FILE)
    try:
        return _Patient(path, path.read_bytes())
    except OSError as error:
        raise RequestError(f"Cannot read {path.name}: {error.strerror}", code="FILE_NOT_FOUND") from error
