"""`apex skills run`: streams a skill's output, saves its files with `--out`, and exits with 1 if the skill failed."""

import sys
from collections.abc import Sequence
from contextlib import suppress
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TextIO

import typer

from apexbridge.surfaces.cli.input import InputOption, read_input
from apexbridge.surfaces.cli.options import DataDir, Json, SkillName, Url, show
from apexbridge.surfaces.cli.prompt import Approval, Yes, call_confirmed

if TYPE_CHECKING:
    from apexbridge.surfaces.cli.artifacts import SavedFile
    from apexbridge.surfaces.cli.client import Api

SHOWN_FILES = 20
"""How many of the files that were not written are listed by name."""
CANCEL_SECONDS = 5.0
"""How long an interrupted command waits for the server to cancel the run."""


class ModeChoice(StrEnum):
    """Whether a skill runs or returns its instructions."""

    SANDBOX = "sandbox"
    DIRECT = "direct"


def add_commands(app: typer.Typer) -> None:
    """Add these commands to `apex skills`."""
    app.command("run")(run)


def run(
    name: SkillName,
    args: Annotated[list[str] | None, typer.Argument(metavar="[-- ARG…]", help="The script's arguments.")] = None,
    input: InputOption = None,
    script: Annotated[str | None, typer.Option("--script", help="A bundled script, such as scripts/x.py.")] = None,
    file: Annotated[list[Path] | None, typer.Option("--file", help="A file for the run; may be repeated.")] = None,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="DIR", help="Put the files that the run leaves here.")
    ] = None,
    timeout: Annotated[int | None, typer.Option("--timeout", metavar="MS", help="End the run after this time.")] = None,
    mode: Annotated[ModeChoice | None, typer.Option("--mode", help="Run it, or return its instructions.")] = None,
    yes: Yes = False,
    approval: Approval = None,
    json: Json = False,
    data_dir: DataDir = None,
    url: Url = None,
) -> None:
    """Run a skill, or one of its scripts, in the sandbox; a direct skill returns its instructions."""
    body: dict[str, Any] = {"input": read_input(input)}
    body |= {"args": args or []} | ({"script": script} if script else {}) | ({"timeout": timeout} if timeout else {})
    body |= {"mode": mode.value} if mode else {}

    saved: list[SavedFile] = []

    async def work(api: "Api", given: str | None) -> Any:
        if "files" not in body:  # upload once: the approval is bound to these upload ids
            body["files"] = [(await api.send_file("/api/uploads", path))["id"] for path in file or []]
        wanted = {**body, "approval": given}
        answer = await (_wait(api, name, wanted) if json else _follow(api, name, wanted))
        if out is not None:
            from apexbridge.surfaces.cli.artifacts import save_files

            saved.extend(await save_files(api, answer, out))
        return answer

    answer = call_confirmed(work, yes=yes, ask=not json, approval=approval, data_dir=data_dir, url=url)
    show(answer, json=json, people=lambda: _tell(answer, out, saved))
    is_saved = _tell_unsaved(saved, answer, out)
    if answer.get("success") is False or not is_saved:
        raise typer.Exit(1)


async def _wait(api: "Api", name: str, body: dict[str, Any]) -> dict[str, Any]:
    from apexbridge.surfaces.cli.client import skill_path

    answer: dict[str, Any] = await api.ask("POST", skill_path(name, "execute"), json=body)
    return answer


async def _follow(api: "Api", name: str, body: dict[str, Any]) -> dict[str, Any]:
    """Start the run and print its output as it arrives. Interrupting the command cancels the run."""
    import anyio

    from apexbridge.errors import ApexBridgeError

    started = await _wait(api, name, {**body, "wait": False})
    if "id" not in started:  # instructions, not a run
        return started
    path = f"/api/executions/{started['id']}"
    result: dict[str, Any] = {}
    try:
        async for kind, data in api.events(f"{path}/events"):
            if kind == "result":
                result = data
            elif kind in ("stdout", "stderr"):
                _print(sys.stdout if kind == "stdout" else sys.stderr, data)
    except BaseException:
        # An unresponsive server must not keep the command from ending.
        with anyio.move_on_after(CANCEL_SECONDS, shield=True), suppress(ApexBridgeError):
            await api.ask("POST", f"{path}/cancel")
        raise
    return result


def _print(stream: TextIO, text: str) -> None:
    """Write untrusted output: unchanged for a program, without unprintable characters on a terminal."""
    if stream.isatty():
        from apexbridge.surfaces.cli.printable import printable

        text = printable(text)
    stream.write(text)
    stream.flush()


def _tell(answer: dict[str, Any], out: Path | None, saved: Sequence["SavedFile"]) -> None:
    from apexbridge.surfaces.cli.console import line, say, warn

    if answer.get("mode") == "direct":
        warn(answer["warnings"])
        line(answer["content"])
        return
    warn(answer["warnings"])
    if not answer["success"]:
        say(
            f"{answer['error']} ({answer['errorCode']}, exit code {_code(answer)}, {answer['duration']} ms)",
            style="red",
        )
    if out is not None:
        written = [(file.path, file.size) for file in saved if file.problem is None]
        _tell_files(written, f"in {out}")
    elif answer["files"]:
        kept = [(item["path"], item["size"]) for item in answer["files"]]
        _tell_files(kept, f"kept as runs/{answer['id']}/…; fetch them with --out DIR next time")


def _tell_files(files: Sequence[tuple[str, int]], where: str) -> None:
    from apexbridge.surfaces.cli.console import say

    if files:
        say(f"{len(files)} file{'' if len(files) == 1 else 's'} {where}:")
    for path, size in files:
        say(f"  {path}  {size} bytes")


def _tell_unsaved(saved: Sequence["SavedFile"], answer: dict[str, Any], out: Path | None) -> bool:
    """List the files that were not written and how to get them. Returns whether all were written."""
    from apexbridge.surfaces.cli.console import say

    left = [file for file in saved if file.problem is not None]
    if not left:
        return True
    say(f"{len(left)} file{'' if len(left) == 1 else 's'} not written to {out}:", style="yellow")
    for file in left[:SHOWN_FILES]:
        say(f"  {_on_one_line(file.path)}: {file.problem}")
    if len(left) > SHOWN_FILES:
        say(f"  and {len(left) - SHOWN_FILES} more")
    say(f"Fetch them with: GET /api/executions/{_on_one_line(str(answer.get('id')))}/files/PATH")
    if any(file.is_in_the_way for file in left):
        say("Files that exist are not replaced: remove them, or name another folder with --out, and run again.")
    return False


def _on_one_line(text: str) -> str:
    return " ".join(text.split())


def _code(answer: dict[str, Any]) -> str:
    return "none" if answer["exitCode"] is None else str(answer["exitCode"])
