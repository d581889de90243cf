"""`apex skills …` and `apex plugins …`. Commands that need more than the server are in `packages` and `run`."""

from collections.abc import Awaitable, Callable
from pathlib import Path
from secrets import token_hex
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar
from urllib.parse import quote

import typer

from apexbridge.errors import ApexBridgeError
from apexbridge.surfaces.cli.commands import grants
from apexbridge.surfaces.cli.completion import plugin_names, removed_skill_names
from apexbridge.surfaces.cli.lazy_commands import lazy_group
from apexbridge.surfaces.cli.session import Limit, NoQuestion, Page, Session, SkillName, Tags, can_ask, command

if TYPE_CHECKING:
    from apexbridge.surfaces.cli.client import Api
    from apexbridge.surfaces.cli.console import Console

T = TypeVar("T")
MAX_SHOWN_FILES = 20
"""Files of each kind that `update` lists for a skill."""
PluginName = Annotated[str, typer.Argument(metavar="NAME", help="The plugin's name.", autocompletion=plugin_names)]
EntryId = Annotated[str | None, typer.Option("--id", help="One of several of that name; default: the newest.")]

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
    kind: Annotated[
        Literal["skill", "tool"] | None,
        typer.Option("--kind", help="Only skills, or only tools of MCP servers.", show_default="both"),
    ] = None,
) -> None:
    """Find skills, and tools of MCP servers, by what they do, in English or Chinese."""
    body = _without_none({"query": query, "limit": limit, "tags": tag or [], "threshold": threshold, "kind": kind})
    found = session.ask("POST", "/api/skills/search", creates=False, json=body)
    if session.show_json(found):
        return
    session.console.warn(found["warnings"])
    if found.get("degraded"):
        session.console.warn(["meaning could not be compared; these are matches of words"])
    with_kind = any(hit["kind"] == "tool" for hit in found["results"])
    rows = [
        (
            hit["name"],
            *((hit["kind"],) if with_kind else ()),
            f"{hit['score']:.2f}",
            _reasons(hit["why"]),
            hit["description"],
        )
        for hit in found["results"]
    ]
    columns = ("NAME", *(("KIND",) if with_kind else ()), "SCORE", "WHY", "DESCRIPTION")
    empty = "Nothing fits. Try other words, or --threshold 0 to see what comes nearest."
    session.console.table(columns, rows, empty=empty, one_line=True)


@command(app, "list", "ls")
def list_skills(
    session: Session,
    name: Annotated[str | None, typer.Option(help="A substring of the name.")] = None,
    tag: Tags = None,
    sort: Annotated[
        Literal["name", "-name", "updated", "installed", "calls", "failures"],
        typer.Option(help="By name, the newest first (updated, installed), or the most (calls, failures)."),
    ] = "name",
    page: Page = None,
    limit: Limit = None,
) -> None:
    """List the installed skills."""
    params = _without_none({"name": name, "tags": ",".join(tag or []) or None, "sort": sort})
    found = session.ask_page("/api/skills", "skills", params, page=page, limit=limit)
    if session.show_json(found):
        return
    rows = [
        (skill["name"], skill["mode"], skill["version"], skill["source"], _one_line(skill)) for skill in found["skills"]
    ]
    empty = (
        "Nothing fits." if name or tag or (page or 1) > 1 else "No skill is installed. Try: apex skills install PATH"
    )
    columns = ("NAME", "MODE", "VERSION", "SOURCE", "DESCRIPTION")
    session.console.table(columns, rows, empty=empty, one_line=True)
    session.console.say_more(len(rows), found)


@command(app, "show")
def show_skill(session: Session, name: SkillName) -> None:
    """Show everything about a skill."""
    detail = session.ask_skill("GET", name)
    if session.show_json(detail):
        return
    session.console.warn(detail["warnings"])
    basic = ("name", "description", "version", "author", "category", "tags", "mode", "entry", "scripts", "enabled")
    more = ("dangerous", "permissions", "source", "plugin", "sourcePath", "installedAt", "updatedAt", "contentHash")
    origin = detail.get("origin") or {}
    fetched = {key: origin.get(key) for key in ("url", "ref", "path", "commit", "digest", "installedAt")}
    session.console.facts(
        {key: detail[key] for key in basic + more}
        | {"origin": {key: value for key, value in fetched.items() if value}}
        | {"signature": _signature(detail["signature"])}
        | {"files": [file["path"] for file in detail["files"]]}
    )
    session.console.line(f"\n{detail['content'].strip()}")


