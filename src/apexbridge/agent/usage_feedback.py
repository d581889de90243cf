"""Reports successful runs of skills to the search, so that similar requests rank the skill higher."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Sequence
from typing import Any

from apexbridge.agent.request import ChatRequest
from apexbridge.agent.tool_calls import Outcome, found_names
from apexbridge.errors import ApexBridgeError
from apexbridge.llm.tool_modes import text_of
from apexbridge.retrieval.documents import tool_key
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
        asked = last_question(request.messages)
        queries: dict[str, str] = {}
        for outcome in outcomes:
            if outcome.tool == "vector-search" and outcome.succeeded:
                keys = [*found_names(outcome.data, "skill"), *map(tool_key, found_names(outcome.data, "tool"))]
                queries |= dict.fromkeys(keys, str(outcome.arguments.get("query", "")))
            elif (skill := _done_by(outcome, queries)) and (text := queries.get(skill) or asked):
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


def last_question(messages: Sequence[Any]) -> str:
    """The last user message if it is short."""
    asked = next(
        (message for message in reversed(messages) if isinstance(message, dict) and message.get("role") == "user"), None
    )
    text = text_of(asked.get("content")).strip() if asked else ""
    return text if len(text) <= MAX_CHARACTERS else ""


def _done_by(outcome: Outcome, found: Collection[str]) -> str | None:
    """The skill that a successful call ran, or the key of a tool that a search has found."""
    if outcome.tool is None or not (isinstance(outcome.data, dict) and outcome.data.get("success") is True):
        return None
    name = str(outcome.arguments.get("name", "")) if outcome.tool == "run-skill" else outcome.tool
    if tool_key(name) in found:
        return tool_key(name)
    if outcome.tool == "run-skill":
        return name
    return outcome.tool.removeprefix(SKILL_PREFIX) if outcome.tool.startswith(SKILL_PREFIX) else None
