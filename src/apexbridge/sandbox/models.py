"""What goes into a run and what comes out of it."""

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


@dataclass(frozen=True, slots=True, kw_only=True)
class InputFile:
    """A file that a run gets to read."""

    name: str
    """As it is called in `input/`."""
    file: BinaryIO
    """Open; whoever made this closes it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Grants:
    """What an operator has allowed one skill beyond what every skill may."""

    hosts: tuple[tuple[str, int], ...] = ()
    variables: Mapping[str, str] = field(default_factory=dict)
    secrets: Mapping[str, str] = field(default_factory=dict)
    paths: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    """Shown read-only: each with its device and inode, so that no other can take its place."""
    folder: tuple[int, int] | None = None
    """Device and number of the skill's folder that all this was granted to."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One run of one script."""

    skill: str
    folder: Path
    script: str
    """Relative to the skill's folder."""
    input: Mapping[str, Any] = field(default_factory=dict)
    args: tuple[str, ...] = ()
    is_entry: bool = True
    """A helper script run by name takes its input as options as well."""
    files: tuple[InputFile, ...] = ()
    timeout_ms: int
    grants: Grants = Grants()
    layers: Mapping[str, Path] = field(default_factory=dict)
    """Installed dependencies: `python`, `node_modules`."""
    warnings: tuple[str, ...] = ()
    """What the result shall mention."""


class RunFile(WireModel):
    """A file that a run left."""

    path: str = Field(description="Relative to `output/`.")
    size: int


class ExecutionResult(WireModel):
    """How a run went, and what held it."""

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
    enforcement: dict[str, str | None] = Field(default_factory=dict, description="What held, by which mechanism.")
    warnings: list[str] = Field(default_factory=list)
    _skill: str | None = PrivateAttr(default=None)

    def of_skill(self, name: str) -> "ExecutionResult":
        """Remember whose run it was, for what `raise_for_status` raises."""
        self._skill = name
        return self

    @computed_field  # type: ignore[prop-decorator]  # pydantic wants both
    @property
    def output(self) -> str:
        """The same as stdout."""
        return self.stdout

    @model_serializer(mode="wrap")
    def _without_errors_of_a_success(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        told: dict[str, Any] = handler(self)
        if self.error is None:
            for key in ("error", "errorCode", "error_code"):
                told.pop(key, None)
        return told

    def raise_for_status(self) -> None:
        """Raise what went wrong, for callers who prefer exceptions.

        Raises:
            SkillTimeoutError: the run took too long.
            SkillExecutionError: it failed in another way.
        """
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
