"""CPU time of a server with idle event streams, and what recording costs a search.

Run: python -m benchmarks.event_streams [seconds]
"""

import asyncio
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from urllib.parse import urlsplit

import httpx

from apexbridge.bridge import Bridge
from apexbridge.settings import Settings

STREAMS = (0, 1, 20)
SEARCHES = 300
COMMAND = [sys.executable, "-c", "from apexbridge.surfaces.cli.app import main; main()"]


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def idle_cost(url: str, pid: int, streams: int, seconds: float) -> float:
    """Milliseconds of CPU time a second of the server while this many streams are open."""
    address = urlsplit(url)
    async with contextlib.AsyncExitStack() as stack:
        for _ in range(streams):
            reader, writer = await asyncio.open_connection(address.hostname, address.port)
            stack.callback(writer.close)
            writer.write(f"GET /api/events HTTP/1.1\r\nHost: {address.netloc}\r\n\r\n".encode())
            await reader.readuntil(b"event: hello")
        await asyncio.sleep(2)
        begun, before = time.monotonic(), cpu_seconds(pid)
        await asyncio.sleep(seconds)
        return 1000 * (cpu_seconds(pid) - before) / (time.monotonic() - begun)


async def search_cost() -> dict[str, float]:
    """Microseconds of CPU time for each search, with and without recording."""
    costs: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as folder:
        async with Bridge.open(Settings(data_dir=Path(folder) / "data"), watch=False) as bridge:
            for name in ("warm", "not recorded", "recorded", "not recorded again", "recorded again"):
                begun = time.process_time()
                for number in range(SEARCHES):
                    await bridge.retrieval.search(f"merge file {number} of {name}", record=name.startswith("recorded"))
                costs[name] = 1e6 * (time.process_time() - begun) / SEARCHES
    return costs


def main(seconds: float) -> None:
    with tempfile.TemporaryDirectory() as folder:
        data_dir = Path(folder) / "data"
        server = subprocess.Popen(
            [*COMMAND, "serve", "--port", "0", "--data-dir", str(data_dir)], stderr=subprocess.DEVNULL
        )
        try:
            while not (data_dir / "server.json").exists():
                time.sleep(0.1)
            url = json.loads((data_dir / "server.json").read_text())["url"]
            while httpx.get(f"{url}/readyz").status_code != 200:
                time.sleep(0.2)
            time.sleep(5)
            for streams in STREAMS:
                cost = asyncio.run(idle_cost(url, server.pid, streams, seconds))
                print(f"{streams:3} idle streams: {cost:6.2f} ms of CPU time a second", flush=True)
        finally:
            server.terminate()
            server.wait()
    costs = asyncio.run(search_cost())
    for name, cost in list(costs.items())[1:]:
        print(f"search, {name}: {cost:6.0f} µs, ratio {cost / costs['not recorded']:.2f}")


if __name__ == "__main__":
    main(float(sys.argv[1]) if len(sys.argv) > 1 else 60)
