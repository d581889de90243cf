"""Approval of dangerous skills in a chat."""

import json
import uuid
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from apexbridge.agent.request import ApprovalMode
from apexbridge.errors import ApexBridgeError, RequestError, ToolError
from apexbridge.tools.approvals import Approvals

APPROVAL_TOOL = "bridge_approve_skill"
"""The tool call that asks a client with `approvals: tool`."""


class Approver:
    """Gets approvals for a model's calls. Text of the model or of a tool never counts as one."""

    def __init__(self, approvals: Approvals) -> None:
        self._approvals = approvals

    async def approve(
        self, refusal: ApexBridgeError, mode: ApprovalMode, seconds: float, on_wait: Callable[[], None]
    ) -> str | None:
        """The id of an approval, or None. Waits only with `approvals: wait`, after a call of `on_wait`.

        An approval given after an earlier request counts if call and content have not changed.

        Raises:
            ToolError: APPROVAL_INVALID, the user denied it.
        """
        id = str(refusal.details.get("approvalId"))
        if earlier := await self._approvals.given_already(id):
            return earlier
        if mode != "wait":
            return None
        on_wait()
        try:
            known = await self._approvals.answer_to(id, seconds=seconds)
        except RequestError:  # dropped, or the tool is gone
            return None
        if known.state == "denied":
            raise ToolError("The user did not agree, so it was not run. Go on without it.", code="APPROVAL_INVALID")
        return id if known.state == "approved" else None

    async def answered(self, id: str, *, agreed: bool, by: str) -> str | None:
        """Decide an approval by the client's answer; returns its id if it is approved. `by` is the client's key."""
        try:
            await self._approvals.decide(id, approve=agreed, by=by)
        except ApexBridgeError:  # it was decided elsewhere or has expired: the stored state counts
            agreed = False
            with suppress(ApexBridgeError):  # expired, or its skill was removed
                agreed = (await self._approvals.get(id)).state == "approved"
        return id if agreed else None


def question_for(refusal: ApexBridgeError) -> dict[str, Any]:
    """The tool call that asks the client."""
    details = refusal.details
    asked = {
        "approvalId": details.get("approvalId"),
        "skill": details.get("skillName") or details.get("tool"),
        "summary": f"{details.get('confirm')} The call: {details.get('summary')}",
        "call": details.get("summary"),  # in a field of its own: the skill writes the question and could imitate a call
        "expiresAt": details.get("expiresAt"),
    }
    return {
        "id": f"call_{uuid.uuid4().hex[:24]}",
        "type": "function",
        "function": {"name": APPROVAL_TOOL, "arguments": json.dumps(asked, ensure_ascii=False)},
    }
