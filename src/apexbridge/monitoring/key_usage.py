"""What a key holds of every limited resource."""

from collections.abc import Sequence

from pydantic import Field

from apexbridge._usage import ResourceUsage, Unit, UsageOf
from apexbridge.wire import WireModel


class KeyUsage(WireModel):
    """What a key holds of one resource."""

    resource: str
    unit: Unit = Field(description="`count` or `bytes`.")
    used: int = Field(description="What this key holds.")
    limit: int | None = Field(description="What it may hold; null for any number.")
    share: float | None = Field(description="`used` divided by `limit`.")
    total: int | None = Field(description="What all keys hold; null if that is not counted.")
    total_limit: int | None = Field(description="What all keys may hold together; null without such a limit.")


class UsageBoard:
    def __init__(self, sources: Sequence[UsageOf]) -> None:
        self._sources = sources

    async def of(self, caller: str) -> list[KeyUsage]:
        """What a key holds, by the key's id; with an empty id, what callers without a key hold together."""
        return [_view(one) for source in self._sources for one in await source(caller)]


def _view(usage: ResourceUsage) -> KeyUsage:
    return KeyUsage(
        resource=usage.resource,
        unit=usage.unit,
        used=usage.used,
        limit=usage.limit,
        share=round(usage.used / usage.limit, 4) if usage.limit else None,
        total=usage.total,
        total_limit=usage.total_limit,
    )
