"""A person's word before something dangerous runs: asked in the terminal, or given beforehand with `--yes`."""

import sys
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Annotated, Any

import typer

from apexbridge.surfaces.cli.printable import printable

if TYPE_CHECKING:
    from apexbridge.surfaces.cli.connect import Api


Yes = Annotated[bool, typer.Option("--yes", help="Confirm what needs a confirmation.")]
Approval = Annotated[str | None, typer.Option("--approval", metavar="ID", help="A confirmation given elsewhere.")]


async def confirmed(
    api: "Api", send: Callable[[str | None], Awaitable[Any]], *, yes: bool, ask: bool, approval: str | None = None
) -> Any:
    """Send a call; where it needs a confirmation, get one and send it again with that.

    `ask` is whether a person may be asked. A call that stays unconfirmed ends as the server refused it.
    """
    from apexbridge.errors import ApexBridgeError

    try:
        return await send(approval)
    except ApexBridgeError as error:
        if error.code != "CONFIRMATION_REQUIRED" or "approvalId" not in error.details:
            raise
        can_ask = ask and sys.stdin.isatty() and sys.stderr.isatty()
        if not yes and not can_ask:
            raise
        id = str(error.details["approvalId"])
        agreed = yes or await _agrees(str(error.details.get("confirm") or error.message))
        await api.ask("POST", f"/api/approvals/{id}", json={"approve": agreed})
        if not agreed:
            raise
        return await send(id)


async def _agrees(question: str) -> bool:
    """Ask in a thread: on the event loop, Ctrl-C would be heard only after the answer."""
    import anyio.to_thread

    def ask() -> bool:
        try:
            return typer.confirm(printable(question), default=False, err=True)
        except typer.Abort:  # the end of the input is no agreement
            return False

    return await anyio.to_thread.run_sync(ask, abandon_on_cancel=True)
