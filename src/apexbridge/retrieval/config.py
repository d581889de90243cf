"""What an operator can set about search."""

from dataclasses import dataclass, field
from typing import Literal

EmbeddingKind = Literal["bundled", "openai"]
DEFAULT_LIMIT = 5
MAX_LIMIT = 100
DEFAULT_THRESHOLD = 0.15
"""Keeps 98 to 99.9 % of the right skills of public request sets, and nearly nothing of idle talk."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RetrievalSettings:
    """The part of the settings that is about search."""

    embedding: EmbeddingKind = "bundled"
    base_url: str | None = None
    model: str | None = None
    api_key: str | None = field(default=None, repr=False)
    limit: int = DEFAULT_LIMIT
    threshold: float = DEFAULT_THRESHOLD
    usage_memory: bool = True
    usage_memory_shared: bool = False
    """Whether one caller's past requests help another caller."""
    usage_days: int = 30
    """How long a request is remembered after it was last confirmed."""
