"""Selects the best backend that passes its self-test on this host; none if no backend has the required guarantees.

In the self-test, canary scripts attack the sandbox, and each guarantee is checked by what they could reach.
"""

import asyncio
import json
import logging
import os
import socket
import tempfile
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from apexbridge.errors import ServerError
from apexbridge.sandbox.backends import create_backend
from apexbridge.sandbox.config import BackendName, SandboxSettings
from apexbridge.sandbox.launcher.process_tree import all_processes
from apexbridge.sandbox.launcher_client import LauncherClient
from apexbridge.sandbox.models import Job, LaunchError
from apexbridge.sandbox.outcome import last_line
from apexbridge.sandbox.runtimes import Runtimes
from apexbridge.sandbox.seccomp import refused_numbers
from apexbridge.sandbox.session import FinishedJob, SandboxSession

TIMEOUT_MS = 30_000
DAEMON_SECONDS = 2.0
"""How long a daemon may outlive its run."""
_CANARIES = Path(__file__).parent / "canaries"
ADVICE: dict[BackendName, str] = {
    "bubblewrap": "allow user namespaces, and install bubblewrap (Debian: apt-get install bubblewrap) or the extra: "
    "pip install 'apexbridge[sandbox]'",
    "landlock": "use a kernel of 5.13 or newer with Landlock enabled",
    "plain": "remove from SANDBOX_REQUIRE the guarantees that you can do without",
}
logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckResult:
    """Whether a guarantee held, and what the canary saw."""

    held: bool
    detail: str


async def open_best_session(settings: SandboxSettings, runtimes: Runtimes) -> SandboxSession:
    """Open a session with the best backend that this host allows, or raise SANDBOX_UNAVAILABLE with what to do."""
    rejected: dict[BackendName, str] = {}
    for name in candidates(settings):
        try:
            session = await open_session(name, settings, runtimes)
        except LaunchError as error:
            rejected[name] = str(error)
            logger.info("sandbox backend %s cannot be used: %s", name, error)
        else:
            session.rejected = rejected
            return session
    reasons = "; ".join(f"{name}: {reason} ({ADVICE[name]})" for name, reason in rejected.items())
    raise ServerError(
        f"No sandbox is available, so scripts are not run. {reasons}. Run `apex doctor` for details.",
        code="SANDBOX_UNAVAILABLE",
    )


def candidates(settings: SandboxSettings) -> list[BackendName]:
    """The backends to try, best first; `plain` is used only if the operator names it."""
    return ["bubblewrap", "landlock"] if settings.backend == "auto" else [settings.backend]


async def open_session(name: BackendName, settings: SandboxSettings, runtimes: Runtimes) -> SandboxSession:
    """Start a launcher with one backend and run the self-test. Raises LaunchError if the backend cannot be used."""
    if name != "bubblewrap" and os.getuid() == 0:
        runtimes = runtimes.reachable_by_all()
    backend = create_backend(name, runtimes, settings.limits, settings.path)
    if missing := [guarantee for guarantee in settings.require if backend.enforcement[guarantee] is None]:
        raise LaunchError(f"it does not enforce what is required: {', '.join(missing)}")
    launcher = LauncherClient(backend.launcher)
    await launcher.start()
    session = SandboxSession(launcher, backend.with_cgroups(launcher.cgroup_controllers), runtimes, settings)
    try:
        results = await run_quick_checks(session)
        failed = [name for name, result in results.items() if not result.held and name in settings.require]
        if failed:
            details = "; ".join(f"{name}: {results[name].detail}" for name in failed)
            raise LaunchError(f"a required guarantee does not hold: {details}")
    except BaseException:
        await launcher.stop()
        raise
    return session


async def run_all_checks(session: SandboxSession) -> dict[str, CheckResult]:
    return {
        **await run_quick_checks(session),
        "memory": await _check_memory(session),
        "disk": await _check_disk(session),
        "tree_kill": await _check_tree_kill(session),
    }


