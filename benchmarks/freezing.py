"""Maximum latency of /healthz while hostile inputs are processed that once blocked the server for seconds or minutes.

Each input is cheap to send: a request, an archive, a script's output, or a model server's response. Also measured:
memory with clients that request large responses and do not read them.
"""

import asyncio
import io
import json
import socket
import subprocess
import sys
import tempfile
import time
import urllib.parse
import zipfile
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx

from benchmarks.chat.servers import APEX, Process
from benchmarks.measuring import Comparison, within_limit

MAX_MS = 250
BODY_BYTES = 8 * 1024 * 1024 - 1024
UNREAD_CLIENTS = 25
MEMORY_GROWTH = 1.1
UPSTREAM = Path(__file__).parent / "programs" / "hostile_upstream.py"
PROBE = """
import http.client, json, sys, time, urllib.parse
address = urllib.parse.urlsplit(sys.argv[1])
connection = http.client.HTTPConnection(address.hostname, address.port, timeout=300)
times = []
print("ready", flush=True)
import threading
over = threading.Event()
threading.Thread(target=lambda: (sys.stdin.read(), over.set()), daemon=True).start()
while not over.is_set():
    begun = time.perf_counter()
    connection.request("GET", "/healthz")
    connection.getresponse().read()
    times.append((time.perf_counter() - begun) * 1000)
    time.sleep(0.01)
print(json.dumps(times))
"""
Attack = Callable[[httpx.AsyncClient], Awaitable[object]]


async def run() -> list[Comparison]:
    """The maximum of /healthz for each input, and memory with clients that do not read."""
    with tempfile.TemporaryDirectory() as folder, _upstream() as model, _server(Path(folder), model) as server:
        async with httpx.AsyncClient(base_url=server.url, timeout=300, trust_env=False) as client:
            await _install(client, "fails", FAILS)
            await _install(client, "prints", "import sys\nsys.stdout.write('\\x01' * 10_400_000)")
            await _install(client, "drips", DRIPS)
            await _install(client, "schema", "print(1)", f"parameters: {json.dumps(_schema())}\n")
            idle = await _worst(server.url, client, lambda _: asyncio.sleep(2))
            worst = {name: await _worst(server.url, client, attack) for name, attack in _attacks().items()}
            memory = await _unread(server, client)
    results = [within_limit(f"/healthz while {name}", figure, MAX_MS) for name, figure in worst.items()]
    print(f"maximum of /healthz when idle: {idle:.0f} ms")
    return [*results, memory]


FAILS = "import os, sys\nos.write(2, b'\\n' * 65000 + b'    at x\\n')\nsys.exit(1)\n"
DRIPS = """import os, time
end = time.time() + 5
while time.time() < end:
    os.write(1, b"a")
    os.write(2, b"b")
"""


def _attacks() -> dict[str, Attack]:
    tool, skill, chat = "/api/tools/calculate/execute", "/api/skills/fails/execute", "/v1/chat/completions"
    keys = ",".join(f'"k{number}":0' for number in range(600_000))
    message = '{"role":"user","content":"a"}'
    tools = [
        {"type": "function", "defer_loading": True, "function": {"name": f"t{n}", "description": f"word{n} " * 800}}
        for n in range(800)
    ]
    attacks: dict[str, Attack] = {
        "a script fails with 65,000 line ends": lambda client: _run(client, "fails"),
        "a schema with nested oneOf is called": lambda client: _run(client, "schema", {"a": 1, "b": 2}),
        "frontmatter with 62,000 spaces is validated": _validate,
        "a script prints single bytes": lambda client: _run(client, "drips"),
        "a request has 600,000 unknown fields": lambda client: _post(client, tool, "{" + keys + "}"),
        "an input has 600,000 fields": lambda client: _post(client, skill, '{"input":{' + keys + "}}"),
        "an input has 2.7 million lists": lambda client: _post(client, skill, _many_values("[],")),
        "a tool's input has 2.7 million lists": lambda client: _post(client, tool, _many_values("[],")),
        "a chat has 280,000 messages": lambda client: _post(
            client, chat, '{"messages":[' + ",".join([message] * 270_000) + "]}"
        ),
        "a chat has 33,000 messages": lambda client: _post(
            client, chat, '{"model":"apex-offline","messages":[' + ",".join([message] * 33_000) + "]}"
        ),
        "a chat has 10,000 messages": lambda client: _post(
            client, chat, '{"model":"apex-offline","messages":[' + ",".join([message] * 10_000) + "]}"
        ),
        "a chat has 800 deferred tools": lambda client: client.post(
            chat, json={"model": "apex-offline", "messages": [{"role": "user", "content": "find"}], "tools": tools}
        ),
        "10 MB of output are read": lambda client: _run(client, "prints"),
    }
    for kind, request in {
        "unterminated arguments": {"model": "arguments", "stream": True},
        "arguments in fragments that repeat the name": {"model": "named", "stream": False},
        "reasoning in 600,000 fragments": {"model": "thoughts", "stream": False, "x_bridge": {"tools": False}},
        "reasoning in 600,000 fragments, with tools": {"model": "thoughts", "stream": False},
        "a completion of 5 million lists": {"model": "crowd", "stream": False},
    }.items():
        attacks[f"a model sends {kind}"] = lambda client, request=request: client.post(  # type: ignore[misc]
            chat, json={"messages": [{"role": "user", "content": "hi"}], **request}
        )
    return attacks


