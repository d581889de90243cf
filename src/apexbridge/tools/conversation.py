"""State shared by the calls of one conversation: the caller, the active allowance, and the last call."""

import hashlib
import json
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol, TypeVar

from apexbridge.errors import InvalidInputError
from apexbridge.tools.allowance import Allowance

LOOP_CALLS = 3
REMEMBERED_CONVERSATIONS = 1_000
REMEMBERED_OF_A_KEY = 100
T = TypeVar("T")
OriginKind = Literal["api", "tool", "chat", "mcp"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """What calls come from, for the records of runs."""

    kind: OriginKind = "api"
    """A direct call of a skill, a call of a tool, a chat, or an MCP client."""
    id: str | None = None
    """The id of the chat's record, or of the conversation of tool calls."""


class ConversationWorkspace(Protocol):
    """The files of a conversation, and the skills that it has loaded."""

    @property
    def id(self) -> str: ...

    @property
    def skills(self) -> Sequence[str]: ...

    async def add_skill(self, name: str) -> None: ...

    def reading(self) -> AbstractAsyncContextManager[Path]:
        """The folder with the files, which do not change during the block. It does not exist if there are none."""

    async def change(self, work: Callable[[Path], T]) -> T:
        """Run `work` in a thread on a copy of the files, which then replaces them. Raises STORAGE_FULL."""

    async def keep(self, changes: Any, artifacts: Path) -> Any:
        """Apply what a run changed; see `LastingWorkspace` of the sandbox."""


OpenWorkspace = Callable[[str | None, str], ConversationWorkspace | None]
"""Opens the workspace that a call names, by its id and the caller; returns None without an id."""


def no_workspaces(id: str | None, caller: str) -> None:
    """Used where there are no workspaces. Raises InvalidInputError if a call names one."""
    if id is not None:
        raise InvalidInputError("There are no workspaces here: only the tools and skills of a bridge have them.")


class LoopWatch:
    """Detects identical calls in a row."""

    def __init__(self) -> None:
        self._last = ""
        self._times = 0

    def note(self, tool: str, input: Mapping[str, Any]) -> str | None:
        """Record a call; returns a warning from the third identical call in a row, else None."""
        call = hashlib.sha256(json.dumps([tool, input], sort_keys=True, default=str).encode()).hexdigest()
        self._times = self._times + 1 if call == self._last else 1
        self._last = call
        if self._times < LOOP_CALLS:
            return None
        return (
            f"{tool} was called {self._times} times in a row with the same input. "
            "The answer will not change: use what is there, or try something else."
        )


@dataclass(slots=True, kw_only=True)
class Conversation:
    """One chat request, or the calls that a client makes under one conversation id."""

    id: str | None = None
    caller: str = ""
    """The API key's id; empty for callers without a key."""
    allowance: Allowance | None = None
    """The tools that may be called while a skill's instructions are active; None if not limited."""
    loop: LoopWatch = field(default_factory=LoopWatch)
    workspace: ConversationWorkspace | None = None
    """None: file tools use the caller's own folder, and each run has a workspace of its own."""
    origin: Origin = Origin()
    tainted: bool = False
    """Whether the conversation contains untrusted text, such as a skill's output. From then on dangerous calls need
    approval, even if the operator disabled it."""


class Conversations:
    """Conversations of clients that call single tools under an id. Only the loop detection lasts between calls."""

    def __init__(self) -> None:
        self._watches: OrderedDict[tuple[str, str], LoopWatch] = OrderedDict()

    def get(self, id: str | None, *, caller: str = "") -> Conversation:
        """The conversation with that id; a new one without an id, for a single call."""
        if id is None:
            return Conversation(caller=caller, origin=Origin(kind="tool"))
        watch = self._watches.setdefault((caller, id), LoopWatch())
        self._watches.move_to_end((caller, id))
        own = [key for key in self._watches if key[0] == caller] if caller else []
        if len(own) > REMEMBERED_OF_A_KEY:
            del self._watches[own[0]]
        elif len(self._watches) > REMEMBERED_CONVERSATIONS:
            self._watches.popitem(last=False)
        return Conversation(id=id, caller=caller, loop=watch, origin=Origin(kind="tool", id=id))
