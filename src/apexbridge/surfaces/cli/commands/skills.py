"""`apex skills …`: install, list, show, edit, count, validate and remove skills."""

from pathlib import Path
from secrets import token_hex
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from apexbridge.surfaces.cli.options import DataDir, Json, Profile, ProfileChoice, SkillName, Url, call, show

if TYPE_CHECKING:
    from apexbridge.surfaces.cli.client import Api

app = typer.Typer(
    help="Install, list, show, edit, count and uninstall skills.", no_args_is_help=True, rich_markup_mode=None
)


# ------------------------------------------------------------------------------------------------- install, remove
@app.command("install")
@app.command("add", hidden=True)
def install(
    path: Annotated[Path, typer.Argument(metavar="PATH", help="A .zip, a .skill, or a folder.")],
    overwrite: Annotated[bool, typer.Option("--overwrite", "--force", help="Replace an installed skill.")] = False,
    profile: Profile = None,
    json: Json = False,
    data_dir: DataDir = None,
    url: Url = None,
) -> None:
    """Install a skill or a plugin."""
    from apexbridge.surfaces.cli.package_upload import send

    receipt = call(lambda api: send(api, path, overwrite=overwrite, profile=profile), data_dir=data_dir, url=url)

    def people() -> None:
        from apexbridge.surfaces.cli.console import say, warn

        warn(receipt["warnings"])
        told = f"{receipt['message']}: {receipt['name']}"
        also = f" ({', '.join(receipt['names'])})" if receipt["names"] != [receipt["name"]] else ""
        say(f"{told}{also}, {receipt['duration']} ms")

    show(receipt, json=json, people=people)


@app.command("import")
def import_folder(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A folder of skills, such as ~/.claude/skills.")],
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace skills that are installed.")] = False,
    profile: Profile = ProfileChoice.LENIENT,
    json: Json = False,
    data_dir: DataDir = None,
    url: Url = None,
) -> None:
    """Install every skill of a folder and report on each."""
    from apexbridge.surfaces.cli.package_upload import import_packages

    report = call(
        lambda api: import_packages(api, folder, overwrite=overwrite, profile=profile), data_dir=data_dir, url=url
    )

    def people() -> None:
        from apexbridge.surfaces.cli.console import say, table

        odd = [entry for entry in report["skills"] if entry["outcome"] != "installed" or entry["warnings"]]
        rows = [(entry["path"], entry["outcome"], entry["message"] or entry["warnings"]) for entry in odd]
        table(("PATH", "OUTCOME", "WHY"), rows, empty="")
        counts = ", ".join(f"{count} {outcome}" for outcome, count in report["counts"].items())
        say(counts or "Nothing to import: no folder with a SKILL.md, no .zip and no .skill was found.")

    show(report, json=json, people=people)
    if report["counts"].get("refused"):
        raise typer.Exit(1)


@app.command("uninstall")
@app.command("remove", hidden=True)
@app.command("rm", hidden=True)
def uninstall(name: SkillName, json: Json = False, data_dir: DataDir = None, url: Url = None) -> None:
    """Remove a skill with everything but its history."""
    _receipt("DELETE", name, json=json, data_dir=data_dir, url=url)


# ------------------------------------------------------------------------------------------------------- list, show
@app.command("list")
@app.command("ls", hidden=True)
def list_skills(
    name: Annotated[str | None, typer.Option(help="A part of the name.")] = None,
    tag: Annotated[list[str] | None, typer.Option(help="A tag; more than one means any of them.")] = None,
    page: Annotated[int, typer.Option(min=1, help="Which page.")] = 1,
    limit: Annotated[int, typer.Option(min=1, max=500, help="Skills on a page.")] = 50,
    json: Json = False,
    data_dir: DataDir = None,
    url: Url = None,
) -> None:
    """List the installed skills by name."""
    query = {"name": name, "tags": ",".join(tag or []) or None, "page": page, "limit": limit}
    given = {key: value for key, value in query.items() if value is not None}
    found = call(lambda api: api.ask("GET", "/api/skills", params=given), data_dir=data_dir, url=url)

    def people() -> None:
        from apexbridge.surfaces.cli.console import say, table

        rows = [
            (skill["name"], skill["mode"], skill["version"], skill["source"], _one_line(skill))
            for skill in found["skills"]
        ]
        nothing = "Nothing fits." if name or tag or page > 1 else "No skill is installed. Try: apex skills install PATH"
        table(("NAME", "MODE", "VERSION", "SOURCE", "DESCRIPTION"), rows, empty=nothing, one_line=True)
        if found["total"] > len(rows):
            say(f"{len(rows)} of {found['total']}; more with --page {page + 1}")

    show(found, json=json, people=people)


