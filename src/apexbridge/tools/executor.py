"""The one place that runs a call: find, allow, validate, confirm, run, bound, record."""

import logging
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import anyio

from apexbridge.errors import ApexBridgeError, InvalidInputError, PermissionDeniedError, ToolExecutionError
from apexbridge.tools.conversation import Conversation
from apexbridge.tools.history import CallHistory, CallRecord
from apexbridge.tools.tool import Progress, Tool, ToolContext, ToolResult, unheard

if TYPE_CHECKING:
    from apexbridge.tools.confirmation import Confirmation
    from apexbridge.tools.registry import ToolRegistry

OUTPUT_BYTES = 32 * 1024
"""Of the text for the model; the result object is whole."""
LONGEST_CHARACTER = 4
"""Bytes of UTF-8."""
logger = logging.getLogger(__name__)

Counter = Callable[[str, bool, int], None]
"""Told of each call that ran: the tool, whether it went well, milliseconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Admitted:
    """A call that may run."""

    tool: Tool
    input: Mapping[str, Any]
    value: Any
    """The input as the tool takes it."""
    conversation: Conversation
    approval: str | None
    """The confirmation that it used up."""
    notice: str | None


class ToolExecutor:
    """Runs calls of everything that is registered."""

    def __init__(
        self,
        registry: "ToolRegistry",
        history: CallHistory,
        *,
        confirmation: "Confirmation | None" = None,
        counter: Counter | None = None,
    ) -> None:
        self._registry = registry
        self.history = history
        self.confirmation = confirmation
        self._counter = counter

    async def execute(
        self,
        id: str,
        input: Mapping[str, Any] | None = None,
        *,
        conversation: Conversation | None = None,
        call_id: str | None = None,
        message_id: str | None = None,
        approval: str | None = None,
        progress: Progress = unheard,
    ) -> ToolResult:
        """Call a tool.

        Raises:
            ToolNotFoundError, ToolDisabledError: it is not there, or switched off.
            PermissionDeniedError: the skill whose instructions are in force does not allow it.
            InvalidInputError: the input does not fit its schema.
            ToolError: CONFIRMATION_REQUIRED, where it is dangerous and nobody has confirmed this very call.
            ToolExecutionError: the tool itself failed.
        """
        admitted = await self.admit(id, input or {}, conversation=conversation, approval=approval)
        context = ToolContext(
            call_id=call_id or uuid.uuid4().hex,
            input=admitted.input,
            registry=self._registry,
            conversation=admitted.conversation,
            message_id=message_id,
            approval=approval,
            progress=progress,
        )
        record = self.open(admitted, context.call_id)
        return await self._run(admitted, context, record)

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
    ) -> Admitted:
        """Decide whether a call may run: the first half of `execute`, for whoever runs the second half elsewhere.

        `extra` is what else decides what the call does; a confirmation holds for that too. `dangerous` is whether to
        ask for one, where that is not the tool's to say.
        """
        conversation = conversation or Conversation()
        tool = self._registry.callable(id)
        if conversation.allowance is not None and not conversation.allowance.permits(id, input):
            allowance = conversation.allowance
            raise PermissionDeniedError(
                f"{id} is not among the allowed tools of {allowance.skill}: {allowance.told}",
                tool=id,
                skillName=allowance.skill,
            )
        value, problems = tool.parameters.read(input) if validate else (input, [])
        if problems:
            told = "; ".join(f"{problem.path}: {problem.message}".removeprefix(": ") for problem in problems)
            errors = [problem.model_dump() for problem in problems]
            raise InvalidInputError(f"The input of {id} does not fit: {told}", tool=id, errors=errors)
        used = None
        if self.confirmation is not None and (tool.metadata.dangerous if dangerous is None else dangerous):
            call = {"input": input, **(extra or {})}
            used = await self.confirmation.require(tool, call, caller=conversation.caller, approval=approval)
        return Admitted(
            tool=tool,
            input=input,
            value=value,
            conversation=conversation,
            approval=used,
            notice=conversation.loop.note(id, input) if conversation.id is not None else None,
        )

    def open(self, admitted: Admitted, call_id: str) -> CallRecord:
        """Take the call down; it is about to begin."""
        return self.history.open(
            call_id=call_id,
            tool=admitted.tool.id,
            input=admitted.input,
            conversation_id=admitted.conversation.id,
        )

    async def _run(self, admitted: Admitted, context: ToolContext, record: CallRecord) -> ToolResult:
        tool = admitted.tool
        begun = time.perf_counter()
        record.run()
        try:
            result = await self._within_its_time(tool, admitted.value, context)
        except ApexBridgeError as error:
            self._ended(record, begun, error=error.message)
            raise
        except Exception as error:
            self._ended(record, begun, error=str(error))
            logger.exception("the tool %s failed", tool.id)
            told = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
            raise ToolExecutionError(f"{tool.id} failed: {told}", tool=tool.id) from error
        except BaseException:  # nobody waits for it any more
            context.cancelled.set()
            self._ended(record, begun, error="cancelled")
            raise
        self._ended(record, begun, output=result.data, error=result.output if result.is_error else None)
        output = bounded(result.output, whole=result.whole)
        if output is result.output and admitted.notice is None:
            return result
        notices = (*result.notices, admitted.notice) if admitted.notice else result.notices
        return replace(result, output=output, notices=notices)

    async def _within_its_time(self, tool: Tool, value: Any, context: ToolContext) -> ToolResult:
        if tool.metadata.timeout is None:
            return await tool.run(value, context)
        try:
            with anyio.fail_after(tool.metadata.timeout / 1000):
                return await tool.run(value, context)
        except TimeoutError as error:
            context.cancelled.set()
            raise ToolExecutionError(
                f"{tool.id} took longer than {tool.metadata.timeout} ms", code="TIMEOUT", tool=tool.id
            ) from error

    def _ended(self, record: CallRecord, begun: float, *, output: Any = None, error: str | None = None) -> None:
        if error is None:
            record.complete(output)
        else:
            record.fail(error)
        if self._counter is not None:
            self._counter(record.tool, error is None, round((time.perf_counter() - begun) * 1000))


def bounded(text: str, *, whole: str | None = None, limit: int = OUTPUT_BYTES) -> str:
    """Long text with its middle left out, and a word about that: what matters stands at either end."""
    if len(text) * LONGEST_CHARACTER <= limit or len(data := text.encode("utf-8", "replace")) <= limit:
        return text
    half = limit // 2
    head, tail = data[:half].decode("utf-8", "ignore"), data[-half:].decode("utf-8", "ignore")
    where = f"; the whole can be read with file_read, path {whole}" if whole else ""
    return f"{head}\n[… truncated: {len(data) - 2 * half} of {len(data)} bytes are left out here{where} …]\n{tail}"
