"""Settings of search."""

from dataclasses import dataclass, field
from typing import Literal

EmbeddingKind = Literal["bundled", "openai"]
DEFAULT_LIMIT = 5
MAX_LIMIT = 100
SPARE_CANDIDATES = 2
"""Ranked beyond the limit, in case some are disabled."""
DEFAULT_RERANKER_SECONDS = 0.5
DEFAULT_THRESHOLD = 0.15
"""Passes 91 to 100 % of the right skills of public request sets, and little for requests that none answers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RetrievalSettings:
    embedding: EmbeddingKind = "bundled"
    models: tuple[str, ...] = ()
    """Names of local models; empty for all that are installed along."""
    reranker: str | None = None
    """The name of an added model that orders the best results again."""
    reranker_seconds: float = DEFAULT_RERANKER_SECONDS
    base_url: str | None = None
    model: str | None = None
    api_key: str | None = field(default=None, repr=False)
    limit: int = DEFAULT_LIMIT
    threshold: float = DEFAULT_THRESHOLD
    usage_memory: bool = True
    usage_memory_shared: bool = False
    """Whether past requests of one caller count for other callers."""
    usage_days: int = 30
    """Days until past use expires after it was last confirmed."""