@app.command("show")
def show_skill(name: SkillName, json: Json = False, data_dir: DataDir = None, url: Url = None) -> None:
    """Show everything about a skill."""
    detail = _ask("GET", name, data_dir=data_dir, url=url)
    show(detail, json=json, people=lambda: _print_detail(detail))


@app.command("problems")
def problems(json: Json = False, data_dir: DataDir = None, url: Url = None) -> None:
    """List folders that are not served, and why."""
    found = call(lambda api: api.ask("GET", "/api/skills/problems"), data_dir=data_dir, url=url)

    def people() -> None:
        from apexbridge.surfaces.cli.console import table

        rows = [(problem["sourcePath"], problem["source"], problem["kind"], problem["reason"]) for problem in found]
        table(("FILE", "SOURCE", "KIND", "WHY"), rows, empty="No problems.")

    show(found, json=json, people=people)


@app.command("export")
def export(
    name: SkillName,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Where to write it.", show_default="NAME.zip")] = None,
    json: Json = False,
    data_dir: DataDir = None,
    url: Url = None,
) -> None:
    """Write a skill as a ZIP."""
    target = out or Path(f"{name}.zip")
    if not target.parent.is_dir():
        raise typer.BadParameter(f"there is no folder {target.parent}")

    async def work(api: "Api") -> None:
        from apexbridge.surfaces.cli.client import skill_path

        draft = target.with_name(f".{target.name}.{token_hex(4)}.part")
        try:
            with draft.open("xb") as file:  # a random name; `x` does not follow a link
                await api.download(skill_path(name, "export"), file)
            draft.replace(target)
        finally:
            draft.unlink(missing_ok=True)

    call(work, data_dir=data_dir, url=url)

    def people() -> None:
        from apexbridge.surfaces.cli.console import say

        say(f"{target} written, {target.stat().st_size} bytes")

    show({"name": name, "path": str(target), "size": target.stat().st_size}, json=json, people=people)


# ------------------------------------------------------------------------------------------------------------- edit
@app.command("reload")
def reload(name: SkillName, json: Json = False, data_dir: DataDir = None, url: Url = None) -> None:
    """Read a skill from disk again."""
    _changed("reload", name, "read again", json=json, data_dir=data_dir, url=url)


@app.command("enable")
def enable(name: SkillName, json: Json = False, data_dir: DataDir = None, url: Url = None) -> None:
    """Switch a skill on."""
    _changed("enable", name, "enabled", json=json, data_dir=data_dir, url=url)


@app.command("disable")
def disable(name: SkillName, json: Json = False, data_dir: DataDir = None, url: Url = None) -> None:
    """Switch a skill off; it stays installed."""
    _changed("disable", name, "disabled", json=json, data_dir=data_dir, url=url)


@app.command("reindex")
def reindex(json: Json = False, data_dir: DataDir = None, url: Url = None) -> None:
    """Look at every root again and settle what differs."""
    report = call(lambda api: api.ask("POST", "/api/skills/reindex"), data_dir=data_dir, url=url)

    def people() -> None:
        from apexbridge.surfaces.cli.console import say

        say(f"{report['indexed']} indexed, {report['skipped']} unchanged, {report['removed']} removed")

    show(report, json=json, people=people)


# ----------------------------------------------------------------------------------------------------------- counts
@app.command("stats")
def stats(
    name: Annotated[str | None, typer.Argument(metavar="[NAME]", help="One skill; else the library.")] = None,
    json: Json = False,
    data_dir: DataDir = None,
    url: Url = None,
) -> None:
    """Count skills, or the calls of one skill."""
    if name is None:
        counts = call(lambda api: api.ask("GET", "/api/skills/stats"), data_dir=data_dir, url=url)
    else:
        counts = _ask("GET", name, "stats", data_dir=data_dir, url=url)

    def people() -> None:
        from apexbridge.surfaces.cli.console import facts

        facts(_stat_facts(counts) if name is None else _call_facts(counts))

    show(counts, json=json, people=people)


@app.command("growth")
def growth(
    by: Annotated[Literal["day", "week"], typer.Option(help="By day, or by week (its Monday).")] = "day",
    json: Json = False,
    data_dir: DataDir = None,
    url: Url = None,
) -> None:
    """Show how many skills were installed for the first time, by day or week."""
    points = call(lambda api: api.ask("GET", "/api/skills/growth", params={"by": by}), data_dir=data_dir, url=url)

    def people() -> None:
        from apexbridge.surfaces.cli.console import table

        rows = [(point["date"], point["count"]) for point in points]
        table((by.upper(), "NEW"), rows, empty="Nothing was installed yet.")

    show(points, json=json, people=people)


