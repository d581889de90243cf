"""`apex mcp` from its start to an answer, compared with a bare server of the `mcp` package."""

import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import anyio
from anyio.abc import Process
from anyio.streams.buffered import BufferedByteReceiveStream

from benchmarks.commands import APEX, environment, server
from benchmarks.measuring import Comparison, Timed, compare, within_limit

ROUNDS = 5
GOAL = 1.0
OPENING_GOAL = 4.0
"""For an answer that needs the data directory, if no server has it open."""
LIMIT_MS = 1000.0
MAX_ANSWER_BYTES = 10_000_000
BARE = [sys.executable, str(Path(__file__).parent / "programs/bare_mcp.py")]
INITIALIZE = {
    "method": "initialize",
    "params": {
        "protocolVersion": "2025-06-18",
        "capabilities": {},
        "clientInfo": {"name": "benchmark", "version": "1"},
    },
}
DISCOVER = {
    "method": "server/discover",
    "params": {
        "_meta": {
            "io.modelcontextprotocol/protocolVersion": "2026-07-28",
            "io.modelcontextprotocol/clientCapabilities": {},
        }
    },
}
LIST_TOOLS = {"method": "tools/list", "params": DISCOVER["params"]}


async def run() -> list[Comparison]:
    """Start on a data directory with the example skills, without a server and beside one."""
    with tempfile.TemporaryDirectory() as folder:
        data_dir = Path(folder) / "data"
        command = [APEX, "mcp", "--data-dir", str(data_dir)]
        with server(data_dir):
            found = await _first_answers("beside a server", command)
            found.append(await _compared("beside a server", command, LIST_TOOLS, GOAL))
        found += await _first_answers("without a server", command)
        return [*found, await _compared("without a server", command, LIST_TOOLS, OPENING_GOAL)]


async def _first_answers(what: str, command: Sequence[str]) -> list[Comparison]:
    """Answers to the first request of a client, which may come before the data directory is open."""
    comparisons = []
    for request in (INITIALIZE, DISCOVER):
        compared = await _compared(what, command, request, GOAL)
        comparisons += [compared, within_limit(compared.what, compared.ours_ms, LIMIT_MS)]
    return comparisons


async def _compared(what: str, command: Sequence[str], request: dict[str, Any], goal: float) -> Comparison:
    programs = _Programs()
    return await compare(
        f"apex mcp {what} to its answer of {request['method']}",
        programs.answer(command, request),
        "a bare server",
        programs.answer(BARE, request),
        goal=goal,
        rounds=ROUNDS,
        between=programs.end,
    )


class _Programs:
    """Servers over stdin and stdout. Their end is not timed."""

    def __init__(self) -> None:
        self._started: list[Process] = []

    def answer(self, command: Sequence[str], request: dict[str, Any]) -> Timed:
        """Start a server and wait for its answer to a request."""

        async def work() -> None:
            process = await anyio.open_process(command, stderr=None, env=environment())
            self._started.append(process)
            assert process.stdin is not None
            assert process.stdout is not None
            await process.stdin.send(json.dumps({"jsonrpc": "2.0", "id": 1, **request}).encode() + b"\n")
            answer = await BufferedByteReceiveStream(process.stdout).receive_until(b"\n", MAX_ANSWER_BYTES)
            assert "result" in json.loads(answer), answer

        return work

    async def end(self) -> None:
        while self._started:
            process = self._started.pop()
            assert process.stdin is not None
            await process.stdin.aclose()
            await process.wait()
            await process.aclose()
