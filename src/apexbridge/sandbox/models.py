"""A job and its result."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, Literal

from pydantic import Field, PrivateAttr, SerializerFunctionWrapHandler, computed_field, model_serializer

from apexbridge.errors import SkillExecutionError, SkillTimeoutError
from apexbridge.wire import WireModel

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
    """Its name in `input/`."""
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    skill: str
    folder: Path
    script: str
    """Relative to the skill's folder."""
    input: Mapping[str, Any] = field(default_factory=dict)
    args: tuple[str, ...] = ()
    is_entry: bool = True
    """False for a helper script that is run by name: it gets its input as options."""
    files: tuple[InputFile, ...] = ()
    timeout_ms: int
    grants: Grants = Grants()
    layers: Mapping[str, Path] = field(default_factory=dict)
    """Installed dependencies: `python`, `node_modules`."""
    warnings: tuple[str, ...] = ()
    """Added to those of the result."""


class RunFile(WireModel):
    """A file that a run left."""

    path: str = Field(description="Relative to `output/`.")
    size: int


class ExecutionResult(WireModel):
    """How a run ended, and which mechanisms enforced its limits."""

    id: str
    success: bool
    status: Status
    stdout: str = ""
    stderr: str = ""
    exit_code: int | None
    duration: int = Field(description="Milliseconds.")
    error: str | None = None
    error_code: ErrorCode | None = None
    truncated: bool = False
    files: list[RunFile] = Field(default_factory=list)
    peak_memory: int | None = Field(default=None, description="Bytes.")
    enforcement: dict[str, str | None] = Field(default_factory=dict, description="The mechanism of each guarantee.")
    warnings: list[str] = Field(default_factory=list)
    _skill: str | None = PrivateAttr(default=None)

    def of_skill(self, name: str) -> "ExecutionResult":
        """Set the skill's name for the errors of `raise_for_status`."""
        self._skill = name
        return self

    @computed_field  # type: ignore[prop-decorator]  # pydantic wants both
    @property
    def output(self) -> str:
        """Same as stdout."""
        return self.stdout

    @model_serializer(mode="wrap")
    def _omit_errors_of_success(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        fields: dict[str, Any] = handler(self)
        if self.error is None:
            for key in ("error", "errorCode", "error_code"):
                fields.pop(key, None)
        return fields

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