async def run_quick_checks(session: SandboxSession) -> dict[str, CheckResult]:
    """The checks that take well under a second; they run before a backend is used."""
    with _bait() as bait:
        limits = session.limits
        own = {"files": limits.files, "processes": limits.processes, "syscalls": refused_numbers()}
        finished = await run_canary(session, "canary.py", {**bait, **own})
    if finished.ending.code != 0 or finished.ending.verdict is not None:
        reason = last_line(finished.stderr).removeprefix("bwrap: ")
        raise LaunchError(reason or f"the self-test ended with {finished.ending}")
    results = json.loads(finished.stdout)
    return {name: CheckResult(held=result["held"], detail=result["proof"]) for name, result in results.items()}


async def run_canary(
    session: SandboxSession, script: str, canary_input: dict[str, Any] | None = None, arguments: Sequence[str] = ()
) -> FinishedJob:
    job = Job(
        skill="canary",
        folder=_CANARIES,
        script=script,
        input=canary_input or {},
        args=tuple(arguments),
        timeout_ms=TIMEOUT_MS,
    )
    return await session.run(job)


async def _check_memory(session: SandboxSession) -> CheckResult:
    finished = await run_canary(session, "canary.py", {"attack": "memory"})
    detail = f"killed at {finished.ending.peak_memory // 2**20} MB"
    if not _was_memory_limited(finished):
        return CheckResult(held=False, detail=detail)
    limits = session.limits
    attack = {"attack": "shared_memory", "limit": limits.memory_bytes, "size": limits.shared_bytes}
    if not _was_memory_limited(await run_canary(session, "canary.py", attack)):
        return CheckResult(held=False, detail="shared memory that is not mapped is not counted")
    return CheckResult(held=True, detail=detail)


def _was_memory_limited(finished: FinishedJob) -> bool:
    """Whether the run was killed, or an allocation failed."""
    is_refused = any(message in finished.stderr for message in ("MemoryError", "Cannot allocate memory"))
    return (finished.ending.verdict == "memory" or is_refused) and "reached" not in finished.stdout


async def _check_disk(session: SandboxSession) -> CheckResult:
    attack = {"attack": "disk", "bytes": session.limits.disk_bytes, "inodes": session.limits.inodes}
    finished = await run_canary(session, "canary.py", attack)
    if finished.ending.verdict == "disk":
        return CheckResult(held=True, detail="killed when it used too much")
    try:
        report = json.loads(finished.stdout)
    except ValueError:
        return CheckResult(held=False, detail="the canary did not finish")
    detail = f"refused after {report['bytes'] // 2**20} MB and after {report['files']} files"
    return CheckResult(held=report["refused"] == 2, detail=detail)


async def _check_tree_kill(session: SandboxSession) -> CheckResult:
    marker = f"apexbridge-canary-{uuid.uuid4().hex}"
    finished = await run_canary(session, "canary.py", {"attack": "daemon", "marker": marker})
    if "left" not in finished.stdout:
        return CheckResult(held=False, detail="the canary did not finish")
    deadline = asyncio.get_running_loop().time() + DAEMON_SECONDS
    while await asyncio.to_thread(_is_running, marker):
        if asyncio.get_running_loop().time() > deadline:
            return CheckResult(held=False, detail="a daemon outlived its run")
        await asyncio.sleep(0.05)
    return CheckResult(held=True, detail="a daemon in its own session ended with its run")


def _is_running(marker: str) -> bool:
    for pid in all_processes():
        try:
            if marker.encode() in Path(f"/proc/{pid}/cmdline").read_bytes():
                return True
        except OSError:
            continue
    return False


@contextmanager
def _bait() -> Iterator[dict[str, Any]]:
    """Things of the host that a run must not reach: a readable file, an open port, an abstract socket."""
    with (
        tempfile.TemporaryDirectory(prefix="apexbridge-canary-") as folder,
        socket.create_server(("127.0.0.1", 0)) as port,
        socket.socket(socket.AF_UNIX) as abstract,
    ):
        path = Path(folder)
        path.chmod(0o777)
        secret = path / "secret"
        secret.write_text("out of reach")
        secret.chmod(0o644)
        abstract.bind(f"\0{path.name}")
        abstract.listen()
        tmp = Path("/tmp").stat()  # noqa: S108  # the host's: a run must not write there, only in one of its own
        yield {
            "secret": str(secret),
            "folder": folder,
            "tmp": [tmp.st_dev, tmp.st_ino],
            "port": port.getsockname()[1],
            "abstract": path.name,
        }
