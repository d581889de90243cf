"""The last calls and where they stand."""

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import islice
from types import MappingProxyType
from typing import Any

from apexbridge.tools.state import ToolState, ToolStateView
from apexbridge.wire import WireModel

REMEMBERED_CALLS = 100
LONGEST_TEXT = 1024
MOST_ITEMS = 20
MOST_VALUES = 100
DEEPEST = 4
"""What is remembered of an input or an output; a hundred long ones would be a burden, and runs' records are whole."""


class CallView(WireModel):
    """A call, as it is told."""

    call_id: str
    tool: str
    conversation_id: str | None
    state: ToolStateView


@dataclass(slots=True, kw_only=True)
class CallRecord:
    """One call; its state moves on, never back."""

    call_id: str
    tool: str
    conversation_id: str | None
    state: ToolState

    def run(self) -> None:
        """It has begun."""
        self.state = self.state.run()

    def complete(self, output: Any) -> None:
        """It went well."""
        self.state = self.state.complete(bounded(output))

    def fail(self, error: str) -> None:
        """It went wrong."""
        self.state = self.state.fail(error[:LONGEST_TEXT])

    def view(self) -> CallView:
        """As it is told."""
        return CallView(
            call_id=self.call_id, tool=self.tool, conversation_id=self.conversation_id, state=self.state.view()
        )


class CallHistory:
    """Remembers so many calls, the oldest is forgotten first."""

    def __init__(self, size: int = REMEMBERED_CALLS) -> None:
        self._size = size
        self._calls: OrderedDict[str, CallRecord] = OrderedDict()

    def open(
        self, *, call_id: str, tool: str, input: Mapping[str, Any], conversation_id: str | None = None
    ) -> CallRecord:
        """Take down a call that is about to begin."""
        state = ToolState(input=bounded(input))
        record = CallRecord(call_id=call_id, tool=tool, conversation_id=conversation_id, state=state)
        self._calls[call_id] = record
        self._calls.move_to_end(call_id)
        while len(self._calls) > self._size:
            self._calls.popitem(last=False)
        return record

    def get(self, call_id: str) -> CallRecord | None:
        """One call, if it is remembered."""
        return self._calls.get(call_id)

    def latest(self, tool: str | None = None, limit: int | None = None) -> list[CallRecord]:
        """The newest first."""
        found = [record for record in reversed(self._calls.values()) if tool in (None, record.tool)]
        return found[:limit]


def bounded(value: Any) -> Any:
    """The value with long texts, long lists and deep places cut short."""
    return _bounded(value, 0, [MOST_VALUES])


def _bounded(value: Any, depth: int, left: list[int]) -> Any:
    left[0] -= 1
    if isinstance(value, str):
        return value if len(value) <= LONGEST_TEXT else f"{value[:LONGEST_TEXT]}… ({len(value)} characters)"
    if not isinstance(value, dict | list | tuple | MappingProxyType):
        return value
    if depth == DEEPEST or left[0] <= 0:
        return "…"
    if isinstance(value, list | tuple):
        return [_bounded(item, depth + 1, left) for item in value[:MOST_ITEMS]]
    items = islice(value.items(), MOST_ITEMS)
    return {str(key)[:LONGEST_TEXT]: _bounded(item, depth + 1, left) for key, item in items}
