"""Names on the command line: completed by the shell, and suggested if they are mistyped."""

import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from apexbridge._text import near_names
from apexbridge.errors import did_you_mean
from tests.making import write_skill
from tests.skills.test_plugins import plugin_zip
from tests.surfaces.conftest import Apex, StartServer, environment

SCRIPT = str(Path(sys.executable).with_name("apex"))


def completed(line: str, **env: str) -> list[str]:
    """What bash would offer at the end of a line."""
    words = environment(_APEX_COMPLETE="complete_bash", COMP_WORDS=line, COMP_CWORD=str(line.count(" ")), **env)
    done = subprocess.run([SCRIPT], capture_output=True, text=True, check=False, env=words)
    assert done.stderr == ""
    return done.stdout.split()


# --------------------------------------------------------------------------------------------------- completion
def test_names_are_completed_without_a_server(apex: Apex, data_dir: Path, tmp_path: Path) -> None:
    write_skill(data_dir / "skills", "checksums", {"scripts/execute.py": "print(1)"})
    write_skill(data_dir / "skills", "csv-insights")
    (tmp_path / "p.zip").write_bytes(plugin_zip("alpha"))
    apex("skills", "install", tmp_path / "p.zip")
    apex("skills", "run", "checksums")
    env = {"APEX_DATA_DIR": str(data_dir)}
    assert completed("apex skills show c", **env) == ["checksums", "csv-insights"]
    assert completed("apex skills show --data-dir /nowhere c", **env) == []
    assert completed("apex skills run cs", **env) == ["csv-insights"]
    assert completed("apex plugins uninstall ", **env) == ["my-plugin"]
    assert "skill:checksums" in completed("apex tools show skill", **env) or completed("apex tools run s", **env)
    assert completed("apex ru", **env) == ["runs"]


def test_a_skill_that_is_served_under_its_plugins_name_is_completed_by_that_name(data_dir: Path) -> None:
    write_skill(data_dir / "skills", "one")
    write_skill(data_dir / "skills", "box+one")
    env = {"APEX_DATA_DIR": str(data_dir)}
    assert completed("apex skills show ", **env) == ["box:one", "one"]
    assert completed("apex tools show skill", **env) == ["skill:box:one", "skill:one"]


def test_names_are_completed_beside_a_server(start_server: StartServer, data_dir: Path) -> None:
    write_skill(data_dir / "skills", "checksums", {"scripts/execute.py": "print(1)"})
    server = start_server()
    run = httpx.post(f"{server.url}/api/skills/checksums/execute", json={}, trust_env=False, timeout=60).json()["id"]
    env = {"APEX_DATA_DIR": str(data_dir)}
    assert completed("apex skills show ch", **env) == ["checksums"]
    assert completed("apex tools run calc", **env) == ["calculate"]
    assert completed(f"apex runs logs {run[:4]}", **env) == [run]
    assert completed(f"apex tools run --url {server.url} dat") == ["datetime"]


@pytest.mark.parametrize("setup", ["missing", "file", "toml", "dead url"])
def test_completion_is_silent_if_names_cannot_be_read(tmp_path: Path, setup: str) -> None:
    env = {"APEX_DATA_DIR": str(tmp_path / "none")}
    if setup == "file":
        (tmp_path / "none").write_text("x")
    elif setup == "toml":
        Path("apex.toml").write_text("= broken")
    elif setup == "dead url":
        env = {"APEX_URL": "http://127.0.0.1:9"}
    assert completed("apex skills show c", **env) == []


