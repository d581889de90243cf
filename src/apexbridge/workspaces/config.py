"""Settings of workspaces."""

from dataclasses import dataclass

from apexbridge.disk import MB


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkspaceLimits:
    """For all workspaces of one owner together."""

    quota_bytes: int = 512 * MB
    max_files: int = 10_000
    days: int = 7
    """A workspace expires after this many days without use."""
