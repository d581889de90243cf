"""Doctor, status, settings and the list of audited acts."""

import asyncio
import sqlite3
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx
import pytest

from apexbridge.bridge import Bridge
from apexbridge.retrieval.embedders.embedder import Embedder
from apexbridge.settings import Settings, UpstreamSettings, load_settings
from apexbridge.storage.audit import AUDIT_FILE
from apexbridge.surfaces.http.middleware.audit_trail import act_of
from apexbridge.surfaces.http.middleware.scopes import required_scope
from tests.chat.upstream import Upstream, upstreams
from tests.conftest import client_of
from tests.making import skill_zip
from tests.waiting import until

pytestmark = pytest.mark.anyio
Json = dict[str, Any]


async def get(client: httpx.AsyncClient, path: str, **query: Any) -> Any:
    return (await client.get(path, params=query)).raise_for_status().json()


@pytest.mark.parametrize(
    ("path", "scope"),
    [
        ("/api/doctor", "admin"),
        ("/api/status", "admin"),
        ("/api/settings", "admin"),
        ("/api/audit", "admin"),
        ("/api/insights/searches", "admin"),
        ("/api/insights/tokens", "admin"),
        ("/api/insights/calls", "read"),
        ("/api/insights/skills", "read"),
        ("/api/events", "read"),
    ],
)
def test_what_concerns_all_callers_needs_the_scope_admin(path: str, scope: str) -> None:
    assert required_scope("GET", path) == scope
    assert required_scope("POST", path) == "admin"


def test_checks_are_audited_by_name() -> None:
    assert act_of("POST", "/api/doctor") == ("doctor.check", "")
    assert act_of("POST", "/api/status/check") == ("status.check", "")


# --------------------------------------------------------------------------------------------------------- doctor
async def test_the_doctor_reports_the_last_check(bridge: Bridge, client: httpx.AsyncClient) -> None:
    begin = bridge.events.feed.newest
    assert await get(client, "/api/doctor") == {"checkedAt": None, "running": False, "report": None, "checks": []}
    checking = asyncio.ensure_future(client.post("/api/doctor"))

    async def is_running() -> bool:
        return bool((await get(client, "/api/doctor"))["running"])

    await until(is_running)
    refused = await client.post("/api/doctor")
    assert (refused.status_code, refused.json()["code"]) == (409, "BUSY")
    made = (await checking).raise_for_status().json()
    assert made == await get(client, "/api/doctor")
    assert made["report"]["status"] in ("healthy", "degraded", "unavailable")
    assert {finding["guarantee"] for finding in made["report"]["guarantees"]} >= {"fs", "net", "memory"}
    sections = {check["section"] for check in made["checks"]}
    assert sections == {"data directory", "disk", "databases", "index", "upstream", "packages", "time", "versions"}
    assert [event.kind for event in bridge.events.feed.after(begin) or []].count("doctor") == 2


async def test_a_check_that_fails_can_be_repeated(bridge: Bridge, monkeypatch: pytest.MonkeyPatch) -> None:
    async def fail() -> Any:
        raise OSError("no memory")

    with monkeypatch.context() as patch:
        patch.setattr(bridge.doctor, "_diagnose", fail)
        with pytest.raises(OSError, match="no memory"):
            await bridge.doctor.check()
    assert not bridge.doctor.last.running


# --------------------------------------------------------------------------------------------------------- status
async def test_the_status_shows_every_part(bridge: Bridge, client: httpx.AsyncClient) -> None:
    await bridge.skills.install_skill(skill_zip("git-commit"))
    before = await get(client, "/api/status")
    assert (before["sandbox"]["backend"], before["audit"]["intact"]) == (None, None)
    await bridge.prepare_sandbox()
    status = (await client.post("/api/status/check")).raise_for_status().json()
    assert status["audit"] == {"intact": True}
    assert {one["guarantee"] for one in status["sandbox"]["guarantees"]} >= {"fs", "net"}
    assert status["sandbox"]["backend"] is not None
    limit = bridge.settings.sandbox_max_concurrency
    assert status["queue"] == {"running": 0, "waiting": 0, "limit": limit, "maxWaiting": 100}
    assert status["index"] == {"skills": 1, "vectors": 1, "missing": 0, "isIndexed": True}
    assert status["embedder"]["state"] == "ready"
    assert status["mcpServers"] == {"connected": 0, "failed": 0, "total": 0}
    assert status["llm"] == []
    parts = {part["name"]: part["bytes"] for part in status["disk"]["dataDirectory"]}
    assert parts["skills"] > 0
    assert parts["database"] >= status["database"]["bytes"] > 0
    assert 0 < status["disk"]["free"] < status["disk"]["total"]
    assert status["disk"]["measuredAt"]
    assert status["versions"]["python"].startswith("3.")
    assert status["versions"]["lancedb"]


@pytest.fixture
async def with_upstreams(data_dir: Path, embedder: Embedder) -> AsyncIterator[tuple[httpx.AsyncClient, Upstream]]:
    with upstreams() as upstream:
        tables = (
            UpstreamSettings(name="good", base_url=upstream.url),
            UpstreamSettings(name="gone", base_url="http://user:secret@127.0.0.1:9/v1?key=secret"),
        )
        settings = Settings(data_dir=data_dir, llm=tables)
        async with Bridge.open(settings, watch=False, embedder=embedder) as bridge, client_of(bridge) as client:
            yield client, upstream


