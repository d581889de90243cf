"""Where a call stands: pending, running, and then completed or failed; nothing else follows from anything else."""

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
    """One moment in the life of a call; times in milliseconds since 1970."""

    input: Any
    status: Status = "pending"
    output: Any = None
    error: str | None = None
    start: int | None = None
    end: int | None = None

    def run(self) -> "ToolState":
        """It has begun.

        Raises:
            ToolError: it had begun before.
        """
        self._check("pending", "running")
        return ToolState(input=self.input, status="running", start=now_ms())

    def complete(self, output: Any) -> "ToolState":
        """It went well.

        Raises:
            ToolError: it was not running.
        """
        self._check("running", "completed")
        return ToolState(input=self.input, status="completed", output=output, start=self.start, end=now_ms())

    def fail(self, error: str) -> "ToolState":
        """It went wrong.

        Raises:
            ToolError: it was not running.
        """
        self._check("running", "error")
        return ToolState(input=self.input, status="error", error=error, start=self.start, end=now_ms())

    @property
    def duration(self) -> int:
        """Milliseconds from start to end; 0 while one is missing."""
        return self.end - self.start if self.start is not None and self.end is not None else 0

    def view(self) -> ToolStateView:
        """As it is told."""
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
