"""`apex tools …` and `apex approvals …`."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import quote

import typer

from apexbridge.surfaces.cli.input import InputOption, read_input
from apexbridge.surfaces.cli.options import DataDir, Json, Url, call, show
from apexbridge.surfaces.cli.prompt import Approval, Yes, call_confirmed

if TYPE_CHECKING:
    from apexbridge.surfaces.cli.client import Api

app = typer.Typer(help="Built-in tools, skills as tools, and your own.", no_args_is_help=True, rich_markup_mode=None)
approvals = typer.Typer(help="Confirmations that wait.", no_args_is_help=True, rich_markup_mode=None)
ToolId = Annotated[str, typer.Argument(metavar="ID", help="Such as calculate or skill:git-commit.")]
ApprovalId = Annotated[str, typer.Argument(metavar="ID", help="The confirmation's id.")]
LONG_CHARACTERS = 40


@app.command("list")
@app.command("ls", hidden=True)
def list_tools(
    category: Annotated[str | None, typer.Option("--category", help="Only this one: builtin, skill, …")] = None,
    tag: Annotated[str | None, typer.Option("--tag", help="Only with this tag.")] = None,
    query: Annotated[str | None, typer.Option("--query", help="Words that must be in it.")] = None,
    json: Json = False,
    data_dir: DataDir = None,
    url: Url = None,
) -> None:
    """List the tools."""
    given = {"category": category, "tag": tag, "query": query}
    params = {key: value for key, value in given.items() if value is not None}
    answer = call(lambda api: api.ask("GET", "/api/tools", params=params), data_dir=data_dir, url=url)

    def people() -> None:
        from apexbridge.surfaces.cli.console import table

        rows = [(tool["id"], tool["category"], _state(tool), tool["description"]) for tool in answer["tools"]]
        table(("ID", "CATEGORY", "STATE", "DESCRIPTION"), rows, empty="No tool fits.", one_line=True)

    show(answer, json=json, people=people)


@app.command("show")
def show_tool(id: ToolId, json: Json = False, data_dir: DataDir = None, url: Url = None) -> None:
    """Show a tool and what its input looks like."""
    tool = call(lambda api: api.ask("GET", _path(id)), data_dir=data_dir, url=url)

    def people() -> None:
        import json as jsonlib

        from apexbridge.surfaces.cli.console import facts, line

        facts({key: value for key, value in tool.items() if key != "parameters"})
        line(jsonlib.dumps(tool["parameters"], ensure_ascii=False, indent=2))

    show(tool, json=json, people=people)


@app.command("run")
def run_tool(
    id: ToolId,
    input: InputOption = None,
    yes: Yes = False,
    approval: Approval = None,
    json: Json = False,
    data_dir: DataDir = None,
    url: Url = None,
) -> None:
    """Call a tool; its result is printed."""
    body = {"input": read_input(input)}

    async def work(api: "Api", given: str | None) -> Any:
        return await api.ask("POST", _path(id, "execute"), json={**body, "approval": given})

    answer = call_confirmed(work, yes=yes, ask=not json, approval=approval, data_dir=data_dir, url=url)
    show(answer, json=json, people=lambda: _tell(answer))
    if isinstance(answer, dict) and answer.get("success") is False:
        raise typer.Exit(1)


@approvals.command("list")
@approvals.command("ls", hidden=True)
def list_approvals(json: Json = False, data_dir: DataDir = None, url: Url = None) -> None:
    """List what waits for a confirmation."""
    waiting = call(lambda api: api.ask("GET", "/api/approvals"), data_dir=data_dir, url=url)

    def people() -> None:
        from apexbridge.surfaces.cli.console import table

        rows = [(item["id"], item["tool"], item["confirm"], item["summary"]) for item in waiting]
        table(("ID", "TOOL", "QUESTION", "CALL"), rows, empty="Nothing waits for a confirmation.")

    show(waiting, json=json, people=people)


@approvals.command("show")
def show_approval(id: ApprovalId, json: Json = False, data_dir: DataDir = None, url: Url = None) -> None:
    """Show a confirmation with the whole call."""
    found = call(lambda api: api.ask("GET", _approval_path(id)), data_dir=data_dir, url=url)

    def people() -> None:
        from apexbridge.surfaces.cli.console import facts, line

        facts({key: found[key] for key in ("id", "tool", "confirm", "caller", "state", "digest")})
        line(found["call"] or "The call is not kept any more.")

    show(found, json=json, people=people)


@approvals.command("approve")
def approve(id: ApprovalId, json: Json = False, data_dir: DataDir = None, url: Url = None) -> None:
    """Let one call through."""
    _decide(id, True, json=json, data_dir=data_dir, url=url)


@approvals.command("deny")
def deny(id: ApprovalId, json: Json = False, data_dir: DataDir = None, url: Url = None) -> None:
    """Refuse it."""
    _decide(id, False, json=json, data_dir=data_dir, url=url)


def _decide(id: str, approved: bool, *, json: bool, data_dir: str | None, url: str | None) -> None:
    answer = call(
        lambda api: api.ask("POST", _approval_path(id), json={"approve": approved}), data_dir=data_dir, url=url
    )

    def people() -> None:
        from apexbridge.surfaces.cli.console import say

        say(f"{answer['tool']} is {answer['state']}: {answer['summary']}")

    show(answer, json=json, people=people)


def _approval_path(id: str) -> str:
    """The path of an approval's route.

    Raises:
        RequestError: the id is empty, or would lead to another route.
    """
    from apexbridge.errors import RequestError

    if id in ("", ".", ".."):
        raise RequestError(f"There is no approval {id}", code="APPROVAL_NOT_FOUND")
    return f"/api/approvals/{quote(id, safe='')}"


def _path(id: str, *rest: str) -> str:
    """The path of a tool's route.

    Raises:
        ToolNotFoundError: the id is empty, or is the name of another route.
    """
    from apexbridge.errors import ToolNotFoundError

    if id in ("", "stats"):
        raise ToolNotFoundError(f"BuiltIn tool not found: {id}", tool=id)
    return "/".join(["/api/tools", quote(id, safe=""), *rest])


def _state(tool: Mapping[str, Any]) -> str:
    if not tool["enabled"]:
        return "off"
    return "asks" if tool["dangerous"] else "on"


def _tell(answer: Any) -> None:
    """Print a result in readable form: its text if it has one, else its lists as tables, else its fields."""
    import json as jsonlib

    from apexbridge.surfaces.cli.console import facts, line, say

    if not isinstance(answer, dict):
        line(answer if isinstance(answer, str) else jsonlib.dumps(answer, ensure_ascii=False))
        return
    shown = {key: value for key, value in answer.items() if key != "success"}
    if shown.get("exact") == str(shown.get("result")):
        del shown["exact"]
    for key in ("content", "stdout", "output"):
        if isinstance(shown.get(key), str) and shown[key]:
            line(shown[key].rstrip("\n"))
            if "errorCode" not in shown:
                return
            break
    if "errorCode" in shown:  # a failed run of a skill; --json shows all fields
        say(
            f"{shown['error']} ({shown['errorCode']}, exit code {shown['exitCode']}, {shown['duration']} ms)",
            style="red",
        )
        return
    listed = {key: value for key, value in shown.items() if _is_listing(key, value)}
    for key, value in listed.items():
        _tell_list(key, value)
    rest = {key: value for key, value in shown.items() if key not in listed}
    if len(rest) == 1 and not listed:
        (value,) = rest.values()
        line(value if isinstance(value, str) else jsonlib.dumps(value, ensure_ascii=False, indent=2))
    elif not listed:
        facts(rest)


def _is_listing(key: str, value: Any) -> bool:
    is_of_objects = isinstance(value, list) and all(isinstance(item, dict) for item in value)
    return is_of_objects and (bool(value) or key in ("results", "files"))


def _tell_list(name: str, items: list[dict[str, Any]]) -> None:
    """Print a list of objects as a table, without nested values. Long columns come last."""
    from apexbridge.surfaces.cli.console import table

    keys = [key for key, value in (items[0] if items else {}).items() if not isinstance(value, dict | list)]
    keys.sort(key=lambda key: max(len(str(item.get(key))) for item in items) > LONG_CHARACTERS)
    rows = [[item.get(key) for key in keys] for item in items]
    table([key.upper() for key in keys], rows, empty=f"No {name}.", one_line=True)
