"""Options shared by several commands."""

import json
import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from apexbridge.errors import InvalidInputError

Json = Annotated[bool, typer.Option("--json", help="Print data for programs on stdout.")]
DataDir = Annotated[str | None, typer.Option("--data-dir", help="The data directory.", show_default="data")]
Url = Annotated[str | None, typer.Option("--url", help="Use the server at this address.")]
SkillName = Annotated[str, typer.Argument(metavar="NAME", help="The skill's name.")]
PackagePath = Annotated[Path, typer.Argument(metavar="PATH", help="A .zip, a .skill, or a folder.")]
Tags = Annotated[list[str] | None, typer.Option("--tag", help="A tag; if repeated, any of them.")]
Yes = Annotated[bool, typer.Option("--yes", help="Approve a dangerous call without a question.")]
Approval = Annotated[str | None, typer.Option("--approval", metavar="ID", help="The id of an approval.")]
InputOption = Annotated[
    str | None, typer.Option("--input", metavar="JSON|@FILE|-", help="The input: JSON, a file, or stdin.")
]


class ProfileChoice(StrEnum):
    SEED = "seed"
    LENIENT = "lenient"
    STRICT = "strict"


Profile = Annotated[ProfileChoice | None, typer.Option("--profile", help="How strictly the package is read.")]


def read_input(argument: str | None) -> dict[str, Any]:
    """Parse the value of `--input`.

    Raises:
        InvalidInputError: it cannot be read, or is not a JSON object.
    """
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
