"""What a skill's life needs from other rooms, said as small protocols; the bridge hands the real things over."""

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from apexbridge.errors import SkillError
from apexbridge.sandbox.models import ExecutionResult, Grants
from apexbridge.skills.inputs import HeldFiles
from apexbridge.skills.models import Mode, SkillMetadata


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexDocument:
    """What search may know of a skill."""

    metadata: SkillMetadata
    derived_tags: tuple[str, ...] = ()
    summary: str
    version: str = ""
    """The content's hash, where it is known already."""

    @property
    def name(self) -> str:
        """The skill's name, the key in the index."""
        return self.metadata.name

    @property
    def description(self) -> str:
        """What the skill says of itself."""
        return self.metadata.description

    @property
    def tags(self) -> tuple[str, ...]:
        """As declared."""
        return self.metadata.tags

    @property
    def hidden(self) -> bool:
        """Whether a model must not find it by itself."""
        return self.metadata.disable_model_invocation


class SkillIndex(Protocol):
    """Where skills are found by meaning."""

    @property
    def embedder(self) -> str:
        """Names the embedding model; another name means that every vector is stale."""

    @property
    def dimensions(self) -> int:
        """Length of its vectors."""

    async def embed(self, documents: Sequence[IndexDocument]) -> Sequence[Any]:
        """Vectors for these, in order; all None where the model cannot be used now. Slow: hold nothing meanwhile."""

    async def upsert(self, documents: Sequence[IndexDocument], vectors: Sequence[Any]) -> None:
        """Put these into the index, each in place of what it had; one without a vector is found by its words."""

    async def remove(self, names: Collection[str]) -> Any:
        """Forget these."""

    async def missing(self, versions: Mapping[str, str]) -> Collection[str]:
        """Which of these names the index does not hold in this version."""

    async def retain(self, names: Collection[str]) -> int:
        """Forget everything but these; gives how many were forgotten."""


class NoIndex:
    """Stands where no search is set up; its markers say so, and the first real index embeds everything."""

    embedder = "none"
    dimensions = 0

    async def embed(self, documents: Sequence[IndexDocument]) -> Sequence[Any]:
        """Nothing to compute; nothing is owed either."""
        return [()] * len(documents)

    async def upsert(self, documents: Sequence[IndexDocument], vectors: Sequence[Any]) -> None:
        """Nothing to keep."""

    async def remove(self, names: Collection[str]) -> None:
        """Nothing to forget."""

    async def missing(self, versions: Mapping[str, str]) -> Collection[str]:
        """It misses nothing."""
        return ()

    async def retain(self, names: Collection[str]) -> int:
        """Nothing to forget."""
        return 0


@dataclass(frozen=True, slots=True, kw_only=True)
class SkillToolSource:
    """What a tool is made of: the skill's words, and what it takes."""

    metadata: SkillMetadata
    mode: Mode
    entry: str | None
    content_hash: str
    schema: Mapping[str, Any] | None = None
    """Of its input; None where nothing is known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRequest:
    """One run of a skill's script."""

    id: str
    """Under which the run is known everywhere."""
    skill: str
    folder: Path
    script: str
    content_hash: str
    input: Mapping[str, Any]
    args: tuple[str, ...]
    files: tuple[str, ...]
    caller: str
    """Whose files those are: an API key's id, or empty."""
    held: HeldFiles | None = None
    """Copies of these files that are to be used in their place; their creator closes them after the run."""
    timeout_ms: int
    is_entry: bool
    """False for a helper script run by name: its input arrives as `--key value`."""
    grants: Callable[[], Awaitable[Grants]]
    """What the skill may have, asked when the run's turn has come: it may have changed while it waited."""
    layers: Mapping[str, Path] = field(default_factory=dict)
    """Installed dependencies."""
    warnings: tuple[str, ...] = ()
    """What the result shall mention."""


class StartedRun(Protocol):
    """A run that waits for its turn or has it."""

    @property
    def id(self) -> str:
        """Its name everywhere."""

    async def result(self) -> ExecutionResult:
        """Wait for its end; whoever is cancelled while waiting takes the run with them."""

    def cancel(self) -> None:
        """End it, wherever it is."""

    def when_over(self, call: Callable[[ExecutionResult | None], None]) -> None:
        """Call this once it has ended, with its result where it came to have one."""


class SkillRunner(Protocol):
    """Where scripts run."""

    async def hold(self, files: Sequence[str], *, caller: str) -> HeldFiles:
        """Copies of a call's files that nothing can change, with their digests."""

    async def start(self, request: RunRequest) -> StartedRun:
        """Begin a run inside the walls; what the script does wrong is in the result."""


class NoRunner:
    """Stands where no sandbox is set up: nothing runs outside one."""

    async def hold(self, files: Sequence[str], *, caller: str) -> HeldFiles:
        """No files: nothing is run with them."""
        return HeldFiles()

    async def start(self, request: RunRequest) -> StartedRun:
        """Refuse."""
        raise SkillError(
            "No sandbox is available, so scripts are not run; the skill's instructions can be read.",
            skill=request.skill,
            code="SANDBOX_UNAVAILABLE",
            mode="sandbox",
        )
