"""Clients that leave in mid-answer: how soon the model's server and a running skill know, and what stays behind."""

import json
import socket
import struct
import time
import urllib.parse
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import httpx

from benchmarks.chat.places import SLEEP, Places, Process
from benchmarks.measuring import Comparison, promise

T = TypeVar("T")
AT_ONCE = 50
MOST_MS = 1_000
MOST_LEFT = {"MB of memory": 20, "descriptors": 5, "threads": 5, "processes": 5}
"""Threads and processes are kept for what comes next, a few of each."""
PATIENCE_SECONDS = 20
SETTLE_SECONDS = 5
LOOK_SECONDS = 0.004
MESSAGES = [{"role": "user", "content": "Say something long."}]
SLEEPING = b"\0".join((b"sleep", SLEEP.encode(), b""))


def measure(places: Places, *, cycles: int, skill_cycles: int) -> list[Comparison]:
    """Half of them stream; half of each say goodbye and half break off."""
    ours = places.ours
    _leave(places, "warming", AT_ONCE)  # what is held from now on was not held by the first ones either
    time.sleep(SETTLE_SECONDS)
    before = _held(ours)
    waits = [wait for number in range(cycles // AT_ONCE) for wait in _leave(places, f"leave-{number}", AT_ONCE)]
    _show(f"{len(waits):,} clients that left: until the model's server knew, ms", waits)
    ends = [_leave_a_skill(places, number) for number in range(skill_cycles)]
    _show(f"{len(ends)} clients that left a running skill: until its process was gone, ms", ends)
    _until(lambda: not _running(places))
    time.sleep(SETTLE_SECONDS)
    after = _held(ours)
    print(f"    before: {_told(before)}\n    after:  {_told(after)}, executions 0 running", flush=True)
    return [
        promise(f"the last of {len(waits):,} left requests broken off upstream", max(waits), MOST_MS),
        promise(f"the last of {len(ends)} left skills ended", max(ends), MOST_MS),
        *(
            promise(f"{name} left by clients that left", max(0, after[name] - before[name]), most, unit="more")
            for name, most in MOST_LEFT.items()
        ),
    ]


def _held(ours: Process) -> dict[str, float]:
    return {
        "MB of memory": ours.rss_mb(),
        "descriptors": ours.descriptors(),
        "threads": ours.threads(),
        "processes": ours.family(),
    }


def _told(held: dict[str, float]) -> str:
    return ", ".join(f"{name} {number:.0f}" for name, number in held.items())


def _leave(places: Places, name: str, count: int) -> list[float]:
    """That many requests at once, left at once; the milliseconds until each was seen to be broken off upstream."""
    links: dict[str, socket.socket] = {}
    for number in range(count):
        user = f"{name}-{number}"
        body = {"model": "hold", "messages": MESSAGES, "user": user}
        links[user] = _asked(places, {**body, "stream": True} if number % 2 else body)
        if number % 4 >= 2:
            _break_off(links[user])
    _until(lambda: links.keys() <= set(_state(places)["open"]))
    for number, link in enumerate(links.values()):
        if number % 2:
            while b"weather" not in link.recv(65536):
                pass
    left = {}
    for user, link in links.items():
        left[user] = time.monotonic()
        link.close()
    _until(lambda: links.keys() <= _state(places)["brokenOff"].keys())
    known = _state(places)["brokenOff"]
    return [(known[user] - moment) * 1000 for user, moment in left.items()]


def _leave_a_skill(places: Places, number: int) -> float:
    """One request, left while its skill runs; the milliseconds until the skill's process is gone."""
    link = _asked(places, {"model": "skill", "messages": MESSAGES, "stream": bool(number % 2)})
    sleeping = _until(_sleeping)
    if number % 4 >= 2:
        _break_off(link)
    left = time.monotonic()
    link.close()
    _until(lambda: not any(_is_sleeping(process) for process in sleeping))
    return (time.monotonic() - left) * 1000


def _asked(places: Places, body: dict[str, Any]) -> socket.socket:
    place = urllib.parse.urlsplit(places.ours.url)
    link = socket.create_connection((place.hostname, place.port))
    link.settimeout(PATIENCE_SECONDS)
    data = json.dumps(body).encode()
    link.sendall(
        f"POST /v1/chat/completions HTTP/1.1\r\nhost: {place.netloc}\r\nauthorization: Bearer {places.key}\r\n"
        f"content-type: application/json\r\ncontent-length: {len(data)}\r\n\r\n".encode()
        + data
    )
    return link


def _break_off(link: socket.socket) -> None:
    """When it is closed, the other side gets a reset and no goodbye."""
    link.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def _state(places: Places) -> dict[str, Any]:
    state: dict[str, Any] = httpx.get(f"{places.model.url}/state", trust_env=False).json()
    return state


def _running(places: Places) -> int:
    total = 0
    for state in ("pending", "running"):
        headers = {"authorization": f"Bearer {places.owner}"}
        url = f"{places.ours.url}/api/executions?state={state}&limit=1"
        total += int(httpx.get(url, headers=headers, trust_env=False).json()["total"])
    return total


def _sleeping() -> list[Path]:
    return [process for process in Path("/proc").iterdir() if process.name.isdigit() and _is_sleeping(process)]


def _is_sleeping(process: Path) -> bool:
    try:
        return (process / "cmdline").read_bytes() == SLEEPING
    except OSError:
        return False


def _until(look: Callable[[], T]) -> T:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not (found := look()):
        if time.monotonic() > deadline:
            raise RuntimeError(f"not within {PATIENCE_SECONDS} s")
        time.sleep(LOOK_SECONDS)
    return found


def _show(title: str, waits: list[float]) -> None:
    ordered = sorted(waits)
    middle, late = ordered[len(ordered) // 2], ordered[int(len(ordered) * 0.99)]
    print(f"{title}: median {middle:.1f}, 99th percentile {late:.1f}, largest {ordered[-1]:.1f}", flush=True)
