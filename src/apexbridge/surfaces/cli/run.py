"""`apex skills run`: a skill's output as it comes, its files where they are wanted, its success as the exit code."""

import sys
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TextIO

import typer

from apexbridge.surfaces.cli.confirming import Approval, Yes, call_confirmed
from apexbridge.surfaces.cli.options import DataDir, Json, SkillName, Url, show
from apexbridge.surfaces.cli.reading import InputOption, read_input

if TYPE_CHECKING:
    from apexbridge.surfaces.cli.connect import Api


class ModeChoice(StrEnum):
    """How a skill answers."""

    SANDBOX = "sandbox"
    DIRECT = "direct"


def add_commands(app: typer.Typer) -> None:
    """Add what is here to `apex skills`."""
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

    async def work(api: "Api", given: str | None) -> Any:
        if "files" not in body:  # once: a confirmation is about these very uploads
            body["files"] = [(await api.send_file("/api/uploads", path))["id"] for path in file or []]
        wanted = {**body, "approval": given}
        answer = await (_wait(api, name, wanted) if json else _follow(api, name, wanted))
        if out is not None:
            await _fetch(api, answer, out)
        return answer

    answer = call_confirmed(work, yes=yes, ask=not json, approval=approval, data_dir=data_dir, url=url)
    show(answer, json=json, people=lambda: _tell(answer, out))
    if answer.get("success") is False:
        raise typer.Exit(1)


async def _wait(api: "Api", name: str, body: dict[str, Any]) -> dict[str, Any]:
    from apexbridge.surfaces.cli.connect import skill_path

    answer: dict[str, Any] = await api.ask("POST", skill_path(name, "execute"), json=body)
    return answer


async def _follow(api: "Api", name: str, body: dict[str, Any]) -> dict[str, Any]:
    """Start the run and print what it prints, while it does; who stops this command stops the run."""
    import anyio

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
        with anyio.CancelScope(shield=True):
            await api.ask("POST", f"{path}/cancel")
        raise
    return result


def _print(stream: TextIO, text: str) -> None:
    """A stranger's words as they are for a program, and without what could steer a terminal for a person."""
    if stream.isatty():
        from apexbridge.surfaces.cli.printable import printable

        text = printable(text)
    stream.write(text)
    stream.flush()


async def _fetch(api: "Api", result: dict[str, Any], folder: Path) -> None:
    """Bring the run's files here; their names were checked when they were carried out."""
    from urllib.parse import quote

    for item in result.get("files", []):
        target = folder / item["path"]
        target.parent.mkdir(parents=True, exist_ok=True)
        with target.open("wb") as file:
            await api.download(f"/api/executions/{result['id']}/files/{quote(item['path'])}", file)


def _tell(answer: dict[str, Any], out: Path | None) -> None:
    from apexbridge.surfaces.cli.output import line, say, warn

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
    if answer["files"]:
        _tell_files(answer["files"], answer["id"], out)


def _tell_files(files: Sequence[dict[str, Any]], identity: str, out: Path | None) -> None:
    from apexbridge.surfaces.cli.output import say

    where = f"in {out}" if out else f"kept as runs/{identity}/…; fetch them with --out DIR next time"
    say(f"{len(files)} file{'' if len(files) == 1 else 's'} {where}:")
    for item in files:
        say(f"  {item['path']}  {item['size']} bytes")


def _code(answer: dict[str, Any]) -> str:
    return "none" if answer["exitCode"] is None else str(answer["exitCode"])
