"""Latency of /healthz while four hostile skills run concurrently for half a minute."""

import asyncio
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx

from benchmarks.measuring import Comparison

IDLE_SECONDS, ATTACK_SECONDS = 5, 30
ATTACKERS = {
    "fork-bomb": (
        "execute.py",
        "import os, time\nwhile True:\n    try:\n        os.fork()\n    except OSError:\n        time.sleep(0.001)\n",
    ),
    "memory-hog": ("execute.py", "taken = []\nwhile True:\n    taken.append(bytearray(b'x' * (8 << 20)))\n"),
    "output-flood": ("execute.sh", "while :; do head -c 65536 /dev/zero; done\n"),
    "disk-filler": (
        "execute.py",
        "import os\n"
        "while True:\n"
        "    try:\n"
        "        for number in range(10**6):\n"
        "            with open(f'f{number}', 'wb') as file:\n"
        "                file.write(b'x' * 65536)\n"
        "    except OSError:\n"
        "        for name in [name for name in os.listdir('.') if name.startswith('f')]:\n"
        "            os.unlink(name)\n",
    ),
}
PROBE = """
import http.client, json, sys, time, urllib.parse
address = urllib.parse.urlsplit(sys.argv[1])
link = http.client.HTTPConnection(address.hostname, address.port, timeout=60)
times, until = [], time.monotonic() + float(sys.argv[2])
while time.monotonic() < until:
    begun = time.perf_counter()
    link.request("GET", "/healthz")
    answer = link.getresponse()
    answer.read()
    assert answer.status == 200
    times.append((time.perf_counter() - begun) * 1000)
    time.sleep(0.01)
print(json.dumps(times))
"""


async def run() -> list[Comparison]:
    """The 99th percentile of /healthz, idle and under attack. A failed call fails the benchmark."""
    with tempfile.TemporaryDirectory() as directory, _served(Path(directory) / "data") as address:
        async with httpx.AsyncClient(base_url=address, timeout=60, trust_env=False) as client:
            for name in ATTACKERS:
                archive = await asyncio.to_thread(_packed, Path(directory), name)
                headers = {"content-type": "application/zip"}
                (await client.post("/api/skills/install", content=archive, headers=headers)).raise_for_status()
            idle = await asyncio.to_thread(_probe, address, IDLE_SECONDS)
            attack = asyncio.gather(*(_keep_attacking(client, name) for name in ATTACKERS))
            under = await asyncio.to_thread(_probe, address, ATTACK_SECONDS)
            killed = await attack
    return [
        Comparison(
            what=f"/healthz p99 under attack, {len(under)} calls, none failed, {sum(killed)} attacks killed",
            ours_ms=_percentile(under),
            baseline="idle",
            baseline_ms=_percentile(idle),
            goal=10,
            spread=max(under) / _percentile(under),
        )
    ]


def _packed(folder: Path, name: str) -> bytes:
    script, text = ATTACKERS[name]
    skill = folder / name
    (skill / "scripts").mkdir(parents=True)
    (skill / "SKILL.md").write_text(f"---\nname: {name}\ndescription: Attacks the server.\n---\n")
    (skill / "scripts" / script).write_text(text)
    return Path(shutil.make_archive(str(folder / f"{name}-package"), "zip", folder, name)).read_bytes()


async def _keep_attacking(client: httpx.AsyncClient, name: str) -> int:
    """Start the skill again whenever it was killed, without reading its output; returns how often."""
    until, killed = time.monotonic() + ATTACK_SECONDS, 0
    while (left := until - time.monotonic()) > 1:
        call = {"timeout": int(left * 1000), "wait": False}
        identity = (await client.post(f"/api/skills/{name}/execute", json=call)).json()["id"]
        while True:
            await asyncio.sleep(0.25)
            running = await client.get(f"/api/executions?skill={name}&state=running&limit=1")
            if not running.json()["total"]:
                break
        await client.delete(f"/api/executions/{identity}")
        killed += 1
    return killed


def _probe(address: str, seconds: float) -> list[float]:
    """Latencies of /healthz, measured in a separate process, so that work of this process does not affect them."""
    process = subprocess.run(
        [sys.executable, "-c", PROBE, address, str(seconds)], stdout=subprocess.PIPE, check=True, text=True
    )
    times: list[float] = json.loads(process.stdout)
    return times


def _percentile(times: list[float]) -> float:
    return sorted(times)[int(len(times) * 0.99)]


@contextmanager
def _served(data: Path) -> Iterator[str]:
    """A server in its own process, with enough concurrency for all attackers."""
    command = [str(Path(sys.executable).with_name("apex")), "serve", "--port", "0", "--json", "--data-dir", str(data)]
    environment = {**os.environ, "APEX_SANDBOX_MAX_CONCURRENCY": str(len(ATTACKERS))}
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment, text=True) as process:
        try:
            announced = ""
            while process.stdout is not None and not announced.rstrip().endswith("}"):
                announced += process.stdout.readline()
            address: str = json.loads(announced)["url"]
            while httpx.get(f"{address}/readyz", trust_env=False).status_code != httpx.codes.OK:
                time.sleep(0.1)
            yield address
        finally:
            process.terminate()
