"""Approval of dangerous calls by the person at the client, whom the client asks for us (elicitation).

A client can be asked if its key may approve: with the scope admin, or without a key. Otherwise, and if the client
cannot ask, the call is refused with the id of the approval, and works once somebody has approved it elsewhere.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import mcp_types as types
from mcp.shared.exceptions import MCPError, NoBackChannelError

from apexbridge.bridge import Bridge
from apexbridge.errors import ApexBridgeError, ToolError
from apexbridge.storage.audit import Act
from apexbridge.surfaces.http.transport.requests import request_id
from apexbridge.surfaces.mcp.calls import Context, McpCall, is_modern
from apexbridge.tools.approvals import LIFETIME_MS
from apexbridge.tools.tool import ToolResult

KEY = "approval"
"""Name of the question in `inputRequests`."""
FIELD = "approve"
_SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {FIELD: {"type": "boolean", "title": "Approve this run", "default": False}},
    "required": [FIELD],
}
Run = Callable[[str | None], Awaitable[ToolResult]]
"""Runs the call with the id of an approval, or without one."""


class McpApprovals:
    def __init__(self, bridge: Bridge) -> None:
        self._bridge = bridge
        self._approvals = bridge.approvals

    async def run(self, call: McpCall, run: Run) -> ToolResult | types.InputRequiredResult:
        """Run a call. If it needs approval, use one that was given already, or ask the client.

        Raises:
            ApexBridgeError: CONFIRMATION_REQUIRED, no person could be asked or none answered; APPROVAL_INVALID, the
                person refused.
        """
        try:
            return await run(None)
        except ApexBridgeError as error:
            if error.code != "CONFIRMATION_REQUIRED" or "approvalId" not in error.details:
                raise
            refusal = error
        id = str(refusal.details["approvalId"])
        if earlier := await self._approvals.given_already(id):
            return await run(earlier)
        if not self._bridge.keys.allows(call.caller, "admin") or not _can_ask(call.context):
            raise refusal
        if is_modern(call.context):
            answer = _sent_answer(call.params, id)
            if answer is None:
                return types.InputRequiredResult(
                    input_requests={KEY: types.ElicitRequest(params=_question(refusal))}, request_state=id
                )
        else:
            answer = await _asked(call.context, refusal)
        if answer.action == "cancel":  # without an answer, it can still be approved elsewhere
            raise refusal
        await self._decide(call, id, answer)
        return await run(id)

    async def _decide(self, call: McpCall, id: str, answer: types.ElicitResult) -> None:
        approves = answer.action == "accept" and (answer.content or {}).get(FIELD) is True
        await self._approvals.decide(id, approve=approves, by=call.caller)
        scope = call.context.request.scope if call.context.request is not None else {"headers": []}
        act = Act(
            what="approvals.decide",
            who=call.caller,
            target=id,
            detail="approve" if approves else "deny",
            outcome=200,
            request_id=request_id(scope),
        )
        await self._bridge.audit.append(act)
        if not approves:
            raise ToolError("The user did not agree, so it was not run. Go on without it.", code="APPROVAL_INVALID")


def _can_ask(context: Context) -> bool:
    """Whether the client can show a form. Clients that name no mode can show forms."""
    capabilities = context.session.client_capabilities
    asking = capabilities.elicitation if capabilities is not None else None
    if asking is None or (asking.form is None and asking.url is not None):
        return False
    return is_modern(context) or context.session.can_send_request


def _question(refusal: ApexBridgeError) -> types.ElicitRequestFormParams:
    details = refusal.details
    name = details.get("skillName") or details.get("tool")
    # The call comes first: the skill writes the question and could imitate a call.
    message = f"{name} is marked dangerous. The call: {details.get('summary')}\n{details.get('confirm')}"
    return types.ElicitRequestFormParams(message=message, requested_schema=_SCHEMA)


def _sent_answer(params: types.CallToolRequestParams, id: str) -> types.ElicitResult | None:
    """The answer that came with a repeated call, if it belongs to this approval."""
    if params.request_state != id:
        return None
    answer = (params.input_responses or {}).get(KEY)
    return answer if isinstance(answer, types.ElicitResult) else None


async def _asked(context: Context, refusal: ApexBridgeError) -> types.ElicitResult:
    """Ask the client on the stream of its call."""
    question = _question(refusal)
    try:
        async with asyncio.timeout(LIFETIME_MS / 1000):
            return await context.session.elicit_form(question.message, question.requested_schema, context.request_id)
    except (TimeoutError, MCPError, NoBackChannelError, ValueError):  # it cannot ask after all
        raise refusal from None
