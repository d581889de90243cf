"""A person's word before something dangerous runs: asked in the terminal, or given beforehand with `--yes`."""

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
"""Makes a call, with an approval where there is one."""


def call_confirmed(
    work: Work, *, yes: bool, ask: bool, approval: str | None, data_dir: str | None, url: str | None
) -> Any:
    """Make a call; where it needs a confirmation, get one and make it again with that.

    `ask` is whether a person may be asked. A call that stays unconfirmed ends as the server refused it. The question is
    asked between two connections, where Ctrl-C ends the command as everywhere else.
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
    """Ask, with what would run and what with; the skill's own words are one line among them."""
    details = refusal.details
    what = details.get("skillName") or details.get("tool")
    question = " ".join(str(details.get("confirm")).split())
    words = f"{what} calls itself dangerous. The call: {details.get('summary')}\n"
    words += f"All of it: apex approvals show {details.get('approvalId')}\n{question} [y/N]: "
    answer = interrupts.ask(printable(words))
    if not answer:  # the end of the input is not an agreement
        sys.stderr.write("\n")
    return answer.strip().lower() in ("y", "yes")
