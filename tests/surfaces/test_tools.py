"""Tools and approvals over HTTP and on the command line, on a real server."""

import concurrent.futures
import fcntl
import json
import os
import pty
import shutil
import signal
import subprocess
import termios
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.making import skill_zip, write_skill
from tests.surfaces.conftest import APEX, Apex, CommandResult, Server, StartServer, servers

TIMEOUT_SECONDS = 60


def take_terminal() -> None:
    """Make the terminal the controlling one of this process, so that Ctrl-C reaches it."""
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


def take_terminal_and_ignore_interrupts() -> None:
    """The same for a child of a background job of a shell, which ignores Ctrl-C."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    take_terminal()


BUILT_IN = [
    "calculate",
    "datetime",
    "file-read",
    "file-write",
    "list-files",
    "platform-detect",
    "read-skill",
    "run-code",
    "run-skill",
    "vector-search",
]
ECHO = "import json, sys\nprint(json.dumps(json.load(sys.stdin), sort_keys=True))\n"
ARGPARSE = """\
import argparse
parser = argparse.ArgumentParser()
parser.add_argument("who", help="Whom to greet.")
parser.add_argument("--times", type=int, default=1)
given = parser.parse_args()
print("hello", given.who, given.times)
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """One server for all tests of this module; the client fixture restores its state."""
    with servers(tmp_path_factory.mktemp("served") / "data") as start:
        yield start()


@pytest.fixture
def client(server: Server) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=server.url, timeout=TIMEOUT_SECONDS, trust_env=False) as opened:
        yield opened
        for skill in opened.get("/api/skills").json()["skills"]:
            opened.delete(f"/api/skills/{skill['name']}").raise_for_status()
        for run in opened.get("/api/executions").json()["executions"]:
            opened.delete(f"/api/executions/{run['id']}").raise_for_status()
        opened.patch("/api/config", json={"enableDirectMode": True}).raise_for_status()
        shutil.rmtree(server.data_dir / "workspace", ignore_errors=True)


def install(client: httpx.Client, name: str, files: dict[str, str] | None = None, **fields: Any) -> httpx.Response:
    headers = {"content-type": "application/zip"}
    package = skill_zip(name, files=files or {}, **fields)
    return client.post("/api/skills/install?overwrite=true", content=package, headers=headers).raise_for_status()


def call(client: httpx.Client, id: str, input: dict[str, Any] | None = None, **more: Any) -> httpx.Response:
    return client.post(f"/api/tools/{id}/execute", json={"input": input or {}, **more})


def error_of(response: httpx.Response) -> tuple[int, str, str]:
    answer = response.json()
    return response.status_code, answer["name"], answer["code"]


# ------------------------------------------------------------------------------------------------------- built-ins
@pytest.mark.requirement("A5")
def test_the_built_in_set_is_complete_and_each_tool_has_its_schema(client: httpx.Client) -> None:
    answer = client.get("/api/tools").json()
    assert [tool["id"] for tool in answer["tools"]] == BUILT_IN
    assert answer["total"] == len(BUILT_IN)
    for tool in answer["tools"]:
        assert (tool["category"], tool["enabled"], tool["dangerous"]) == ("builtin", True, False)
        assert tool["parameters"]["type"] == "object"
        assert client.get(f"/api/tools/{tool['id']}").json() == tool
    assert {tool["name"] for tool in answer["tools"]} >= {"search_skills", "load_skill", "run_skill", "file_read"}


@pytest.mark.requirement("A2")
@pytest.mark.requirement("A3")
@pytest.mark.requirement("A5")
def test_built_in_tools_return_their_own_result_objects(client: httpx.Client) -> None:
    assert call(client, "calculate", {"expression": "sqrt(144) + 10"}).json() == {"success": True, "result": 22}
    written = call(client, "file-write", {"path": "notes/a.md", "content": "héllo\n"}).json()
    assert written == {"success": True, "path": "notes/a.md", "bytes": 7}
    read = call(client, "file-read", {"path": "notes/a.md"}).json()
    assert (read["success"], read["content"], read["size"], read["truncated"]) == (True, "héllo\n", 7, False)
    listed = call(client, "list-files", {"recursive": True}).json()
    assert [file["path"] for file in listed["files"]] == ["notes", "notes/a.md"]
    now = call(client, "datetime", {"zone": "Asia/Shanghai"}).json()
    assert (now["success"], now["zone"]) == (True, "Asia/Shanghai")
    assert {"iso", "timestamp"} <= set(now)
    platform = call(client, "platform-detect").json()
    assert {"success", "os", "arch", "python", "node"} <= set(platform)


