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
from tests.surfaces.gates import PATIENCE, ZIP, shape

SCOPES = ["chat", "read", "run"]
NOT_THERE = "0" * 32
SAYS = """
import json, os, pathlib
given = json.loads(os.environ["INPUT_JSON"])
print(given.get("text", "hush").upper() * given.get("times", 1))
pathlib.Path("output/left.txt").write_text("left")
for path in given.get("files", []):
    print(pathlib.Path(path).read_text())
"""
WAITS = "import time\nprint('begun', flush=True)\ntime.sleep(60)\n"
TEXT = {"type": "object", "properties": {"text": {"type": "string"}}}
WORDS = "Turns a text into capital letters."


@dataclass
class House:
    """A server that asks for keys, and who has one."""

    server: Server
    secrets: dict[str, str]

    def client(self, who: str) -> httpx.Client:
        headers = {"authorization": f"Bearer {self.secrets[who]}"}
        return httpx.Client(base_url=self.server.url, timeout=PATIENCE, trust_env=False, headers=headers)

    def ask(self, who: str, method: str, path: str, **options: Any) -> httpx.Response:
        with self.client(who) as client:
            return client.request(method, path, **options)

    def run(self, who: str, name: str = "says", **call: Any) -> str:
        answer = self.ask(who, "POST", f"/api/skills/{name}/execute", json=call)
        return str(answer.raise_for_status().headers["x-execution-id"])

    def tool(self, who: str, id: str, **input: Any) -> httpx.Response:
        return self.ask(who, "POST", f"/api/tools/{id}/execute", json={"input": input})

    def upload(self, who: str, text: str) -> str:
        answer = self.ask(who, "POST", "/api/uploads", files={"file": ("note.txt", text.encode())})
        return str(answer.raise_for_status().json()["id"])

    def seen(self, who: str, **query: Any) -> tuple[set[str], int]:
        page = self.ask(who, "GET", "/api/executions", params={"limit": 500, **query}).raise_for_status().json()
        return {run["id"] for run in page["executions"]}, page["total"]


def owner_of(server: Server) -> str:
    return str(json.loads((server.data_dir / "server.json").read_text())["key"])


def house_of(server: Server) -> House:
    house = House(server, {"owner": owner_of(server)})
    for name, scopes in (("ann", SCOPES), ("bob", SCOPES), ("admin", ["admin"])):
        made = house.ask("owner", "POST", "/api/keys", json={"name": name, "scopes": scopes})
        house.secrets[name] = made.raise_for_status().json()["key"]
    for package in (
        skill_zip("says", files={"scripts/execute.py": SAYS}, description=WORDS, parameters=TEXT),
        skill_zip("waits", files={"scripts/execute.py": WAITS}),
    ):
        house.ask("admin", "POST", "/api/skills", content=package, headers=ZIP).raise_for_status()
    return house


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    """One server for all tests here, with two ordinary keys."""
    with servers(tmp_path_factory.mktemp("house") / "data") as start:
        yield house_of(start(APEX_API_KEYS_REQUIRED="true", APEX_RATE_LIMIT="0"))


def routes(run: str) -> list[tuple[str, str]]:
    return [
        ("GET", f"/api/executions/{run}"),
        ("GET", f"/api/executions/{run}/events"),
        ("GET", f"/api/executions/{run}/files/left.txt"),
        ("POST", f"/api/executions/{run}/cancel"),
        ("DELETE", f"/api/executions/{run}"),
    ]


def test_every_route_answers_about_anothers_run_as_about_none(house: House) -> None:
    run = house.run("ann")
    for (method, path), (_, nowhere) in zip(routes(run), routes(NOT_THERE), strict=True):
        refused, none = house.ask("bob", method, path), house.ask("bob", method, nowhere)
        assert shape(refused) == (404, "RequestError", "EXECUTION_NOT_FOUND"), path
        assert refused.text.replace(run, NOT_THERE) == none.text
        assert set(refused.headers) == set(none.headers)
    for who in ("admin", "owner", "ann"):
        assert [house.ask(who, *route).status_code for route in routes(run)[:4]] == [200, 200, 200, 202], who
    assert house.ask("ann", *routes(run)[4]).json() == {"success": True, "id": run}
    other = house.run("ann")
    assert house.ask("admin", *routes(other)[4]).status_code == 200
    assert house.ask("ann", "GET", f"/api/executions/{other}").status_code == 404


