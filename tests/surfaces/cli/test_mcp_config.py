"""`apex mcp config`: the configuration of each client, printed or written into its file."""

import json
import os
import stat
import tomllib
from pathlib import Path
from typing import Any

import pytest

from apexbridge.surfaces.cli import jsonc
from apexbridge.surfaces.cli.mcp_clients import Client
from tests.surfaces.conftest import Apex, StartServer
from tests.surfaces.keyed_server import start_keyed_server

URL = "http://127.0.0.1:1"
KEY = "APEX_API_KEY"
CLIENTS = [pytest.param(client, id=client.value) for client in Client]
JSON_CLIENTS = [pytest.param(client, id=client.value) for client in Client if client is not Client.CODEX]
USER_FILES = {
    Client.CLAUDE_CODE: ".claude.json",
    Client.CLAUDE_DESKTOP: ".config/Claude/claude_desktop_config.json",
    Client.CURSOR: ".cursor/mcp.json",
    Client.VSCODE: ".config/Code/User/mcp.json",
    Client.CODEX: ".codex/config.toml",
}


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user without any configuration, in a project of its own."""
    for name in ("CLAUDE_CONFIG_DIR", "CODEX_HOME", "XDG_CONFIG_HOME", KEY, "APEX_URL"):
        monkeypatch.delenv(name, raising=False)
    folder = tmp_path / "home"
    (folder / "project").mkdir(parents=True)
    monkeypatch.setenv("HOME", str(folder))
    monkeypatch.chdir(folder / "project")
    return folder


def entry_in(client: Client, text: str, name: str = "apexbridge") -> Any:
    if client is Client.CODEX:
        return tomllib.loads(text)["mcp_servers"][name]
    return jsonc.loads(text)["servers" if client is Client.VSCODE else "mcpServers"][name]


@pytest.mark.parametrize("client", CLIENTS)
def test_a_client_starts_the_program_on_this_data_directory(apex: Apex, client: Client, data_dir: Path) -> None:
    printed = apex("mcp", "config", client)
    assert printed.code == 0
    entry = entry_in(client, printed.out)
    program = Path(entry["command"])
    assert program.is_absolute()
    assert os.access(program, os.X_OK)
    assert entry["args"][-3:] == ["mcp", "--data-dir", str(data_dir)]
    assert not {"env", "env_vars", "url"} & entry.keys()
    assert apex("mcp", "config", client, "--json").json["entry"] == entry


@pytest.mark.parametrize("client", CLIENTS)
def test_a_relative_data_directory_becomes_absolute(apex: Apex, client: Client, home: Path) -> None:
    entry = apex("mcp", "config", client, "--data-dir", "d", "--json").json["entry"]
    assert entry["args"][-1] == str(home / "project/d")


@pytest.mark.parametrize("client", CLIENTS)
def test_the_file_is_created_once_and_is_private(apex: Apex, client: Client, home: Path) -> None:
    written = apex("mcp", "config", client, "--write")
    path = home / USER_FILES[client]
    assert str(path) in written.err
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert path.read_text() == apex("mcp", "config", client).out
    again = apex("mcp", "config", client, "--write", "--json").json
    assert (again["changed"], again["backup"], again["file"]) == (False, None, str(path))
    assert "already" in apex("mcp", "config", client, "--write").err
    assert [each.name for each in path.parent.iterdir() if each.is_file()] == [path.name]


@pytest.mark.parametrize("client", JSON_CLIENTS)
def test_a_file_is_merged_and_loses_nothing(apex: Apex, client: Client, home: Path) -> None:
    section = "servers" if client is Client.VSCODE else "mcpServers"
    before = f"""{{
    // my servers
    "{section}": {{
        "other": {{"command": "x"}}, // with a reason
    }},
    "numStartups": 5
}}
"""
    path = home / USER_FILES[client]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(before)
    path.chmod(0o640)
    written = apex("mcp", "config", client, "--write", "--json").json
    text = path.read_text()
    assert "// my servers" in text
    assert "// with a reason" in text
    data = jsonc.loads(text)
    assert data["numStartups"] == 5
    assert list(data[section]) == ["other", "apexbridge"]
    assert Path(written["backup"]).read_text() == before
    assert [stat.S_IMODE(each.stat().st_mode) for each in (path, Path(written["backup"]))] == [0o640, 0o640]


def test_codex_settings_are_merged_and_lose_nothing(apex: Apex, home: Path) -> None:
    before = '# mine\nmodel = "m"\n\n[mcp_servers.other]\ncommand = "x" # why\n'
    path = home / ".codex/config.toml"
    path.parent.mkdir()
    path.write_text(before)
    shown = apex("mcp", "config", "codex", "--write")
    assert path.read_text().startswith(before)
    assert shown.out.splitlines()[1] == "+[mcp_servers.apexbridge]"
    assert "model" not in shown.out


@pytest.mark.parametrize("client", CLIENTS)
def test_options_of_the_user_stay_when_the_server_moves(apex: Apex, client: Client, home: Path) -> None:
    apex("mcp", "config", client, "--write")
    path = home / USER_FILES[client]
    if client is Client.CODEX:
        path.write_text(path.read_text() + 'tool_timeout_sec = 300\n\n[mcp_servers.apexbridge.env]\nMINE = "1"\n')
    else:
        section = "servers" if client is Client.VSCODE else "mcpServers"
        text = jsonc.with_value(path.read_text(), (section, "apexbridge", "env"), {"MINE": "1"})
        path.write_text(jsonc.with_value(text, (section, "apexbridge", "timeout"), 300))
    assert apex("mcp", "config", client, "--write", "--url", URL).code == 0
    entry = entry_in(client, path.read_text())
    assert entry["args"][-3:] == ["mcp", "--url", URL]
    assert entry["env"]["MINE"] == "1"
    assert 300 in entry.values()
    if client is not Client.CLAUDE_DESKTOP:
        assert apex("mcp", "config", client, "--write", "--http", "--url", URL).code == 0
        entry = entry_in(client, path.read_text())
        assert entry["url"] == f"{URL}/mcp"
        assert not {"command", "args", "env"} & entry.keys()
        assert 300 in entry.values()
        assert apex("mcp", "config", client, "--write").code == 0
        entry = entry_in(client, path.read_text())
        assert "url" not in entry
        assert entry["args"][0] == "mcp"


@pytest.mark.parametrize("transport", ["--http", "--stdio"])
@pytest.mark.parametrize("client", CLIENTS)
def test_a_key_is_named_and_never_written(
    apex: Apex, client: Client, transport: str, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(KEY, "apex_secret_value")
    written = apex("mcp", "config", client, transport, "--url", URL, "--write")
    if client is Client.CLAUDE_DESKTOP:
        if transport == "--http":
            assert written.code == 1
            assert "--stdio" in written.err
            return
        assert "Add the key yourself" in written.err
    text = (home / USER_FILES[client]).read_text()
    assert "secret" not in text + written.out + written.err
    expected: Any = {
        (Client.CLAUDE_CODE, "--http"): {"Authorization": f"Bearer ${{{KEY}}}"},
        (Client.CLAUDE_CODE, "--stdio"): {KEY: f"${{{KEY}}}"},
        (Client.CURSOR, "--http"): {"Authorization": f"Bearer ${{env:{KEY}}}"},
        (Client.CURSOR, "--stdio"): {KEY: f"${{env:{KEY}}}"},
        (Client.VSCODE, "--http"): {"Authorization": "Bearer ${input:apexbridge-key}"},
        (Client.VSCODE, "--stdio"): {KEY: "${input:apexbridge-key}"},
        (Client.CODEX, "--http"): KEY,
        (Client.CODEX, "--stdio"): [KEY],
        (Client.CLAUDE_DESKTOP, "--stdio"): None,
    }
    entry = entry_in(client, text)
    keys = ("headers", "env", "bearer_token_env_var", "env_vars")
    assert next((entry[key] for key in keys if key in entry), None) == expected[client, transport]
    if client is Client.VSCODE:
        (prompt,) = jsonc.loads(text)["inputs"]
        assert (prompt["id"], prompt["password"]) == ("apexbridge-key", True)


def test_the_hint_about_a_key_creates_one_that_is_enough(apex: Apex) -> None:
    hint = apex("mcp", "config", "cursor", "--url", URL, "--key").err
    assert f"apex keys create --url {URL} --name NAME --scope read,run" in hint


def test_a_data_directory_that_does_not_exist_is_named(apex: Apex, home: Path) -> None:
    missing = home / "elsewhere"
    assert f"{missing} does not exist" in apex("mcp", "config", "cursor", "--data-dir", str(missing)).err
    missing.mkdir()
    assert "does not exist" not in apex("mcp", "config", "cursor", "--data-dir", str(missing)).err


@pytest.mark.parametrize("client", [client for client in Client if client is not Client.CLAUDE_DESKTOP])
def test_a_project_has_a_file_of_its_own(apex: Apex, client: Client, home: Path) -> None:
    result = apex("mcp", "config", client, "--scope", "project", "--write", "--name", "mine", "--json").json
    path = Path(result["file"])
    assert path.is_relative_to(home / "project")
    assert stat.S_IMODE(path.stat().st_mode) == 0o644
    assert entry_in(client, path.read_text(), "mine") == result["entry"]


def test_claude_desktop_has_no_file_of_a_project(apex: Apex) -> None:
    refused = apex("mcp", "config", "claude-desktop", "--scope", "project", "--json")
    assert (refused.code, refused.json["code"]) == (1, "INVALID_INPUT")


def test_links_of_the_user_are_followed_and_those_out_of_a_project_are_refused(apex: Apex, home: Path) -> None:
    settings = home / "dotfiles/codex.toml"
    settings.parent.mkdir()
    settings.write_text("")
    (home / ".codex").mkdir()
    (home / ".codex/config.toml").symlink_to(settings)
    assert apex("mcp", "config", "codex", "--write").code == 0
    assert "apexbridge" in settings.read_text()
    assert (home / ".codex/config.toml").is_symlink()
    (home / "project/.mcp.json").symlink_to(home / "elsewhere.json")
    refused = apex("mcp", "config", "claude-code", "--scope", "project", "--write", "--json")
    assert refused.json["code"] == "INVALID_INPUT"
    assert not (home / "elsewhere.json").exists()


@pytest.mark.parametrize(
    ("client", "text"),
    [
        (Client.CURSOR, '{"mcpServers": {'),
        (Client.CURSOR, '{"mcpServers": []}'),
        (Client.CURSOR, "\xff\xfe"),
        (Client.VSCODE, "[]"),
        (Client.CODEX, "model = "),
        (Client.CODEX, "mcp_servers = { other = {} }"),
    ],
)
def test_a_file_that_cannot_be_read_is_left_alone(apex: Apex, client: Client, text: str, home: Path) -> None:
    path = home / USER_FILES[client]
    path.parent.mkdir(parents=True)
    path.write_bytes(text.encode("latin-1"))
    refused = apex("mcp", "config", client, "--write", "--json")
    assert (refused.code, refused.json["code"]) == (1, "INVALID_INPUT")
    assert str(path) in refused.json["message"]
    assert path.read_bytes() == text.encode("latin-1")
    assert [each.name for each in path.parent.iterdir()] == [path.name]


def test_what_is_not_a_file_is_refused(apex: Apex, home: Path) -> None:
    path = home / ".cursor/mcp.json"
    path.mkdir(parents=True)
    assert apex("mcp", "config", "cursor", "--write", "--json").json["code"] == "INVALID_INPUT"
    path.rmdir()
    os.mkfifo(path)
    assert apex("mcp", "config", "cursor", "--write", "--json").json["code"] == "INVALID_INPUT"
    path.unlink()
    path.symlink_to(path)
    assert apex("mcp", "config", "cursor", "--write", "--json").json["code"] == "INVALID_INPUT"
    path.unlink()
    path.parent.rmdir()
    path.parent.write_text("")
    assert apex("mcp", "config", "cursor", "--write", "--json").json["code"] == "INVALID_INPUT"


def test_a_path_that_is_not_text_is_refused(apex: Apex) -> None:
    folder = os.fsdecode(b"/tmp/\xff")
    refused = apex("mcp", "config", "cursor", "--data-dir", folder, "--json")
    assert (refused.code, refused.json["code"]) == (1, "INVALID_INPUT")


def test_unusual_paths_arrive_as_they_are(apex: Apex, tmp_path: Path) -> None:
    folder = tmp_path / 'a "b" \\ $HOME 数据\n'
    for client in (Client.CODEX, Client.CURSOR):
        entry = entry_in(client, apex("mcp", "config", client, "--data-dir", folder).out)
        assert entry["args"][-1] == str(folder)


@pytest.mark.parametrize("name", ["", "a b", "a.b", "../x", "-a", "x" * 65, 'a"b'])
def test_a_name_that_clients_do_not_accept_is_refused(apex: Apex, name: str) -> None:
    assert apex("mcp", "config", "codex", f"--name={name}", "--json").json["code"] == "INVALID_INPUT"


@pytest.mark.parametrize(
    "url", ["ftp://x", "http://", "x", "http://me:pw@x", "http://x?k=1", "http://[x", "http://x:y"]
)
def test_an_address_that_is_not_a_server_is_refused(apex: Apex, url: str) -> None:
    refused = apex("mcp", "config", "codex", "--http", "--url", url, "--json")
    assert (refused.code, refused.json["code"]) == (1, "INVALID_INPUT")


@pytest.mark.parametrize("url", [URL, f"{URL}/", f"{URL}/mcp", f"{URL}/mcp/"])
def test_the_address_leads_to_the_mcp_route(apex: Apex, url: str) -> None:
    assert apex("mcp", "config", "codex", "--http", "--url", url, "--json").json["entry"] == {"url": f"{URL}/mcp"}


def test_the_address_is_that_of_the_running_server(apex: Apex, start_server: StartServer) -> None:
    address = start_server().url.rstrip("/")
    found = apex("mcp", "config", "claude-code", "--http", "--json").json
    assert found["entry"] == {"type": "http", "url": f"{address}/mcp"}


@pytest.mark.slow
def test_a_server_that_requires_keys_is_recognized(apex: Apex, data_dir: Path) -> None:
    with start_keyed_server(data_dir) as keyed:
        for options in ([], ["--url", keyed.server.url]):
            found = apex("mcp", "config", "codex", "--http", *options, "--json").json
            assert (found["needsKey"], found["entry"]["bearer_token_env_var"]) == (True, KEY)
        assert not apex("mcp", "config", "codex", "--http", "--no-key", "--json").json["needsKey"]
        warned = apex("mcp", "config", "codex", "--http").err
        assert f"Set {KEY} where Codex starts" in warned
        # `apex mcp` on the same data directory reads the key of the owner.
        assert not apex("mcp", "config", "codex", "--json").json["needsKey"]


def test_an_entry_of_another_shape_is_replaced(apex: Apex, home: Path) -> None:
    path = home / ".cursor/mcp.json"
    path.parent.mkdir()
    path.write_text(json.dumps({"mcpServers": {"apexbridge": None, "other": 1}}))
    assert apex("mcp", "config", "cursor", "--write").code == 0
    servers = json.loads(path.read_text())["mcpServers"]
    assert (servers["other"], servers["apexbridge"]["args"][0]) == (1, "mcp")
