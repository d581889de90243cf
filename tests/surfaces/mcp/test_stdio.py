"""`apex mcp`: real processes, with the official client and with lines written by hand."""

import asyncio
import json
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import IO, Any

import anyio
import httpx
import mcp_types as types
import pytest
from mcp import Client
from mcp.client.stdio import StdioServerParameters

from apexbridge.surfaces.mcp.opening import HANDSHAKE_VERSIONS, opening_result
from apexbridge.surfaces.mcp.relay import MAX_LINE_BYTES
from tests.chat.live import Live
from tests.making import write_skill
from tests.surfaces.conftest import APEX, StartServer, environment
from tests.surfaces.mcp.conftest import ERAS, SLEEP
from tests.waiting import until

META = {
    "io.modelcontextprotocol/protocolVersion": "2026-07-28",
    "io.modelcontextprotocol/clientCapabilities": {},
}
CLIENT = {"capabilities": {}, "clientInfo": {"name": "test", "version": "1"}}


class Apex:
    """An `apex mcp` process; messages are lines."""

    def __init__(self, *arguments: str, **env: str) -> None:
        self.process = subprocess.Popen(
            [*APEX, "mcp", *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment(**env),
        )

    def _pipe(self, pipe: IO[bytes] | None) -> IO[bytes]:
        assert pipe is not None
        return pipe

    def send(self, *lines: bytes | dict[str, Any] | list[Any]) -> None:
        stdin = self._pipe(self.process.stdin)
        for line in lines:
            stdin.write((line if isinstance(line, bytes) else json.dumps(line).encode()) + b"\n")
        stdin.flush()

    def read(self) -> dict[str, Any]:
        line = self._pipe(self.process.stdout).readline()
        assert line, self._pipe(self.process.stderr).read().decode()
        message: dict[str, Any] = json.loads(line)
        return message

    def ask(self, line: bytes | dict[str, Any] | list[Any]) -> dict[str, Any]:
        self.send(line)
        return self.read()

    def end(self) -> tuple[bytes, bytes]:
        """Close the input; returns what is left of the output, and stderr."""
        return self.process.communicate(timeout=60)


@contextmanager
def apex_mcp(*arguments: str, **env: str) -> Iterator[Apex]:
    started = Apex(*arguments, **env)
    try:
        yield started
    finally:
        if started.process.poll() is None:
            started.process.kill()
        for pipe in (started.process.stdin, started.process.stdout, started.process.stderr):
            if pipe is not None and not pipe.closed:
                pipe.close()
        started.process.wait()


@asynccontextmanager
async def client_of(mode: str, *arguments: str, **options: Any) -> AsyncIterator[Client]:
    server = StdioServerParameters(command=sys.executable, args=[*APEX[1:], "mcp", *arguments], env=environment())
    async with Client(server, mode=mode, **options) as client:
        yield client


def request(method: str, id: Any = 1, **params: Any) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": id, "method": method, "params": {"_meta": META, **params}}


def initialize(version: str = "2025-11-25", id: Any = 0) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": id, "method": "initialize", "params": {"protocolVersion": version, **CLIENT}}


# ----------------------------------------------------------------------------------------------------------- relaying
@pytest.mark.slow
@pytest.mark.anyio
@pytest.mark.parametrize("era", [*ERAS, "auto"])
async def test_a_client_works_through_a_running_server(served: Live, era: str) -> None:
    seen: list[str | None] = []

    async def note(progress: float, total: float | None, message: str | None) -> None:
        seen.append(message)

    async def agree(context: Any, params: Any) -> types.ElicitResult:
        return types.ElicitResult(action="accept", content={"approve": True})

    async with client_of(era, "--url", served.url, elicitation_callback=agree) as client:
        assert len((await client.list_tools()).tools) == 9
        ran = await client.call_tool("run_skill", {"name": "shouter"}, progress_callback=note)
        assert ran.structured_content["stdout"] == "LOUD\n"
        await until(lambda: "completed" in seen)
        assert not (await client.call_tool("run_skill", {"name": "eraser", "input": {"by": era}})).is_error
        (read,) = (await client.read_resource("skill://guide/SKILL.md")).contents
        assert isinstance(read, types.TextResourceContents)
        assert "Greet" in read.text
        assert (await client.get_prompt("guide", {"name": "Zoë"})).messages


@pytest.mark.slow
@pytest.mark.anyio
@pytest.mark.parametrize("era", ERAS)
async def test_a_cancelled_call_ends_its_run(served: Live, era: str) -> None:
    def runs(state: str) -> int:
        answer = served.http.get("/api/executions", params={"skill": "sleeper", "state": state})
        return int(answer.json()["total"])

    async def call(client: Client) -> None:
        await client.call_tool("run_skill", {"name": "sleeper"})

    async with client_of(era, "--url", served.url) as client:
        before = runs("error")
        with anyio.CancelScope() as scope:
            async with anyio.create_task_group() as group:
                group.start_soon(call, client)
                await until(lambda: asyncio.to_thread(runs, "running"))
                scope.cancel()
        await until(lambda: asyncio.to_thread(lambda: runs("error") > before))
        assert not (await client.call_tool("run_skill", {"name": "shouter"})).is_error


def test_the_first_answers_are_those_of_the_server(served: Live) -> None:
    accept = {"accept": "application/json, text/event-stream"}
    for version in (*HANDSHAKE_VERSIONS[1:], "2099-01-01"):
        message = initialize(version)
        answer = served.http.post("/mcp", json=message, headers=accept).text
        result = json.loads(answer.partition("data: ")[2])["result"]
        assert opening_result("initialize", message["params"]) == result, version
    message = request("server/discover")
    headers = {**accept, "mcp-protocol-version": "2026-07-28", "mcp-method": "server/discover"}
    result = served.http.post("/mcp", json=message, headers=headers).json()["result"]
    assert opening_result("server/discover", message["params"]) == result


def test_bad_lines_are_answered_and_the_next_one_works(served: Live) -> None:
    with apex_mcp("--url", served.url) as apex:
        for line, code in (
            (b"nonsense", -32700),
            (b"\xff\xfe\x00", -32700),
            (b"[" * 100_000, -32600),
            ([request("tools/list")] * 2, -32600),
            (b"7", -32600),
            ({"id": 1, "method": "tools/list"}, -32600),
            ({"jsonrpc": "2.0", "id": {}, "method": "tools/list"}, -32600),
            ({"jsonrpc": "2.0", "id": 1, "method": "x", "params": [1]}, -32600),
            ({"jsonrpc": "2.0", "id": 1}, -32600),
            (b" " * 10 + b'{"jsonrpc": "2.0", "x": "' + b"y" * MAX_LINE_BYTES + b'"}', -32600),
            (request("no/such"), -32601),
            (request("tools/call", name="no_such"), -32602),
            (request("tools/call", name="ünïcode"), -32602),
            (request("resources/read", uri="skill://none/ü"), -32602),
            ({**request("tools/list"), "params": {"_meta": {**META, next(iter(META)): "2099-01-01"}}}, -32022),
        ):
            assert apex.ask(line)["error"]["code"] == code, line[:80] if isinstance(line, bytes) else line
        for order in (1, -1):  # clients write the id first or last, and wait for an answer with it
            large = request("tools/call", id=78, name="run_code", arguments={"code": "y" * 10_000_000})
            assert apex.ask(dict(list(large.items())[::order]))["id"] == 78
        apex.send(b"", b"   ", {"jsonrpc": "2.0", "method": "notifications/unknown"})
        assert len(apex.ask(request("tools/list", id="text-id"))["result"]["tools"]) == 9
        out, err = apex.end()
    assert (out, err, apex.process.returncode) == (b"", b"", 0)


def test_requests_before_the_end_of_the_input_are_answered(served: Live) -> None:
    with apex_mcp("--url", served.url) as apex:
        apex.send(initialize(), {"jsonrpc": "2.0", "method": "notifications/initialized"})
        apex.send({"jsonrpc": "2.0", "id": 1, "method": "tools/list"})
        out, _ = apex.end()
    assert sorted(json.loads(line)["id"] for line in out.splitlines()) == [0, 1]


@pytest.mark.slow
def test_a_client_that_does_not_read_does_not_keep_the_command_alive(served: Live) -> None:
    with apex_mcp("--url", served.url) as apex:
        apex.send(*(request("tools/list", id=number) for number in range(60)))  # more than a pipe holds
        assert apex.process.stdin is not None
        apex.process.stdin.close()
        assert apex.process.wait(60) == 0


def test_without_the_package_the_command_says_how_to_install_it(tmp_path: Path) -> None:
    hide = tmp_path / "hide"
    hide.mkdir()
    (hide / "sitecustomize.py").write_text(
        "import importlib.util\nfind = importlib.util.find_spec\n"
        "importlib.util.find_spec = lambda name, *a: None if name.startswith('mcp') else find(name, *a)\n"
    )
    with apex_mcp("--data-dir", str(tmp_path / "data"), PYTHONPATH=str(hide)) as apex:
        out, err = apex.end()
    assert (out, apex.process.returncode) == (b"", 1)
    assert b"pip install 'apexbridge[mcp]'" in err


# -------------------------------------------------------------------------------------------------- the data directory
@pytest.mark.slow
def test_without_a_server_the_command_opens_the_data_directory_and_others_use_it(data_dir: Path) -> None:
    write_skill(data_dir / "skills", "shouter", {"scripts/execute.py": "print('LOUD')\n"})
    call = request("tools/call", name="run_skill", arguments={"name": "shouter"})
    with apex_mcp("--data-dir", str(data_dir)) as first, apex_mcp("--data-dir", str(data_dir)) as second:
        assert first.ask(call)["result"]["structuredContent"]["stdout"] == "LOUD\n"
        assert second.ask(call)["result"]["structuredContent"]["stdout"] == "LOUD\n"
        listed = subprocess.run(
            [*APEX, "skills", "list", "--json", "--data-dir", str(data_dir)],
            capture_output=True,
            text=True,
            check=True,
            env=environment(),
        )
        assert json.loads(listed.stdout)["skills"][0]["name"] == "shouter"
        own = json.loads((data_dir / "server.json").read_text())["url"]  # only for the owner of the directory
        assert httpx.post(f"{own}/mcp", json=request("tools/list"), trust_env=False).status_code == 401
        assert first.end()[0] == b""
        assert first.process.returncode == 0
        # The second one used the first one's server; now it opens the directory itself.
        assert second.ask(call)["result"]["structuredContent"]["stdout"] == "LOUD\n"


@pytest.mark.slow
def test_a_session_goes_on_after_the_server_was_restarted(data_dir: Path, start_server: StartServer) -> None:
    server = start_server()
    with apex_mcp("--data-dir", str(data_dir)) as apex:
        apex.ask(initialize())
        apex.send({"jsonrpc": "2.0", "method": "notifications/initialized"})
        listing = {"jsonrpc": "2.0", "id": 1, "method": "tools/list"}
        assert len(apex.ask(listing)["result"]["tools"]) == 9
        assert server.stop() == 0
        start_server()
        assert len(apex.ask(listing)["result"]["tools"]) == 9


@pytest.mark.slow
@pytest.mark.parametrize("how", ["input ends", "SIGTERM", "SIGKILL"])
def test_the_runs_of_a_client_end_with_it(data_dir: Path, how: str) -> None:
    write_skill(data_dir / "skills", "sleeper", {"scripts/execute.py": SLEEP})
    token = {"_meta": {**META, "progressToken": 1}}
    with apex_mcp("--data-dir", str(data_dir)) as apex:
        apex.send({**request("tools/call"), "params": {"name": "run_skill", "arguments": {"name": "sleeper"}, **token}})
        while apex.read().get("params", {}).get("message") != "begun":
            pass
        if how == "input ends":
            assert apex.process.stdin is not None
            assert apex.process.stdout is not None
            apex.process.stdin.close()
            apex.process.stdout.close()  # a client that died reads nothing either
        else:
            apex.process.send_signal(getattr(signal, how))
        apex.process.wait(60)
    with apex_mcp("--data-dir", str(data_dir)) as after:
        ran = after.ask(request("tools/call", name="run_code", arguments={"language": "shell", "code": "echo on"}))
        assert ran["result"]["structuredContent"]["stdout"] == "on\n"


@pytest.mark.slow
def test_an_unusable_data_directory_ends_the_command_with_the_reason(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    with apex_mcp("--data-dir", str(tmp_path / "file")) as apex:
        answer = apex.ask(request("tools/list"))  # before the end of the input, after which an answer has only seconds
        _, err = apex.end()
    assert answer["error"]["code"] == -32603
    assert apex.process.returncode == 1
    assert err.strip()
