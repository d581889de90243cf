"""A session: a launcher with its backend, in which jobs run one per cell, cold or in a warm cell."""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from apexbridge._tasks import in_thread, run_to_completion
from apexbridge.errors import ServerError
from apexbridge.sandbox.backends import Backend
from apexbridge.sandbox.config import BackendName, SandboxSettings
from apexbridge.sandbox.launcher.protocol import StartRequest
from apexbridge.sandbox.launcher_client import CellHandle, LauncherClient
from apexbridge.sandbox.masking import secret_patterns
from apexbridge.sandbox.models import Job, LaunchError, RunFile
from apexbridge.sandbox.outcome import Ending
from apexbridge.sandbox.output import OutputListener, RunOutput
from apexbridge.sandbox.proxy import GrantedHosts, host_endpoints
from apexbridge.sandbox.run_input import (
    arguments,
    base_environment,
    copy_input_files,
    encode_job,
    environment,
    input_json,
)
from apexbridge.sandbox.runtimes import WARM_RUNTIMES, Runtime, RuntimeName, Runtimes, runtime_name, shell_for
from apexbridge.sandbox.supervisor import Supervisor

Cancel = Callable[[], None]
Collect = Callable[[int, Sequence[str]], tuple[list[RunFile], list[str]]]
"""Collects artifacts from an open workspace, except for those that contain a secret."""
OnStart = Callable[[Cancel], None]
"""Called when a job starts, with a function that cancels it."""
logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishedJob:
    ending: Ending
    stdout: str = ""
    stderr: str = ""
    is_truncated: bool = False
    files: list[RunFile] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)


class SandboxSession:
    """Runs jobs with one launcher."""

    def __init__(
        self, launcher: LauncherClient, backend: Backend, runtimes: Runtimes, settings: SandboxSettings
    ) -> None:
        self.launcher = launcher
        self.backend = backend
        self.runtimes = runtimes
        self.limits = settings.limits
        self.pool = WarmPool(self, settings.warm)
        self.rejected: Mapping[BackendName, str] = {}
        """Better backends, and why they cannot be used."""
        self._path = settings.path

    async def close(self) -> None:
        await self.pool.close()
        await self.launcher.stop()

    async def open_warm_cell(self, runtime: Runtime) -> CellHandle:
        """A cell with a started interpreter that has no job yet."""
        cell = await self.launcher.open_cell()
        try:
            workspace = self._workspace(cell)
            request = StartRequest(
                command=self._loader_command(runtime, cell),
                environment=base_environment(workspace, self._path),
                workspace=workspace,
            )
            await cell.start(request, with_job=True)
        except BaseException:
            await cell.close()
            raise
        return cell

    async def run(
        self,
        job: Job,
        *,
        collect: Collect | None = None,
        listener: OutputListener | None = None,
        on_start: OnStart | None = None,
    ) -> FinishedJob:
        """Run a job to its end. Raises LaunchError if it cannot be started."""
        deadline = asyncio.get_running_loop().time() + job.timeout_ms / 1000
        runtime = self._runtime_for(job)
        # Input files, granted hosts and granted paths must be known when a cell starts.
        needs_own_cell = bool(job.files or job.grants.hosts or job.grants.paths)
        warm_cell = None if needs_own_cell else self.pool.take(runtime.name)
        cell = warm_cell or await self.launcher.open_cell(with_input=bool(job.files))
        secrets = secret_patterns(job.grants.secrets)
        output = RunOutput(self.limits.output_bytes, secrets=secrets, listener=listener)
        supervisor = Supervisor(cell, output, deadline=deadline)
        try:
            if on_start is not None:
                on_start(lambda: supervisor.kill_for("cancelled"))
            text = input_json(job)
            if warm_cell:
                await cell.attach(str(job.folder), _layer_folders(job), job.grants.folder)
                packet: bytes | None = self._encoded_job(job, cell, text)
            else:
                packet = await self._start(job, runtime, cell, text)
            supervisor.begin(stdin=text.encode("utf-8", "surrogatepass"), job=packet)
            async with GrantedHosts(job.grants, cell).reachable():
                ending = await supervisor.wait()
            stdout, stderr = output.finish()
            files, warnings = list[RunFile](), list[str]()
            if collect is not None and cell.is_open:
                collecting = asyncio.to_thread(collect, cell.opened.result()[0], secrets)
                files, warnings = await run_to_completion(collecting)
            return FinishedJob(
                ending=ending,
                stdout=stdout,
                stderr=stderr,
                is_truncated=output.is_truncated,
                files=files,
                warnings=warnings,
            )
        finally:
            supervisor.stop()
            self.launcher.close_in_background(cell)

    def _runtime_for(self, job: Job) -> Runtime:
        """Raise LaunchError if there is none, or for a grant or layer that this backend cannot provide."""
        name = runtime_name(job.script)
        runtime = self.runtimes.get(name)
        if runtime is None:
            raise LaunchError(f"there is no {name} on this host")
        missing = [kind for kind in job.layers if kind not in self.backend.layer_paths]
        missing += ["granted hosts"] if job.grants.hosts and not self.backend.has_namespaces else []
        if missing:
            raise LaunchError(f"the {self.backend.launcher.backend} sandbox cannot provide: {', '.join(missing)}")
        return runtime

    async def _start(self, job: Job, runtime: Runtime, cell: CellHandle, text: str) -> bytes | None:
        """Start a cold cell; returns the job for the loader if the runtime uses one."""
        if job.files:
            _, folder = await asyncio.shield(cell.opened)
            await in_thread(copy_input_files, folder, job.files)
        packet = None
        if runtime.name == "python":
            command, packet = self._loader_command(runtime, cell), self._encoded_job(job, cell, text)
        else:
            script = f"{self._skill_path(cell)}/{job.script}"
            command = runtime.command(script, arguments(job), memory_bytes=self.limits.memory_bytes)
            if runtime.name == "shell":
                command[0] = await asyncio.to_thread(shell_for, job.folder / job.script)
        request = StartRequest(
            command=command,
            environment=self._environment(job, cell, text),
            workspace=self._workspace(cell),
            skill=str(job.folder),
            folder=job.grants.folder,
            layers=_layer_folders(job),
            paths=dict(job.grants.paths),
            hosts=host_endpoints(job.grants),
        )
        await cell.start(request, with_job=packet is not None)
        return packet

    def _encoded_job(self, job: Job, cell: CellHandle, text: str) -> bytes:
        layer = str(self.backend.layer_paths["python"] or job.layers["python"]) if "python" in job.layers else ""
        script = f"{self._skill_path(cell)}/{job.script}"
        return encode_job(script, layer, arguments(job), self._environment(job, cell, text))

    def _environment(self, job: Job, cell: CellHandle, text: str) -> dict[str, str]:
        base = base_environment(self._workspace(cell), self._path)
        return environment(job, base, skill_path=self._skill_path(cell), input_text=text)

    def _loader_command(self, runtime: Runtime, cell: CellHandle) -> list[str]:
        loaders = self._resolve_path(self.backend.loaders, cell)
        return runtime.loader_command(loaders, memory_bytes=self.limits.memory_bytes)

    def _workspace(self, cell: CellHandle) -> str:
        return f"{self.backend.temporary_folder}/skill-workspace-{cell.identity}"

    def _skill_path(self, cell: CellHandle) -> str:
        return self._resolve_path(self.backend.skill_path, cell)

    def _resolve_path(self, pattern: str, cell: CellHandle) -> str:
        return pattern.format(base=self.launcher.base, cell=cell.identity)