BASH = """
eval "$(_APEX_COMPLETE=source_bash "$APEX")"
COMP_WORDS=("$APEX" "$@"); COMP_CWORD=$#
_apex_completion "$APEX"
printf '%s\\n' "${COMPREPLY[@]}"
"""


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        (["skills", "show", "box", ":", "o"], ["one"]),
        (["skills", "show", "box", ":"], ["one"]),
        (["tools", "run", "skill", ":", "on"], ["one"]),
        (["tools", "run", "skill", ":", "box", ":", "o"], ["one"]),
        (["skills", "run", "box", ":", "one", "--overw"], []),
        (["skills", "show", "--url", "http", ":", "//127.0.0.1", ":", "9", "on"], []),
        (["skills", "show", "o"], ["one"]),
    ],
    ids=" ".join,
)
def test_bash_completes_the_part_of_a_word_after_its_colon(
    data_dir: Path, words: list[str], offered: list[str]
) -> None:
    write_skill(data_dir / "skills", "one")
    write_skill(data_dir / "skills", "box+one")
    env = environment(APEX_DATA_DIR=str(data_dir), APEX=SCRIPT)
    done = subprocess.run(["bash", "-c", BASH, "bash", *words], capture_output=True, text=True, check=True, env=env)
    assert (done.stdout.split(), done.stderr) == (offered, "")


def test_workspaces_bundles_and_removed_skills_are_completed(
    apex: Apex, start_server: StartServer, data_dir: Path, tmp_path: Path
) -> None:
    apex("skills", "install", write_skill(tmp_path, "gone-by"))
    apex("skills", "uninstall", "gone-by")
    (tmp_path / "p.zip").write_bytes(plugin_zip("alpha"))
    apex("skills", "install", tmp_path / "p.zip")
    apex("plugins", "uninstall", "my-plugin")
    (tmp_path / "x.txt").write_text("x")
    apex("chat", "1+1", "--workspace", "w1", "--file", tmp_path / "x.txt")
    env = {"APEX_DATA_DIR": str(data_dir)}

    def check() -> None:
        for command in ("show", "files", "delete"):
            assert completed(f"apex workspaces {command} w", **env) == ["w1"]
        assert completed("apex packages install d", **env) == ["data", "documents"]
        assert completed("apex packages remove w", **env) == ["web"]
        assert completed("apex skills restore ", **env) == ["gone-by"]

    check()
    start_server()
    check()


# -------------------------------------------------------------------------------------------------- suggestions
@pytest.mark.parametrize(
    ("name", "known", "expected"),
    [
        ("pfd", ["docx", "pdf"], ["pdf"]),
        ("git-comit", ["git-commit", "git-commits"], ["git-commit", "git-commits"]),
        ("commit", ["commit-message-writer"], ["commit-message-writer"]),
        ("x" * 10_000, ["x"], []),
        ("", ["a"], []),
        ("zzz", ["pdf"], []),
    ],
)
def test_near_names_are_similar_or_begin_the_same(name: str, known: list[str], expected: list[str]) -> None:
    assert near_names(name, known) == expected


def test_the_question_names_all_of_them() -> None:
    assert did_you_mean(["a", "b"]) == '. Did you mean "a" or "b"?'
    assert did_you_mean([]) == ""


def test_a_mistyped_name_gets_a_suggestion(apex: Apex, data_dir: Path, tmp_path: Path) -> None:
    write_skill(data_dir / "skills", "pdf", {"scripts/execute.py": "print(1)"})
    (tmp_path / "p.zip").write_bytes(plugin_zip("alpha"))
    apex("skills", "install", tmp_path / "p.zip")
    for words in (["skills", "show"], ["skills", "run"], ["skills", "uninstall"], ["skills", "reload"]):
        assert 'Skills not found: pfd. Did you mean "pdf"?' in apex(*words, "pfd").err, words
    assert 'Did you mean "my-plugin"?' in apex("plugins", "uninstall", "my-plugn").err
    assert 'Did you mean "calculate"?' in apex("tools", "run", "calculator").err
    assert 'Did you mean "skill:pdf"?' in apex("tools", "show", "skill:pfd").err
    apex("skills", "run", "pdf")
    run = apex("runs", "list").out.split("\t")[0]
    assert f'Did you mean "{run}"?' in apex("runs", "show", run[:8]).err
    failed = apex("skills", "show", "pfd", "--json").json
    assert (failed["message"], failed["details"]["suggestions"]) == (
        'Skills not found: pfd. Did you mean "pdf"?',
        ["pdf"],
    )
    assert "Did you mean" not in apex("skills", "show", "something-else").err
