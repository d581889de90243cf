"""`apex --help` against starting Python at all."""

import subprocess
import sys
from pathlib import Path

from benchmarks.measuring import Comparison, compare

GOAL = 300.0
"""Milliseconds; the ratio is shown, the promise is absolute."""


async def run() -> list[Comparison]:
    """Median of ten."""

    async def ours() -> None:
        subprocess.run([Path(sys.executable).with_name("apex"), "--help"], capture_output=True, check=True)

    async def bare() -> None:
        subprocess.run([sys.executable, "-c", "pass"], capture_output=True, check=True)

    found = await compare("apex --help", ours, "python -c pass", bare, goal=20.0, rounds=10)
    print(f"apex --help: median of ten {found.ours_ms:.0f} ms, promised below {GOAL:.0f} ms")
    return [found]