@pytest.mark.requirement("A5")
def test_vector_search_returns_the_results_of_the_search_route(client: httpx.Client) -> None:
    install(client, "git-commit", description="Writes a commit message for staged changes.")
    route = client.post("/api/skills/search", json={"query": "commit my work"}).json()
    tool = call(client, "vector-search", {"query": "commit my work"}).json()
    assert tool["success"]
    assert tool["results"] == route["results"]
    assert set(route) <= set(tool)


@pytest.mark.requirement("A4")
def test_an_unknown_tool_is_not_found(client: httpx.Client) -> None:
    response = call(client, "no-such-tool")
    assert error_of(response) == (404, "ToolError", "TOOL_NOT_FOUND")
    assert response.json()["message"] == "BuiltIn tool not found: no-such-tool"
    assert client.get("/api/tools/no-such-tool").status_code == 404


@pytest.mark.requirement("A6")
@pytest.mark.parametrize(
    "path",
    [
        "/etc/passwd",
        "../secret",
        "a/../../secret",
        "link",
        f"runs/{'0' * 32}/y",
        f"runs/{'0' * 32}/../x",
        "a\0b",
        "x" * 4096,
    ],
)
def test_file_tools_stay_inside_the_workspace(client: httpx.Client, server: Server, path: str) -> None:
    secret = server.data_dir / "secret"
    secret.write_text("MARKER")
    workspace = server.data_dir / "workspace"
    workspace.mkdir(exist_ok=True)
    (workspace / "link").symlink_to(secret)
    for tool, extra in (("file-read", {}), ("file-write", {"content": "overwritten"}), ("list-files", {})):
        response = call(client, tool, {"path": path, **extra})
        assert response.status_code in (403, 404, 422), (tool, response.text)
        assert "MARKER" not in response.text
        assert str(server.data_dir) not in response.text
    assert secret.read_text() == "MARKER"


@pytest.mark.requirement("F7")
def test_invalid_input_is_refused_with_path_and_message(client: httpx.Client) -> None:
    response = call(client, "calculate", {"expression": 5, "more": 1})
    assert error_of(response) == (422, "RequestError", "INVALID_INPUT")
    assert {problem["path"] for problem in response.json()["details"]["errors"]} == {"expression", "more"}
    assert response.json()["details"]["retryable"] is False


@pytest.mark.slow
def test_statistics_count_every_tool_and_survive_a_restart(start_server: StartServer) -> None:
    first = start_server()
    with httpx.Client(base_url=first.url, timeout=TIMEOUT_SECONDS, trust_env=False) as client:
        install(client, "calculate", {"scripts/execute.py": ECHO})
        for expression in ("1+1", "2+2", "1/0"):
            call(client, "calculate", {"expression": expression})
        call(client, "skill:calculate", {"a": 1})
    first.stop()
    again = start_server(folder=first.data_dir)
    with httpx.Client(base_url=again.url, timeout=TIMEOUT_SECONDS, trust_env=False) as client:
        answer = client.get("/api/tools/stats").json()
        counts = {item["id"]: item for item in answer["tools"]}
        assert (counts["calculate"]["callCount"], counts["calculate"]["successCount"]) == (3, 2)
        assert (counts["skill:calculate"]["callCount"], counts["skill:calculate"]["toolName"]) == (1, "calculate")
        assert answer["categories"] == {"builtin": 10, "skill": 1}
        assert client.get("/api/skills/calculate/stats").json()["callCount"] == 1


