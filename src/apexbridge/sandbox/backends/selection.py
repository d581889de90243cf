"""Selects the best backend that passes its self-test on this host; none if no backend has the required guarantees."""

import logging
import os
from dataclasses import replace

from apexbridge.errors import ServerError
from apexbridge.sandbox.backends import bubblewrap
from apexbridge.sandbox.backends.backend import Backend
from apexbridge.sandbox.backends.landlock import landlock_backend
from apexbridge.sandbox.config import BackendName, SandboxSettings
from apexbridge.sandbox.launcher_client import LauncherClient, LaunchError
from apexbridge.sandbox.runtimes import Runtimes
from apexbridge.sandbox.self_test import run_quick_checks
from apexbridge.sandbox.session import SandboxSession

ADVICE: dict[BackendName, str] = {
    "bubblewrap": "allow user namespaces, and install bubblewrap (Debian: apt-get install bubblewrap) or the extra: "
    "pip install 'apexbridge[sandbox]'",
    "landlock": "use a kernel of 5.13 or newer with Landlock enabled",
    "plain": "remove from SANDBOX_REQUIRE the guarantees that you can do without",
}
logger = logging.getLogger(__name__)


async def open_best_session(settings: SandboxSettings, runtimes: Runtimes) -> SandboxSession:
    """Open a session with the best backend that this host allows.

    Raises:
        ServerError: SANDBOX_UNAVAILABLE; the message says what is missing and what to do.
    """
    rejected: dict[BackendName, str] = {}
    for name in candidates(settings):
        try:
            session = await open_session(name, settings, runtimes)
            return replace(session, rejected=rejected)
        except LaunchError as error:
            rejected[name] = str(error)
            logger.info("sandbox backend %s cannot be used: %s", name, error)
    reasons = "; ".join(f"{name}: {reason} ({ADVICE[name]})" for name, reason in rejected.items())
    raise ServerError(
        f"No sandbox is available, so scripts are not run. {reasons}. Run `apex doctor` for details.",
        code="SANDBOX_UNAVAILABLE",
    )


def candidates(settings: SandboxSettings) -> list[BackendName]:
    """The backends to try, best first; `plain` is used only if the operator names it."""
    return ["bubblewrap", "landlock"] if settings.backend == "auto" else [settings.backend]


async def open_session(name: BackendName, settings: SandboxSettings, runtimes: Runtimes) -> SandboxSession:
    """Start a launcher with one backend and run the self-test.

    Raises:
        LaunchError: this host does not allow the backend, or a required guarantee does not hold.
    """
    if name != "bubblewrap" and os.getuid() == 0:
        runtimes = runtimes.reachable_by_all()
    backend = _create_backend(name, settings, runtimes)
    missing = [guarantee for guarantee in settings.require if backend.enforcement[guarantee] is None]
    if missing:
        raise LaunchError(f"it does not enforce what is required: {', '.join(missing)}")
    launcher = LauncherClient(backend)
    await launcher.start()
    session = SandboxSession(
        launcher=launcher,
        backend=backend.with_cgroups(launcher.cgroup_controllers),
        runtimes=runtimes,
        limits=settings.limits,
        path=settings.path,
    )
    try:
        results = await run_quick_checks(session)
        failed = [
            f"{guarantee}: {result.detail}"
            for guarantee, result in results.items()
            if not result.held and guarantee in settings.require
        ]
        if failed:
            raise LaunchError(f"a required guarantee does not hold: {'; '.join(failed)}")
    except BaseException:
        await launcher.stop()
        raise
    return session


def _create_backend(name: BackendName, settings: SandboxSettings, runtimes: Runtimes) -> Backend:
    if name != "bubblewrap":
        return landlock_backend(name, runtimes, settings.limits)
    program = bubblewrap.find_bubblewrap(settings.path)
    if program is None:
        raise LaunchError("bubblewrap is not installed")
    return bubblewrap.bubblewrap_backend(program, runtimes, settings.limits)
