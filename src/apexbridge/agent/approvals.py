"""Dangerous skills in a conversation: who is asked, and how long one waits for the answer."""

import json
import uuid
from typing import Any

from apexbridge.agent.request import ApprovalMode
from apexbridge.errors import ApexBridgeError, RequestError, ToolError
from apexbridge.tools.confirmation import Confirmation

APPROVAL_TOOL = "bridge_approve_skill"
"""The call by which a client is asked that wants to be asked so."""


class Approver:
    """Gets approvals for calls that a model made; never from the model's own words or a tool's."""

    def __init__(self, confirmation: Confirmation) -> None:
        self._confirmation = confirmation

    async def approve(self, refusal: ApexBridgeError, mode: ApprovalMode, seconds: float) -> str | None:
        """An approval that a person gave, or None: at once unless the client asked to wait for one.

        One that was given after an earlier request counts, where everything is as it was then.

        Raises:
            ToolError: APPROVAL_INVALID, the person said no.
        """
        id = str(refusal.details.get("approvalId"))
        if given := await self._confirmation.given_already(id):
            return given
        if mode != "wait":
            return None
        try:
            known = await self._confirmation.answer_to(id, seconds=seconds)
        except RequestError:  # dropped, or the tool is gone
            return None
        if known.state == "denied":
            raise ToolError("The user did not agree, so it was not run. Go on without it.", code="APPROVAL_INVALID")
        return id if known.state == "approved" else None

    async def answered(self, id: str, *, agreed: bool) -> str | None:
        """A client's own answer to the question that it was asked; gives the approval, or None."""
        try:
            await self._confirmation.decide(id, approve=agreed)
        except ApexBridgeError:  # somebody else was quicker, or it has expired: what counts is what is known now
            agreed = await self._is_approved(id)
        return id if agreed else None

    async def _is_approved(self, id: str) -> bool:
        try:
            return (await self._confirmation.get(id)).state == "approved"
        except ApexBridgeError:  # what has expired, or was about a skill that is gone, is forgotten after a while
            return False


def question_for(refusal: ApexBridgeError) -> dict[str, Any]:
    """The call that asks a client."""
    details = refusal.details
    asked = {
        "approvalId": details.get("approvalId"),
        "skill": details.get("skillName") or details.get("tool"),
        "summary": f"{details.get('confirm')} The call: {details.get('summary')}",
        "call": details.get("summary"),  # on its own: the question is the skill's, and may look like a call
    }
    return {
        "id": f"call_{uuid.uuid4().hex[:24]}",
        "type": "function",
        "function": {"name": APPROVAL_TOOL, "arguments": json.dumps(asked, ensure_ascii=False)},
    }
