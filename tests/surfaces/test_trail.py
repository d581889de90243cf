"""The audit log, rate limits and the depth of JSON, over real HTTP."""

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import pytest

from apexbridge.storage.audit import AUDIT_FILE, REFUSALS_A_MINUTE, exported
from apexbridge.surfaces.http.middleware.limits import RateLimit
from tests.making import skill_zip
from tests.surfaces.conftest import Apex, Server, StartServer, servers
from tests.surfaces.keyed_server import TIMEOUT_SECONDS, ZIP, KeyedServer, error_of, start_keyed_server

pytestmark = pytest.mark.slow

RATE_LIMIT = 60
DEEP = b'{"input": ' + b"[" * 64 + b"]" * 64 + b"}"


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


# ------------------------------------------------------------------------------------------------------- audit
@pytest.mark.requirement("G7")
def test_every_change_is_in_the_audit_log_before_its_response(keyed_server: KeyedServer) -> None:
    def last() -> dict[str, Any]:
        return keyed_server.log[-1]

    admin_id = keyed_server.keys["admin"][5:13]
    installed = keyed_server.request(
        "POST", "/api/skills", "admin", content=skill_zip("noted"), headers={**ZIP, "x-request-id": "mine-1"}
    )
    assert installed.headers["x-request-id"] == "mine-1"
    line = last()
    assert (line["what"], line["target"], line["outcome"], line["who"]) == ("skills.install", "noted", 201, admin_id)
    content = keyed_server.request("GET", "/api/skills/noted", "read").json()["contentHash"]
    assert (line["contentHash"], line["requestId"]) == (content, "mine-1")
    changes: list[tuple[str, str, Any, str, str]] = [
        (
            "PUT",
            "/api/skills/noted/description",
            {"description": "Another text that says it."},
            "skills.set-description",
            "noted",
        ),
        ("POST", "/api/skills/noted/disable", None, "skills.disable", "noted"),
        ("POST", "/api/skills/noted/enable", None, "skills.enable", "noted"),
        ("PUT", "/api/secrets/TOKEN", {"value": "hush-hush"}, "secrets.set", "TOKEN"),
        ("DELETE", "/api/secrets/TOKEN", None, "secrets.remove", "TOKEN"),
        ("PATCH", "/api/config", {"enableDirectMode": True}, "config.change", ""),
        ("POST", "/api/tools/calculate/enable", None, "tools.enable", "calculate"),
        ("POST", "/api/skills/reindex", None, "skills.reindex", ""),
        ("DELETE", "/api/skills/noted", None, "skills.uninstall", "noted"),
        ("DELETE", "/api/skills/noted", None, "skills.uninstall", "noted"),
        ("DELETE", "/api/plugins/none", None, "plugins.uninstall", "none"),
        ("POST", "/api/approvals/none", {"approve": True}, "approvals.decide", "none"),
    ]
    for method, path, body, event, target in changes:
        response = keyed_server.request(method, path, "admin", json=body)
        line = last()
        assert (line["what"], line["target"], line["outcome"]) == (event, target, response.status_code), path
        assert line["requestId"] == response.headers["x-request-id"]
    uninstalled = next(
        line for line in keyed_server.log if line["target"] == "noted" and line["what"] == "skills.uninstall"
    )
    assert uninstalled["contentHash"] != content, "the description had changed"
    assert all(b"hush" not in file.read_bytes() for file in keyed_server.server.data_dir.glob(f"{AUDIT_FILE}*"))
    created = keyed_server.create_key("chat")
    assert (last()["what"], last()["target"], last()["detail"]) == ("keys.create", created["id"], "made: chat")
    before = len(keyed_server.log)
    keyed_server.request("GET", "/api/skills", "read")
    keyed_server.request("POST", "/api/tools/calculate/execute", "run", json={"input": {"expression": "1"}})
    assert len(keyed_server.log) == before, "reading and running are not logged"
    assert keyed_server.request("GET", "/api/audit/verify", "admin").json() == {
        "intact": True,
        "count": before,
        "row": None,
        "problem": None,
        "restoredAt": None,
    }


