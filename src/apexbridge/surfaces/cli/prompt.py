"""Approval of dangerous calls: asked for in the terminal, or granted in advance with `--yes`."""

import sys
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Annotated, Any

import typer

from apexbridge.surfaces.cli import interrupts
from apexbridge.surfaces.cli.options import call
from apexbridge.surfaces.cli.printable import printable

if TYPE_CHECKING:
    from apexbridge.errors import ApexBridgeError
    from apexbridge.surfaces.cli.client import Api

Yes = Annotated[bool, typer.Option("--yes", help="Confirm what needs a confirmation.")]
Approval = Annotated[str | None, typer.Option("--approval", metavar="ID", help="A confirmation given elsewhere.")]
Work = Callable[["Api", str | None], Awaitable[Any]]
"""Makes a call with the id of an approval, or None."""


def call_confirmed(
    work: Work, *, yes: bool, ask: bool, approval: str | None, data_dir: str | None, url: str | None
) -> Any:
    """Make a call. If it needs approval, get one and repeat the call with it.

    `ask` says whether the user may be asked. Without approval, the server's refusal is raised. The question is asked
    between two connections, so that Ctrl-C ends the command as usual.
    """
    from apexbridge.errors import ApexBridgeError

    try:
        return call(lambda api: work(api, approval), data_dir=data_dir, url=url)
    except ApexBridgeError as error:
        if error.code != "CONFIRMATION_REQUIRED" or "approvalId" not in error.details:
            raise
        if not yes and not (ask and sys.stdin.isatty() and sys.stderr.isatty()):
            raise
        id = str(error.details["approvalId"])
        agreed = yes or _agrees(error)

        async def go_on(api: "Api") -> Any:
            await api.ask("POST", f"/api/approvals/{id}", json={"approve": agreed})
            return await work(api, id) if agreed else None

        answer = call(go_on, data_dir=data_dir, url=url)
        if not agreed:
            raise
        return answer


def _agrees(refusal: "ApexBridgeError") -> bool:
    """Ask the user, showing what would run with which input. The skill's own text is reduced to one line."""
    details = refusal.details
    what = details.get("skillName") or details.get("tool")
    question = " ".join(str(details.get("confirm")).split())
    words = f"{what} calls itself dangerous. The call: {details.get('summary')}\n"
    words += f"All of it: apex approvals show {details.get('approvalId')}\n{question} [y/N]: "
    answer = interrupts.ask(printable(words))
    if not answer:  # end of input does not count as approval
        sys.stderr.write("\n")
    return answer.strip().lower() in ("y", "yes")