# ---------------------------------------------------------------------------------------------------------- skills
@pytest.mark.requirement("F2")
@pytest.mark.requirement("D1")
@pytest.mark.requirement("D5")
@pytest.mark.requirement("D10")
def test_a_skill_is_a_tool_from_its_install_to_its_removal(client: httpx.Client, server: Server) -> None:
    schema = {"properties": {"text": {"type": "string"}}, "required": ["text"]}
    install(client, "echo", {"scripts/execute.py": ECHO}, parameters=schema)
    with httpx.Client(base_url=server.url, timeout=TIMEOUT_SECONDS, trust_env=False) as other:
        tool = other.get("/api/tools/skill:echo").json()
        assert set(tool["parameters"]["properties"]) == {"text", "name"}
        assert (tool["category"], tool["name"]) == ("skill", "skill__echo")
        result = call(other, "skill:echo", {"text": "hi", "name": "echo"}).json()
        assert (result["success"], json.loads(result["stdout"])) == (True, {"text": "hi"})
        assert error_of(call(other, "skill:echo", {})) == (422, "RequestError", "INVALID_INPUT")
        assert other.get(f"/api/executions/{result['id']}").json()["skill"] == "echo"

    path = server.data_dir / "skills/echo/SKILL.md"
    path.write_text(path.read_text().replace("text", "words"))
    client.post("/api/skills/echo/reload").raise_for_status()
    assert set(client.get("/api/tools/skill:echo").json()["parameters"]["properties"]) == {"words", "name"}

    client.delete("/api/skills/echo").raise_for_status()
    with httpx.Client(base_url=server.url, timeout=TIMEOUT_SECONDS, trust_env=False) as other:
        assert other.get("/api/skills/echo").status_code == 404
        assert [tool["id"] for tool in other.get("/api/tools").json()["tools"]] == BUILT_IN
        assert other.post("/api/skills/search", json={"query": "echo", "threshold": 0}).json()["results"] == []
        assert error_of(other.post("/api/skills/echo/execute", json={})) == (404, "SkillError", "ENOENT")
        assert call(other, "skill:echo").status_code == 404
        assert error_of(call(other, "run-skill", {"name": "echo"})) == (404, "SkillError", "ENOENT")
        assert call(other, "read-skill", {"name": "echo"}).status_code == 404


@pytest.mark.requirement("F2")
def test_a_name_parameter_of_the_skill_is_not_replaced(client: httpx.Client) -> None:
    schema = {"properties": {"name": {"type": "string", "minLength": 3}}, "required": ["name"]}
    install(client, "greet", {"scripts/execute.py": ECHO}, parameters=schema)
    tool = client.get("/api/tools/skill:greet").json()
    assert tool["parameters"]["properties"]["name"] == {"type": "string", "minLength": 3}
    assert json.loads(call(client, "skill:greet", {"name": "greet"}).json()["stdout"]) == {"name": "greet"}


@pytest.mark.requirement("F2")
def test_parameters_are_derived_from_the_source_of_a_script(client: httpx.Client) -> None:
    install(client, "hello", {"scripts/execute.py": ARGPARSE})
    tool = client.get("/api/tools/skill:hello").json()
    assert tool["parameters"]["required"] == ["who"]
    assert tool["parameters"]["properties"]["times"]["type"] == "integer"
    result = call(client, "skill:hello", {"who": "Ada", "times": 2}).json()
    assert (result["success"], result["stdout"]) == (True, "hello Ada 2\n")
    assert error_of(call(client, "skill:hello", {"times": 2})) == (422, "RequestError", "INVALID_INPUT")


