"""What commands share: options, a connection to the server, output for people or programs, and approvals."""

import functools
import inspect
import json
import sys
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from apexbridge.errors import ApexBridgeError, InvalidInputError
from apexbridge.surfaces.cli import interrupts
from apexbridge.surfaces.cli.completion import skill_names
from apexbridge.surfaces.cli.hints import remember_options, with_options
from apexbridge.surfaces.cli.terminal_text import printable, printable_json

if TYPE_CHECKING:
    from apexbridge.surfaces.cli.client import Api
    from apexbridge.surfaces.cli.console import Console

T = TypeVar("T")
CommandFunction = Callable[..., None]
Json = Annotated[bool, typer.Option("--json", help="Print data for programs on stdout.")]
DataDir = Annotated[
    str | None, typer.Option("--data-dir", help="The data directory.", show_default="./data, or the user's")
]
Url = Annotated[str | None, typer.Option("--url", help="Use the server at this address.")]
SkillName = Annotated[str, typer.Argument(metavar="NAME", help="The skill's name.", autocompletion=skill_names)]
PackagePath = Annotated[Path, typer.Argument(metavar="PATH", help="A folder, a .zip, a .skill, or a SKILL.md.")]
Tags = Annotated[list[str] | None, typer.Option("--tag", help="A tag; if repeated, any of them.")]
Yes = Annotated[bool, typer.Option("--yes", help="Approve a dangerous call without a question.")]
NoQuestion = Annotated[bool, typer.Option("--yes", help="Do not ask.")]
Approval = Annotated[str | None, typer.Option("--approval", metavar="ID", help="The id of an approval.")]
InputOption = Annotated[
    str | None, typer.Option("--input", metavar="JSON|@FILE|-", help="The input: JSON, a file, or stdin.")
]


PAGE_ROWS, MAX_PAGE_ROWS = 50, 500
"""Rows of a page at a terminal, and the most that the server returns at once."""
Page = Annotated[int | None, typer.Option("--page", min=1, help="The page number.", show_default="1")]
Limit = Annotated[
    int | None,
    typer.Option("--limit", min=1, max=MAX_PAGE_ROWS, help="Rows per page.", show_default="50; in a pipe, all"),
]


class ProfileChoice(StrEnum):
    SEED = "seed"
    LENIENT = "lenient"
    STRICT = "strict"


Strict = Annotated[
    bool, typer.Option("--strict", help="Refuse the whole package if one of its skills cannot be installed.")
]
Profile = Annotated[ProfileChoice | None, typer.Option("--profile", help="How strictly the package is read.")]


