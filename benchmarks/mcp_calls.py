"""A call of a built-in tool at `/mcp`, compared with the same call at `/api/tools/ID/execute`.

One server, one connection that stays open, the two calls in turn. CPU time is that of the server process.
"""

import asyncio
import http.client
import json
import signal
import subprocess
import sys
import tempfile
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.measuring import Comparison, compare, cpu_ms

GOAL = 2.0
ROUNDS = 500
CPU_ROUNDS = 1000
VERSION = "2026-07-28"
APEX = [str(Path(sys.executable).with_name("apex"))]
LINES = "# A project\n\nSome words about it.\n" * 20


async def run() -> list[Comparison]:
    """Compare latency and CPU time of both protocol eras."""
    with tempfile.TemporaryDirectory() as directory, _server(Path(directory) / "data") as (url, pid):
        return await asyncio.to_thread(_compare_calls, url, pid)


def _compare_calls(url: str, pid: int) -> list[Comparison]:
    client = _Connection(url)
    own = client.call("/api/tools/file-write/execute", {"input": {"path": "a.md", "content": LINES}}, {})
    assert own["success"]
    session = client.open_session()

    def modern() -> None:
        meta = {
            "io.modelcontextprotocol/protocolVersion": VERSION,
            "io.modelcontextprotocol/clientCapabilities": {},
            "io.modelcontextprotocol/clientInfo": {"name": "benchmark", "version": "1"},
        }
        params = {"name": "file_read", "arguments": {"path": "a.md"}, "_meta": meta}
        headers = {"MCP-Protocol-Version": VERSION, "Mcp-Method": "tools/call", "Mcp-Name": "file_read"}
        answer = client.call("/mcp", {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}, headers)
        assert answer["result"]["structuredContent"]["content"] == LINES

    def legacy() -> None:
        params = {"name": "file_read", "arguments": {"path": "a.md"}}
        body = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
        headers = {"MCP-Protocol-Version": "2025-11-25", "Mcp-Session-Id": session}
        assert client.call("/mcp", body, headers)["result"]["structuredContent"]["content"] == LINES

    def plain() -> None:
        answer = client.call("/api/tools/file-read/execute", {"input": {"path": "a.md"}}, {})
        assert answer["content"] == LINES

    results = []
    for name, ours in ((VERSION, modern), ("2025-11-25", legacy)):
        what = f"file_read at /mcp ({name})"

        baseline = "/api/tools/file-read/execute"
        work = compare(what, _awaitable(ours), baseline, _awaitable(plain), goal=GOAL, rounds=ROUNDS)
        results.append(asyncio.run(work))
        cpu, other = _cpu(pid, ours), _cpu(pid, plain)
        results.append(
            Comparison(
                what=f"CPU of {what}",
                ours_ms=cpu,
                baseline=baseline,
                baseline_ms=other,
                goal=GOAL,
                spread=1.0,
            )
        )
    return results


def _awaitable(work: Callable[[], None]) -> Callable[[], Awaitable[None]]:
    async def run() -> None:
        work()

    return run


def _cpu(pid: int, work: Callable[[], None]) -> float:
    """Milliseconds of the server's CPU time for each call."""
    before = cpu_ms(pid)
    for _ in range(CPU_ROUNDS):
        work()
    return (cpu_ms(pid) - before) / CPU_ROUNDS


class _Connection:
    def __init__(self, url: str) -> None:
        self._connection = http.client.HTTPConnection(url.removeprefix("http://"))

    def call(self, path: str, body: Any, headers: dict[str, str]) -> Any:
        answer = self._send(path, body, headers)
        return json.loads(answer.partition(b"data: ")[2] if answer.startswith((b"event:", b"data:")) else answer)

    def open_session(self) -> str:
        client = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "b", "version": "1"}}
        self._send("/mcp", {"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": client}, {})
        session = self._session
        headers = {"MCP-Protocol-Version": "2025-11-25", "Mcp-Session-Id": session}
        self._send("/mcp", {"jsonrpc": "2.0", "method": "notifications/initialized"}, headers)
        return session

    def _send(self, path: str, body: Any, headers: dict[str, str]) -> bytes:
        accept = {"Content-Type": "application/json", "Accept": "application/json, text/event-stream"}
        self._connection.request("POST", path, json.dumps(body), {**accept, **headers})
        response = self._connection.getresponse()
        self._session = response.getheader("mcp-session-id") or ""
        return response.read()


@contextmanager
def _server(data_dir: Path) -> Iterator[tuple[str, int]]:
    command = [*APEX, "serve", "--port", "0", "--json", "--data-dir", str(data_dir)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    assert process.stdout is not None
    try:
        lines = "".join(iter(process.stdout.readline, "}\n")) + "}"
        facts = json.loads(lines)
        yield facts["url"], facts["pid"]
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(60)
        process.stdout.close()
