"""`apex workspaces …`: the files of conversations and of runs that share a workspace."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import quote

import typer

from apexbridge.errors import RequestError
from apexbridge.surfaces.cli.artifacts import SavedFile, download_files
from apexbridge.surfaces.cli.client import Api
from apexbridge.surfaces.cli.completion import workspace_ids
from apexbridge.surfaces.cli.console import Console, plural
from apexbridge.surfaces.cli.session import Session, command

app = typer.Typer(invoke_without_command=True, rich_markup_mode=None)
WorkspaceId = Annotated[
    str,
    typer.Argument(
        metavar="ID", help="The workspace's id, as in `apex workspaces list`.", autocompletion=workspace_ids
    ),
]


@app.callback()
def workspaces(context: typer.Context) -> None:
    """Files of conversations, and of runs that share a workspace. Without a command, list them."""
    if context.invoked_subcommand is None:
        list_workspaces(Session())


@command(app, "list", "ls")
def list_workspaces(session: Session) -> None:
    """List workspaces, the last used first."""
    answer = session.ask("GET", "/api/workspaces")
    if session.show_json(answer):
        return
    rows = [
        (one["id"], one["files"], one["size"], _moment(one["usedAt"]), one["expiresAt"][:10])
        for one in answer["workspaces"]
    ]
    empty = "No workspace. A chat or a run with --workspace creates one."
    session.console.table(("ID", "FILES", "BYTES", "USED", "EXPIRES"), rows, empty=empty)


@command(app, "show")
def show_workspace(session: Session, id: WorkspaceId) -> None:
    """Show the files of a workspace."""
    answer = session.ask("GET", _path(id))
    rows = [(entry["path"], entry["size"], _moment(entry["modified"])) for entry in _files(answer)]
    session.table(answer, ("PATH", "BYTES", "MODIFIED"), rows, empty=f"The workspace {id} has no files.")


@command(app, "files")
def save_workspace(
    session: Session,
    id: WorkspaceId,
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="Save the files in this folder.")],
) -> None:
    """Save the files of a workspace in a folder. Existing files are not replaced."""
    saved: list[SavedFile] = []

    async def work(api: Api) -> None:
        found = [entry["path"] for entry in _files(await api.ask("GET", _path(id)))]
        saved.extend(await download_files(api, f"{_path(id)}/files/", found, out))

    session.call(work, creates=False)
    written = [file.path for file in saved if file.problem is None]
    if not session.show_json({"id": id, "saved": written}):
        session.console.say(f"{plural(len(written), 'file')} saved in {out}")
    if print_problems(session.console, saved):
        raise typer.Exit(1)


@command(app, "delete", "rm")
def delete_workspace(session: Session, id: WorkspaceId) -> None:
    """Delete a workspace with its files."""
    answer = session.ask("DELETE", _path(id))
    if not session.show_json(answer):
        session.console.say(f"Deleted the workspace {id}.")


def print_problems(console: Console, saved: Sequence[SavedFile]) -> list[str]:
    """Name the files that were not written, and why; returns their paths."""
    unsaved = [file for file in saved if file.problem is not None]
    for file in unsaved:
        console.say(f"{file.path} was not written: {file.problem}", style="yellow")
    return [file.path for file in unsaved]


def _files(workspace: dict[str, Any]) -> list[dict[str, Any]]:
    return [entry for entry in workspace["entries"] if entry["type"] == "file"]


def _moment(text: str) -> str:
    return text[:19].replace("T", " ")


def _path(id: str) -> str:
    if id in ("", ".", "..") or "/" in id:  # these would lead to another route
        raise RequestError(f"No workspace {id}", code="WORKSPACE_NOT_FOUND")
    return f"/api/workspaces/{quote(id, safe='')}"
