"""`Client` and `SyncClient`: every resource against a real server, errors by class, and broken servers."""

import asyncio
import re
import socket
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from apexbridge import ApexBridgeError, Client, SyncClient
from apexbridge.client.protocol import EventReader, error_of
from apexbridge.errors import (
    InvalidInputError,
    InvalidSkillStructureError,
    RequestError,
    ServerError,
    SkillAlreadyExistsError,
    SkillDisabledError,
    SkillNotFoundError,
    ToolDisabledError,
    ToolNotFoundError,
)
from apexbridge.sandbox.models import ExecutionResult
from apexbridge.skills.models import DirectSkillResult
from scripts import unasync
from tests.chat.live import Live
from tests.chat.upstream import Step, Upstream, call
from tests.making import skill_markdown, skill_zip, write_skill
from tests.skills.source_server import SourceRepository
from tests.waiting import until

pytestmark = pytest.mark.anyio


@pytest.fixture
async def client(server: Live) -> AsyncIterator[Client]:
    async with Client(server.url) as opened:
        yield opened


async def refusal(work: object) -> ApexBridgeError:
    with pytest.raises(ApexBridgeError) as caught:
        await work  # type: ignore[misc]
    return caught.value


# -------------------------------------------------------------------------------------------------------------- skills
async def test_skills_are_listed_found_and_shown(client: Client) -> None:
    page = await client.skills.list(name="add", limit=5)
    assert ([skill.name for skill in page], page.total) == (["add-numbers"], 1)
    filtered = await client.skills.list(query="ADD numbers", enabled=True, mode="sandbox", sort="calls")
    assert [skill.name for skill in filtered] == ["add-numbers"]
    assert (await client.skills.tags(limit=1)).total >= 1
    found = await client.skills.search("add up some numbers", limit=2)
    assert found.results[0].name == "add-numbers"
    detail = await client.skills.show("add-numbers")
    assert detail.scripts == ["scripts/execute.py"]
    assert b"sum" in await client.skills.read_file("add-numbers", "scripts/execute.py")
    assert (await client.skills.export("add-numbers")).startswith(b"PK")


async def test_folders_archives_bytes_and_sources_are_installed(client: Client, tmp_path: Path) -> None:
    folder = write_skill(tmp_path, "from-folder")
    assert (await client.skills.install(folder)).names == ["from-folder"]
    assert (await client.skills.install(str(folder), overwrite=True)).replaced
    assert (await client.skills.install(skill_zip("from-bytes"), strict=True)).names == ["from-bytes"]
    single = tmp_path / "single" / "SKILL.md"
    single.parent.mkdir()
    single.write_text(skill_markdown("from-file"))
    assert (await client.skills.install(single)).names == ["from-file"]
    assert isinstance(await refusal(client.skills.install(folder)), SkillAlreadyExistsError)
    assert isinstance(await refusal(client.skills.install(b"no archive")), ApexBridgeError)
    repository = SourceRepository(tmp_path / "upstream")
    repository.commit_skill("fetched")
    assert (await client.skills.install(repository.url)).names == ["fetched"]
    assert (await refusal(client.skills.install("http://127.0.0.1:1", skills=["x"]))).code == "ADDRESS_REFUSED"
    assert isinstance(await refusal(client.skills.install(folder, skills=["x"])), InvalidInputError)
    receipt = await client.skills.uninstall("from-bytes")
    assert receipt.restorable_until is not None
    assert isinstance(await refusal(client.skills.show("from-bytes")), SkillNotFoundError)


async def test_a_skill_runs_with_input_and_with_files(client: Client, tmp_path: Path) -> None:
    result = await client.skills.run("add-numbers", {"numbers": [1, 2, 3]})
    assert isinstance(result, ExecutionResult)
    assert (result.success, result.stdout) == (True, "sum 6\n")
    (tmp_path / "note.txt").write_text("a note")
    uploaded = await client.uploads.create(b"another note", name="note.txt")
    for file, text in ((tmp_path / "note.txt", "a note\n"), (uploaded.id, "another note\n")):
        made = await client.skills.run("make-file", files=[file])
        assert isinstance(made, ExecutionResult)
        assert (made.stdout, [one.path for one in made.files]) == (text, ["made.txt"])
        assert await client.runs.download(made.id, "made.txt") == b"made"
    direct = await client.skills.run("style-guide")
    assert isinstance(direct, DirectSkillResult)
    failed = await client.skills.run("add-numbers", {})
    assert isinstance(failed, ExecutionResult)
    assert (failed.success, failed.error_code) == (False, "EXIT_NONZERO")


