"""Protocols of the services that skills need from other packages. The bridge provides the implementations."""

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from apexbridge.errors import SkillError
from apexbridge.sandbox.models import ExecutionResult, Grants
from apexbridge.skills.models import Mode, SkillMetadata
from apexbridge.skills.runs.inputs import HeldFiles


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexDocument:
    """The searchable data of a skill."""

    metadata: SkillMetadata
    derived_tags: tuple[str, ...] = ()
    summary: str
    version: str = ""
    """The content hash; empty if not known yet."""

    @property
    def name(self) -> str:
        """The key in the index."""
        return self.metadata.name

    @property
    def description(self) -> str:
        return self.metadata.description

    @property
    def tags(self) -> tuple[str, ...]:
        return self.metadata.tags

    @property
    def hidden(self) -> bool:
        """Whether the skill is hidden from searches by a model."""
        return self.metadata.disable_model_invocation


class SkillIndex(Protocol):
    """A semantic index of skills."""

    @property
    def embedder(self) -> str:
        """Name of the embedding model. If it changes, every vector is stale."""

    @property
    def dimensions(self) -> int:
        """Length of the vectors."""

    async def embed(self, documents: Sequence[IndexDocument]) -> Sequence[Any]:
        """Vectors of the documents, in order; all None if the model is unavailable. Slow: hold no locks meanwhile."""

    async def upsert(self, documents: Sequence[IndexDocument], vectors: Sequence[Any]) -> None:
        """Add or replace documents. A document without a vector is found by its words only."""

    async def remove(self, names: Collection[str]) -> Any:
        """Remove documents by name."""

    async def missing(self, versions: Mapping[str, str]) -> Collection[str]:
        """The names that the index does not hold in this version."""

    async def retain(self, names: Collection[str]) -> int:
        """Remove all other documents; returns how many were removed."""


class NoIndex:
    """Used if search is not configured. Its name is in the markers, so that a real index later embeds everything."""

    embedder = "none"
    dimensions = 0

    async def embed(self, documents: Sequence[IndexDocument]) -> Sequence[Any]:
        """Empty vectors; None would mark the skills as pending."""
        return [()] * len(documents)

    async def upsert(self, documents: Sequence[IndexDocument], vectors: Sequence[Any]) -> None:
        """Do nothing."""

    async def remove(self, names: Collection[str]) -> None:
        """Do nothing."""

    async def missing(self, versions: Mapping[str, str]) -> Collection[str]:
        return ()

    async def retain(self, names: Collection[str]) -> int:
        return 0


@dataclass(frozen=True, slots=True, kw_only=True)
class SkillToolSource:
    """The data of a skill that its tool is built from."""

    metadata: SkillMetadata
    mode: Mode
    entry: str | None
    content_hash: str
    schema: Mapping[str, Any] | None = None
    """JSON Schema of the input; None if unknown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRequest:
    """One run of a skill's script."""

    id: str
    """Id of the run in logs, records and the API."""
    skill: str
    folder: Path
    script: str
    content_hash: str
    input: Mapping[str, Any]
    args: tuple[str, ...]
    files: tuple[str, ...]
    caller: str
    """Owner of the files: the id of an API key, or empty."""
    held: HeldFiles | None = None
    """Copies to use instead of `files`. Their creator closes them after the run."""
    timeout_ms: int
    is_entry: bool
    """False for a helper script that is run by name: it receives its input as `--key value`."""
    grants: Callable[[], Awaitable[Grants]]
    """Returns the skill's grants. Called when the run starts, as they may change while it is queued."""
    layers: Mapping[str, Path] = field(default_factory=dict)
    """Installed dependencies."""
    warnings: tuple[str, ...] = ()
    """Warnings to include in the result."""


class StartedRun(Protocol):
    """A queued or running run."""

    @property
    def id(self) -> str:
        """Id of the run."""

    async def result(self) -> ExecutionResult:
        """Wait for the run to end. If the waiting task is cancelled, the run is cancelled too."""

    def cancel(self) -> None:
        """Cancel the run, queued or running."""

    def when_over(self, call: Callable[[ExecutionResult | None], None]) -> None:
        """Add a callback for the end of the run. It receives the result, or None if the run failed without one."""


class SkillRunner(Protocol):
    """Runs scripts."""

    async def hold(self, files: Sequence[str], *, caller: str) -> HeldFiles:
        """Immutable copies of a call's files, with their digests."""

    async def start(self, request: RunRequest) -> StartedRun:
        """Start a run in the sandbox. Failures of the script are reported in the result."""


class NoRunner:
    """Used if there is no sandbox: scripts never run without one."""

    async def hold(self, files: Sequence[str], *, caller: str) -> HeldFiles:
        return HeldFiles()

    async def start(self, request: RunRequest) -> StartedRun:
        """Refuse to run.

        Raises:
            SkillError: SANDBOX_UNAVAILABLE.
        """
        raise SkillError(
            "No sandbox is available, so scripts are not run; the skill's instructions can be read.",
            skill=request.skill,
            code="SANDBOX_UNAVAILABLE",
            mode="sandbox",
        )
