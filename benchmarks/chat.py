"""What a request costs on its way through: CPU and latency against a bare pass-through in the same run."""

import asyncio
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp

from benchmarks.measuring import Comparison

REQUESTS = 400
AT_ONCE = 8
EVENTS = 20
START_SECONDS = 30
BODY = {"model": "m", "messages": [{"role": "user", "content": "Say something nice about the weather."}]}
APEX = [sys.executable, "-c", "from apexbridge.surfaces.cli.app import main; main()"]
PROGRAMS = Path(__file__).parent / "programs"
GOALS = {"plain": (2.1, 1.0), "stream": (2.0, 2.0)}
"""Ratio of CPU, and milliseconds that may be added to the median."""


async def run() -> list[Comparison]:
    """Plain answers and streams."""
    results: list[Comparison] = []
    with tempfile.TemporaryDirectory() as folder:
        async with (
            _started("upstream", str(EVENTS)) as model,
            _started("passthrough", model.url) as bare,
            _served(model.url, Path(folder)) as ours,
        ):
            for kind in ("plain", "stream"):
                results += await _compared(kind, model, bare, ours)
    return results


class Process:
    """A server in a process of its own."""

    def __init__(self, process: subprocess.Popen[str], url: str) -> None:
        self.process = process
        self.url = url

    def cpu_ms(self) -> float:
        """What it has used so far."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) * 1000 / os.sysconf("SC_CLK_TCK")


async def _compared(kind: str, model: Process, bare: Process, ours: Process) -> list[Comparison]:
    places = {"direct": model, "bare": bare, "ours": ours}
    cpu: dict[str, list[float]] = {name: [] for name in places}
    waits: dict[str, list[float]] = {name: [] for name in places}
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=AT_ONCE)) as session:
        for number in range(6):
            for name, place in places.items():
                before = place.cpu_ms()
                waited = await _many(session, place.url, kind)
                if number:  # the first round warms up
                    cpu[name].append((place.cpu_ms() - before) / REQUESTS)
                    waits[name] += waited
    told = {name: statistics.median(values) * 1000 for name, values in waits.items()}
    ratio, _ = GOALS[kind]
    own, other = statistics.median(cpu["ours"]), statistics.median(cpu["bare"])
    print(
        f"{kind}: CPU {own:.2f} ms a request, bare {other:.2f} ms; median {told['ours']:.2f} ms, "
        f"bare {told['bare']:.2f} ms, direct {told['direct']:.2f} ms ({AT_ONCE} at once)"
    )
    return [
        Comparison(
            what=f"CPU of a {kind} request",
            ours_ms=own,
            baseline="a bare pass-through",
            baseline_ms=other,
            goal=ratio,
            spread=max(cpu["ours"]) / own,
        )
    ]


async def _many(session: aiohttp.ClientSession, url: str, kind: str) -> list[float]:
    waits: list[float] = []
    limit = asyncio.Semaphore(AT_ONCE)

    async def one() -> None:
        async with limit:
            begun = time.perf_counter()
            body = BODY | ({"stream": True} if kind == "stream" else {})
            async with session.post(f"{url}/v1/chat/completions", json=body) as response:
                data = await response.read()
                if response.status != 200 or b"weather" not in data:
                    raise RuntimeError(data[:300])
            waits.append(time.perf_counter() - begun)

    await asyncio.gather(*(one() for _ in range(REQUESTS)))
    return waits


@asynccontextmanager
async def _started(program: str, *words: str) -> AsyncIterator[Process]:
    process = subprocess.Popen(  # noqa: ASYNC220
        [sys.executable, str(PROGRAMS / f"{program}.py"), *words], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    try:
        yield Process(process, process.stdout.readline().strip())
    finally:
        process.kill()
        process.wait()


@asynccontextmanager
async def _served(upstream: str, folder: Path) -> AsyncIterator[Process]:
    environment: dict[str, Any] = {**os.environ, "APEX_LLM_BASE_URL": f"{upstream}/v1", "APEX_LLM_TOOL_MODE": "native"}
    process = subprocess.Popen(  # noqa: ASYNC220
        [*APEX, "serve", "--port", "0", "--data-dir", str(folder / "data")],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        text=True,
        env=environment,
    )
    try:
        yield Process(process, await _announced(folder / "data" / "server.json"))
    finally:
        process.terminate()
        process.wait()


async def _announced(path: Path) -> str:
    for _ in range(START_SECONDS * 20):
        if path.exists():  # noqa: ASYNC240  # nothing else goes on yet
            await asyncio.sleep(2)  # what is done at a start is not what is measured
            return str(json.loads(path.read_text())["url"])  # noqa: ASYNC240
        await asyncio.sleep(0.05)
    raise RuntimeError("the server does not start")