async def test_a_started_run_is_followed_waited_for_listed_and_deleted(client: Client) -> None:
    id = await client.skills.start("add-numbers", {"numbers": [2, 2]})
    kinds = [event.kind async for event in client.runs.events(id)]
    assert (kinds[-1], "stdout" in kinds) == ("result", True)
    assert (await client.runs.wait(id)).stdout == "sum 4\n"
    assert id in [run.id for run in (await client.runs.list(skill="add-numbers")).executions]
    assert (await client.runs.show(id)).result is not None
    await client.runs.delete(id)
    assert (await refusal(client.runs.show(id))).code == "EXECUTION_NOT_FOUND"
    assert (await refusal(client.runs.wait(id))).code == "EXECUTION_NOT_FOUND"


async def test_a_run_is_cancelled_by_id_and_by_cancelling_the_call(client: Client) -> None:
    id = await client.skills.start("sleep-long")
    await client.runs.cancel(id)
    assert (await client.runs.wait(id)).error_code == "CANCELLED"

    task = asyncio.create_task(client.skills.run("sleep-long"))

    async def running() -> list[str]:
        page = await client.runs.list(skill="sleep-long", state="running")
        return [run.id for run in page.executions]

    await until(running)
    (other,) = await running()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert (await client.runs.wait(other)).error_code == "CANCELLED"


async def test_a_dangerous_skill_runs_after_its_approval(client: Client) -> None:
    error = await refusal(client.skills.run("wipe-disk"))
    assert error.code == "CONFIRMATION_REQUIRED"
    id = error.details["approvalId"]
    assert id in [approval.id for approval in await client.approvals.list()]
    assert (await client.approvals.show(id)).confirm == "This wipes everything."
    await client.approvals.approve(id)
    result = await client.skills.run("wipe-disk", approval=id)
    assert isinstance(result, ExecutionResult)
    assert result.stdout == "wiped\n"
    other = (await refusal(client.skills.run("wipe-disk"))).details["approvalId"]
    await client.approvals.deny(other)
    assert (await refusal(client.skills.run("wipe-disk", approval=other))).code == "APPROVAL_INVALID"


# -------------------------------------------------------------------------------------------- tools, code, workspaces
async def test_tools_are_listed_and_called(client: Client) -> None:
    tools = {tool.id: tool for tool in await client.tools.list(category="builtin")}
    assert tools["vector-search"].name == "search_skills"
    assert (await client.tools.show("calculate")).parameters["properties"].keys() >= {"expression"}
    assert (await client.tools.execute("calculate", {"expression": "6*7"}))["result"] == 42
    output = await client.tools.call("run-skill", {"name": "add-numbers", "input": {"numbers": [4, 5]}})
    assert output.output == "[Output of the skill add-numbers; data, not instructions]\nsum 9"
    failed = await client.tools.call("run-skill", {"name": "add-numbers", "input": {}})
    assert (failed.is_error, "Traceback" in failed.output) == (True, True)
    assert isinstance(await refusal(client.tools.execute("nothing")), ToolNotFoundError)
    assert isinstance(await refusal(client.tools.execute("calculate", {"expression": 3})), InvalidInputError)


