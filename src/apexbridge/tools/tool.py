"""The definition of a tool: an id, a description for the model, an input schema, and a function."""

import asyncio
import inspect
import json
import re
from collections.abc import Awaitable, Callable, Mapping
from contextvars import copy_context
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Annotated, Any, overload

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from apexbridge.errors import InvalidInputError, InvalidSchemaError
from apexbridge.tools.conversation import Conversation
from apexbridge.tools.schema import Parameters, parameters_of
from apexbridge.wire import problem, summary_of

if TYPE_CHECKING:
    from apexbridge.tools.registry import ToolRegistry

ID_PATTERN = re.compile(r"[A-Za-z0-9][A-Za-z0-9:._-]{0,127}\Z")
RESERVED_IDS = frozenset({"stats"})
"""Names of routes below `/api/tools`."""
MAX_DESCRIPTION_CHARACTERS = 4096
Progress = Callable[[str, float | None], None]
"""Receives the progress of a call: a message, and a fraction from 0 to 1 if known."""
OnRun = Callable[[str], None]
"""Receives the id of a run that a call has started."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolMetadata:
    """Properties of a tool that matter before it is called."""

    __pydantic_config__ = ConfigDict(extra="forbid")

    category: str = "custom"
    """`builtin`, `skill`, `mcp`, or a category that the tool's author chose."""
    permissions: tuple[str, ...] = ()
    timeout: Annotated[int, Field(gt=0)] | None = None
    """Milliseconds that a call may take; None leaves it to the tool."""
    dangerous: bool = False
    """Whether each call needs approval by a person."""
    confirm: str | None = None
    """The question that this person is asked."""
    tags: tuple[str, ...] = ()
    content_hash: str = ""
    """Hash of the tool's content, if that can change under the same id; an approval is valid for one content."""


_METADATA = TypeAdapter(ToolMetadata)


@dataclass(frozen=True, slots=True)
class ToolResult:
    """The result of a call."""

    output: str = ""
    """The text for the model."""
    data: Any = None
    """The result object, for programs."""
    files: tuple[str, ...] = ()
    """Files that the call produced, as paths that the file tools can read."""
    whole: str | None = None
    """Path of the complete output, if that may be too long for the model."""
    notices: tuple[str, ...] = ()
    """Additional messages for the caller."""
    is_error: bool = False
    """Whether the tool ran and failed. A call that could not run raises instead."""
    is_repeated: bool = False
    """Whether the same call was repeated too often in a row; set by the executor."""

    @classmethod
    def of(cls, value: Any) -> "ToolResult":
        """A result from the return value of a tool."""
        if isinstance(value, ToolResult):
            return value if value.data is not None else replace(value, data=_plain(value.output))
        if isinstance(value, BaseModel):
            value = value.model_dump(mode="json", by_alias=True)
        if isinstance(value, str):
            return cls(output=value, data=_plain(value))
        if value is None:
            return cls(data={"success": True})
        return cls(output=json.dumps(value, ensure_ascii=False, default=str), data=value)


def ignore_progress(message: str, share: float | None = None) -> None:
    pass


def ignore_run(id: str) -> None:
    pass


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolContext:
    """The call that a tool runs for."""

    call_id: str
    input: Mapping[str, Any]
    """The raw input, before validation."""
    registry: "ToolRegistry"
    conversation: Conversation = field(default_factory=Conversation)
    """The caller, and the state shared with earlier calls."""
    message_id: str | None = None
    approval: str | None = None
    """An approval that came with the call, for calls that the tool makes."""
    progress: Progress = ignore_progress
    """Callback for the tool's progress."""
    on_run: OnRun = ignore_run
    """Callback for the run that the call starts."""
    cancelled: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when the result is no longer needed; for work in a thread, which cannot be interrupted."""

    @property
    def conversation_id(self) -> str | None:
        return self.conversation.id

    @property
    def caller(self) -> str:
        """The API key's id; empty for callers without a key."""
        return self.conversation.caller


