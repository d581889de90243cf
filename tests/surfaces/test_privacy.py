"""Files of a server: accessible to its own user only, and without texts of chats that are not recorded."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from tests.making import skill_zip, zip_of
from tests.surfaces.conftest import Server, StartServer
from tests.waiting import wait_until

pytestmark = pytest.mark.slow

TIMEOUT_SECONDS = 120
MARK = "quaggaword"
QUESTION = f"write a haiku poem about the {MARK}"
READ_BY_RUNS = ("skills", "layers")
BUSY = """import os
os.makedirs("output/deep/er")
open("output/deep/er/left.txt", "w").write("left")
print("x" * 20000)
"""


@contextmanager
def open_client(server: Server) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=server.url, timeout=TIMEOUT_SECONDS, trust_env=False) as client:
        yield client


def stop(server: Server) -> None:
    """Stop a server. It first writes the index, which is slow on a busy machine."""
    server.process.terminate()
    server.process.wait(TIMEOUT_SECONDS)


def install(client: httpx.Client, package: bytes) -> None:
    headers = {"content-type": "application/zip"}
    client.post("/api/skills/install", content=package, headers=headers).raise_for_status()


def install_haiku(client: httpx.Client) -> None:
    files = {"scripts/execute.py": "print('an old silent pond')\n"}
    install(client, skill_zip("haiku", description="Write a haiku poem about something", files=files))


def chat(client: httpx.Client) -> None:
    body = {"model": "apex-offline", "messages": [{"role": "user", "content": QUESTION}]}
    completion = client.post("/v1/chat/completions", json=body).raise_for_status().json()
    assert "an old silent pond" in completion["choices"][0]["message"]["content"], completion


def past_use(client: httpx.Client) -> float:
    (match, *_) = client.post("/api/skills/search", json={"query": QUESTION, "record": False}).json()["results"]
    return float(match["why"]["pastUse"])


def wait_until_learned(client: httpx.Client) -> None:
    """A chat updates the usage memory after its response."""
    wait_until(lambda: past_use(client) >= 1)


def files_with_mark(folder: Path, mark: str = MARK) -> list[str]:
    files = [path for path in folder.rglob("*") if path.is_file()]
    return [str(path.relative_to(folder)) for path in files if mark.encode() in path.read_bytes()]


def accessible_to_others(folder: Path) -> dict[str, str]:
    """Paths with any permission for group or others, except those that runs must read."""
    return {
        str(path.relative_to(folder)): oct(path.lstat().st_mode)
        for path in (folder, *folder.rglob("*"))
        if path.lstat().st_mode & 0o077 and path.relative_to(folder).parts[:1] not in {(name,) for name in READ_BY_RUNS}
    }


def use_everything(client: httpx.Client) -> None:
    install_haiku(client)
    install(client, skill_zip("busy", files={"scripts/execute.py": BUSY}))
    wipe = {"scripts/execute.py": "print(1)"}
    install(client, skill_zip("wipe", files=wipe, dangerous=True, permissions=["secret:TOKEN"]))
    skill = "---\nname: part\ndescription: A part of a plugin.\n---\n"
    manifest = '{"name": "whole", "version": "1.0.0"}'
    install(client, zip_of({"whole/.claude-plugin/plugin.json": manifest, "whole/skills/part/SKILL.md": skill}))
    upload = client.post("/api/uploads", files={"file": ("data.csv", b"1,2")}).raise_for_status().json()
    run = client.post("/api/skills/busy/execute", json={"files": [upload["id"]]}).raise_for_status().json()
    assert run["success"] is True, run
    assert client.get(f"/api/executions/{run['id']}/files/deep/er/left.txt").text == "left"
    assert client.post("/api/skills/wipe/execute", json={}).status_code == 409
    client.put("/api/secrets/TOKEN", json={"value": "a secret"}).raise_for_status()
    client.post("/api/skills/wipe/grants", json={"permission": "secret:TOKEN"}).raise_for_status()
    client.post("/api/keys", json={"name": "somebody", "scopes": ["read"]}).raise_for_status()
    written = client.post("/api/tools/file-write/execute", json={"input": {"path": "a/b/c.txt", "content": "x"}})
    assert written.json()["success"] is True, written.json()
    client.post("/api/skills/remember", json={"request": "wipe it all", "name": "wipe"}).raise_for_status()
    chat(client)
    client.post("/api/skills/search", json={"query": "anything"}).raise_for_status()
    client.post("/api/skills/forget", json={"name": "wipe"}).raise_for_status()


@pytest.mark.parametrize("mask", [0o022, 0o000])
def test_only_skills_and_layers_are_readable_by_others(start_server: StartServer, data_dir: Path, mask: int) -> None:
    before = os.umask(mask)
    try:
        server = start_server()
    finally:
        os.umask(before)
    with open_client(server) as client:
        use_everything(client)
    assert accessible_to_others(data_dir) == {}
    stop(server)
    assert accessible_to_others(data_dir) == {}
    names = {path.name for path in data_dir.iterdir()}
    assert names >= {"apex.sqlite3", "audit.sqlite3", "runs", "uploads", "workspace", "skills.lance", "secrets.json"}


def test_a_start_restricts_the_permissions_of_its_own_files_only(start_server: StartServer, data_dir: Path) -> None:
    server = start_server()
    with open_client(server) as client:
        use_everything(client)
    stop(server)
    for path in (data_dir, *data_dir.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)
    stop(start_server())
    assert accessible_to_others(data_dir) == {}
    foreign_file, sibling = data_dir / "notes.txt", data_dir.with_name("beside")
    sibling.mkdir(mode=0o755)
    foreign_file.write_text("mine")
    for path in (data_dir, data_dir / "runs", foreign_file, sibling):
        path.chmod(0o755)
    (data_dir / "workspace").rename(data_dir / "elsewhere")
    (data_dir / "workspace").symlink_to(sibling)
    stop(start_server())
    modes = [path.stat().st_mode & 0o777 for path in (data_dir, data_dir / "runs", foreign_file, sibling)]
    assert modes == [0o755, 0o700, 0o755, 0o755]


def test_no_chat_text_is_stored_if_records_are_off(start_server: StartServer, data_dir: Path) -> None:
    server = start_server(APEX_CHAT_RECORDS="off")
    with open_client(server) as client:
        install_haiku(client)
        chat(client)
        assert client.get("/api/chats").json()["total"] == 0
        assert past_use(client) == 0
        assert files_with_mark(data_dir) == []
    stop(server)
    assert files_with_mark(data_dir) == []
    with open_client(start_server(APEX_CHAT_RECORDS="off")) as client:
        assert past_use(client) == 0


@pytest.mark.parametrize("records", ["steps", "full"])
def test_a_deleted_chat_leaves_no_text(start_server: StartServer, data_dir: Path, records: str) -> None:
    server = start_server(APEX_CHAT_RECORDS=records)
    with open_client(server) as client:
        install_haiku(client)
        chat(client)
        wait_until_learned(client)
        (record,) = client.get("/api/chats").json()["chats"]
        assert bool(files_with_mark(data_dir)) is (records == "full")
        client.delete(f"/api/chats/{record['id']}").raise_for_status()
        assert files_with_mark(data_dir) == []
        assert past_use(client) == 0
    stop(server)
    assert files_with_mark(data_dir) == []


def test_usage_memory_stores_no_text(start_server: StartServer, data_dir: Path) -> None:
    server = start_server()
    with open_client(server) as client:
        install_haiku(client)
        chat(client)
        wait_until_learned(client)
        assert files_with_mark(data_dir) == []
        assert client.post("/api/skills/forget", json={}).json() == {"forgotten": 1}
        assert past_use(client) == 0
    stop(server)
    assert files_with_mark(data_dir) == []
