"""Runs over HTTP and on the command line: results, live output, cancellation, disconnects, files, history."""

import json
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.making import skill_zip, write_skill
from tests.surfaces.conftest import Apex, Server, StartServer
from tests.waiting import wait_until

pytestmark = pytest.mark.slow

TIMEOUT_SECONDS = 60
ECHO = "import os\nprint(os.environ['INPUT_JSON'])\n"
SLEEP = "import time\nprint('begun', flush=True)\ntime.sleep(60)\n"
WRITE_FILE = "open('output/ä b.txt', 'w').write('left')\nprint('left')\n"


@pytest.fixture
def server(start_server: StartServer) -> Server:
    return start_server(APEX_SANDBOX_MAX_CONCURRENCY="2", APEX_SANDBOX_QUEUE="1")


@pytest.fixture
def client(server: Server) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=server.url, timeout=TIMEOUT_SECONDS, trust_env=False) as opened:
        yield opened


def install(client: httpx.Client, name: str, script: str, *, suffix: str = "py", **fields: Any) -> None:
    package = skill_zip(name, files={f"scripts/execute.{suffix}": script}, **fields)
    headers = {"content-type": "application/zip"}
    client.post("/api/skills/install", content=package, headers=headers).raise_for_status()


def execute(client: httpx.Client, name: str, **call: Any) -> httpx.Response:
    return client.post(f"/api/skills/{name}/execute", json=call)


def wait_until_ended(client: httpx.Client, identity: str) -> dict[str, Any]:
    def detail_if_ended() -> dict[str, Any] | None:
        detail: dict[str, Any] = client.get(f"/api/executions/{identity}").json()
        return detail if detail["state"] in ("completed", "error") else None

    ended = wait_until(detail_if_ended)
    assert ended is not None
    return ended


def wait_until_started(client: httpx.Client, identity: str) -> None:
    with client.stream("GET", f"/api/executions/{identity}/events") as response:
        for line in response.iter_lines():
            if line == "event: stdout":
                return


def events_of(client: httpx.Client, identity: str, **headers: str) -> list[tuple[int, str, Any]]:
    response = client.get(f"/api/executions/{identity}/events", headers=headers)
    assert response.headers["content-type"].startswith("text/event-stream")
    found = []
    for block in response.text.strip().split("\n\n"):
        fields = dict(line.split(": ", 1) for line in block.splitlines())
        found.append((int(fields["id"]), fields["event"], json.loads(fields["data"])))
    return found


def test_a_run_returns_its_result_and_id(client: httpx.Client) -> None:
    install(client, "echo", ECHO)
    response = execute(client, "echo", input={"词": "值"})
    result = response.json()
    assert response.status_code == 200
    assert response.headers["x-execution-id"] == result["id"]
    assert json.loads(result["stdout"]) == {"词": "值"}
    assert result["output"] == result["stdout"]
    fields = {"id", "success", "status", "stdout", "stderr", "output", "exitCode", "duration", "truncated", "files"}
    assert fields | {"peakMemory", "enforcement", "warnings"} == result.keys()
    failed = execute(client, "echo", input={}, timeout=1).json()
    assert (failed["success"], failed["status"], failed["exitCode"]) == (False, "timeout", 124)
    assert (failed["error"], failed["errorCode"]) == ("Execution timeout", "TIMEOUT")


@pytest.mark.requirement("B10")
def test_an_invalid_call_is_refused_with_an_error_code(client: httpx.Client, server: Server) -> None:
    install(client, "echo", ECHO)
    for name, call, status, code in (
        ("none", {}, 404, "ENOENT"),
        ("echo", {"script": "scripts/none.py"}, 422, "INVALID_INPUT"),
        ("echo", {"files": ["none"]}, 422, "INVALID_INPUT"),
        ("echo", {"timeout": 0}, 422, "INVALID_INPUT"),
        ("echo", {"args": [1]}, 422, "INVALID_INPUT"),
        ("echo", {"unknown": 1}, 422, "INVALID_INPUT"),
    ):
        response = execute(client, name, **call)
        assert (response.status_code, response.json()["code"]) == (status, code)
    script = server.data_dir / "skills/echo/scripts/execute.py"
    script.chmod(0o000)
    response = execute(client, "echo")
    assert (response.status_code, response.json()["code"]) == (403, "EACCES")
    assert str(server.data_dir) not in response.text
    script.chmod(0o644)
    assert execute(client, "echo").json()["success"]