def _layer_folders(job: Job) -> dict[str, str]:
    return {kind: str(path) for kind, path in job.layers.items()}


class WarmPool:
    """Keeps warm cells ready for the runtimes that are slow to start; each cell is used once."""

    def __init__(self, session: SandboxSession, size: int) -> None:
        self._session = session
        self._size = size if session.backend.has_namespaces else 0
        self._cells: dict[RuntimeName, deque[CellHandle]] = {name: deque() for name in WARM_RUNTIMES}
        self._filling: asyncio.Task[None] | None = None
        self._is_closed = False

    def take(self, runtime: RuntimeName) -> CellHandle | None:
        """A warm cell that the caller now owns; None if there is none."""
        cells = self._cells.get(runtime, deque())
        while cells:
            cell = cells.popleft()
            if not cell.exited.done():
                return cell
            self._session.launcher.close_in_background(cell)
        return None

    def fill(self) -> None:
        if self._size and not self._is_closed and (self._filling is None or self._filling.done()):
            self._filling = asyncio.get_running_loop().create_task(self._fill())

    async def wait_until_full(self) -> None:
        self.fill()
        if self._filling is not None:
            await asyncio.wait([self._filling])

    async def close(self) -> None:
        self._is_closed = True
        if self._filling is not None:
            self._filling.cancel()
            await asyncio.wait([self._filling])
        for cell in [cell for cells in self._cells.values() for cell in cells]:
            await cell.close()

    async def _fill(self) -> None:
        try:
            for name, cells in self._cells.items():
                runtime = self._session.runtimes.get(name)
                while runtime is not None and len(cells) < self._size:
                    cells.append(await self._session.open_warm_cell(runtime))
        except (LaunchError, ServerError, OSError) as error:
            logger.warning("no warm sandbox could be started: %s", error)
