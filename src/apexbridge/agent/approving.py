"""Dangerous skills in a conversation: who is asked, and how long one waits for the answer."""

import asyncio

from apexbridge.agent.request import ApprovalMode
from apexbridge.errors import ApexBridgeError
from apexbridge.tools.confirmation import Confirmation

LOOK_SECONDS = 0.25


class Approver:
    """Gets approvals for calls that a model made; never from the model's own words or a tool's."""

    def __init__(self, confirmation: Confirmation) -> None:
        self._confirmation = confirmation

    async def approve(self, refusal: ApexBridgeError, mode: ApprovalMode, seconds: float) -> str | None:
        """An approval that a person gave, or None: at once unless the client asked to wait for one."""
        id = str(refusal.details.get("approvalId"))
        if mode != "wait":
            return None
        deadline = asyncio.get_running_loop().time() + seconds
        while asyncio.get_running_loop().time() < deadline:
            known = await self._confirmation.get(id)
            if known.state != "waiting":
                return id if known.state == "approved" else None
            await asyncio.sleep(LOOK_SECONDS)
        return None
