"""Clients that disconnect during a response: delay until the upstream request and a running skill end, and leaks."""

import json
import socket
import struct
import time
import urllib.parse
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import httpx

from benchmarks.chat.servers import SLEEP, Process, Servers
from benchmarks.measuring import Comparison, within_limit

T = TypeVar("T")
CONCURRENCY = 50
MAX_MS = 1_000
MAX_LEAKED = {"MB of memory": 20, "descriptors": 5, "threads": 5, "processes": 5}
"""A few threads and processes stay alive for reuse."""
TIMEOUT_SECONDS = 20
SETTLE_SECONDS = 5
POLL_SECONDS = 0.004
MESSAGES = [{"role": "user", "content": "Say something long."}]
SLEEPING = b"\0".join((b"sleep", SLEEP.encode(), b""))


def measure(servers: Servers, *, cycles: int, skill_cycles: int) -> list[Comparison]:
    """Half of the clients stream. Of each kind, half close the connection and half reset it."""
    ours = servers.ours
    _disconnect(servers, "warm-up", CONCURRENCY)  # resources allocated by the first requests are not leaks
    time.sleep(SETTLE_SECONDS)
    before = _usage(ours)
    waits = [
        wait
        for number in range(cycles // CONCURRENCY)
        for wait in _disconnect(servers, f"client-{number}", CONCURRENCY)
    ]
    _show(f"{len(waits):,} disconnected clients: ms until the upstream request ended", waits)
    ends = [_disconnect_during_skill(servers, number) for number in range(skill_cycles)]
    _show(f"{len(ends)} clients disconnected during a skill run: ms until its process ended", ends)
    _until(lambda: not _running(servers))
    time.sleep(SETTLE_SECONDS)
    after = _usage(ours)
    print(f"    before: {_joined(before)}\n    after:  {_joined(after)}, executions 0 running", flush=True)
    return [
        within_limit(f"slowest of {len(waits):,} upstream requests ended after a disconnect", max(waits), MAX_MS),
        within_limit(f"slowest of {len(ends)} skills ended after a disconnect", max(ends), MAX_MS),
        *(
            within_limit(f"{name} leaked after disconnects", max(0, after[name] - before[name]), limit, unit="more")
            for name, limit in MAX_LEAKED.items()
        ),
    ]


def _usage(ours: Process) -> dict[str, float]:
    return {
        "MB of memory": ours.rss_mb(),
        "descriptors": ours.descriptors(),
        "threads": ours.threads(),
        "processes": ours.descendants(),
    }


def _joined(usage: dict[str, float]) -> str:
    return ", ".join(f"{name} {number:.0f}" for name, number in usage.items())


def _disconnect(servers: Servers, name: str, count: int) -> list[float]:
    """Send `count` concurrent requests and disconnect; returns the milliseconds until each ended upstream."""
    links: dict[str, socket.socket] = {}
    for number in range(count):
        user = f"{name}-{number}"
        body = {"model": "hold", "messages": MESSAGES, "user": user}
        links[user] = _send(servers, {**body, "stream": True} if number % 2 else body)
        if number % 4 >= 2:
            _reset_on_close(links[user])
    _until(lambda: links.keys() <= set(_state(servers)["open"]))
    for number, link in enumerate(links.values()):
        if number % 2:
            while b"weather" not in link.recv(65536):
                pass
    closed = {}
    for user, link in links.items():
        closed[user] = time.monotonic()
        link.close()
    _until(lambda: links.keys() <= _state(servers)["disconnected"].keys())
    ended = _state(servers)["disconnected"]
    return [(ended[user] - moment) * 1000 for user, moment in closed.items()]


def _disconnect_during_skill(servers: Servers, number: int) -> float:
    """Disconnect while a skill runs; returns the milliseconds until the skill's process has ended."""
    link = _send(servers, {"model": "skill", "messages": MESSAGES, "stream": bool(number % 2)})
    sleeping = _until(_sleeping)
    if number % 4 >= 2:
        _reset_on_close(link)
    closed = time.monotonic()
    link.close()
    _until(lambda: not any(_is_sleeping(process) for process in sleeping))
    return (time.monotonic() - closed) * 1000


def _send(servers: Servers, body: dict[str, Any]) -> socket.socket:
    address = urllib.parse.urlsplit(servers.ours.url)
    link = socket.create_connection((address.hostname, address.port))
    link.settimeout(TIMEOUT_SECONDS)
    data = json.dumps(body).encode()
    link.sendall(
        f"POST /v1/chat/completions HTTP/1.1\r\nhost: {address.netloc}\r\nauthorization: Bearer {servers.key}\r\n"
        f"content-type: application/json\r\ncontent-length: {len(data)}\r\n\r\n".encode()
        + data
    )
    return link


def _reset_on_close(link: socket.socket) -> None:
    """Make `close` send a reset instead of an orderly shutdown."""
    link.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def _state(servers: Servers) -> dict[str, Any]:
    state: dict[str, Any] = httpx.get(f"{servers.model.url}/state", trust_env=False).json()
    return state


def _running(servers: Servers) -> int:
    total = 0
    for state in ("pending", "running"):
        headers = {"authorization": f"Bearer {servers.owner}"}
        url = f"{servers.ours.url}/api/executions?state={state}&limit=1"
        total += int(httpx.get(url, headers=headers, trust_env=False).json()["total"])
    return total


def _sleeping() -> list[Path]:
    return [process for process in Path("/proc").iterdir() if process.name.isdigit() and _is_sleeping(process)]


def _is_sleeping(process: Path) -> bool:
    try:
        return (process / "cmdline").read_bytes() == SLEEPING
    except OSError:
        return False


def _until(condition: Callable[[], T]) -> T:
    deadline = time.monotonic() + TIMEOUT_SECONDS
    while not (found := condition()):
        if time.monotonic() > deadline:
            raise RuntimeError(f"timeout after {TIMEOUT_SECONDS} s")
        time.sleep(POLL_SECONDS)
    return found


def _show(title: str, waits: list[float]) -> None:
    ordered = sorted(waits)
    median, p99 = ordered[len(ordered) // 2], ordered[int(len(ordered) * 0.99)]
    print(f"{title}: median {median:.1f}, 99th percentile {p99:.1f}, largest {ordered[-1]:.1f}", flush=True)
