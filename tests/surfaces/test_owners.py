"""Runs and uploads belong to the key that made them, over real HTTP with several keys."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from apexbridge.storage.audit import AUDIT_FILE, exported
from tests.making import skill_zip
from tests.surfaces.conftest import Server, StartServer, servers
from tests.surfaces.keyed_server import TIMEOUT_SECONDS, ZIP, error_of

pytestmark = pytest.mark.slow

SCOPES = ["chat", "read", "run"]
UNKNOWN_ID = "0" * 32
SAYS = """
import json, os, pathlib
given = json.loads(os.environ["INPUT_JSON"])
print(given.get("text", "hush").upper() * given.get("times", 1))
pathlib.Path("output/left.txt").write_text("left")
for path in given.get("files", []):
    print(pathlib.Path(path).read_text())
"""
SLEEP = "import time\nprint('begun', flush=True)\ntime.sleep(60)\n"
PARAMETERS = {"type": "object", "properties": {"text": {"type": "string"}}}
DESCRIPTION = "Turns a text into capital letters."


@dataclass
class SharedServer:
    """A server that requires API keys, and the keys by name."""

    server: Server
    secrets: dict[str, str]

    def client(self, key_name: str) -> httpx.Client:
        headers = {"authorization": f"Bearer {self.secrets[key_name]}"}
        return httpx.Client(base_url=self.server.url, timeout=TIMEOUT_SECONDS, trust_env=False, headers=headers)

    def request(self, key_name: str, method: str, path: str, **options: Any) -> httpx.Response:
        with self.client(key_name) as client:
            return client.request(method, path, **options)

    def run(self, key_name: str, name: str = "says", **call: Any) -> str:
        response = self.request(key_name, "POST", f"/api/skills/{name}/execute", json=call)
        return str(response.raise_for_status().headers["x-execution-id"])

    def tool(self, key_name: str, id: str, **input: Any) -> httpx.Response:
        return self.request(key_name, "POST", f"/api/tools/{id}/execute", json={"input": input})

    def upload(self, key_name: str, text: str) -> str:
        response = self.request(key_name, "POST", "/api/uploads", files={"file": ("note.txt", text.encode())})
        return str(response.raise_for_status().json()["id"])

    def visible_runs(self, key_name: str, **query: Any) -> tuple[set[str], int]:
        page = (
            self.request(key_name, "GET", "/api/executions", params={"limit": 500, **query}).raise_for_status().json()
        )
        return {run["id"] for run in page["executions"]}, page["total"]


def owner_key(server: Server) -> str:
    return str(json.loads((server.data_dir / "server.json").read_text())["key"])


def shared_server(server: Server) -> SharedServer:
    shared = SharedServer(server, {"owner": owner_key(server)})
    for name, scopes in (("ann", SCOPES), ("bob", SCOPES), ("admin", ["admin"])):
        created = shared.request("owner", "POST", "/api/keys", json={"name": name, "scopes": scopes})
        shared.secrets[name] = created.raise_for_status().json()["key"]
    for package in (
        skill_zip("says", files={"scripts/execute.py": SAYS}, description=DESCRIPTION, parameters=PARAMETERS),
        skill_zip("waits", files={"scripts/execute.py": SLEEP}),
    ):
        shared.request("admin", "POST", "/api/skills", content=package, headers=ZIP).raise_for_status()
    return shared


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SharedServer]:
    """One server for all tests of this module, with two ordinary keys."""
    with servers(tmp_path_factory.mktemp("shared") / "data") as start:
        yield shared_server(start(APEX_API_KEYS_REQUIRED="true", APEX_RATE_LIMIT="0"))


def routes(run: str) -> list[tuple[str, str]]:
    return [
        ("GET", f"/api/executions/{run}"),
        ("GET", f"/api/executions/{run}/events"),
        ("GET", f"/api/executions/{run}/files/left.txt"),
        ("POST", f"/api/executions/{run}/cancel"),
        ("DELETE", f"/api/executions/{run}"),
    ]


def test_the_run_of_another_key_looks_like_a_missing_run(shared: SharedServer) -> None:
    run = shared.run("ann")
    for (method, path), (_, unknown_path) in zip(routes(run), routes(UNKNOWN_ID), strict=True):
        refused, unknown = shared.request("bob", method, path), shared.request("bob", method, unknown_path)
        assert error_of(refused) == (404, "RequestError", "EXECUTION_NOT_FOUND"), path
        assert refused.text.replace(run, UNKNOWN_ID) == unknown.text
        assert set(refused.headers) == set(unknown.headers)
    for key_name in ("admin", "owner", "ann"):
        assert [shared.request(key_name, *route).status_code for route in routes(run)[:4]] == [200, 200, 200, 202], (
            key_name
        )
    assert shared.request("ann", *routes(run)[4]).json() == {"success": True, "id": run}
    other = shared.run("ann")
    assert shared.request("admin", *routes(other)[4]).status_code == 200
    assert shared.request("ann", "GET", f"/api/executions/{other}").status_code == 404


def test_an_active_run_is_visible_to_its_own_key_only(shared: SharedServer) -> None:
    run = shared.request("ann", "POST", "/api/skills/waits/execute", json={"wait": False}).json()["id"]
    for method, path in routes(run):
        assert error_of(shared.request("bob", method, path)) == (404, "RequestError", "EXECUTION_NOT_FOUND"), path
    assert run in shared.visible_runs("ann")[0] & shared.visible_runs("admin")[0]
    assert run not in shared.visible_runs("bob")[0]
    assert shared.request("ann", "GET", f"/api/executions/{run}").json()["state"] in ("pending", "running")
    with shared.client("ann") as client, client.stream("GET", f"/api/executions/{run}/events") as events:
        assert any(line == "event: stdout" for line in events.iter_lines())
    assert shared.request("ann", "POST", f"/api/executions/{run}/cancel").status_code == 202
    assert '"CANCELLED"' in shared.request("ann", "GET", f"/api/executions/{run}/events").text


def test_a_list_shows_and_counts_runs_of_the_own_key_only(shared: SharedServer) -> None:
    mine, before = {shared.run("bob") for _ in range(3)}, shared.visible_runs("ann")
    runs, total = shared.visible_runs("bob")
    assert mine <= runs
    assert total == len(runs)
    assert shared.visible_runs("ann") == before
    assert not runs & before[0]
    everything, count = shared.visible_runs("admin")
    assert runs | before[0] <= everything
    assert (everything, count) == shared.visible_runs("owner")
    page = shared.request("bob", "GET", "/api/executions", params={"limit": 2, "page": 2}).json()
    assert (page["total"], len(page["executions"])) == (total, min(2, total - 2))
    assert {run["caller"] for run in page["executions"]} == {shared.secrets["bob"][5:13]}
    assert shared.visible_runs("bob", skill="waits")[1] == 0


def test_an_upload_is_usable_by_its_own_key_only(shared: SharedServer) -> None:
    upload = shared.upload("ann", "a secret of Ann's")
    call = {"input": {"text": "x"}, "files": [upload]}
    refused = shared.request("bob", "POST", "/api/skills/says/execute", json=call)
    unknown = shared.request(
        "bob", "POST", "/api/skills/says/execute", json={**call, "files": [f"upload-{UNKNOWN_ID}"]}
    )
    assert error_of(refused) == error_of(unknown)
    assert refused.text.replace(upload, f"upload-{UNKNOWN_ID}") == unknown.text
    by_tool = shared.tool("bob", "run-skill", name="says", input={"text": "x"}, files=[upload])
    assert (by_tool.status_code, "secret" in by_tool.text) == (422, False)
    for key_name in ("ann", "admin", "owner"):
        result = shared.request(key_name, "POST", "/api/skills/says/execute", json=call).json()
        assert "a secret of Ann's" in result["stdout"], key_name


def test_file_tools_read_files_of_runs_of_the_own_key_only(shared: SharedServer) -> None:
    run = shared.run("ann", input={"text": "long", "times": 5000})
    for id, input in (
        ("file-read", {"path": f"runs/{run}/left.txt"}),
        ("file-read", {"path": f"runs/{run}/stdout"}),
        ("list-files", {"path": f"runs/{run}"}),
    ):
        refused = shared.tool("bob", id, **input)
        unknown = shared.tool("bob", id, path=input["path"].replace(run, UNKNOWN_ID))
        assert error_of(refused) == (404, "RequestError", "FILE_NOT_FOUND"), input
        assert refused.text.replace(run, UNKNOWN_ID) == unknown.text
        assert shared.tool("ann", id, **input).status_code == 200
        assert shared.tool("admin", id, **input).status_code == 200
        assert shared.tool("owner", id, **input).status_code == 200
    call = {"input": {"text": "x"}, "files": [f"runs/{run}/left.txt"]}
    assert shared.request("bob", "POST", "/api/skills/says/execute", json=call).status_code == 422
    assert shared.request("ann", "POST", "/api/skills/says/execute", json=call).json()["stdout"].strip() == "X\nleft"


def test_a_run_of_a_chat_belongs_to_the_key_of_the_chat(shared: SharedServer) -> None:
    before = {key_name: shared.visible_runs(key_name)[0] for key_name in ("ann", "bob")}
    question = {"messages": [{"role": "user", "content": "turn this text into capital letters"}]}
    response = shared.request("ann", "POST", "/v1/chat/completions", json=question).raise_for_status()
    assert "CAPITAL LETTERS" in response.text
    (run,) = shared.visible_runs("ann")[0] - before["ann"]
    assert shared.visible_runs("bob")[0] == before["bob"]
    assert shared.request("admin", "GET", f"/api/executions/{run}").json()["caller"] == shared.secrets["ann"][5:13]


def test_pending_approvals_are_hidden_from_other_keys(shared: SharedServer) -> None:
    for method, path in (("GET", "/api/approvals"), ("POST", f"/api/approvals/{UNKNOWN_ID}")):
        assert error_of(shared.request("bob", method, path, json={"approve": True})) == (
            403,
            "RequestError",
            "FORBIDDEN",
        )
    package = skill_zip("risky", files={"scripts/execute.py": "print('done')"}, dangerous=True, confirm="Do it?")
    shared.request("admin", "POST", "/api/skills", content=package, headers=ZIP).raise_for_status()
    pending = shared.request("ann", "POST", "/api/skills/risky/execute", json={})
    approval = pending.json()["details"]["approvalId"]
    assert shared.request("admin", "POST", f"/api/approvals/{approval}", json={"approve": True}).status_code == 200
    reused = shared.request("bob", "POST", "/api/skills/risky/execute", json={"approval": approval})
    assert error_of(reused) == (403, "SkillError", "APPROVAL_INVALID")
    assert shared.run("ann", "risky", approval=approval) in shared.visible_runs("ann")[0]


def test_deleting_a_run_is_in_the_audit_log(shared: SharedServer) -> None:
    run = shared.run("ann")
    shared.request("bob", "DELETE", f"/api/executions/{run}")
    shared.request("ann", "DELETE", f"/api/executions/{run}")
    rows = list(exported(shared.server.data_dir / AUDIT_FILE))[-2:]
    assert [(row["what"], row["who"], row["target"], row["outcome"]) for row in rows] == [
        ("executions.remove", shared.secrets["bob"][5:13], run, 404),
        ("executions.remove", shared.secrets["ann"][5:13], run, 200),
    ]


def test_owners_survive_a_restart_and_runs_of_a_revoked_key_are_for_admins(
    start_server: StartServer, data_dir: Path
) -> None:
    settings = {"APEX_API_KEYS_REQUIRED": "true", "APEX_RATE_LIMIT": "0"}
    shared = shared_server(start_server(**settings))
    run, upload = shared.run("ann"), shared.upload("ann", "kept")
    assert shared.server.stop() == 0
    shared.server = start_server(**settings)
    shared.secrets["owner"] = owner_key(shared.server)
    assert shared.visible_runs("ann") == ({run}, 1)
    assert shared.visible_runs("bob") == (set(), 0)
    for method, path in routes(run):
        assert error_of(shared.request("bob", method, path)) == (404, "RequestError", "EXECUTION_NOT_FOUND"), path
    assert shared.tool("bob", "file-read", path=f"runs/{run}/left.txt").status_code == 404
    call = {"input": {"text": "x"}, "files": [upload]}
    assert shared.request("bob", "POST", "/api/skills/says/execute", json=call).status_code == 422
    assert shared.request("ann", "POST", "/api/skills/says/execute", json=call).json()["stdout"].strip() == "X\nkept"
    shared.request("admin", "DELETE", f"/api/keys/{shared.secrets['ann'][5:13]}").raise_for_status()
    assert shared.request("ann", "GET", f"/api/executions/{run}").status_code == 401
    assert shared.request("bob", "GET", f"/api/executions/{run}").status_code == 404
    assert shared.request("admin", "GET", f"/api/executions/{run}").json()["id"] == run
    assert shared.visible_runs("owner")[1] == 2


def test_requests_without_a_key_share_one_caller_and_each_key_is_another(start_server: StartServer) -> None:
    server = start_server()
    with httpx.Client(base_url=server.url, timeout=TIMEOUT_SECONDS, trust_env=False) as anonymous:
        package = skill_zip("says", files={"scripts/execute.py": SAYS})
        anonymous.post("/api/skills", content=package, headers=ZIP).raise_for_status()
        key = anonymous.post("/api/keys", json={"name": "x", "scopes": SCOPES}).json()["key"]
        keyed = {"authorization": f"Bearer {key}"}
        runs = [
            anonymous.post("/api/skills/says/execute", json={}, headers=headers).raise_for_status().json()["id"]
            for headers in ({}, keyed)
        ]
        page = anonymous.get("/api/executions").json()
        assert {run["id"]: run["caller"] for run in page["executions"]} == {runs[0]: "", runs[1]: key[5:13]}
        assert anonymous.get("/api/executions", headers=keyed).json()["total"] == 1
        assert anonymous.get(f"/api/executions/{runs[0]}", headers=keyed).status_code == 404
        for run in runs:
            assert anonymous.delete(f"/api/executions/{run}").status_code == 200
