"""The states of tool calls in a chat, for clients that show a call while it runs."""

import asyncio
from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from apexbridge._tasks import run_to_completion
from apexbridge.tools.allowance import RUN_CODE, RUN_SKILL
from apexbridge.tools.naming import MCP_CATEGORY, SKILL_PREFIX
from apexbridge.tools.registry import ToolRegistry

Json = dict[str, Any]
CallKind = Literal["search", "tool", "skill", "code", "mcp"]
CallState = Literal["started", "running", "waiting", "ended"]
ARGUMENTS_BYTES = 64 * 1024
RESULT_BYTES = 16 * 1024
_MAX_CHARACTER_BYTES = 4
_KINDS: Mapping[str, CallKind] = {
    "vector-search": "search",
    "read-skill": "skill",
    RUN_SKILL: "skill",
    RUN_CODE: "code",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolStep:
    """One state of a call of this server's tools."""

    call: Json
    """As the model made it: `id`, and `function` with its name and arguments."""
    kind: CallKind
    state: CallState = "started"
    execution_id: str | None = None
    """The run that the call has started."""
    approval_id: str | None = None
    """The approval that the call waits or waited for."""
    success: bool | None = None
    duration_ms: int | None = None
    result: str | None = None
    """The text for the model."""
    results: list[Json] | None = None
    """The hits of a search."""

    def to_dict(self) -> Json:
        """The step as clients see it, with long texts truncated."""
        function = self.call["function"]
        arguments, result = _beginning(function["arguments"], ARGUMENTS_BYTES), self.result
        shown = None if result is None else _beginning(result, RESULT_BYTES)
        return {
            "id": self.call["id"],
            "name": function["name"],
            "kind": self.kind,
            "arguments": arguments,
            "argumentsTruncated": arguments is not function["arguments"],
            "state": self.state,
            "executionId": self.execution_id,
            "approvalId": self.approval_id,
            "success": self.success,
            "durationMs": self.duration_ms,
            "result": shown,
            "resultTruncated": shown is not result,
            "results": self.results,
        }


class StepQueue:
    """Steps of calls that run, in order."""

    def __init__(self) -> None:
        self._steps: asyncio.Queue[ToolStep | None] = asyncio.Queue()

    def add(self, step: ToolStep) -> None:
        self._steps.put_nowait(step)

    async def during(self, work: "asyncio.Task[Any]") -> AsyncGenerator[ToolStep, None]:
        """Yield the steps that are added until `work` ends. If the reader stops, it is cancelled."""
        work.add_done_callback(lambda _: self._steps.put_nowait(None))
        try:
            while (step := await self._steps.get()) is not None:
                yield step
        finally:
            if not work.done():
                work.cancel()
                await run_to_completion(asyncio.wait([work]))


def kind_of(registry: ToolRegistry, id: str | None, arguments: Mapping[str, Any]) -> CallKind:
    """The kind of a call. `run-skill` can also call a tool of an MCP server."""
    name = arguments.get("name") if id == RUN_SKILL else id
    tool = registry.find(name) if isinstance(name, str) else None
    if tool is not None and tool.metadata.category == MCP_CATEGORY:
        return "mcp"
    if id is not None and id.startswith(SKILL_PREFIX):
        return "skill"
    return _KINDS.get(id or "", "tool")


def _beginning(text: str, limit: int) -> str:
    """The beginning of a text, up to that many bytes; the same object if all of it fits."""
    if len(text) * _MAX_CHARACTER_BYTES <= limit or len(data := text.encode("utf-8", "replace")) <= limit:
        return text
    return data[:limit].decode("utf-8", "ignore")