def test_a_run_without_wait_can_be_followed_and_listed(client: httpx.Client) -> None:
    install(client, "says", "import sys\nfor n in range(3):\n    print(n, flush=True)\nprint('!', file=sys.stderr)\n")
    response = execute(client, "says", wait=False)
    assert response.status_code == 202
    identity = response.json()["id"]
    events = events_of(client, identity)
    assert "".join(data for _, kind, data in events if kind == "stdout") == "0\n1\n2\n"
    assert "".join(data for _, kind, data in events if kind == "stderr") == "!\n"
    assert (events[-1][1], events[-1][2]["success"]) == ("result", True)
    assert [number for number, _, _ in events] == list(range(1, len(events) + 1))
    assert events_of(client, identity, **{"Last-Event-ID": str(events[-2][0])}) == events[-1:]
    detail = wait_until_ended(client, identity)
    assert (detail["skill"], detail["state"], detail["status"]) == ("says", "completed", "success")
    assert detail["result"] == events[-1][2]
    assert detail["startedAt"] <= detail["endedAt"]
    listed = client.get("/api/executions?skill=says&status=success&limit=1").json()
    assert (listed["total"], listed["executions"][0]["id"]) == (1, identity)
    assert "stdout" not in listed["executions"][0]
    assert client.get("/api/executions?state=odd").status_code == 422
    for path in ("", "/events", "/files/x"):
        assert client.get(f"/api/executions/none{path}").json()["code"] == "EXECUTION_NOT_FOUND"


def test_output_is_streamed_before_the_run_ends(client: httpx.Client) -> None:
    install(client, "waits", SLEEP)
    identity = execute(client, "waits", wait=False).json()["id"]
    wait_until_started(client, identity)
    assert client.get(f"/api/executions/{identity}").json()["state"] == "running"
    assert client.post(f"/api/executions/{identity}/cancel").status_code == 202
    detail = wait_until_ended(client, identity)
    assert (detail["result"]["errorCode"], detail["result"]["exitCode"]) == ("CANCELLED", 137)
    assert client.post(f"/api/executions/{identity}/cancel").status_code == 202, "cancel is idempotent"
    assert client.post("/api/executions/none/cancel").status_code == 404


def test_a_client_disconnect_cancels_its_run(client: httpx.Client, server: Server) -> None:
    install(client, "waits", SLEEP)
    address = httpx.URL(server.url)
    with socket.create_connection((address.host, address.port or 80)) as connection:
        head = "POST /api/skills/waits/execute HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
        connection.sendall(f"{head}Content-Length: 2\r\n\r\n{{}}".encode())
        running = wait_until(lambda: client.get("/api/executions?state=running").json()["executions"])
        wait_until_started(client, running[0]["id"])
    assert wait_until_ended(client, running[0]["id"])["result"]["errorCode"] == "CANCELLED"


@pytest.mark.requirement("B13")
def test_a_full_queue_answers_429_with_retry_after(client: httpx.Client) -> None:
    install(client, "waits", SLEEP)
    started = [execute(client, "waits", wait=False).json()["id"] for _ in range(3)]
    response = execute(client, "waits", wait=False)
    assert (response.status_code, response.json()["code"]) == (429, "QUEUE_FULL")
    assert int(response.headers["retry-after"]) >= 1
    for identity in started:
        client.post(f"/api/executions/{identity}/cancel").raise_for_status()
    for identity in started:
        wait_until_ended(client, identity)
    assert execute(client, "waits", timeout=300).json()["errorCode"] == "TIMEOUT"


def test_input_files_are_uploaded_and_output_files_downloaded(client: httpx.Client) -> None:
    install(client, "leaves", WRITE_FILE)
    install(
        client, "reads", "import os\nfor name in os.listdir('input'):\n    print(name, open(f'input/{name}').read())\n"
    )
    result = execute(client, "leaves").json()
    assert result["files"] == [{"path": "ä b.txt", "size": 4}]
    download = client.get(f"/api/executions/{result['id']}/files/ä b.txt")
    assert (download.content, download.headers["x-content-type-options"]) == (b"left", "nosniff")
    assert download.headers["content-disposition"].startswith("attachment")
    upload = client.post("/api/uploads", files={"file": ("data.csv", b"1,2")})
    assert (upload.status_code, upload.json()["name"], upload.json()["size"]) == (201, "data.csv", 3)
    read = execute(client, "reads", files=[upload.json()["id"], f"runs/{result['id']}/ä b.txt"]).json()
    assert sorted(read["stdout"].splitlines()) == ["data.csv 1,2", "ä b.txt left"]
    assert client.post("/api/uploads", content=b"x").status_code == 415
    removed = client.delete(f"/api/executions/{result['id']}")
    assert removed.json() == {"success": True, "id": result["id"]}
    assert client.get(f"/api/executions/{result['id']}/files/ä b.txt").status_code == 404


