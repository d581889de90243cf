"""What happens while a request is answered; every surface only renders this."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from apexbridge.agent.budget import StopCause

Json = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatStarted:
    """The model's first word has come; from now on there is an answer."""

    model: str
    report: "Report"
    """Grows while the answer does."""


class Delta(NamedTuple):
    """A piece of the answer."""

    fields: Json
    """Of the message: its text, and whatever else the model's server gave."""
    beside: Json
    """What stood beside the message."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TextDelta:
    """What the model said; pieces that arrived together stay together, so that they can go on together."""

    deltas: Sequence[Delta]

    @property
    def text(self) -> str:
        """The words in it."""
        return "".join(text for delta in self.deltas if isinstance(text := delta.fields.get("content"), str))


@dataclass(frozen=True, slots=True, kw_only=True)
class PassedThrough:
    """The upstream's own answer, or chunks of it, to be passed on untouched: none of our tools take part."""

    chunks: Sequence[Json]


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolActivity:
    """Something was done on the way, for those who want to watch."""

    text: str
    detail: Json = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatFinished:
    """The answer is complete."""

    finish_reason: str
    calls: tuple[Json, ...]
    """Calls that are the client's to make."""
    usage: Json | None
    report: "Report"
    beside: Json = field(default_factory=dict)
    """What the model's server said of the answer as a whole."""


@dataclass(slots=True, kw_only=True)
class Report:
    """How the answer came about; `x_bridge` of the answer."""

    turns: int = 0
    calls: int = 0
    stop_cause: StopCause = "answered"
    duration_ms: int = 0
    trajectory: list[Json] = field(default_factory=list)
    """Each model call, search and run, with its time; told where it was asked for, and recorded."""

    def told(self, *, debug: bool) -> Json:
        """As the client sees it."""
        told: Json = {
            "turns": self.turns,
            "calls": self.calls,
            "stopCause": self.stop_cause,
            "durationMs": self.duration_ms,
        }
        return told | ({"trajectory": self.trajectory} if debug else {})


Event = ChatStarted | TextDelta | PassedThrough | ToolActivity | ChatFinished
