"""`apex skills search|forget|set-description`."""

from typing import Annotated, Any

import typer

from apexbridge.surfaces.cli.options import DataDir, Json, SkillName, Url, call, show


def add_commands(app: typer.Typer) -> None:
    """Add these commands to `apex skills`."""
    app.command("search")(search)
    app.command("find", hidden=True)(search)
    app.command("forget")(forget)
    app.command("set-description")(set_description)


def search(
    query: Annotated[str, typer.Argument(metavar="QUERY", help="What you want done, in your own words.")],
    limit: Annotated[int | None, typer.Option(min=1, max=100, help="At most this many.", show_default="5")] = None,
    tag: Annotated[list[str] | None, typer.Option(help="A tag; more than one means any of them.")] = None,
    threshold: Annotated[
        float | None, typer.Option(min=0, max=1, help="Nothing below this confidence; 0 shows everything.")
    ] = None,
    json: Json = False,
    data_dir: DataDir = None,
    url: Url = None,
) -> None:
    """Find skills by what they do, in English or Chinese."""
    wanted = {"query": query, "limit": limit, "tags": tag or [], "threshold": threshold}
    given = {key: value for key, value in wanted.items() if value is not None}
    found = call(lambda api: api.ask("POST", "/api/skills/search", json=given), data_dir=data_dir, url=url)

    def people() -> None:
        from apexbridge.surfaces.cli.console import table, warn

        warn(found["warnings"])
        if found.get("degraded"):
            warn(["meaning could not be compared; these are matches of words"])
        rows = [
            (hit["name"], f"{hit['score']:.2f}", _reasons(hit["why"]), hit["description"]) for hit in found["results"]
        ]
        nothing = "Nothing fits. Try other words, or --threshold 0 to see what comes nearest."
        table(("NAME", "SCORE", "WHY", "DESCRIPTION"), rows, empty=nothing, one_line=True)

    show(found, json=json, people=people)


def forget(
    name: Annotated[str | None, typer.Argument(metavar="NAME", help="The skill's name.")] = None,
    everything: Annotated[bool, typer.Option("--all", help="Forget about all skills.")] = False,
    json: Json = False,
    data_dir: DataDir = None,
    url: Url = None,
) -> None:
    """Forget what past requests taught search about a skill."""
    if (name is None) != everything:
        raise typer.BadParameter("name a skill, or say --all")
    done = call(lambda api: api.ask("POST", "/api/skills/forget", json={"name": name}), data_dir=data_dir, url=url)

    def people() -> None:
        from apexbridge.surfaces.cli.console import say

        say(f"past requests forgotten: {done['forgotten']}")

    show(done, json=json, people=people)


def set_description(
    name: SkillName,
    text: Annotated[str, typer.Argument(metavar="TEXT", help="What it does and when to use it.")],
    request: Annotated[
        list[str] | None, typer.Option(help="Show the skill's place for this request before and after; repeatable.")
    ] = None,
    json: Json = False,
    data_dir: DataDir = None,
    url: Url = None,
) -> None:
    """Change a skill's description; every other byte of SKILL.md stays."""

    async def work(api: Any) -> Any:
        from apexbridge.surfaces.cli.client import skill_path

        params = {"request": request} if request else None
        return await api.ask("PUT", skill_path(name, "description"), json={"description": text}, params=params)

    receipt = call(work, data_dir=data_dir, url=url)

    def people() -> None:
        from apexbridge.surfaces.cli.console import say, table

        say(f"{receipt['message']}: {receipt['name']}")
        rows = [(change["before"], change["after"], change["request"]) for change in receipt.get("ranks", [])]
        table(("BEFORE", "AFTER", "REQUEST"), rows, empty="")

    show(receipt, json=json, people=people)


def _reasons(why: dict[str, Any]) -> str:
    """Why a skill was found, in a few words."""
    told = []
    if why["vectorRank"] is not None:
        told.append(f"meaning #{why['vectorRank']}")
    if why["keywordRank"] is not None:
        told.append(f"words #{why['keywordRank']} ({', '.join(why['matchedWords'][:4])})")
    if why["pastUse"] > 0:
        told.append("asked for before")
    return ", ".join(told)
