"""Many cheap clients: plain sockets and one selector. Takes a job as JSON and prints the result as JSON.

A job has `url`, `key`, `body`, `connections`, `requests` (of all connections together), `ramp`, the seconds over
which connections are opened, and `path`, chat completions by default, with `end`, the last words of its streams.
"""

import json
import selectors
import socket
import sys
import time
import urllib.parse
from typing import Any

JOB: dict[str, Any] = json.loads(sys.argv[1])
SERVER = urllib.parse.urlsplit(JOB["url"])
BODY = json.dumps(JOB["body"]).encode()
IS_STREAM = bool(JOB["body"].get("stream"))
PATH = JOB.get("path", "/v1/chat/completions")
END = JOB.get("end", "data: [DONE]").encode()
REQUEST = (
    f"POST {PATH} HTTP/1.1\r\nhost: {SERVER.netloc}\r\nauthorization: Bearer {JOB['key']}\r\n"
    f"content-type: application/json\r\ncontent-length: {len(BODY)}\r\n\r\n"
).encode() + BODY
LAST_CHUNK = b"\r\n0\r\n\r\n"
SILENCE_SECONDS = 30


class Link:
    """One connection, and the response it receives."""

    def __init__(self) -> None:
        self.socket = socket.create_connection((SERVER.hostname, SERVER.port))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket.settimeout(SILENCE_SECONDS)
        self.reads = 0

    def send(self) -> None:
        """Send the request."""
        self._received = bytearray()
        self._length = 0
        self.first: float | None = None
        self.begun = time.perf_counter()
        self.socket.sendall(REQUEST)

    def receive(self) -> bool:
        """Receive available data; True if the response is complete."""
        data = self.socket.recv(65536)
        if not data:
            raise RuntimeError(f"closed after {bytes(self._received[-300:])!r}")
        self._received += data
        self.reads += 1
        if self.first is None and (not IS_STREAM or b"data:" in self._received):
            self.first = time.perf_counter()
        if not (self._received.endswith(LAST_CHUNK) if IS_STREAM else self._has_all()):
            return False
        if not self._received.startswith(b"HTTP/1.1 200") or b"weather" not in self._received:
            raise RuntimeError(bytes(self._received[:600]))
        if IS_STREAM and END not in self._received:
            raise RuntimeError(f"no end: {bytes(self._received[-300:])!r}")
        return True

    def _has_all(self) -> bool:
        if not self._length:
            head, separator, _ = bytes(self._received).lower().partition(b"\r\n\r\n")
            if not separator:
                return False
            self._length = len(head) + 4 + int(head.partition(b"content-length:")[2].split(b"\r\n")[0])
        return len(self._received) >= self._length


def sequential(count: int) -> dict[str, Any]:
    """One request after the other on one connection."""
    link, times, firsts = Link(), [], []
    for _ in range(count):
        link.send()
        while not link.receive():
            pass
        times.append((time.perf_counter() - link.begun) * 1000)
        firsts.append(((link.first or 0.0) - link.begun) * 1000)
    return {"times": times, "firsts": firsts}


def concurrent(connections: int, count: int, ramp: float) -> dict[str, Any]:
    """Several concurrent connections. Each sends its next request when it has a response."""
    selector = selectors.DefaultSelector()
    begun, asked, answered, started = time.perf_counter(), 0, 0, 0
    all_started: float | None = None
    first_end: float | None = None
    links: list[Link] = []
    while answered < count:
        now = time.perf_counter()
        due = connections if not ramp else min(connections, int((now - begun) / ramp * connections) + 1)
        while len(links) < due:
            links.append(Link())
            selector.register(links[-1].socket, selectors.EVENT_READ, links[-1])
            links[-1].send()
            asked += 1
        ready = selector.select(SILENCE_SECONDS if due == connections else 0.005)
        if not ready and due == connections:
            raise RuntimeError(f"no data after {answered} of {count} responses")
        for key, _ in ready:
            link: Link = key.data
            had_first = link.first is not None
            is_complete = link.receive()
            if not had_first and link.first is not None:
                started += 1
                all_started = time.perf_counter() if started == connections else all_started
            if is_complete:
                answered += 1
                first_end = first_end or time.perf_counter()
                if asked < count:
                    link.send()
                    asked += 1
                else:
                    selector.unregister(link.socket)
                    link.socket.close()
    open_seconds = first_end - all_started if first_end and all_started else 0.0
    return {
        "seconds": time.perf_counter() - begun,
        "answered": answered,
        "allOpenSeconds": open_seconds,
        "reads": sum(link.reads for link in links) / answered,
    }


if JOB["connections"] == 1:
    result = sequential(JOB["requests"])
else:
    result = concurrent(JOB["connections"], JOB["requests"], JOB.get("ramp", 0.0))
print(json.dumps(result))