def test_a_run_that_goes_on_is_its_owners_too(house: House) -> None:
    run = house.ask("ann", "POST", "/api/skills/waits/execute", json={"wait": False}).json()["id"]
    for method, path in routes(run):
        assert shape(house.ask("bob", method, path)) == (404, "RequestError", "EXECUTION_NOT_FOUND"), path
    assert run in house.seen("ann")[0] & house.seen("admin")[0]
    assert run not in house.seen("bob")[0]
    assert house.ask("ann", "GET", f"/api/executions/{run}").json()["state"] in ("pending", "running")
    with house.client("ann") as client, client.stream("GET", f"/api/executions/{run}/events") as events:
        assert any(line == "event: stdout" for line in events.iter_lines())
    assert house.ask("ann", "POST", f"/api/executions/{run}/cancel").status_code == 202
    assert '"CANCELLED"' in house.ask("ann", "GET", f"/api/executions/{run}/events").text


def test_a_list_counts_and_shows_only_ones_own(house: House) -> None:
    mine, before = {house.run("bob") for _ in range(3)}, house.seen("ann")
    runs, total = house.seen("bob")
    assert mine <= runs
    assert total == len(runs)
    assert house.seen("ann") == before
    assert not runs & before[0]
    everything, count = house.seen("admin")
    assert runs | before[0] <= everything
    assert (everything, count) == house.seen("owner")
    page = house.ask("bob", "GET", "/api/executions", params={"limit": 2, "page": 2}).json()
    assert (page["total"], len(page["executions"])) == (total, min(2, total - 2))
    assert {run["caller"] for run in page["executions"]} == {house.secrets["bob"][5:13]}
    assert house.seen("bob", skill="waits")[1] == 0


def test_an_upload_is_for_its_key_alone(house: House) -> None:
    upload = house.upload("ann", "a secret of Ann's")
    call = {"input": {"text": "x"}, "files": [upload]}
    refused = house.ask("bob", "POST", "/api/skills/says/execute", json=call)
    none = house.ask("bob", "POST", "/api/skills/says/execute", json={**call, "files": [f"upload-{NOT_THERE}"]})
    assert shape(refused) == shape(none)
    assert refused.text.replace(upload, f"upload-{NOT_THERE}") == none.text
    by_tool = house.tool("bob", "run-skill", name="says", input={"text": "x"}, files=[upload])
    assert (by_tool.status_code, "secret" in by_tool.text) == (422, False)
    for who in ("ann", "admin", "owner"):
        told = house.ask(who, "POST", "/api/skills/says/execute", json=call).json()
        assert "a secret of Ann's" in told["stdout"], who


def test_the_tools_read_what_ones_own_runs_left_and_no_others(house: House) -> None:
    run = house.run("ann", input={"text": "long", "times": 5000})
    for id, input in (
        ("file-read", {"path": f"runs/{run}/left.txt"}),
        ("file-read", {"path": f"runs/{run}/stdout"}),
        ("list-files", {"path": f"runs/{run}"}),
    ):
        refused = house.tool("bob", id, **input)
        none = house.tool("bob", id, path=input["path"].replace(run, NOT_THERE))
        assert shape(refused) == (404, "RequestError", "FILE_NOT_FOUND"), input
        assert refused.text.replace(run, NOT_THERE) == none.text
        assert house.tool("ann", id, **input).status_code == 200
        assert house.tool("admin", id, **input).status_code == 200
        assert house.tool("owner", id, **input).status_code == 200
    call = {"input": {"text": "x"}, "files": [f"runs/{run}/left.txt"]}
    assert house.ask("bob", "POST", "/api/skills/says/execute", json=call).status_code == 422
    assert house.ask("ann", "POST", "/api/skills/says/execute", json=call).json()["stdout"].strip() == "X\nleft"


def test_what_a_chat_ran_is_of_the_chats_key(house: House) -> None:
    before = {who: house.seen(who)[0] for who in ("ann", "bob")}
    question = {"messages": [{"role": "user", "content": "turn this text into capital letters"}]}
    answer = house.ask("ann", "POST", "/v1/chat/completions", json=question).raise_for_status()
    assert "CAPITAL LETTERS" in answer.text
    (run,) = house.seen("ann")[0] - before["ann"]
    assert house.seen("bob")[0] == before["bob"]
    assert house.ask("admin", "GET", f"/api/executions/{run}").json()["caller"] == house.secrets["ann"][5:13]


