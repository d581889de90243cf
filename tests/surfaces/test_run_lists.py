"""Lists of runs over HTTP: what they show of each run, and their filters."""

from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest

from apexbridge.bridge import DATABASE_FILE, Bridge
from apexbridge.storage.database import Database
from apexbridge.storage.run_store import RunRow, RunStore
from apexbridge.surfaces.http.app import create_app
from apexbridge.surfaces.http.middleware.auth import Access
from tests.making import skill_zip
from tests.waiting import until

pytestmark = pytest.mark.anyio
Json = dict[str, Any]
DAY_MS = 24 * 60 * 60 * 1000
WAITS = "import time\nprint('begun', flush=True)\ntime.sleep(3600)\n"
WRITES = "open('output/a.txt', 'w').write('a')\nopen('output/b.txt', 'w').write('b')\n"
NEW_FIELDS = ("durationMs", "errorCode", "exitCode", "fileCount", "origin")


async def install(bridge: Bridge, name: str, script: str) -> None:
    await bridge.skills.install_skill(skill_zip(name, files={"scripts/execute.py": script}))


async def listed(client: httpx.AsyncClient, **query: Any) -> list[Json]:
    page = (await client.get("/api/executions", params=query)).raise_for_status().json()
    assert page["total"] == len(page["executions"])
    executions: list[Json] = page["executions"]
    return executions


async def test_a_list_shows_how_runs_ended(bridge: Bridge, client: httpx.AsyncClient) -> None:
    for name, script in (("fails", "import sys\nsys.exit(3)"), ("writes", WRITES)):
        await install(bridge, name, script)
        result = (await client.post(f"/api/skills/{name}/execute", json={})).json()
        [run] = await listed(client, skill=name)
        origin = {"kind": "api", "id": None}
        expected = (result["duration"], result.get("errorCode"), result["exitCode"], len(result["files"]), origin)
        assert tuple(run[field] for field in NEW_FIELDS) == expected
        detail = (await client.get(f"/api/executions/{run['id']}")).json()
        assert {field: detail[field] for field in run} == run
    assert (run["fileCount"], run["exitCode"], run["errorCode"]) == (2, 0, None)


async def test_a_run_that_goes_on_has_no_end_in_the_list(bridge: Bridge, client: httpx.AsyncClient) -> None:
    await install(bridge, "waits", WAITS)
    id = (await client.post("/api/skills/waits/execute", json={"wait": False})).json()["id"]
    [run] = await listed(client, skill="waits", origin="api", since="2020-01-01", until="2999-01-01T00:00:00Z")
    assert [run[field] for field in NEW_FIELDS] == [None, None, None, 0, {"kind": "api", "id": None}]
    assert await listed(client, origin="chat") == []
    assert await listed(client, until="2020-01-01") == []
    assert await listed(client, since="2999-01-01") == []
    await client.post(f"/api/executions/{id}/cancel")

    async def is_over() -> bool:
        return bool((await client.get(f"/api/executions/{id}")).json()["state"] == "error")

    await until(is_over)
    [ended] = await listed(client, skill="waits")
    assert ended["errorCode"] == "CANCELLED"


async def test_a_list_can_be_limited_to_an_origin(bridge: Bridge, client: httpx.AsyncClient) -> None:
    await install(bridge, "shout", "print('LOUD')")
    by_api = (await client.post("/api/skills/shout/execute", json={})).json()["id"]
    body = {"conversation": "talk-1"}
    by_tool = (await client.post("/api/tools/skill:shout/execute", json=body)).json()["id"]
    code = {"input": {"language": "python", "code": "print(1)"}}
    by_code = (await client.post("/api/tools/run-code/execute", json=code)).json()["id"]
    found = {origin: [run["id"] for run in await listed(client, origin=origin)] for origin in ("api", "tool", "mcp")}
    assert found == {"api": [by_api], "tool": [by_code, by_tool], "mcp": []}
    origins = {run["id"]: run["origin"] for run in await listed(client)}
    assert origins[by_tool] == {"kind": "tool", "id": "talk-1"}
    assert origins[by_code] == {"kind": "tool", "id": None}


@pytest.fixture
async def history(data_dir: Path) -> list[int]:
    """Three runs of different days, by two callers; their times. The bridge is opened after it."""
    data_dir.mkdir(parents=True, exist_ok=True)
    database = Database(data_dir / DATABASE_FILE)
    store = RunStore(database)
    times = [1_700_000_000_000 + day * DAY_MS for day in range(3)]
    for number, time in enumerate(times):
        row = RunRow(
            id=f"{number:032x}",
            skill="old",
            script="scripts/execute.py",
            content_hash="",
            caller="" if number == 0 else "ann",
            state="completed",
            created_at=time,
            ended_at=time,
            input_digest="",
        )
        await store.put(row)
    database.close()
    return times


async def test_a_list_can_be_limited_to_a_time(history: list[int], client: httpx.AsyncClient) -> None:
    first, second, third = (run["createdAt"] for run in reversed(await listed(client)))

    async def times(**query: str) -> list[str]:
        return [run["createdAt"] for run in await listed(client, **query)]

    assert await times(since=second) == [third, second]
    assert await times(until=second) == [first]
    assert await times(since=second, until=third) == [second]
    naive = datetime.fromisoformat(second).replace(tzinfo=None)
    assert await times(since=naive.isoformat()) == [third, second]
    assert await times(since=(naive + timedelta(milliseconds=1)).isoformat()) == [third]
    assert await times(since="0001-01-01T00:00:00+14:00", until="9999-12-31T23:59:59-14:00") == [third, second, first]


@pytest.mark.parametrize("query", [{"since": "yesterday"}, {"until": "2020-13-01"}, {"origin": "cli"}, {"since": ""}])
async def test_an_invalid_filter_is_refused(client: httpx.AsyncClient, query: Json) -> None:
    refused = await client.get("/api/executions", params=query)
    assert (refused.status_code, refused.json()["code"]) == (422, "INVALID_INPUT")


async def test_an_old_run_has_no_known_origin(history: list[int], client: httpx.AsyncClient) -> None:
    assert {run["origin"]["kind"] for run in await listed(client)} == {None}


async def test_a_list_can_be_limited_to_a_caller(history: list[int], client: httpx.AsyncClient) -> None:
    assert [run["caller"] for run in await listed(client, caller="ann")] == ["ann", "ann"]
    assert [run["caller"] for run in await listed(client, caller="")] == [""]
    assert await listed(client, caller="unknown") == []


async def test_a_key_can_list_only_its_own_runs_by_caller(history: list[int], bridge: Bridge) -> None:
    key, secret = await bridge.keys.create("reader", ["read"])
    transport = httpx.ASGITransport(create_app(bridge, Access(keys_required=True)))
    headers = {"authorization": f"Bearer {secret}"}
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost", headers=headers) as client:
        for caller in ("ann", ""):
            refused = await client.get("/api/executions", params={"caller": caller})
            assert (refused.status_code, refused.json()["code"]) == (403, "FORBIDDEN")
        assert await listed(client, caller=key.id) == []
        assert await listed(client) == []
