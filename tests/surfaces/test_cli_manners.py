"""The command line: where data is, what a pipe gets, suggestions that work as pasted, and light imports."""

import os
import pty
import shlex
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from apexbridge.errors import ServerError
from apexbridge.settings import Settings
from apexbridge.surfaces.cli.connection import default_profile, find_connection
from apexbridge.surfaces.cli.hints import remember_options, with_options
from tests.making import skill_markdown, skill_zip, write_skill
from tests.surfaces.conftest import APEX, Apex, Server, environment, servers

READING = [
    ["skills", "list"],
    ["skills", "show", "x"],
    ["skills", "search", "x"],
    ["skills", "stats"],
    ["skills", "growth"],
    ["skills", "problems"],
    ["skills", "run", "x"],
    ["skills", "uninstall", "x"],
    ["skills", "export", "x"],
    ["skills", "deps", "x"],
    ["skills", "deps", "x", "--detect"],
    ["skills", "deps", "x", "--add", "pypdf"],
    ["packages", "remove", "data"],
    ["plugins", "list"],
    ["tools", "list"],
    ["tools", "show", "calculate"],
    ["approvals", "list"],
    ["secrets", "list"],
    ["keys", "list"],
    ["chats", "list"],
    ["chats", "stats"],
]
HEAVY = {"aiohttp", "anyio", "fastapi", "httpx", "lancedb", "numpy", "pyarrow", "pydantic", "rich"}
HEAVY |= {"starlette", "uvicorn", "uvloop", "watchfiles", "yaml"}
HEAVY |= {f"apexbridge.{name}" for name in ("agent", "bridge", "llm", "retrieval", "sandbox", "settings", "tools")}


def run(arguments: list[str], **env: str) -> subprocess.CompletedProcess[str]:
    command = [*APEX, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, env=environment(**env))


# ------------------------------------------------------------------------------------------------- data directory
@pytest.mark.parametrize("arguments", READING, ids=" ".join)
def test_a_reading_command_creates_nothing_and_names_the_missing_directory(
    apex: Apex, data_dir: Path, arguments: list[str]
) -> None:
    completed = apex(*arguments)
    assert completed.code == 1
    assert f"No data directory at {data_dir}." in completed.err
    assert "apex skills install" in completed.err
    assert not data_dir.exists()
    failed = apex(*arguments, "--json").json
    assert (failed["code"], failed["details"]["path"]) == ("DATA_DIR_NOT_FOUND", str(data_dir))


def test_a_reading_command_leaves_an_unrelated_folder_alone(apex: Apex, data_dir: Path) -> None:
    data_dir.mkdir()
    (data_dir / "notes.txt").write_text("mine")
    assert apex("skills", "list").code == 1
    assert [path.name for path in data_dir.iterdir()] == ["notes.txt"]


def test_config_and_doctor_create_no_data_directory(apex: Apex, data_dir: Path) -> None:
    assert apex("config", "show", "--json").json["data_dir"]["value"] == str(data_dir)
    apex("doctor", "--json")
    assert not data_dir.exists()


def test_a_search_leaves_nothing_in_the_home_directory(tmp_path: Path) -> None:
    home, data = tmp_path / "home", tmp_path / "named"
    home.mkdir()
    run(["skills", "install", str(write_skill(tmp_path, "one"))], HOME=str(home), APEX_DATA_DIR=str(data))
    found = run(["skills", "search", "one"], HOME=str(home), APEX_DATA_DIR=str(data))
    assert found.returncode == 0
    assert found.stdout.startswith("one\t")
    assert list(home.iterdir()) == []


def test_the_default_is_a_local_data_directory_and_else_the_users_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("APEX_DATA_DIR", raising=False)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_DATA_HOME", "not/absolute")
    own = tmp_path / "home/.local/share/apexbridge"
    assert find_connection().data_dir == Settings().data_dir == own
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "xdg"))
    assert find_connection().data_dir == Settings().data_dir == tmp_path / "xdg/apexbridge"
    (tmp_path / "data").mkdir()
    assert find_connection().data_dir == Settings().data_dir == tmp_path / "data"
    (tmp_path / "data/rows.csv").touch()  # an unrelated folder of that name
    assert find_connection().data_dir == Settings().data_dir == tmp_path / "xdg/apexbridge"
    (tmp_path / "data/apex.sqlite3").touch()
    assert find_connection().data_dir == Settings().data_dir == tmp_path / "data"
    Path("apex.toml").write_text('data_dir = "filed"\nurl = "http://127.0.0.1:1"\n')
    assert find_connection().data_dir == Settings().data_dir == tmp_path / "filed"
    assert find_connection().url == Settings().url
    assert find_connection(data_dir="x").url is None
    monkeypatch.setenv("APEX_DATA_DIR", "")
    assert find_connection().data_dir == Settings().data_dir == tmp_path / "filed"
    monkeypatch.setenv("APEX_DATA_DIR", "named")
    assert find_connection().data_dir == Settings().data_dir == tmp_path / "named"
    assert find_connection(data_dir="flag").data_dir == tmp_path / "flag"


