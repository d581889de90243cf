"""The tool registry: tools are added, replaced, disabled, found, and called here."""

import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

from apexbridge._text import near_names
from apexbridge._tracing import NO_TRACER, Tracer
from apexbridge.errors import InvalidInputError, ToolDisabledError, ToolNotFoundError, did_you_mean
from apexbridge.tools.approvals import Approvals
from apexbridge.tools.calls import REMEMBERED_CALLS, CallHistory, CallRecord
from apexbridge.tools.conversation import Conversation, OpenWorkspace, no_workspaces
from apexbridge.tools.executor import Counter as CallCounter
from apexbridge.tools.executor import ToolExecutor
from apexbridge.tools.naming import SKILL_PREFIX
from apexbridge.tools.tool import OnRun, Progress, Tool, ToolContext, ToolResult, ignore_progress, ignore_run
from apexbridge.wire import WireModel

TOOL_THREADS = 32
BUILTIN = "builtin"
Tools = list[Tool]
Records = list[CallRecord]


class RegistryStatistics(WireModel):
    """The registry in numbers."""

    total_tools: int
    disabled_tools: int
    categories: dict[str, int]


class ToolRegistry:
    """All tools by id."""

    def __init__(
        self,
        *,
        approvals: Approvals | None = None,
        counter: CallCounter | None = None,
        history: int = REMEMBERED_CALLS,
        open_workspace: OpenWorkspace = no_workspaces,
        tracer: Tracer = NO_TRACER,
    ) -> None:
        self._tools: dict[str, Tool] = {}
        self._disabled: set[str] = set()
        self.version = 0
        """Increases with each change, so that data derived from the tools can be cached."""
        self.threads = ThreadPoolExecutor(TOOL_THREADS, thread_name_prefix="tool")
        """For tools that block, so that they cannot use up the server's own threads."""
        self._listeners: dict[object, Callable[[str], None]] = {}
        self._open_workspace = open_workspace
        self.executor = ToolExecutor(self, CallHistory(history), approvals=approvals, counter=counter, tracer=tracer)

    # -------------------------------------------------------------------------------------------------- changing
    def register(self, tool: Tool) -> Tool:
        """Add a tool. Raises InvalidInputError if its id is taken."""
        if tool.id in self._tools:
            raise InvalidInputError(f"There is a tool {tool.id} already; update it, or unregister it first")
        self._tools[tool.id] = tool
        self._note_change(tool.id)
        return tool

    def unregister(self, id: str) -> bool:
        """Remove a tool; False if missing."""
        self._disabled.discard(id)
        is_removed = self._tools.pop(id, None) is not None
        self._note_change(id)
        return is_removed

    def update(self, id: str, tool: Tool | None = None, /, **changes: Any) -> Tool:
        """Replace a tool, or change some of its fields; it stays enabled or disabled.

        Raises:
            ToolNotFoundError: the tool does not exist.
            InvalidInputError: a tool has no such field, or the id would change.
        """
        known = self.get(id)
        try:
            updated = tool or replace(known, **changes)
        except TypeError as error:
            raise InvalidInputError(f"The changes to {id} do not fit: {error}") from error
        if updated.id != id:
            raise InvalidInputError(f"{id} cannot become {updated.id}: an id stays")
        self._tools[id] = updated
        self._note_change(id)
        return updated

    def put(self, tool: Tool, *, enabled: bool = True) -> None:
        """Add a tool, or replace the one with the same id."""
        self._tools[tool.id] = tool
        (self.enable if enabled else self.disable)(tool.id)

    def enable(self, id: str) -> None:
        """Enable a tool."""
        self.get(id)
        self._disabled.discard(id)
        self._note_change(id)

    def disable(self, id: str) -> None:
        """Disable a tool: it stays registered and cannot be called."""
        self.get(id)
        self._disabled.add(id)
        self._note_change(id)

    def subscribe(self, listener: Callable[[str], None]) -> Callable[[], None]:
        """Call `listener` with the id of each tool that is added, changed, switched or removed.

        It must be quick and must not raise. Returns a function that ends the subscription.
        """
        token = object()
        self._listeners[token] = listener
        return lambda: self._listeners.pop(token, None) and None

    def _note_change(self, id: str) -> None:
        self.version += 1
        for listener in tuple(self._listeners.values()):
            listener(id)

    # --------------------------------------------------------------------------------------------------- finding
    def get(self, id: str) -> Tool:
        """A tool by its id. Raises ToolNotFoundError if the tool does not exist."""
        tool = self._tools.get(id)
        if tool is None:
            kind = "Skills" if id.startswith(SKILL_PREFIX) else "BuiltIn tool"
            raise _not_found(kind, id, self._tools)
        return tool

    def find(self, id: str) -> Tool | None:
        """A tool by its id; None if missing."""
        return self._tools.get(id)

    def callable(self, id: str) -> Tool:
        """A tool by its id, if it is enabled.

        Raises ToolNotFoundError if the tool does not exist; ToolDisabledError if the tool is disabled.
        """
        tool = self.get(id)
        if id in self._disabled:
            raise ToolDisabledError(f"{id} is disabled; enable it first.", tool=id)
        return tool

    def is_enabled(self, id: str) -> bool:
        """Whether a tool exists and is enabled."""
        return id in self._tools and id not in self._disabled

    def list(self) -> Tools:
        """All tools, sorted by id."""
        return [self._tools[id] for id in sorted(self._tools)]

    def list_by_category(self, category: str) -> Tools:
        """The tools of one category, sorted by id."""
        return [tool for tool in self.list() if tool.metadata.category == category]

    def find_by_tag(self, tag: str) -> Tools:
        """The tools with a tag, ignoring case."""
        return [tool for tool in self.list() if tag.lower() in (own.lower() for own in tool.metadata.tags)]

    def search(self, query: str) -> Tools:
        """The tools whose id, description or tags contain every word of the query. Not a semantic search."""
        words = query.lower().split()
        return [tool for tool in self.list() if words and all(word in _words(tool) for word in words)]

    def statistics(self) -> RegistryStatistics:
        """The number of tools, of disabled ones, and of each category."""
        return RegistryStatistics(
            total_tools=len(self._tools),
            disabled_tools=len(self._disabled),
            categories=dict(sorted(Counter(tool.metadata.category for tool in self._tools.values()).items())),
        )

    # --------------------------------------------------------------------------------------------------- calling
    async def execute(
        self,
        id: str,
        input: Mapping[str, Any] | None = None,
        *,
        conversation: Conversation | None = None,
        workspace: str | None = None,
        call_id: str | None = None,
        message_id: str | None = None,
        approval: str | None = None,
        progress: Progress = ignore_progress,
        on_run: OnRun = ignore_run,
    ) -> ToolResult:
        """Call a tool. The id of a `workspace` replaces the one of the conversation.

        Raises:
            ToolNotFoundError, ToolDisabledError: the tool does not exist, or is disabled.
            RequestError: FORBIDDEN, the workspace belongs to another key.
            PermissionDeniedError: the skill whose instructions are active does not allow the tool.
            InvalidInputError: the input does not match the schema, or the workspace's id is not valid.
            ToolError: CONFIRMATION_REQUIRED, the tool is dangerous and this call was not approved.
            ToolExecutionError: the tool itself failed.
        """
        conversation = conversation or Conversation()
        if workspace is not None:
            conversation.workspace = self._open_workspace(workspace, conversation.caller)
        context = ToolContext(
            call_id=call_id or uuid.uuid4().hex,
            input=input or {},
            registry=self,
            conversation=conversation,
            message_id=message_id,
            approval=approval,
            progress=progress,
            on_run=on_run,
        )
        return await self.executor.execute(id, context)

    def get_state(self, call_id: str) -> CallRecord | None:
        """The record of a call; None if missing."""
        return self.executor.history.get(call_id)

    def get_history(self, id: str | None = None, *, limit: int | None = None) -> Records:
        """The most recent calls, newest first."""
        return self.executor.history.latest(id, limit)