@pytest.mark.requirement("G7")
def test_refused_attempts_are_in_the_audit_log_with_their_key(keyed_server: KeyedServer) -> None:
    attempts = [
        keyed_server.request("DELETE", "/api/skills/wanted", "chat"),
        keyed_server.request("DELETE", "/api/skills/wanted"),
        keyed_server.request("DELETE", "/api/skills/wanted", "admin", headers={"origin": "https://evil.example"}),
    ]
    assert [attempt.status_code for attempt in attempts] == [403, 401, 403]
    keyed_server.request("POST", "/api/skills/reindex", "admin").raise_for_status()  # its row is written after theirs
    found = [line for line in keyed_server.log if line["target"] == "wanted"]
    assert [(line["what"], line["outcome"], line["who"]) for line in found] == [
        ("skills.uninstall", 403, keyed_server.keys["chat"][5:13]),
        ("skills.uninstall", 401, ""),
        ("skills.uninstall", 403, ""),
    ]


def test_a_key_that_may_run_cannot_fill_the_log_with_deletions_of_nothing(keyed_server: KeyedServer) -> None:
    with keyed_server.client("run") as client:
        for number in range(3 * REFUSALS_A_MINUTE):
            assert client.delete(f"/api/executions/missing{number}").status_code == 404
    keyed_server.request("POST", "/api/skills/reindex", "admin").raise_for_status()  # its row is written after theirs
    rows = [line for line in keyed_server.log if line["target"].startswith("missing")]
    assert 0 < len(rows) < 2 * REFUSALS_A_MINUTE
    assert all((line["what"], line["outcome"]) == ("executions.remove", 404) for line in rows)


def test_the_command_line_verifies_the_log_and_names_the_broken_row(apex: Apex, data_dir: Path) -> None:
    for name in ("one", "two", "three"):
        assert apex("keys", "create", "--name", name).code == 0
    assert apex("audit", "verify", "--json").json == {
        "intact": True,
        "count": 3,
        "row": None,
        "problem": None,
        "restoredAt": None,
    }
    assert "intact; rows: 3" in apex("audit", "verify").err
    log = data_dir / AUDIT_FILE
    log.write_bytes(log.read_bytes().replace(b"two: chat", b"two: none"))
    broken = apex("audit", "verify")
    assert (broken.code, "row 2 was changed" in broken.err) == (1, True)
    response = apex("audit", "verify", "--json").json
    assert (response["intact"], response["count"], response["row"]) == (False, 1, 2)


def test_the_command_line_exports_the_log_with_and_without_a_server(
    start_server: StartServer, apex: Apex, data_dir: Path
) -> None:
    missing = apex("audit", "export")
    assert (missing.code, missing.out) == (1, "")
    assert AUDIT_FILE in missing.err
    forged = 'one\n{"seq": 2, "what": "forged"}\u2028\u0085\x1b[2J'
    server = start_server()
    with httpx.Client(base_url=server.url, trust_env=False, timeout=TIMEOUT_SECONDS) as client:
        client.post("/api/keys", json={"name": forged, "scopes": ["chat"]})
        client.delete(f"/api/keys/{quote(forged, safe='')}")
        exported_beside_server = apex("audit", "export").out
    assert server.stop() == 0
    files = sorted(path.name for path in data_dir.glob("audit*"))
    exported = apex("audit", "export")
    assert (exported.code, exported.out) == (0, exported_beside_server)
    assert exported_beside_server.isascii()
    rows = [json.loads(line) for line in exported_beside_server.splitlines()]
    assert [(row["seq"], row["what"]) for row in rows] == [(1, "keys.create"), (2, "keys.revoke")]
    assert rows[1]["target"] == forged
    assert rows[1]["prev"] == rows[0]["hash"]
    assert sorted(path.name for path in data_dir.glob("audit*")) == files == [AUDIT_FILE]
    (data_dir / AUDIT_FILE).write_bytes(b"not a database" * 100)
    assert apex("audit", "export").code == 1


