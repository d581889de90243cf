"""A look at the walls before anything is trusted to them: a canary runs, and says what it met."""

import asyncio
import json
import socket
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from apexbridge.sandbox.config import Guarantee
from apexbridge.sandbox.launcher_client import LaunchError
from apexbridge.sandbox.models import Job
from apexbridge.sandbox.seccomp import refused_numbers
from apexbridge.sandbox.session import Workbench

CANARIES = Path(__file__).parent / "canaries"
TIMEOUT_MS = 20_000
QUICK: tuple[Guarantee, ...] = ("fs", "net", "env", "fds", "pids", "syscalls")


@dataclass(frozen=True, slots=True, kw_only=True)
class Proof:
    """What a canary met at one wall."""

    held: bool
    told: str


async def try_walls(workbench: Workbench, checks: Sequence[Guarantee] = QUICK) -> dict[str, Proof]:
    """Run the canary against those walls that it can try quickly.

    Raises:
        LaunchError: it could not even be run.
    """
    with _bait() as given:
        limits = workbench.limits
        given |= {"files": limits.files, "processes": limits.processes, "checks": list(checks)}
        given["syscalls"] = refused_numbers()
        told = await run_canary(workbench, "isolation.py", given)
    return {name: Proof(held=proof["held"], told=proof["proof"]) for name, proof in json.loads(told).items()}


async def run_canary(workbench: Workbench, script: str, given: dict[str, Any]) -> str:
    """Run one canary; gives what it printed.

    Raises:
        LaunchError: it did not end well.
    """
    runtime = workbench.runtimes.get("python")
    if runtime is None:
        raise LaunchError("there is no Python to try the walls with")
    job = Job(skill="canary", folder=CANARIES, script=script, input=given, timeout_ms=TIMEOUT_MS)
    finished = await workbench.do(job, runtime, begun=asyncio.get_running_loop().time())
    if finished.ending.code != 0 or finished.ending.verdict is not None:
        raise LaunchError(_last_line(finished.stderr) or f"the canary ended with {finished.ending}")
    return finished.stdout


@contextmanager
def _bait() -> Iterator[dict[str, Any]]:
    """Things of the host that a run must not reach: a readable file, an open port, an abstract socket."""
    with (
        tempfile.TemporaryDirectory(prefix="apexbridge-canary-") as folder,
        socket.socket() as port,
        socket.socket(socket.AF_UNIX) as abstract,
    ):
        path = Path(folder)
        path.chmod(0o777)
        secret = path / "secret"
        secret.write_text("out of reach")
        secret.chmod(0o644)
        port.bind(("127.0.0.1", 0))
        port.listen()
        name = path.name
        abstract.bind(f"\0{name}")
        abstract.listen()
        yield {"secret": str(secret), "folder": folder, "port": port.getsockname()[1], "abstract": name}


def _last_line(text: str) -> str:
    lines = [line for line in text.splitlines() if line.strip()]
    return lines[-1].removeprefix("bwrap: ") if lines else ""