class Session:
    """One command: its `--json`, `--data-dir` and `--url`. Heavy modules are imported when it is used."""

    def __init__(self, *, json: bool = False, data_dir: str | None = None, url: str | None = None) -> None:
        self.json = json
        self.data_dir = data_dir
        self.url = url

    @functools.cached_property
    def console(self) -> "Console":
        from apexbridge.surfaces.cli.console import Console

        return Console()

    def call(self, work: "Callable[[Api], Awaitable[T]]", *, creates: bool = True) -> T:
        """Run `work` against the running server, or without one against the data directory in this process.

        `creates` is whether the command may create the data directory. Otherwise a missing one is an error.
        """
        from apexbridge.surfaces.cli.client import connected

        async def run() -> T:
            async with connected(data_dir=self.data_dir, url=self.url, creates=creates) as api:
                return await work(api)

        return interrupts.run(run())

    def ask(self, method: str, path: str, *, creates: bool | None = None, **options: Any) -> Any:
        """Send one request. Only requests that write create the data directory, unless `creates` says otherwise."""
        may_create = method in ("POST", "PUT") if creates is None else creates
        return self.call(lambda api: api.ask(method, path, **options), creates=may_create)

    def ask_skill(self, method: str, name: str, *segments: str, **options: Any) -> Any:
        """Send one request about a skill. A missing data directory contains no skill and is not created."""
        return self.call(lambda api: api.ask_skill(method, name, *segments, **options), creates=False)

    def ask_page(
        self, path: str, key: str, params: Mapping[str, Any], *, page: int | None, limit: int | None
    ) -> dict[str, Any]:
        """Ask for a page of a list; in a pipe for all of it, unless a page or a limit is named."""
        is_page = sys.stdout.isatty() or page is not None or limit is not None
        size = (limit or PAGE_ROWS) if is_page else MAX_PAGE_ROWS

        async def work(api: "Api") -> dict[str, Any]:
            number = page or 1
            answer: dict[str, Any] = await api.ask("GET", path, params={**params, "page": number, "limit": size})
            while not is_page and len(answer[key]) < answer["total"]:
                number += 1
                following = await api.ask("GET", path, params={**params, "page": number, "limit": size})
                if not following[key]:
                    break
                answer[key] += following[key]
            return answer | ({} if is_page else {"limit": max(len(answer[key]), 1)})

        return self.call(work, creates=False)

    def call_approved(
        self,
        work: "Callable[[Api, str | None], Awaitable[T]]",
        *,
        yes: bool,
        approval: str | None,
        creates: bool = True,
    ) -> T:
        """Run `work` with the id of an approval or None. If it needs approval, get one and run it again.

        Without approval, the server's refusal is raised. The question is asked between two connections, so that Ctrl-C
        ends the command as usual.
        """
        try:
            return self.call(lambda api: work(api, approval), creates=creates)
        except ApexBridgeError as error:
            if error.code != "CONFIRMATION_REQUIRED" or "approvalId" not in error.details:
                raise
            if not yes and (self.json or not can_ask()):
                raise
            details = error.details
            id = str(details["approvalId"])
            what = details.get("skillName") or details.get("tool")
            if not yes and not ask_approval(what, details.get("summary"), id, details.get("confirm")):
                self.ask("POST", f"/api/approvals/{id}", json={"approve": False})
                raise

            async def approve_and_run(api: "Api") -> T:
                await api.ask("POST", f"/api/approvals/{id}", json={"approve": True})
                return await work(api, id)

            return self.call(approve_and_run)

    def confirm(self, question: str, *, yes: bool) -> bool:
        """Ask at a terminal. With `--yes`, with `--json` and without a terminal, nothing is asked."""
        if yes or self.json or not can_ask():
            return True
        answer = interrupts.ask(printable(f"{question} [y/N]: "))
        if not answer:
            sys.stderr.write("\n")
        return answer.strip().lower() in ("y", "yes")

    def show_json(self, data: Any) -> bool:
        """Print data if `--json` was given. Returns whether it was."""
        if self.json:
            sys.stdout.write(printable_json(data))
        return self.json

    def report(self, data: Any, message: str) -> None:
        """Print data as JSON, or a message for people."""
        if not self.show_json(data):
            self.console.say(message)

    def table(self, data: Any, columns: Sequence[str], rows: Iterable[Sequence[Any]], *, empty: str) -> None:
        """Print data as JSON, or a table for people."""
        if not self.show_json(data):
            self.console.table(columns, rows, empty=empty)


def command(
    app: typer.Typer, name: str, *aliases: str, connects: bool = True
) -> Callable[[CommandFunction], CommandFunction]:
    """Register a command. Its first parameter is the Session, made from `--json`, `--data-dir` and `--url`.

    With `connects=False` the command has `--json` alone.
    """
    shared: dict[str, Any] = {"json": (Json, False)}
    if connects:
        shared |= {"data_dir": (DataDir, None), "url": (Url, None)}

    def register(function: CommandFunction) -> CommandFunction:
        def run(**arguments: Any) -> None:
            session = Session(**{key: arguments.pop(key) for key in shared})
            remember_options({"--data-dir": session.data_dir, "--url": session.url})
            function(session, **arguments)

        _, *own = inspect.signature(function).parameters.values()
        added = [
            inspect.Parameter(key, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)
            for key, (annotation, default) in shared.items()
        ]
        run.__signature__ = inspect.Signature([*own, *added])  # type: ignore[attr-defined]  # read by typer
        run.__annotations__ = {parameter.name: parameter.annotation for parameter in (*own, *added)}
        run.__doc__ = function.__doc__
        for each in (name, *aliases):
            app.command(each, hidden=each in aliases)(run)
        return function

    return register


def can_ask() -> bool:
    return sys.stdin.isatty() and sys.stderr.isatty()


def ask_approval(what: Any, call: Any, id: Any, question: Any) -> bool:
    """Ask the user to approve a call. The skill's own text is reduced to one line."""
    answer = interrupts.ask(
        printable(
            f"{what} is marked dangerous and needs approval. The call: {call}\n"
            f"All of it: {with_options('apex approvals show')} {id}\n{' '.join(str(question).split())} [y/N]: "
        )
    )
    if not answer:  # end of input does not count as approval
        sys.stderr.write("\n")
    return answer.strip().lower() in ("y", "yes")


def read_input(argument: str | None) -> dict[str, Any]:
    """Parse the value of `--input`, a JSON object."""
    if argument is None:
        return {}
    try:
        text = argument
        if argument == "-":
            text = sys.stdin.read()
        elif argument.startswith("@"):
            text = Path(argument[1:]).read_text("utf-8")
        value = json.loads(text)
    except OSError as error:
        raise InvalidInputError(f"{argument[1:]} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise InvalidInputError(f"--input is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise InvalidInputError('--input must be a JSON object, such as {"text": "hello"}')
    return value
