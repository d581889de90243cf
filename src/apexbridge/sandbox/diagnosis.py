"""What this host really enforces: every guarantee tried by a canary, with its mechanism, the proof and the remedy."""

import asyncio
import json
import os
import uuid
from typing import Literal

from apexbridge.sandbox.backends.selection import ADVICE, build, candidates
from apexbridge.sandbox.config import GUARANTEES, BackendName, Guarantee, SandboxSettings
from apexbridge.sandbox.launcher_client import LaunchError
from apexbridge.sandbox.models import Job
from apexbridge.sandbox.runtimes import RuntimeName, Runtimes
from apexbridge.sandbox.self_test import CANARIES, QUICK, Proof, try_walls
from apexbridge.sandbox.session import Finished, Workbench
from apexbridge.wire import WireModel

TIMEOUT_MS = 30_000
GONE_SECONDS = 2.0
REMEDIES: dict[Guarantee, str] = {
    "fs": "use the bubblewrap backend: it needs user namespaces",
    "net": "use the bubblewrap backend: it needs user namespaces",
    "tree_kill": "use the bubblewrap backend: it needs user namespaces",
    "memory": "let the server read /proc of its own children",
    "pids": "use the bubblewrap backend with a kernel of 5.14 or newer, or run the server as root",
    "disk": "use the bubblewrap backend: its workspace has a size",
    "env": "report this: it depends on nothing of the host",
    "fds": "raise the server's own limit: ulimit -n 1024",
    "syscalls": "use a kernel with seccomp on x86-64 or arm64",
}
_HELLO: dict[RuntimeName, tuple[str, str]] = {
    "node": ("hello.js", "apt-get install nodejs, or pip install 'apexbridge[sandbox]'"),
    "python": ("hello.py", "start the server with a Python whose files its user can read"),
    "shell": ("hello.sh", "install a POSIX shell as /bin/sh"),
}


class Finding(WireModel):
    """One guarantee on this host."""

    guarantee: str
    required: bool
    held: bool
    mechanism: str | None
    proof: str
    remedy: str | None = None


class RuntimeFinding(WireModel):
    """One interpreter, started inside the walls."""

    runtime: str
    works: bool
    version: str
    remedy: str | None = None


class BackendFinding(WireModel):
    """A kind of walls that was tried."""

    backend: str
    usable: bool
    reason: str | None = None
    remedy: str | None = None


class Diagnosis(WireModel):
    """Everything the doctor found."""

    ok: bool
    """Whether every required guarantee holds."""
    status: Literal["healthy", "degraded", "unavailable"]
    backend: str | None
    user: str
    backends: list[BackendFinding]
    guarantees: list[Finding]
    runtimes: list[RuntimeFinding]


async def diagnose(settings: SandboxSettings) -> Diagnosis:
    """Put up the walls that would be used, and try each of them."""
    runtimes = Runtimes(settings.path)
    await asyncio.to_thread(runtimes.discover)
    tried: list[BackendFinding] = []
    lenient = settings.model_copy(update={"require": ()})
    workbench: Workbench | None = None
    for name in candidates(settings):
        try:
            workbench = await build(name, lenient, runtimes)
        except LaunchError as error:
            tried.append(BackendFinding(backend=name, usable=False, reason=str(error), remedy=ADVICE[name]))
            continue
        tried.append(BackendFinding(backend=name, usable=True))
        break
    if workbench is None:
        missing = [_untried(guarantee, settings) for guarantee in GUARANTEES]
        return _diagnosis(None, tried, missing, [])
    try:
        proofs = await _proofs(workbench)
        findings = [_finding(guarantee, workbench, proofs, settings) for guarantee in GUARANTEES]
        return _diagnosis(workbench.backend.name, tried, findings, await _try_runtimes(workbench))
    finally:
        await workbench.launcher.stop()


async def _proofs(workbench: Workbench) -> dict[str, Proof]:
    proofs = dict(await try_walls(workbench, QUICK))
    proofs["memory"] = await _try_memory(workbench)
    proofs["disk"] = await _try_disk(workbench)
    proofs["tree_kill"] = await _try_tree(workbench)
    return proofs


async def _try_memory(workbench: Workbench) -> Proof:
    finished = await _run(workbench, "memory.py")
    if not _is_held(finished):
        return Proof(held=False, told=f"ended at {finished.peak // 2**20} MB")
    limits = workbench.limits
    hidden = await _run(workbench, "shared.py", {"limit": limits.memory_bytes, "piece": limits.shared_bytes})
    if not _is_held(hidden):
        return Proof(held=False, told="shared memory that is not mapped is not counted")
    return Proof(held=True, told=f"ended at {finished.peak // 2**20} MB")


