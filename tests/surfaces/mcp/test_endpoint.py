"""`/mcp` and bad input: every mistake gets a JSON-RPC error, and nothing hangs."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest

from apexbridge.bridge import Bridge
from apexbridge.retrieval.embedders.embedder import Embedder
from apexbridge.settings import Settings
from apexbridge.surfaces.http.app import create_app
from apexbridge.surfaces.http.middleware.auth import Access
from apexbridge.surfaces.mcp import changes
from tests.chat.live import Live
from tests.surfaces.mcp.conftest import new_key
from tests.waiting import wait_until

ACCEPT = {"accept": "application/json, text/event-stream", "content-type": "application/json"}
MODERN = {**ACCEPT, "mcp-protocol-version": "2026-07-28"}
META = {
    "io.modelcontextprotocol/protocolVersion": "2026-07-28",
    "io.modelcontextprotocol/clientCapabilities": {},
}
CLIENT = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}}


def post(served: Live, body: Any, headers: dict[str, str] | None = None, path: str = "/mcp") -> httpx.Response:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    return served.http.post(path, content=content, headers=ACCEPT if headers is None else headers)


def error(response: httpx.Response) -> tuple[int, int]:
    """Status and JSON-RPC code."""
    body = response.json()
    assert body["jsonrpc"] == "2.0"
    assert body["error"]["message"]
    return response.status_code, body["error"]["code"]


def request(method: str, **params: Any) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": 1, "method": method, "params": {"_meta": META, **params}}


def modern(method: str, name: str | None = None) -> dict[str, str]:
    return {**MODERN, "mcp-method": method, **({"mcp-name": name} if name else {})}


@pytest.mark.parametrize("path", ["/mcp", "/mcp/"])
def test_both_paths_are_served_without_a_redirect(served: Live, path: str) -> None:
    answer = post(served, request("tools/list"), modern("tools/list"), path)
    assert (answer.status_code, len(answer.json()["result"]["tools"])) == (200, 9)
    assert post(served, {**request("initialize"), "params": CLIENT}, path=path).status_code == 200


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        (b"nonsense", 400, -32700),
        (b'{"jsonrpc": "2.0", "id": 1', 400, -32700),
        (b"\xff\xfe", 400, -32700),
        (b"[]", 400, -32600),
        (json.dumps([request("tools/list")] * 2).encode(), 400, -32600),
        (b"7", 400, -32600),
        (b'{"id": 1, "method": "tools/list"}', 400, -32600),
        (b'{"jsonrpc": "2.0", "id": {}, "method": "tools/list"}', 400, -32600),
        (b'{"jsonrpc": "2.0", "id": 1, "method": 7}', 400, -32600),
        (b'{"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": []}', 400, -32600),
        (b'{"a":' * 100 + b"1" + b"}" * 100, 400, -32600),
        (b"[" * 100_000, 400, -32600),
        (b'{"a": [' + b"1," * 200_000 + b"1]}", 400, -32600),
        (b"", 400, -32700),
    ],
)
def test_malformed_messages_are_refused(served: Live, body: bytes, status: int, code: int) -> None:
    assert error(post(served, body, modern("tools/list"))) == (status, code)
    assert post(served, body).status_code in (400, 422)


def test_wrong_headers_are_refused(served: Live) -> None:
    listing = request("tools/list")
    assert error(post(served, listing, MODERN)) == (400, -32020)
    assert error(post(served, listing, modern("tools/call"))) == (400, -32020)
    call = request("tools/call", name="list_files", arguments={})
    assert error(post(served, call, modern("tools/call", "run_code"))) == (400, -32020)
    unknown = {**modern("tools/list"), "mcp-protocol-version": "2099-01-01"}
    assert post(served, listing, unknown).status_code == 400
    assert post(served, listing, {**modern("tools/list"), "accept": "text/html"}).status_code == 406
    assert served.http.get("/mcp", headers=MODERN).status_code == 405
    assert error(post(served, request("no/such"), modern("no/such"))) == (404, -32601)
    bare = {"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {}}
    assert error(post(served, bare, modern("tools/list"))) == (400, -32602)


def test_a_body_above_the_limit_is_refused(served: Live) -> None:
    call = request("tools/call", name="file_write", arguments={"path": "a", "content": "x" * 9_000_000})
    answer = post(served, call, modern("tools/call", "file_write"))
    assert error(answer) == (413, -32600)
    assert answer.json()["error"]["data"]["code"] == "PAYLOAD_TOO_LARGE"


@pytest.mark.parametrize("headers", [{"host": "evil.example"}, {"origin": "https://evil.example"}])
def test_other_sites_are_refused(served: Live, headers: dict[str, str]) -> None:
    answer = post(served, request("tools/list"), {**modern("tools/list"), **headers})
    assert error(answer) == (403, -32600)


def test_a_key_without_the_scope_read_cannot_connect(served: Live) -> None:
    headers = modern("tools/list")
    refused = post(served, request("tools/list"), {**headers, "authorization": f"Bearer {new_key(served, 'chat')}"})
    assert error(refused) == (403, -32600)
    wrong = post(served, request("tools/list"), {**headers, "authorization": "Bearer apex_00000000_wrong"})
    assert error(wrong) == (401, -32600)
    assert wrong.headers["www-authenticate"].startswith("Bearer")


def test_a_session_belongs_to_its_key(served: Live) -> None:
    own, other = ({"authorization": f"Bearer {new_key(served, 'read')}"} for _ in range(2))
    opened = post(served, {**request("initialize"), "params": CLIENT}, {**ACCEPT, **own})
    session = {"mcp-session-id": opened.headers["mcp-session-id"], "mcp-protocol-version": "2025-11-25"}
    listing = {"jsonrpc": "2.0", "id": 2, "method": "tools/list"}
    assert post(served, listing, {**ACCEPT, **session, **own}).status_code == 200
    assert post(served, listing, {**ACCEPT, **session, **other}).status_code == 404
    assert post(served, listing, {**ACCEPT, **session}).status_code == 404
    assert served.http.delete("/mcp", headers={**session, **other}).status_code == 404
    assert served.http.delete("/mcp", headers={**session, **own}).status_code == 200
    assert post(served, listing, {**ACCEPT, **session, **own}).status_code == 404
    assert post(served, listing, {**ACCEPT, **session, "mcp-session-id": "x" * 64}).status_code == 404


def test_the_number_of_sessions_of_a_key_is_limited(served: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(changes, "MAX_KEY_SESSIONS", 2)
    key = {"authorization": f"Bearer {new_key(served, 'read')}"}
    body = {**request("initialize"), "params": CLIENT}
    answers = [post(served, body, {**ACCEPT, **key}) for _ in range(3)]
    assert [answer.status_code for answer in answers] == [200, 200, 429]
    assert answers[2].json()["error"]["data"]["code"] == "RATE_LIMITED"
    ended = {"mcp-session-id": answers[0].headers["mcp-session-id"], **key}
    assert post(served, request("tools/list"), {**modern("tools/list"), **key}).status_code == 200  # no session
    assert served.http.delete("/mcp", headers=ended).status_code == 200
    wait_until(lambda: post(served, body, {**ACCEPT, **key}).status_code == 200)


@pytest.mark.anyio
async def test_without_the_package_the_answer_says_how_to_install_it(
    bridge: Bridge, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("apexbridge.surfaces.mcp.endpoint.is_installed", lambda: False)
    transport = httpx.ASGITransport(create_app(bridge, Access(bound="127.0.0.1")))
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
        answer = await client.post("/mcp", json=request("tools/list"), headers=modern("tools/list"))
        assert error(answer) == (503, -32603)
        assert answer.json()["error"]["data"]["code"] == "MCP_NOT_INSTALLED"
        assert "pip install 'apexbridge[mcp]'" in answer.json()["error"]["message"]
        assert (await client.get("/api/tools")).status_code == 200


@pytest.mark.anyio
async def test_the_rate_limit_of_a_key_counts(
    data_dir: Path, embedder: Embedder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("apexbridge.surfaces.mcp.endpoint.is_installed", lambda: False)
    async with Bridge.open(Settings(data_dir=data_dir, rate_limit=2), watch=False, embedder=embedder) as bridge:
        _, key = await bridge.keys.create("made", ["read"])
        transport = httpx.ASGITransport(create_app(bridge, Access(bound="127.0.0.1")))
        headers = {**modern("tools/list"), "authorization": f"Bearer {key}"}
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost", headers=headers) as client:
            answers = [await client.post("/mcp", json=request("tools/list")) for _ in range(3)]
    assert [answer.status_code for answer in answers] == [503, 503, 429]
    assert error(answers[2]) == (429, -32600)


def test_nothing_imports_the_package_before_it_is_used(tmp_path: Path) -> None:
    program = (
        "import sys, apexbridge.surfaces.http.serve, apexbridge.surfaces.cli.commands.mcp\n"
        "print([name for name in sys.modules if name.split('.')[0] in ('mcp', 'mcp_types')])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
