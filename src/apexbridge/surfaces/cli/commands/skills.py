"""`apex skills …` and `apex plugins …`. Commands that need more than the server are in `packages` and `run`."""

from pathlib import Path
from secrets import token_hex
from typing import TYPE_CHECKING, Annotated, Any, Literal
from urllib.parse import quote

import typer

from apexbridge.surfaces.cli.commands import grants
from apexbridge.surfaces.cli.lazy_commands import lazy_group
from apexbridge.surfaces.cli.session import Session, SkillName, Tags, command

if TYPE_CHECKING:
    from apexbridge.surfaces.cli.client import Api

app = typer.Typer(cls=lazy_group("skills"), no_args_is_help=True, rich_markup_mode=None)
app.add_typer(grants.app)
plugins = typer.Typer(no_args_is_help=True, rich_markup_mode=None)


# ------------------------------------------------------------------------------------------------------ find, show
@command(app, "search", "find")
def search(
    session: Session,
    query: Annotated[str, typer.Argument(metavar="QUERY", help="What you want done, in your own words.")],
    limit: Annotated[int | None, typer.Option(min=1, max=100, help="At most this many.", show_default="5")] = None,
    tag: Tags = None,
    threshold: Annotated[
        float | None, typer.Option(min=0, max=1, help="The lowest confidence to show; 0 shows everything.")
    ] = None,
) -> None:
    """Find skills by what they do, in English or Chinese."""
    body = _without_none({"query": query, "limit": limit, "tags": tag or [], "threshold": threshold})
    found = session.ask("POST", "/api/skills/search", json=body)
    if session.show_json(found):
        return
    session.console.warn(found["warnings"])
    if found.get("degraded"):
        session.console.warn(["meaning could not be compared; these are matches of words"])
    rows = [(hit["name"], f"{hit['score']:.2f}", _reasons(hit["why"]), hit["description"]) for hit in found["results"]]
    empty = "Nothing fits. Try other words, or --threshold 0 to see what comes nearest."
    session.console.table(("NAME", "SCORE", "WHY", "DESCRIPTION"), rows, empty=empty, one_line=True)


@command(app, "list", "ls")
def list_skills(
    session: Session,
    name: Annotated[str | None, typer.Option(help="A substring of the name.")] = None,
    tag: Tags = None,
    page: Annotated[int, typer.Option(min=1, help="The page number.")] = 1,
    limit: Annotated[int, typer.Option(min=1, max=500, help="Skills per page.")] = 50,
) -> None:
    """List the installed skills by name."""
    params = _without_none({"name": name, "tags": ",".join(tag or []) or None, "page": page, "limit": limit})
    found = session.ask("GET", "/api/skills", params=params)
    if session.show_json(found):
        return
    rows = [
        (skill["name"], skill["mode"], skill["version"], skill["source"], _one_line(skill)) for skill in found["skills"]
    ]
    empty = "Nothing fits." if name or tag or page > 1 else "No skill is installed. Try: apex skills install PATH"
    columns = ("NAME", "MODE", "VERSION", "SOURCE", "DESCRIPTION")
    session.console.table(columns, rows, empty=empty, one_line=True)
    if found["total"] > len(rows):
        session.console.say(f"{len(rows)} of {found['total']}; more with --page {page + 1}")


@command(app, "show")
def show_skill(session: Session, name: SkillName) -> None:
    """Show everything about a skill."""
    detail = session.ask_skill("GET", name)
    if session.show_json(detail):
        return
    session.console.warn(detail["warnings"])
    basic = ("name", "description", "version", "author", "category", "tags", "mode", "entry", "scripts", "enabled")
    more = ("dangerous", "permissions", "source", "plugin", "sourcePath", "installedAt", "updatedAt", "contentHash")
    session.console.facts(
        {key: detail[key] for key in basic + more} | {"files": [file["path"] for file in detail["files"]]}
    )
    session.console.line(f"\n{detail['content'].strip()}")


@command(app, "problems")
def problems(session: Session) -> None:
    """List folders that are not served, and why."""
    found = session.ask("GET", "/api/skills/problems")
    rows = [(problem["sourcePath"], problem["source"], problem["kind"], problem["reason"]) for problem in found]
    session.table(found, ("FILE", "SOURCE", "KIND", "WHY"), rows, empty="No problems.")


@command(app, "export")
def export(
    session: Session,
    name: SkillName,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Where to write it.", show_default="NAME.zip")] = None,
) -> None:
    """Write a skill as a ZIP."""
    target = out or Path(f"{name}.zip")
    if not target.parent.is_dir():
        raise typer.BadParameter(f"there is no folder {target.parent}")

    async def download(api: "Api") -> None:
        draft = target.with_name(f".{target.name}.{token_hex(4)}.part")
        try:
            with draft.open("xb") as file:  # a random name; `x` does not follow a link
                await api.download_skill(name, file)
            draft.replace(target)
        finally:
            draft.unlink(missing_ok=True)

    session.call(download)
    size = target.stat().st_size
    session.report({"name": name, "path": str(target), "size": size}, f"{target} written, {size} bytes")


