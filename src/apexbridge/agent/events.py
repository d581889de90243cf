"""What happens while a request is answered; every surface only renders this."""

from dataclasses import dataclass, field
from typing import Any

from apexbridge.agent.budget import StopCause

Json = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Begun:
    """The model's first word has come; from now on there is an answer."""

    model: str
    report: "Report"
    """Grows while the answer does."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """A piece of the answer: the fields of a delta, text among them, and what stood beside the delta."""

    fields: Json
    beside: Json = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Passed:
    """A piece of the upstream's own answer, to be passed on untouched: none of our tools take part."""

    chunk: Json


@dataclass(frozen=True, slots=True, kw_only=True)
class Acted:
    """Something was done on the way, for those who want to watch."""

    text: str
    detail: Json = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """The answer is complete."""

    finish_reason: str
    calls: tuple[Json, ...]
    """Calls that are the client's to make."""
    usage: Json | None
    report: "Report"


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


Event = Begun | Said | Passed | Acted | Ended