def _schema() -> dict[str, Any]:
    levels = {
        f"d{n}": {
            "oneOf": [{"$ref": f"#/$defs/d{n + 1}"}, {"required": ["q"]}],
            "unevaluatedProperties": {"type": "number"},
        }
        for n in range(20)
    }
    return {"type": "object", "$ref": "#/$defs/d0", "$defs": {**levels, "d20": {"type": "object"}}}


def _many_values(unit: str) -> str:
    return '{"input":{"a":[' + unit * ((BODY_BYTES - 100) // len(unit)) + "0]}}"


async def _run(client: httpx.AsyncClient, name: str, input: Mapping[str, Any] | None = None) -> None:
    answer = await client.post(f"/api/skills/{name}/execute", json={"input": input or {}})
    answer.raise_for_status()


async def _post(client: httpx.AsyncClient, path: str, body: str) -> None:
    await client.post(path, content=body, headers={"content-type": "application/json"})


async def _validate(client: httpx.AsyncClient) -> None:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("plug/.claude-plugin/plugin.json", '{"name":"plug"}')
        for number in range(4):
            text = f"---\nname: s{number}\ndescription: |{' ' * 62_000}\n  text\n---\n"
            archive.writestr(f"plug/skills/s{number}/SKILL.md", text)
    await client.post("/api/skills/validate", content=packed.getvalue(), headers={"content-type": "application/zip"})


async def _install(client: httpx.AsyncClient, name: str, script: str, more: str = "") -> None:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr(f"{name}/SKILL.md", f"---\nname: {name}\ndescription: For a benchmark.\n{more}---\n")
        archive.writestr(f"{name}/scripts/execute.py", script)
    answer = await client.post(
        "/api/skills/install", content=packed.getvalue(), headers={"content-type": "application/zip"}
    )
    answer.raise_for_status()


async def _worst(url: str, client: httpx.AsyncClient, attack: Attack) -> float:
    """The maximum latency of /healthz while the input is processed."""
    probe = await asyncio.create_subprocess_exec(
        sys.executable, "-c", PROBE, url, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    if probe.stdin is None or probe.stdout is None:
        raise AssertionError("stdin and stdout are pipes")
    await probe.stdout.readline()
    await attack(client)
    probe.stdin.close()
    times: list[float] = json.loads(await probe.stdout.read())
    await probe.wait()
    return max(times)


async def _unread(server: Process, client: httpx.AsyncClient) -> Comparison:
    """Memory of the server before and with clients that request a large response and do not read it."""
    answer = await client.post("/api/skills/prints/execute", json={})
    identity = answer.json()["id"]
    del answer
    await client.get(f"/api/executions/{identity}")
    before = server.rss_mb()
    address = urllib.parse.urlsplit(server.url)
    request = f"GET /api/executions/{identity} HTTP/1.1\r\nHost: {address.netloc}\r\n\r\n".encode()
    clients = []
    for _ in range(UNREAD_CLIENTS):
        link = socket.socket()
        link.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        link.connect((str(address.hostname), int(address.port or 0)))
        link.sendall(request)
        clients.append(link)
        await asyncio.sleep(0.2)
    await asyncio.sleep(5)
    during = server.rss_mb()
    for link in clients:
        link.close()
    await asyncio.sleep(2)
    after = server.rss_mb()
    return Comparison(
        what=f"memory with {UNREAD_CLIENTS} clients that do not read ({after:.0f} MB after them)",
        ours_ms=during,
        baseline="before",
        baseline_ms=before,
        goal=MEMORY_GROWTH,
        spread=1.0,
        unit="MB",
    )


@contextmanager
def _upstream() -> Iterator[str]:
    with subprocess.Popen([sys.executable, str(UPSTREAM)], stdout=subprocess.PIPE, text=True) as process:
        try:
            if process.stdout is None:
                raise AssertionError("stdout is a pipe")
            yield f"http://127.0.0.1:{process.stdout.readline().strip()}/v1"
        finally:
            process.terminate()


@contextmanager
def _server(folder: Path, model: str) -> Iterator[Process]:
    command = [*APEX, "serve", "--port", "0", "--json", "--data-dir", str(folder / "data")]
    environment = {"PATH": "/usr/bin:/bin", "APEX_LLM_BASE_URL": model, "APEX_LLM_API_KEY": "k"}
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment, text=True) as process:
        try:
            announced = ""
            while process.stdout is not None and not announced.rstrip().endswith("}"):
                announced += process.stdout.readline()
            server = Process(pid=process.pid, url=json.loads(announced)["url"])
            while True:
                with suppress(httpx.HTTPError):
                    if httpx.get(f"{server.url}/readyz", trust_env=False).status_code == httpx.codes.OK:
                        break
                time.sleep(0.1)
            yield server
        finally:
            process.terminate()
