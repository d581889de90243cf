"""Access control over real HTTP, on servers that do and do not require API keys."""

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.routing import BaseRoute, Mount, Route

from apexbridge.bridge import Bridge
from apexbridge.errors import ServerError
from apexbridge.settings import Settings, load_settings
from apexbridge.storage.audit import AUDIT_FILE
from apexbridge.surfaces.http.app import create_app
from apexbridge.surfaces.http.middleware.audit_trail import act_of
from apexbridge.surfaces.http.middleware.auth import Access
from apexbridge.surfaces.http.middleware.scopes import OPEN_PATHS, PUBLISHED, SESSION_PATH, required_scope
from apexbridge.surfaces.http.serve import check_host
from tests.making import skill_zip, write_skill
from tests.surfaces.conftest import Apex, Server, StartServer, servers
from tests.surfaces.keyed_server import ZIP, KeyedServer, error_of, start_keyed_server
from tests.waiting import PATIENCE_SECONDS, wait_until

ECHO = "import json, sys\nprint(json.dumps(json.load(sys.stdin), sort_keys=True))\n"


@pytest.fixture(scope="module")
def keyed_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KeyedServer]:
    """One server for all tests of this module."""
    with start_keyed_server(tmp_path_factory.mktemp("gated") / "data") as opened:
        yield opened


