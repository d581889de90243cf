"""Runs a model's tool calls concurrently. Errors become results, so that the model can react to them."""

import asyncio
import functools
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from apexbridge._json import loads_untrusted
from apexbridge._text import near_names
from apexbridge.agent.budget import Budget
from apexbridge.agent.tool_offer import SEARCH, ToolOffer
from apexbridge.agent.tool_steps import ToolStep, kind_of
from apexbridge.errors import ApexBridgeError, did_you_mean
from apexbridge.retrieval.kinds import Kind
from apexbridge.tools.allowance import RUN_SKILL
from apexbridge.tools.conversation import Conversation, LoopWatch
from apexbridge.tools.model_text import MAX_NAME, result_text
from apexbridge.tools.registry import ToolRegistry
from apexbridge.tools.tool import ToolResult

Json = dict[str, Any]
Approve = Callable[[ApexBridgeError, Callable[[], None]], Awaitable[str | None]]
"""Asks for the approval of a refused call; returns its id, or None if there is no approval.

The function is called before it waits."""
MAX_LISTED = 20
"""Names that are compared with a wrong one, and that are listed. A model can make many wrong calls."""
MAX_ARGUMENTS = 1_000_000
"""Characters. Arguments are parsed and validated on the event loop."""
_TRUSTED_OUTPUT_TOOLS = frozenset({"calculate", "datetime", "platform-detect", "file-write"})
"""Results and errors of these tools contain only the model's own words and ours. All others may contain untrusted
text: file names, descriptions of skills, values of their schemas."""
NOT_APPROVED = "Error (APPROVAL_INVALID): the user did not agree, or not in time, so it was not run. Go on without it."


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    call: Json
    text: str
    """For the model."""
    tool: str | None
    succeeded: bool
    duration_ms: int
    arguments: Json = field(default_factory=dict)
    data: Any = None
    notices: tuple[str, ...] = ()
    refusal: ApexBridgeError | None = None
    is_loop: bool = False
    """Whether the same call was repeated too often."""

    @property
    def message(self) -> Json:
        content = "\n".join([self.text, *(f"[Note: {notice}]" for notice in self.notices)])
        return {
            "role": "tool",
            "tool_call_id": self.call["id"],
            "name": self.call["function"]["name"],
            "content": content,
        }

    @property
    def needs_approval(self) -> bool:
        return self.refusal is not None and self.refusal.code == "CONFIRMATION_REQUIRED"

    @property
    def hits(self) -> list[Json] | None:
        """The results of a search."""
        if self.tool != SEARCH or not isinstance(self.data, dict):
            return None
        return [{key: hit[key] for key in ("kind", "name", "score", "why")} for hit in self.data.get("results", [])]


class ToolCaller:
    """Runs the tool calls of one request."""

    def __init__(
        self,
        registry: ToolRegistry,
        offer: ToolOffer,
        conversation: Conversation,
        budget: Budget,
        approve: Approve,
        report: Callable[[ToolStep], None] | None = None,
        *,
        asks_client: bool = False,
    ) -> None:
        """`report` receives each state of a call. With `asks_client`, calls that need approval wait for the client."""
        self._registry = registry
        self._offer = offer
        self._conversation = conversation
        self._budget = budget
        self._approve = approve
        self._report = report
        self._asks_client = asks_client
        self._watch = LoopWatch()
        """Counts refused calls too. Calls that run are counted by the executor."""

    async def run(self, calls: Sequence[Json]) -> list[Outcome]:
        """Run all calls concurrently. Results are in the order of the calls; cancelling cancels all of them."""
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(self._one(call)) for call in calls]
        return [task.result() for task in tasks]

    async def run_approved(self, call: Json, approval: str | None) -> Outcome:
        """Run a call whose approval was requested. Without an approval it is not run."""
        if approval is None:
            return self.refuse(call, NOT_APPROVED)
        return await self._one(call, approval)

    def refuse(self, call: Json, text: str) -> Outcome:
        """The outcome of a call that is not run."""
        outcome = Outcome(call=call, text=text, tool=None, succeeded=False, duration_ms=0)
        self._steps_of(call).end(outcome)
        return outcome

    def _steps_of(self, call: Json) -> "_CallSteps":
        id = self._offer.id_of(call["function"]["name"])
        arguments, _ = read_arguments(call["function"]["arguments"]) if self._report and id == RUN_SKILL else ({}, None)
        step = ToolStep(call=call, kind=kind_of(self._registry, id, arguments))
        return _CallSteps(step, self._report or _ignore_step, asks_client=self._asks_client)

    async def _one(self, call: Json, approval: str | None = None) -> Outcome:
        steps = self._steps_of(call)
        outcome = await self._outcome(call, approval, steps)
        steps.end(outcome)
        return outcome

    async def _outcome(self, call: Json, approval: str | None, steps: "_CallSteps") -> Outcome:
        begun = time.monotonic()
        name, written = call["function"]["name"], call["function"]["arguments"]
        warning = self._watch.note(name, {"written": written})

        def refused(text: str, tool: str | None = None, refusal: ApexBridgeError | None = None) -> Outcome:
            # The message of a refusal can quote untrusted text; PERMISSION_DENIED quotes the skill's allowed-tools.
            is_trusted = tool in _TRUSTED_OUTPUT_TOOLS and (refusal is None or refusal.code != "PERMISSION_DENIED")
            self._conversation.tainted |= not is_trusted
            notices = (warning,) if warning else ()
            return outcome(text, tool, succeeded=False, notices=notices, refusal=refusal, is_loop=warning is not None)

        def outcome(text: str, tool: str | None = None, **more: Any) -> Outcome:
            took = round((time.monotonic() - begun) * 1000)
            return Outcome(call=call, text=text, tool=tool, duration_ms=took, **more)

        id = self._offer.id_of(name)
        if id is None:
            return refused(f"Error (TOOL_NOT_FOUND): there is no tool {name[:64]}{suggestion(name, self._offer.names)}")
        self._offer.add_tool(id)  # a model may know the name of a tool that no search of this request has found
        arguments, problem = read_arguments(written)
        if problem:
            return refused(f"Error (INVALID_INPUT): {problem}", id)
        try:
            async with asyncio.timeout(self._budget.seconds_left):
                result = await self._execute(id, arguments, approval, steps)
        except ApexBridgeError as error:
            return refused(f"{_error_text(error)}{_near_skills(error)}", id, error)
        except TimeoutError:
            return refused("Error (TIMEOUT): the time of this request is over, so the call was ended.", id)
        self._conversation.tainted |= id not in _TRUSTED_OUTPUT_TOOLS
        text = result_text(self._registry, id, arguments, result)
        if id == SEARCH:
            query, hits = str(arguments.get("query", "")), result.data
            if more := await self._offer.found(query, found_names(hits, "skill"), found_names(hits, "tool")):
                text = f"{text}\n{more}"
        return outcome(
            text,
            id,
            succeeded=not result.is_error,
            arguments=arguments,
            data=result.data,
            notices=result.notices,
            is_loop=result.is_repeated,
        )

    async def _execute(self, id: str, arguments: Json, approval: str | None, steps: "_CallSteps") -> ToolResult:
        execute = functools.partial(
            self._registry.execute, id, arguments, conversation=self._conversation, on_run=steps.run
        )
        try:
            return await execute(approval=approval)
        except ApexBridgeError as error:
            if error.code != "CONFIRMATION_REQUIRED":
                raise
            steps.note_approval(error)
            if (approval := await self._approve(error, steps.wait)) is None:
                raise
            return await execute(approval=approval)


