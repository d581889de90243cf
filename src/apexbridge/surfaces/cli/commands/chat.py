"""`apex chat`: one question or a conversation. Answers are streamed; tool calls are shown dimmed."""

import json
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from secrets import token_hex
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import quote, urlencode

import typer

from apexbridge.surfaces.cli import interrupts
from apexbridge.surfaces.cli.artifacts import Signature, download_files
from apexbridge.surfaces.cli.commands.workspaces import print_problems
from apexbridge.surfaces.cli.completion import skill_names
from apexbridge.surfaces.cli.console import plural
from apexbridge.surfaces.cli.session import Session, ask_approval, can_ask, command
from apexbridge.surfaces.cli.terminal_text import printable

if TYPE_CHECKING:
    from apexbridge.surfaces.cli.client import Api
    from apexbridge.surfaces.cli.console import Console

Message = dict[str, Any]
app = typer.Typer(rich_markup_mode=None)


@command(app, "chat")
def chat(
    session: Session,
    message: Annotated[str | None, typer.Argument(help="The question; without one, a conversation begins.")] = None,
    skill: Annotated[
        list[str] | None,
        typer.Option("--skill", help="A skill to offer by name; may be repeated.", autocompletion=skill_names),
    ] = None,
    model: Annotated[str | None, typer.Option("--model", help="The model to ask.")] = None,
    file: Annotated[
        list[Path] | None, typer.Option("--file", help="A file for the workspace; may be repeated.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="DIR", help="Save the files that the answers make in this folder.")
    ] = None,
    workspace: Annotated[
        str | None, typer.Option("--workspace", metavar="ID", help="Continue with the files of this workspace.")
    ] = None,
) -> None:
    """Ask a model that can use every tool and skill of the server."""
    if message is None and session.json:
        raise typer.BadParameter("--json needs a MESSAGE")
    if file and workspace is None:
        workspace = f"chat-{token_hex(8)}"
    body: dict[str, Any] = {"x_bridge": {"skills": skill or [], "activity": not session.json}}
    body["x_bridge"] |= {"workspace": workspace} if workspace is not None else {}
    body |= {"model": model} if model else {}
    files = AnswerFiles(session.console, out)

    async def work(api: "Api") -> Any:
        target = f"/api/uploads?{urlencode({'workspace': workspace or ''})}"
        for path in file or []:
            await api.send_file(target, path)
        if session.json:
            body["messages"] = [{"role": "user", "content": message}]
            answer = await api.complete(body)
            await files.save(api, answer.get("x_bridge") or {})
            return answer
        questions = [message] if message is not None else _questions()
        return await _converse(api, body, questions, files)

    # One connection for the whole conversation: suspended turns are in the server's memory, and it may be this process.
    answer = session.call(work)
    if session.json:
        session.show_json(answer)
    if not files.are_saved:
        raise typer.Exit(1)


class AnswerFiles:
    """The files that the answers of a conversation make. They are saved in a folder if there is one."""

    def __init__(self, console: "Console", out: Path | None) -> None:
        self._console = console
        self._out = out
        self._written: dict[str, Signature] = {}
        self._unsaved: set[str] = set()

    @property
    def are_saved(self) -> bool:
        """Whether the last version of each file is saved."""
        return not self._unsaved

    async def save(self, api: "Api", report: dict[str, Any]) -> None:
        """Save the files that an answer made, and name those that could not be saved."""
        paths = [str(file["path"]) for file in report.get("files") or ()]
        if self._out is None or not paths:
            return
        address = f"/api/workspaces/{quote(str(report['workspace']), safe='')}/files/"
        saved = await download_files(api, address, paths, self._out, written=self._written)
        self._unsaved.difference_update(paths)
        self._unsaved.update(print_problems(self._console, saved))

    def show(self, report: dict[str, Any]) -> None:
        """Print the files that an answer made, and where they are."""
        files = report.get("files") or ()
        for file in files:
            self._console.say(f"  {file['path']}  {file['size']} bytes", style="dim")
        if files and self._out is None:
            self._console.say(f"Save them with: apex workspaces files {report['workspace']} --out DIR")
        elif files:
            count = sum(str(file["path"]) not in self._unsaved for file in files)
            self._console.say(f"{plural(count, 'file')} in {self._out}")


def _questions() -> Iterator[str]:
    sys.stderr.write("Ask; an empty line or Ctrl-D ends.\n")
    while line := interrupts.ask("> ").strip():
        yield line


async def _converse(api: "Api", body: dict[str, Any], questions: Iterable[str], files: AnswerFiles) -> None:
    """On a terminal, the user is asked to approve dangerous skills; otherwise they are denied."""
    options = {**body["x_bridge"], "approvals": "tool" if can_ask() else "deny"}
    messages: list[Message] = []
    for question in questions:
        messages.append({"role": "user", "content": question})
        while True:
            request = {**body, "x_bridge": options, "messages": messages, "stream": True}
            answer, report = await _print_answer(api, request)
            messages.append(answer)
            options |= {"workspace": report["workspace"]} if "workspace" in report else {}
            await files.save(api, report)
            files.show(report)
            if not answer.get("tool_calls"):
                break
            messages += [
                {"role": "tool", "tool_call_id": call["id"], "content": _decision(call)}
                for call in answer["tool_calls"]
            ]


def _decision(call: dict[str, Any]) -> str:
    asked = json.loads(call["function"]["arguments"])
    approve = ask_approval(asked.get("skill"), asked.get("call"), asked.get("approvalId"), asked.get("summary"))
    return json.dumps({"approve": approve})


async def _print_answer(api: "Api", request: dict[str, Any]) -> tuple[Message, dict[str, Any]]:
    """Print an answer as it is streamed; returns it as a message, and the server's report about it."""
    texts: list[str] = []
    report: dict[str, Any] = {}
    calls: list[dict[str, Any]] = []
    async for chunk in api.completion_chunks(request):
        choice = (chunk.get("choices") or [{}])[0]
        delta = choice.get("delta") or {}
        if "turns" in (chunk.get("x_bridge") or {}):
            report = chunk["x_bridge"]
        if "activity" in (chunk.get("x_bridge") or {}):
            step = printable(str(delta.get("reasoning_content", "")).strip())
            if texts and not texts[-1].endswith("\n") and sys.stdout.isatty():
                sys.stdout.write("\n")
                sys.stdout.flush()
            sys.stderr.write(f"\x1b[2m{step}\x1b[0m\n" if sys.stderr.isatty() else f"{step}\n")
        elif isinstance(text := delta.get("content"), str) and text:
            texts.append(text)
            sys.stdout.write(printable(text) if sys.stdout.isatty() else text)
            sys.stdout.flush()
        calls += [
            {key: value for key, value in call.items() if key != "index"} for call in delta.get("tool_calls") or ()
        ]
    sys.stdout.write("\n" if texts else "")
    message: Message = {"role": "assistant", "content": "".join(texts) or None}
    return message | ({"tool_calls": calls} if calls else {}), report