def test_what_waits_for_a_confirmation_is_not_for_other_keys_to_see(house: House) -> None:
    for method, path in (("GET", "/api/approvals"), ("POST", f"/api/approvals/{NOT_THERE}")):
        assert shape(house.ask("bob", method, path, json={"approve": True})) == (403, "RequestError", "FORBIDDEN")
    package = skill_zip("risky", files={"scripts/execute.py": "print('done')"}, dangerous=True, confirm="Do it?")
    house.ask("admin", "POST", "/api/skills", content=package, headers=ZIP).raise_for_status()
    asked = house.ask("ann", "POST", "/api/skills/risky/execute", json={})
    approval = asked.json()["details"]["approvalId"]
    assert house.ask("admin", "POST", f"/api/approvals/{approval}", json={"approve": True}).status_code == 200
    taken = house.ask("bob", "POST", "/api/skills/risky/execute", json={"approval": approval})
    assert shape(taken) == (403, "SkillError", "APPROVAL_INVALID")
    assert house.run("ann", "risky", approval=approval) in house.seen("ann")[0]


def test_taking_a_run_away_is_in_the_audit_log(house: House) -> None:
    run = house.run("ann")
    house.ask("bob", "DELETE", f"/api/executions/{run}")
    house.ask("ann", "DELETE", f"/api/executions/{run}")
    rows = list(exported(house.server.data_dir / AUDIT_FILE))[-2:]
    assert [(row["what"], row["who"], row["target"], row["outcome"]) for row in rows] == [
        ("executions.remove", house.secrets["bob"][5:13], run, 404),
        ("executions.remove", house.secrets["ann"][5:13], run, 200),
    ]


def test_owners_survive_a_restart_and_a_revoked_keys_runs_are_for_admins(
    start_server: StartServer, data_dir: Path
) -> None:
    settings = {"APEX_API_KEYS_REQUIRED": "true", "APEX_RATE_LIMIT": "0"}
    house = house_of(start_server(**settings))
    run, upload = house.run("ann"), house.upload("ann", "kept")
    assert house.server.stop() == 0
    house.server = start_server(**settings)
    house.secrets["owner"] = owner_of(house.server)
    assert house.seen("ann") == ({run}, 1)
    assert house.seen("bob") == (set(), 0)
    for method, path in routes(run):
        assert shape(house.ask("bob", method, path)) == (404, "RequestError", "EXECUTION_NOT_FOUND"), path
    assert house.tool("bob", "file-read", path=f"runs/{run}/left.txt").status_code == 404
    call = {"input": {"text": "x"}, "files": [upload]}
    assert house.ask("bob", "POST", "/api/skills/says/execute", json=call).status_code == 422
    assert house.ask("ann", "POST", "/api/skills/says/execute", json=call).json()["stdout"].strip() == "X\nkept"
    house.ask("admin", "DELETE", f"/api/keys/{house.secrets['ann'][5:13]}").raise_for_status()
    assert house.ask("ann", "GET", f"/api/executions/{run}").status_code == 401
    assert house.ask("bob", "GET", f"/api/executions/{run}").status_code == 404
    assert house.ask("admin", "GET", f"/api/executions/{run}").json()["id"] == run
    assert house.seen("owner")[1] == 2


def test_without_keys_there_is_one_caller_and_a_key_is_one_of_its_own(start_server: StartServer) -> None:
    server = start_server()
    with httpx.Client(base_url=server.url, timeout=PATIENCE, trust_env=False) as anybody:
        package = skill_zip("says", files={"scripts/execute.py": SAYS})
        anybody.post("/api/skills", content=package, headers=ZIP).raise_for_status()
        key = anybody.post("/api/keys", json={"name": "x", "scopes": SCOPES}).json()["key"]
        keyed = {"authorization": f"Bearer {key}"}
        runs = [
            anybody.post("/api/skills/says/execute", json={}, headers=headers).raise_for_status().json()["id"]
            for headers in ({}, keyed)
        ]
        page = anybody.get("/api/executions").json()
        assert {run["id"]: run["caller"] for run in page["executions"]} == {runs[0]: "", runs[1]: key[5:13]}
        assert anybody.get("/api/executions", headers=keyed).json()["total"] == 1
        assert anybody.get(f"/api/executions/{runs[0]}", headers=keyed).status_code == 404
        for run in runs:
            assert anybody.delete(f"/api/executions/{run}").status_code == 200
