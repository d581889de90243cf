"""One way to say what a tool is: an id, words for the model, a schema for its input, and what it does."""

import inspect
import json
import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Annotated, Any, overload

import anyio
import anyio.to_thread
from pydantic import BaseModel, Field, TypeAdapter, ValidationError

from apexbridge.errors import InvalidInputError, InvalidSchemaError
from apexbridge.tools.conversation import Conversation
from apexbridge.tools.schema import Parameters, parameters_of

if TYPE_CHECKING:
    from apexbridge.tools.confirmation import Admission
    from apexbridge.tools.registry import ToolRegistry

ID_PATTERN = re.compile(r"[A-Za-z0-9][A-Za-z0-9:._-]{0,127}\Z")
RESERVED_IDS = frozenset({"stats"})
"""Routes below `/api/tools`."""
MAX_DESCRIPTION_CHARACTERS = 4096
Progress = Callable[[str, float | None], None]
"""Told how far a call has come: a word, and a share from 0 to 1 where it is known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolMetadata:
    """What is worth knowing of a tool before it is called."""

    category: str = "custom"
    """`builtin`, `skill`, or a word of its maker's."""
    permissions: tuple[str, ...] = ()
    timeout: Annotated[int, Field(gt=0)] | None = None
    """Milliseconds that a call may take; None leaves it to the tool."""
    dangerous: bool = False
    """Whether a person must confirm each call."""
    confirm: str | None = None
    """What that person is asked."""
    tags: tuple[str, ...] = ()
    content_hash: str = ""
    """What the tool is made of, where that can change under the same id; a confirmation holds for one content."""


_METADATA = TypeAdapter(ToolMetadata)


@dataclass(frozen=True, slots=True)
class ToolResult:
    """What a call gives back."""

    output: str = ""
    """The text for the model."""
    data: Any = None
    """The result object, for programs."""
    files: tuple[str, ...] = ()
    """Files that the call left, as paths that the file tools can read."""
    whole: str | None = None
    """Where the whole output can be read, should it be too long to be told."""
    notices: tuple[str, ...] = ()
    """What whoever called should know besides."""
    is_error: bool = False
    """Whether the tool ran and did not succeed; what could not be run raises."""
    is_repeated: bool = False
    """Whether the same call was made too often in a row; set by the executor."""

    @classmethod
    def of(cls, value: Any) -> "ToolResult":
        """A result from whatever a tool returned."""
        if isinstance(value, ToolResult):
            return value if value.data is not None else replace(value, data=_plain(value.output))
        if isinstance(value, BaseModel):
            value = value.model_dump(mode="json", by_alias=True)
        if isinstance(value, str):
            return cls(output=value, data=_plain(value))
        if value is None:
            return cls(data={"success": True})
        return cls(output=json.dumps(value, ensure_ascii=False, default=str), data=value)


def unheard(message: str, share: float | None = None) -> None:
    """Progress that nobody asked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolContext:
    """What a tool knows of the call that it serves."""

    call_id: str
    input: Mapping[str, Any]
    """As it was given, before it was read."""
    registry: "ToolRegistry"
    conversation: Conversation = field(default_factory=Conversation)
    """Whose call it is, and what was said before it."""
    message_id: str | None = None
    approval: str | None = None
    """A confirmation that came with the call, for what the tool itself calls."""
    admission: "Admission | None" = None
    """What the approval of this very call was used for, if it needed one."""
    progress: Progress = unheard
    """Where the tool says how far it has come."""
    cancelled: anyio.Event = field(default_factory=anyio.Event)
    """Set when nobody waits for the result any more; for work in a thread, which cannot be interrupted."""

    @property
    def conversation_id(self) -> str | None:
        """Names the conversation, where there is one."""
        return self.conversation.id

    @property
    def caller(self) -> str:
        """The API key's id; empty for whoever calls without one."""
        return self.conversation.caller