def test_an_empty_folder_named_data_becomes_the_data_directory(tmp_path: Path) -> None:
    Path("data").mkdir()
    assert run(["skills", "install", str(write_skill(tmp_path, "one"))], APEX_DATA_DIR="").returncode == 0
    assert Path("data/skills/one/SKILL.md").is_file()
    assert run(["skills", "list"]).stdout.startswith("one\t")


@pytest.mark.parametrize("folder", ["/proc/nope", "/dev/null/x"])
def test_a_data_directory_that_cannot_be_created_is_named(tmp_path: Path, folder: str) -> None:
    failed = run(["skills", "install", str(write_skill(tmp_path, "one"))], APEX_DATA_DIR=folder)
    assert failed.returncode == 1
    assert f"{folder} " in failed.stderr
    assert "--data-dir" in failed.stderr
    assert "Traceback" not in failed.stderr


def test_commands_read_the_default_profile_as_the_settings_do(monkeypatch: pytest.MonkeyPatch) -> None:
    assert default_profile() == Settings().default_profile == "seed"
    Path("apex.toml").write_text('default_profile = "strict"\n')
    assert default_profile() == Settings().default_profile == "strict"
    monkeypatch.setenv("APEX_DEFAULT_PROFILE", "lenient")
    assert default_profile() == Settings().default_profile == "lenient"
    monkeypatch.setenv("APEX_DEFAULT_PROFILE", "loose")
    with pytest.raises(ServerError, match="APEX_DEFAULT_PROFILE") as refused:
        default_profile()
    assert refused.value.code == "INVALID_SETTING"


def test_a_settings_file_that_cannot_be_read_is_named(apex: Apex) -> None:
    Path("apex.toml").write_text("port = \n")
    completed = apex("skills", "list", "--json")
    assert (completed.code, completed.json["code"]) == (1, "INVALID_SETTING")
    assert "apex.toml" in completed.json["message"]


# -------------------------------------------------------------------------------------------------------- hints
@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ("See: apex skills list", "See: apex skills list --data-dir '/a b'"),
        ("Install with: apex skills deps x --install", "Install with: apex skills deps --data-dir '/a b' x --install"),
        (
            "apex serve creates it, or: apex keys list",
            "apex serve --data-dir '/a b' creates it, or: apex keys list --data-dir '/a b'",
        ),
        ("For repairs: apex skills doctor FOLDER", "For repairs: apex skills doctor FOLDER"),
        ("/opt/apex skills list", "/opt/apex skills list"),
        ("no command", "no command"),
    ],
)
def test_suggested_commands_get_the_options_of_this_one(message: str, expected: str) -> None:
    remember_options({"--data-dir": "/a b", "--url": None})
    try:
        assert with_options(message) == expected
    finally:
        remember_options({})
    assert with_options(message) == message


def test_a_url_is_suggested_only_to_commands_that_take_one() -> None:
    remember_options({"--data-dir": None, "--url": "http://h:1"})
    try:
        assert with_options("apex serve, apex tools list") == "apex serve, apex tools list --url http://h:1"
    finally:
        remember_options({})


def test_a_suggestion_works_as_pasted(tmp_path: Path) -> None:
    folder = tmp_path / "my data"
    run(["skills", "install", str(write_skill(tmp_path, "one")), "--data-dir", str(folder)])
    failed = run(["skills", "show", "two", "--data-dir", str(folder)])
    suggestion = next(line for line in failed.stderr.splitlines() if "apex skills list" in line)
    words = shlex.split(suggestion[suggestion.index("apex skills list") :])
    assert run(words[1:]).stdout.startswith("one\t")


# -------------------------------------------------------------------------------------------------------- pipes
def test_a_list_in_a_pipe_has_all_rows_without_a_header(apex: Apex, data_dir: Path) -> None:
    for number in range(60):
        write_skill(data_dir / "skills", f"s{number:02}", description="a\tb\n  c" if not number else "Something.")
    rows = [line.split("\t") for line in apex("skills", "list").out.splitlines()]
    assert [row[0] for row in rows] == [f"s{number:02}" for number in range(60)]
    assert {len(row) for row in rows} == {5}
    assert rows[0][-1] == "a b c"
    everything = apex("skills", "list", "--json").json
    assert (len(everything["skills"]), everything["total"]) == (60, 60)
    assert len(apex("skills", "list", "--limit", "7").out.splitlines()) == 7
    assert apex("skills", "list", "--page", "2").out.splitlines()[0].startswith("s50\t")
    assert len(apex("skills", "list", "--page", "1", "--json").json["skills"]) == 50


