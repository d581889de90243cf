"""Runs in the sandbox, compared with plain processes of the same scripts, and delays of the event loop."""

import asyncio
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from apexbridge.sandbox.config import SandboxSettings
from apexbridge.sandbox.models import Job
from apexbridge.sandbox.sandbox import Sandbox
from benchmarks.measuring import Comparison, compare

ROUNDS = 20
PAUSE_SECONDS = 0.1
"""Long enough for the next warm interpreter to be ready."""
RUNS, AT_ONCE, REPEATS = 40, 4, 5
SCRIPTS = {
    "execute.js": "const input = JSON.parse(process.env.INPUT_JSON); console.log(JSON.stringify({ got: input }));",
    "execute.py": "import json, os\nprint(json.dumps({'got': json.loads(os.environ['INPUT_JSON'])}))\n",
    "execute.sh": 'echo "{\\"got\\": $INPUT_JSON}"\n',
}
GOALS = (
    ("cold", "execute.js", 1.3),
    ("cold", "execute.sh", 9),
    ("warm", "execute.js", 0.3),
    ("warm", "execute.py", 0.3),
)
Work = Callable[[], Awaitable[None]]


async def run() -> list[Comparison]:
    """All measurements of the sandbox."""
    with tempfile.TemporaryDirectory() as directory:
        folder = _scripts(Path(directory) / "skill")
        starts = [await _start(folder, kind, script, goal) for kind, script, goal in GOALS]
        return [*starts, *await _many_at_once(folder)]


def _scripts(folder: Path) -> Path:
    folder.mkdir()
    for name, text in SCRIPTS.items():
        (folder / name).write_text(text)
    return folder


async def _start(folder: Path, kind: str, script: str, goal: float) -> Comparison:
    async with _sandbox(warm=int(kind == "warm")) as sandbox:

        async def recover() -> None:
            await sandbox.warm_up()
            await asyncio.sleep(PAUSE_SECONDS)

        return await compare(
            f"a {kind} run of {script}",
            lambda: _in_sandbox(sandbox, folder, script),
            "a plain process",
            lambda: _plain(folder, script),
            goal=goal,
            rounds=ROUNDS,
            between=recover,
        )


async def _many_at_once(folder: Path) -> list[Comparison]:
    async with _sandbox(warm=1, max_concurrency=AT_ONCE) as sandbox:
        gaps: list[float] = []

        async def ours() -> None:
            gaps.append(await _largest_gap(lambda: _many(lambda: _in_sandbox(sandbox, folder, "execute.js"))))

        throughput = await compare(
            f"{RUNS} runs of execute.js, {AT_ONCE} at once",
            ours,
            "plain processes",
            lambda: _many(lambda: _plain(folder, "execute.js")),
            goal=1.1,
            rounds=REPEATS,
        )
        idle = [await _largest_gap(lambda: asyncio.sleep(0.5)) for _ in range(REPEATS)]
    gap = Comparison(
        what="largest gap of the event loop during these runs, minus idle",
        ours_ms=max(0.0, statistics.median(gaps) - statistics.median(idle)) * 1000,
        baseline="the 50 ms allowed",
        baseline_ms=50,
        goal=1,
        spread=max(gaps) / statistics.median(gaps),
    )
    return [throughput, gap]


async def _many(work: Work) -> None:
    limit = asyncio.Semaphore(AT_ONCE)

    async def one() -> None:
        async with limit:
            await work()

    await asyncio.gather(*(one() for _ in range(RUNS)))


async def _largest_gap(work: Work) -> float:
    """The longest time that the event loop was blocked during `work`."""
    largest, last = 0.0, time.perf_counter()

    async def tick() -> None:
        nonlocal largest, last
        while True:
            await asyncio.sleep(0.001)
            now = time.perf_counter()
            largest, last = max(largest, now - last), now

    ticker = asyncio.create_task(tick())
    await work()
    ticker.cancel()
    return largest


@asynccontextmanager
async def _sandbox(*, warm: int, max_concurrency: int = 2) -> AsyncIterator[Sandbox]:
    sandbox = Sandbox(SandboxSettings(path=os.environ["PATH"], warm=warm, max_concurrency=max_concurrency))
    async with sandbox.running():
        await sandbox.warm_up()
        yield sandbox


async def _in_sandbox(sandbox: Sandbox, folder: Path, script: str) -> None:
    result = await sandbox.run(Job(skill="bench", folder=folder, script=script, input={"a": 1}, timeout_ms=30_000))
    if not result.success:
        raise RuntimeError(result.error)


async def _plain(folder: Path, script: str) -> None:
    programs = {"execute.js": shutil.which("node") or "node", "execute.py": sys.executable, "execute.sh": "/bin/sh"}
    process = await asyncio.create_subprocess_exec(
        programs[script],
        str(folder / script),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={"INPUT_JSON": '{"a": 1}', "PATH": os.defpath},
    )
    await process.communicate()
    if process.returncode:
        raise RuntimeError(f"{script} exited with {process.returncode}")
