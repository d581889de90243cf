"""What a kind of walls is, for the sandbox that uses it."""

from collections.abc import Mapping
from dataclasses import dataclass

from apexbridge.sandbox.config import BackendName, Guarantee


@dataclass(frozen=True, slots=True, kw_only=True)
class Backend:
    """One kind of walls on this host."""

    name: BackendName
    enforcement: Mapping[Guarantee, str | None]
    """What holds, by which means; None where nothing does."""
    temporary: str
    """The folder that workspaces are in, as a run sees it."""
    skill_path: str | None
    """Where a run finds its skill; None where it is the folder on the host."""
    loaders: str
    """Where the loaders are, as a run sees them."""
    layer_paths: Mapping[str, str]
    can_wait: bool
    """Whether a cell can be started before its skill is known."""
    can_reach_hosts: bool
    """Whether granted hosts can be reached."""

    @property
    def told(self) -> dict[str, str | None]:
        """As a result tells it."""
        return dict[str, str | None](self.enforcement.items())