# ---------------------------------------------------------------------------------------------------- edit, remove
@command(app, "set-description")
def set_description(
    session: Session,
    name: SkillName,
    text: Annotated[str, typer.Argument(metavar="TEXT", help="What it does and when to use it.")],
    request: Annotated[
        list[str] | None, typer.Option(help="Show the skill's rank for this request before and after; repeatable.")
    ] = None,
) -> None:
    """Change a skill's description; every other byte of SKILL.md stays."""
    params = {"request": request} if request else None
    receipt = session.ask_skill("PUT", name, "description", json={"description": text}, params=params)
    if session.show_json(receipt):
        return
    session.console.say(f"{receipt['message']}: {receipt['name']}")
    rows = [(change["before"], change["after"], change["request"]) for change in receipt.get("ranks", [])]
    session.console.table(("BEFORE", "AFTER", "REQUEST"), rows)


@command(app, "forget")
def forget(
    session: Session,
    name: Annotated[str | None, typer.Argument(metavar="NAME", help="The skill's name.")] = None,
    everything: Annotated[bool, typer.Option("--all", help="Delete the past requests of all skills.")] = False,
) -> None:
    """Delete what search learned from past requests about a skill."""
    if (name is None) != everything:
        raise typer.BadParameter("name a skill, or use --all")
    receipt = session.ask("POST", "/api/skills/forget", json={"name": name})
    session.report(receipt, f"past requests deleted: {receipt['forgotten']}")


@command(app, "reload")
def reload(session: Session, name: SkillName) -> None:
    """Read a skill from disk again."""
    _change(session, name, "reload", "read again")


@command(app, "enable")
def enable(session: Session, name: SkillName) -> None:
    """Enable a skill."""
    _change(session, name, "enable", "enabled")


@command(app, "disable")
def disable(session: Session, name: SkillName) -> None:
    """Disable a skill; it stays installed."""
    _change(session, name, "disable", "disabled")


@command(app, "uninstall", "remove", "rm")
def uninstall(session: Session, name: SkillName) -> None:
    """Remove a skill with everything except its history."""
    receipt = session.ask_skill("DELETE", name)
    session.report(receipt, f"{receipt['message']}: {receipt['name']}")


@command(app, "reindex")
def reindex(session: Session) -> None:
    """Scan all roots again and index what changed."""
    report = session.ask("POST", "/api/skills/reindex")
    session.report(report, f"{report['indexed']} indexed, {report['skipped']} unchanged, {report['removed']} removed")


# ---------------------------------------------------------------------------------------------------------- counts
@command(app, "stats")
def stats(
    session: Session,
    name: Annotated[str | None, typer.Argument(metavar="[NAME]", help="One skill; default: all.")] = None,
) -> None:
    """Count skills, or the calls of one skill."""
    if name is None:
        counts = session.ask("GET", "/api/skills/stats")
        facts = {
            "skills": counts["total"],
            "by mode": counts["byMode"],
            "by tag": counts["byTag"],
            "by derived tag": counts["byDerivedTag"],
            "calls": counts["calls"],
            "success rate": counts["successRate"],
            "never called": counts["unused"],
        }
    else:
        counts = session.ask_skill("GET", name, "stats")
        facts = {
            "skill": counts["toolName"],
            "calls": counts["callCount"],
            "successes": counts["successCount"],
            "success rate": counts["successRate"],
            "average": f"{counts['averageDuration']} ms",
        }
    if not session.show_json(counts):
        session.console.facts(facts)


@command(app, "growth")
def growth(
    session: Session,
    by: Annotated[Literal["day", "week"], typer.Option(help="By day, or by week (its Monday).")] = "day",
) -> None:
    """Show how many skills were installed for the first time, by day or week."""
    points = session.ask("GET", "/api/skills/growth", params={"by": by})
    rows = [(point["date"], point["count"]) for point in points]
    session.table(points, (by.upper(), "NEW"), rows, empty="Nothing was installed yet.")


# --------------------------------------------------------------------------------------------------------- plugins
@command(plugins, "list", "ls")
def list_plugins(session: Session) -> None:
    """List the installed plugins with their skills."""
    found = session.ask("GET", "/api/plugins")
    rows = [(plugin["name"], plugin["version"], plugin["skills"]) for plugin in found]
    session.table(found, ("NAME", "VERSION", "SKILLS"), rows, empty="No plugin is installed.")


@command(plugins, "uninstall", "remove", "rm")
def uninstall_plugin(
    session: Session, name: Annotated[str, typer.Argument(metavar="NAME", help="The plugin's name.")]
) -> None:
    """Remove a plugin with all its skills."""
    receipt = session.ask("DELETE", f"/api/plugins/{quote(name, safe='')}")
    session.report(receipt, f"{receipt['message']}: {name}")


# --------------------------------------------------------------------------------------------------------- helpers
def _change(session: Session, name: str, action: str, done: str) -> None:
    detail = session.ask_skill("POST", name, action)
    if not session.show_json(detail):
        session.console.warn(detail["warnings"])
        session.console.say(f"{name} was {done}")


def _without_none(values: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in values.items() if value is not None}


def _one_line(skill: dict[str, Any]) -> str:
    prefix = "" if skill["enabled"] else "(disabled) "
    return prefix + " ".join(skill["description"].split())


def _reasons(why: dict[str, Any]) -> str:
    """Why a skill was found, in a few words."""
    reasons = []
    if why["vectorRank"] is not None:
        reasons.append(f"meaning #{why['vectorRank']}")
    if why["keywordRank"] is not None:
        reasons.append(f"words #{why['keywordRank']} ({', '.join(why['matchedWords'][:4])})")
    if why["pastUse"] > 0:
        reasons.append("asked for before")
    return ", ".join(reasons)
