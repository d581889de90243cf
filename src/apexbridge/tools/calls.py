"""Records of the most recent calls: pending, running, then completed or error."""

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import islice
from types import MappingProxyType
from typing import Any, Literal

from apexbridge._time import now_ms
from apexbridge.errors import ToolError

REMEMBERED_CALLS = 100
MAX_CHARACTERS = 1024
MAX_ITEMS = 20
MAX_VALUES = 100
MAX_DEPTH = 4
"""Limits for stored inputs and outputs, to bound memory. The records of runs are complete."""
Status = Literal["pending", "running", "completed", "error"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolState:
    """The state of a call; times in milliseconds since 1970. Any other transition raises ToolError."""

    input: Any
    status: Status = "pending"
    output: Any = None
    error: str | None = None
    start: int | None = None
    end: int | None = None

    def run(self) -> "ToolState":
        return self._moved("pending", status="running", start=now_ms())

    def complete(self, output: Any) -> "ToolState":
        return self._moved("running", status="completed", output=output, end=now_ms())

    def fail(self, error: str) -> "ToolState":
        return self._moved("running", status="error", error=error, end=now_ms())

    def _moved(self, before: Status, **changes: Any) -> "ToolState":
        if self.status != before:
            raise ToolError(f"A call that is {self.status} cannot become {changes['status']}")
        return replace(self, **changes)


@dataclass(slots=True, kw_only=True)
class CallRecord:
    """One call. Its state only moves forward."""

    call_id: str
    tool: str
    conversation_id: str | None
    state: ToolState

    def mark_running(self) -> None:
        self.state = self.state.run()

    def complete(self, output: Any) -> None:
        self.state = self.state.complete(bounded(output))

    def fail(self, error: str) -> None:
        self.state = self.state.fail(error[:MAX_CHARACTERS])


class CallHistory:
    """The most recent calls, up to `size`; the oldest is dropped first."""

    def __init__(self, size: int = REMEMBERED_CALLS) -> None:
        self._size = size
        self._calls: OrderedDict[str, CallRecord] = OrderedDict()

    def add(self, tool: str, input: Mapping[str, Any], *, call_id: str, conversation_id: str | None) -> CallRecord:
        """Record a call that is about to begin."""
        state = ToolState(input=bounded(input))
        record = CallRecord(call_id=call_id, tool=tool, conversation_id=conversation_id, state=state)
        self._calls[call_id] = record
        self._calls.move_to_end(call_id)
        if len(self._calls) > self._size:
            self._calls.popitem(last=False)
        return record

    def get(self, call_id: str) -> CallRecord | None:
        return self._calls.get(call_id)

    def latest(self, tool: str | None = None, limit: int | None = None) -> list[CallRecord]:
        """The most recent calls, newest first."""
        return [record for record in reversed(self._calls.values()) if tool in (None, record.tool)][:limit]


def bounded(value: Any) -> Any:
    """The value with long texts, long lists and deep nesting truncated."""
    values_left = MAX_VALUES

    def copy(value: Any, depth: int) -> Any:
        nonlocal values_left
        values_left -= 1
        if isinstance(value, str):
            return value if len(value) <= MAX_CHARACTERS else f"{value[:MAX_CHARACTERS]}… ({len(value)} characters)"
        if not isinstance(value, dict | list | tuple | MappingProxyType):
            return value
        if depth == MAX_DEPTH or values_left <= 0:
            return "…"
        if isinstance(value, list | tuple):
            return [copy(item, depth + 1) for item in value[:MAX_ITEMS]]
        items = islice(value.items(), MAX_ITEMS)
        return {str(key)[:MAX_CHARACTERS]: copy(item, depth + 1) for key, item in items}

    return copy(value, 0)
