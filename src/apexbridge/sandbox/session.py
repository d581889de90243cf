"""A session: a launcher with its backend, in which jobs run one per cell, cold or in a warm cell."""

import asyncio
import logging
import os
import shutil
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from apexbridge._tasks import in_thread, run_to_completion, start_shared
from apexbridge.errors import InvalidInputError, ServerError
from apexbridge.sandbox.backends import Backend
from apexbridge.sandbox.config import BackendName, SandboxLimits, SandboxSettings
from apexbridge.sandbox.launcher.mounts import PYTHON_LAYERS, EtcVersion
from apexbridge.sandbox.launcher.protocol import Attachment, StartRequest
from apexbridge.sandbox.launcher_client import CellHandle, LauncherClient
from apexbridge.sandbox.masking import secret_patterns
from apexbridge.sandbox.models import Grants, Job, LaunchError
from apexbridge.sandbox.outcome import Ending
from apexbridge.sandbox.output import OutputListener, RunOutput
from apexbridge.sandbox.proxy import GrantedHosts, host_endpoints
from apexbridge.sandbox.run_input import (
    arguments,
    base_environment,
    copy_input_files,
    encode_job,
    encode_shell_job,
    environment,
    input_json,
    layer_variables,
)
from apexbridge.sandbox.runtimes import RUNTIMES, Runtime, RuntimeName, Runtimes, runtime_name, shell_for
from apexbridge.sandbox.supervisor import Supervisor
from apexbridge.sandbox.workspace_files import (
    INPUT,
    Changes,
    Signature,
    TreeEntry,
    copy_in,
    list_tree,
    size_in_memory,
    write_code,
)