def test_megabytes_of_output_arrive_complete(client: httpx.Client) -> None:
    install(client, "floods", "import sys\nsys.stdout.write('ü' * (5 << 20))\n")
    result = execute(client, "floods").json()
    assert result["stdout"] == "ü" * (5 << 20)
    assert client.get(f"/api/executions/{result['id']}").json()["result"]["stdout"] == result["stdout"]
    assert events_of(client, result["id"])[-1][2]["stdout"] == result["stdout"]


@pytest.mark.requirement("B20", "B21")
def test_an_operator_manages_grants_secrets_and_dependencies(client: httpx.Client) -> None:
    script = (
        "# /// script\n# dependencies = ['no-such-package-here>=1']\n# ///\nimport os\nprint(os.environ.get('TOKEN'))\n"
    )
    install(client, "wants", script, permissions=["secret:TOKEN"])
    assert client.put("/api/secrets/TOKEN", json={"value": "very-secret"}).json()["message"] == "Secret saved"
    assert client.get("/api/secrets").json() == {"names": ["TOKEN"]}
    before = execute(client, "wants").json()
    assert before["stdout"] == "None\n"
    assert before["warnings"] == [
        "not installed: no-such-package-here>=1. Install with: apex skills deps wants --install"
    ], "a run installs nothing and reports what is missing"
    grant = client.post("/api/skills/wants/grants", json={"permission": "secret:TOKEN"}).json()
    assert (grant["permission"], grant["state"]) == ("secret:TOKEN", "granted")
    assert execute(client, "wants").json()["stdout"] == "***\n"
    assert client.get("/api/skills/wants").json()["grants"] == ["secret:TOKEN"]
    assert [view["state"] for view in client.get("/api/skills/wants/grants").json()] == ["granted"]
    assert client.delete("/api/skills/wants/grants", params={"permission": "secret:TOKEN"}).status_code == 200
    assert execute(client, "wants").json()["stdout"] == "None\n"
    needs = client.get("/api/skills/wants/dependencies").json()
    assert (needs["python"], needs["installed"]) == (["no-such-package-here>=1"], False)
    assert client.delete("/api/secrets/TOKEN").status_code == 200
    assert client.delete("/api/secrets/TOKEN").status_code == 404


def test_no_process_of_a_run_is_left_after_a_signal(client: httpx.Client, server: Server, tmp_path: Path) -> None:
    install(client, "waits", "import sys, time\nprint('begun', flush=True)\ntime.sleep(60)\n")
    identity = execute(client, "waits", wait=False, args=[str(tmp_path)]).json()["id"]
    wait_until_started(client, identity)
    assert server.stop() == 0
    leftovers = [path for path in Path("/proc").glob("[0-9]*/cmdline") if str(tmp_path) in _read(path)]
    assert leftovers == []


def _read(path: Path) -> str:
    try:
        return path.read_text("utf-8", "replace")
    except OSError:
        return ""


