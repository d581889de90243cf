"""Which walls this host can have: the best that prove themselves, and none rather than worse than required."""

import logging
import os
from dataclasses import dataclass

from apexbridge.errors import ServerError
from apexbridge.sandbox.backends import bubblewrap, landlock
from apexbridge.sandbox.backends.backend import Backend
from apexbridge.sandbox.config import BackendName, SandboxSettings
from apexbridge.sandbox.launcher_client import Launcher, LaunchError, Walls
from apexbridge.sandbox.runtimes import Runtimes
from apexbridge.sandbox.self_test import try_walls
from apexbridge.sandbox.session import Workbench

ADVICE: dict[BackendName, str] = {
    "bubblewrap": "allow user namespaces, and install bubblewrap (Debian: apt-get install bubblewrap) or the extra: "
    "pip install 'apexbridge[sandbox]'",
    "landlock": "use a kernel of 5.13 or newer with Landlock enabled",
    "plain": "set SANDBOX_REQUIRE to what you can do without",
}
logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """Walls that stand, and why better ones do not."""

    workbench: Workbench
    refused: dict[BackendName, str]

    @property
    def backend(self) -> Backend:
        """The kind of walls."""
        return self.workbench.backend


async def choose(settings: SandboxSettings, runtimes: Runtimes) -> Choice:
    """Build the best walls this host allows and try them.

    Raises:
        ServerError: SANDBOX_UNAVAILABLE; the message says what is missing and what to do.
    """
    refused: dict[BackendName, str] = {}
    for name in candidates(settings):
        try:
            workbench = await build(name, settings, runtimes)
            return Choice(workbench=workbench, refused=refused)
        except LaunchError as error:
            refused[name] = str(error)
            logger.info("%s cannot be used: %s", name, error)
    told = "; ".join(f"{name}: {why} ({ADVICE[name]})" for name, why in refused.items())
    raise ServerError(
        f"No sandbox is available, so scripts are not run. {told}. `apex doctor` tells more.",
        code="SANDBOX_UNAVAILABLE",
    )


def candidates(settings: SandboxSettings) -> list[BackendName]:
    """What may be tried, best first; no walls at all only where the operator asks for that by name."""
    return ["bubblewrap", "landlock"] if settings.backend == "auto" else [settings.backend]


async def build(name: BackendName, settings: SandboxSettings, runtimes: Runtimes) -> Workbench:
    """Put up one kind of walls and have a canary try them.

    Raises:
        LaunchError: this host refuses, or a required wall does not hold.
    """
    if name != "bubblewrap" and os.getuid() == 0:
        runtimes = runtimes.for_everybody()
    backend, walls = _plan(name, settings, runtimes)
    missing = [guarantee for guarantee in settings.require if backend.enforcement[guarantee] is None]
    if missing:
        raise LaunchError(f"it does not hold what is required: {', '.join(missing)}")
    launcher = Launcher(walls)
    await launcher.start()
    workbench = Workbench(
        launcher=launcher,
        backend=backend.counting(launcher.counted),
        runtimes=runtimes,
        limits=settings.limits,
        path=settings.path,
    )
    try:
        proofs = await try_walls(workbench)
        broken = [
            f"{guarantee}: {proof.told}"
            for guarantee, proof in proofs.items()
            if not proof.held and guarantee in settings.require
        ]
        if broken:
            raise LaunchError(f"a wall does not hold here: {'; '.join(broken)}")
    except BaseException:
        await launcher.stop()
        raise
    return workbench


def _plan(name: BackendName, settings: SandboxSettings, runtimes: Runtimes) -> tuple[Backend, Walls]:
    if name == "bubblewrap":
        program = bubblewrap.find_bubblewrap(settings.path)
        if program is None:
            raise LaunchError("bubblewrap is not installed")
        return bubblewrap.BACKEND, bubblewrap.walls(program, runtimes, settings.limits)
    return landlock.backend(name), landlock.walls(name, runtimes, settings.limits)