def _signature(signature: dict[str, Any]) -> str:
    if signature["state"] == "unsigned":
        return ""
    return f"{signature['state']}: {signature['reason'] or signature['signer']}"


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
    version: Annotated[
        int | None, typer.Option("--version", min=1, help="One of its versions.", show_default="the installed one")
    ] = None,
) -> None:
    """Write a skill, or one of its versions, as a ZIP."""
    target = out or Path(f"{name.replace(':', '+')}.zip")
    if not target.parent.is_dir():
        raise typer.BadParameter(f"there is no folder {target.parent}")

    async def download(api: "Api") -> None:
        draft = target.with_name(f".{target.name}.{token_hex(4)}.part")
        try:
            with draft.open("xb") as file:  # a random name; `x` does not follow a link
                await api.download_skill(name, file, version=version)
            draft.replace(target)
        finally:
            draft.unlink(missing_ok=True)

    session.call(download, creates=False)
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
    preview: Annotated[
        bool, typer.Option("--preview", "--dry-run", help="Show what would change in search, and stop.")
    ] = False,
) -> None:
    """Change a skill's description; every other byte of SKILL.md stays."""
    body = {"description": text}

    async def work(api: "Api") -> dict[str, Any]:
        shown: dict[str, Any] = {}
        if preview or not (session.json or request):
            shown = await api.ask_skill(
                "POST", name, "description", "preview", json={**body, "requests": request or []}
            )
        if preview:
            return shown
        params = {"request": request} if request else None
        receipt: dict[str, Any] = await api.ask_skill("PUT", name, "description", json=body, params=params)
        return {**receipt, "past": shown.get("past")} if shown else receipt

    answer = session.call(work, creates=False)
    if session.show_json(answer):
        return
    if not preview:
        session.console.say(f"{answer['message']}: {answer['name']}")
    rows = [(change["before"], change["after"], change["request"]) for change in answer.get("ranks", [])]
    session.console.table(("BEFORE", "AFTER", "REQUEST"), rows)
    if past := answer.get("past"):
        _show_past(session.console, name, past)
    if preview and not request and not (past and past["own"]["requests"] + past["others"]["requests"]):
        session.console.say("No past request is known. Name one with: --request TEXT")


@command(app, "forget")
def forget(
    session: Session,
    name: Annotated[str | None, typer.Argument(metavar="NAME", help="The skill's name.")] = None,
    everything: Annotated[bool, typer.Option("--all", help="Delete the past requests of all skills.")] = False,
) -> None:
    """Delete what search learned from past requests about a skill."""
    if (name is None) != everything:
        raise typer.BadParameter("name a skill, or use --all")
    receipt = session.ask("POST", "/api/skills/forget", creates=False, json={"name": name})
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
def uninstall(
    session: Session,
    name: SkillName,
    yes: NoQuestion = False,
    delete: Annotated[bool, typer.Option("--delete", help="Delete the folder of a skill in another root too.")] = False,
) -> None:
    """Remove a skill with everything except its history; it can be restored for 7 days."""
    what = f"Delete {name}? A folder in another root cannot be restored." if delete else f"Uninstall {name}?"
    if not session.confirm(what, yes=yes):
        raise typer.Abort
    params = {"delete": "true"} if delete else None
    receipt = _change_skills(session, lambda api: api.ask_skill("DELETE", name, params=params))
    session.report(receipt, _removal_message(receipt, "skills"))


@command(app, "restore")
def restore(
    session: Session,
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="[NAME]", help="The skill; default: list what there is.", autocompletion=removed_skill_names
        ),
    ] = None,
    id: EntryId = None,
) -> None:
    """Bring a removed or hidden skill back; without a name, list what can be restored."""
    if name is None:
        _list_removed(session)
        return
    receipt = _change_skills(session, lambda api: api.ask_skill("POST", name, "restore", json={"id": id}))
    session.report(receipt, f"{receipt['message']}: {name}")


@command(app, "versions")
def versions(session: Session, name: SkillName) -> None:
    """List the versions of a skill, the newest first."""
    found = session.ask_skill("GET", name, "versions")
    rows = [
        (
            version["version"],
            "installed" if version["default"] else "",
            version["createdAt"][:16].replace("T", " "),
            version["source"],
            version["author"],
            version["contentHash"][:12],
            " ".join(version["description"].split()),
        )
        for version in found["versions"]
    ]
    if not session.show_json(found):
        columns = ("VERSION", "STATE", "CREATED", "SOURCE", "KEY", "CONTENT", "DESCRIPTION")
        session.console.table(columns, rows, one_line=True)


@command(app, "rollback")
def rollback(
    session: Session,
    name: SkillName,
    version: Annotated[
        int | None,
        typer.Argument(metavar="[VERSION]", min=1, help="The version; default: the one before the installed one."),
    ] = None,
) -> None:
    """Install an earlier version of a skill, or a later one again."""
    body = _without_none({"version": version})
    receipt = _change_skills(session, lambda api: api.ask_skill("POST", name, "versions", "rollback", json=body))
    before = receipt["previous"]
    was = "It was before." if before == receipt["version"] else f"Before, it was version {before}."
    session.report(receipt, f"{receipt['message']}. {was}")