@pytest.mark.requirement("C5")
def test_scripts_of_a_skill_are_listed_and_run_by_name(client: httpx.Client) -> None:
    files = {"scripts/hello.py": ARGPARSE, "scripts/other.sh": "echo other\n", "reference.md": "# More\nof it\n"}
    install(client, "pack", files, body="Use the scripts.")
    read = call(client, "read-skill", {"name": "pack"}).json()
    assert (read["mode"], read["content"].strip()) == ("direct", "Use the scripts.")
    assert read["scripts"] == ["scripts/hello.py (who: string, times?: integer)", "scripts/other.sh"]
    assert read["files"] == ["SKILL.md", "reference.md", "scripts/hello.py", "scripts/other.sh"]
    file = call(client, "read-skill", {"name": "pack", "path": "reference.md"}).json()
    assert (file["content"], file["truncated"]) == ("# More\nof it\n", False)
    assert call(client, "read-skill", {"name": "pack", "path": "../../secret"}).status_code == 404
    by_name = call(client, "run-skill", {"name": "pack", "script": "scripts/hello.py", "input": {"who": "Bo"}}).json()
    assert (by_name["success"], by_name["stdout"]) == (True, "hello Bo 1\n")
    by_args = call(client, "run-skill", {"name": "pack", "script": "scripts/hello.py", "args": ["Cy", "--times=3"]})
    assert by_args.json()["stdout"] == "hello Cy 3\n"


@pytest.mark.requirement("F4")
def test_the_tool_of_a_direct_skill_returns_its_instructions(client: httpx.Client) -> None:
    schema = {"properties": {"who": {"type": "string"}}, "required": ["who"]}
    install(client, "words", body="Greet {{input.who}} from {{system.cwd}}. {{other}}", parameters=schema)
    direct = call(client, "skill:words", {"who": "Ada"}).json()
    assert (direct["mode"], direct["content"]) == ("direct", "Greet Ada from /. {{other}}")
    assert (direct["metadata"]["skillName"], direct["metadata"]["sourcePath"]) == ("words", "words/SKILL.md")
    missing = call(client, "skill:words", {}).json()
    assert missing["warnings"] == ["no input for {{input.who}}"]


def test_run_skill_accepts_input_under_several_names(client: httpx.Client) -> None:
    install(client, "echo", {"scripts/execute.py": ECHO})
    for arguments in ({"input": {"a": 1}}, {"args": {"a": 1}}, {"arguments": {"a": 1}}, {"parameters": {"a": 1}}):
        result = call(client, "run-skill", {"name": "echo", **arguments}).json()
        assert json.loads(result["stdout"]) == {"a": 1}, arguments


@pytest.mark.requirement("A6")
def test_files_of_a_run_are_readable_and_usable_as_input(client: httpx.Client) -> None:
    install(client, "leaves", {"scripts/execute.py": "print('x' * 100_000)\nopen('output/a.txt', 'w').write('left')\n"})
    result = call(client, "skill:leaves").json()
    path = f"runs/{result['id']}/a.txt"
    assert call(client, "file-read", {"path": path}).json()["content"] == "left"
    stdout = call(client, "file-read", {"path": f"runs/{result['id']}/stdout"}).json()
    assert stdout["size"] == 100_001
    assert call(client, "file-write", {"path": path, "content": "no"}).status_code == 403
    install(client, "reads", {"scripts/execute.py": "print(open('input/a.txt').read())\n"})
    again = call(client, "run-skill", {"name": "reads", "files": [path]}).json()
    assert again["stdout"] == "left\n"


def test_a_tool_is_disabled_and_enabled_with_its_skill(client: httpx.Client) -> None:
    install(client, "echo", {"scripts/execute.py": ECHO})
    assert not client.post("/api/tools/skill:echo/disable").json()["enabled"]
    assert not client.get("/api/skills/echo").json()["enabled"]
    assert error_of(call(client, "skill:echo")) == (409, "ToolError", "TOOL_DISABLED")
    assert client.get("/api/tools/stats").json()["disabledTools"] == 1
    assert client.post("/api/skills/echo/enable").json()["enabled"]
    assert call(client, "skill:echo").json()["success"]
    client.post("/api/tools/calculate/disable").raise_for_status()
    assert error_of(call(client, "calculate", {"expression": "1"})) == (409, "ToolError", "TOOL_DISABLED")
    client.post("/api/tools/calculate/enable").raise_for_status()