# --------------------------------------------------------------------------------------------- files, no server needed
@app.command("validate")
def validate(
    path: Annotated[Path, typer.Argument(metavar="PATH", help="A .zip, a .skill, or a folder.")],
    profile: Profile = None,
    json: Json = False,
) -> None:
    """Say whether a package could be installed; nothing is written."""
    from apexbridge.settings import load_settings
    from apexbridge.skills.package.packing import default_profile_of, open_source
    from apexbridge.skills.package.validation import validate_package

    settings = load_settings().skills
    with open_source(path) as (file, filename):
        report = validate_package(
            file,
            filename=filename,
            profile=profile.value if profile else default_profile_of(path, settings.default_profile),
            require_entry_script=settings.require_entry_script,
        )

    def people() -> None:
        from apexbridge.surfaces.cli.console import say, warn

        warn(report.warnings)
        for error in report.errors:
            say(f"error: {error}", style="red")
        say(f"{report.name} is valid" if report.valid else f"{path} is not valid")

    show(report.model_dump(mode="json"), json=json, people=people)
    if not report.valid:
        raise typer.Exit(1)


@app.command("doctor")
def doctor(
    path: Annotated[Path, typer.Argument(metavar="PATH", help="A SKILL.md, or the folder it stands in.")],
    write: Annotated[bool, typer.Option("--write", help="Repair the file.")] = False,
    json: Json = False,
) -> None:
    """Diagnose a SKILL.md line by line, and repair it."""
    from apexbridge.skills.package.repair import diagnose

    diagnosis = diagnose(path, write=write)

    def people() -> None:
        from apexbridge.surfaces.cli.console import line, say

        for finding in diagnosis.remaining if diagnosis.repaired else diagnosis.findings:
            place = f"{diagnosis.file}:{finding.line}" if finding.line else diagnosis.file
            line(f"{place}: {finding.severity}: {finding.message}")
        if not diagnosis.findings:
            say("nothing to complain about")
        elif diagnosis.repaired:
            left = "; what is listed above is left for you" if diagnosis.remaining else ""
            say(f"{diagnosis.file} was repaired{left}")
        elif diagnosis.repairable:
            say("much of this can be repaired: run again with --write")

    show(diagnosis.model_dump(mode="json"), json=json, people=people)
    open_errors = diagnosis.remaining if diagnosis.repaired else diagnosis.findings
    if any(finding.severity == "error" for finding in open_errors):
        raise typer.Exit(1)


# ---------------------------------------------------------------------------------------------------------- helpers
def _ask(method: str, name: str, *rest: str, data_dir: str | None, url: str | None, body: Any = None) -> Any:
    async def work(api: "Api") -> Any:
        from apexbridge.surfaces.cli.client import skill_path

        return await api.ask(method, skill_path(name, *rest), json=body)

    return call(work, data_dir=data_dir, url=url)


def _receipt(
    method: str, name: str, *rest: str, json: bool, data_dir: str | None, url: str | None, body: Any = None
) -> None:
    receipt = _ask(method, name, *rest, data_dir=data_dir, url=url, body=body)

    def people() -> None:
        from apexbridge.surfaces.cli.console import say

        say(f"{receipt['message']}: {receipt['name']}")

    show(receipt, json=json, people=people)


def _changed(action: str, name: str, word: str, *, json: bool, data_dir: str | None, url: str | None) -> None:
    detail = _ask("POST", name, action, data_dir=data_dir, url=url)

    def people() -> None:
        from apexbridge.surfaces.cli.console import say, warn

        warn(detail["warnings"])
        say(f"{name} was {word}")

    show(detail, json=json, people=people)


def _one_line(skill: dict[str, Any]) -> str:
    off = "" if skill["enabled"] else "(disabled) "
    return off + " ".join(skill["description"].split())


def _print_detail(detail: dict[str, Any]) -> None:
    from apexbridge.surfaces.cli.console import facts, line, warn

    warn(detail["warnings"])
    shown = ("name", "description", "version", "author", "category", "tags", "mode", "entry", "scripts", "enabled")
    more = ("dangerous", "permissions", "source", "plugin", "sourcePath", "installedAt", "updatedAt", "contentHash")
    facts({key: detail[key] for key in shown + more} | {"files": [file["path"] for file in detail["files"]]})
    line(f"\n{detail['content'].strip()}")


def _stat_facts(counts: dict[str, Any]) -> dict[str, Any]:
    return {
        "skills": counts["total"],
        "by mode": counts["byMode"],
        "by tag": counts["byTag"],
        "by derived tag": counts["byDerivedTag"],
        "calls": counts["calls"],
        "success rate": counts["successRate"],
        "never called": counts["unused"],
    }


def _call_facts(counts: dict[str, Any]) -> dict[str, Any]:
    return {
        "skill": counts["toolName"],
        "calls": counts["callCount"],
        "successes": counts["successCount"],
        "success rate": counts["successRate"],
        "average": f"{counts['averageDuration']} ms",
    }
