"""What all adapters share: which tools are offered, how one is called, and what the model reads if that fails."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from apexbridge.client import Client
from apexbridge.errors import ApexBridgeError
from apexbridge.tools.views import ToolOutput, ToolView

DEFAULT_TOOLS = ("vector-search", "read-skill", "run-skill", "run-code", "file-read", "file-write", "list-files")
"""Search, load and run skills, run code, and the files of the workspace. They reach every installed skill."""
Approve = Callable[[Mapping[str, Any]], Awaitable[bool | None]]
"""Asks a person about a dangerous call, and returns the decision; None if no person was asked. Gets the details of
CONFIRMATION_REQUIRED."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolAnswer:
    """What the model reads."""

    text: str
    is_error: bool = False
    files: tuple[str, ...] = ()


async def offered_tools(client: Client, ids: Sequence[str] | None = None) -> list[ToolView]:
    """The tools with these ids, such as `calculate` or `skill:pdf`; by default, the enabled ones of DEFAULT_TOOLS."""
    known = {tool.id: tool for tool in await client.tools.list(category="builtin")}
    if ids is None:
        return [known[id] for id in DEFAULT_TOOLS if id in known and known[id].enabled]
    return [known.get(id) or await client.tools.show(id) for id in ids]


async def call_tool(
    client: Client, id: str, arguments: Mapping[str, Any], *, workspace: str | None, approve: Approve | None
) -> ToolAnswer:
    """Call a tool. Errors are answers that the model can read; cancelling cancels the call on the server."""
    try:
        try:
            return answer_of(await client.tools.call(id, arguments, workspace=workspace))
        except ApexBridgeError as error:
            if error.code != "CONFIRMATION_REQUIRED" or approve is None or "approvalId" not in error.details:
                raise
            decision = await approve(error.details)
            if decision is None:
                raise
            if not decision:
                return ToolAnswer(
                    text="Error (APPROVAL_INVALID): the user did not agree. Go on without it.", is_error=True
                )
            approval = str(error.details["approvalId"])
            await client.approvals.approve(approval)
            return answer_of(await client.tools.call(id, arguments, workspace=workspace, approval=approval))
    except ApexBridgeError as error:
        return ToolAnswer(text=error_text(error), is_error=True)


def answer_of(output: ToolOutput) -> ToolAnswer:
    text = "\n".join([output.output, *(f"[Note: {notice}]" for notice in output.notices)])
    return ToolAnswer(text=text, is_error=output.is_error, files=tuple(output.files))


def error_text(error: ApexBridgeError) -> str:
    """What happened, and what to do next."""
    if error.code == "CONFIRMATION_REQUIRED":
        id = error.details.get("approvalId")
        advice = f" It was not run. Tell the user that it runs after: apex approvals approve {id}"
    else:
        advice = " Trying again later may help." if error.is_retryable else ""
    return f"Error ({error.code}): {error.message}{advice}"