@pytest.mark.requirement("D14")
def test_instructions_are_refused_if_direct_mode_is_off(client: httpx.Client) -> None:
    install(client, "words", body="Words.")
    client.patch("/api/config", json={"enableDirectMode": False}).raise_for_status()
    for response in (
        call(client, "skill:words"),
        call(client, "read-skill", {"name": "words"}),
        client.post("/api/skills/words/execute", json={}),
    ):
        assert error_of(response) == (409, "SkillError", "DIRECT_MODE_DISABLED")


@pytest.mark.requirement("F11")
def test_a_repeated_call_returns_a_notice(client: httpx.Client) -> None:
    for _ in range(2):
        assert "x-apex-notice" not in call(client, "calculate", {"expression": "1"}, conversation="c").headers
    assert (
        "3 times in a row" in call(client, "calculate", {"expression": "1"}, conversation="c").headers["x-apex-notice"]
    )
    assert "x-apex-notice" not in call(client, "calculate", {"expression": "1"}).headers


# ------------------------------------------------------------------------------------------------------ approvals
@pytest.mark.requirement("B16")
@pytest.mark.requirement("B15")
def test_a_dangerous_skill_needs_approval_and_runs_once(client: httpx.Client) -> None:
    install(client, "wipe", {"scripts/execute.py": ECHO}, dangerous=True, confirm="Really wipe everything?")
    first = client.post("/api/skills/wipe/execute", json={"input": {"a": 1}})
    assert error_of(first) == (409, "SkillError", "CONFIRMATION_REQUIRED")
    details = first.json()["details"]
    assert (details["confirm"], details["skillName"]) == ("Really wipe everything?", "wipe")
    id = details["approvalId"]
    assert [item["id"] for item in client.get("/api/approvals").json()] == [id]
    early = client.post("/api/skills/wipe/execute", json={"input": {"a": 1}, "approval": id})
    assert error_of(early) == (403, "SkillError", "APPROVAL_INVALID")
    assert client.get("/api/executions").json()["total"] == 0
    assert client.post(f"/api/approvals/{id}", json={"approve": True}).json()["state"] == "approved"
    for wrong in ({"input": {"a": 2}}, {"input": {"a": 1}, "args": ["x"]}, {"input": {"a": 1}, "files": ["x"]}):
        refused = client.post("/api/skills/wipe/execute", json={**wrong, "approval": id})
        assert error_of(refused) == (403, "SkillError", "APPROVAL_INVALID")
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        send = [
            pool.submit(client.post, "/api/skills/wipe/execute", json={"input": {"a": 1}, "approval": id})
            for _ in range(8)
        ]
        answers = [future.result() for future in send]
    ran = [answer for answer in answers if answer.status_code == 200]
    assert len(ran) == 1
    assert client.get("/api/executions").json()["total"] == 1
    record = client.get(f"/api/executions/{ran[0].json()['id']}").json()
    assert (record["state"], record["skill"], "input" in record and record["input"]) == ("completed", "wipe", None)
    assert error_of(client.post("/api/approvals/none", json={"approve": True})) == (
        404,
        "RequestError",
        "APPROVAL_NOT_FOUND",
    )


@pytest.mark.requirement("B16")
def test_a_content_change_or_an_uninstall_invalidates_an_approval(client: httpx.Client) -> None:
    install(client, "wipe", {"scripts/execute.py": ECHO}, dangerous=True)
    id = call(client, "skill:wipe").json()["details"]["approvalId"]
    client.post(f"/api/approvals/{id}", json={"approve": True}).raise_for_status()
    install(client, "wipe", {"scripts/execute.py": "print('worse')\n"}, dangerous=True)
    assert error_of(call(client, "skill:wipe", approval=id)) == (403, "SkillError", "APPROVAL_INVALID")
    client.delete("/api/skills/wipe").raise_for_status()
    assert client.get("/api/approvals").json() == []
    assert error_of(client.post(f"/api/approvals/{id}", json={"approve": True})) == (
        404,
        "RequestError",
        "APPROVAL_NOT_FOUND",
    )


