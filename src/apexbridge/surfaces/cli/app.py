"""The `apex` command."""

import sys
import traceback
from typing import TYPE_CHECKING, Annotated

import typer

import apexbridge
from apexbridge.surfaces.cli import interrupts
from apexbridge.surfaces.cli.commands import (
    chat,
    chats,
    config,
    doctor,
    evaluation,
    grants,
    keys,
    plugins,
    run,
    search,
    serve,
    skills,
    tools,
)
from apexbridge.surfaces.cli.logs import set_up_logging
from apexbridge.surfaces.cli.printable import printable, printable_json

if TYPE_CHECKING:
    from apexbridge.errors import ApexBridgeError

app = typer.Typer(
    name="apex",
    help="The tool-and-skills layer for AI agents.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # plain help: importing rich would double the time of --help
)
for part in (search, run, grants):
    part.add_commands(skills.app)
app.add_typer(skills.app, name="skills")
app.add_typer(plugins.app, name="plugins")
app.add_typer(tools.app, name="tools")
app.add_typer(tools.approvals, name="approvals")
app.add_typer(grants.secrets, name="secrets")
app.add_typer(keys.app, name="keys")
app.add_typer(keys.audit, name="audit")
app.add_typer(chats.app, name="chats")
app.add_typer(config.app, name="config")
app.add_typer(evaluation.app, name="eval")
app.command()(serve.serve)
app.command()(chat.chat)
app.command()(doctor.doctor)

CONFIRMATION_NEEDED = 3
INTERRUPTED = 130


def main() -> None:
    """Run the command line.

    Exit codes: 0 success, 1 refused or failed, 2 usage error, 3 approval needed, 130 interrupted.
    """
    set_up_logging()
    try:
        with interrupts.interruptible():
            app()
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    except BrokenPipeError:  # the reader closed our output, as `head` does
        sys.stderr.close()
        sys.exit(1)
    except Exception as error:
        sys.exit(_refused(error))


@app.callback()
def root(
    version: Annotated[
        bool,
        typer.Option("--version", help="Show the version.", callback=lambda wanted: _version(wanted), is_eager=True),
    ] = False,
) -> None:
    """The tool-and-skills layer for AI agents."""


def _version(wanted: bool) -> None:
    if wanted:
        sys.stdout.write(f"apexbridge {apexbridge.__version__}\n")
        raise typer.Exit


def _refused(error: Exception) -> int:
    """Print an error with a hint and return the exit code. Unexpected exceptions are printed with their traceback."""
    from apexbridge.errors import ApexBridgeError

    if not isinstance(error, ApexBridgeError):
        # The traceback may contain text that a server sent.
        sys.stderr.write(printable("".join(traceback.format_exception(error))))
        return 1
    if "--json" in sys.argv:
        sys.stdout.write(printable_json(error.to_json()))
    else:
        sys.stderr.write(f"{printable(error.message)}\n")
        if hint := _hint(error):
            sys.stderr.write(f"{hint}\n")
    return CONFIRMATION_NEEDED if error.code == "CONFIRMATION_REQUIRED" else 1


def _hint(error: "ApexBridgeError") -> str | None:
    """A command to try next; None if there is none for this error."""
    if error.code != "INVALID_SKILL_STRUCTURE":
        return _HINTS.get(error.code)
    from apexbridge.skills.models import RESERVED_NAMES

    if error.details.get("folders"):
        return "A folder of several skills is installed with: apex skills import DIR"
    if error.details.get("skillName") in RESERVED_NAMES:
        return None
    return "Lines and repairs: apex skills doctor FOLDER. Read it as leniently as possible: --profile lenient"


_HINTS = {
    "SKILL_NOT_FOUND": "See what is installed with: apex skills list",
    "ENOENT": "See what is installed with: apex skills list",
    "PLUGIN_NOT_FOUND": "See what is installed with: apex plugins list",
    "TOOL_NOT_FOUND": "See what there is with: apex tools list",
    "CHAT_NOT_FOUND": "See what is recorded with: apex chats list",
    "UNAUTHORIZED": "A command takes the key from APEX_API_KEY. Keys are made by: apex keys create",
    "CONFIRMATION_REQUIRED": "Confirm it with --yes; or elsewhere (apex approvals list), and then with --approval ID",
    "SKILL_ALREADY_EXISTS": "On the command line that is: --overwrite",
    "SANDBOX_UNAVAILABLE": "For what is missing on this host: apex doctor",
    "SKILL_PARSE_ERROR": "For line numbers and repairs: apex skills doctor FOLDER",
}
