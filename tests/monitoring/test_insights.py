"""Figures of use: calls by day, searches, tokens, over the HTTP application and with a real database."""

import random
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx
import pytest

from apexbridge._time import MS_PER_DAY, now_ms
from apexbridge.bridge import Bridge
from apexbridge.retrieval.embedders.embedder import Embedder
from apexbridge.settings import Settings
from apexbridge.storage.call_days import KEEP_DAYS, bucket_of, duration_of, percentile, today
from apexbridge.storage.search_store import MAX_SEARCHES
from tests.conftest import client_of
from tests.making import skill_zip

pytestmark = pytest.mark.anyio
Json = dict[str, Any]
ECHO = "import json, sys\nsys.exit(json.load(sys.stdin).get('code', 0))\n"


async def figures(client: httpx.AsyncClient, path: str, **query: Any) -> Json:
    body: Json = (await client.get(f"/api/insights/{path}", params=query)).raise_for_status().json()
    return body


async def put_calls(bridge: Bridge, day: int, skill: str, durations: list[int], *, failed: int = 0) -> None:
    """Add calls of another day."""
    for number, duration in enumerate(durations):
        await bridge._database.execute(
            "INSERT INTO skill_call_days VALUES (?, ?, ?, 1, ?, ?) ON CONFLICT DO UPDATE SET calls = calls + 1, "
            "failed = failed + excluded.failed",
            *(day, skill, bucket_of(duration), int(number < failed), day * MS_PER_DAY + 1),
        )


def test_percentiles_of_classes_are_close_to_the_exact_ones() -> None:
    chosen = random.Random(7)
    durations = sorted(round(chosen.lognormvariate(6, 2)) for _ in range(999))
    counts: dict[int, int] = {}
    for duration in durations:
        counts[bucket_of(duration)] = counts.get(bucket_of(duration), 0) + 1
    for share, exact in ((0.5, durations[499]), (0.95, durations[949])):
        assert percentile(counts, share) == pytest.approx(exact, rel=0.05, abs=1)
    assert (percentile({}, 0.5), percentile({bucket_of(0): 3}, 0.95)) == (None, 0)
    assert [duration_of(bucket_of(duration)) for duration in (0, 1, 2, 4, 1024)] == [0, 1, 2, 4, 1024]


async def test_runs_and_direct_calls_are_counted_on_their_day(bridge: Bridge, client: httpx.AsyncClient) -> None:
    await bridge.skills.install_skill(skill_zip("exits", {"scripts/execute.py": ECHO}))
    await bridge.skills.install_skill(skill_zip("reads"))
    await bridge.skills.install_skill(skill_zip("idle"))
    for code in (0, 0, 1):
        await bridge.tools.execute("skill:exits", {"code": code})
    await bridge.skills.execute_skill_direct("reads")
    calls = await figures(client, "calls", days=7)
    assert (calls["by"], len(calls["points"])) == ("day", 7)
    last_day = calls["points"][-1]
    assert last_day["date"] == datetime.now(UTC).date().isoformat()
    assert (last_day["calls"], last_day["failed"]) == (4, 1)
    assert last_day["p95Ms"] >= last_day["p50Ms"] >= 0
    assert calls["points"][0] | {"date": ""} == {"date": "", "calls": 0, "failed": 0, "p50Ms": None, "p95Ms": None}
    assert (await figures(client, "calls", days=1, skill="reads"))["points"][0]["calls"] == 1
    most_used = await figures(client, "skills")
    assert [(one["name"], one["calls"], one["successRate"]) for one in most_used["skills"]] == [
        ("exits", 3, 0.6667),
        ("reads", 1, 1.0),
    ]
    assert (most_used["total"], most_used["neverUsed"]) == (2, 1)
    second = await figures(client, "skills", limit=1, page=2)
    assert ([one["name"] for one in second["skills"]], second["total"]) == (["reads"], 2)
    assert [one["name"] for one in (await figures(client, "skills", sort="failures"))["skills"]] == ["exits"]
    unused = (await figures(client, "skills", sort="unused"))["skills"]
    assert [(one["name"], one["lastUsedAt"], one["successRate"]) for one in unused] == [("idle", None, None)]
    await bridge.skills.uninstall_skill("reads")
    removed = (await figures(client, "skills"))["skills"][1]
    assert (removed["name"], removed["installed"]) == ("reads", False)


async def test_points_cover_every_day_and_every_week_of_the_range(bridge: Bridge, client: httpx.AsyncClient) -> None:
    await put_calls(bridge, today() - 1, "pdf", [100] * 19 + [5000], failed=2)
    await put_calls(bridge, today() - 40, "pdf", [10])
    month = await figures(client, "calls", days=30)
    assert [point["calls"] for point in month["points"]] == [*[0] * 28, 20, 0]
    assert month["points"][-2]["p50Ms"] == pytest.approx(100, rel=0.05)
    assert month["points"][-2]["p95Ms"] == pytest.approx(100, rel=0.05)
    days = [datetime.fromisoformat(point["date"]) for point in month["points"]]
    assert all(later - earlier == timedelta(days=1) for earlier, later in pairwise(days))
    weeks = await figures(client, "calls", days=60, by="week")
    assert sum(point["calls"] for point in weeks["points"]) == 21
    assert {datetime.fromisoformat(point["date"]).weekday() for point in weeks["points"]} == {0}
    assert len((await figures(client, "calls", days=KEEP_DAYS))["points"]) == KEEP_DAYS
    assert (await figures(client, "skills", days=30, sort="slowest"))["skills"][0]["calls"] == 20