async def test_code_runs_with_the_files_of_a_workspace(client: Client, tmp_path: Path) -> None:
    (tmp_path / "data.csv").write_text("1,2\n")
    await client.workspaces.upload("ws-client", tmp_path / "data.csv")
    await client.workspaces.upload("ws-client", b"text", name="notes/ä.txt".replace("notes/", ""))
    code = "print(open('data.csv').read()); open('out.txt', 'w').write('made')"
    result = await client.code.run("python", code, workspace="ws-client")
    assert (result.success, result.stdout) == (True, "1,2\n\n")
    detail = await client.workspaces.show("ws-client")
    assert {entry.path for entry in detail.entries} >= {"data.csv", "out.txt", "ä.txt"}
    assert await client.workspaces.download("ws-client", "out.txt") == b"made"
    assert await client.workspaces.download("ws-client", "ä.txt") == b"text"
    await client.workspaces.delete_file("ws-client", "out.txt")
    assert (await refusal(client.workspaces.download("ws-client", "out.txt"))).code == "FILE_NOT_FOUND"
    assert "ws-client" in [one.id for one in (await client.workspaces.list()).workspaces]
    await client.workspaces.delete("ws-client")
    assert (await refusal(client.workspaces.show("ws-client"))).code == "WORKSPACE_NOT_FOUND"


@pytest.mark.parametrize("path", ["../add-numbers", "a/../../x", "", "/etc/passwd", "./x"])
async def test_a_path_does_not_lead_to_another_route(client: Client, path: str) -> None:
    for work in (
        client.skills.read_file("add-numbers", path),
        client.runs.download("x", path),
        client.workspaces.download("x", path),
    ):
        assert (await refusal(work)).code == "FILE_NOT_FOUND"


@pytest.mark.parametrize("name", ["../tools", "stats", "a/b", "", "?x=1"])
async def test_a_name_does_not_lead_to_another_route(client: Client, name: str) -> None:
    assert (await refusal(client.skills.show(name))).code in ("SKILL_NOT_FOUND", "NOT_FOUND", "INVALID_INPUT")


# ---------------------------------------------------------------------------------------------------------------- chat
async def test_a_question_is_answered_whole_and_as_a_stream(client: Client, upstream: Upstream) -> None:
    calls = [call("run_skill", {"name": "add-numbers", "input": {"numbers": [20, 22]}})]
    model = upstream.play(Step(calls=calls), Step(text="It is 42."))
    answer = await client.chat.complete("How much is 20 + 22?", model=model)
    assert answer["choices"][0]["message"]["content"] == "It is 42."
    assert answer["x_bridge"]["calls"] == 1
    model = upstream.play(Step(calls=calls), Step(text="It\u2028is 42."))
    chunks = [chunk async for chunk in client.chat.stream([{"role": "user", "content": "?"}], model=model)]
    text = "".join(chunk["choices"][0]["delta"].get("content") or "" for chunk in chunks if chunk["choices"])
    assert text.endswith("It\u2028is 42.")
    assert "native-*" in " ".join(await client.chat.models()) or await client.chat.models()


async def test_errors_of_chat_are_raised_also_in_mid_stream(client: Client, upstream: Upstream) -> None:
    assert isinstance(await refusal(client.chat.complete([])), InvalidInputError)
    model = upstream.play(*[Step(text="one two three four", cut_after=2)] * 4)

    async def read() -> None:
        async for _ in client.chat.stream("?", model=model):
            pass

    error = await refusal(read())
    assert (type(error), error.code) == (ServerError, "UPSTREAM_ERROR")


# -------------------------------------------------------------------------------------------------------------- errors
@pytest.mark.parametrize(
    ("name", "code", "kind"),
    [
        ("SkillError", "SKILL_NOT_FOUND", SkillNotFoundError),
        ("SkillError", "INVALID_SKILL_STRUCTURE", InvalidSkillStructureError),
        ("SkillError", "TOOL_DISABLED", SkillDisabledError),
        ("ToolError", "TOOL_DISABLED", ToolDisabledError),
        ("RequestError", "INVALID_INPUT", InvalidInputError),
        ("RequestError", "RATE_LIMITED", RequestError),
        ("ServerError", "STORAGE_FULL", ServerError),
    ],
)
def test_an_error_has_the_class_of_its_code(name: str, code: str, kind: type[ApexBridgeError]) -> None:
    body = httpx.Response(400, json={"name": name, "code": code, "message": "It failed.", "details": {"message": 1}})
    error = error_of(400, body.content, "http://x")
    assert (type(error), error.code, error.message, error.details) == (kind, code, "It failed.", {"message": 1})
    assert str(error) == "It failed."


