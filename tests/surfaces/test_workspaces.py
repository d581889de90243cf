"""Workspaces over HTTP with API keys, and on the command line."""

import json
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from apexbridge.sandbox.run_input import MAX_INPUT_FILES
from apexbridge.surfaces.cli.commands import run
from tests.making import write_skill
from tests.surfaces.conftest import Apex
from tests.surfaces.keyed_server import KeyedServer, start_keyed_server

ROUNDS = 30


@pytest.fixture(scope="module")
def keyed_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KeyedServer]:
    with start_keyed_server(tmp_path_factory.mktemp("keyed") / "data") as started:
        yield started


def code(keyed: KeyedServer, key: str, text: str, workspace: str | None = None) -> httpx.Response:
    body: dict[str, Any] = {"input": {"language": "python", "code": text}}
    body |= {"workspace": workspace} if workspace else {}
    return keyed.request("POST", "/api/tools/run-code/execute", key, json=body)


def test_keys_never_see_the_workspaces_of_other_keys(keyed_server: KeyedServer) -> None:
    other = keyed_server.create_key("run", "chat", "read")["key"]
    keyed_server.keys["other"] = other
    made = code(keyed_server, "run", "open('mine.txt', 'w').write('secret')", "of-run")
    assert made.json()["success"], made.text
    refused = code(keyed_server, "other", "print(open('mine.txt').read())", "of-run")
    assert (refused.status_code, refused.json()["code"]) == (403, "FORBIDDEN")
    assert "another API key" in refused.json()["message"]
    for method, path in (
        ("GET", "/api/workspaces/of-run"),
        ("GET", "/api/workspaces/of-run/files/mine.txt"),
        ("DELETE", "/api/workspaces/of-run/files/mine.txt"),
        ("DELETE", "/api/workspaces/of-run"),
    ):
        response = keyed_server.request(method, path, "other")
        assert (response.status_code, response.json()["code"]) == (404, "WORKSPACE_NOT_FOUND"), path
    upload = keyed_server.request(
        "POST", "/api/uploads", "other", files={"file": ("a.txt", b"a")}, data={"workspace": "of-run"}
    )
    assert upload.status_code == 403
    assert keyed_server.request("GET", "/api/workspaces", "other").json()["total"] == 0
    assert keyed_server.request("GET", "/api/workspaces/of-run", "admin").json()["entries"][0]["path"] == "mine.txt"


def test_files_of_the_files_api_belong_to_their_key(keyed_server: KeyedServer) -> None:
    other = keyed_server.create_key("chat")["key"]
    keyed_server.keys["other-chat"] = other
    made = keyed_server.request(
        "POST", "/v1/files", "chat", files={"file": ("a.txt", b"a")}, data={"purpose": "user_data"}
    ).json()
    for method, path in (("GET", ""), ("GET", "/content"), ("DELETE", "")):
        response = keyed_server.request(method, f"/v1/files/{made['id']}{path}", "other-chat")
        assert (response.status_code, response.json()["error"]["code"]) == (404, "file_not_found")
    assert keyed_server.request("GET", "/v1/files", "other-chat").json()["data"] == []
    assert keyed_server.request("GET", f"/v1/files/{made['id']}/content", "chat").content == b"a"


def test_files_of_a_run_are_in_its_workspace_and_not_also_with_the_run(keyed_server: KeyedServer) -> None:
    keyed_server.keys["runner"] = keyed_server.create_key("run", "read")["key"]
    made = code(keyed_server, "runner", "open('output/a.txt', 'w').write('1' * 5000)", "alone").json()
    assert (made["workspace"], made["files"]) == ("alone", [{"path": "output/a.txt", "size": 5000}])
    assert list((keyed_server.server.data_dir / "runs" / made["id"]).iterdir()) == []
    path = f"/api/executions/{made['id']}/files/output/a.txt"
    assert keyed_server.request("GET", path, "runner").text == "1" * 5000
    code(keyed_server, "runner", "open('output/a.txt', 'w').write('2')", "alone")
    assert keyed_server.request("GET", path, "runner").text == "2"
    keyed_server.request("DELETE", "/api/workspaces/alone", "runner")
    gone = keyed_server.request("GET", path, "runner")
    assert (gone.status_code, gone.json()["code"]) == (404, "FILE_NOT_FOUND")
    assert "the workspace alone" in gone.json()["message"]


