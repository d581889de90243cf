"""What clients leave behind and how much they may ask, over real HTTP."""

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import pytest

from apexbridge.storage.audit import AUDIT_FILE, exported
from apexbridge.surfaces.http.middleware.limits import RateLimit
from tests.making import skill_zip
from tests.surfaces.conftest import Apex, Server, StartServer, servers
from tests.surfaces.gates import PATIENCE, ZIP, Gate, gates, shape

RATE_LIMIT = 60
DEEP = b'{"input": ' + b"[" * 64 + b"]" * 64 + b"}"


@pytest.fixture(scope="module")
def gate(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gate]:
    """One server for all tests here."""
    with gates(tmp_path_factory.mktemp("gated") / "data") as opened:
        yield opened


@pytest.fixture(scope="module")
def open_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A loopback server as it is by default: it asks nobody for a key."""
    with servers(tmp_path_factory.mktemp("open") / "data") as start:
        yield start()


# ------------------------------------------------------------------------------------------------------- audit
@pytest.mark.requirement("G7")
def test_every_act_is_in_the_log_when_it_is_answered(gate: Gate) -> None:
    def last() -> dict[str, Any]:
        return gate.log[-1]

    admin_id = gate.keys["admin"][5:13]
    installed = gate.ask(
        "POST", "/api/skills", "admin", content=skill_zip("noted"), headers={**ZIP, "x-request-id": "mine-1"}
    )
    assert installed.headers["x-request-id"] == "mine-1"
    line = last()
    assert (line["what"], line["target"], line["outcome"], line["who"]) == ("skills.install", "noted", 201, admin_id)
    content = gate.ask("GET", "/api/skills/noted", "read").json()["contentHash"]
    assert (line["contentHash"], line["requestId"]) == (content, "mine-1")
    acts: list[tuple[str, str, Any, str, str]] = [
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
    for method, path, body, what, target in acts:
        answer = gate.ask(method, path, "admin", json=body)
        line = last()
        assert (line["what"], line["target"], line["outcome"]) == (what, target, answer.status_code), path
        assert line["requestId"] == answer.headers["x-request-id"]
    uninstalled = next(line for line in gate.log if line["target"] == "noted" and line["what"] == "skills.uninstall")
    assert uninstalled["contentHash"] != content, "the description had changed"
    assert all(b"hush" not in file.read_bytes() for file in gate.server.data_dir.glob(f"{AUDIT_FILE}*"))
    made = gate.make("chat")
    assert (last()["what"], last()["target"], last()["detail"]) == ("keys.create", made["id"], "made: chat")
    before = len(gate.log)
    gate.ask("GET", "/api/skills", "read")
    gate.ask("POST", "/api/tools/calculate/execute", "run", json={"input": {"expression": "1"}})
    assert len(gate.log) == before, "reading and running are no acts"
    assert gate.ask("GET", "/api/audit/verify", "admin").json() == {
        "intact": True,
        "count": before,
        "row": None,
        "problem": None,
    }


@pytest.mark.requirement("G7")
def test_attempts_that_were_refused_are_in_the_log_with_whoever_made_them(gate: Gate) -> None:
    attempts = [
        gate.ask("DELETE", "/api/skills/wanted", "chat"),
        gate.ask("DELETE", "/api/skills/wanted"),
        gate.ask("DELETE", "/api/skills/wanted", "admin", headers={"origin": "https://evil.example"}),
    ]
    assert [attempt.status_code for attempt in attempts] == [403, 401, 403]
    gate.ask("POST", "/api/skills/reindex", "admin").raise_for_status()  # written after them
    found = [line for line in gate.log if line["target"] == "wanted"]
    assert [(line["what"], line["outcome"], line["who"]) for line in found] == [
        ("skills.uninstall", 403, gate.keys["chat"][5:13]),
        ("skills.uninstall", 401, ""),
        ("skills.uninstall", 403, ""),
    ]


def test_the_command_line_verifies_the_log_and_names_the_broken_row(apex: Apex, data_dir: Path) -> None:
    for name in ("one", "two", "three"):
        assert apex("keys", "create", "--name", name).code == 0
    assert apex("audit", "verify", "--json").json == {"intact": True, "count": 3, "row": None, "problem": None}
    assert "intact; rows: 3" in apex("audit", "verify").err
    log = data_dir / AUDIT_FILE
    log.write_bytes(log.read_bytes().replace(b"two: chat", b"two: none"))
    broken = apex("audit", "verify")
    assert (broken.code, "row 2 was changed" in broken.err) == (1, True)
    answer = apex("audit", "verify", "--json").json
    assert (answer["intact"], answer["count"], answer["row"]) == (False, 1, 2)


def test_the_command_line_exports_the_log_beside_a_server_and_without_one(
    start_server: StartServer, apex: Apex, data_dir: Path
) -> None:
    missing = apex("audit", "export")
    assert (missing.code, missing.out) == (1, "")
    assert AUDIT_FILE in missing.err
    forged = 'one\n{"seq": 2, "what": "forged"}\u2028\u0085\x1b[2J'
    server = start_server()
    with httpx.Client(base_url=server.url, trust_env=False, timeout=PATIENCE) as client:
        client.post("/api/keys", json={"name": forged, "scopes": ["chat"]})
        client.delete(f"/api/keys/{quote(forged, safe='')}")
        beside = apex("audit", "export").out
    assert server.stop() == 0
    files = sorted(path.name for path in data_dir.glob("audit*"))
    exported = apex("audit", "export")
    assert (exported.code, exported.out) == (0, beside)
    assert beside.isascii()
    rows = [json.loads(line) for line in beside.splitlines()]
    assert [(row["seq"], row["what"]) for row in rows] == [(1, "keys.create"), (2, "keys.revoke")]
    assert rows[1]["target"] == forged
    assert rows[1]["prev"] == rows[0]["hash"]
    assert sorted(path.name for path in data_dir.glob("audit*")) == files == [AUDIT_FILE]
    (data_dir / AUDIT_FILE).write_bytes(b"not a database" * 100)
    assert apex("audit", "export").code == 1


def test_an_act_that_cannot_be_written_down_is_not_done(open_server: Server) -> None:
    log = open_server.data_dir / AUDIT_FILE
    kept = log.with_suffix(".kept")
    with httpx.Client(base_url=open_server.url, trust_env=False, timeout=PATIENCE) as client:
        client.post("/api/skills", content=skill_zip("stays"), headers=ZIP).raise_for_status()
        log.rename(kept)
        log.mkdir()  # a folder cannot be written, not even by root
        refused = client.delete("/api/skills/stays")
        assert shape(refused) == (507, "ServerError", "STORAGE_FULL")
        assert "nothing was changed" in refused.json()["message"]
        assert "audit log" in refused.json()["message"]
        assert shape(client.post("/api/skills/reindex")) == (507, "ServerError", "STORAGE_FULL")
        assert client.get("/api/skills/stays").status_code == 200, "nothing was changed, and reading goes on"
        log.rmdir()
        kept.rename(log)
        assert client.delete("/api/skills/stays").status_code == 200
        assert client.get("/api/audit/verify").json()["intact"]
    assert [row["what"] for row in exported(log)][-2:] == ["skills.install", "skills.uninstall"]


# ------------------------------------------------------------------------------------------------------- rates
def test_too_many_requests_are_refused_until_a_moment_later(start_server: StartServer, apex: Apex) -> None:
    keys = [apex("keys", "create", "--name", "x", "--scope", "chat,read", "--json").json["key"] for _ in range(2)]
    server = start_server(APEX_RATE_LIMIT=str(RATE_LIMIT), APEX_API_KEYS_REQUIRED="true")
    with httpx.Client(base_url=server.url, timeout=60, trust_env=False) as client:
        headers = {"x-api-key": keys[0]}
        while (answer := client.get("/api/config", headers=headers)).status_code == 200:
            pass
        assert shape(answer) == (429, "RequestError", "RATE_LIMITED")
        wait = int(answer.headers["retry-after"])
        assert 1 <= wait <= 60 / RATE_LIMIT + 1
        inside = client.get("/v1/models", headers=headers)
        assert (inside.status_code, inside.json()["error"]["code"]) == (429, "rate_limit_exceeded")
        assert inside.headers["retry-after"]
        assert client.get("/api/config", headers={"x-api-key": keys[1]}).status_code == 200, "another key is not meant"
        assert client.get("/healthz", headers=headers).status_code == 200
        time.sleep(wait)
        assert client.get("/api/config", headers=headers).status_code == 200


def test_a_bucket_fills_by_itself_and_never_beyond_its_size() -> None:
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
    with httpx.Client(base_url=open_server.url, trust_env=False, timeout=PATIENCE) as client:

        def sent(body: bytes) -> httpx.Response:
            return client.post(path, content=body, headers={"content-type": "application/json"})

        refused = 400 if path.startswith("/v1") else 422
        for body in (DEEP, b"[" * 1_000_000, b'{"a":' * 200_000, json.dumps({"input": {}}).encode("utf-16")):
            answer = sent(body)
            assert answer.status_code == refused, body[:20]
            told = answer.json().get("error", answer.json())
            assert any(word in told["message"] for word in ("deeper", "values", "UTF-8"))
        assert "deep" not in sent(DEEP.replace(b"[[", b"[", 1).replace(b"]]", b"]", 1)).text
        in_text = json.dumps({"input": {"expression": '"\\' + "[{" * 500 + '\\"'}}).encode()
        assert "deep" not in sent(in_text).text
        assert client.get("/healthz").status_code == 200