Cancel = Callable[[], None]
Collect = Callable[[int, Mapping[str, Signature], Sequence[str]], Changes]
"""Collects what changed in an open workspace, except for files that contain a secret."""
OnStart = Callable[[Cancel], None]
"""Called when a job starts, with a function that cancels it."""
FILL_DELAY_SECONDS = 0.005
logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishedJob:
    ending: Ending
    stdout: str = ""
    stderr: str = ""
    is_truncated: bool = False
    changes: Changes = field(default_factory=Changes)


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
        self._etc = EtcVersion()

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
            cell.etc_version = self._etc.check()
            await cell.start(request, with_job=True)
            await asyncio.shield(cell.opened)
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
        async with AsyncExitStack() as reading:
            files = _JobFiles(job, await reading.enter_async_context(_files_of(job)))
            # Input files, granted hosts and granted paths must be known when a cell starts.
            needs_own_cell = bool(job.files or job.grants.hosts or job.grants.paths)
            # A waiting shell would set granted variables itself, and cannot set some: OPTIND, PPID.
            needs_own_cell |= runtime.name == "shell" and bool(job.grants.variables or job.grants.secrets)
            warm_cell = None if needs_own_cell else self.pool.take(runtime.name)
            cell = warm_cell or await self.launcher.open_cell(with_input=bool(job.files))
            secrets = secret_patterns(job.grants.secrets)
            output = RunOutput(self.limits.output_bytes, secrets=secrets, listener=listener)
            supervisor = Supervisor(cell, output, deadline=deadline)
            try:
                if on_start is not None:
                    on_start(lambda: supervisor.kill_for("cancelled"))
                text = input_json(job) if job.code is None else ""
                attachment = _attachment(job)
                if warm_cell:
                    await cell.attach(attachment)
                before = await files.copy(cell, self.limits)  # while the launcher mounts
                if warm_cell:
                    if attachment.has_mounts or cell.etc_version != self._etc.check():
                        await asyncio.shield(cell.attached)
                    packet = await self._encoded_job(job, runtime, cell, text)
                else:
                    packet = await self._start(job, runtime, cell, attachment, text)
                await reading.aclose()
                supervisor.begin(stdin=text.encode("utf-8", "surrogatepass"), job=packet)
                async with GrantedHosts(job.grants, cell).reachable():
                    ending = await supervisor.wait()
                stdout, stderr = output.finish()
                changes = Changes()
                if collect is not None and cell.is_open:
                    collecting = asyncio.to_thread(collect, cell.opened.result()[0], before, secrets)
                    changes = await run_to_completion(collecting)
                return FinishedJob(
                    ending=ending, stdout=stdout, stderr=stderr, is_truncated=output.is_truncated, changes=changes
                )
            finally:
                supervisor.stop()
                self.launcher.close_in_background(cell)

    @asynccontextmanager
    async def open_process(
        self, command: Sequence[str], variables: Mapping[str, str], grants: Grants
    ) -> AsyncIterator[CellHandle]:
        """A program in a cell of its own, which is killed when the block ends.

        It has the limits of a run except for time and output. The caller reads and writes the cell's pipes.

        Raises LaunchError if it cannot be started.
        """
        if grants.hosts and not self.backend.has_namespaces:
            raise LaunchError(f"the {self.backend.launcher.backend} sandbox cannot provide granted hosts")
        cell = await self.launcher.open_cell()
        try:
            workspace = self._workspace(cell)
            request = StartRequest(
                command=[self._program(command[0]), *command[1:]],
                environment={**base_environment(workspace, self._path), **variables},
                workspace=workspace,
                attachment=Attachment(),
                paths=dict(grants.paths),
                hosts=host_endpoints(grants),
            )
            await cell.start(request, with_job=False)
            async with GrantedHosts(grants, cell).reachable():
                yield cell
        finally:
            cell.kill()
            self.launcher.close_in_background(cell)

    def _program(self, name: str) -> str:
        """The path of a program: for an interpreter, of the one that runs have."""
        return self.backend.launcher.programs.get(name) or shutil.which(name, path=self._path) or name

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

    async def _start(
        self, job: Job, runtime: Runtime, cell: CellHandle, attachment: Attachment, text: str
    ) -> bytes | None:
        """Start a cold cell; returns the job for the loader if the runtime uses one."""
        if job.files:
            _, folder = await asyncio.shield(cell.opened)
            await in_thread(copy_input_files, folder, job.files)
        packet = None
        if runtime.name == "python":
            command, packet = self._loader_command(runtime, cell), await self._encoded_job(job, runtime, cell, text)
        else:
            command = await self._command(job, runtime, cell)
        request = StartRequest(
            command=command,
            environment=self._environment(job, cell, text),
            workspace=self._working_folder(job, cell),
            attachment=attachment,
            paths=dict(job.grants.paths),
            hosts=host_endpoints(job.grants),
        )
        await cell.start(request, with_job=packet is not None)
        return packet

    async def _command(self, job: Job, runtime: Runtime, cell: CellHandle) -> list[str]:
        """The command that runs the job's script."""
        script = f"{self._root(job, cell)}/{job.script}"
        command = runtime.command(script, arguments(job), memory_bytes=self.limits.memory_bytes)
        if runtime.name == "shell":
            command[0] = await in_thread(shell_for, job.folder and job.folder / job.script)
        return command

    async def _encoded_job(self, job: Job, runtime: Runtime, cell: CellHandle, text: str) -> bytes | None:
        """The job for an interpreter that waits for it."""
        root = self._root(job, cell)
        variables = self._environment(job, cell, text)
        if runtime.name == "shell":
            command = await self._command(job, runtime, cell)
            return encode_shell_job(command, variables, folder=self._working_folder(job, cell))
        return encode_job(
            f"{root}/{job.script}",
            arguments(job),
            variables,
            root=root,
            module=job.module,
            python_path=[*self._python_packages(job), *self._skill_roots(job, cell)],
        )

    def _python_packages(self, job: Job) -> list[str]:
        """The folders with Python packages, as the run sees them."""
        own = [self._package_path(_package_name(name, "python"), path) for name, path in job.python_packages.items()]
        found = [(name, job.layers[name]) for name in PYTHON_LAYERS if name in job.layers]
        return [*own, *(str(self.backend.layer_paths[name] or folder) for name, folder in found)]

    def _node_packages(self, job: Job) -> list[str]:
        """The folders with Node packages of other skills, as the run sees them."""
        return [self._package_path(_package_name(name, "node"), path) for name, path in job.node_packages.items()]

    def _skill_roots(self, job: Job, cell: CellHandle) -> list[str]:
        """The folders of other skills, whose modules a run can import: the last loaded first."""
        folder = self._resolve_path(self.backend.skills_path, cell)
        return [f"{folder}/{_path_name(name)}" for name in reversed([*job.skills])]

    def _package_path(self, name: str, path: Path) -> str:
        return str(path) if self.backend.packages_path is None else f"{self.backend.packages_path}/{name}"

    def _environment(self, job: Job, cell: CellHandle, text: str) -> dict[str, str]:
        folder = self._working_folder(job, cell)
        base = base_environment(folder, self._path)
        packages, node_packages = self._python_packages(job), self._node_packages(job)
        programs = [f"{package}/bin" for package in packages] + [f"{package}/.bin" for package in node_packages]
        if (node := job.layers.get("node_modules")) and not node_packages:
            programs.append(f"{self.backend.layer_paths['node_modules'] or node}/.bin")
        if programs or job.has_fixed_path:
            loaders = f"{self._resolve_path(self.backend.loaders, cell)}/bin"
            base["PATH"] = os.pathsep.join([loaders, *programs, self._path])
        if python_path := [*packages, *self._skill_roots(job, cell)]:
            site = [f"{self._resolve_path(self.backend.loaders, cell)}/site"] if job.skills else []
            base |= layer_variables(folder, [*site, *python_path])
        if node_packages:
            base["NODE_PATH"] = os.pathsep.join(node_packages)
        return environment(
            job,
            base,
            skill_path=self._resolve_path(self.backend.skill_path, cell),
            skills_path=self._resolve_path(self.backend.skills_path, cell),
            input_text=text,
        )

    def _root(self, job: Job, cell: CellHandle) -> str:
        """The folder of the script's path."""
        if job.code is not None:
            return self._working_folder(job, cell)
        return self._resolve_path(self.backend.skill_path, cell)

    def _working_folder(self, job: Job, cell: CellHandle) -> str:
        return (self.backend.workspace_path if job.has_fixed_path else None) or self._workspace(cell)

    def _loader_command(self, runtime: Runtime, cell: CellHandle) -> list[str]:
        loaders = self._resolve_path(self.backend.loaders, cell)
        return runtime.loader_command(loaders, memory_bytes=self.limits.memory_bytes)

    def _workspace(self, cell: CellHandle) -> str:
        return f"{self.backend.temporary_folder}/skill-workspace-{cell.identity}"

    def _resolve_path(self, pattern: str, cell: CellHandle) -> str:
        return pattern.format(base=self.launcher.base, cell=cell.identity)


