"""A job and its result."""

from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, ClassVar, Literal, Protocol

from pydantic import Field, PrivateAttr, computed_field

from apexbridge.errors import SkillExecutionError, SkillTimeoutError
from apexbridge.sandbox.missing import Missing
from apexbridge.sandbox.workspace_files import AppliedChanges, Changes
from apexbridge.wire import SparseModel, WireModel

Status = Literal["success", "error", "timeout"]
ErrorCode = Literal[
    "TIMEOUT",
    "OUTPUT_LIMIT",
    "OUT_OF_MEMORY",
    "PROCESS_LIMIT",
    "DISK_LIMIT",
    "SPAWN_FAILED",
    "EXIT_NONZERO",
    "KILLED",
    "CANCELLED",
]
EXIT_TIMEOUT = 124
EXIT_KILLED = 137


class LaunchError(Exception):
    """The launcher could not do what it was asked to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InputFile:
    name: str
    """Its name in `input/`, with the folders in which it is there."""
    file: BinaryIO
    """Open; the creator of this object closes it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Grants:
    """What an operator has granted to one skill."""

    hosts: tuple[tuple[str, int], ...] = ()
    variables: Mapping[str, str] = field(default_factory=dict)
    secrets: Mapping[str, str] = field(default_factory=dict)
    paths: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    """Mounted read-only. Each has its device and inode, so that a replaced file is detected."""
    folder: tuple[int, int] | None = None
    """Device and inode of the skill's folder that has these grants."""


class LastingWorkspace(Protocol):
    """A workspace on the server's disk, whose files a run gets and whose changes are kept."""

    @property
    def id(self) -> str: ...

    def reading(self) -> AbstractAsyncContextManager[Path]:
        """The folder with its files, which does not change during the block."""

    async def keep(self, changes: Changes, artifacts: Path) -> AppliedChanges:
        """Move the changes of a run from the folder of its artifacts. If there is no space, nothing is changed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MountedSkill:
    """A skill that a run of other code can read."""

    folder: Path
    identity: tuple[int, int]
    """Device and inode of the folder."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What to run: a script of a skill, or code that belongs to none."""

    skill: str = ""
    folder: Path | None = None
    """The skill's folder; None for code."""
    script: str
    """Relative to the skill's folder. For code, the name of the file that it is written to."""
    module: str | None = None
    """The dotted name of a Python module whose file is `script`: it runs as by `python -m` in the skill's folder."""
    code: str | None = None
    skills: Mapping[str, MountedSkill] = field(default_factory=dict)
    """Other skills that the run can read, by name."""
    python_packages: Mapping[str, Path] = field(default_factory=dict)
    """Packages of those skills."""
    node_packages: Mapping[str, Path] = field(default_factory=dict)
    workspace: LastingWorkspace | None = None
    """None: the workspace exists only during the run."""
    input: Mapping[str, Any] = field(default_factory=dict)
    args: tuple[str, ...] = ()
    is_entry: bool = True
    """False for a helper script that is run by name: it gets its input as options."""
    files: tuple[InputFile, ...] = ()
    timeout_ms: int
    grants: Grants = Grants()
    layers: Mapping[str, Path] = field(default_factory=dict)
    """Installed dependencies: `python`, `node_modules`. The sandbox adds the bundles."""
    warnings: tuple[str, ...] = ()
    """Added to those of the result."""

    @property
    def has_fixed_path(self) -> bool:
        """Whether the workspace has the same path in every run: programs and models remember paths."""
        return self.workspace is not None or self.code is not None


class RunFile(WireModel):
    """A file that a run left."""

    path: str = Field(description="Without `output/`. If a workspace has kept it, its path there.")
    size: int


class ExecutionResult(SparseModel):
    """How a run ended, and which mechanisms enforced its limits."""

    OMITTED_IF_EMPTY: ClassVar[frozenset[str]] = frozenset({"error", "error_code", "missing", "workspace"})

    id: str
    success: bool
    status: Status
    stdout: str = ""
    stderr: str = ""
    exit_code: int | None
    duration: int = Field(description="Milliseconds.")
    error: str | None = Field(default=None, description="Omitted if the run succeeded.")
    error_code: ErrorCode | None = Field(default=None, description="Omitted if the run succeeded.")
    truncated: bool = False
    files: list[RunFile] = Field(default_factory=list)
    workspace: str | None = Field(
        default=None, description="The workspace of the run, which has kept the files; omitted if it had none."
    )
    peak_memory: int | None = Field(default=None, description="Bytes.")
    enforcement: dict[str, str | None] = Field(default_factory=dict, description="The mechanism of each guarantee.")
    warnings: list[str] = Field(default_factory=list)
    missing: list[Missing] = Field(
        default_factory=list, description="Modules and programs that a failed run did not find; omitted if none."
    )
    _skill: str | None = PrivateAttr(default=None)
    _workspace_files: tuple[RunFile, ...] | None = PrivateAttr(default=None)

    @property
    def workspace_files(self) -> tuple[RunFile, ...] | None:
        """The new and changed files with their paths in the workspace, if it lasts; else None."""
        return self._workspace_files

    def with_workspace_files(self, files: tuple[RunFile, ...]) -> "ExecutionResult":
        self._workspace_files = files
        return self

    def of_skill(self, name: str) -> "ExecutionResult":
        """Set the skill's name for the errors of `raise_for_status`."""
        self._skill = name
        return self

    @computed_field  # type: ignore[prop-decorator]  # pydantic wants both
    @property
    def output(self) -> str:
        """Same as stdout."""
        return self.stdout

    def raise_for_status(self) -> None:
        """Raise SkillTimeoutError or SkillExecutionError if the run failed."""
        if not self.success:
            kind = SkillTimeoutError if self.status == "timeout" else SkillExecutionError
            raise kind(
                self.error or "Execution failed",
                skill=self._skill,
                mode="sandbox",
                cause=self.error_code,
                exitCode=self.exit_code,
                duration=self.duration,
            )
