"""Where a call stands: pending, running, and then completed or failed; nothing else follows from anything else."""

import time
from dataclasses import dataclass, replace
from typing import Any, Literal

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
        return self._next("running", after="pending", start=_now())

    def complete(self, output: Any) -> "ToolState":
        """It went well.

        Raises:
            ToolError: it was not running.
        """
        return self._next("completed", after="running", output=output, end=_now())

    def fail(self, error: str) -> "ToolState":
        """It went wrong.

        Raises:
            ToolError: it was not running.
        """
        return self._next("error", after="running", error=error, end=_now())

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

    def _next(self, status: Status, *, after: Status, **changes: Any) -> "ToolState":
        if self.status != after:
            raise ToolError(f"A call that is {self.status} cannot become {status}")
        return replace(self, status=status, **changes)


def _now() -> int:
    return int(time.time() * 1000)
