"""`apex runs …`: the history of runs, their output and their files."""

import sys
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import quote

import typer

from apexbridge.errors import RequestError
from apexbridge.surfaces.cli.artifacts import SavedFile, save_files
from apexbridge.surfaces.cli.client import Api
from apexbridge.surfaces.cli.commands.run import print_output, print_unsaved
from apexbridge.surfaces.cli.completion import run_ids, skill_names
from apexbridge.surfaces.cli.console import plural
from apexbridge.surfaces.cli.session import Limit, Page, Session, command

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None)
RunId = Annotated[
    str, typer.Argument(metavar="ID", help="The run's id, as in `apex runs list`.", autocompletion=run_ids)
]
_FACTS = ("id", "skill", "script", "state", "status", "caller", "createdAt", "startedAt", "endedAt")
_RESULT_FACTS = ("exitCode", "error", "errorCode", "truncated", "peakMemory", "warnings")


@command(app, "list", "ls")
def list_runs(
    session: Session,
    skill: Annotated[
        str | None, typer.Option("--skill", help="Only runs of this skill.", autocompletion=skill_names)
    ] = None,
    state: Annotated[str | None, typer.Option("--state", help="pending, running, completed or error.")] = None,
    status: Annotated[str | None, typer.Option("--status", help="success, error or timeout.")] = None,
    page: Page = None,
    limit: Limit = None,
) -> None:
    """List runs, the newest first."""
    filters = {"skill": skill, "state": state, "status": status}
    params = {key: value for key, value in filters.items() if value is not None}
    answer = session.ask_page("/api/executions", "executions", params, page=page, limit=limit)
    if session.show_json(answer):
        return
    rows = [
        (
            run["id"],
            run["createdAt"][:19].replace("T", " "),
            _took(run),
            run["status"] or run["state"],
            run["skill"] or "run-code",
        )
        for run in answer["executions"]
    ]
    empty = "No run fits." if params or (page or 1) > 1 else "No run is recorded. Start one with: apex skills run NAME"
    session.console.table(("ID", "CREATED", "TOOK", "STATUS", "SKILL"), rows, empty=empty)
    session.console.say_more(len(rows), answer)


@command(app, "show")
def show_run(session: Session, id: RunId) -> None:
    """Show one run: its state, its result and its files."""
    run = session.ask("GET", _path(id))
    if session.show_json(run):
        return
    result = run["result"] or {}
    facts = {key: run[key] for key in _FACTS} | {"took": _took(run)}
    facts |= {key: result.get(key) for key in _RESULT_FACTS}
    facts["files"] = [f"{file['path']} ({file['size']} bytes)" for file in result.get("files", [])]
    session.console.facts(facts)
    if result.get("stdout") or result.get("stderr"):
        session.console.say(f"Output: apex runs logs {id}")


@command(app, "logs")
def show_logs(
    session: Session,
    id: RunId,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Wait for further output until the run ends.")] = False,
) -> None:
    """Print the output of a run: its stdout on stdout, its stderr on stderr."""
    texts: dict[str, list[str]] = {"stdout": [], "stderr": []}
    state = ""

    async def work(api: Api) -> None:
        nonlocal state
        async for kind, data in api.events(f"{_path(id)}/events?follow={'true' if follow else 'false'}"):
            if kind == "state":
                state = data
            elif kind in texts and session.json:
                texts[kind].append(data)
            elif kind in texts:
                print_output(sys.stdout if kind == "stdout" else sys.stderr, data)

    session.call(work, creates=False)
    if not session.show_json({"id": id, "state": state, **{name: "".join(each) for name, each in texts.items()}}):
        sys.stdout.flush()
        if state in ("pending", "running"):
            session.console.say(f"The run is {state}. Follow it with: apex runs logs {id} --follow")


@command(app, "files")
def list_files(
    session: Session,
    id: RunId,
    out: Annotated[Path | None, typer.Option("--out", metavar="DIR", help="Save the files in this folder.")] = None,
) -> None:
    """List the files of a run, or save them in a folder."""
    saved: list[SavedFile] = []

    async def work(api: Api) -> list[dict[str, Any]]:
        result = (await api.ask("GET", _path(id)))["result"] or {}
        if out is not None:
            saved.extend(await save_files(api, result, out))
        return list(result.get("files", []))

    files = session.call(work, creates=False)
    data = {"id": id, "files": files}
    if out is not None:
        data["saved"] = [file.path for file in saved if file.problem is None]
    rows = [(file["path"], file["size"]) for file in files]
    session.table(data, ("PATH", "BYTES"), rows, empty=f"The run {id} left no files.")
    unsaved = [file for file in saved if file.problem is not None]
    if out is not None and len(saved) > len(unsaved) and not session.json:
        session.console.say(f"{plural(len(saved) - len(unsaved), 'file')} saved in {out}")
    if unsaved:
        print_unsaved(session.console, unsaved, id, out)
        raise typer.Exit(1)


def _path(id: str) -> str:
    if id in ("", ".", "..") or "/" in id:  # these would lead to another route
        raise RequestError(f"No execution {id}", code="EXECUTION_NOT_FOUND")
    return f"/api/executions/{quote(id, safe='')}"


def _took(run: dict[str, Any]) -> str:
    if run["startedAt"] is None or run["endedAt"] is None:
        return ""
    begun, ended = (datetime.fromisoformat(run[key]) for key in ("startedAt", "endedAt"))
    return f"{round((ended - begun).total_seconds() * 1000)} ms"
