"""Reading a README-sized file with the tool, compared with a plain `open().read()`."""

import statistics
import tempfile
import time
from pathlib import Path

from apexbridge.tools.builtin.file_tools import file_read
from apexbridge.tools.builtin.files.workspace import Workspace
from apexbridge.tools.registry import ToolRegistry
from benchmarks.measuring import Comparison, compare

GOAL = 20.0
ROUNDS = 5000
README = "# A project\n\nSome words about it, and 一些汉字, as a README has them.\n" * 90


async def run() -> list[Comparison]:
    """Compare; also print the median and the 99th percentile, whose limit is 10 ms."""
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "README.md"
        path.write_text(README, "utf-8")
        registry = ToolRegistry()
        registry.register(file_read(Workspace(Path(directory), lambda identity, caller: None)))
        times: list[float] = []

        async def ours() -> None:
            begun = time.perf_counter()
            result = await registry.execute("file-read", {"path": "README.md"})
            times.append((time.perf_counter() - begun) * 1000)
            assert result.data["content"] == README

        async def bare() -> None:
            with open(path, encoding="utf-8") as file:  # noqa: ASYNC230, PTH123  # the cheapest way
                assert file.read() == README

        what = f"file-read of {len(README.encode()) / 1024:.1f} KB"
        compared = await compare(what, ours, "open().read()", bare, goal=GOAL, rounds=ROUNDS)
        slowest = statistics.quantiles(times, n=100)
        print(f"{what}: p50 {slowest[49]:.3f} ms, p99 {slowest[98]:.3f} ms")
        limited = Comparison(
            what=f"p99 of {what}",
            ours_ms=slowest[98],
            baseline="the 10 ms allowed",
            baseline_ms=10,
            goal=1,
            spread=slowest[98] / slowest[49],
        )
        return [compared, limited]
