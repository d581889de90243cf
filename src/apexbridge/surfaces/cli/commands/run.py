"""`apex skills run`: streams a skill's output, saves its files with `--out`, and exits with 1 if the skill failed."""

import asyncio
import sys
from collections.abc import Sequence
from contextlib import suppress
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, TextIO

import typer

from apexbridge._tasks import run_to_completion
from apexbridge.errors import ApexBridgeError
from apexbridge.surfaces.cli.artifacts import SavedFile, save_files
from apexbridge.surfaces.cli.client import Api
from apexbridge.surfaces.cli.console import Console, plural
from apexbridge.surfaces.cli.session import Approval, InputOption, Session, SkillName, Yes, command, read_input
from apexbridge.surfaces.cli.terminal_text import printable

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
    file: Annotated[list[Path] | None, typer.Option("--file", help="A file for the run; may be repeated.")] = None,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="DIR", help="Save the files of the run in this folder.")
    ] = None,
    timeout: Annotated[int | None, typer.Option("--timeout", metavar="MS", help="End the run after this time.")] = None,
    mode: Annotated[ModeChoice | None, typer.Option("--mode", help="Run it, or return its instructions.")] = None,
    yes: Yes = False,
    approval: Approval = None,
) -> None:
    """Run a skill, or one of its scripts, in the sandbox; a direct skill returns its instructions."""
    body: dict[str, Any] = {"input": read_input(input), "args": args or []}
    body |= {"script": script} if script else {}
    body |= {"timeout": timeout} if timeout else {}
    body |= {"mode": mode.value} if mode else {}
    saved: list[SavedFile] = []

    async def work(api: Api, approval_id: str | None) -> dict[str, Any]:
        if "files" not in body:  # upload once: the approval is bound to these upload ids
            body["files"] = [(await api.send_file("/api/uploads", path))["id"] for path in file or []]
        body["approval"] = approval_id
        answer = await (_execute(api, name, body) if session.json else _follow(api, name, body))
        if out is not None:
            saved.extend(await save_files(api, answer, out))
        return answer

    answer = session.call_approved(work, yes=yes, approval=approval)
    if not session.show_json(answer):
        _print_answer(session.console, answer, out, saved)
    unsaved = [file for file in saved if file.problem is not None]
    if unsaved:
        _print_unsaved(session.console, unsaved, answer, out)
    if answer.get("success") is False or unsaved:
        raise typer.Exit(1)


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
                _print_output(sys.stdout if kind == "stdout" else sys.stderr, data)
    except BaseException:
        await run_to_completion(_cancel(api, path))
        raise
    return result


async def _cancel(api: Api, path: str) -> None:
    # An unresponsive server must not keep the command from ending.
    with suppress(ApexBridgeError, TimeoutError):
        async with asyncio.timeout(CANCEL_SECONDS):
            await api.ask("POST", f"{path}/cancel")


def _print_output(stream: TextIO, text: str) -> None:
    """Write untrusted output: unchanged for a program, without unprintable characters on a terminal."""
    stream.write(printable(text) if stream.isatty() else text)
    stream.flush()


def _print_answer(console: Console, answer: dict[str, Any], out: Path | None, saved: Sequence[SavedFile]) -> None:
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
        location = f"in {out}"
    else:
        files = [(item["path"], item["size"]) for item in answer["files"]]
        location = f"saved as runs/{answer['id']}/…; fetch them with --out DIR next time"
    if files:
        console.say(f"{plural(len(files), 'file')} {location}:")
    for path, size in files:
        console.say(f"  {path}  {size} bytes")


def _print_unsaved(console: Console, unsaved: Sequence[SavedFile], answer: dict[str, Any], out: Path | None) -> None:
    console.say(f"{plural(len(unsaved), 'file')} not written to {out}:", style="yellow")
    for file in unsaved[:SHOWN_FILES]:
        console.say(f"  {_on_one_line(file.path)}: {file.problem}")
    if len(unsaved) > SHOWN_FILES:
        console.say(f"  and {len(unsaved) - SHOWN_FILES} more")
    console.say(f"Fetch them with: GET /api/executions/{_on_one_line(str(answer.get('id')))}/files/PATH")
    if any(file.exists for file in unsaved):
        console.say("Existing files are not replaced: remove them, or name another folder with --out, and run again.")


def _on_one_line(text: str) -> str:
    return " ".join(text.split())
