"""The sandbox: a job goes in, a result comes out, and whatever happened in between is gone."""

import asyncio
import logging
import os
import stat
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import anyio
import anyio.to_thread

from apexbridge.disk import Disk
from apexbridge.errors import ServerError, SkillPermissionError
from apexbridge.sandbox.backends.selection import Choice, choose
from apexbridge.sandbox.config import SandboxSettings
from apexbridge.sandbox.launcher_client import LaunchError
from apexbridge.sandbox.models import ExecutionResult, Grants, Job
from apexbridge.sandbox.outcome import Ending, failure_of
from apexbridge.sandbox.output import Listener
from apexbridge.sandbox.pool import WarmPool
from apexbridge.sandbox.queue import Slots
from apexbridge.sandbox.run_input import arguments, input_json
from apexbridge.sandbox.runtimes import RuntimeName, Runtimes
from apexbridge.sandbox.session import Cancel, Finished, Waiting

logger = logging.getLogger(__name__)
Started = Callable[[Cancel], None]


class Sandbox:
    """Runs jobs inside walls, so many at once. Nothing is started before the first job, unless asked to."""

    def __init__(self, settings: SandboxSettings | None = None, *, disk: Disk | None = None) -> None:
        """Artifacts are claimed on `disk`."""
        self.settings = settings or SandboxSettings()
        self._disk = disk
        self.slots = Slots(self.settings.max_concurrency, self.settings.queue)
        self._runtimes = Runtimes(self.settings.path)
        self._choice: Choice | None = None
        self._pool: WarmPool | None = None
        self._choosing = anyio.Lock()
        self._is_closed = False

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Everything that was started is gone when the block ends."""
        try:
            yield
        finally:
            self._is_closed = True
            await self._stop()

    async def ready(self) -> Choice:
        """The walls, built and tried; built anew where their launcher has ended.

        Raises:
            ServerError: SANDBOX_UNAVAILABLE.
        """
        async with self._choosing:
            if self._is_closed:
                raise ServerError("The server is stopping.", code="SANDBOX_UNAVAILABLE")
            if self._choice is None or not self._choice.workbench.launcher.is_alive:
                await self._stop()
                await anyio.to_thread.run_sync(self._runtimes.discover)
                self._choice = await choose(self.settings, self._runtimes)
                self._pool = WarmPool(self._choice.workbench, self.settings.warm)
            return self._choice

    @property
    def node_version(self) -> str | None:
        """The Node that runs skills; None where there is none, or none was looked for yet."""
        node = self._runtimes.get("node")
        return node.version if node else None

    async def warm_up(self) -> None:
        """Build the walls and fill the pool before the first job comes."""
        await self.ready()
        if self._pool is not None:
            await self._pool.filled()

    async def check(self, job: Job, *, caller: str = "") -> None:
        """Refuse what cannot be run, before anybody is told that it will be.

        Raises:
            ServerError: SANDBOX_UNAVAILABLE, or QUEUE_FULL.
            SkillPermissionError: the script cannot be read.
            InvalidInputError: the arguments cannot be passed on.
        """
        self.slots.refuse_when_full(caller)
        await self.ready()
        _check_readable(job)
        arguments(job)
        input_json(job)

    async def run(
        self,
        job: Job,
        *,
        caller: str = "",
        is_reserved: bool = False,
        grants: Callable[[], Awaitable[Grants]] | None = None,
        identity: str | None = None,
        artifacts: Path | None = None,
        listener: Listener | None = None,
        started: Started | None = None,
    ) -> ExecutionResult:
        """Wait for a turn and run a job; what it does wrong is in the result.

        `started` is told when the job's turn has come, and how to cancel it from then on; `grants` is asked then what
        the job may have.

        Raises:
            ServerError: SANDBOX_UNAVAILABLE, or QUEUE_FULL.
            SkillPermissionError: the script cannot be read.
            InvalidInputError: the arguments cannot be passed on.
        """
        async with self.slots.turn(caller, is_reserved=is_reserved):
            _check_readable(job)
            if grants is not None:
                job = replace(job, grants=await grants())
            choice = await self.ready()
            try:
                return await self._run(choice, job, identity or uuid.uuid4().hex, caller, artifacts, listener, started)
            finally:
                if self._pool is not None:
                    self._pool.fill()

    async def _run(
        self,
        choice: Choice,
        job: Job,
        identity: str,
        caller: str,
        artifacts: Path | None,
        listener: Listener | None,
        started: Started | None,
    ) -> ExecutionResult:
        begun = asyncio.get_running_loop().time()
        measured = time.monotonic()
        name = self._runtimes.of(job.script)
        runtime = choice.workbench.runtimes.get(name)
        if runtime is None:
            finished = _not_started(f"there is no {name} on this host")
        else:
            try:
                choice.workbench.refuse_the_impossible(job)
                waiting = self._take(job, name)
                finished = await choice.workbench.do(
                    job,
                    runtime,
                    begun=begun,
                    waiting=waiting,
                    artifacts=artifacts,
                    disk=self._disk,
                    caller=caller,
                    listener=listener,
                    started=started,
                )
            except LaunchError as error:
                finished = _not_started(str(error))
            except OSError as error:  # no descriptors or no memory for pipes: nothing of the job's doing
                raise ServerError(
                    f"The run could not be started: {error.strerror}. Try again later.", code="SANDBOX_UNAVAILABLE"
                ) from error
        return self._result(identity, job, finished, choice, round((time.monotonic() - measured) * 1000))

    def _take(self, job: Job, runtime: RuntimeName) -> Waiting | None:
        """A waiting cell, for jobs that need nothing that has to be there from the start."""
        if self._pool is None or job.files or job.grants.hosts or job.grants.paths:
            return None
        return self._pool.take(runtime)

    def _result(self, identity: str, job: Job, finished: Finished, choice: Choice, duration: int) -> ExecutionResult:
        failure = failure_of(finished.ending, finished.stderr, output_limit=self.settings.limits.output_bytes)
        has_started = finished.ending.code is not None or finished.ending.verdict is not None
        return ExecutionResult(
            id=identity,
            success=failure is None,
            status="success" if failure is None else "timeout" if failure.code == "TIMEOUT" else "error",
            stdout=finished.stdout,
            stderr=finished.stderr,
            exit_code=failure.exit_code if failure else 0,
            duration=duration,
            error=failure.message if failure else None,
            error_code=failure.code if failure else None,
            truncated=finished.is_truncated,
            files=finished.files,
            peak_memory=finished.peak or None,
            enforcement=choice.backend.told_for(job.grants) if has_started else {},
            warnings=[*job.warnings, *finished.warnings],
        ).of_skill(job.skill)

    async def _stop(self) -> None:
        pool, self._pool = self._pool, None
        if pool is not None:
            await pool.close()
        choice, self._choice = self._choice, None
        if choice is not None:
            await choice.workbench.launcher.stop()


def _check_readable(job: Job) -> None:
    """A script that cannot be read by the user it would run as is the installer's mistake, and no run."""
    try:
        reason = _reason_against(job.folder / job.script, len(Path(job.script).parents))
    except OSError as error:
        reason = str(error.strerror).lower()
    if reason is not None:
        raise SkillPermissionError(f"{job.script} cannot be read: {reason}", skill=job.skill, cause=reason)


def _reason_against(path: Path, depth: int) -> str | None:
    if not path.is_file():
        return "it is not there"
    if os.getuid() != 0:
        return None if os.access(path, os.R_OK) else "permission denied"
    # Root may read everything; the run is another user.
    is_open = all(folder.stat().st_mode & stat.S_IXOTH for folder in path.parents[:depth])
    return None if is_open and path.stat().st_mode & stat.S_IROTH else "permission denied"


def _not_started(why: str) -> Finished:
    return Finished(ending=Ending(code=None), stdout="", stderr=why, peak=0, is_truncated=False, files=[], warnings=[])
