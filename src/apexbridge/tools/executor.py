"""The one place that runs a call: find, allow, validate, approve, run, truncate, record."""

import json
import logging
import time
import uuid
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import anyio

from apexbridge.errors import ApexBridgeError, InvalidInputError, PermissionDeniedError, ToolExecutionError
from apexbridge.tools.conversation import Conversation
from apexbridge.tools.history import CallHistory, CallRecord
from apexbridge.tools.tool import Progress, Tool, ToolContext, ToolResult, unheard
from apexbridge.wire import summary_of

if TYPE_CHECKING:
    from apexbridge.tools.confirmation import Admission, Confirmation
    from apexbridge.tools.registry import ToolRegistry

OUTPUT_BYTES = 32 * 1024
"""Size of the text for the model; the result object is not truncated."""
MAX_ERROR_CHARACTERS = 1000
LONGEST_CHARACTER = 4
"""Bytes of a character in UTF-8, at most."""
logger = logging.getLogger(__name__)

Counter = Callable[[str, bool, int], None]
"""Called after each call that ran: tool id, success, milliseconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Admitted:
    """A call that may run."""

    tool: Tool
    input: Mapping[str, Any]
    value: Any
    """The input as the tool receives it."""
    conversation: Conversation
    admission: "Admission | None"
    """The admission for which an approval was used; None if no approval was needed."""

    @asynccontextmanager
    async def begin(self) -> AsyncIterator[None]:
        """Release the approval if the block fails: only a call that has begun uses it up."""
        try:
            yield
        except BaseException:
            if self.admission is not None:
                await self.admission.release()
            raise
        if self.admission is not None:
            self.admission.settle()


class ToolExecutor:
    """Runs calls of registered tools."""

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
            ToolNotFoundError, ToolDisabledError: the tool does not exist, or is disabled.
            PermissionDeniedError: the skill whose instructions are active does not allow the tool.
            InvalidInputError: the input does not match the schema.
            ToolError: CONFIRMATION_REQUIRED, the tool is dangerous and this call was not approved.
            ToolExecutionError: the tool itself failed.
        """
        conversation = conversation or Conversation()
        input = input or {}
        self._check_allowance(id, input, conversation)
        tool = self._registry.callable(id)
        context = ToolContext(
            call_id=call_id or uuid.uuid4().hex,
            input=input,
            registry=self._registry,
            conversation=conversation,
            message_id=message_id,
            approval=approval,
            progress=progress,
        )
        if tool.admits_calls:
            value, record = _read(tool, input), None
        else:
            admitted = await self.admit(id, input, conversation=conversation, approval=approval)
            value, record = admitted.value, self.open(admitted, context.call_id)
        return await self._run(tool, value, context, record)

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
        """Decide whether a call may run: the first half of `execute`, for callers that run the second half elsewhere.

        `extra` is everything else that affects what the call does; an approval covers it too. `dangerous` overrides
        the tool's own metadata.
        """
        tool = self._registry.callable(id)
        value = _read(tool, input, validate=validate)
        conversation = conversation or Conversation()
        admission = None
        if self.confirmation is not None and (tool.metadata.dangerous if dangerous is None else dangerous):
            call = {"input": input, **{key: value for key, value in (extra or {}).items() if value}}
            admission = await self.confirmation.require(
                tool,
                call,
                caller=conversation.caller,
                approval=approval,
                always=conversation.tainted,
            )
        return Admitted(tool=tool, input=input, value=value, conversation=conversation, admission=admission)

    def needs_approval(self, conversation: Conversation) -> bool:
        """Whether a dangerous call needs approval in this conversation."""
        return self.confirmation is not None and self.confirmation.asks(always=conversation.tainted)

    def _check_allowance(self, id: str, input: Mapping[str, Any], conversation: Conversation) -> None:
        """Check the call itself, not the calls it leads to: running a skill is a separate call."""
        allowance = conversation.allowance
        if allowance is not None and not allowance.permits(id, input):
            raise PermissionDeniedError(
                f"{id} is not among the allowed tools of {allowance.skill}: {allowance.told}",
                tool=id,
                skillName=allowance.skill,
            )

    def open(self, admitted: Admitted, call_id: str) -> CallRecord:
        """Record a call that is about to begin."""
        return self.history.open(
            call_id=call_id,
            tool=admitted.tool.id,
            input=admitted.input,
            conversation_id=admitted.conversation.id,
        )

    async def _run(self, tool: Tool, value: Any, context: ToolContext, record: CallRecord | None) -> ToolResult:
        begun = time.perf_counter()
        if record is not None:
            record.run()
        try:
            result = await self._within_its_time(tool, value, context)
        except ApexBridgeError as error:
            self._ended(tool, record, begun, error=error.message)
            raise
        except (Exception, SystemExit) as error:  # SystemExit in a tool must not end the server
            self._ended(tool, record, begun, error=str(error))
            logger.exception("the tool %s failed", tool.id)
            raise ToolExecutionError(f"{tool.id} failed: {_told(error)}", tool=tool.id) from error
        except BaseException:  # the caller was cancelled and no longer waits
            context.cancelled.set()
            self._ended(tool, record, begun, error="cancelled")
            raise
        self._ended(tool, record, begun, output=result.data, error=result.output if result.is_error else None)
        output = bounded(result.output, whole=result.whole)
        conversation = context.conversation
        notice = conversation.loop.note(tool.id, context.input) if conversation.id is not None else None
        notices = (*result.notices, notice) if notice else result.notices
        return replace(result, output=output, notices=notices, is_repeated=notice is not None)

    async def _within_its_time(self, tool: Tool, value: Any, context: ToolContext) -> ToolResult:
        if tool.metadata.timeout is None:
            return await tool.run(value, context)
        with anyio.move_on_after(tool.metadata.timeout / 1000):
            return await tool.run(value, context)
        context.cancelled.set()
        raise ToolExecutionError(f"{tool.id} took longer than {tool.metadata.timeout} ms", code="TIMEOUT", tool=tool.id)

    def _ended(
        self, tool: Tool, record: CallRecord | None, begun: float, *, output: Any = None, error: str | None = None
    ) -> None:
        if record is not None and error is None:
            record.complete(output)
        elif record is not None and error is not None:
            record.fail(error)
        if self._counter is not None:
            self._counter(tool.id, error is None, round((time.perf_counter() - begun) * 1000))