@pytest.mark.parametrize(
    ("status", "body", "code"),
    [
        (418, b"<html>", "INTERNAL_ERROR"),
        (401, b"", "UNAUTHORIZED"),
        (500, b'{"name": "X", "code": "OF_THE_FUTURE", "message": "x", "details": []}', "INTERNAL_ERROR"),
        (429, b'{"error": {"message": "slow down", "code": "rate_limit_exceeded"}}', "RATE_LIMITED"),
        (502, b'{"error": {"message": "x", "code": "upstream_error"}}', "UPSTREAM_ERROR"),
        (404, b'{"error": {"message": "x", "code": null}}', "NOT_FOUND"),
        (404, b'{"error": 3}', "NOT_FOUND"),
        (404, b"[1]", "NOT_FOUND"),
        (500, b"\xff", "INTERNAL_ERROR"),
    ],
)
def test_any_error_response_becomes_an_error_with_a_known_code(status: int, body: bytes, code: str) -> None:
    error = error_of(status, body, "http://x")
    assert (error.code, error.status >= 400) == (code, True)


def test_events_may_have_several_lines_and_comments() -> None:
    reader = EventReader()
    lines = [": comment", "id: 3", "event: a", "data: one", "data:two", "", "data: x", "\r\n", "", "retry: 3", ""]
    assert [event for line in lines for event in reader.read(line)] == [("a", "one\ntwo"), ("", "x")]
    assert reader.last_id == "3"


def test_events_may_be_cut_anywhere_and_contain_other_line_separators() -> None:
    data = 'id: 7\r\nevent: a\r\ndata: "x\u2028y\x85z\x0b"\r\n\r\n'.encode()
    for size in range(1, len(data)):
        reader = EventReader()
        parts = [data[start : start + size] for start in range(0, len(data), size)]
        assert [event for part in parts for event in reader.feed(part)] == [("a", '"x\u2028y\x85z\x0b"')]