class _CallSteps:
    """Reports the states of one call."""

    def __init__(self, step: ToolStep, report: Callable[[ToolStep], None], *, asks_client: bool) -> None:
        self._step = step
        self._report = report
        self._asks_client = asks_client
        report(step)

    def _change(self, **changes: Any) -> None:
        self._step = replace(self._step, **changes)
        self._report(self._step)

    def run(self, id: str) -> None:
        self._change(state="running", execution_id=id)

    def note_approval(self, refusal: ApexBridgeError) -> None:
        self._step = replace(self._step, approval_id=str(refusal.details.get("approvalId")))

    def wait(self) -> None:
        self._change(state="waiting")

    def end(self, outcome: Outcome) -> None:
        if outcome.needs_approval and self._asks_client:
            self.wait()
            return
        self._change(
            state="ended",
            success=outcome.succeeded,
            duration_ms=outcome.duration_ms,
            result=outcome.message["content"],
            results=outcome.hits,
        )


def _ignore_step(step: ToolStep) -> None:
    pass


def _near_skills(error: ApexBridgeError) -> str:
    """What to do about a skill that does not exist, unless the error suggests names."""
    is_unknown = error.code in ("ENOENT", "SKILL_NOT_FOUND") and "suggestions" not in error.details
    return " search_skills finds the names of skills." if is_unknown else ""


def suggestion(name: str, names: Sequence[str]) -> str:
    """The end of a message: similar tools, or the first tools."""
    if near := near_names(name, names):
        return did_you_mean([other[:MAX_NAME] for other in near])
    known = [known[:MAX_NAME] for known in names[:MAX_LISTED]]
    more = f" and {len(names) - MAX_LISTED} more" if len(names) > MAX_LISTED else ""
    return f". There are {', '.join(known)}{more}."


def read_arguments(written: str) -> tuple[Json, str | None]:
    """Parse a call's arguments; returns them and a problem, if there is one."""
    if len(written) > MAX_ARGUMENTS:
        return {}, f"the arguments are longer than {MAX_ARGUMENTS:,} characters; send fewer."
    try:
        arguments = loads_untrusted(written) if written.strip() else {}
    except ValueError as error:
        return {}, f"the arguments are not valid JSON ({error}); send one JSON object."
    if arguments is None:
        return {}, None
    if not isinstance(arguments, dict):
        return {}, "the arguments must be one JSON object."
    return arguments, None


def found_names(data: Any, kind: Kind) -> list[str]:
    """Names of the skills, or ids of the tools, in the result of a search."""
    hits = data.get("results", []) if isinstance(data, dict) else []
    return [hit["name"] for hit in hits if hit.get("kind", "skill") == kind]


def _error_text(error: ApexBridgeError) -> str:
    if error.code == "CONFIRMATION_REQUIRED":
        id = error.details.get("approvalId")
        return (
            f"Error (CONFIRMATION_REQUIRED): {error.message} It was not run. Tell the user that approval {id} is "
            f"pending: it is given with `apex approvals approve {id}`, and then the request "
            "can be made again."
        )
    again = " Trying again later may help." if error.is_retryable else ""
    return f"Error ({error.code}): {error.message}{again}"
