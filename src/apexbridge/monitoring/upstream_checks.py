"""Whether the model servers answer. They are asked for their models, on request only."""

import asyncio
import time
from collections.abc import Sequence
from datetime import datetime

from pydantic import Field

from apexbridge._tasks import start_shared
from apexbridge._time import from_ms, now_ms
from apexbridge.llm.client import UpstreamClient
from apexbridge.llm.config import Upstream
from apexbridge.llm.upstream_errors import UpstreamError
from apexbridge.wire import WireModel

CACHE_MS = 60 * 1000
MAX_ERROR_CHARACTERS = 300


class UpstreamStatus(WireModel):
    name: str
    url: str = Field(description="Without credentials and query.")
    models: int | None = Field(description="How many models it lists; null before the first check.")
    reachable: bool | None = Field(description="Null before the first check.")
    last_error: str | None
    latency_ms: int | None
    checked_at: datetime | None


class UpstreamChecks:
    def __init__(self, upstreams: Sequence[Upstream]) -> None:
        self._upstreams = upstreams
        self._client = UpstreamClient()
        self._found = [
            UpstreamStatus(
                name=upstream.name,
                url=upstream.address,
                models=None,
                reachable=None,
                last_error=None,
                latency_ms=None,
                checked_at=None,
            )
            for upstream in upstreams
        ]
        self._checked_ms: int | None = None
        self._checking: asyncio.Task[None] | None = None

    async def status(self, *, wait_seconds: float, is_forced: bool = False) -> list[UpstreamStatus]:
        """The last results. If they are older than a minute, the servers are asked, and waited for up to this time."""
        is_old = self._checked_ms is None or now_ms() - self._checked_ms > CACHE_MS
        if self._upstreams and self._checking is None and (is_old or is_forced):
            self._checking = start_shared(self._check_all())
        if self._checking is not None:
            await asyncio.wait([self._checking], timeout=wait_seconds)
        return self._found

    async def close(self) -> None:
        if self._checking is not None:
            self._checking.cancel()
            await asyncio.wait([self._checking])
        await self._client.close()

    async def _check_all(self) -> None:
        try:
            self._found = list(await asyncio.gather(*map(self._check, self._upstreams)))
            self._checked_ms = now_ms()
        finally:
            self._checking = None

    async def _check(self, upstream: Upstream) -> UpstreamStatus:
        begun = time.monotonic()
        models: int | None = None
        problem: str | None = None
        try:
            models = len(await self._client.models(upstream))
        except UpstreamError as error:
            problem = message_of(error, upstream)
        return UpstreamStatus(
            name=upstream.name,
            url=upstream.address,
            models=models,
            reachable=problem is None,
            last_error=problem,
            latency_ms=round((time.monotonic() - begun) * 1000),
            checked_at=from_ms(now_ms()),
        )


def message_of(error: UpstreamError, upstream: Upstream) -> str:
    text = str(error.error.get("message") or error.message)
    if upstream.api_key:
        text = text.replace(upstream.api_key, "***")
    return " ".join(text.split())[:MAX_ERROR_CHARACTERS]