def _is_held(finished: Finished) -> bool:
    """Whether a canary that takes memory was stopped: ended, or refused."""
    is_refused = any(words in finished.stderr for words in ("MemoryError", "Cannot allocate memory"))
    return (finished.ending.verdict == "memory" or is_refused) and "reached" not in finished.stdout


async def _try_disk(workbench: Workbench) -> Proof:
    limits = workbench.limits
    finished = await _run(workbench, "disk.py", {"bytes": limits.disk_bytes, "inodes": limits.inodes})
    if finished.ending.verdict == "disk":
        return Proof(held=True, told="ended when it took too much")
    try:
        told = json.loads(finished.stdout)
    except ValueError:
        return Proof(held=False, told="the canary did not come to an end")
    size, files = told["bytes"] // 2**20, told["files"]
    return Proof(held=told["refused"] == 2, told=f"refused after {size} MB and after {files} files")


async def _try_tree(workbench: Workbench) -> Proof:
    marker = f"apexbridge-canary-{uuid.uuid4().hex}"
    finished = await _run(workbench, "daemon.py", args=(marker,))
    if "left" not in finished.stdout:
        return Proof(held=False, told="the canary did not come to an end")
    deadline = asyncio.get_running_loop().time() + GONE_SECONDS
    while await asyncio.to_thread(_is_alive, marker):
        if asyncio.get_running_loop().time() > deadline:
            return Proof(held=False, told="a daemon outlived its run")
        await asyncio.sleep(0.05)
    return Proof(held=True, told="a daemon of its own session ended with its run")


def _is_alive(marker: str) -> bool:
    for name in os.listdir("/proc"):  # noqa: PTH208
        if name.isdigit():
            try:
                with open(f"/proc/{name}/cmdline", "rb") as file:  # noqa: PTH123
                    if marker.encode() in file.read() and int(name) != os.getpid():
                        return True
            except OSError:
                continue
    return False


async def _try_runtimes(workbench: Workbench) -> list[RuntimeFinding]:
    found = []
    for name, (script, remedy) in _HELLO.items():
        runtime = workbench.runtimes.get(name)
        if runtime is None:
            found.append(RuntimeFinding(runtime=name, works=False, version="not found", remedy=remedy))
            continue
        finished = await _run(workbench, script)
        works = finished.ending.code == 0
        version = finished.stdout.strip() if works else finished.stderr.strip().splitlines()[-1:][0]
        found.append(RuntimeFinding(runtime=name, works=works, version=version, remedy=None if works else remedy))
    return found


async def _run(
    workbench: Workbench, script: str, given: dict[str, object] | None = None, args: tuple[str, ...] = ()
) -> Finished:
    runtime = workbench.runtimes.get(workbench.runtimes.of(script))
    if runtime is None:
        raise LaunchError(f"there is nothing to run {script} with")
    job = Job(skill="canary", folder=CANARIES, script=script, input=given or {}, args=args, timeout_ms=TIMEOUT_MS)
    return await workbench.do(job, runtime, begun=asyncio.get_running_loop().time())


def _finding(
    guarantee: Guarantee, workbench: Workbench, proofs: dict[str, Proof], settings: SandboxSettings
) -> Finding:
    proof, mechanism = proofs[guarantee], workbench.backend.enforcement[guarantee]
    held = proof.held and mechanism is not None
    return Finding(
        guarantee=guarantee,
        required=guarantee in settings.require,
        held=held,
        mechanism=mechanism,
        proof=proof.told,
        remedy=None if held else REMEDIES[guarantee],
    )


def _untried(guarantee: Guarantee, settings: SandboxSettings) -> Finding:
    return Finding(
        guarantee=guarantee,
        required=guarantee in settings.require,
        held=False,
        mechanism=None,
        proof="nothing could be run",
        remedy=REMEDIES[guarantee],
    )


def _diagnosis(
    backend: BackendName | None,
    tried: list[BackendFinding],
    guarantees: list[Finding],
    runtimes: list[RuntimeFinding],
) -> Diagnosis:
    ok = backend is not None and all(finding.held for finding in guarantees if finding.required)
    healthy = ok and all(finding.held for finding in guarantees) and all(runtime.works for runtime in runtimes)
    return Diagnosis(
        ok=ok,
        status="healthy" if healthy else "degraded" if ok else "unavailable",
        backend=backend,
        user="root" if os.getuid() == 0 else "a normal user",
        backends=tried,
        guarantees=guarantees,
        runtimes=runtimes,
    )
