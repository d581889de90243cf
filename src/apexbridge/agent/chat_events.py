"""Events of a chat in progress. Every entry point renders these."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from apexbridge.agent.budget import StopCause
from apexbridge.agent.tool_steps import ToolStep

Json = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatStarted:
    """The model's response has started."""

    model: str
    report: "Report"
    """Filled in while the chat runs."""


class Delta(NamedTuple):
    """A part of the answer."""

    fields: Json
    """Fields of the message: text, and vendor extensions."""
    beside: Json
    """Fields next to the message in its choice."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TextDelta:
    """Text of the model. Chunks that arrived together stay together, so that they can be sent together."""

    deltas: Sequence[Delta]

    @property
    def text(self) -> str:
        return "".join(text for delta in self.deltas if isinstance(text := delta.fields.get("content"), str))


@dataclass(frozen=True, slots=True, kw_only=True)
class PassedThrough:
    """The upstream's completion or chunks, forwarded unchanged: no tools of this server take part."""

    chunks: Sequence[Json]


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolStarted:
    """A call of this server's tools is about to run. Its `ToolActivity` follows."""

    call: Json
    """As the model made it: `id`, and `function` with its name and arguments."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolActivity:
    """A call of this server's tools has ended."""

    call: Json
    output: str
    """The text for the model."""
    succeeded: bool
    text: str
    """A summary for people."""
    detail: Json = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatFinished:
    """The answer is complete."""

    finish_reason: str
    calls: tuple[Json, ...]
    """Calls of the client's own tools."""
    usage: Json | None
    report: "Report"
    beside: Json = field(default_factory=dict)
    """Fields of the completion as a whole, such as `system_fingerprint`."""


@dataclass(slots=True, kw_only=True)
class Report:
    """How the answer was made: `x_bridge` of the response."""

    turns: int = 0
    calls: int = 0
    stop_cause: StopCause = "answered"
    duration_ms: int = 0
    trajectory: list[Json] = field(default_factory=list)
    """Each model call, search and run with its duration."""
    workspace: str | None = None
    """The id of the workspace with the conversation's files, if it has any."""
    files: list[Json] = field(default_factory=list)
    """Files that the request made or changed: path, size, url."""

    def to_dict(self, *, debug: bool) -> Json:
        fields: Json = {
            "turns": self.turns,
            "calls": self.calls,
            "stopCause": self.stop_cause,
            "durationMs": self.duration_ms,
        }
        if self.workspace is not None:
            fields |= {"workspace": self.workspace, "files": self.files}
        return fields | ({"trajectory": self.trajectory} if debug else {})


Event = ChatStarted | TextDelta | PassedThrough | ToolStarted | ToolStep | ToolActivity | ChatFinished