async def test_model_servers_are_asked_on_request_and_at_most_once_a_minute(
    with_upstreams: tuple[httpx.AsyncClient, Upstream],
) -> None:
    client, upstream = with_upstreams
    assert upstream.listed_with == [], "nothing is asked before the first request"
    checked = (await client.post("/api/status/check")).raise_for_status().json()["llm"]
    good, gone = checked
    assert (good["name"], good["reachable"], good["models"], good["lastError"]) == ("good", True, 2, None)
    assert good["latencyMs"] >= 0
    assert (gone["reachable"], gone["models"], gone["url"]) == (False, None, "http://127.0.0.1:9/v1")
    assert "cannot be reached" in gone["lastError"]
    assert "secret" not in str(checked)
    count = len(upstream.listed_with)
    assert (await get(client, "/api/status"))["llm"] == checked
    assert len(upstream.listed_with) == count


# ------------------------------------------------------------------------------------------------------- settings
def by_name(settings: list[Json]) -> dict[str, Json]:
    return {setting["name"].removeprefix("APEX_").lower(): setting for setting in settings}


async def test_settings_are_listed_with_their_source_and_without_secrets(
    data_dir: Path, embedder: Embedder, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("apex.toml").write_text(
        'rate_limit = 7\n[[llm]]\nname = "here"\nbase_url = "http://me:hidden-1@127.0.0.1:9/v1?key=hidden-2"\n'
        '[[mcp]]\nname = "files"\nurl = "http://127.0.0.1:9/mcp"\nheaders = {x-team = "hidden-3"}\n'
    )
    for name, value in (("LLM_API_KEY", "hidden-4"), ("PORT", "4000"), ("LOG_FORMAT", "json")):
        monkeypatch.setenv(f"APEX_{name}", value)
    monkeypatch.setenv("APEX_EMBEDDING_BASE_URL", "https://me:hidden-5@example.org/v1?api-key=hidden-6")
    settings = load_settings(data_dir=data_dir, port=5000)
    async with Bridge.open(settings, watch=False, embedder=embedder) as bridge, client_of(bridge) as client:
        listed = by_name(await get(client, "/api/settings"))
        assert listed.keys() == Settings.model_fields.keys()
        assert "hidden" not in str(listed)
        sources = {name: listed[name]["source"] for name in ("port", "data_dir", "log_format", "rate_limit", "host")}
        assert sources == {
            "port": "command line",
            "data_dir": "command line",
            "log_format": "environment",
            "rate_limit": "file",
            "host": "default",
        }
        assert (listed["port"]["value"], listed["port"]["default"]) == ("5000", "8420")
        assert (listed["rate_limit"]["value"], listed["rate_limit"]["file"]) == ("7", "apex.toml")
        assert listed["llm"]["value"] == "here http://**********@127.0.0.1:9/v1?**********"
        assert listed["mcp"]["value"] == "files"
        for name, value in (("llm_api_key", "set"), ("api_key", "not set")):
            assert (listed[name]["isSecret"], listed[name]["value"]) == (True, value)
        (await client.patch("/api/config", json={"enableDirectMode": False})).raise_for_status()
        changed = by_name(await get(client, "/api/settings"))["enable_direct_mode"]
        assert (changed["value"], changed["source"]) == ("false", "changed while running")
        assert (changed["default"], changed["changeable"]) == ("true", True)


# ---------------------------------------------------------------------------------------------------------- audit
async def test_audited_acts_are_listed_the_newest_first(bridge: Bridge, client: httpx.AsyncClient) -> None:
    headers = {"content-type": "application/zip"}
    (await client.post("/api/skills", content=skill_zip("one"), headers=headers)).raise_for_status()
    made = (await client.post("/api/keys", json={"name": "key", "scopes": ["read"]})).raise_for_status().json()
    (await client.delete(f"/api/keys/{made['id']}")).raise_for_status()
    await client.delete("/api/skills/missing")
    page = await get(client, "/api/audit")
    assert [(one["action"], one["target"], one["status"]) for one in page["entries"]] == [
        ("skills.uninstall", "missing", 404),
        ("keys.revoke", made["id"], 200),
        ("keys.create", made["id"], 201),
        ("skills.install", "one", 201),
    ]
    assert [one["sequence"] for one in page["entries"]] == [4, 3, 2, 1]
    assert (page["total"], page["page"], page["limit"]) == (4, 1, 50)
    assert page["entries"][2]["detail"] == "key: read"
    second = await get(client, "/api/audit", limit=1, page=2)
    assert [one["action"] for one in second["entries"]] == ["keys.revoke"]
    installs = await get(client, "/api/audit", action="skills.install")
    assert (installs["total"], len(installs["entries"])) == (1, 1)
    assert (await get(client, "/api/audit", actor=""))["total"] == 4
    assert (await get(client, "/api/audit", actor="' OR 1=1 --"))["total"] == 0
    assert await get(client, "/api/audit", page=1000) | {"page": 1} == {**page, "entries": []}


async def test_a_damaged_row_is_listed_too(bridge: Bridge, client: httpx.AsyncClient, data_dir: Path) -> None:
    (await client.post("/api/keys", json={"name": "key", "scopes": ["read"]})).raise_for_status()
    with closing(sqlite3.connect(data_dir / AUDIT_FILE)) as connection, connection:
        for text in ("not JSON", "[1]", '{"what": 7, "who": {}, "outcome": "x"}'):
            connection.execute("INSERT INTO audit (act, prev, hash) VALUES (?, '', '')", (text,))
    page = await get(client, "/api/audit")
    assert [one["action"] for one in page["entries"]] == [None, None, None, "keys.create"]
    assert (await get(client, "/api/audit", action="keys.create"))["total"] == 1
    assert (await client.post("/api/status/check")).json()["audit"] == {"intact": False}
