"""Keeps the tools of MCP servers in the index of the search."""

import asyncio
import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from apexbridge.retrieval.documents import tool_key
from apexbridge.retrieval.kinds import Kind

BATCH = 50
"""Tools embedded at a time: searches wait for their turn in between."""
RETRY_SECONDS = 10.0
logger = logging.getLogger(__name__)


class SearchableIndex(Protocol):
    """See `ToolRetrievalService`."""

    async def wake(self) -> None: ...
    async def embed(self, documents: Sequence[Any]) -> Sequence[Any]: ...
    async def upsert(self, documents: Sequence[Any], vectors: Sequence[Any]) -> None: ...
    async def missing(self, versions: Mapping[str, str]) -> Sequence[str]: ...
    async def retain(self, names: Collection[str], *, kind: Kind) -> int: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexedTool:
    """What is searched of a tool."""

    id: str
    description: str
    tags: tuple[str, ...]
    version: str

    @property
    def name(self) -> str:
        return tool_key(self.id)

    @property
    def derived_tags(self) -> tuple[str, ...]:
        return ()

    @property
    def body(self) -> str:
        return ""

    @property
    def hidden(self) -> bool:
        return False


class ToolIndex:
    def __init__(self, index: SearchableIndex, tools: Callable[[], Sequence[IndexedTool]]) -> None:
        self._index = index
        self._tools = tools
        self._is_stale = asyncio.Event()
        self._lock = asyncio.Lock()

    def mark_stale(self) -> None:
        """Note that the tools have changed, and wake `run`."""
        self._is_stale.set()

    async def run(self) -> None:
        """Index tools as they change, until cancelled. If the embedding model fails, try again."""
        while True:
            await self._is_stale.wait()
            self._is_stale.clear()
            try:
                await self._index.wake()
                is_complete = await self.sync()
            except Exception:
                logger.exception("the tools of MCP servers could not be indexed")
                is_complete = False
            if not is_complete:
                self._is_stale.set()
                await asyncio.sleep(RETRY_SECONDS)

    async def sync(self) -> bool:
        """Index what has changed; returns whether all tools can be found by meaning."""
        async with self._lock:
            tools = {tool.name: tool for tool in self._tools()}
            await self._index.retain(tools, kind="tool")
            missing = [
                tools[key] for key in await self._index.missing({key: own.version for key, own in tools.items()})
            ]
            if missing:
                await self._index.upsert(missing, [None] * len(missing))  # found by their words at once
            for start in range(0, len(missing), BATCH):
                batch = missing[start : start + BATCH]
                vectors = await self._index.embed(batch)
                if any(vector is None for vector in vectors):
                    return False
                await self._index.upsert(batch, vectors)
            return True
