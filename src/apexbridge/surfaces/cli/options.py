"""Options shared by many commands, and how a command runs."""

import sys
from collections.abc import Awaitable, Callable
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from apexbridge.surfaces.cli.printable import printable_json

if TYPE_CHECKING:
    from apexbridge.surfaces.cli.client import Api

Json = Annotated[bool, typer.Option("--json", help="Data for programs on stdout.")]
DataDir = Annotated[str | None, typer.Option("--data-dir", help="The data directory.", show_default="data")]
Url = Annotated[str | None, typer.Option("--url", help="Talk to the server at this address.")]
SkillName = Annotated[str, typer.Argument(metavar="NAME", help="The skill's name.")]


class ProfileChoice(StrEnum):
    """How strictly a package is read."""

    SEED = "seed"
    LENIENT = "lenient"
    STRICT = "strict"


Profile = Annotated[ProfileChoice | None, typer.Option("--profile", help="How strictly the package is read.")]


def call(work: "Callable[[Api], Awaitable[Any]]", *, data_dir: str | None, url: str | None) -> Any:
    """Run a command against the running server, or without one against the data directory in this process."""
    from apexbridge.surfaces.cli import interrupts
    from apexbridge.surfaces.cli.client import connected

    async def run() -> Any:
        async with connected(data_dir=data_dir, url=url) as api:
            return await work(api)

    return interrupts.run(run())


def show(data: Any, *, json: bool, people: Callable[[], None]) -> None:
    """Print data as JSON, or call `people` to print it in readable form."""
    if json:
        sys.stdout.write(printable_json(data))
    else:
        people()
