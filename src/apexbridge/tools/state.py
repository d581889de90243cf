"""The states of a call: pending, running, then completed or error. There are no other transitions."""

from dataclasses import dataclass
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
