"""Tools of a server for the OpenAI Agents SDK: `Agent(tools=await apexbridge_tools(client))`."""

from collections.abc import Mapping, Sequence
from typing import Any

from agents import FunctionTool, RunContextWrapper
from agents.tool_context import ToolContext

from apexbridge._json import loads_or
from apexbridge.client import Client
from apexbridge.errors import ApexBridgeError
from apexbridge.integrations.offer import call_tool, offered_tools
from apexbridge.tools.views import ToolView


async def apexbridge_tools(
    client: Client, *, tools: Sequence[str] | None = None, workspace: str | None = None, approvals: bool = True
) -> list[FunctionTool]:
    """The server's tools. The client stays yours: close it when the agent is done.

    `tools` are ids, by default those for skills, code and files. `workspace` is the id of a workspace whose files the
    calls share. A dangerous call interrupts the run until `state.approve(interruption)`; with `approvals=False`, the
    model reads that the call needs approval. Approving needs a key with the scope admin.
    """
    return [_tool(client, tool, workspace, approvals) for tool in await offered_tools(client, tools)]


def _tool(client: Client, tool: ToolView, workspace: str | None, approvals: bool) -> FunctionTool:
    async def needs_approval(context: RunContextWrapper[Any], arguments: dict[str, Any], call_id: str) -> bool:
        return await _is_dangerous(client, tool, arguments)

    async def call(context: ToolContext[Any], written: str) -> str:
        async def approve(details: Mapping[str, Any]) -> bool | None:
            return context.is_tool_approved(tool.name, context.tool_call_id)

        arguments = loads_or(written, None) if written.strip() else {}
        if not isinstance(arguments, dict):
            return "Error (INVALID_INPUT): the arguments must be one JSON object."
        answer = await call_tool(
            client, tool.id, arguments, workspace=workspace, approve=approve if approvals else None
        )
        return answer.text

    return FunctionTool(
        name=tool.name,
        description=tool.description,
        params_json_schema=tool.parameters,
        on_invoke_tool=call,
        strict_json_schema=False,  # a strict schema makes every property required
        needs_approval=needs_approval if approvals else False,
    )


async def _is_dangerous(client: Client, tool: ToolView, arguments: Mapping[str, Any]) -> bool:
    """Whether a call needs approval. For a skill that cannot be shown, the call itself answers with the reason."""
    if tool.id != "run-skill":
        return tool.dangerous
    try:
        return (await client.skills.show(str(arguments.get("name", "")))).dangerous
    except ApexBridgeError:
        return False