def _words(tool: Tool) -> str:
    return " ".join([tool.id, tool.description, *tool.metadata.tags]).lower()


class BuiltInToolsRegistry:
    """A view of the registry that contains only built-in tools."""

    def __init__(self, registry: ToolRegistry) -> None:
        self._registry = registry

    def get(self, name: str) -> Tool:
        """A built-in tool by its id. Raises ToolNotFoundError if the tool does not exist."""
        tool = self._registry.find(name)
        if tool is None or tool.metadata.category != BUILTIN:
            known = (tool.id for tool in self._registry.list() if tool.metadata.category == BUILTIN)
            raise _not_found("BuiltIn tool", name, known)
        return tool

    def register(self, tool: Tool) -> Tool:
        """Add a built-in tool. Raises InvalidInputError if its id is taken, or its category is not `builtin`."""
        if tool.metadata.category != BUILTIN:
            raise InvalidInputError(f"{tool.id} is of the category {tool.metadata.category}, not {BUILTIN}")
        return self._registry.register(tool)

    def list(self) -> Tools:
        """All built-in tools, sorted by id."""
        return self._registry.list_by_category(BUILTIN)


class BuiltInExecutor:
    """Calls built-in tools by name, for Python users who only need the result object."""

    def __init__(self, registry: ToolRegistry) -> None:
        self.tools = BuiltInToolsRegistry(registry)
        self._registry = registry

    async def execute(self, name: str, input: Mapping[str, Any] | None = None, *, workspace: str | None = None) -> Any:
        """Call a built-in tool, on request with the files of a workspace; returns its result object.

        Raises ToolNotFoundError if the tool does not exist; InvalidInputError if the input is invalid.
        """
        self.tools.get(name)
        return (await self._registry.execute(name, input, workspace=workspace)).data


def _not_found(kind: str, id: str, known: Iterable[str]) -> ToolNotFoundError:
    prefix = SKILL_PREFIX if id.startswith(SKILL_PREFIX) else ""  # it would make all skills similar
    name = id.removeprefix(prefix)
    near = near_names(name, (other.removeprefix(prefix) for other in known if other.startswith(prefix)))
    shown = name if kind == "Skills" else id
    message = f"{kind} not found: {shown[:200]}{did_you_mean([prefix + other for other in near])}"
    return ToolNotFoundError(message, tool=id[:200])
