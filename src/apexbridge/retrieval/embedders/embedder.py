"""One or two models as one: a skill's vector is theirs in a row, a request's is asked of those that can read it."""

import threading
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from apexbridge.errors import ServerError
from apexbridge.retrieval.config import RetrievalSettings
from apexbridge.retrieval.documents import Document
from apexbridge.retrieval.embedders.endpoint import EndpointModel
from apexbridge.retrieval.embedders.english import find_english_model
from apexbridge.retrieval.embedders.model import Floats, Model, Scale
from apexbridge.retrieval.embedders.multilingual import MultilingualModel
from apexbridge.retrieval.glossary import english_gist
from apexbridge.retrieval.text import clauses, is_mostly_ascii

CACHED_REQUESTS = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelVectors:
    """A request as one model sees it."""

    whole: Floats
    clauses: Floats
    """A row each; no rows where the request asks for one thing."""
    scale: Scale
    is_gist: bool = False
    """Whether the model read a few translated words instead of the request."""


RequestVectors = tuple[ModelVectors | None, ...]
"""One place a model; None where the model can make nothing of the request."""


class Embedder:
    """Turns skills and requests into vectors; blocks, and may be called from several threads."""

    def __init__(self, models: Sequence[Model]) -> None:
        self.models = tuple(models)
        self.id = "+".join(model.id for model in self.models)
        self._requests: OrderedDict[str, RequestVectors] = OrderedDict()
        self._lock = threading.Lock()

    @property
    def is_remote(self) -> bool:
        """Whether another machine may say something else next time."""
        return any(isinstance(model, EndpointModel) for model in self.models)

    @property
    def dimensions_by_model(self) -> tuple[int, ...]:
        """Length of each model's part."""
        return tuple(model.dimensions for model in self.models)

    @property
    def dimensions(self) -> int:
        """Length of a whole vector."""
        return sum(self.dimensions_by_model)

    def expect(self, stored: tuple[str, int] | None) -> None:
        """Take from the store how long the vectors are, where they are this model's and it did not say so itself."""
        for model in self.models:
            if isinstance(model, EndpointModel) and stored and stored[0] == self.id:
                model.assume(stored[1])

    def probe(self) -> None:
        """Ask the model once, so that the length of its vectors is known where it can be.

        Raises:
            EmbeddingError: it cannot be used.
        """
        for model in self.models:
            model.scale()

    def embed_documents(self, documents: Sequence[Document]) -> list[Floats]:
        """A vector a skill: its text, and its name as far as that has weight.

        Raises:
            EmbeddingError: a model cannot be used.
        """
        named = [place for place, document in enumerate(documents) if document.name_weight > 0]
        texts = [document.text for document in documents] + [documents[place].title for place in named]
        weights = np.array([documents[place].name_weight for place in named], np.float32)[:, None]
        parts = []
        for model in self.models:
            vectors = model.embed(texts)
            part = np.array(vectors[: len(documents)])
            part[named] = (1 - weights) * part[named] + weights * vectors[len(documents) :]
            parts.append(part)
        return list(np.concatenate(parts, axis=1))

    def embed_request(self, request: str) -> RequestVectors:
        """The request and its clauses; the last ones asked are remembered.

        Raises:
            EmbeddingError: a model cannot be used.
        """
        with self._lock:
            if request in self._requests:
                self._requests.move_to_end(request)
                return self._requests[request]
        vectors = tuple(_as_seen_by(model, request) for model in self.models)
        with self._lock:
            self._requests[request] = vectors
            if len(self._requests) > CACHED_REQUESTS:
                self._requests.popitem(last=False)
        return vectors


def choose_embedder(settings: RetrievalSettings) -> Embedder:
    """Nothing is loaded yet.

    Raises:
        ServerError: INVALID_SETTING, an endpoint without address or model.
    """
    if settings.embedding == "openai":
        if not settings.base_url or not settings.model:
            raise ServerError(
                "APEX_EMBEDDING=openai needs APEX_EMBEDDING_BASE_URL and APEX_EMBEDDING_MODEL.", code="INVALID_SETTING"
            )
        return Embedder([EndpointModel(base_url=settings.base_url, model=settings.model, api_key=settings.api_key)])
    models: list[Model] = [MultilingualModel()]
    if english := find_english_model():
        models.append(english)
    return Embedder(models)


def _as_seen_by(model: Model, request: str) -> ModelVectors | None:
    if not model.english_only or is_mostly_ascii(request):
        vectors = model.embed([request, *clauses(request)])
        return ModelVectors(whole=vectors[0], clauses=vectors[1:], scale=model.scale())
    gist = english_gist(request)
    if gist is None:
        return None
    vectors = model.embed([gist])
    return ModelVectors(whole=vectors[0], clauses=vectors[1:], scale=model.scale(), is_gist=True)
