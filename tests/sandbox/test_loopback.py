"""A run has a loopback of its own: its servers work, and nothing outside can be reached."""

import errno
import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from apexbridge.sandbox.launcher import prefork, process_tree
from tests.sandbox.bench import SECONDS, Bench

pytestmark = pytest.mark.anyio

PYTHON_SERVER = """
import http.server, json, socket, subprocess, sys, threading, urllib.request
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"hello")
    def log_message(self, *words): pass
class Server(http.server.ThreadingHTTPServer):
    daemon_threads = True
class Server6(Server):
    address_family = socket.AF_INET6
def serve(kind, host):
    server = kind((host, 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server.server_address[1]
def fetch(host, port):
    return urllib.request.urlopen(f"http://{host}:{port}").read().decode()
port, port6 = serve(Server, "127.0.0.1"), serve(Server6, "::1")
child = f"import urllib.request; print(urllib.request.urlopen('http://localhost:{port}').read().decode(), end='')"
print(json.dumps([
    fetch("127.0.0.1", port),
    fetch("localhost", port),
    fetch("[::1]", port6),
    fetch("localhost", port6),
    subprocess.run([sys.executable, "-c", child], capture_output=True, text=True).stdout,
]))
"""
NODE_SERVER = """
const http = require('http');
const { execFile } = require('child_process');
const get = (host, port) => new Promise((done, fail) =>
  http.get({ host, port }, (answer) => answer.on('data', (data) => done(String(data)))).on('error', fail));
const serve = (host) => new Promise((done) => {
  const server = http.createServer((request, answer) => answer.end('hello'));
  server.listen(0, host, () => done(server.address().port));
});
(async () => {
  const port = await serve('127.0.0.1'), port6 = await serve('::1'), named = await serve('localhost');
  const code = `require('http').get('http://127.0.0.1:${port}', (a) => a.on('data', (d) => console.log(String(d))))`;
  const child = new Promise((done) => execFile(process.execPath, ['-e', code], (_, out) => done(out.trim())));
  const found = [get('127.0.0.1', port), get('localhost', port), get('::1', port6), get('localhost', named), child];
  console.log(JSON.stringify(await Promise.all(found)));
  process.exit();
})();
"""


@pytest.mark.parametrize(("suffix", "text"), [("py", PYTHON_SERVER), ("js", NODE_SERVER)])
async def test_a_script_can_start_a_server_and_connect_to_it(bench: Bench, suffix: str, text: str) -> None:
    assert await bench.run_json(text, suffix) == ["hello"] * 5


async def test_a_server_with_dozens_of_open_connections_is_not_killed(bench: Bench) -> None:
    text = """
import json, os, socket, threading, time
server = socket.create_server(("127.0.0.1", 0), backlog=200)
links, accepted = [], []
for _ in range(100):
    links.append(socket.create_connection(server.getsockname()))
    accepted.append(server.accept()[0])
for link in links:
    link.sendall(b"x" * 50_000)
received = 0
for link in accepted:
    taken = 0
    while taken < 50_000: taken += len(link.recv(65536))
    received += taken
deadline = time.monotonic() + 1  # the watchdog counts sockets every 200 ms
while time.monotonic() < deadline: time.sleep(0.05)
print(json.dumps(received))
"""
    assert await bench.run_json(text) == 100 * 50_000


UNREACHABLE = """
import json, os, socket, time
INPUT = json.loads(os.environ["INPUT_JSON"])
def attempt(family, kind, address):
    try:
        with socket.socket(family, kind) as link:
            link.settimeout(10)
            link.connect(address)
            return "reached"
    except TimeoutError: return "timeout"
    except OSError as error: return error.errno
def resolve(name):
    try: return socket.getaddrinfo(name, 80)
    except socket.gaierror as error: return error.args[1]
STREAM, DATAGRAM = socket.SOCK_STREAM, socket.SOCK_DGRAM
print(json.dumps({
    "listener": attempt(socket.AF_INET, STREAM, ("127.0.0.1", INPUT["port"])),
    "listener on another loopback address": attempt(socket.AF_INET, STREAM, ("127.8.7.6", INPUT["port"])),
    "listener on IPv6": attempt(socket.AF_INET6, STREAM, ("::1", INPUT["port6"])),
    "abstract socket": attempt(socket.AF_UNIX, STREAM, "\\0" + INPUT["abstract"]),
    "internet": attempt(socket.AF_INET, STREAM, ("192.0.2.1", 80)),
    "datagrams": attempt(socket.AF_INET, DATAGRAM, ("192.0.2.1", 53)),
    "metadata service": attempt(socket.AF_INET, STREAM, ("169.254.169.254", 80)),
    "address of the host": attempt(socket.AF_INET, STREAM, ("10.0.0.1", 80)),
    "IPv6": attempt(socket.AF_INET6, STREAM, ("2001:db8::1", 80)),
    "link-local": attempt(socket.AF_INET6, STREAM, ("fe80::1%lo", 80)),
    "multicast": attempt(socket.AF_INET, DATAGRAM, ("224.0.0.1", 80)),
    "name": resolve("example.com"),
    "name of this host": resolve("sandbox.local"),
}))
"""


@pytest.fixture
def host() -> Iterator[dict[str, Any]]:
    """Listeners of the host that no run may reach."""
    with ExitStack() as stack:
        port = stack.enter_context(socket.create_server(("0.0.0.0", 0)))  # all addresses on purpose
        port6 = stack.enter_context(socket.create_server(("::", 0), family=socket.AF_INET6))
        abstract = stack.enter_context(socket.socket(socket.AF_UNIX))
        name = f"apexbridge-{port.getsockname()[1]}"
        abstract.bind(f"\0{name}")
        abstract.listen()
        yield {"port": port.getsockname()[1], "port6": port6.getsockname()[1], "abstract": name}


