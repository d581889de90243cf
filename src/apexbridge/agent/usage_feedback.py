"""Reports successful runs of skills to the search, so that similar requests rank the skill higher."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from apexbridge.agent.request import ChatRequest
from apexbridge.agent.tool_calls import Outcome, found_skills
from apexbridge.errors import ApexBridgeError
from apexbridge.llm.tool_modes import text_of
from apexbridge.tools.naming import SKILL_PREFIX

MAX_CHARACTERS = 500
"""A longer question is a document that is not asked again."""
MAX_WAITING = 100
RecordUsage = Callable[[str, str, ChatRequest], Awaitable[Any]]
"""Records a query, the skill that fulfilled it, and the request of both."""
logger = logging.getLogger(__name__)


class UsageFeedback:
    """Records usage in the background, so that the answer does not wait for it."""

    def __init__(self, teach: RecordUsage | None) -> None:
        self._teach = teach
        self._waiting: set[asyncio.Task[None]] = set()

    def learn(self, request: ChatRequest, outcomes: Sequence[Outcome]) -> None:
        """Record the successful runs of an answered request."""
        if self._teach is None or len(self._waiting) >= MAX_WAITING:
            return
        asked = _question(request)
        queries: dict[str, str] = {}
        for outcome in outcomes:
            if outcome.tool == "vector-search" and outcome.succeeded:
                queries |= dict.fromkeys(found_skills(outcome.data), str(outcome.arguments.get("query", "")))
            elif (skill := _done_by(outcome)) and (text := queries.get(skill) or asked):
                task = asyncio.ensure_future(self._taught(text, skill, request))
                self._waiting.add(task)
                task.add_done_callback(self._waiting.discard)

    async def close(self) -> None:
        """Wait for pending records."""
        if self._waiting:
            await asyncio.wait(self._waiting)

    async def _taught(self, text: str, skill: str, request: ChatRequest) -> None:
        assert self._teach is not None  # noqa: S101  # learn() checks it
        try:
            await self._teach(text, skill, request)
        except (ApexBridgeError, OSError) as error:  # the answer has been sent; only this record is lost
            logger.warning("the use of %s was not recorded: %s", skill, error)


def _question(request: ChatRequest) -> str:
    """The last user message if it is short."""
    asked = next((message for message in reversed(request.messages) if message["role"] == "user"), None)
    text = text_of(asked.get("content")).strip() if asked else ""
    return text if len(text) <= MAX_CHARACTERS else ""


def _done_by(outcome: Outcome) -> str | None:
    if outcome.tool is None or not (isinstance(outcome.data, dict) and outcome.data.get("success") is True):
        return None
    if outcome.tool == "run-skill":
        return str(outcome.arguments.get("name", ""))
    return outcome.tool.removeprefix(SKILL_PREFIX) if outcome.tool.startswith(SKILL_PREFIX) else None
