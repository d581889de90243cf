"""`apex skills install|lock|import|validate|doctor`: commands that read packages on this machine."""

import os
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from apexbridge.errors import ApexBridgeError, RequestError
from apexbridge.skills.lock_file import LOCK_FILE, format_lock, read_lock
from apexbridge.skills.package.entry_names import is_skill_file
from apexbridge.skills.package.sources import (
    default_profile_of,
    default_profile_of_several,
    is_folder,
    open_source,
)
from apexbridge.skills.remote.source_text import SOURCE_USAGE, RemoteSource, parse_source
from apexbridge.skills.store.roots import SkillRoot, discover
from apexbridge.surfaces.cli.client import Api
from apexbridge.surfaces.cli.connection import default_profile, find_connection
from apexbridge.surfaces.cli.console import Console, plural
from apexbridge.surfaces.cli.project_lock import changing, write_lock
from apexbridge.surfaces.cli.session import Limit, PackagePath, Page, Profile, ProfileChoice, Session, Strict, command

app = typer.Typer(rich_markup_mode=None)
MANY_SKILLS = 3
"""Warnings about more skills than this are counted."""
MAX_NAMED = 5
"""Skills without a source that `lock` names."""
_ARCHIVE_SUFFIXES = {".zip", ".skill"}


@command(app, "install", "add")
def install(
    session: Session,
    source: Annotated[
        str | None,
        typer.Argument(
            metavar="[SOURCE]",
            help=(
                "A folder, a .zip, a .skill, a SKILL.md, owner/repo[/path][@ref], a Git URL[@ref][#path], the URL "
                "of a .zip, or that of a server that publishes skills. With --locked, a lock file."
            ),
        ),
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", "--force", help="Replace an installed skill.")] = False,
    profile: Profile = None,
    strict: Strict = False,
    skill: Annotated[
        list[str] | None,
        typer.Option(help="Of a server that publishes skills, install this one; repeatable, '*' is all."),
    ] = None,
    locked: Annotated[
        bool, typer.Option("--locked", help="Install exactly the contents of skills.lock, or say what is missing.")
    ] = False,
) -> None:
    """Install a skill, a plugin or a marketplace of plugins; or with --locked, everything in skills.lock."""
    if locked:
        if overwrite or profile or strict or skill:
            raise typer.BadParameter("--locked takes everything from the lock file; leave the other options out")
        _install_locked(session, source)
        return
    if source is None:
        raise typer.BadParameter("name a SOURCE, or use --locked")
    options: dict[str, Any] = {"overwrite": overwrite, "profile": profile, "strict": strict}
    remote = _remote_source(source)
    if skill and remote is None:
        raise typer.BadParameter("--skill chooses from a server that publishes skills; name the folder of the skill")
    if remote and remote.is_short:  # it could have been meant as a path
        session.console.say(f"fetching {remote.url}")

    async def work(api: Api) -> Any:
        if remote:
            return await _fetch(api, session.console, remote, skills=skill or [], **options)
        return await _send(api, Path(source), **options)

    with session.console.working(f"installing {source}"):
        receipt = session.call(changing(session.console, work))
    if not session.show_json(receipt):
        _print_receipt(session.console, receipt)


@command(app, "lock")
def lock(
    session: Session,
    check: Annotated[
        bool, typer.Option("--check", help="Write nothing; fail if the file differs from what is installed.")
    ] = False,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Where to write it.", show_default=LOCK_FILE)] = None,
) -> None:
    """Write skills.lock: what was installed from repositories and addresses, with commits, digests and contents."""
    path = out or Path(LOCK_FILE)
    current = session.ask("GET", "/api/lock")
    if check:
        is_same = path.exists() and format_lock(read_lock(path)) == format_lock(current["packages"])
        is_current = is_same and not current["edited"]
        if not session.show_json({"path": str(path), "current": is_current, "edited": current["edited"]}):
            _warn_of_edits(session, current["edited"])
            session.console.say(f"{path} is up to date" if is_current else f"{path} differs from what is installed")
        if not is_current:
            raise typer.Exit(1)
        return
    changed = write_lock(path, current["packages"])
    if session.show_json({"path": str(path), "changed": changed, **current}):
        return
    if others := current["others"]:
        have = "has no source and is" if len(others) == 1 else "have no source and are"
        session.console.warn([f"{plural(len(others), 'skill')} {have} not in {path}: {', '.join(others[:MAX_NAMED])}"])
    _warn_of_edits(session, current["edited"])
    state = "written" if changed else "up to date"
    session.console.say(f"{path} is {state}: {plural(len(current['packages']), 'package')}")


def _warn_of_edits(session: Session, names: list[str]) -> None:
    if names:
        was = "was" if len(names) == 1 else "were"
        session.console.warn(
            [f"{plural(len(names), 'skill')} {was} changed after the install: {', '.join(names[:MAX_NAMED])}"]
        )


def _install_locked(session: Session, source: str | None) -> None:
    path = Path(source) if source is not None else _lock_of(session)
    packages = read_lock(path)
    console = session.console
    groups: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for package in packages:  # each source is fetched once
        groups.setdefault((package.get("source"), package.get("commit"), package.get("digest")), []).append(package)

    async def work(api: Api) -> list[dict[str, Any]]:
        reports = []
        with console.progress_bar("installing") as progress:
            for number, group in enumerate(groups.values()):
                progress(number, len(groups))
                answer = await api.ask("POST", "/api/lock", json={"packages": group})
                reports += answer["packages"]
            progress(len(groups), len(groups))
        return reports

    reports = session.call(work)
    failed = [report for report in reports if report["state"] == "failed"]
    if not session.show_json({"packages": reports}):
        for report in failed:
            console.say(f"{report['name']}: {report['error']['message']}", style="yellow")
        states = Counter(report["state"] for report in reports)
        counts = ", ".join(f"{count} {state}" for state, count in sorted(states.items()))
        console.say(f"{path}: {counts or 'nothing is locked'}")
    if failed:
        raise typer.Exit(1)


def _lock_of(session: Session) -> Path:
    """The lock file of this folder, or else of the data directory."""
    path = Path(LOCK_FILE)
    stored = find_connection(data_dir=session.data_dir, url=session.url).data_dir / LOCK_FILE
    return stored if not path.exists() and stored.exists() else path


def _print_receipt(console: Console, receipt: dict[str, Any]) -> None:
    """Print what was installed and what was left out. Warnings about many skills are counted, not printed."""
    count = len(receipt["leftOut"])
    left_out, others = receipt["warnings"][:count], receipt["warnings"][count:]
    if len(receipt["names"]) > MANY_SKILLS and others:
        others = [f"{plural(len(others), 'warning')} about the skills; apex skills show NAME prints those of a skill"]
    console.warn([*left_out, *others])
    names = f" ({', '.join(receipt['names'])})" if receipt["names"] != [receipt["name"]] else ""
    if len(receipt["plugins"]) > 1:
        names = ""
    console.say(f"{receipt['message']}: {receipt['name']}{names}, {receipt['duration']} ms")
    if len(receipt["names"]) > 1 or left_out:
        more = ". See them with: apex plugins list" if len(receipt["plugins"]) > 1 else ""
        console.say(f"{plural(len(receipt['names']), 'skill')} installed, {len(left_out)} left out{more}")


@command(app, "import")
def import_folder(
    session: Session,
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A folder of skills, such as ~/.claude/skills.")],
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace installed skills.")] = False,
    profile: Profile = ProfileChoice.LENIENT,
) -> None:
    """Install every skill of a folder and report on each."""
    console = session.console
    work = changing(console, lambda api: _import_packages(api, console, folder, overwrite=overwrite, profile=profile))
    report = session.call(work)
    if not session.show_json(report):
        odd = [entry for entry in report["skills"] if entry["outcome"] != "installed" or entry["warnings"]]
        rows = [(entry["path"], entry["outcome"], entry["message"] or entry["warnings"]) for entry in odd]
        console.table(("PATH", "OUTCOME", "WHY"), rows)
        counts = ", ".join(f"{count} {outcome}" for outcome, count in report["counts"].items())
        console.say(counts or "Nothing to import: no folder with a SKILL.md, no .zip and no .skill was found.")
    if report["counts"].get("refused"):
        raise typer.Exit(1)


@command(app, "validate", connects=False)
def validate(session: Session, path: PackagePath, profile: Profile = None, strict: Strict = False) -> None:
    """Check whether a package can be installed; nothing is written."""
    from apexbridge.settings import load_settings  # `install` does not need these
    from apexbridge.skills.package.validation import ReadOptions, validate_package

    settings = load_settings().skills
    configured = settings.default_profile
    with open_source(path) as (file, filename):
        options = ReadOptions(
            profile=profile.value if profile else default_profile_of(path, configured),
            profile_of_several=profile.value if profile else default_profile_of_several(path, configured),
            require_entry_script=settings.require_entry_script,
            long_description=profile is None,
            strict=strict,
        )
        report = validate_package(file, options, filename=filename)
    if not session.show_json(report.model_dump(mode="json")):
        session.console.warn(report.warnings)
        for error in report.errors:
            session.console.say(f"error: {error}", style="red")
        session.console.say(f"{report.name} is valid" if report.valid else f"{path} is not valid")
    if not report.valid:
        raise typer.Exit(1)


@command(app, "doctor")
def doctor(
    session: Session,
    path: Annotated[Path | None, typer.Argument(metavar="[PATH]", help="A SKILL.md, or its folder.")] = None,
    write: Annotated[bool, typer.Option("--write", help="Repair the file.")] = False,
    confusable: Annotated[
        bool, typer.Option("--confusable", help="List pairs of installed skills that search may confuse.")
    ] = False,
    page: Page = None,
    limit: Limit = None,
) -> None:
    """Diagnose a SKILL.md line by line, and repair it; or with --confusable, list installed skills that are alike."""
    if confusable:
        if path is not None or write:
            raise typer.BadParameter("--confusable compares the installed skills; leave PATH and --write out")
        _show_confusable(session, page=page, limit=limit)
        return
    if path is None:
        raise typer.BadParameter("name a PATH, or use --confusable")
    from apexbridge.skills.package.repair import diagnose  # `install` does not need it

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


def _show_confusable(session: Session, *, page: int | None, limit: int | None) -> None:
    found = session.ask_page("/api/insights/confusable", "pairs", {}, page=page, limit=limit)
    if session.show_json(found):
        return
    console, pairs = session.console, found["pairs"]
    console.warn(found["warnings"])
    rows = [
        (f"{pair['score']:.2f}", pair["first"]["name"], pair["second"]["name"], _difference(pair)) for pair in pairs
    ]
    empty = f"No two of {plural(found['compared'], 'skill')} and tools are easily confused."
    console.table(("SCORE", "NAME", "OTHER", "DIFFERENCE"), rows, empty=empty)
    console.say_more(len(rows), found)
    if any(pair["duplicate"] for pair in pairs):
        console.say("Remove one of two with the same description: apex skills uninstall NAME")
    if not all(pair["duplicate"] for pair in pairs):
        console.say(
            "Say in each description what only this skill does: apex skills set-description NAME TEXT --preview"
        )


def _difference(pair: dict[str, Any]) -> str:
    """The words by which a request can tell two skills apart."""
    if pair["duplicate"]:
        return "none: the descriptions are the same"
    return " / ".join(", ".join(pair[one]["ownWords"]) or "no word of its own" for one in ("first", "second"))


def _remote_source(text: str) -> RemoteSource | None:
    """The source that the server fetches; None for a folder or a file of this machine, which is uploaded."""
    address = _repository_address(text)
    if address is None and os.path.lexists(text):
        return None
    source = parse_source(address or text)
    if source is None:
        raise RequestError(f"There is no file or folder {text}. {SOURCE_USAGE}.", code="FILE_NOT_FOUND")
    return source


async def _fetch(
    api: Api,
    console: Console,
    source: RemoteSource,
    *,
    skills: list[str],
    overwrite: bool,
    profile: ProfileChoice | None,
    strict: bool,
) -> Any:
    chosen = profile.value if profile else None
    body: dict[str, Any] = {"source": source.text, "overwrite": overwrite, "profile": chosen, "strict": strict}
    if skills:  # older servers refuse unknown fields
        body["skills"] = skills
    try:
        return await api.ask("POST", "/api/skills/install", json=body)
    except ApexBridgeError as error:
        if error.code in ("SOURCE_NOT_FOUND", "SOURCE_UNREACHABLE") and source.is_short:
            console.say(f"There is no file or folder {source.text} here, so it was looked up on GitHub.")
        raise


def _repository_address(text: str) -> str | None:
    """The `file://` address of a bare repository on this machine, with its ref and path; None if it is not one."""
    path, tail = text, ""
    if not os.path.lexists(text) and (found := re.search("[@#]", text)):
        path, tail = text[: found.start()], text[found.start() :]
    folder = Path(path)
    is_bare = (folder / "HEAD").is_file() and (folder / "objects").is_dir() and (folder / "refs").is_dir()
    return f"file://{folder.resolve()}{tail}" if is_bare else None


async def _send(api: Api, path: Path, *, overwrite: bool, profile: ProfileChoice | None, strict: bool = False) -> Any:
    """Install one archive, folder or SKILL.md. Folders are packed first. The default profile is lenient."""
    chosen = profile.value if profile else default_profile_of(path, default_profile())
    with open_source(path) as (file, filename):
        file.seek(0)
        return await api.upload(
            "/api/skills/install",
            file,
            filename=filename,
            overwrite="true" if overwrite else None,
            profile=chosen if profile or chosen == "lenient" else None,
            strict="true" if strict else None,
        )


async def _import_packages(
    api: Api, console: Console, folder: Path, *, overwrite: bool, profile: ProfileChoice | None
) -> dict[str, Any]:
    """Install every skill folder and archive in a folder. Without `overwrite`, existing skills are only reported."""
    if not is_folder(folder):
        raise RequestError(f"No such folder: {folder}", code="FILE_NOT_FOUND")
    if any(map(is_skill_file, os.listdir(folder))):  # noqa: PTH208  # names are enough
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
