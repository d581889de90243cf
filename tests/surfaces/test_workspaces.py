"""Workspaces over HTTP with API keys, and on the command line."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from apexbridge.sandbox.run_input import MAX_INPUT_FILES
from apexbridge.surfaces.cli.commands import run
from tests.making import write_skill
from tests.surfaces.conftest import Apex
from tests.surfaces.keyed_server import KeyedServer, start_keyed_server


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


def test_the_command_and_the_server_accept_as_many_input_files() -> None:
    assert run.MAX_INPUT_FILES == MAX_INPUT_FILES