def test_a_change_that_cannot_be_logged_is_refused(open_server: Server) -> None:
    log = open_server.data_dir / AUDIT_FILE
    renamed_log = log.with_suffix(".kept")
    with httpx.Client(base_url=open_server.url, trust_env=False, timeout=TIMEOUT_SECONDS) as client:
        client.post("/api/skills", content=skill_zip("stays"), headers=ZIP).raise_for_status()
        log.rename(renamed_log)
        log.mkdir()  # a folder cannot be written, not even by root
        refused = client.delete("/api/skills/stays")
        assert error_of(refused) == (507, "ServerError", "STORAGE_FULL")
        assert "nothing was changed" in refused.json()["message"]
        assert "audit log" in refused.json()["message"]
        assert error_of(client.post("/api/skills/reindex")) == (507, "ServerError", "STORAGE_FULL")
        assert client.get("/api/skills/stays").status_code == 200, "nothing was changed, and reading still works"
        log.rmdir()
        renamed_log.rename(log)
        assert client.delete("/api/skills/stays").status_code == 200
        assert client.get("/api/audit/verify").json()["intact"]
    assert [row["what"] for row in exported(log)][-2:] == ["skills.install", "skills.uninstall"]


# ------------------------------------------------------------------------------------------------------- rates
def test_requests_above_the_rate_limit_are_refused_until_retry_after(start_server: StartServer, apex: Apex) -> None:
    keys = [apex("keys", "create", "--name", "x", "--scope", "chat,read", "--json").json["key"] for _ in range(2)]
    server = start_server(APEX_RATE_LIMIT=str(RATE_LIMIT), APEX_API_KEYS_REQUIRED="true")
    with httpx.Client(base_url=server.url, timeout=60, trust_env=False) as client:
        headers = {"x-api-key": keys[0]}
        while (response := client.get("/api/config", headers=headers)).status_code == 200:
            pass
        assert error_of(response) == (429, "RequestError", "RATE_LIMITED")
        wait = int(response.headers["retry-after"])
        assert 1 <= wait <= 60 / RATE_LIMIT + 1
        openai_response = client.get("/v1/models", headers=headers)
        assert (openai_response.status_code, openai_response.json()["error"]["code"]) == (429, "rate_limit_exceeded")
        assert openai_response.headers["retry-after"]
        assert client.get("/api/config", headers={"x-api-key": keys[1]}).status_code == 200, "the limit is per key"
        assert client.get("/healthz", headers=headers).status_code == 200
        time.sleep(wait)
        assert client.get("/api/config", headers=headers).status_code == 200


def test_a_rate_limit_bucket_refills_up_to_its_size() -> None:
    now = [0.0]
    limit = RateLimit(60, clock=lambda: now[0])
    assert [limit.take("a") for _ in range(62)] == [0] * 60 + [1, 1]
    now[0] += 2
    assert [limit.take("a") for _ in range(3)] == [0, 0, 1]
    now[0] += 3600
    assert [limit.take("a") for _ in range(61)] == [0] * 60 + [1]
    slow = RateLimit(1, clock=lambda: now[0])
    assert [slow.take("a"), slow.take("a")] == [0, 60]
    assert {RateLimit(0).take("a") for _ in range(1000)} == {0}


# ------------------------------------------------------------------------------------------------------- bodies
@pytest.mark.parametrize("path", ["/api/tools/calculate/execute", "/v1/chat/completions"])
def test_json_deeper_than_64_is_refused_before_it_is_parsed(open_server: Server, path: str) -> None:
    with httpx.Client(base_url=open_server.url, trust_env=False, timeout=TIMEOUT_SECONDS) as client:

        def post(body: bytes) -> httpx.Response:
            return client.post(path, content=body, headers={"content-type": "application/json"})

        refused = 400 if path.startswith("/v1") else 422
        for body in (DEEP, b"[" * 1_000_000, b'{"a":' * 200_000, json.dumps({"input": {}}).encode("utf-16")):
            response = post(body)
            assert response.status_code == refused, body[:20]
            error = response.json().get("error", response.json())
            assert any(word in error["message"] for word in ("deeper", "values", "UTF-8"))
        assert "deep" not in post(DEEP.replace(b"[[", b"[", 1).replace(b"]]", b"]", 1)).text
        in_text = json.dumps({"input": {"expression": '"\\' + "[{" * 500 + '\\"'}}).encode()
        assert "deep" not in post(in_text).text
        assert client.get("/healthz").status_code == 200
