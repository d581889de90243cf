"""What this host enforces: each guarantee is tested, and reported with its mechanism, the proof and a remedy."""

import asyncio
import os
from typing import Literal

from apexbridge.sandbox.config import GUARANTEES, Guarantee, SandboxLimits, SandboxSettings
from apexbridge.sandbox.models import LaunchError
from apexbridge.sandbox.outcome import last_line
from apexbridge.sandbox.programs import BROWSER, REPORTED_PROGRAMS, browser_settings, install_command
from apexbridge.sandbox.runtimes import RuntimeName, Runtimes
from apexbridge.sandbox.selection import ADVICE, CheckResult, candidates, open_session, run_all_checks, run_canary
from apexbridge.sandbox.session import SandboxSession
from apexbridge.wire import WireModel

_USE_BUBBLEWRAP = "use the bubblewrap backend: it needs user namespaces"
REMEDIES: dict[Guarantee, str] = {
    "fs": _USE_BUBBLEWRAP,
    "net": _USE_BUBBLEWRAP,
    "tree_kill": _USE_BUBBLEWRAP,
    "memory": "let the server read /proc of its own children",
    "pids": "use the bubblewrap backend with a kernel of 5.14 or newer, or run the server as root",
    "disk": "use the bubblewrap backend: its workspace has a size limit",
    "env": "report this as a bug: it does not depend on the host",
    "fds": "raise the server's own limit: ulimit -n 1024",
    "syscalls": "use a kernel with seccomp on x86-64 or arm64",
}
_HELLO: dict[RuntimeName, tuple[str, str]] = {
    "node": ("hello.js", "apt-get install nodejs, or pip install 'apexbridge[sandbox]'"),
    "python": ("canary.py", "start the server with a Python whose files its user can read"),
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
    """One interpreter, started in the sandbox."""

    runtime: str
    works: bool
    version: str
    remedy: str | None = None


class ProgramFinding(WireModel):
    """One program of the host that public skills call, looked for in the sandbox."""

    program: str
    found: bool
    remedy: str | None = None


class BackendFinding(WireModel):
    """A backend that was tried."""

    backend: str
    usable: bool
    reason: str | None = None
    remedy: str | None = None


class Diagnosis(WireModel):
    """All findings."""

    ok: bool
    """Whether every required guarantee holds."""
    status: Literal["healthy", "degraded", "unavailable"]
    backend: str | None
    user: str
    backends: list[BackendFinding]
    guarantees: list[Finding]
    runtimes: list[RuntimeFinding]
    programs: list[ProgramFinding]
    """They do not influence the status: only skills that call them need them."""


async def diagnose(settings: SandboxSettings) -> Diagnosis:
    """Open a session with the backend that the server would use, and test each guarantee."""
    runtimes = Runtimes(settings.path)
    await asyncio.to_thread(runtimes.discover)
    tried: list[BackendFinding] = []
    lenient = settings.model_copy(update={"require": ()})
    session: SandboxSession | None = None
    for name in candidates(settings):
        try:
            session = await open_session(name, lenient, runtimes)
        except LaunchError as error:
            tried.append(BackendFinding(backend=name, usable=False, reason=str(error), remedy=ADVICE[name]))
        else:
            tried.append(BackendFinding(backend=name, usable=True))
            break
    results: dict[str, CheckResult] = {}
    started: list[RuntimeFinding] = []
    programs: list[ProgramFinding] = []
    if session is not None:
        try:
            results = await run_all_checks(session)
            started = [await _test_runtime(session, name) for name in _HELLO]
            programs = await _find_programs(session)
        finally:
            await session.close()
    guarantees = [_finding(guarantee, session, results, settings) for guarantee in GUARANTEES]
    ok = session is not None and all(finding.held for finding in guarantees if finding.required)
    healthy = ok and all(finding.held for finding in guarantees) and all(runtime.works for runtime in started)
    return Diagnosis(
        ok=ok,
        status="healthy" if healthy else "degraded" if ok else "unavailable",
        backend=session.backend.launcher.backend if session else None,
        user="root" if os.getuid() == 0 else "a normal user",
        backends=tried,
        guarantees=guarantees,
        runtimes=started,
        programs=programs,
    )


async def _test_runtime(session: SandboxSession, name: RuntimeName) -> RuntimeFinding:
    script, remedy = _HELLO[name]
    if session.runtimes.get(name) is None:
        return RuntimeFinding(runtime=name, works=False, version="not found", remedy=remedy)
    finished = await run_canary(session, script, {"attack": "none"})
    if finished.ending.code == 0:
        return RuntimeFinding(runtime=name, works=True, version=finished.stdout.strip())
    return RuntimeFinding(runtime=name, works=False, version=last_line(finished.stderr), remedy=remedy)


async def _find_programs(session: SandboxSession) -> list[ProgramFinding]:
    finished = await run_canary(session, "programs.sh", arguments=REPORTED_PROGRAMS)
    found = finished.stdout.split()
    return [
        ProgramFinding(
            program=program,
            found=program in found,
            remedy=_limits_for(program, session.limits) if program in found else install_command(program),
        )
        for program in REPORTED_PROGRAMS
    ]


def _limits_for(program: str, limits: SandboxLimits) -> str | None:
    settings = browser_settings(limits) if program == BROWSER else None
    return f"works with {settings}" if settings else None


def _finding(
    guarantee: Guarantee, session: SandboxSession | None, results: dict[str, CheckResult], settings: SandboxSettings
) -> Finding:
    mechanism = session.backend.enforcement[guarantee] if session else None
    result = results.get(guarantee)
    held = result is not None and result.held and mechanism is not None
    return Finding(
        guarantee=guarantee,
        required=guarantee in settings.require,
        held=held,
        mechanism=mechanism,
        proof=result.detail if result else "no script could be run",
        remedy=None if held else REMEDIES[guarantee],
    )
