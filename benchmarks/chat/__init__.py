"""Cost of a chat request, number of concurrent streams, and leaks after disconnects."""

import asyncio
import tempfile
from pathlib import Path

from benchmarks.chat import disconnect, speed, streams, wire_formats
from benchmarks.chat.servers import running_servers
from benchmarks.measuring import Comparison


async def run(*, short: bool = False) -> list[Comparison]:
    """All measurements, compared with a plain pass-through in the same run. `short` means fewer rounds of each."""
    return await asyncio.to_thread(_run, short)


def _run(short: bool) -> list[Comparison]:
    with tempfile.TemporaryDirectory() as folder, running_servers(Path(folder)) as servers:
        return [
            *speed.measure(servers, rounds=1 if short else 4),
            *wire_formats.measure(servers, rounds=2 if short else 6),
            *streams.measure(servers, bare=not short),
            *disconnect.measure(servers, cycles=200 if short else 1_000, skill_cycles=6 if short else 40),
        ]