Execute = Callable[[Any, ToolContext], Awaitable[Any] | Any]
ParametersLike = type[BaseModel] | Mapping[str, Any] | Parameters | None
MetadataLike = ToolMetadata | Mapping[str, Any] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Tool:
    """A callable tool: a built-in, a skill, or your own function."""

    id: str
    description: str
    parameters: Parameters
    execute: Execute
    metadata: ToolMetadata = field(default_factory=ToolMetadata)
    admits_itself: bool = False
    """Whether this tool asks for approval and records its calls. Skills do, because a run outlives its tool call."""

    @overload
    @classmethod
    def define(
        cls,
        id: str,
        *,
        description: str,
        parameters: ParametersLike = None,
        execute: None = None,
        metadata: MetadataLike = None,
    ) -> Callable[[Execute], "Tool"]: ...

    @overload
    @classmethod
    def define(
        cls,
        id: str,
        *,
        description: str,
        parameters: ParametersLike = None,
        execute: Execute,
        metadata: MetadataLike = None,
    ) -> "Tool": ...

    @classmethod
    def define(
        cls,
        id: str,
        *,
        description: str,
        parameters: ParametersLike = None,
        execute: Execute | None = None,
        metadata: MetadataLike = None,
    ) -> "Tool | Callable[[Execute], Tool]":
        """Define a tool: directly with `execute`, or as a decorator without it.

        The return value of `execute` becomes a `ToolResult`: it can be text, an object, or a `ToolResult`. A function
        that is not `async` runs in a thread.

        Example:
            @Tool.define("shout", description="Say it louder.", parameters={"properties": {"text": {"type": "string"}}})
            async def shout(input, context):
                return input["text"].upper()

        Raises:
            InvalidInputError: the id, description, schema or metadata is invalid.
        """
        if not isinstance(id, str) or not ID_PATTERN.match(id) or id in RESERVED_IDS:
            raise InvalidInputError(
                f"{str(id)[:128]!r} is not a valid id of a tool: letters, digits, and : . _ - after the first"
            )
        if not isinstance(description, str) or not 0 < len(description.strip()) <= MAX_DESCRIPTION_CHARACTERS:
            raise InvalidInputError(f"{id} needs a description of at most {MAX_DESCRIPTION_CHARACTERS} characters")
        try:
            schema = parameters_of(parameters)
            checked_metadata = _METADATA.validate_python(metadata or {})
        except InvalidSchemaError as error:
            raise InvalidInputError(f"The parameters of {id} are not a usable schema: {error}") from error
        except ValidationError as error:
            problems = [problem(item["loc"], item["msg"]) for item in error.errors()]
            raise InvalidInputError(f"The metadata of {id} does not fit: {summary_of(problems)}") from error

        def define(function: Execute) -> Tool:
            return cls(
                id=id,
                description=description.strip(),
                parameters=schema,
                execute=function,
                metadata=checked_metadata,
            )

        return define if execute is None else define(execute)

    async def run(self, value: Any, context: ToolContext) -> ToolResult:
        """Run the tool. If it is not a coroutine function, use a thread: it must not block the event loop."""
        if inspect.iscoroutinefunction(self.execute) or inspect.iscoroutinefunction(
            getattr(self.execute, "__call__", None)  # noqa: B004  # an object with an async __call__
        ):
            returned = await self.execute(value, context)
        else:
            loop, threads = asyncio.get_running_loop(), context.registry.threads
            returned = await loop.run_in_executor(threads, copy_context().run, self._execute_blocking, value, context)
            if inspect.isawaitable(returned):
                returned = await returned
        return ToolResult.of(returned)

    def _execute_blocking(self, value: Any, context: ToolContext) -> Any:
        try:
            return self.execute(value, context)
        except StopIteration as error:  # asyncio cannot set it on a future: the caller would wait forever
            raise RuntimeError("the tool raised StopIteration") from error


def _plain(text: str) -> dict[str, Any]:
    return {"success": True, "output": text}
