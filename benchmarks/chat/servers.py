"""The server processes: a model server, plain pass-through proxies to it, and apexbridge."""

import json
import os
import resource
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

EVENTS = 20
"""Words of an answer. With its first and last event, a stream has 22 events."""
SLOW_EVENTS = 16
START_SECONDS = 60
QUIET_SECONDS = 2
"""Work after a start must not affect the measurements."""
SKILL = "sleeper"
SLEEP = "30.4242"
"""Seconds. The unusual number identifies the process."""
PROGRAMS = Path(__file__).parent.parent / "programs"
APEX = [sys.executable, "-c", "from apexbridge.surfaces.cli.app import main; main()"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """A server in its own process."""

    pid: int
    url: str

    def cpu_ms(self) -> float:
        """CPU time of all threads so far. More precise than the ticks of `/proc`."""
        return time.clock_gettime(~self.pid << 3 | 2) * 1000  # as clock_getcpuclockid(3) computes it

    def rss_mb(self) -> float:
        """Resident memory."""
        return int(self._status("VmRSS")) / 1024

    def threads(self) -> int:
        """Number of threads."""
        return int(self._status("Threads"))

    def descriptors(self) -> int:
        """Number of open files and sockets."""
        return len(list(Path(f"/proc/{self.pid}/fd").iterdir()))

    def descendants(self) -> int:
        """Number of descendant processes."""
        parents = {}
        for process in Path("/proc").glob("[0-9]*"):
            try:
                parents[int(process.name)] = int((process / "stat").read_text().rpartition(")")[2].split()[1])
            except OSError:  # it has exited
                continue
        found = {self.pid}
        while more := {child for child, parent in parents.items() if parent in found} - found:
            found |= more
        return len(found) - 1

    def _status(self, name: str) -> str:
        text = Path(f"/proc/{self.pid}/status").read_text()
        return next(line.split()[1] for line in text.splitlines() if line.startswith(f"{name}:"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Servers:
    """The servers to which a request can be sent."""

    model: Process
    bare: Process
    bare_uvloop: Process
    ours: Process
    key: str
    """API key of apexbridge; the others ignore it."""
    owner: str
    """Admin key of apexbridge."""

    def load(self, server: Process, body: dict[str, Any], **options: Any) -> "subprocess.Popen[str]":
        """Start clients in a separate process; `result_of` waits for their result."""
        job = {"url": server.url, "key": self.key, "body": body, **options}
        command = [sys.executable, str(PROGRAMS / "client.py"), json.dumps(job)]
        return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def result_of(clients: "subprocess.Popen[str]") -> dict[str, Any]:
    """The result that the clients print at their end."""
    output, _ = clients.communicate()
    if clients.returncode:
        raise RuntimeError("the clients failed")
    result: dict[str, Any] = json.loads(output)
    return result


@contextmanager
def running_servers(folder: Path) -> Iterator[Servers]:
    """Start all servers on free ports, and stop them when the block ends."""
    _, hard_limit = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard_limit, hard_limit))  # a thousand streams have two sockets each
    with ExitStack() as stack:
        model = stack.enter_context(_started("upstream", str(EVENTS), str(SLOW_EVENTS), SKILL))
        bare = stack.enter_context(_started("passthrough", model.url))
        bare_uvloop = stack.enter_context(_started("passthrough", model.url, "uvloop"))
        ours, owner = stack.enter_context(_served(model.url, folder / "data"))
        key = _prepared(ours.url, owner, folder)
        time.sleep(QUIET_SECONDS)
        yield Servers(model=model, bare=bare, bare_uvloop=bare_uvloop, ours=ours, key=key, owner=owner)


@contextmanager
def _started(program: str, *arguments: str) -> Iterator[Process]:
    command = [sys.executable, str(PROGRAMS / f"{program}.py"), *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield Process(pid=process.pid, url=process.stdout.readline().strip())
        finally:
            process.kill()


@contextmanager
def _served(upstream: str, data_dir: Path) -> Iterator[tuple[Process, str]]:
    """`apex serve` with required and rate-limited API keys."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("APEX_")} | {
        "APEX_LLM_BASE_URL": f"{upstream}/v1",
        "APEX_LLM_TOOL_MODE": "native",
        "APEX_API_KEYS_REQUIRED": "true",
        "APEX_RATE_LIMIT": "1000000",
    }
    command = [*APEX, "serve", "--port", "0", "--data-dir", str(data_dir)]
    log = data_dir.with_name("log")
    with log.open("w") as output, subprocess.Popen(command, stdout=output, stderr=output, env=environment) as process:
        try:
            announced = _announced(data_dir / "server.json", process)
            yield Process(pid=process.pid, url=announced["url"]), announced["key"]
        except BaseException:
            print(log.read_text()[-2_000:], file=sys.stderr)
            raise
        finally:
            process.terminate()


def _announced(path: Path, process: "subprocess.Popen[bytes]") -> dict[str, str]:
    for _ in range(START_SECONDS * 20):
        if path.exists():
            announced: dict[str, str] = json.loads(path.read_text())
            return announced
        if process.poll() is not None:
            break
        time.sleep(0.05)
    raise RuntimeError("the server did not start")


def _prepared(url: str, owner: str, folder: Path) -> str:
    """Install the sleeping skill, and create a key."""
    headers = {"authorization": f"Bearer {owner}"}
    with httpx.Client(base_url=url, headers=headers, trust_env=False, timeout=START_SECONDS) as client:
        for _ in range(START_SECONDS * 10):
            if client.get("/readyz").is_success:
                break
            time.sleep(0.1)
        zipped = {"content-type": "application/zip"}
        client.post("/api/skills/install", content=_packed(folder), headers=zipped).raise_for_status()
        made = client.post("/api/keys", json={"name": "benchmark", "scopes": ["chat", "read", "run"]})
        return str(made.raise_for_status().json()["key"])


def _packed(folder: Path) -> bytes:
    scripts = folder / SKILL / "scripts"
    scripts.mkdir(parents=True)
    (scripts.parent / "SKILL.md").write_text(f"---\nname: {SKILL}\ndescription: Sleeps for half a minute.\n---\nx\n")
    (scripts / "execute.sh").write_text(f"exec sleep {SLEEP}\n")
    return Path(shutil.make_archive(str(folder / "package"), "zip", folder, SKILL)).read_bytes()
