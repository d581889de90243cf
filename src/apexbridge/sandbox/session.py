"""One job in one cell: started cold, or given to a cell that was waiting for one."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import anyio.to_thread

from apexbridge.disk import Disk
from apexbridge.sandbox.artifacts import carry_out
from apexbridge.sandbox.backends.backend import Backend
from apexbridge.sandbox.config import SandboxLimits
from apexbridge.sandbox.inputs import copy_in
from apexbridge.sandbox.launcher_client import Cell, Launcher, LaunchError
from apexbridge.sandbox.masking import masks
from apexbridge.sandbox.models import Job, RunFile
from apexbridge.sandbox.outcome import Ending
from apexbridge.sandbox.output import Listener, Output
from apexbridge.sandbox.proxy import GrantedHosts, places
from apexbridge.sandbox.run_input import arguments, base_environment, environment, input_json
from apexbridge.sandbox.runtimes import Runtime, Runtimes, shell_of
from apexbridge.sandbox.supervisor import Pipes, Supervisor, packed

Cancel = Callable[[], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """What a job came to."""

    ending: Ending
    stdout: str
    stderr: str
    peak: int
    is_truncated: bool
    files: list[RunFile]
    warnings: list[str]


@dataclass(slots=True, kw_only=True)
class Waiting:
    """A cell with an interpreter in it that has no job yet."""

    cell: Cell
    pipes: Pipes
    runtime: Runtime
    workspace: str

    async def discard(self) -> None:
        """Nobody needs it."""
        self.pipes.close()
        await self.cell.close()


@dataclass(frozen=True, slots=True, kw_only=True)
class Workbench:
    """Where jobs are done: a launcher with its walls, and what every run may use."""

    launcher: Launcher
    backend: Backend
    runtimes: Runtimes
    limits: SandboxLimits
    path: str

    async def prepare(self, runtime: Runtime) -> Waiting:
        """Start an interpreter that waits for a job."""
        cell = await self.launcher.open_cell()
        pipes = Pipes.make()
        try:
            workspace = self._workspace(cell)
            command = self._waiting_command(runtime, cell)
            variables = base_environment(workspace, self.path)
            await cell.start({"command": command, "environment": variables, "workspace": workspace}, pipes.theirs)
        except BaseException:
            pipes.close()
            await cell.close()
            raise
        pipes.hand_over()
        return Waiting(cell=cell, pipes=pipes, runtime=runtime, workspace=workspace)

    async def do(
        self,
        job: Job,
        runtime: Runtime,
        *,
        begun: float,
        waiting: Waiting | None = None,
        artifacts: Path | None = None,
        disk: Disk | None = None,
        caller: str = "",
        listener: Listener | None = None,
        started: Callable[[Cancel], None] | None = None,
    ) -> Finished:
        """Run a job to its end; `begun` is when its clock started, `started` is told how to cancel it."""
        loop = asyncio.get_running_loop()
        pipes = waiting.pipes if waiting else Pipes.make()
        try:
            cell = waiting.cell if waiting else await self.launcher.open_cell(with_input=bool(job.files))
        except BaseException:
            pipes.close()
            raise
        output = Output(self.limits.output_bytes, secrets=masks(job.grants.secrets), listener=listener)
        supervisor = Supervisor(cell, pipes, output)
        try:
            supervisor.start_clock(begun + job.timeout_ms / 1000 - loop.time())
            if started is not None:
                started(lambda: supervisor.end_for("cancelled"))
            text = input_json(job)
            packet = await (self._give(job, waiting, text) if waiting else self._start(job, runtime, cell, pipes, text))
            supervisor.begin(stdin=text.encode("utf-8", "surrogatepass"), job=packet)
            async with GrantedHosts(job.grants, cell):
                ending, peak = await supervisor.wait()
            stdout, stderr = output.finish()
            files, warnings = await self._carry_out(cell, artifacts, job, disk, caller)
            return Finished(
                ending=ending,
                stdout=stdout,
                stderr=stderr,
                peak=peak,
                is_truncated=output.is_over,
                files=files,
                warnings=warnings,
            )
        finally:
            supervisor.stop()
            self.launcher.clear(cell)

    def refuse_the_impossible(self, job: Job) -> None:
        """What was granted or installed and cannot be had behind these walls is not left out in silence.

        Raises:
            LaunchError: naming it.
        """
        missing = [kind for kind in job.layers if kind not in self.backend.layer_paths]
        missing += ["granted hosts"] if job.grants.hosts and not self.backend.can_reach_hosts else []
        if missing:
            raise LaunchError(f"the {self.backend.name} sandbox cannot provide: {', '.join(missing)}")

    async def _give(self, job: Job, waiting: Waiting, text: str) -> bytes:
        """Show the skill to a waiting cell; gives the packet that sets it going."""
        layers = {name: str(path) for name, path in job.layers.items()}
        await waiting.cell.attach(str(job.folder), layers, job.grants.folder)
        return self._packet(job, waiting.cell, text)

    async def _start(self, job: Job, runtime: Runtime, cell: Cell, pipes: Pipes, text: str) -> bytes | None:
        """Start a cell with its job."""
        if job.files:
            _, folder = await asyncio.shield(cell.opened)
            await anyio.to_thread.run_sync(copy_in, folder, job.files)
        packet = None
        if runtime.name == "python":
            command, packet = self._waiting_command(runtime, cell), self._packet(job, cell, text)
        else:
            script = f"{self._skill_path(cell)}/{job.script}"
            command = runtime.command(script, arguments(job), memory_bytes=self.limits.memory_bytes)
            if runtime.name == "shell":
                command[0] = await anyio.to_thread.run_sync(shell_of, job.folder / job.script)
        order = {
            "command": command,
            "environment": self._variables(job, cell, text),
            "workspace": self._workspace(cell),
            "skill": str(job.folder),
            "folder": job.grants.folder,
            "layers": {name: str(path) for name, path in job.layers.items()},
            "paths": dict(job.grants.paths),
            "hosts": places(job.grants),
        }
        await cell.start(order, pipes.theirs if packet is not None else pipes.theirs[:3])
        return packet

    def _packet(self, job: Job, cell: Cell, text: str) -> bytes:
        """A job as the loaders read it."""
        layer = str(self.backend.layer_paths["python"] or job.layers["python"]) if "python" in job.layers else ""
        script = f"{self._skill_path(cell)}/{job.script}"
        return packed(script, layer, arguments(job), self._variables(job, cell, text))

    def _variables(self, job: Job, cell: Cell, text: str) -> dict[str, str]:
        return environment(
            job,
            workspace=self._workspace(cell),
            skill_path=self._skill_path(cell),
            path=self.path,
            input_text=text,
        )

    def _waiting_command(self, runtime: Runtime, cell: Cell) -> list[str]:
        return runtime.waiting_command(self._place(self.backend.loaders, cell), memory_bytes=self.limits.memory_bytes)

    def _workspace(self, cell: Cell) -> str:
        return f"{self.backend.temporary}/skill-workspace-{cell.identity}"

    def _skill_path(self, cell: Cell) -> str:
        return self._place(self.backend.skill_path, cell)

    def _place(self, pattern: str, cell: Cell) -> str:
        return pattern.format(base=self.launcher.base, cell=cell.identity)

    async def _carry_out(
        self, cell: Cell, artifacts: Path | None, job: Job, disk: Disk | None, caller: str
    ) -> tuple[list[RunFile], list[str]]:
        if artifacts is None or not cell.opened.done() or cell.opened.exception() is not None:
            return [], []
        return await anyio.to_thread.run_sync(
            lambda: carry_out(
                cell.opened.result()[0],
                artifacts,
                limit=self.limits.disk_bytes,
                disk=disk,
                caller=caller,
                secrets=masks(job.grants.secrets),
            )
        )
