"""What a chat request costs on its way through, how many fit, and whether anything stays behind."""

import asyncio
import tempfile
from pathlib import Path

from benchmarks.chat import leaving, speed, streams
from benchmarks.chat.places import opened
from benchmarks.measuring import Comparison


async def run(*, short: bool = False) -> list[Comparison]:
    """Everything in turn, against a bare pass-through in the same run; the short way has fewer rounds of each."""
    return await asyncio.to_thread(_run, short)


def _run(short: bool) -> list[Comparison]:
    with tempfile.TemporaryDirectory() as folder, opened(Path(folder)) as places:
        return [
            *speed.measure(places, rounds=1 if short else 4),
            *streams.measure(places, bare=not short),
            *leaving.measure(places, cycles=200 if short else 1_000, skill_cycles=6 if short else 40),
        ]
