"""`apex runs`: history, output and files of runs, with and without a server."""

import subprocess
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.making import write_skill
from tests.surfaces.conftest import APEX, Apex, StartServer, environment, servers

REPORT = """import pathlib, sys
print("out")
print("err", file=sys.stderr)
pathlib.Path("output/sub").mkdir(parents=True)
pathlib.Path("output/sub/report.txt").write_text("hello")
"""
FAILS = "import sys\nsys.exit(3)\n"
BEGINS = "import time\nprint('begun', flush=True)\ntime.sleep(60)\n"


@pytest.fixture
def recorded(apex: Apex, data_dir: Path) -> str:
    """The id of a run that is recorded, after one that failed."""
    write_skill(data_dir / "skills", "fails", {"scripts/execute.py": FAILS})
    write_skill(data_dir / "skills", "report", {"scripts/execute.py": REPORT})
    assert apex("skills", "run", "fails").code == 1
    completed = apex("skills", "run", "report")
    (line,) = [line for line in completed.err.splitlines() if "apex runs files" in line]
    return line.split()[-3]


@pytest.fixture
def server(data_dir: Path) -> Iterator[StartServer]:
    with servers(data_dir) as start:
        yield start


def test_runs_are_listed_shown_and_their_output_and_files_read(apex: Apex, recorded: str, tmp_path: Path) -> None:
    rows = [line.split("\t") for line in apex("runs", "list").out.splitlines()]
    assert [(row[3], row[4]) for row in rows] == [("success", "report"), ("error", "fails")]
    assert rows[0][0] == recorded
    assert apex("runs", "ls", "--status", "error", "--json").json["total"] == 1
    assert apex("runs", "list", "--skill", "report").out.count("\n") == 1
    assert "No run fits" in apex("runs", "list", "--skill", "none").err
    shown = apex("runs", "show", recorded)
    assert "sub/report.txt (5 bytes)" in shown.out
    assert f"apex runs logs {recorded}" in shown.err
    assert "EXIT_NONZERO" in apex("runs", "show", rows[1][0]).out
    logs = apex("runs", "logs", recorded)
    assert (logs.out, logs.err) == ("out\n", "err\n")
    assert apex("runs", "logs", recorded, "--follow").out == "out\n"
    assert apex("runs", "logs", recorded, "--json").json == {
        "id": recorded,
        "state": "completed",
        "stdout": "out\n",
        "stderr": "err\n",
    }
    assert apex("runs", "files", recorded).out == "sub/report.txt\t5\n"
    saved = apex("runs", "files", recorded, "--out", tmp_path / "saved")
    assert "1 file saved in" in saved.err
    assert (tmp_path / "saved/sub/report.txt").read_text() == "hello"
    again = apex("runs", "files", recorded, "--out", tmp_path / "saved", "--json")
    assert (again.code, again.json["saved"]) == (1, [])
    assert "exists already" in again.err
    assert "left no files" in apex("runs", "files", rows[1][0]).err


@pytest.mark.parametrize("word", ["show", "logs", "files"])
@pytest.mark.parametrize("id", ["nothing", "..", "a/b", ""])
def test_an_unknown_run_is_an_error(apex: Apex, recorded: str, word: str, id: str) -> None:
    failed = apex("runs", word, id, "--json")
    assert (failed.code, failed.json["code"]) == (1, "EXECUTION_NOT_FOUND")
    assert "apex runs list" in apex("runs", word, id).err


@pytest.mark.slow
def test_a_live_run_is_followed_beside_a_server(server: StartServer, apex: Apex, data_dir: Path) -> None:
    write_skill(data_dir / "skills", "begins", {"scripts/execute.py": BEGINS})
    address = server().url
    body = {"input": {}, "wait": False}
    id = httpx.post(f"{address}/api/skills/begins/execute", json=body, trust_env=False, timeout=60).json()["id"]
    command = [*APEX, "runs", "logs", id, "--follow", "--data-dir", str(data_dir)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment()) as following:
        assert following.stdout is not None
        assert following.stdout.readline() == "begun\n"
        so_far = apex("runs", "logs", id)
        assert so_far.out == "begun\n"
        assert "The run is running" in so_far.err
        assert apex("runs", "list", "--state", "running").out.startswith(id)
        httpx.post(f"{address}/api/executions/{id}/cancel", trust_env=False, timeout=60)
        assert following.wait(60) == 0
    assert "CANCELLED" in apex("runs", "show", id).out


def test_a_machine_without_runs_says_how_to_start_one(apex: Apex, data_dir: Path) -> None:
    write_skill(data_dir / "skills", "a")
    assert "apex skills run NAME" in apex("runs", "list").err