def test_a_list_on_a_terminal_is_a_table_with_pages(data_dir: Path) -> None:
    for number in range(60):
        write_skill(data_dir / "skills", f"s{number:02}", description="word " * 100)
    shown = on_a_terminal(["skills", "list", "--data-dir", str(data_dir)])
    lines = shown.splitlines()
    assert "NAME" in shown
    assert "s49" in shown
    assert "s50" not in shown
    assert "…" in shown
    assert "50 of 60; more with --page 2" in lines[-1]


def on_a_terminal(arguments: list[str]) -> str:
    """The output of a command whose stdout and stderr are a terminal."""
    main, end = pty.openpty()
    with subprocess.Popen([*APEX, *arguments], stdout=end, stderr=end, env=environment(COLUMNS="80")) as process:
        os.close(end)
        chunks = []
        try:
            while chunk := os.read(main, 65536):
                chunks.append(chunk)
        except OSError:  # the terminal has no more writers
            pass
        process.wait(60)
    os.close(main)
    return b"".join(chunks).decode()


# ------------------------------------------------------------------------------------------------------ imports
@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    data_dir = tmp_path_factory.mktemp("served") / "data"
    write_skill(data_dir / "skills", "one")
    with servers(data_dir) as start:
        yield start()


@pytest.mark.parametrize(
    "arguments",
    [
        ["skills", "list"],
        ["skills", "show", "one"],
        ["skills", "search", "one"],
        ["skills", "run", "one"],
        ["tools", "run", "calculate", "--input", '{"expression": "1+1"}'],
        ["tools", "list"],
        ["chats", "list"],
        ["chat", "what is 1+1"],
        ["keys", "list"],
        ["plugins", "list"],
        ["packages", "list"],
        ["workspaces", "list"],
        ["audit", "verify"],
        ["skills", "install", "one"],
        ["skills", "install", "one.zip"],
        ["skills", "import", "."],
    ],
    ids=" ".join,
)
def test_a_command_beside_a_server_imports_no_heavy_packages(
    served: Server, tmp_path: Path, arguments: list[str]
) -> None:
    if arguments[1] in ("install", "import"):
        write_skill(tmp_path, "one")
        (tmp_path / "one.zip").write_bytes(skill_zip("one"))
        arguments = [*arguments, "--overwrite"]
    text = (
        "import atexit, sys; atexit.register(lambda: sys.stderr.write('\\n' + ' '.join(sys.modules)));"
        "from apexbridge.surfaces.cli.app import main; main()"
    )
    command = [sys.executable, "-c", text, *arguments, "--data-dir", str(served.data_dir)]
    completed = subprocess.run(command, capture_output=True, text=True, check=True, env=environment(), cwd=tmp_path)
    assert HEAVY & set(completed.stderr.splitlines()[-1].split()) == set()


# ------------------------------------------------------------------------------------------------------- errors
def test_a_file_that_is_too_large_is_named_with_its_size_and_the_limit(apex: Apex, tmp_path: Path) -> None:
    folder = write_skill(tmp_path, "big")
    with (folder / "large.bin").open("wb") as file:
        file.truncate(200 * 1024 * 1024)
    assert "large.bin (209,715,200 bytes)" in apex("skills", "install", folder).err
    with (tmp_path / "big.zip").open("wb") as file:
        file.truncate(200 * 1024 * 1024)
    error = apex("skills", "install", tmp_path / "big.zip").err
    assert "big.zip (209,715,200 bytes)" in error
    assert "MB" in error


@pytest.mark.parametrize("arguments", [["chat", "hello", "--file", "big.zip"], ["skills", "install", "big.zip"]])
def test_a_file_that_is_too_large_for_a_server_is_named_with_its_size_and_the_limit(
    served: Server, tmp_path: Path, arguments: list[str]
) -> None:
    with (tmp_path / "big.zip").open("wb") as file:
        file.truncate(300 * 1024 * 1024)
    command = [*APEX, *arguments, "--data-dir", str(served.data_dir)]
    failed = subprocess.run(command, capture_output=True, text=True, check=False, env=environment(), cwd=tmp_path)
    assert failed.returncode == 1
    assert "big.zip (314,572,800 bytes)" in failed.stderr
    assert "50 MB" in failed.stderr


def test_a_text_file_with_another_name_is_not_taken_as_an_archive(apex: Apex, tmp_path: Path) -> None:
    (tmp_path / "foo.md").write_text(skill_markdown("foo"))
    for command in (["skills", "install"], ["skills", "validate"]):
        failed = apex(*command, tmp_path / "foo.md")
        assert failed.code == 1
        assert "foo.md is not a package. A skill's file is named SKILL.md" in failed.err


def test_a_port_in_use_is_named_with_what_to_do(apex: Apex) -> None:
    with socket.socket() as used:
        used.bind(("127.0.0.1", 0))
        used.listen()
        port = used.getsockname()[1]
        error = apex("serve", "--port", str(port)).err
    assert f"127.0.0.1:{port}" in error
    assert "--port" in error