async def test_days_that_are_too_old_are_deleted_at_the_start(bridge: Bridge) -> None:
    await put_calls(bridge, today() - KEEP_DAYS - 1, "old", [1])
    await put_calls(bridge, today(), "new", [1])
    await bridge._call_days.sweep()
    assert await bridge._call_days.by_skill(0) == await bridge._call_days.by_skill(today())


@pytest.mark.parametrize(
    "path",
    ["calls?days=0", "calls?days=3651", "calls?by=hour", "skills?sort=x", "skills?limit=501", "searches?found=x"],
)
async def test_ranges_out_of_bounds_are_refused(client: httpx.AsyncClient, path: str) -> None:
    refused = await client.get(f"/api/insights/{path}")
    assert (refused.status_code, refused.json()["code"]) == (422, "INVALID_INPUT")


async def test_searches_are_counted_with_their_results(bridge: Bridge, client: httpx.AsyncClient) -> None:
    await bridge.skills.install_skill(skill_zip("git-commit"))
    for query in ("write a commit message", "write  a commit\nmessage", "<script>alert(1)</script>" + "x" * 300):
        (await client.post("/api/skills/search", json={"query": query})).raise_for_status()
    nothing = {"query": "zzz", "threshold": 1}
    (await client.post("/api/skills/search", json=nothing)).raise_for_status()
    (await client.post("/api/skills/search", json={"query": "typing", "record": False})).raise_for_status()
    await bridge.tools.execute(
        "vector-search", {"query": "words of a chat"}, conversation=bridge.conversations.get("chat")
    )
    found = await figures(client, "searches")
    assert (found["total"], found["recorded"]) == (3, True)
    first = found["searches"][0]
    assert (first["query"], first["count"], first["results"]) == ("write a commit message", 2, 1)
    assert max(len(one["query"]) for one in found["searches"]) == 200
    empty = [one["query"] for one in (await figures(client, "searches", found="none"))["searches"]]
    assert ("zzz" in empty, "write a commit message" in empty) == (True, False)
    pages = [await figures(client, "searches", limit=2, page=page) for page in (1, 2, 3)]
    assert [len(page["searches"]) for page in pages] == [2, 1, 0]
    assert [page["total"] for page in pages] == [3, 3, 3]


async def test_only_the_newest_searches_are_stored(bridge: Bridge) -> None:
    for number in range(MAX_SEARCHES + 300):
        bridge._searches.note(f"query {number}", 0)
        if number % 500 == 0:
            await bridge._searches._flush()
    bridge._searches.note("lone \ud800 surrogate", 1)
    _, total = await bridge._searches.list(days=1, without_results=False, limit=1)
    assert total == MAX_SEARCHES


async def test_searches_are_not_recorded_if_that_is_switched_off(data_dir: Path, embedder: Embedder) -> None:
    for is_recorded, count in ((True, 1), (False, 0), (True, 0)):
        settings = Settings(data_dir=data_dir, record_searches=is_recorded)
        async with Bridge.open(settings, watch=False, embedder=embedder) as bridge, client_of(bridge) as client:
            if is_recorded and count:
                await bridge.retrieval.search("a private question")
            found = await figures(client, "searches")
            assert (found["total"], found["recorded"]) == (count, is_recorded)
            await bridge.retrieval.search("a private question") if not is_recorded else None


async def test_searches_of_models_are_not_recorded(data_dir: Path, embedder: Embedder) -> None:
    async with Bridge.open(Settings(data_dir=data_dir, chat_records="full"), watch=False, embedder=embedder) as bridge:
        await bridge.tools.execute(
            "vector-search", {"query": "words of a chat"}, conversation=bridge.conversations.get("chat")
        )
        assert (await bridge.insights.searches(days=1, without_results=False, limit=5)).total == 0


async def test_tokens_are_summed_by_day_and_by_model(bridge: Bridge, client: httpx.AsyncClient) -> None:
    insert = (
        "INSERT INTO chats (id, caller, model, upstream, started_at, duration_ms, is_stream, turns, calls, stop_cause, "
        "outcome, prompt_tokens, completion_tokens, trajectory) VALUES (?, '', ?, '', ?, 1, 0, 1, 0, '', 'answered', "
        "?, ?, '[]')"
    )
    now = now_ms()
    rows = (("a", "big", now, 10, 5), ("b", "big", now - MS_PER_DAY, 1, 2), ("c", "small", now, None, None))
    for row in (*rows, ("d", "old", now - 40 * MS_PER_DAY, 7, 7)):
        await bridge._database.execute(insert, *row)
    found = await figures(client, "tokens", days=30)
    assert len(found["points"]) == 30
    assert [tuple(point.values())[1:] for point in found["points"][-2:]] == [(1, 2, 1), (10, 5, 2)]
    assert found["models"] == [
        {"model": "big", "promptTokens": 11, "completionTokens": 7, "requests": 2},
        {"model": "small", "promptTokens": 0, "completionTokens": 0, "requests": 1},
    ]
    weeks = await figures(client, "tokens", days=60, by="week")
    assert sum(point["requests"] for point in weeks["points"]) == 4
