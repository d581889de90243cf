"""`apex --help` against starting Python at all."""

import sys
from pathlib import Path

import anyio

from benchmarks.measuring import Comparison, compare

GOAL = 300.0
"""Milliseconds; the ratio is shown, the promise is absolute."""


async def run() -> list[Comparison]:
    """Median of ten."""

    async def ours() -> None:
        await anyio.run_process([Path(sys.executable).with_name("apex"), "--help"])

    async def bare() -> None:
        await anyio.run_process([sys.executable, "-c", "pass"])

    found = await compare("apex --help", ours, "python -c pass", bare, goal=20.0, rounds=10)
    print(f"apex --help: median of ten {found.ours_ms:.0f} ms, promised below {GOAL:.0f} ms")
    return [found]