Execute = Callable[[Any, ToolContext], Awaitable[Any] | Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Tool:
    """A thing that can be called: a built-in, a skill, or a function of yours."""

    id: str
    description: str
    parameters: Parameters
    execute: Execute
    metadata: ToolMetadata = field(default_factory=ToolMetadata)

    @overload
    @classmethod
    def define(
        cls,
        id: str,
        *,
        description: str,
        parameters: type[BaseModel] | Mapping[str, Any] | Parameters | None = None,
        execute: None = None,
        metadata: ToolMetadata | Mapping[str, Any] | None = None,
    ) -> Callable[[Execute], "Tool"]: ...

    @overload
    @classmethod
    def define(
        cls,
        id: str,
        *,
        description: str,
        parameters: type[BaseModel] | Mapping[str, Any] | Parameters | None = None,
        execute: Execute,
        metadata: ToolMetadata | Mapping[str, Any] | None = None,
    ) -> "Tool": ...

    @classmethod
    def define(
        cls,
        id: str,
        *,
        description: str,
        parameters: type[BaseModel] | Mapping[str, Any] | Parameters | None = None,
        execute: Execute | None = None,
        metadata: ToolMetadata | Mapping[str, Any] | None = None,
    ) -> "Tool | Callable[[Execute], Tool]":
        """Define a tool: with `execute` as a call, without it as a decorator.

        What `execute` returns becomes a `ToolResult`: text, an object, or one of its own. A function that is not
        `async` runs in a thread.

        Example:
            @Tool.define("shout", description="Say it louder.", parameters={"properties": {"text": {"type": "string"}}})
            async def shout(input, context):
                return input["text"].upper()

        Raises:
            InvalidInputError: an id, description, schema or metadata that cannot be one.
        """
        if not isinstance(id, str) or not ID_PATTERN.match(id) or id in RESERVED_IDS:
            raise InvalidInputError(
                f"{str(id)[:128]!r} is no id of a tool: letters, digits, and : . _ - after the first"
            )
        if not isinstance(description, str) or not 0 < len(description.strip()) <= MAX_DESCRIPTION_CHARACTERS:
            raise InvalidInputError(f"{id} needs a description of at most {MAX_DESCRIPTION_CHARACTERS} characters")
        shape, known = _parameters(id, parameters), _metadata(id, metadata)

        def made(function: Execute) -> Tool:
            return cls(id=id, description=description.strip(), parameters=shape, execute=function, metadata=known)

        return made if execute is None else made(execute)

    async def run(self, value: Any, context: ToolContext) -> ToolResult:
        """Do it; what is not a coroutine function must not hold up the server, so it gets a thread."""
        if inspect.iscoroutinefunction(self.execute) or inspect.iscoroutinefunction(
            getattr(self.execute, "__call__", None)  # noqa: B004  # an object whose call is one
        ):
            returned = await self.execute(value, context)
        else:
            threads = context.registry.threads
            returned = await anyio.to_thread.run_sync(
                self.execute, value, context, abandon_on_cancel=True, limiter=threads
            )
            if inspect.isawaitable(returned):
                returned = await returned
        return ToolResult.of(returned)


def _parameters(id: str, given: type[BaseModel] | Mapping[str, Any] | Parameters | None) -> Parameters:
    try:
        if given is None or isinstance(given, type | Mapping):
            return parameters_of(given)
    except InvalidSchemaError as problem:
        raise InvalidInputError(f"The parameters of {id} are no usable schema: {problem}") from problem
    return given


def _metadata(id: str, given: ToolMetadata | Mapping[str, Any] | None) -> ToolMetadata:
    if isinstance(given, ToolMetadata):
        return given
    named = dict(given or {})
    if unknown := set(named) - {field.name for field in fields(ToolMetadata)}:
        raise InvalidInputError(f"The metadata of {id} has no {', '.join(sorted(unknown))}")
    try:
        return _METADATA.validate_python(named)
    except ValidationError as error:
        told = "; ".join(f"{'.'.join(map(str, item['loc']))}: {item['msg']}" for item in error.errors())
        raise InvalidInputError(f"The metadata of {id} does not fit: {told}") from error


def _plain(text: str) -> dict[str, Any]:
    return {"success": True, "output": text}
