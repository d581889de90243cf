"""What a key holds, and limits of single keys: HTTP, command line, documentation."""

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from apexbridge.bridge import Bridge
from apexbridge.disk import MB
from apexbridge.errors import ServerError
from apexbridge.retrieval.embedders.embedder import Embedder
from apexbridge.settings import Settings
from apexbridge.surfaces.http.app import create_app
from apexbridge.surfaces.http.middleware.auth import Access
from tests.surfaces.conftest import Apex

PAGE = Path(__file__).parents[2] / "docs/guides/operate.md"
OWNER = {"authorization": "Bearer owner"}


@asynccontextmanager
async def client_of(bridge: Bridge) -> AsyncIterator[httpx.AsyncClient]:
    app = create_app(bridge, Access(bound="127.0.0.1", keys_required=True, owner="owner"))
    transport = httpx.ASGITransport(app)
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=transport, base_url="http://localhost") as client,
    ):
        yield client


async def usage(client: httpx.AsyncClient, id: str) -> dict[str, dict[str, Any]]:
    shown = (await client.get(f"/api/keys/{id}", headers=OWNER)).raise_for_status().json()
    return {row["resource"]: row for row in shown["usage"]}


def amount(text: str) -> int | None:
    """The number at the beginning of a cell of the table, in bytes if it is in MB."""
    found = re.match(r" ([\d,]+)( MB)?", text)
    return int(found[1].replace(",", "")) * (MB if found[2] else 1) if found else None


@pytest.mark.anyio
async def test_the_table_of_limits_in_the_documentation_is_what_a_key_shows(bridge: Bridge) -> None:
    key, _ = await bridge.keys.create("made", ["run"])
    async with client_of(bridge) as client:
        await client.post("/mcp", json={}, headers=OWNER)  # builds the MCP server
        shown = await usage(client, key.id)
    table = PAGE.read_text("utf-8").split("## Limits of each key")[1].split("\n## ")[0]
    rows = {row[0]: row[1:] for row in re.findall(r"^\| `([\w-]+)`[^|]*\|([^|]*)\|([^|]*)\|", table, re.MULTILINE)}
    assert rows.keys() == shown.keys()
    variable = {"active-runs", "active-and-waiting-runs", "past-requests"}
    for name, (own, everyone) in rows.items():
        row = shown[name]
        if name not in variable:
            assert amount(own) == row["limit"], name
            assert row["totalLimit"] is None or amount(everyone) == row["totalLimit"], name


@pytest.mark.anyio
async def test_a_key_of_any_scope_sees_its_own_usage_and_not_that_of_others(bridge: Bridge) -> None:
    key, text = await bridge.keys.create("made", ["chat"])
    async with client_of(bridge) as client:
        headers = {"authorization": f"Bearer {text}"}
        own = (await client.get("/api/session?usage=true", headers=headers)).raise_for_status().json()["usage"]
        assert next(row["used"] for row in own if row["resource"] == "requests") == 1
        assert (await client.get(f"/api/keys/{key.id}", headers=headers)).status_code == 403
        assert (await client.get("/api/session", headers=headers)).json()["usage"] is None
        assert (await client.get("/api/session?usage=true")).json()["usage"] is None
        missing = await client.get("/api/keys/00000000", headers=OWNER)
        assert (missing.status_code, missing.json()["code"]) == (404, "NOT_FOUND")


@pytest.mark.anyio
async def test_limits_of_a_key_are_kept_over_a_restart_and_can_be_taken_away(
    data_dir: Path, embedder: Embedder
) -> None:
    settings = Settings(data_dir=data_dir, key_quota_mb=5)
    async with Bridge.open(settings, watch=False, embedder=embedder) as bridge, client_of(bridge) as client:
        body = {"name": "small", "scopes": ["run"], "quotaMb": 1, "maxRuns": 1, "rateLimit": 3}
        key = (await client.post("/api/keys", json=body, headers=OWNER)).raise_for_status().json()
        assert (key["quotaMb"], key["maxRuns"], key["rateLimit"]) == (1, 1, 3)
        for bad in ({"maxRuns": 0}, {"quotaMb": -1}, {"rateLimit": "many"}, {"name": "other"}):
            assert (await client.patch(f"/api/keys/{key['id']}", json=bad, headers=OWNER)).status_code == 422
    async with Bridge.open(settings, watch=False, embedder=embedder) as bridge, client_of(bridge) as client:
        shown = await usage(client, key["id"])
        limits = [shown[name]["limit"] for name in ("disk", "active-runs", "requests-this-minute")]
        assert limits == [MB, 1, 3]
        headers = {"authorization": f"Bearer {key['key']}"}

        async def write() -> int:
            call = {"input": {"path": "a.txt", "content": "x" * 2 * MB}}
            return (await client.post("/api/tools/file-write/execute", json=call, headers=headers)).status_code

        assert await write() == 507
        changed = await client.patch(f"/api/keys/{key['id']}", json={"quotaMb": None}, headers=OWNER)
        assert (changed.json()["quotaMb"], changed.json()["rateLimit"]) == (None, 3)
        assert await write() == 200
        assert (await usage(client, key["id"]))["disk"]["used"] >= 2 * MB
        assert [await write(), await write()] == [200, 429]
        await client.patch(f"/api/keys/{key['id']}", json={"quotaMb": 1}, headers=OWNER)
        with pytest.raises(ServerError):
            bridge.disk.check(key["id"])


def test_the_command_line_shows_and_changes_the_limits_of_a_key(apex: Apex) -> None:
    created = apex("keys", "create", "--name", "batch", "--scope", "run", "--max-runs", "1", "--json").json
    assert apex("keys", "change", "batch", "--quota-mb", "7", "--rate-limit", "0", "--json").json["quotaMb"] == 7
    changed = apex("keys", "change", created["id"], "--max-runs", "default")
    assert "batch" in changed.err
    assert "--quota-mb 7, --rate-limit 0" in changed.err
    shown = apex("keys", "show", "batch")
    assert "batch" in shown.err
    disk = next(line for line in shown.out.splitlines() if line.startswith("disk"))
    assert disk.split("\t")[:4] == ["disk", "0.0 MB", "7.0 MB", "0%"]
    rows = {row["resource"]: row for row in apex("keys", "show", created["id"], "--json").json["usage"]}
    assert (rows["requests-this-minute"]["limit"], rows["requests-this-minute"]["share"]) == (None, None)
    assert apex("keys", "change", "batch").code == 2
    assert apex("keys", "change", "batch", "--max-runs", "many").code == 2
    assert apex("keys", "change", "batch", "--max-runs", "0").code == 1
    assert "apex keys list" in apex("keys", "show", "missing").err
    apex("keys", "create", "--name", "batch")
    ambiguous = apex("keys", "show", "batch")
    assert (ambiguous.code, created["id"] in ambiguous.err) == (1, True)
    apex("keys", "revoke", created["id"])
    assert "revoked" in apex("keys", "show", created["id"]).err