# ----------------------------------------------------------------------------------------------------- command line
def test_a_skill_is_run_from_the_command_line(apex: Apex, tmp_path: Path) -> None:
    script = "import json, os, sys\nprint(json.dumps([json.loads(os.environ['INPUT_JSON']), sys.argv[1:]]))\n"
    write_skill(tmp_path, "echo", files={"scripts/execute.py": script})
    write_skill(tmp_path, "leaves", files={"scripts/execute.py": WRITE_FILE})
    write_skill(tmp_path, "fails", files={"scripts/execute.py": "raise ValueError('boom')"})
    write_skill(tmp_path, "lists", files={"scripts/execute.sh": "find -P input -type f"})
    write_skill(tmp_path, "words", body="Say {{input.x}}.")
    assert apex("skills", "import", tmp_path).code == 0
    completed = apex("skills", "run", "echo", "--input", '{"a": 1}')
    assert (completed.code, json.loads(completed.out), completed.err) == (0, [{"a": 1}, []], "")
    (tmp_path / "in.json").write_text('{"b": 2}')
    assert json.loads(apex("skills", "run", "echo", "--input", f"@{tmp_path / 'in.json'}", "--", "-v", "x").out) == [
        {"b": 2},
        ["-v", "x"],
    ]
    result = apex("skills", "run", "echo", "--json").json
    assert (result["success"], result["exitCode"]) == (True, 0)
    failed = apex("skills", "run", "fails")
    assert failed.code == 1
    assert "ValueError: boom (EXIT_NONZERO, exit code 1" in failed.err
    assert apex("skills", "run", "fails", "--json").code == 1
    (tmp_path / "data.txt").write_text("x")
    assert apex("skills", "run", "leaves", "--file", tmp_path / "data.txt", "--out", tmp_path / "out").code == 0
    assert (tmp_path / "out/ä b.txt").read_text() == "left"
    assert "apex runs files" in apex("skills", "run", "leaves").err
    assert apex("skills", "run", "words", "--input", '{"x": "hello"}').out == "Say hello.\n"
    for wrong in ("[1]", "{", "@/no/such/file"):
        assert apex("skills", "run", "echo", "--input", wrong).code == 1
    assert apex("skills", "run", "leaves", "--file", tmp_path / "none").code == 1
    (tmp_path / "in/deep").mkdir(parents=True)
    assert apex("skills", "run", "leaves", "--file", tmp_path / "in").code == 1, "it has no files"
    (tmp_path / "in/deep/a.txt").write_text("a")
    (tmp_path / "in/link").symlink_to("deep/a.txt")
    ran = apex("skills", "run", "lists", "--file", tmp_path / "in")
    assert (ran.code, ran.out) == (0, "input/in/deep/a.txt\n")
    assert "only regular files are: link" in ran.err
    assert "apex skills list" in apex("skills", "run", "none").err
    assert apex("skills", "run", "echo", "--mode", "direct").code == 0


def test_output_of_a_run_on_the_server_appears_on_the_terminal(
    start_server: StartServer, apex: Apex, tmp_path: Path
) -> None:
    start_server()
    write_skill(tmp_path, "both", files={"scripts/execute.sh": "echo out; echo err >&2; exit 3"})
    apex("skills", "install", tmp_path / "both")
    completed = apex("skills", "run", "both")
    assert (completed.code, completed.out) == (1, "out\n")
    assert completed.err.startswith("err\n")


def test_grants_secrets_and_dependencies_are_managed_on_the_command_line(
    apex: Apex, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import io
    import sys

    files = {"scripts/execute.py": "import os\nprint(os.environ.get('TOKEN'))\n", "requirements.txt": "no-such-package"}
    write_skill(tmp_path, "wants", files=files, permissions=["secret:TOKEN"])
    apex("skills", "install", tmp_path / "wants")
    assert "requested" in apex("skills", "grants", "wants").out
    monkeypatch.setattr(sys, "stdin", io.StringIO("very-secret\n"))
    assert "apex skills grant SKILL secret:TOKEN" in apex("secrets", "set", "TOKEN").err
    assert "TOKEN" in apex("secrets", "list").out
    assert "may now" in apex("skills", "grant", "wants", "secret:TOKEN").err
    assert "granted" in apex("skills", "grants", "wants").out
    assert apex("skills", "run", "wants").out == "***\n"
    assert "no longer" in apex("skills", "revoke", "wants", "secret:TOKEN").err
    assert "deleted" in apex("secrets", "rm", "TOKEN").err
    assert "There are no secrets." in apex("secrets", "list").err
    assert "--install" in apex("skills", "deps", "wants").err
    assert apex("skills", "grant", "wants", "net:x:1").code == 1


def test_the_doctor_checks_every_guarantee(apex: Apex) -> None:
    completed = apex("doctor", "--json")
    assert completed.code == 0, completed.out
    report = completed.json
    assert report["ok"]
    assert {finding["guarantee"] for finding in report["guarantees"] if finding["held"] and finding["proof"]} == {
        *("fs", "net", "tree_kill", "memory", "pids", "disk", "env", "fds", "syscalls")
    }
    assert {runtime["runtime"] for runtime in report["runtimes"] if runtime["works"]} == {"node", "python", "shell"}
    text_output = apex("doctor")
    assert "enforces every guarantee" in text_output.err
    assert "mount namespace" in text_output.out


def test_the_doctor_reports_missing_guarantees_and_exits_with_1(apex: Apex, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("APEX_SANDBOX_BACKEND", "plain")
    completed = apex("doctor")
    assert completed.code == 1
    assert "Scripts do not run" in completed.err
    assert "fs: use the bubblewrap backend" in completed.err
    monkeypatch.setenv("APEX_SANDBOX_REQUIRE", "env,fds,memory,tree_kill")
    assert apex("doctor").code == 0