def test_files_are_uploaded_listed_and_deleted_by_many_at_once(keyed_server: KeyedServer) -> None:
    names = [f"at-once-{number}" for number in range(2)]
    keyed_server.keys |= {name: keyed_server.create_key("chat")["key"] for name in names}

    def add_and_delete(key: str) -> list[int]:
        statuses = []
        with keyed_server.client(key) as client:
            for _ in range(ROUNDS):
                made = client.post("/v1/files", files={"file": ("a.txt", b"a")}, data={"purpose": "user_data"})
                statuses.append(made.status_code)
                if made.status_code == 200:
                    id = made.json()["id"]
                    statuses.append(client.get(f"/v1/files/{id}/content").status_code)
                    statuses.append(client.delete(f"/v1/files/{id}").status_code)
        return statuses

    def list_all(key: str) -> list[int]:
        with keyed_server.client(key) as client:
            return [client.get("/v1/files").status_code for _ in range(ROUNDS)]

    with ThreadPoolExecutor(7) as threads:
        work = [threads.submit(add_and_delete, names[number % 2]) for number in range(4)]
        work += [threads.submit(list_all, key) for key in (*names, "admin")]
        statuses = Counter(status for done in work for status in done.result())
    assert set(statuses) == {200}
    for key in names:
        assert keyed_server.request("GET", "/v1/files", key).json()["data"] == []
    ids = {keyed_server.keys[name].split("_")[1] for name in names}
    uploads = [path.name for path in (keyed_server.server.data_dir / "uploads").iterdir()]
    assert [name for name in uploads if name.split(".")[1] in ids] == []


def test_a_key_for_chats_sends_files_with_a_question(
    keyed_server: KeyedServer, apex: Apex, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("APEX_API_KEY", keyed_server.create_key("chat")["key"])
    (tmp_path / "notes.txt").write_text("text")
    command = ("chat", "hello", "--url", keyed_server.server.url, "--json", "--workspace", "chat-files")
    answered = apex(*command, "--file", tmp_path / "notes.txt")
    assert (answered.code, answered.json["x_bridge"]["workspace"]) == (0, "chat-files"), answered.err
    shown = keyed_server.request("GET", "/api/workspaces/chat-files", "admin").json()
    assert [entry["path"] for entry in shown["entries"]] == ["notes.txt"]


def test_a_chat_in_the_workspace_of_another_key_is_refused_as_a_bad_request(keyed_server: KeyedServer) -> None:
    assert code(keyed_server, "run", "open('mine.txt', 'w')", "not-for-chats").json()["success"]
    body = {"messages": [{"role": "user", "content": "hi"}], "x_bridge": {"workspace": "not-for-chats"}}
    for stream in (False, True):
        refused = keyed_server.request("POST", "/v1/chat/completions", "chat", json={**body, "stream": stream})
        error = refused.json()["error"]
        assert (refused.status_code, error["type"], error["code"]) == (403, "invalid_request_error", "forbidden")


def test_an_administrator_gets_the_files_of_a_run_in_the_workspace_of_another_key(keyed_server: KeyedServer) -> None:
    assert code(keyed_server, "run", "open('mine.txt', 'w')", "visited").json()["success"]
    made = code(keyed_server, "admin", "open('new.txt', 'w').write('A')", "visited").json()
    assert keyed_server.request("GET", f"/api/executions/{made['id']}/files/new.txt", "admin").text == "A"


def test_a_key_for_chats_reads_its_own_workspaces_but_runs_no_code(keyed_server: KeyedServer) -> None:
    assert keyed_server.request("GET", "/api/workspaces", "chat").status_code == 200
    refused = code(keyed_server, "chat", "print(1)")
    assert (refused.status_code, refused.json()["code"]) == (403, "FORBIDDEN")


def test_a_workspace_is_used_on_the_command_line(apex: Apex, tmp_path: Path) -> None:
    folder = write_skill(
        tmp_path, "adder", {"scripts/execute.py": "open('n.txt', 'a').write('x')\nprint(open('n.txt').read())\n"}
    )
    apex("skills", "install", str(folder))
    assert apex("skills", "run", "adder", "--workspace", "w1").out == "x\n"
    assert apex("skills", "run", "adder", "--workspace", "w1").out == "xx\n"
    assert "w1" in apex("workspaces", "list").out
    assert "n.txt\t2" in apex("workspaces", "show", "w1").out
    assert apex("workspaces", "files", "w1", "--out", str(tmp_path / "out")).code == 0
    assert (tmp_path / "out/n.txt").read_text() == "xx"
    assert apex("workspaces", "files", "w1", "--out", str(tmp_path / "out")).code == 1
    assert apex("workspaces").out == apex("workspaces", "list").out != ""
    assert apex("workspaces", "delete", "w1").code == 0
    missing = apex("workspaces", "show", "w1")
    assert (missing.code, "No workspace w1" in missing.err) == (1, True)


def test_folders_are_not_counted_as_files(apex: Apex) -> None:
    def make(code: str) -> None:
        call = json.dumps({"language": "shell", "code": code})
        assert apex("tools", "run", "run-code", "--input", call, "--workspace", "w").code == 0

    make("mkdir -p empty/inner")
    (listed,) = apex("workspaces", "list", "--json").json["workspaces"]
    assert (listed["files"], listed["size"]) == (0, 0)
    assert "has no files" in apex("workspaces", "show", "w").err
    make("mkdir sub; echo 1 > sub/a; echo 2 > b")
    assert apex("workspaces", "list").out.split("\t")[:3] == ["w", "2", "4"]
    assert apex("workspaces", "show", "w", "--json").json["files"] == 2


def test_the_command_and_the_server_accept_as_many_input_files() -> None:
    assert run.MAX_INPUT_FILES == MAX_INPUT_FILES