@pytest.fixture(scope="module")
def open_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A loopback server with default settings: it requires no key."""
    with servers(tmp_path_factory.mktemp("open") / "data") as start:
        yield start()


# ------------------------------------------------------------------------------------------------------- keys
def test_only_health_checks_are_answered_without_a_key(keyed_server: KeyedServer) -> None:
    for path in OPEN_PATHS:
        assert keyed_server.request("GET", path).status_code in (200, 503)
    for method, path in (("GET", "/api/skills"), ("GET", "/docs"), ("GET", "/nowhere"), ("DELETE", "/api/skills/x")):
        refused = keyed_server.request(method, path)
        assert error_of(refused) == (401, "RequestError", "UNAUTHORIZED"), path
        assert refused.headers["www-authenticate"] == 'Bearer realm="apexbridge"'
        assert "apex keys create" in refused.json()["message"]
    openai_response = keyed_server.request("POST", "/v1/chat/completions", json={})
    assert openai_response.status_code == 401
    assert openai_response.headers["x-should-retry"] == "false"  # Claude Code would repeat the request for minutes
    assert openai_response.json()["error"] | {"message": ""} == {
        "message": "",
        "type": "invalid_request_error",
        "param": None,
        "code": "invalid_api_key",
    }


def test_a_key_is_accepted_in_either_header(keyed_server: KeyedServer) -> None:
    assert keyed_server.request("GET", "/api/skills", "read").status_code == 200
    assert (
        keyed_server.request("GET", "/api/skills", headers={"x-api-key": keyed_server.keys["read"]}).status_code == 200
    )
    assert (
        keyed_server.request(
            "GET", "/api/skills", headers={"authorization": f"bearer  {keyed_server.keys['read']}"}
        ).status_code
        == 200
    )
    assert keyed_server.request("GET", "/v1/models", "chat").json()["object"] == "list"


@pytest.mark.parametrize(
    "authorization", ["Basic YTpi", "Bearer", "Bearer x", "apex_", "Bearer apex_00000000_" + "a" * 43]
)
def test_an_invalid_key_is_refused(keyed_server: KeyedServer, authorization: str) -> None:
    refused = keyed_server.request("GET", "/api/skills", headers={"authorization": authorization})
    assert error_of(refused) == (401, "RequestError", "UNAUTHORIZED")
    assert "invalid_token" in refused.headers["www-authenticate"]
    assert "given" not in refused.json()["details"]


def test_a_scope_permits_its_own_routes_and_admin_permits_all(keyed_server: KeyedServer) -> None:
    routes_by_scope = {
        "chat": ("GET", "/v1/models"),
        "read": ("GET", "/api/skills"),
        "run": ("POST", "/api/tools/calculate/execute"),
        "admin": ("POST", "/api/skills/reindex"),
    }
    for scope in routes_by_scope:
        for needed, (method, path) in routes_by_scope.items():
            response = keyed_server.request(
                method, path, scope, json={"input": {"expression": "1"}} if method == "POST" else None
            )
            assert (response.status_code == 200) == (scope in (needed, "admin")), (scope, path, response.text)
            if not response.is_success:
                assert response.status_code == 403
                error = response.json()["error"] if path.startswith("/v1") else response.json()
                assert error["code"] in ("FORBIDDEN", "forbidden")
                assert needed in error["message"]


@pytest.mark.anyio
async def test_every_route_except_health_checks_has_a_scope(bridge: Bridge) -> None:
    def paths(routes: Sequence[BaseRoute]) -> Iterator[tuple[str, str]]:
        for route in routes:
            # Newer versions of FastAPI do not flatten included routers.
            if included := getattr(route, "original_router", None):
                yield from paths(included.routes)
                continue
            assert isinstance(route, Route | Mount), f"{route} has a type that the guard does not handle"
            for method in (route.methods or ()) if isinstance(route, Route) else ("GET", "HEAD"):
                yield method, route.path

    found = {(method, path): required_scope(method, path) for method, path in paths(create_app(bridge).routes)}
    open_paths = {path for (_, path), scope in found.items() if scope is None}
    console = {"/", "/icon.svg", "/assets/{name}"}
    assert {path for path in open_paths if not path.startswith(PUBLISHED)} == OPEN_PATHS | console | {SESSION_PATH}
    by_scope = {
        scope: {f"{method} {path}" for (method, path), required in found.items() if required == scope}
        for scope in set(found.values())
    }
    assert by_scope["chat"] >= {"POST /v1/chat/completions", "GET /v1/models"}
    assert all(" /v1/" in route for route in by_scope["chat"])
    assert by_scope["run"] == {
        "POST /api/skills/{name}/execute",
        "POST /api/skills/remember",
        "POST /api/skills/validate",
        "POST /api/tools/{id}/execute",
        "POST /api/executions/{id}/cancel",
        "DELETE /api/executions/{id}",
        "DELETE /api/workspaces/{id}",
        "DELETE /api/workspaces/{id}/files/{path:path}",
        "POST /api/uploads",
    }
    assert {route for route in by_scope["read"] if not route.startswith(("GET ", "HEAD "))} == {
        "POST /api/skills/search",
        "POST /api/skills/{name}/description/preview",
    }
    assert {route for route in by_scope["admin"] if route.startswith("GET ")} == {
        "GET /api/keys",
        "GET /api/keys/{id}",
        "GET /api/secrets",
        "GET /api/audit",
        "GET /api/audit/verify",
        "GET /api/doctor",
        "GET /api/embedding-models",
        "GET /api/insights/searches",
        "GET /api/insights/tokens",
        "GET /api/settings",
        "GET /api/status",
        "GET /api/approvals",
        "GET /api/approvals/{id}",
        "GET /api/chats",
        "GET /api/chats/stats",
        "GET /api/chats/{id}",
        "GET /api/mcp/servers",
        "GET /api/mcp/servers/{name}",
    }
    transport = httpx.ASGITransport(create_app(bridge, Access(keys_required=True)))
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as anonymous:
        for method, path in found:
            event, _ = act_of(method, path.replace("{change}", "enable"))
            assert "{" not in event, f"{method} {path} would be named {event} in the audit log"
            status = (await anonymous.request(method, path)).status_code
            assert (status == 401) == (path not in open_paths), f"{method} {path} answered {status} without a key"


@pytest.mark.anyio
async def test_the_app_is_guarded_without_a_server(bridge: Bridge) -> None:
    key, text = await bridge.keys.create("x", ["read"])
    bridge.settings = bridge.settings.model_copy(update={"rate_limit": 4})
    access = Access(bound="127.0.0.1", keys_required=True, owner="o" * 43)
    transport = httpx.ASGITransport(create_app(bridge, access))
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:

        async def status(method: str = "GET", **headers: str) -> int:
            named = {name.replace("_", "-"): value for name, value in headers.items()}
            return (await client.request(method, "/api/config", headers=named, json={})).status_code

        for wrong in ("Bearer nothing", "Basic x", f"Bearer {text}x"):
            assert await status(authorization=wrong) == 401
        assert await status(authorization=f"Bearer {'o' * 43}") == 200
        assert await status("PATCH", authorization=f"Bearer {'o' * 43}") == 200
        assert await status(x_api_key=text) == 200
        assert await status("PATCH", x_api_key=text) == 403
        assert (await client.get(f"/api/config?key={text}", headers={"x-api-key": text})).status_code == 401
        await bridge.keys.revoke(key.id)
        assert await status(x_api_key=text) == 401
        other, text = await bridge.keys.create("y", ["read"])
        assert [await status(x_api_key=text) for _ in range(5)] == [200, 200, 200, 200, 429]
        assert {known.id: known.last_used_at is not None for known in bridge.keys.list()} == {
            key.id: True,
            other.id: True,
        }


def test_expired_and_revoked_keys_have_their_own_messages(keyed_server: KeyedServer) -> None:
    expiring = keyed_server.create_key("read", expiresIn=1)
    headers = {"authorization": f"Bearer {expiring['key']}"}
    wait_until(lambda: keyed_server.request("GET", "/api/skills", headers=headers).status_code != 200)
    response = keyed_server.request("GET", "/api/skills", headers=headers)
    assert (response.status_code, "expired" in response.json()["message"]) == (401, True)
    created = keyed_server.create_key("read")
    headers = {"authorization": f"Bearer {created['key']}"}
    with keyed_server.client(**headers) as client:
        assert client.get("/api/skills").status_code == 200
        revoked = keyed_server.request("DELETE", f"/api/keys/{created['id']}", "admin").json()
        assert revoked["revokedAt"] is not None
        response = client.get("/api/skills")
        assert (response.status_code, "revoked" in response.json()["message"]) == (401, True), (
            "on an open connection too"
        )
    assert error_of(keyed_server.request("DELETE", "/api/keys/00000000", "admin")) == (404, "RequestError", "NOT_FOUND")


def test_a_key_is_shown_once_and_its_secret_is_not_stored(keyed_server: KeyedServer) -> None:
    created = keyed_server.create_key("chat", "run", expiresIn=3600)
    assert (created["scopes"], created["lastUsedAt"]) == (["chat", "run"], None)
    listed = keyed_server.request("GET", "/api/keys", "admin").text
    assert created["id"] in listed
    secret = created["key"].split("_", 2)[2]
    assert secret not in listed
    assert not any(
        secret.encode() in path.read_bytes() for path in keyed_server.server.data_dir.rglob("*") if path.is_file()
    )


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"name": "x"},
        {"name": "", "scopes": ["chat"]},
        {"name": "x", "scopes": []},
        {"name": "x", "scopes": ["root"]},
    ],
)
def test_an_invalid_request_for_a_key_is_refused(keyed_server: KeyedServer, body: dict[str, Any]) -> None:
    assert error_of(keyed_server.request("POST", "/api/keys", "admin", json=body)) == (
        422,
        "RequestError",
        "INVALID_INPUT",
    )


@pytest.mark.parametrize(
    "path", ["/api/skills?api_key=", "/api/skills?x=1&token=1&access_token=", "/v1/models?API-KEY="]
)
def test_a_key_in_a_url_is_refused_and_not_logged(keyed_server: KeyedServer, path: str) -> None:
    key = keyed_server.keys["admin"]
    refused = keyed_server.request("GET", path + key, "admin")
    assert refused.status_code == 401
    assert key not in refused.text
    assert keyed_server.request("GET", f"/healthz?key={key}").status_code == 200, "health checks ignore keys"
    encoded = key.replace("apex_", "%61pex%5F")
    assert keyed_server.request("GET", f"/api/skills?name={encoded}", "admin").status_code == 401
    keyed_server.request("GET", f"/api/skills/{key}", "chat")
    secret = key.split("_", 2)[2]
    # The row of this change is written after those of the refused attempts.
    keyed_server.request("POST", "/api/skills/reindex", "admin").raise_for_status()
    assert any("***" in row["target"] for row in keyed_server.log)
    assert all(secret.encode() not in file.read_bytes() for file in keyed_server.server.data_dir.glob(f"{AUDIT_FILE}*"))


def test_a_server_that_requires_no_keys_still_checks_its_own_keys(open_server: Server) -> None:
    with httpx.Client(base_url=open_server.url, timeout=PATIENCE_SECONDS, trust_env=False) as client:
        for headers in ({}, {"authorization": "Bearer sk-not-ours"}, {"authorization": "Basic YTpi"}):
            assert client.get("/api/skills", headers=headers).status_code == 200
        wrong = client.get("/api/skills", headers={"x-api-key": f"apex_00000000_{'a' * 43}"})
        assert error_of(wrong) == (401, "RequestError", "UNAUTHORIZED")
        created = client.post("/api/keys", json={"name": "x", "scopes": ["read"]}).json()
        known = {"authorization": f"Bearer {created['key']}"}
        assert client.get("/api/skills", headers=known).status_code == 200
        assert client.post("/api/skills/reindex", headers=known).status_code == 403
        assert client.get("/api/skills?api_key=x").status_code == 401
        client.delete(f"/api/keys/{created['id']}").raise_for_status()


@pytest.mark.requirement("A6")
@pytest.mark.requirement("E11")
def test_each_key_has_its_own_workspace_and_usage_memory(keyed_server: KeyedServer) -> None:
    install = keyed_server.request(
        "POST", "/api/skills", "admin", content=skill_zip("words", files={"scripts/execute.py": ECHO}), headers=ZIP
    )
    assert install.status_code == 201
    one, other = keyed_server.create_key("run", "read"), keyed_server.create_key("run", "read")
    with (
        keyed_server.client(authorization=f"Bearer {one['key']}") as mine,
        keyed_server.client(authorization=f"Bearer {other['key']}") as theirs,
    ):
        written = mine.post("/api/tools/file-write/execute", json={"input": {"path": "a.txt", "content": "mine"}})
        assert written.status_code == 200
        assert mine.post("/api/tools/file-read/execute", json={"input": {"path": "a.txt"}}).json()["content"] == "mine"
        assert theirs.post("/api/tools/file-read/execute", json={"input": {"path": "a.txt"}}).status_code == 404
        ran = mine.post("/api/skills/words/execute", json={"files": ["a.txt"]}).json()
        assert "a.txt" in ran["stdout"]
        assert theirs.post("/api/skills/words/execute", json={"files": ["a.txt"]}).status_code in (404, 422)
        example = {"request": "sing me a lullaby", "name": "words"}
        assert mine.post("/api/skills/remember", json=example).json()["remembered"]
        search = {"query": example["request"], "threshold": 0}
        scores = [
            next(hit["score"] for hit in client.post("/api/skills/search", json=search).json()["results"])
            for client in (mine, theirs)
        ]
        assert scores[0] > scores[1]


# ------------------------------------------------------------------------------------------------- hosts, origins
def test_a_host_name_must_be_listed_and_cors_is_off(keyed_server: KeyedServer) -> None:
    assert (
        keyed_server.request("GET", "/api/skills", "read", headers={"host": "APEX.example.org:443"}).status_code == 200
    )
    for host in ("evil.example", "192.168.1.5", "apex.example.org.evil.example", ""):
        assert error_of(keyed_server.request("GET", "/api/skills", "read", headers={"host": host})) == (
            403,
            "RequestError",
            "FORBIDDEN",
        )
    preflight = keyed_server.request("OPTIONS", "/v1/models", "chat", headers={"access-control-request-method": "POST"})
    assert not [name for name in preflight.headers if name.startswith("access-control")]
    openai_response = keyed_server.request("GET", "/v1/models", "chat", headers={"host": "evil.example"})
    assert (openai_response.status_code, openai_response.json()["error"]["code"]) == (403, "forbidden")


async def _status_of(
    bridge: Bridge, access: Access, server: str, *more: tuple[bytes, bytes], path: str = "/healthz", **headers: str
) -> int:
    """The status of a request to an address of this machine."""
    statuses: list[int] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Any) -> None:
        if message["type"] == "http.response.start":
            statuses.append(message["status"])

    scope = {
        "type": "http",
        "method": "GET",
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "root_path": "",
        "scheme": "http",
        "http_version": "1.1",
        "headers": [*((key.replace("_", "-").encode(), value.encode()) for key, value in headers.items()), *more],
        "client": ("192.168.1.9", 5),
        "server": (server, 8420),
    }
    await create_app(bridge, access)(scope, receive, send)
    return statuses[0]


@pytest.mark.anyio
async def test_the_local_address_of_a_connection_is_an_allowed_host(bridge: Bridge) -> None:
    all_interfaces = Access(bound="0.0.0.0", keys_required=True)
    assert await _status_of(bridge, all_interfaces, "192.168.1.5", host="192.168.1.5:8420") == 200
    assert await _status_of(bridge, all_interfaces, "127.0.0.1", host="localhost:8420") == 200
    assert await _status_of(bridge, all_interfaces, "127.0.0.1", host="0.0.0.0:8420") == 200
    assert await _status_of(bridge, all_interfaces, "192.168.1.5", host="192.168.1.6:8420") == 403
    assert await _status_of(bridge, all_interfaces, "192.168.1.5", host="evil.example") == 403
    loopback = Access(bound="127.0.0.1")
    assert await _status_of(bridge, loopback, "192.168.1.5", host="192.168.1.5:8420") == 403


@pytest.mark.anyio
@pytest.mark.parametrize("bound", ["127.0.0.1", "0.0.0.0"])
async def test_an_invalid_host_header_is_refused_on_a_socket(bridge: Bridge, bound: str) -> None:
    access = Access(bound=bound)
    for host in (
        "in-process",
        "evil@localhost",
        "localhost/evil",
        "localhost#evil",
        "localhost?evil",
        "localhost\\evil",
    ):
        assert await _status_of(bridge, access, "127.0.0.1", host=host) == 403, host
    assert await _status_of(bridge, access, "127.0.0.1", (b"host", b"localhost"), host="localhost") == 403, (
        "two Host headers"
    )
    assert await _status_of(bridge, Access(), "127.0.0.1", host="in-process") == 200, "a command without a server"


@pytest.mark.anyio
@pytest.mark.parametrize("name", ["authorization", "x-api-key"])
async def test_two_keys_in_one_request_are_refused(bridge: Bridge, name: str) -> None:
    _, text = await bridge.keys.create("x", ["read"])
    key, access = f"Bearer {text}" if name == "authorization" else text, Access(bound="127.0.0.1", keys_required=True)
    header, headers = name.replace("-", "_"), {"path": "/api/skills", "host": "localhost"}
    assert await _status_of(bridge, access, "127.0.0.1", **headers, **{header: key}) == 200
    for one, other in ((key, "Bearer x"), ("Bearer x", key), (key, key)):
        both = {**headers, header: one}
        assert await _status_of(bridge, access, "127.0.0.1", (name.encode(), other.encode()), **both) == 401


@pytest.mark.anyio
async def test_only_a_listed_origin_may_send_requests(bridge: Bridge) -> None:
    listed = bridge.settings.model_copy(update={"allowed_origins": ("https://App.example.org/",)})
    bridge.settings = listed
    for origin, expected in (("https://app.example.org", 200), ("http://app.example.org", 403), ("null", 403)):
        assert await _status_of(bridge, Access(), "127.0.0.1", host="localhost", origin=origin) == expected


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.5", "example.org"])
def test_other_addresses_are_bound_only_if_keys_are_required(host: str) -> None:
    check_host(host, has_keys=True)
    check_host(host, required="true")
    for required, has_keys in (("auto", False), ("false", True), ("false", False)):
        with pytest.raises(ServerError) as caught:
            check_host(host, required=required, has_keys=has_keys)  # type: ignore[arg-type]
        assert caught.value.code == "FORBIDDEN"
        assert "127.0.0.1" in caught.value.message


def test_a_public_server_starts_with_a_key_and_requires_it(
    start_server: StartServer, apex: Apex, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert apex("serve", "--host", "0.0.0.0").code == 1
    created = apex("keys", "create", "--name", "laptop", "--scope", "read", "--json").json
    server = start_server("--host", "0.0.0.0")
    assert "apex keys create" in server.startup_output
    url = server.url.replace("0.0.0.0", "127.0.0.1")
    assert httpx.get(f"{url}/api/skills", timeout=PATIENCE_SECONDS).status_code == 401
    assert (
        httpx.get(f"{url}/api/skills", timeout=PATIENCE_SECONDS, headers={"x-api-key": created["key"]}).status_code
        == 200
    )
    assert apex("skills", "list", "--json").json["total"] == 0, "the owner of the data directory needs no key"
    assert apex("keys", "list", "--json").json[0]["id"] == created["id"]
    refused = apex("skills", "list", "--url", url)
    assert (refused.code, "APEX_API_KEY" in refused.err) == (1, True)
    monkeypatch.setenv("APEX_API_KEY", created["key"])
    assert apex("skills", "list", "--url", url, "--json").json["total"] == 0
    assert apex("keys", "revoke", created["id"], "--url", url).code == 1
    monkeypatch.delenv("APEX_API_KEY")
    assert apex("keys", "revoke", created["id"]).code == 0
    server.stop()
    assert apex("serve", "--host", "0.0.0.0").code == 1, "a revoked key does not count"


# ------------------------------------------------------------------------------------------------- command line
def test_the_command_line_creates_lists_and_revokes_keys(apex: Apex, data_dir: Path) -> None:
    created = apex("keys", "create", "--name", "build server", "--scope", "chat, run", "--expires", "90d")
    key = created.out.strip()
    assert key.startswith("apex_")
    assert "not shown again" in created.err
    (listed,) = apex("keys", "list", "--json").json
    assert (listed["name"], listed["scopes"], key.startswith(f"apex_{listed['id']}_")) == (
        "build server",
        ["chat", "run"],
        True,
    )
    assert "build server" in apex("keys", "ls").out
    assert apex("keys", "revoke", listed["id"], "--json").json["revokedAt"]
    assert "revoked" in apex("keys", "list").out
    assert apex("keys", "revoke", "none").code == 1
    assert apex("keys", "create", "--name", "x", "--expires", "soon").code == 2
    assert apex("keys", "create", "--name", "x", "--scope", "root").code == 1
    with closing(sqlite3.connect(data_dir / "apex.sqlite3")) as database:
        assert key.split("_", 2)[2] not in str(database.execute("SELECT * FROM api_keys").fetchall())


def test_an_empty_list_of_keys_names_the_create_command(apex: Apex, data_dir: Path) -> None:
    write_skill(data_dir / "skills", "a")
    assert "apex keys create" in apex("keys", "list").err


# ------------------------------------------------------------------------------------------------------- settings
def test_access_settings_are_parsed(monkeypatch: pytest.MonkeyPatch) -> None:
    for word, expected in (("true", "true"), ("1", "true"), ("off", "false"), ("AUTO", "auto")):
        monkeypatch.setenv("APEX_API_KEYS_REQUIRED", word)
        assert load_settings().api_keys_required == expected
    monkeypatch.setenv("APEX_ALLOWED_HOSTS", "a.example, b.example,")
    assert load_settings().allowed_hosts == ("a.example", "b.example")
    assert Settings(api_keys_required=True).api_keys_required == "true"  # type: ignore[arg-type]  # as in apex.toml
    monkeypatch.setenv("APEX_API_KEY", "apex_secret")
    assert "secret" not in load_settings().model_dump_json()


def test_a_negative_rate_limit_is_refused(apex: Apex, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("APEX_RATE_LIMIT", "-1")
    assert "APEX_RATE_LIMIT" in apex("keys", "list").err
