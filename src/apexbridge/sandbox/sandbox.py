"""The sandbox: runs jobs, at most a number at a time, and returns their results."""

import asyncio
import os
import stat
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

from apexbridge._tasks import in_thread, run_to_completion
from apexbridge.disk import Disk
from apexbridge.errors import ServerError, SkillPermissionError
from apexbridge.sandbox.backends import Backend
from apexbridge.sandbox.bundles import Bundles
from apexbridge.sandbox.config import SandboxSettings
from apexbridge.sandbox.explanation import Explanation, RunFolders, browser_note, explain
from apexbridge.sandbox.launcher.mounts import PYTHON_LAYERS, SKILL_PATH, SKILLS_PATH
from apexbridge.sandbox.models import ExecutionResult, Grants, Job, LaunchError, RunFile
from apexbridge.sandbox.outcome import Ending, Failure, failure_of
from apexbridge.sandbox.output import OutputListener
from apexbridge.sandbox.queue import RunQueue
from apexbridge.sandbox.run_input import arguments, input_json
from apexbridge.sandbox.runtimes import Runtimes, runtime_name
from apexbridge.sandbox.selection import open_best_session
from apexbridge.sandbox.session import Collect, FinishedJob, OnStart, SandboxSession
from apexbridge.sandbox.workspace_files import MAX_BYTES, UNCHANGED, AppliedChanges, Changes, collect_changes


class Sandbox:
    """Runs jobs in a sandbox. Nothing is started before the first job or `warm_up`."""

    def __init__(
        self,
        settings: SandboxSettings | None = None,
        *,
        disk: Disk | None = None,
        bundles: Bundles | None = None,
        max_runs_of: Callable[[str], int | None] = lambda caller: None,
    ) -> None:
        """Artifacts are claimed on `disk`. Every run sees the packages of `bundles`. `max_runs_of` returns how many
        runs of a caller may be active at a time; None for any number."""
        self.settings = settings or SandboxSettings()
        self.queue = RunQueue(self.settings.max_concurrency, self.settings.queue, limit_of=max_runs_of)
        self._disk = disk
        self._bundles = bundles
        self._runtimes = Runtimes(self.settings.path)
        self._session: SandboxSession | None = None
        self._opening = asyncio.Lock()
        self._is_closed = False

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Stops everything that was started when the block ends."""
        try:
            yield
        finally:
            self._is_closed = True
            await self._stop()

    async def ready(self) -> SandboxSession:
        """The session, opened and tested; opened again if its launcher has ended. Raises SANDBOX_UNAVAILABLE."""
        async with self._opening:
            if self._is_closed:
                raise ServerError("The server is stopping.", code="SANDBOX_UNAVAILABLE")
            if self._session is None or not self._session.launcher.is_alive:
                await self._stop()
                await asyncio.to_thread(self._runtimes.discover)
                self._session = await open_best_session(self.settings, self._runtimes)
            return self._session

    @property
    def backend(self) -> Backend | None:
        """The backend of the open session; None before the first one."""
        return self._session.backend if self._session is not None else None

    @property
    def node_version(self) -> str | None:
        """The Node that runs skills; None if there is none, or before the first session."""
        node = self._runtimes.get("node")
        return node.version if node else None

    @property
    def node_program(self) -> str | None:
        """The path of the Node that runs skills."""
        node = self._runtimes.get("node")
        return node.program if node else None

    async def warm_up(self) -> None:
        session = await self.ready()
        await session.pool.wait_until_full()

    async def check(self, job: Job, *, caller: str = "") -> None:
        """Refuse a job that cannot be run: SANDBOX_UNAVAILABLE, QUEUE_FULL, SkillPermissionError, InvalidInputError."""
        self.queue.check_capacity(caller)
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
        run_id: str | None = None,
        artifacts: Path | None = None,
        listener: OutputListener | None = None,
        on_start: OnStart | None = None,
    ) -> ExecutionResult:
        """Wait in the queue and run a job; failures of the script are in the result. Raises the errors of `check`.

        When the job's turn comes, `grants` is called for its grants and `on_start` with a function that cancels it.
        """
        collect: Collect | None = None
        if artifacts is not None:
            limit = self.settings.limits.disk_bytes if job.workspace is None else MAX_BYTES
            collect = partial(collect_changes, target=artifacts, limit=limit, disk=self._disk, caller=caller)
        async with self.queue.turn(caller, is_reserved=is_reserved):
            _check_readable(job)
            if grants is not None:
                job = replace(job, grants=await grants())
            session = await self.ready()
            job = self._with_bundles(job, session)
            begun = time.monotonic()
            try:
                finished = await session.run(job, collect=collect, listener=listener, on_start=on_start)
            except LaunchError as error:
                finished = FinishedJob(ending=Ending(code=None), stderr=str(error))
            except OSError as error:  # the server has no descriptors or memory for pipes: not the job's fault
                raise ServerError(
                    f"The run could not be started: {error.strerror}. Try again later.", code="SANDBOX_UNAVAILABLE"
                ) from error
            finally:
                session.pool.fill_soon()
            duration = round((time.monotonic() - begun) * 1000)
        failure = failure_of(
            finished.ending, finished.stderr, limits=self.settings.limits, keeps_class=job.code is not None
        )
        changes = finished.changes
        explanation = await in_thread(_explain, job, failure, finished.stderr) if failure else Explanation()
        note = browser_note(finished.stderr, self.settings.limits) if failure else None
        warnings = [*job.warnings, *changes.warnings, *explanation.messages, *([note] if note else [])]
        has_started = finished.ending.code is not None or finished.ending.verdict is not None
        # After a write that failed for the disk limit, a file is incomplete.
        is_full = failure is not None and failure.code == "DISK_LIMIT"
        is_incomplete = is_full or finished.ending.code is None or finished.ending.verdict is not None
        applied = AppliedChanges()
        if job.workspace is not None and artifacts is not None:
            if is_incomplete:
                reason = "The disk limit was exceeded." if is_full else "The run was stopped."
                applied = AppliedChanges(warnings=[f"{reason} {UNCHANGED}"] if has_started and changes.has_any else ())
            else:
                applied = await run_to_completion(job.workspace.keep(changes, artifacts))
            warnings += applied.warnings
        result = ExecutionResult(
            id=run_id or uuid.uuid4().hex,
            success=failure is None,
            status="success" if failure is None else "timeout" if failure.code == "TIMEOUT" else "error",
            stdout=finished.stdout,
            stderr=finished.stderr,
            exit_code=failure.exit_code if failure else 0,
            duration=duration,
            error=failure.message if failure else None,
            error_code=failure.code if failure else None,
            truncated=finished.is_truncated,
            files=sorted(_run_files(changes, applied), key=lambda file: file.path),
            workspace=job.workspace.id if job.workspace is not None else None,
            peak_memory=finished.ending.peak_memory or None,
            enforcement=session.backend.enforcement_for(job.grants) if has_started else {},
            warnings=warnings,
            missing=explanation.missing,
        ).of_skill(job.skill)
        if job.workspace is not None:
            result.with_workspace_files(tuple(RunFile(path=file.path, size=file.size) for file in applied.files))
        return result

    def _with_bundles(self, job: Job, session: SandboxSession) -> Job:
        """The job with the installed bundles beneath the packages of its skill, if the backend can provide them."""
        if self._bundles is None:
            return job
        layers = {name: path for name, path in self._bundles.layers().items() if name in session.backend.layer_paths}
        return replace(job, layers={**layers, **job.layers}) if layers else job

    async def _stop(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            await session.close()


def _run_files(changes: Changes, applied: AppliedChanges) -> list[RunFile]:
    """The files of a run: at their paths in the workspace if that has kept them, else among the run's artifacts."""
    in_workspace = set(applied.files)
    return [
        RunFile(path=file.path if file in in_workspace else file.artifact, size=file.size) for file in changes.files
    ]


