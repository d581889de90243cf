"""How much of a limited resource a caller holds."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Literal

Unit = Literal["count", "bytes"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ResourceUsage:
    resource: str
    used: int
    limit: int | None = None
    """For this caller; None without a limit of its own."""
    total: int | None = None
    """What all callers hold; None if it is not counted."""
    total_limit: int | None = None
    unit: Unit = "count"


UsageOf = Callable[[str], Awaitable[Sequence[ResourceUsage]]]
"""Returns what a caller holds, by the id of its API key."""
