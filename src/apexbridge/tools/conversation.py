"""What calls of one conversation have in common: who calls, what is in force, and what was just called."""

import hashlib
import json
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from apexbridge.tools.allowance import Allowance

LOOP_CALLS = 3
REMEMBERED_CONVERSATIONS = 1_000


class LoopWatch:
    """Notices the same call again and again."""

    def __init__(self) -> None:
        self._last = ""
        self._times = 0

    def note(self, tool: str, input: Mapping[str, Any]) -> str | None:
        """Take down a call; gives a word of warning from the third in a row that is the same."""
        told = json.dumps([tool, input], sort_keys=True, default=str)
        call = hashlib.sha256(told.encode()).hexdigest()
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
    """One request to the chat, or one client's calls under an id of its own."""

    id: str | None = None
    caller: str = ""
    """The API key's id; empty for whoever calls without one."""
    allowance: "Allowance | None" = None
    """What may be called while a skill's instructions are in force; None limits nothing."""
    loop: LoopWatch = field(default_factory=LoopWatch)
    tainted: bool = False
    """Whether words of strangers were taken in, such as a skill's output: from then on a dangerous call asks a person,
    whatever else is set."""


class Conversations:
    """Conversations of clients that call tools one by one under an id; all that lasts between calls is the watch."""

    def __init__(self) -> None:
        self._watches: OrderedDict[tuple[str, str], LoopWatch] = OrderedDict()

    def get(self, id: str | None, *, caller: str = "") -> Conversation:
        """The conversation of that id, or one of its own for a single call."""
        if id is None:
            return Conversation(caller=caller)
        watch = self._watches.setdefault((caller, id), LoopWatch())
        self._watches.move_to_end((caller, id))
        if len(self._watches) > REMEMBERED_CONVERSATIONS:
            self._watches.popitem(last=False)
        return Conversation(id=id, caller=caller, loop=watch)