def _attachment(job: Job) -> Attachment:
    return Attachment(
        skill=str(job.folder) if job.folder else None,
        folder=job.grants.folder,
        layers={kind: str(path) for kind, path in job.layers.items()},
        skills={
            mount: (str(skill.folder), skill.identity)
            for name, skill in job.skills.items()
            for mount in dict.fromkeys((name, _path_name(name)))
        },
        packages={name: str(path) for name, path in _packages(job).items()},
    )


def _packages(job: Job) -> dict[str, Path]:
    """The packages of other skills by the names of their mount points."""
    python = {_package_name(name, "python"): path for name, path in job.python_packages.items()}
    return python | {_package_name(name, "node"): path for name, path in job.node_packages.items()}


def _package_name(skill: str, kind: str) -> str:
    return f"{_path_name(skill)}.{kind}"


def _path_name(skill: str) -> str:
    """The name of a skill's second mount point, without a colon, which separates paths in variables."""
    return skill.replace(":", ".")


@asynccontextmanager
async def _files_of(job: Job) -> AsyncIterator[Path | None]:
    """The folder of the job's lasting workspace, which does not change during the block; None if it has none."""
    if job.workspace is None:
        yield None
    else:
        async with job.workspace.reading() as top:
            yield top


class _JobFiles:
    """The files that a job gets in its workspace: those of a lasting workspace, and its code."""

    def __init__(self, job: Job, top: Path | None) -> None:
        self._job = job
        self._top = top

    async def copy(self, cell: CellHandle, limits: SandboxLimits) -> dict[str, Signature]:
        """Copy the files to a cell, where they do not count against the disk limit; returns their signatures."""
        if self._top is None and self._job.code is None:
            return {}
        workspace = (await asyncio.shield(cell.opened))[0]
        before, tree = await in_thread(self._copy_small, workspace, limits)
        if tree:
            await cell.extend_disk(*size_in_memory(tree))
        if before is None and self._top is not None:
            await asyncio.shield(cell.extended)
            before = await in_thread(copy_in, self._top, tree, workspace)
        return before or {}

    def _copy_small(self, workspace: int, limits: SandboxLimits) -> tuple[dict[str, Signature] | None, list[TreeEntry]]:
        """Copy everything that an empty workspace has plenty of room for; returns the signatures, None if it has not,
        and the list of files."""
        if self._job.code is not None:
            write_code(workspace, self._job.script, self._job.code)
        if self._top is None:
            return {}, []
        tree = list_tree(self._top)
        if self._job.files and any(entry.path == INPUT for entry in tree):
            raise InvalidInputError(
                "The workspace has something named input, where a run gets its `files`. Rename it, or leave out "
                "`files`: the run sees all files of the workspace at their own names."
            )
        size, count = size_in_memory(tree)
        is_small = size <= limits.disk_bytes // 2 and count <= limits.inodes // 2
        return copy_in(self._top, tree, workspace) if is_small else None, tree


class WarmPool:
    """Keeps a cell with a started interpreter ready for each runtime; each cell is used once."""

    def __init__(self, session: SandboxSession, size: int) -> None:
        self._session = session
        self._size = size if session.backend.has_namespaces else 0
        self._cells: dict[RuntimeName, deque[CellHandle]] = {name: deque() for name in RUNTIMES}
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

    def fill_soon(self) -> None:
        """Start new interpreters when the caller of the run that used one has its result."""
        asyncio.get_running_loop().call_later(FILL_DELAY_SECONDS, self.fill)

    def fill(self) -> None:
        if self._size and not self._is_closed and (self._filling is None or self._filling.done()):
            self._filling = start_shared(self._fill())

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
