"""Runs a call of a tool: find, allow, validate, approve, run, truncate, record.

Calls of skills are approved and recorded by `SkillRuns`, which uses `admit` and `record` of this module, because a run
outlives its tool call and can be started without one. `Tool.admits_itself` marks these tools.
"""

import asyncio
import json
import logging
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from apexbridge._tracing import NO_TRACER, Tracer
from apexbridge.errors import ApexBridgeError, InvalidInputError, PermissionDeniedError, ToolExecutionError
from apexbridge.tools.approvals import Approvals, ApprovalUse
from apexbridge.tools.calls import CallHistory, CallRecord
from apexbridge.tools.conversation import Conversation
from apexbridge.tools.tool import Tool, ToolContext, ToolResult
from apexbridge.wire import summary_of

if TYPE_CHECKING:
    from apexbridge.tools.registry import ToolRegistry

OUTPUT_BYTES = 32 * 1024
"""Size of the text for the model; the result object is not truncated."""
MAX_ERROR_CHARACTERS = 1000
UNKNOWN = "unknown"
MAX_CHARACTER_BYTES = 4
logger = logging.getLogger(__name__)

Counter = Callable[[str, bool, int], None]
"""Called after each call that ran: tool id, success, milliseconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Admission:
    """A call that may run."""

    tool: Tool
    input: Mapping[str, Any]
    value: Any
    """The input as the tool receives it."""
    conversation: Conversation
    approval: ApprovalUse | None
    """The approval that this call uses; None if it needed none."""

    @asynccontextmanager
    async def begin(self) -> AsyncIterator[None]:
        """Release the approval if the block fails: only a call that has begun uses it up."""
        try:
            yield
        except BaseException:
            if self.approval is not None:
                await self.approval.release()
            raise
        if self.approval is not None:
            self.approval.use_up()


class ToolExecutor:
    """Runs calls of registered tools."""

    def __init__(
        self,
        registry: "ToolRegistry",
        history: CallHistory,
        *,
        approvals: Approvals | None,
        counter: Counter | None,
        tracer: Tracer = NO_TRACER,
    ) -> None:
        self._tracer = tracer
        self._registry = registry
        self.history = history
        self._approvals = approvals
        self._counter = counter

    async def execute(self, id: str, context: ToolContext) -> ToolResult:
        """Call a tool; see `ToolRegistry.execute`."""
        name = id if self._registry.find(id) is not None else UNKNOWN  # the name of a missing tool is untrusted text
        attributes = {
            "gen_ai.operation.name": "execute_tool",
            "gen_ai.tool.name": name,
            "gen_ai.tool.call.id": context.call_id,
            "gen_ai.tool.type": "function",
        }
        with self._tracer.start(f"execute_tool {name}", attributes) as span, span.current():
            result = await self._execute(id, context)
            if result.is_error:
                span.fail("tool_error")
            return result

    async def _execute(self, id: str, context: ToolContext) -> ToolResult:
        conversation, input = context.conversation, context.input
        # Only this call is checked, not the calls it leads to: running a skill is a separate call.
        allowance = conversation.allowance
        if allowance is not None and not allowance.permits(id, input):
            raise PermissionDeniedError(
                f"{id} is not among the allowed tools of {allowance.skill}: {allowance.text}",
                tool=id,
                skillName=allowance.skill,
            )
        tool = self._registry.callable(id)
        if tool.admits_itself:
            value, record = _read(tool, input), None
        else:
            admission = await self.admit(id, input, conversation=conversation, approval=context.approval)
            value, record = admission.value, self.record(admission, context.call_id)
        result = await self._run(tool, value, context, record)
        warning = conversation.loop.note(id, input) if conversation.id is not None else None
        return replace(
            result,
            output=bounded(result.output, whole=result.whole),
            notices=(*result.notices, warning) if warning else result.notices,
            is_repeated=warning is not None,
        )

    async def admit(
        self,
        id: str,
        input: Mapping[str, Any],
        *,
        conversation: Conversation | None = None,
        approval: str | None = None,
        extra: Mapping[str, Any] | None = None,
        validate: bool = True,
        dangerous: bool | None = None,
    ) -> Admission:
        """Decide whether a call may run: the first half of `execute`, for callers that run the second half elsewhere.

        `extra` is everything else that affects what the call does; an approval covers it too. `dangerous` overrides
        the tool's own metadata.
        """
        tool = self._registry.callable(id)
        value = _read(tool, input, validate=validate)
        conversation = conversation or Conversation()
        use = None
        if self._approvals is not None and (tool.metadata.dangerous if dangerous is None else dangerous):
            call = {"input": input, **{key: value for key, value in (extra or {}).items() if value}}
            use = await self._approvals.require(
                tool, call, caller=conversation.caller, approval=approval, always=conversation.tainted
            )
        return Admission(tool=tool, input=input, value=value, conversation=conversation, approval=use)

    def needs_approval(self, conversation: Conversation) -> bool:
        """Whether a dangerous call needs approval in this conversation."""
        return self._approvals is not None and self._approvals.asks(always=conversation.tainted)

    def record(self, admission: Admission, call_id: str) -> CallRecord:
        """Record a call that is about to begin."""
        conversation_id = admission.conversation.id
        return self.history.add(admission.tool.id, admission.input, call_id=call_id, conversation_id=conversation_id)

    async def _run(self, tool: Tool, value: Any, context: ToolContext, record: CallRecord | None) -> ToolResult:
        begun = time.perf_counter()
        if record is not None:
            record.mark_running()
        error: str | None = "cancelled"
        output = None
        try:
            result = await self._within_timeout(tool, value, context)
            output, error = result.data, result.output if result.is_error else None
            return result
        except ApexBridgeError as failure:
            error = failure.message
            raise
        except (Exception, SystemExit) as failure:  # SystemExit in a tool must not end the server
            error = str(failure)
            logger.exception("the tool %s failed", tool.id)
            raise ToolExecutionError(f"{tool.id} failed: {_error_text(failure)}", tool=tool.id) from failure
        except BaseException:  # the caller was cancelled and no longer waits
            context.cancelled.set()
            raise
        finally:
            if record is not None and error is None:
                record.complete(output)
            elif record is not None and error is not None:
                record.fail(error)
            if self._counter is not None:
                self._counter(tool.id, error is None, round((time.perf_counter() - begun) * 1000))

    async def _within_timeout(self, tool: Tool, value: Any, context: ToolContext) -> ToolResult:
        timeout = tool.metadata.timeout
        if timeout is None:
            return await tool.run(value, context)
        try:
            async with asyncio.timeout(timeout / 1000) as deadline:
                return await tool.run(value, context)
        except TimeoutError:
            if not deadline.expired():  # an error of the tool's own
                raise
            context.cancelled.set()
            raise ToolExecutionError(f"{tool.id} took longer than {timeout} ms", code="TIMEOUT", tool=tool.id) from None


def _read(tool: Tool, input: Mapping[str, Any], *, validate: bool = True) -> Any:
    """The input as the tool receives it."""
    try:
        json.dumps(input, ensure_ascii=False, default=str).encode()
    except ValueError as error:
        raise InvalidInputError(
            f"The input of {tool.id} is not valid JSON: it contains a lone surrogate or a number with thousands of "
            "digits",
            tool=tool.id,
        ) from error
    value, problems = tool.parameters.read(input) if validate else (input, [])
    if problems:
        errors = [problem.model_dump() for problem in problems]
        message = f"The input of {tool.id} does not fit: {summary_of(errors)}"
        raise InvalidInputError(message, tool=tool.id, errors=errors)
    return value


def _error_text(error: BaseException) -> str:
    """The error as text. The path of an OSError is omitted: it is a path on the server."""
    text = ((error.strerror or "") if isinstance(error, OSError) else str(error))[:MAX_ERROR_CHARACTERS]
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def bounded(text: str, *, whole: str | None = None, limit: int = OUTPUT_BYTES) -> str:
    """Replace the middle of a long text by a note: the important parts are usually at both ends."""
    if len(text) * MAX_CHARACTER_BYTES <= limit or len(data := text.encode("utf-8", "replace")) <= limit:
        return text
    half = limit // 2
    head, tail = data[:half].decode("utf-8", "ignore"), data[-half:].decode("utf-8", "ignore")
    where = f"; the whole can be read with file_read, path {whole}" if whole else ""
    return f"{head}\n[… truncated: {len(data) - 2 * half} of {len(data)} bytes are left out here{where} …]\n{tail}"
