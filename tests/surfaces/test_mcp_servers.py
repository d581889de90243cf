"""MCP servers over HTTP and on the command line."""

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from apexbridge.bridge import Bridge
from apexbridge.retrieval.embedders.embedder import Embedder
from apexbridge.settings import Settings
from apexbridge.storage.audit import AUDIT_FILE, exported
from apexbridge.surfaces.http.app import create_app
from apexbridge.surfaces.http.middleware.auth import Access
from tests.mcp_client.serving import fake, tools
from tests.surfaces.conftest import Apex

pytestmark = pytest.mark.anyio
OWNER = "the-owner's-key"
Json = dict[str, Any]


@pytest.fixture
async def bridge(data_dir: Path, embedder: Embedder) -> AsyncIterator[Bridge]:
    configured = fake("configured", options=tools("echo"))
    async with Bridge.open(Settings(data_dir=data_dir, mcp=(configured,)), embedder=embedder) as opened:
        yield opened


@pytest.fixture
async def client(bridge: Bridge) -> AsyncIterator[httpx.AsyncClient]:
    served = create_app(bridge, Access(bound="127.0.0.1", keys_required=True, owner=OWNER))
    async with httpx.AsyncClient(transport=httpx.ASGITransport(served), base_url="http://127.0.0.1") as opened:
        yield opened


def body(name: str = "added", **fields: Any) -> Json:
    return fake(name, options=tools("echo"), **fields).model_dump(mode="json", exclude_defaults=True)


async def ask(client: httpx.AsyncClient, method: str, path: str, *, key: str = OWNER, **options: Any) -> httpx.Response:
    return await client.request(method, f"/api/mcp/servers{path}", headers={"x-api-key": key}, **options)


async def test_servers_are_added_used_and_removed(client: httpx.AsyncClient, bridge: Bridge) -> None:
    added = await ask(client, "POST", "?wait=60", json=body(env={"A": "b"}))
    assert (added.status_code, added.json()["state"], added.json()["origin"]) == (201, "connected", "added")
    assert (added.json()["env"], added.json()["tools"]) == ({"A": "***"}, 1)
    called = await client.post("/api/tools/added_echo/execute", headers={"x-api-key": OWNER}, json={"input": {"a": 1}})
    assert called.json()["output"] == '{"a": 1}'
    shown = (await client.get("/api/tools/added_echo", headers={"x-api-key": OWNER})).json()
    assert (shown["name"], shown["category"], shown["tags"]) == ("added_echo", "mcp", ["added"])
    listed = (await ask(client, "GET", "?wait=60")).json()
    assert [(own["name"], own["origin"]) for own in listed] == [("added", "added"), ("configured", "apex.toml")]
    assert (await ask(client, "POST", "/added/reconnect?wait=60")).json()["state"] == "connected"
    assert (await ask(client, "DELETE", "/added")).json()["tools"] == 1
    assert bridge.tools.find("added_echo") is None
    assert (await ask(client, "GET", "/added")).json()["code"] == "MCP_SERVER_NOT_FOUND"
    assert (await ask(client, "GET", "/configured")).json()["name"] == "configured"


async def test_an_added_server_is_there_after_a_restart(data_dir: Path, embedder: Embedder) -> None:
    async with Bridge.open(Settings(data_dir=data_dir), embedder=embedder) as bridge:
        await bridge.mcp.add(fake(options=tools("echo")), wait_seconds=60)
    async with Bridge.open(Settings(data_dir=data_dir), embedder=embedder) as bridge:
        assert (await bridge.tools.execute("fake_echo")).output == "{}"
        await bridge.mcp.remove("fake")
    async with Bridge.open(Settings(data_dir=data_dir), embedder=embedder) as bridge:
        assert (await bridge.mcp.views(), bridge.tools.list_by_category("mcp")) == ([], [])


@pytest.mark.parametrize(
    ("method", "path", "sent", "status", "code"),
    [
        ("POST", "", body("configured"), 409, "MCP_SERVER_EXISTS"),
        ("POST", "", {"name": "x"}, 422, "INVALID_INPUT"),
        ("POST", "", {"name": "x", "url": "https://e", "headers": {"x-api-key": "literal"}}, 422, "INVALID_INPUT"),
        ("POST", "?wait=61", body(), 422, "INVALID_INPUT"),
        ("DELETE", "/configured", None, 409, "MCP_SERVER_READ_ONLY"),
        ("DELETE", "/unknown", None, 404, "MCP_SERVER_NOT_FOUND"),
        ("POST", "/configurd/reconnect", None, 404, "MCP_SERVER_NOT_FOUND"),
    ],
)
async def test_wrong_requests_are_refused(
    client: httpx.AsyncClient, method: str, path: str, sent: Json | None, status: int, code: str
) -> None:
    response = await ask(client, method, path, json=sent)
    assert (response.status_code, response.json()["code"]) == (status, code)
    assert "literal" not in response.text
    if path == "/configurd/reconnect":
        assert response.json()["message"] == 'No MCP server named configurd. Did you mean "configured"?'


async def test_only_the_owner_adds_commands_outside_the_sandbox(client: httpx.AsyncClient, bridge: Bridge) -> None:
    _, key = await bridge.keys.create("remote", ["admin"])
    refused = await ask(client, "POST", "", key=key, json=body())
    assert (refused.status_code, refused.json()["code"]) == (403, "FORBIDDEN")
    allowed = await ask(client, "POST", "", key=key, json={"name": "remote", "url": "http://127.0.0.1:9/mcp"})
    assert allowed.status_code == 201


async def test_servers_are_for_administrators_and_every_change_is_recorded(
    client: httpx.AsyncClient, bridge: Bridge, data_dir: Path
) -> None:
    _, key = await bridge.keys.create("reader", ["read", "run", "chat"])
    for method, path in (("GET", ""), ("GET", "/configured"), ("POST", ""), ("DELETE", "/configured")):
        assert (await ask(client, method, path, key=key, json=body())).status_code == 403
    await ask(client, "POST", "", json=body("mine"))
    await ask(client, "POST", "/mine/reconnect")
    await ask(client, "DELETE", "/mine")
    rows = [row for row in exported(data_dir / AUDIT_FILE) if row["what"].startswith("mcp.") and row["outcome"] < 400]
    acts = [("mcp.add", "mine"), ("mcp.reconnect", "mine"), ("mcp.remove", "mine")]
    assert [(row["what"], row["target"]) for row in rows] == acts


def test_the_command_line_adds_lists_and_removes_servers(apex: Apex) -> None:
    own = body("files")
    added = apex("mcp", "add", "files", "--env", "A=${secret:NONE}", "--", own["command"], *own["args"])
    assert "the secret NONE is not set" in added.err
    listed = json.loads(apex("mcp", "list", "--json").out)
    assert [(server["name"], server["env"]) for server in listed] == [("files", {"A": "${secret:NONE}"})]
    assert "waiting" in apex("mcp", "status").out
    assert "waiting" in apex("mcp", "status", "files").out
    assert "files is removed" in apex("mcp", "remove", "files").err
    assert "There is no MCP server" in apex("mcp", "list").err
    assert "an address has no arguments" in apex("mcp", "add", "x", "https://e", "y").err
    assert (
        "headers: Authorization is a credential"
        in apex("mcp", "add", "x", "https://e", "--header", "Authorization: Bearer abc").err
    )
    assert "write NAME:VALUE" in apex("mcp", "add", "x", "https://e", "--header", "y").err