@pytest.mark.requirement("B16")
def test_every_way_to_run_a_dangerous_skill_needs_approval(client: httpx.Client) -> None:
    files = {"scripts/helper.py": "print('helped')\n"}
    install(client, "pack", files, dangerous=True)
    calls: list[tuple[str, dict[str, Any]]] = [
        ("/api/skills/pack/execute", {"script": "scripts/helper.py"}),
        ("/api/skills/pack/execute", {"mode": "sandbox"}),
        ("/api/skills/pack/execute", {"args": ["x"], "wait": False}),
        ("/api/tools/run-skill/execute", {"input": {"name": "pack", "script": "scripts/helper.py"}}),
    ]
    for path, body in calls:
        refused = client.post(path, json=body)
        assert error_of(refused) == (409, "SkillError", "CONFIRMATION_REQUIRED"), (path, body)
    path, body = calls[-1]
    id = client.post(path, json=body).json()["details"]["approvalId"]
    client.post(f"/api/approvals/{id}", json={"approve": True}).raise_for_status()
    assert client.post(path, json={**body, "approval": id}).json()["stdout"] == "helped\n"
    assert client.post("/api/skills/pack/execute", json={}).json()["mode"] == "direct", "reading needs no approval"


# ---------------------------------------------------------------------------------------------------- command line
def test_the_command_line_lists_shows_and_runs_tools(apex: Apex, tmp_path: Path) -> None:
    assert apex("tools", "list").code == 1  # there is no data directory yet
    assert apex("tools", "run", "calculate", "--input", '{"expression": "1"}').code == 0
    listed = apex("tools", "list", "--json").json
    assert [tool["id"] for tool in listed["tools"]] == BUILT_IN
    assert "calculate" in apex("tools", "list").out
    assert "expression" in apex("tools", "show", "calculate").out
    assert apex("tools", "run", "calculate", "--input", '{"expression": "6*7"}').out == "42\n"
    written = apex("tools", "run", "file-write", "--input", '{"path": "a.txt", "content": "hi"}', "--json")
    assert written.json == {"success": True, "path": "a.txt", "bytes": 2}
    assert apex("tools", "run", "file-read", "--input", '{"path": "a.txt"}').out == "hi\n"
    assert apex("tools", "run", "list-files").out.split("\t")[:3] == ["a.txt", "file", "2"]
    assert apex("tools", "run", "vector-search", "--input", '{"query": "x"}').err == "No results.\n"
    assert apex("tools", "run", "calculate", "--input", '{"expression": "2^100"}').out == f"{2**100}\n"
    assert apex("tools", "show", "stats").code == 1
    wrong = apex("tools", "run", "none")
    assert (wrong.code, "apex tools list" in wrong.err) == (1, True)
    bad = apex("tools", "run", "calculate", "--input", '{"expression": "1/0"}')
    assert bad.code == 1
    assert "zero" in bad.err


def test_the_command_line_shows_all_of_a_run_of_code(apex: Apex, tmp_path: Path) -> None:
    def run(code: str, *options: str) -> CommandResult:
        return apex("tools", "run", "run-code", "--input", json.dumps({"language": "python", "code": code}), *options)

    missing = run("import pandas")
    assert (missing.code, missing.out) == (1, "")
    assert "ModuleNotFoundError: No module named 'pandas'\n" in missing.err
    assert "line 1, in <module>" in missing.err
    assert "apex packages install data" in missing.err
    made = run("import sys\nprint('said')\nsys.stderr.write('warned\\n')\nopen('a.txt', 'w').write('xx')")
    assert (made.code, made.out) == (0, "said\n")
    assert made.err.startswith("warned\n1 file stored; save them with: apex runs files ")
    assert made.err.endswith("  a.txt  2 bytes\n")
    id = made.err.partition("apex runs files ")[2].split()[0]
    assert apex("runs", "files", id, "--out", tmp_path / "saved").code == 0
    assert (tmp_path / "saved/a.txt").read_text() == "xx"
    quiet = run("pass")
    assert (quiet.code, quiet.out, quiet.err) == (0, "", "")


