"""Orders the best candidates of a ranking again, by a model that reads the request and each skill together."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from apexbridge.errors import ServerError
from apexbridge.retrieval.config import RetrievalSettings
from apexbridge.retrieval.documents import Document
from apexbridge.retrieval.embedders.model import Floats
from apexbridge.retrieval.embedders.model_store import ModelStore
from apexbridge.retrieval.embedders.onnx_reranker import OnnxReranker
from apexbridge.retrieval.ranking import Candidate
from apexbridge.retrieval.text import is_english

RERANKED = 20
RERANKER_WEIGHT = 0.3
"""Of the reranker's judgement against the ranking's."""

Ranked = tuple[Document, Candidate]


def choose_reranker(settings: RetrievalSettings, data_dir: Path | None = None) -> OnnxReranker | None:
    """The reranker of the settings. One that is not installed is an INVALID_SETTING."""
    if settings.reranker is None:
        return None
    added, _ = ModelStore(data_dir).models()
    rerankers = {model.card.name: model for model in added if model.card.kind == "reranker"}
    if settings.reranker not in rerankers:
        raise ServerError(
            f"APEX_RERANKER names {settings.reranker}, which is not an installed reranker. "
            f"There is: {', '.join(rerankers) or 'none'}. Add one: apex models add ms-marco-minilm-l12-v2",
            code="INVALID_SETTING",
        )
    return rerankers[settings.reranker].open_reranker()


def reranked(
    reranker: OnnxReranker, request: str, ranked: Sequence[Ranked], *, budget_seconds: float
) -> tuple[list[Ranked], bool]:
    """The candidates in their new order, and whether the budget was enough. Those beyond it keep their places.

    Raises EmbeddingError.
    """
    if reranker.english_only and not is_english(request):
        return list(ranked), True
    texts = [document.text for document, _ in ranked[:RERANKED]]
    judged = reranker.score(request, texts, budget_seconds=budget_seconds)
    scores = np.array([candidate.score for _, candidate in ranked[: len(judged)]], np.float32)
    mixed = (1 - RERANKER_WEIGHT) * _scaled(scores) + RERANKER_WEIGHT * _scaled(judged)
    order = np.argsort(-mixed, kind="stable")
    return [*(ranked[number] for number in order), *ranked[len(judged) :]], len(judged) == len(texts)


def _scaled(values: Floats) -> Floats:
    """0 for the smallest, 1 for the largest."""
    spread = float(np.ptp(values)) if len(values) else 0.0
    return (values - values.min()) / spread if spread > 0 else np.zeros_like(values)
