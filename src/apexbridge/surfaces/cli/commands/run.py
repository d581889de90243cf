"""`apex skills run`: streams a skill's output, saves its files with `--out`, and exits with 1 if the skill failed."""

import asyncio
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, TextIO

import typer

from apexbridge.errors import ApexBridgeError, InvalidInputError
from apexbridge.surfaces.cli.artifacts import SavedFile, save_files
from apexbridge.surfaces.cli.client import Api
from apexbridge.surfaces.cli.console import Console, plural
from apexbridge.surfaces.cli.session import Approval, InputOption, Session, SkillName, Yes, command, read_input
from apexbridge.surfaces.cli.terminal_text import printable

MAX_INPUT_FILES = 500
"""As many as a server accepts for one run. The constant is not imported: this command has to start quickly."""
SHOWN_FILES = 20
"""How many of the files that were not written are listed by name."""
CANCEL_SECONDS = 5.0
"""How long an interrupted command waits for the server to cancel the run."""
app = typer.Typer(rich_markup_mode=None)


class ModeChoice(StrEnum):
    SANDBOX = "sandbox"
    DIRECT = "direct"


@command(app, "run")
def run(
    session: Session,
    name: SkillName,
    args: Annotated[list[str] | None, typer.Argument(metavar="[-- ARG…]", help="The script's arguments.")] = None,
    input: InputOption = None,
    script: Annotated[str | None, typer.Option("--script", help="A bundled script, such as scripts/x.py.")] = None,
    file: Annotated[
        list[Path] | None, typer.Option("--file", help="A file or folder for the run; may be repeated.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="DIR", help="Save the files of the run in this folder.")
    ] = None,
    timeout: Annotated[int | None, typer.Option("--timeout", metavar="MS", help="End the run after this time.")] = None,
    workspace: Annotated[
        str | None,
        typer.Option("--workspace", metavar="ID", help="Run with the files of this workspace, and keep the changes."),
    ] = None,
    mode: Annotated[ModeChoice | None, typer.Option("--mode", help="Run it, or return its instructions.")] = None,
    yes: Yes = False,
    approval: Approval = None,
) -> None:
    """Run a skill, or one of its scripts, in the sandbox; a direct skill returns its instructions."""
    body: dict[str, Any] = {"input": read_input(input), "args": args or []}
    body |= {"script": script} if script else {}
    body |= {"timeout": timeout} if timeout else {}
    body |= {"mode": mode.value} if mode else {}
    body |= {"workspace": workspace} if workspace is not None else {}
    saved: list[SavedFile] = []

    async def work(api: Api, approval_id: str | None) -> dict[str, Any]:
        if "files" not in body:  # upload once: the approval is bound to these upload ids
            body["files"] = [name for path in file or [] for name in await _upload(api, path, session.console)]
        body["approval"] = approval_id
        answer = await (_execute(api, name, body) if session.json else _follow(api, name, body))
        if out is not None:
            saved.extend(await save_files(api, answer, out))
        return answer

    answer = session.call_approved(work, yes=yes, approval=approval, creates=False)
    if not session.show_json(answer):
        print_answer(session.console, answer, out, saved)
    unsaved = [file for file in saved if file.problem is not None]
    if unsaved:
        print_unsaved(session.console, unsaved, str(answer.get("id")), out)
    if answer.get("success") is False or unsaved:
        raise typer.Exit(1)


async def _upload(api: Api, path: Path, console: Console) -> list[str]:
    """Upload a file, or the files of a folder; returns their names for the call."""
    folder = await asyncio.to_thread(_folder_name, path)
    if folder is None:
        return [(await api.send_file("/api/uploads", path))["id"]]
    files, skipped = await asyncio.to_thread(_files_below, path)
    if not files:
        raise InvalidInputError(f"{path} has no files")
    if len(files) > MAX_INPUT_FILES:
        raise InvalidInputError(f"{path} has more than {MAX_INPUT_FILES} files, which is as many as a run can get")
    if skipped:
        console.warn([f"Not sent from {path}, only regular files are: {', '.join(map(str, skipped[:SHOWN_FILES]))}"])
    return [f"{(await api.send_file('/api/uploads', path / file))['id']}/{folder}/{file.as_posix()}" for file in files]


def _folder_name(path: Path) -> str | None:
    """The name of a folder, which `.` has too; None if the path is not a folder."""
    return (path.resolve().name or "folder") if path.is_dir() else None


def _files_below(folder: Path) -> tuple[list[Path], list[Path]]:
    """The regular files below a folder, and everything else except folders; links are not followed."""
    files, skipped = list[Path](), list[Path]()
    for current, folders, names in os.walk(folder):
        links = [name for name in folders if (Path(current) / name).is_symlink()]
        for name in (*names, *links):
            path = Path(current) / name
            is_regular = path.is_file() and not path.is_symlink()
            (files if is_regular else skipped).append(path.relative_to(folder))
        if len(files) > MAX_INPUT_FILES:
            break
    return sorted(files), sorted(skipped)


async def _execute(api: Api, name: str, body: dict[str, Any]) -> dict[str, Any]:
    answer: dict[str, Any] = await api.ask_skill("POST", name, "execute", json=body)
    return answer


async def _follow(api: Api, name: str, body: dict[str, Any]) -> dict[str, Any]:
    """Start the run and print its output as it arrives. Interrupting the command cancels the run."""
    started = await _execute(api, name, {**body, "wait": False})
    if "id" not in started:  # instructions, not a run
        return started
    path = f"/api/executions/{started['id']}"
    result: dict[str, Any] = {}
    try:
        async for kind, data in api.events(f"{path}/events"):
            if kind == "result":
                result = data
            elif kind in ("stdout", "stderr"):
                print_output(sys.stdout if kind == "stdout" else sys.stderr, data)
    except BaseException:
        await _cancel(api, path)
        raise
    return result


async def _cancel(api: Api, path: str) -> None:
    # An unresponsive server must not keep the command from ending.
    with suppress(ApexBridgeError, TimeoutError):
        async with asyncio.timeout(CANCEL_SECONDS):
            await api.ask("POST", f"{path}/cancel")


def print_output(stream: TextIO, text: str) -> None:
    """Write untrusted output: unchanged for a program, without unprintable characters on a terminal."""
    stream.write(printable(text) if stream.isatty() else text)
    stream.flush()


def print_answer(
    console: Console, answer: dict[str, Any], out: Path | None = None, saved: Sequence[SavedFile] = ()
) -> None:
    """Print everything about a run except its output: warnings, why it failed, its files and how to get them."""
    console.warn(answer["warnings"])
    if answer.get("mode") == "direct":
        console.line(answer["content"])
        return
    if not answer["success"]:
        code = "none" if answer["exitCode"] is None else answer["exitCode"]
        console.say(
            f"{answer['error']} ({answer['errorCode']}, exit code {code}, {answer['duration']} ms)", style="red"
        )
    if out is not None:
        files = [(file.path, file.size) for file in saved if file.problem is None]
        location = f"in {out}:"
    else:
        files = [(item["path"], item["size"]) for item in answer["files"]]
        location = f"stored; save them with: apex runs files {answer['id']} --out DIR"
    if files:
        console.say(f"{plural(len(files), 'file')} {location}")
    for path, size in files:
        console.say(f"  {path}  {size} bytes")


def print_unsaved(console: Console, unsaved: Sequence[SavedFile], id: str, out: Path | None) -> None:
    console.say(f"{plural(len(unsaved), 'file')} not written to {out}:", style="yellow")
    for file in unsaved[:SHOWN_FILES]:
        console.say(f"  {_on_one_line(file.path)}: {file.problem}")
    if len(unsaved) > SHOWN_FILES:
        console.say(f"  and {len(unsaved) - SHOWN_FILES} more")
    console.say(f"Fetch them with: GET /api/executions/{_on_one_line(id)}/files/PATH")
    if any(file.exists for file in unsaved):
        console.say(
            "Existing files are not replaced: remove them, or name another folder with --out. "
            f"Without another run: apex runs files {_on_one_line(id)} --out DIR"
        )


def _on_one_line(text: str) -> str:
    return " ".join(text.split())
