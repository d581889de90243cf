"""Records of the most recent calls: pending, running, then completed or error. There are no other transitions."""

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import islice
from types import MappingProxyType
from typing import Any, Literal

from apexbridge._time import now_ms
from apexbridge.errors import ToolError
from apexbridge.wire import WireModel

Status = Literal["pending", "running", "completed", "error"]


class ToolStateView(WireModel):
    """The state on the wire."""

    status: Status
    input: Any
    output: Any = None
    error: str | None = None
    start: int | None = None
    end: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolState:
    """The state of a call; times in milliseconds since 1970."""

    input: Any
    status: Status = "pending"
    output: Any = None
    error: str | None = None
    start: int | None = None
    end: int | None = None

    def run(self) -> "ToolState":
        """The state after the call has begun.

        Raises:
            ToolError: the call is not pending.
        """
        self._check("pending", "running")
        return ToolState(input=self.input, status="running", start=now_ms())

    def complete(self, output: Any) -> "ToolState":
        """The state after the call succeeded.

        Raises:
            ToolError: the call is not running.
        """
        self._check("running", "completed")
        return ToolState(input=self.input, status="completed", output=output, start=self.start, end=now_ms())

    def fail(self, error: str) -> "ToolState":
        """The state after the call failed.

        Raises:
            ToolError: the call is not running.
        """
        self._check("running", "error")
        return ToolState(input=self.input, status="error", error=error, start=self.start, end=now_ms())

    @property
    def duration(self) -> int:
        """Milliseconds from start to end; 0 if either is missing."""
        return self.end - self.start if self.start is not None and self.end is not None else 0

    def view(self) -> ToolStateView:
        return ToolStateView(
            status=self.status,
            input=self.input,
            output=self.output,
            error=self.error,
            start=self.start,
            end=self.end,
        )

    def _check(self, before: Status, after: Status) -> None:
        if self.status != before:
            raise ToolError(f"A call that is {self.status} cannot become {after}")


REMEMBERED_CALLS = 100
LONGEST_TEXT = 1024
MOST_ITEMS = 20
MOST_VALUES = 100
DEEPEST = 4
"""Limits for stored inputs and outputs, to bound memory. The records of runs are complete."""


class CallView(WireModel):
    """A call, as it is told."""

    call_id: str
    tool: str
    conversation_id: str | None
    state: ToolStateView


@dataclass(slots=True, kw_only=True)
class CallRecord:
    """One call. Its state only moves forward."""

    call_id: str
    tool: str
    conversation_id: str | None
    state: ToolState

    def run(self) -> None:
        self.state = self.state.run()

    def complete(self, output: Any) -> None:
        self.state = self.state.complete(bounded(output))

    def fail(self, error: str) -> None:
        self.state = self.state.fail(error[:LONGEST_TEXT])

    def view(self) -> CallView:
        return CallView(
            call_id=self.call_id, tool=self.tool, conversation_id=self.conversation_id, state=self.state.view()
        )


class CallHistory:
    """The most recent calls, up to `size`; the oldest is dropped first."""

    def __init__(self, size: int = REMEMBERED_CALLS) -> None:
        self._size = size
        self._calls: OrderedDict[str, CallRecord] = OrderedDict()

    def open(
        self, *, call_id: str, tool: str, input: Mapping[str, Any], conversation_id: str | None = None
    ) -> CallRecord:
        """Record a call that is about to begin."""
        state = ToolState(input=bounded(input))
        record = CallRecord(call_id=call_id, tool=tool, conversation_id=conversation_id, state=state)
        self._calls[call_id] = record
        self._calls.move_to_end(call_id)
        while len(self._calls) > self._size:
            self._calls.popitem(last=False)
        return record

    def get(self, call_id: str) -> CallRecord | None:
        """A call by its id; None if missing."""
        return self._calls.get(call_id)

    def latest(self, tool: str | None = None, limit: int | None = None) -> list[CallRecord]:
        """The most recent calls, newest first."""
        found = [record for record in reversed(self._calls.values()) if tool in (None, record.tool)]
        return found[:limit]


def bounded(value: Any) -> Any:
    """The value with long texts, long lists and deep nesting truncated."""
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