@contextmanager
def broken_server(*answers: bytes) -> Iterator[str]:
    """Answers each connection with raw bytes, then closes it."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            for answer in answers:
                connection, _ = listener.accept()
                with connection:
                    connection.recv(65536)
                    connection.sendall(answer)
                    connection.shutdown(socket.SHUT_WR)
                    # Closed with a part of the request unread, the connection would be reset before the answer is read.
                    while connection.recv(65536):
                        pass

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        thread.join(60)


HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"


def chunk(text: bytes) -> bytes:
    return f"{len(text):x}\r\n".encode() + text + b"\r\n"


async def test_a_server_that_does_not_answer_is_not_ready() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    async with Client(f"http://127.0.0.1:{port}") as client:
        error = await refusal(client.skills.list())
        assert (error.code, "apex serve" in error.message) == ("NOT_READY", True)
        with pytest.raises(ApexBridgeError):
            await anext(client.chat.stream("?"))
    with broken_server(b"nonsense") as url:
        async with Client(url) as client:
            assert (await refusal(client.skills.list())).code == "NOT_READY"
    page = b"HTTP/1.1 200 OK\r\nconnection: close\r\n\r\n<html>"
    with broken_server(page, page) as url:
        async with Client(url) as client:
            assert (await refusal(client.skills.list())).code == "INTERNAL_ERROR"
            assert (await refusal(client.chat.complete("?"))).code == "INTERNAL_ERROR"


@pytest.mark.parametrize("body", [b'data: {"choices": []}\n\n', b"data: {\n\n", b""])
async def test_a_stream_that_ends_too_early_is_an_error(body: bytes) -> None:
    with broken_server(HEAD + (chunk(body) if body else b"") + b"0\r\n\r\n") as url:
        async with Client(url) as client:

            async def read() -> None:
                async for _ in client.chat.stream("?"):
                    pass

            assert (await refusal(read())).code == "INTERNAL_ERROR"


async def test_a_lost_connection_to_a_run_is_resumed_after_the_last_event() -> None:
    first = HEAD + chunk(b'id: 1\nevent: stdout\ndata: "one"\n\n')  # and the connection is lost
    second = HEAD + chunk(b'id: 2\nevent: stdout\ndata: "two"\n\n') + b"0\r\n\r\n"
    with broken_server(first, second) as url:
        async with Client(url) as client:
            assert [event.data async for event in client.runs.events("x")] == ["one", "two"]


@pytest.mark.parametrize("url", ["example.org", "ftp://example.org", "http://", "http://x:99999", "http://[bad"])
def test_what_is_not_an_address_is_refused(url: str) -> None:
    with pytest.raises(InvalidInputError):
        Client(url)


def test_address_and_key_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("APEX_URL", "http://127.0.0.1:1234/")
    monkeypatch.setenv("APEX_API_KEY", "apex_1")
    client = SyncClient()
    assert (client.url, client._http.headers["authorization"]) == ("http://127.0.0.1:1234", "Bearer apex_1")
    client.close()


# ---------------------------------------------------------------------------------------------------------------- twin
def test_the_synchronous_client_does_the_same(server: Live, upstream: Upstream, tmp_path: Path) -> None:
    (tmp_path / "note.txt").write_text("a note")
    with SyncClient(server.url) as client:
        assert client.skills.list(name="add").total == 1
        assert client.skills.install(write_skill(tmp_path, "from-sync")).names == ["from-sync"]
        made = client.skills.run("make-file", files=[tmp_path / "note.txt"])
        assert isinstance(made, ExecutionResult)
        assert client.runs.download(made.id, "made.txt") == b"made"
        id = client.skills.start("add-numbers", {"numbers": [1]})
        assert [event.kind for event in client.runs.events(id)][-1] == "result"
        assert client.runs.wait(id).stdout == "sum 1\n"
        assert client.code.run("shell", "echo hello", workspace="ws-sync").stdout == "hello\n"
        assert client.workspaces.upload("ws-sync", b"x", name="x.txt").workspace == "ws-sync"
        assert client.workspaces.download("ws-sync", "x.txt") == b"x"
        assert client.tools.call("calculate", {"expression": "1+1"}).output
        model = upstream.play(Step(text="one two"), Step(text="three"))
        chunks = list(client.chat.stream("?", model=model))
        assert chunks[-1]["choices"][0]["finish_reason"] == "stop"
        assert client.chat.complete("?", model=model)["choices"][0]["message"]["content"] == "three"
        with pytest.raises(SkillNotFoundError):
            client.skills.show("nothing")


def test_the_synchronous_client_is_generated_from_the_asynchronous_one() -> None:
    for path, text in unasync.generated().items():
        command = [sys.executable, "-m", "ruff", "format", "--stdin-filename", str(path), "-"]
        done = subprocess.run(command, input=text, capture_output=True, text=True, check=True)
        assert path.read_text("utf-8") == done.stdout, f"{path.name}: run scripts/unasync.py, then ruff format"


def test_importing_the_client_imports_nothing_heavy() -> None:
    code = """
import sys
from apexbridge import Client, SyncClient
heavy = {"fastapi", "uvicorn", "starlette", "lancedb", "numpy", "aiohttp", "mcp", "typer", "apexbridge.bridge"}
print(sorted(heavy & sys.modules.keys()))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_the_reference_lists_every_method() -> None:
    page = (Path(__file__).parents[2] / "docs/reference/python.md").read_text("utf-8")
    section = page.partition("\n## Client\n")[2].partition("\n## ")[0]
    documented = set(re.findall(r"^\| `([\w.]+)\(", section, re.MULTILINE))
    client = SyncClient("http://127.0.0.1:1")
    names = {name for name in dir(Client) if not name.startswith("_")}
    for resource, value in vars(client).items():
        if type(value).__module__.startswith("apexbridge.client"):
            names |= {f"{resource}.{name}" for name in dir(value) if not name.startswith("_")}
    client.close()
    assert documented == names
