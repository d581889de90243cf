"""The `apex` command."""

import os
import sys
import traceback
from typing import Annotated

import typer

import apexbridge
from apexbridge.errors import ApexBridgeError
from apexbridge.skills import RESERVED_NAMES
from apexbridge.surfaces.cli import interrupts
from apexbridge.surfaces.cli.completion import join_words_at_colons
from apexbridge.surfaces.cli.hints import with_options
from apexbridge.surfaces.cli.lazy_commands import lazy_group
from apexbridge.surfaces.cli.terminal_text import printable, printable_json, set_up_logging

APPROVAL_NEEDED = 3
INTERRUPTED = 130
app = typer.Typer(
    name="apex",
    cls=lazy_group("apex"),
    help="The tool-and-skills layer for AI agents.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # plain help: importing rich would double the time of --help
)


def main() -> None:
    """Run the command line.

    Exit codes: 0 success, 1 refused or failed, 2 usage error, 3 approval needed, 130 interrupted.
    """
    # Threads of numpy's BLAS spin for milliseconds after each call, which costs a search more than they save.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    set_up_logging()
    join_words_at_colons()
    try:
        with interrupts.interruptible():
            app()
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    except BrokenPipeError:  # the reader closed our output, as `head` does
        sys.stderr.close()
        sys.exit(1)
    except ApexBridgeError as error:
        sys.exit(_print_error(error))
    except Exception as error:
        # The traceback may contain text that a server sent.
        sys.stderr.write(printable("".join(traceback.format_exception(error))))
        sys.exit(1)


@app.callback()
def root(
    version: Annotated[
        bool,
        typer.Option("--version", help="Show the version.", callback=lambda value: _version(value), is_eager=True),
    ] = False,
) -> None:
    """The tool-and-skills layer for AI agents."""


def _version(is_requested: bool) -> None:
    if is_requested:
        sys.stdout.write(f"apexbridge {apexbridge.__version__}\n")
        raise typer.Exit


def _print_error(error: ApexBridgeError) -> int:
    if "--json" in sys.argv:
        sys.stdout.write(printable_json(error.to_json()))
    else:
        sys.stderr.write(f"{printable(with_options(error.message))}\n")
        if hint := _hint(error):
            sys.stderr.write(f"{with_options(hint)}\n")
    return APPROVAL_NEEDED if error.code == "CONFIRMATION_REQUIRED" else 1


def _hint(error: ApexBridgeError) -> str | None:
    """A command to try next; None if there is none for this error."""
    if "restorable" in error.details:
        return "See what can be restored with: apex skills restore"
    if sources := error.details.get("sources"):
        return "\n".join(["All of them:", *(f"  {printable(str(source))}" for source in sources)])
    if error.code != "INVALID_SKILL_STRUCTURE":
        return _HINTS.get(error.code)
    if error.details.get("folders"):
        return "A folder of several skills is installed with: apex skills import DIR"
    if error.details.get("skillName") in RESERVED_NAMES:
        return None
    hints = ["Lines and repairs: apex skills doctor FOLDER."] if error.details.get("skillName") else []
    if profile := error.details.get("profile"):
        hints.append(f"Read it as leniently as possible: --profile {profile}")
    return " ".join(hints) or None


_HINTS = {
    "SKILL_NOT_FOUND": "See what is installed with: apex skills list",
    "ENOENT": "See what is installed with: apex skills list",
    "NAME_TAKEN": "See what can be restored with: apex skills restore",
    "VERSION_NOT_FOUND": "See which versions there are with: apex skills versions NAME",
    "PLUGIN_NOT_FOUND": "See what is installed with: apex plugins list",
    "TOOL_NOT_FOUND": "See what there is with: apex tools list",
    "MCP_SERVER_NOT_FOUND": "See which there are with: apex mcp list",
    "MCP_UNAVAILABLE": "See its state with: apex mcp status",
    "EXECUTION_NOT_FOUND": "See what is recorded with: apex runs list",
    "CHAT_NOT_FOUND": "See what is recorded with: apex chats list",
    "UNAUTHORIZED": "Set the key in APEX_API_KEY. Create one with: apex keys create --name NAME",
    "CONFIRMATION_REQUIRED": "Approve it with --yes; or elsewhere (apex approvals list), and then use --approval ID",
    "SKILL_ALREADY_EXISTS": "On the command line that is: --overwrite",
    "SANDBOX_UNAVAILABLE": "For what is missing on this host: apex doctor",
    "SKILL_PARSE_ERROR": "For line numbers and repairs: apex skills doctor FOLDER",
}