def _explain(job: Job, failure: Failure, stderr: str) -> Explanation:
    if failure.code != "EXIT_NONZERO":
        return Explanation()
    own = {SKILL_PATH: job.folder} if job.folder else {}
    layers, node = job.layers, job.layers.get("node_modules")
    return explain(
        stderr,
        failure.exit_code,
        runtime_name(job.script),
        code=job.code or "",
        skill=job.skill or next(reversed([*job.skills]), None),  # the last one that was loaded
        bundles=layers,
        folders=RunFolders(
            skills={**own, **{f"{SKILLS_PATH}/{name}": skill.folder for name, skill in job.skills.items()}},
            python=[*job.python_packages.values(), *(layers[name] for name in PYTHON_LAYERS if name in layers)],
            node=[*job.node_packages.values(), *([node] if node else [])],
        ),
        has_network=bool(job.grants.hosts),
    )


def _check_readable(job: Job) -> None:
    """A script that the run's user cannot read is an error of the installation: there is no run."""
    if job.folder is None:
        return
    try:
        reason = _unreadable_reason(job.folder / job.script, len(Path(job.script).parents))
    except OSError as error:
        reason = str(error.strerror).lower()
    if reason is not None:
        raise SkillPermissionError(f"{job.script} cannot be read: {reason}", skill=job.skill, cause=reason)


def _unreadable_reason(path: Path, depth: int) -> str | None:
    if not path.is_file():
        return "file not found"
    if os.getuid() != 0:
        return None if os.access(path, os.R_OK) else "permission denied"
    # Root can read everything, but the run has another user.
    is_reachable = all(folder.stat().st_mode & stat.S_IXOTH for folder in path.parents[:depth])
    return None if is_reachable and path.stat().st_mode & stat.S_IROTH else "permission denied"