@command(app, "update")
def update(
    session: Session,
    name: Annotated[
        str | None, typer.Argument(metavar="[NAME]", help="The skill or plugin; default: all that were fetched.")
    ] = None,
    check: Annotated[bool, typer.Option("--check", "--dry-run", help="Show what would change, and stop.")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Apply the changes without a question.")] = False,
) -> None:
    """Fetch the sources of skills again, show what changed, and install it."""
    console = session.console
    found = session.call(lambda api: _find_updates(api, console, name), creates=False)
    failed = [entry for entry in found if entry.get("error")]
    if name is not None and failed:
        from apexbridge.surfaces.cli.client import AnsweredError

        raise AnsweredError(failed[0]["error"])
    changed = [entry for entry in found if entry.get("changed")]
    if not session.json:
        _show_updates(session, found)
    can_apply = yes or (not session.json and can_ask())
    applied: list[dict[str, Any]] = []
    if changed and not check and can_apply:
        if not session.confirm(f"Update {', '.join(entry['name'] for entry in changed)}?", yes=yes):
            raise typer.Abort
        applied = _change_skills(session, lambda api: _apply_updates(api, console, changed))
        failed += [entry for entry in applied if entry.get("error")]
    done = {entry["name"]: entry for entry in applied}
    if not session.show_json({"updates": [done.get(entry["name"], entry) for entry in found]}):
        for entry in applied:
            console.say(entry["error"]["message"] if entry.get("error") else f"{entry['name']} was updated")
        if changed and not applied:
            named = f" {name}" if name is not None else ""
            console.say(f"Nothing was changed. Apply the changes with: apex skills update{named} --yes")
    if failed:
        raise typer.Exit(1)


@command(app, "reindex")
def reindex(session: Session) -> None:
    """Scan all roots again and index what changed."""
    report = session.ask("POST", "/api/skills/reindex", creates=False)
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
def uninstall_plugin(session: Session, name: PluginName, yes: NoQuestion = False) -> None:
    """Remove a plugin with all its skills; it can be restored for 7 days."""
    if not session.confirm(f"Uninstall the plugin {name} with all its skills?", yes=yes):
        raise typer.Abort
    receipt = _change_skills(session, lambda api: api.ask("DELETE", _plugin_path(name)))
    session.report(receipt, _removal_message(receipt, "plugins"))


@command(plugins, "restore")
def restore_plugin(
    session: Session,
    name: Annotated[
        str | None, typer.Argument(metavar="[NAME]", help="The plugin; default: list what there is.")
    ] = None,
    id: EntryId = None,
) -> None:
    """Bring a removed plugin back with all its skills; without a name, list what can be restored."""
    if name is None:
        _list_removed(session)
        return
    path = _plugin_path(name, "restore")
    receipt = _change_skills(session, lambda api: api.ask("POST", path, json={"id": id}))
    session.report(receipt, f"{receipt['message']}: {name}")


# --------------------------------------------------------------------------------------------------------- helpers
def _change(session: Session, name: str, action: str, done: str) -> None:
    detail = session.ask_skill("POST", name, action)
    if not session.show_json(detail):
        session.console.warn(detail["warnings"])
        session.console.say(f"{name} was {done}")


def _change_skills(session: Session, work: "Callable[[Api], Awaitable[T]]") -> T:
    """Do something that changes installed skills, and then write the lock of the project."""
    from apexbridge.surfaces.cli.project_lock import changing

    return session.call(changing(session.console, work), creates=False)


def _show_past(console: "Console", name: str, past: dict[str, Any]) -> None:
    """Print what past requests win and lose by a new description."""
    rows = [
        (label, ranks["requests"], _tally(ranks["first"]), _tally(ranks["firstFive"]))
        for label, ranks in ((name, past["own"]), ("other skills", past["others"]))
        if ranks["requests"]
    ]
    rows += [
        (f"  {skill['name']}", skill["requests"], f"{skill['first']} lost", f"{skill['firstFive']} lost")
        for skill in past["harmed"]
    ]
    console.table(("PAST REQUESTS OF", "COUNT", "FIRST", "AMONG FIVE"), rows)
    texts = [(rank["before"], rank["after"], rank["name"], rank["request"]) for rank in past["changed"]]
    console.table(("BEFORE", "AFTER", "SKILL", "REQUEST"), texts)
    if past["leftOut"]:
        console.say(f"{past['leftOut']} older requests were not compared")


def _tally(tally: dict[str, int]) -> str:
    return f"{tally['before']} → {tally['after']} ({tally['won']} won, {tally['lost']} lost)"


def _plugin_path(name: str, *segments: str) -> str:
    return "/".join(["/api/plugins", quote(name, safe=""), *segments])


def _removal_message(receipt: dict[str, Any], group: str) -> str:
    name, until = receipt["name"], receipt["restorableUntil"]
    message = f"{receipt['message']}: {name}"
    if until is None and not receipt["hidden"]:
        return message
    return f"{message}\nBring it back{f' until {until[:10]}' if until else ''} with: apex {group} restore {name}"


def _list_removed(session: Session) -> None:
    found = session.ask("GET", "/api/skills/removed")
    rows = [
        (one["name"], one["kind"], one["removedAt"][:10], (one["restorableUntil"] or "")[:10], one["id"], one["skills"])
        for one in found
    ]
    columns = ("NAME", "KIND", "REMOVED", "UNTIL", "ID", "SKILLS")
    session.table(found, columns, rows, empty="There is nothing to restore.")


async def _find_updates(api: "Api", console: "Console", name: str | None) -> list[dict[str, Any]]:
    """A report for each skill and plugin that was fetched, or for one of them; or its error."""
    origins = await api.ask("GET", "/api/skills/origins")
    if name is not None:
        origins = [item for item in origins if item["name"] == name] or [{"name": name, "kind": "skill"}]
    groups: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for item in origins:
        groups.setdefault(_group_of(item), []).append(item)
    if len(groups) == 1:
        with console.working("fetching the source"):
            return await _ask_updates(api, origins, {})
    with console.progress_bar("fetching") as progress:
        found = []
        for number, group in enumerate(groups.values(), start=1):
            progress(number - 1, len(groups))
            found += await _ask_updates(api, group, {})
        progress(len(groups), len(groups))
    return found


async def _apply_updates(api: "Api", console: "Console", changed: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Install the revisions that were shown, and no others."""
    groups: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for item in changed:
        groups.setdefault(_group_of(item), []).append(item)
    applied = []
    with console.working("updating"):
        for group in groups.values():
            applied += await _ask_updates(api, group, {"apply": True, "revision": group[0]["newRevision"]})
    names = {item["name"] for item in changed}
    return [entry for entry in applied if entry["name"] in names]


def _group_of(item: dict[str, Any]) -> tuple[str, str]:
    """Plugins of the same source are fetched together, everything else alone."""
    source = item.get("origin", item).get("source")
    return ("source", source) if item["kind"] == "plugin" and source else ("skill", item["name"])


async def _ask_updates(api: "Api", items: list[dict[str, Any]], body: dict[str, Any]) -> list[dict[str, Any]]:
    """The reports on a skill, a plugin or several plugins of the same source; or their errors."""
    first = items[0]
    try:
        if len(items) > 1:
            source = first.get("origin", first)["source"]
            return list(await api.ask("POST", "/api/skills/update", json={"source": source, **body}))
        if first["kind"] == "plugin":
            return [await api.ask("POST", _plugin_path(first["name"], "update"), json=body)]
        return [await api.ask_skill("POST", first["name"], "update", json=body)]
    except ApexBridgeError as error:
        return [{"name": item["name"], "kind": item["kind"], "error": error.to_json()} for item in items]


def _show_updates(session: Session, found: list[dict[str, Any]]) -> None:
    console = session.console
    if not found:
        console.say("No skill was installed from a repository or an address.")
    for entry in found:
        if entry.get("error"):
            console.say(f"{entry['name']}: {entry['error']['message']}", style="yellow")
        elif not entry["changed"]:
            console.say(f"{entry['name']} is up to date ({entry['newRevision'][:12]})")
        else:
            console.line(
                f"{entry['name']}  {entry['oldRevision'][:12]} → {entry['newRevision'][:12]}  {entry['source']}"
            )
            for change in entry["skills"]:
                _show_change(session, change)


def _show_change(session: Session, change: dict[str, Any]) -> None:
    line = session.console.line
    if change["change"] == "unchanged":
        return
    line(f"  {change['name']}: {change['change']}")
    for sign, key in (("+", "filesAdded"), ("~", "filesChanged"), ("-", "filesRemoved")):
        for path in change[key][:MAX_SHOWN_FILES]:
            line(f"    {sign} {path}")
        if (hidden := len(change[key]) - MAX_SHOWN_FILES) > 0:
            line(f"    {sign} {hidden} more; see --json")
    if change["newDescription"] is not None:
        line(f"    description: {change['newDescription']}")
    for label, key in (("asks for", "permissionsAdded"), ("no longer asks for", "permissionsRemoved")):
        if change[key]:
            line(f"    {label}: {', '.join(change[key])}")
    if change["edited"]:
        session.console.warn([f"{change['name']} was edited here; an update replaces the edits"])


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