async def test_nothing_outside_can_be_reached_and_every_attempt_fails_with_a_clear_error(
    bench: Bench, host: dict[str, Any]
) -> None:
    found = await bench.run_json(UNREACHABLE, input=host)
    refused = {name for name, error in found.items() if error == errno.ECONNREFUSED}
    unreachable = {name for name, error in found.items() if error == errno.ENETUNREACH}
    unknown = {name for name, error in found.items() if error == "Name or service not known"}
    assert refused == {"listener", "listener on another loopback address", "listener on IPv6", "abstract socket"}
    assert unknown == {"name", "name of this host"}
    assert unreachable | {"link-local"} == found.keys() - refused - unknown
    assert found["link-local"] in (errno.ENETUNREACH, errno.EADDRNOTAVAIL, errno.EINVAL, errno.EHOSTUNREACH)


async def test_two_runs_do_not_reach_each_other(bench: Bench) -> None:
    text = """
import json, socket
with socket.create_server(("127.0.0.1", 8765)) as server:
    print(json.dumps(server.getsockname()))
"""
    first = await bench.run_json(text)
    assert await bench.run_json(text) == first == ["127.0.0.1", 8765], "each has all ports for itself"


async def test_sockets_keep_the_size_of_their_buffers(bench: Bench) -> None:
    text = """
import json, socket
def show(link):
    for option in (socket.SO_RCVBUF, socket.SO_SNDBUF): link.setsockopt(socket.SOL_SOCKET, option, 64 << 20)
    link.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, 64 << 20)
    return [link.getsockopt(socket.SOL_SOCKET, option) for option in (socket.SO_RCVBUF, socket.SO_SNDBUF)]
server = socket.create_server(("127.0.0.1", 0))
link = socket.create_connection(server.getsockname())
accepted = server.accept()[0]
sizes = show(server) + show(link) + show(accepted)
link.setblocking(False)
sent = 0
try:
    while True: sent += link.send(b"x" * 65536)
except BlockingIOError: pass
print(json.dumps([max(sizes), sent]))
"""
    largest, sent = await bench.run_json(text)
    counted = process_tree.socket_buffer_bytes()
    assert largest <= counted
    assert sent <= 2 * counted, "of one connection, which is two sockets"


async def test_other_protocols_and_privileged_ports_are_refused(bench: Bench) -> None:
    text = """
import json, socket
def attempt(do):
    try: do()
    except OSError as error: return error.strerror
    return "done"
def bind(): socket.socket().bind(("127.0.0.1", 80))
kinds = [(2, 1, 132), (2, 1, 262), (2, 2, 1), (2, 3, 255), (10, 2, 58)]
print(json.dumps([attempt(bind), sorted({attempt(lambda: socket.socket(*kind)) for kind in kinds})]))
"""
    assert await bench.run_json(text) == ["Permission denied", ["Protocol not supported"]]


async def test_without_namespaces_there_is_no_loopback(landlock: Bench) -> None:
    text = "import json, socket\ntry: socket.socket()\nexcept OSError as error: print(json.dumps(error.strerror))"
    assert await landlock.run_json(text) == "Address family not supported by protocol"


def test_buffers_are_limited_to_what_the_watchdog_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prefork, "_SYSCTL", tmp_path)
    assert not prefork._limit_buffers(), "it cannot be written to"
    for folder in ("ipv4", "core"):
        (tmp_path / folder).mkdir()
    assert prefork._limit_buffers()
    for name in ("tcp_rmem", "tcp_wmem"):
        largest = int((tmp_path / "ipv4" / name).read_text().split()[-1])
        assert largest * 2 <= process_tree.socket_buffer_bytes()


EXECUTES = """
import json, socket, sys
from apexbridge.sandbox.launcher.prefork import _execute
options = json.loads(sys.argv[1])
filters = [open(options[name]) for name in ("filter", "offline")]
files = [0, 1, 2, *(file.fileno() for file in filters)]
request = {"numbers": [0, 1, 2, 12, 14], "uid": None, "hosts": [], "processes": 9}
request["command"] = ["/bin/sh", "-c", "cat /proc/self/fd/12; test -e /proc/self/fd/14 || echo ', closed'"]
_execute(socket.socket(), request, files, has_loopback=options["loopback"])
"""


@pytest.mark.parametrize("loopback", [True, False])
def test_without_a_limit_for_buffers_a_run_gets_the_filter_without_internet_sockets(
    tmp_path: Path, loopback: bool
) -> None:
    options: dict[str, Any] = {"loopback": loopback}
    for name in ("filter", "offline"):
        (tmp_path / name).write_text(name)
        options[name] = str(tmp_path / name)
    command = [sys.executable, "-c", EXECUTES, json.dumps(options)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS)
    assert ended.stdout == f"{'filter' if loopback else 'offline'}, closed\n", ended.stderr


def test_internet_sockets_of_a_namespace_are_counted() -> None:
    before = process_tree.count_internet_sockets(os.getpid())
    with ExitStack() as stack:
        for family, address in ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")):
            for _ in range(100):
                link = stack.enter_context(socket.socket(family, socket.SOCK_DGRAM))
                link.bind((address, 0))
        # Other processes of this host may open and close sockets meanwhile.
        assert process_tree.count_internet_sockets(os.getpid()) - before > 150
    assert process_tree.count_internet_sockets(0) == 0, "no such process"
