"""`apex --help`, compared with a bare start of Python."""

import sys
from pathlib import Path

import anyio

from benchmarks.measuring import Comparison, compare

GOAL = 300.0
"""Milliseconds. The ratio is printed too."""


async def run() -> list[Comparison]:
    """Compare medians of ten."""

    async def ours() -> None:
        await anyio.run_process([Path(sys.executable).with_name("apex"), "--help"])

    async def bare() -> None:
        await anyio.run_process([sys.executable, "-c", "pass"])

    comparison = await compare("apex --help", ours, "python -c pass", bare, goal=20.0, rounds=10)
    print(f"apex --help: median of ten {comparison.ours_ms:.0f} ms, limit {GOAL:.0f} ms")
    return [comparison]