def test_the_command_line_calls_tools_in_a_workspace(apex: Apex) -> None:
    code = json.dumps(
        {"language": "python", "code": "f = open('n.txt', 'a+')\nf.write('x')\nf.seek(0)\nprint(f.read())"}
    )
    assert apex("tools", "run", "run-code", "--input", code, "--workspace", "w1").out == "x\n"
    assert apex("tools", "run", "run-code", "--input", code, "--workspace", "w1").out == "xx\n"
    assert apex("tools", "run", "file-read", "--input", '{"path": "n.txt"}', "--workspace", "w1").out == "xx\n"
    refused = apex("tools", "run", "list-files", "--workspace", "../w1")
    assert (refused.code, "is not a valid id of a workspace" in refused.err) == (1, True)


@pytest.mark.requirement("B16")
def test_the_command_line_approves_with_yes_and_suggests_it_otherwise(apex: Apex, tmp_path: Path) -> None:
    folder = write_skill(tmp_path, "wipe", files={"scripts/execute.py": ECHO}, dangerous=True, confirm="Sure?")
    apex("skills", "install", str(folder))
    refused = apex("skills", "run", "wipe")
    assert refused.code == 3
    assert "Sure?" in refused.err
    assert "--yes" in refused.err
    assert apex("skills", "run", "wipe", "--json").code == 3
    assert apex("skills", "run", "wipe", "--yes").out == "{}\n"
    assert apex("tools", "run", "skill:wipe", "--yes", "--json").json["success"]
    fails = {"scripts/execute.py": "import sys\nprint('said')\nsys.exit('why')"}
    apex("skills", "install", str(write_skill(tmp_path, "fails", files=fails)))
    failed = apex("tools", "run", "skill:fails")
    assert (failed.code, failed.out) == (1, "said\n")
    assert failed.err.startswith("why\nwhy (EXIT_NONZERO, exit code 1, ")
    assert apex("skills", "run", "wipe", "--input", '{"once": "more"}').code == 3
    (pending,) = apex("approvals", "list", "--json").json
    assert "wipe" in apex("approvals", "list").out
    detail = apex("approvals", "show", pending["id"], "--json").json
    assert {key: detail[key] for key in pending} == pending
    assert detail["call"] in apex("approvals", "show", pending["id"]).out
    assert apex("approvals", "show", "no-such-id").code == 1
    assert apex("approvals", "deny", pending["id"], "--json").json["state"] == "denied"
    assert apex("approvals", "show", pending["id"], "--json").json["call"] == ""
    assert "no longer stored" in apex("approvals", "show", pending["id"]).out
    assert "Nothing needs approval" in apex("approvals", "list").err


@pytest.mark.requirement("B16")
@pytest.mark.parametrize(
    ("typed", "code", "state", "begin"),
    [
        ("y\n", 0, "used", take_terminal),
        ("n\n", 3, "denied", take_terminal),
        ("\x04", 3, "denied", take_terminal),
        ("\x03", 130, "waiting", take_terminal),
        ("\x03", 130, "waiting", take_terminal_and_ignore_interrupts),
    ],
    ids=["yes", "no", "end", "interrupt", "interrupt that was ignored"],
)
def test_a_dangerous_call_at_a_terminal_prompts_for_approval(
    client: httpx.Client, server: Server, typed: str, code: int, state: str, begin: Callable[[], None]
) -> None:
    install(client, "wipe", {"scripts/execute.py": ECHO}, dangerous=True, confirm=f"Really {typed!r}?")
    command = [*APEX, "skills", "run", "wipe", "--url", server.url]
    terminal, child_terminal = pty.openpty()
    process = subprocess.Popen(
        command,
        stdin=child_terminal,
        stdout=child_terminal,
        stderr=child_terminal,
        start_new_session=True,
        preexec_fn=begin,
    )
    os.close(child_terminal)
    try:
        shown = ""
        while "[y/N]" not in shown:
            shown += os.read(terminal, 4096).decode()
        os.write(terminal, typed.encode())
        assert process.wait(TIMEOUT_SECONDS) == code, shown
    finally:
        process.kill()
        process.wait()
        os.close(terminal)
    assert f"Really {typed!r}?" in shown
    pending = {item["state"] for item in client.get("/api/approvals").json()}
    assert pending == ({"waiting"} if state == "waiting" else set())
