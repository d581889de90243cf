"""`apex skills install|import|validate|doctor`: commands that read packages on this machine."""

import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from apexbridge.errors import ApexBridgeError, RequestError
from apexbridge.settings import load_settings
from apexbridge.skills.package.repair import diagnose
from apexbridge.skills.package.sources import default_profile_of, is_folder, open_source
from apexbridge.skills.package.validation import skill_file_among, validate_package
from apexbridge.skills.store.roots import SkillRoot, discover
from apexbridge.surfaces.cli.client import Api
from apexbridge.surfaces.cli.console import Console
from apexbridge.surfaces.cli.session import PackagePath, Profile, ProfileChoice, Session, command

app = typer.Typer(rich_markup_mode=None)
_ARCHIVE_SUFFIXES = {".zip", ".skill"}


@command(app, "install", "add")
def install(
    session: Session,
    path: PackagePath,
    overwrite: Annotated[bool, typer.Option("--overwrite", "--force", help="Replace an installed skill.")] = False,
    profile: Profile = None,
) -> None:
    """Install a skill or a plugin."""
    receipt = session.call(lambda api: _send(api, path, overwrite=overwrite, profile=profile))
    if session.show_json(receipt):
        return
    session.console.warn(receipt["warnings"])
    names = f" ({', '.join(receipt['names'])})" if receipt["names"] != [receipt["name"]] else ""
    session.console.say(f"{receipt['message']}: {receipt['name']}{names}, {receipt['duration']} ms")


@command(app, "import")
def import_folder(
    session: Session,
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A folder of skills, such as ~/.claude/skills.")],
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace installed skills.")] = False,
    profile: Profile = ProfileChoice.LENIENT,
) -> None:
    """Install every skill of a folder and report on each."""
    console = session.console
    report = session.call(lambda api: _import_packages(api, console, folder, overwrite=overwrite, profile=profile))
    if not session.show_json(report):
        odd = [entry for entry in report["skills"] if entry["outcome"] != "installed" or entry["warnings"]]
        rows = [(entry["path"], entry["outcome"], entry["message"] or entry["warnings"]) for entry in odd]
        console.table(("PATH", "OUTCOME", "WHY"), rows)
        counts = ", ".join(f"{count} {outcome}" for outcome, count in report["counts"].items())
        console.say(counts or "Nothing to import: no folder with a SKILL.md, no .zip and no .skill was found.")
    if report["counts"].get("refused"):
        raise typer.Exit(1)


@command(app, "validate", connects=False)
def validate(session: Session, path: PackagePath, profile: Profile = None) -> None:
    """Check whether a package can be installed; nothing is written."""
    settings = load_settings().skills
    with open_source(path) as (file, filename):
        report = validate_package(
            file,
            filename=filename,
            profile=profile.value if profile else default_profile_of(path, settings.default_profile),
            require_entry_script=settings.require_entry_script,
        )
    if not session.show_json(report.model_dump(mode="json")):
        session.console.warn(report.warnings)
        for error in report.errors:
            session.console.say(f"error: {error}", style="red")
        session.console.say(f"{report.name} is valid" if report.valid else f"{path} is not valid")
    if not report.valid:
        raise typer.Exit(1)


@command(app, "doctor", connects=False)
def doctor(
    session: Session,
    path: Annotated[Path, typer.Argument(metavar="PATH", help="A SKILL.md, or its folder.")],
    write: Annotated[bool, typer.Option("--write", help="Repair the file.")] = False,
) -> None:
    """Diagnose a SKILL.md line by line, and repair it."""
    diagnosis = diagnose(path, write=write)
    findings = diagnosis.remaining if diagnosis.repaired else diagnosis.findings
    if not session.show_json(diagnosis.model_dump(mode="json")):
        console = session.console
        for finding in findings:
            location = f"{diagnosis.file}:{finding.line}" if finding.line else diagnosis.file
            console.line(f"{location}: {finding.severity}: {finding.message}")
        if not diagnosis.findings:
            console.say("no problems found")
        elif diagnosis.repaired:
            console.say(f"{diagnosis.file} was repaired{'; fix the problems above by hand' if findings else ''}")
        elif diagnosis.repairable:
            console.say("much of this can be repaired: run again with --write")
    if any(finding.severity == "error" for finding in findings):
        raise typer.Exit(1)


async def _send(api: Api, path: Path, *, overwrite: bool, profile: ProfileChoice | None) -> Any:
    """Install one archive or folder. A folder is packed first; its default profile is lenient."""
    with open_source(path) as (file, filename):
        file.seek(0)
        return await api.upload(
            "/api/skills/install",
            file,
            filename=filename,
            overwrite="true" if overwrite else None,
            profile=profile.value if profile else "lenient" if is_folder(path) else None,
        )


async def _import_packages(
    api: Api, console: Console, folder: Path, *, overwrite: bool, profile: ProfileChoice | None
) -> dict[str, Any]:
    """Install every skill folder and archive in a folder. Without `overwrite`, existing skills are only reported."""
    if not is_folder(folder):
        raise RequestError(f"No such folder: {folder}", code="FILE_NOT_FOUND")
    if skill_file_among(os.listdir(folder)):  # noqa: PTH208  # names are enough
        raise RequestError(
            f"{folder} is a skill itself, not a folder of skills. Install it with: apex skills install {folder}",
            code="INVALID_INPUT",
        )
    packages = list(_packages(folder))
    entries = []
    with console.progress_bar("importing") as progress:
        for number, (path, problem) in enumerate(packages, start=1):
            result = await _import_one(api, path, problem, overwrite=overwrite, profile=profile)
            entries.append({"path": path.relative_to(folder).as_posix()} | result)
            progress(number, len(packages))
    return {"counts": dict(Counter(entry["outcome"] for entry in entries)), "skills": entries}


async def _import_one(
    api: Api, path: Path, problem: str | None, *, overwrite: bool, profile: ProfileChoice | None
) -> dict[str, Any]:
    refused: dict[str, Any] = {"name": None, "message": problem, "warnings": [], "outcome": "refused"}
    if problem:
        return refused
    try:
        receipt = await _send(api, path, overwrite=overwrite, profile=profile)
    except ApexBridgeError as error:
        outcome = "exists" if error.code == "SKILL_ALREADY_EXISTS" else "refused"
        return refused | {"outcome": outcome, "message": error.message, "code": error.code}
    except OSError as error:
        return refused | {"message": f"cannot be read: {error.strerror}"}
    outcome = "replaced" if receipt["replaced"] else "installed"
    return {"name": receipt["name"], "message": None, "warnings": receipt["warnings"], "outcome": outcome}


def _packages(folder: Path) -> Iterator[tuple[Path, str | None]]:
    # Links are followed even out of the folder: the user chose it, and installers create such links.
    for found in discover(SkillRoot(id="import", path=folder), [Path("/")]):
        yield found.path, found.problem
    for path in sorted(folder.iterdir()):
        if path.suffix.lower() in _ARCHIVE_SUFFIXES and path.is_file():
            yield path, None
