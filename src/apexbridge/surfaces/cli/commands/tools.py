"""`apex tools …` and `apex approvals …`."""

import json
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import quote

import typer

from apexbridge.errors import RequestError, ToolNotFoundError
from apexbridge.surfaces.cli.completion import tool_ids
from apexbridge.surfaces.cli.session import Approval, InputOption, Session, Yes, command, read_input

if TYPE_CHECKING:
    from apexbridge.surfaces.cli.client import Api
    from apexbridge.surfaces.cli.console import Console

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None)
approvals = typer.Typer(no_args_is_help=True, rich_markup_mode=None)
ToolId = Annotated[
    str, typer.Argument(metavar="ID", help="Such as calculate or skill:git-commit.", autocompletion=tool_ids)
]
ApprovalId = Annotated[str, typer.Argument(metavar="ID", help="The approval's id.")]
LONG_CHARACTERS = 40


@command(app, "list", "ls")
def list_tools(
    session: Session,
    category: Annotated[str | None, typer.Option("--category", help="Only this one: builtin, skill, …")] = None,
    tag: Annotated[str | None, typer.Option("--tag", help="Only with this tag.")] = None,
    query: Annotated[str | None, typer.Option("--query", help="Words that must occur in it.")] = None,
) -> None:
    """List the tools."""
    filters = {"category": category, "tag": tag, "query": query}
    params = {key: value for key, value in filters.items() if value is not None}
    answer = session.ask("GET", "/api/tools", params=params)
    if not session.show_json(answer):
        rows = [(tool["id"], tool["category"], _state(tool), tool["description"]) for tool in answer["tools"]]
        columns = ("ID", "CATEGORY", "STATE", "DESCRIPTION")
        session.console.table(columns, rows, empty="No tool fits.", one_line=True)


@command(app, "show")
def show_tool(session: Session, id: ToolId) -> None:
    """Show a tool and the schema of its input."""
    tool = session.ask("GET", _tool_path(id))
    if not session.show_json(tool):
        session.console.facts({key: value for key, value in tool.items() if key != "parameters"})
        session.console.line(json.dumps(tool["parameters"], ensure_ascii=False, indent=2))


@command(app, "run")
def run_tool(
    session: Session,
    id: ToolId,
    input: InputOption = None,
    workspace: Annotated[
        str | None,
        typer.Option("--workspace", metavar="ID", help="Use the files of this workspace, and keep the changes."),
    ] = None,
    yes: Yes = False,
    approval: Approval = None,
) -> None:
    """Call a tool; its result is printed."""
    body: dict[str, Any] = {"input": read_input(input)}
    body |= {"workspace": workspace} if workspace is not None else {}

    async def work(api: "Api", approval_id: str | None) -> Any:
        return await api.ask("POST", _tool_path(id, "execute"), json={**body, "approval": approval_id})

    answer = session.call_approved(work, yes=yes, approval=approval)
    if not session.show_json(answer):
        (_print_run if _is_run(answer) else _print_result)(session.console, answer)
    if isinstance(answer, dict) and answer.get("success") is False:
        raise typer.Exit(1)


@command(approvals, "list", "ls")
def list_approvals(session: Session) -> None:
    """List the calls that need approval."""
    pending = session.ask("GET", "/api/approvals")
    rows = [(item["id"], item["tool"], item["confirm"], item["summary"]) for item in pending]
    session.table(pending, ("ID", "TOOL", "QUESTION", "CALL"), rows, empty="Nothing needs approval.")


@command(approvals, "show")
def show_approval(session: Session, id: ApprovalId) -> None:
    """Show an approval with the whole call."""
    found = session.ask("GET", _approval_path(id))
    if not session.show_json(found):
        session.console.facts({key: found[key] for key in ("id", "tool", "confirm", "caller", "state", "digest")})
        session.console.line(found["call"] or "The call is no longer stored.")


@command(approvals, "approve")
def approve(session: Session, id: ApprovalId) -> None:
    """Approve one call."""
    _decide(session, id, approve=True)


@command(approvals, "deny")
def deny(session: Session, id: ApprovalId) -> None:
    """Deny one call."""
    _decide(session, id, approve=False)


def _decide(session: Session, id: str, *, approve: bool) -> None:
    answer = session.ask("POST", _approval_path(id), creates=False, json={"approve": approve})
    session.report(answer, f"{answer['tool']} is {answer['state']}: {answer['summary']}")


def _approval_path(id: str) -> str:
    if id in ("", ".", ".."):  # these would lead to another route
        raise RequestError(f"There is no approval {id}", code="APPROVAL_NOT_FOUND")
    return f"/api/approvals/{quote(id, safe='')}"


def _tool_path(id: str, *segments: str) -> str:
    if id in ("", "stats"):  # these would lead to another route
        raise ToolNotFoundError(f"BuiltIn tool not found: {id}", tool=id)
    return "/".join(["/api/tools", quote(id, safe=""), *segments])


def _state(tool: Mapping[str, Any]) -> str:
    if not tool["enabled"]:
        return "off"
    return "asks" if tool["dangerous"] else "on"


def _is_run(answer: Any) -> bool:
    """Whether a result is that of a run: of a skill, or of code."""
    return isinstance(answer, dict) and "exitCode" in answer


def _print_run(console: "Console", answer: dict[str, Any]) -> None:
    from apexbridge.surfaces.cli.commands.run import print_answer, print_output

    print_output(sys.stdout, answer["stdout"])
    print_output(sys.stderr, answer["stderr"])
    print_answer(console, answer)


def _print_result(console: "Console", answer: Any) -> None:
    """Print a result in readable form: its text if it has one, else its lists as tables, else its fields."""
    if not isinstance(answer, dict):
        console.line(answer if isinstance(answer, str) else json.dumps(answer, ensure_ascii=False))
        return
    fields = {key: value for key, value in answer.items() if key != "success"}
    if fields.get("exact") == str(fields.get("result")):
        del fields["exact"]
    texts = [fields[key] for key in ("content", "output") if isinstance(fields.get(key), str)]
    if text := next(filter(None, texts), ""):
        console.line(text.rstrip("\n"))
        return
    lists = {key: value for key, value in fields.items() if _is_list_of_objects(key, value)}
    for key, value in lists.items():
        _print_list(console, key, value)
    if not lists and len(fields) == 1:
        (value,) = fields.values()
        console.line(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, indent=2))
    elif not lists:
        console.facts(fields)


def _is_list_of_objects(key: str, value: Any) -> bool:
    is_of_objects = isinstance(value, list) and all(isinstance(item, dict) for item in value)
    return is_of_objects and (bool(value) or key in ("results", "files"))


def _print_list(console: "Console", name: str, items: list[dict[str, Any]]) -> None:
    """Print a list of objects as a table, without nested values. Long columns come last."""
    keys = [key for key, value in (items[0] if items else {}).items() if not isinstance(value, dict | list)]
    keys.sort(key=lambda key: max(len(str(item.get(key))) for item in items) > LONG_CHARACTERS)
    rows = [[item.get(key) for key in keys] for item in items]
    console.table([key.upper() for key in keys], rows, empty=f"No {name}.", one_line=True)
