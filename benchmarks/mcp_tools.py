"""Search among 1,000 skills, with and without 500 tools of MCP servers, and how many of the right skills it finds."""

import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from apexbridge.mcp_client.tool_index import IndexedTool
from apexbridge.retrieval.config import RetrievalSettings
from apexbridge.retrieval.documents import Document
from apexbridge.retrieval.embedders.embedder import choose_embedder
from apexbridge.retrieval.service import ToolRetrievalService
from benchmarks.measuring import Comparison

SKILLS, TOOLS = 1_000, 500
GOAL = 2.5
"""Two rankings instead of one, of which the second is half as large."""
VERBS = ("list", "create", "delete", "rename", "export", "import", "compare", "merge", "translate", "summarize")
NOUNS = (
    "invoice",
    "calendar event",
    "pull request",
    "photo",
    "spreadsheet",
    "customer",
    "recipe",
    "map",
    "song",
    "ticket",
)
PLACES = ("in the archive", "for the team", "by date", "as a table", "with a note", "from a mail", "in French")


def _texts(count: int, start: int) -> list[str]:
    return [
        f"{VERBS[n % 10].capitalize()} one {NOUNS[n // 10 % 10]} {PLACES[n // 100 % 7]}, variant {n // 700}."
        for n in range(start, start + count)
    ]


def _tools() -> list[IndexedTool]:
    texts = _texts(TOOLS, SKILLS)
    return [
        IndexedTool(id=f"server{number % 20}_tool-{number}", description=text, tags=("server",), version="1")
        for number, text in enumerate(texts)
    ]


@asynccontextmanager
async def _service(folder: Path) -> AsyncIterator[ToolRetrievalService]:
    service = ToolRetrievalService(folder, choose_embedder(RetrievalSettings()))
    async with service.running():
        texts = _texts(SKILLS, 0)
        await service.index_skills(
            [Document(name=f"skill-{number}", description=text) for number, text in enumerate(texts)]
        )
        yield service


async def _measured(service: ToolRetrievalService, requests: Sequence[str]) -> tuple[float, float, float, float]:
    """Milliseconds of a search, and the share of requests whose skill is first, and among five; the noise."""
    first = found = 0
    times: list[float] = []
    for number, request in enumerate(requests):
        begun = time.perf_counter()
        hits = (await service.search(request)).results
        times.append(time.perf_counter() - begun)
        names = [hit.name for hit in hits]
        skills = [hit.name for hit in hits if hit.kind == "skill"]
        first += skills[:1] == [f"skill-{number}"]
        found += f"skill-{number}" in names
    times.sort()
    median = times[len(times) // 2]
    return median * 1000, first / len(requests), found / len(requests), times[-1] / median


async def run() -> list[Comparison]:
    """Compare the medians of 200 searches. The shares of right skills are printed."""
    requests = [text.lower().rstrip(".") for text in _texts(200, 0)]
    with tempfile.TemporaryDirectory() as folder:
        async with _service(Path(folder) / "data") as service:
            await _measured(service, requests)  # both measurements find the vectors of the requests in the cache
            await service.index_skills([Document(name="one-more", description="Clears the cache of rankings.")])
            plain = await _measured(service, requests)
            await service.index_skills(_tools())
            mixed = await _measured(service, requests)
    for label, before, after in zip(("first of the skills", "among five hits"), plain[1:3], mixed[1:3], strict=True):
        print(f"the right skill is {label}: {before:.3f} without tools, {after:.3f} with {TOOLS}")
    return [
        Comparison(
            what=f"search, {SKILLS} skills and {TOOLS} tools",
            ours_ms=mixed[0],
            baseline=f"{SKILLS} skills alone",
            baseline_ms=plain[0],
            goal=GOAL,
            spread=mixed[3],
        )
    ]
