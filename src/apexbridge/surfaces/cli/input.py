"""The `--input` option: JSON on the command line, from a file, or from stdin."""

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

InputOption = Annotated[
    str | None, typer.Option("--input", metavar="JSON|@FILE|-", help="The input: JSON, a file, or stdin.")
]


def read_input(given: str | None) -> dict[str, Any]:
    """Parse the value of `--input`.

    Raises:
        InvalidInputError: it cannot be read, or is not a JSON object.
    """
    import json

    from apexbridge.errors import InvalidInputError

    if given is None:
        return {}
    try:
        text = given
        if given == "-":
            text = sys.stdin.read()
        elif given.startswith("@"):
            text = Path(given[1:]).read_text("utf-8")
        value = json.loads(text)
    except OSError as error:
        raise InvalidInputError(f"{given[1:]} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise InvalidInputError(f"--input is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise InvalidInputError('--input must be a JSON object, such as {"text": "hello"}')
    return value