def _read(tool: Tool, input: Mapping[str, Any], *, validate: bool = True) -> Any:
    """The input as the tool receives it.

    Raises:
        InvalidInputError: it does not match the schema, or cannot be written as JSON.
    """
    if not is_text(input):
        raise InvalidInputError(
            f"The input of {tool.id} is not valid JSON: it contains a lone surrogate or a number with thousands of "
            "digits",
            tool=tool.id,
        )
    value, problems = tool.parameters.read(input) if validate else (input, [])
    if problems:
        errors = [problem.model_dump() for problem in problems]
        raise InvalidInputError(
            f"The input of {tool.id} does not fit: {summary_of(errors)}", tool=tool.id, errors=errors
        )
    return value


def is_text(input: Mapping[str, Any]) -> bool:
    """Whether an input can be encoded as UTF-8 JSON: lone surrogates and extremely long numbers cannot."""
    try:
        json.dumps(input, ensure_ascii=False, default=str).encode()
    except ValueError:
        return False
    return True


def _told(error: BaseException) -> str:
    """The error as text. The path of an OSError is omitted: it is a path on the server."""
    text = ((error.strerror or "") if isinstance(error, OSError) else str(error))[:MAX_ERROR_CHARACTERS]
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def bounded(text: str, *, whole: str | None = None, limit: int = OUTPUT_BYTES) -> str:
    """Replace the middle of a long text by a note: the important parts are usually at both ends."""
    if len(text) * LONGEST_CHARACTER <= limit or len(data := text.encode("utf-8", "replace")) <= limit:
        return text
    half = limit // 2
    head, tail = data[:half].decode("utf-8", "ignore"), data[-half:].decode("utf-8", "ignore")
    where = f"; the whole can be read with file_read, path {whole}" if whole else ""
    return f"{head}\n[… truncated: {len(data) - 2 * half} of {len(data)} bytes are left out here{where} …]\n{tail}"
