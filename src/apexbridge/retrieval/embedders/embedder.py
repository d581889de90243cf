"""Several models combined: a skill's vector is the vectors of all models in a row."""

import itertools
import logging
import threading
from collections import OrderedDict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from apexbridge._text import near_names
from apexbridge.errors import ServerError, did_you_mean
from apexbridge.retrieval.config import RetrievalSettings
from apexbridge.retrieval.documents import Document
from apexbridge.retrieval.embedders.bundled import ENGLISH_MODEL, MultilingualModel, find_english_model
from apexbridge.retrieval.embedders.endpoint import ENDPOINT_PREFIX, EndpointModel
from apexbridge.retrieval.embedders.model import Floats, Model, Scale
from apexbridge.retrieval.embedders.model_choice import read_choice
from apexbridge.retrieval.embedders.model_store import ModelStore
from apexbridge.retrieval.text import clauses, english_gist, is_english, tokens

CACHED_REQUESTS = 1000
DEFAULT_MODELS = (MultilingualModel.id, ENGLISH_MODEL.name, "gte-small")
"""Used as far as they are installed, unless the settings name the models."""
logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelVectors:
    whole: Floats
    clauses: Floats
    """One row per clause; empty if the request asks for one thing."""
    scale: Scale
    is_gist: bool = False
    """Whether the model read a few translated words instead of the request."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DocumentVector:
    """The vector of a skill or a tool, and the id of the embedder that made it."""

    vector: Floats
    embedder: str


RequestVectors = tuple[ModelVectors | None, ...]
"""One entry per model; None if the model cannot read the request."""


class Embedder:
    """Embeds skills and requests. Its calls block and raise EmbeddingError; several threads may call at once."""

    def __init__(self, models: Iterable[Model], *, problem: str | None = None) -> None:
        """`problem` says why these are not the models that were chosen."""
        self.problem = problem
        # Those that cannot read every request come last, so that a vector of the others has its columns first.
        self.models = tuple(sorted(models, key=lambda model: model.english_only))
        self.id = "+".join(model.id for model in self.models)
        self._requests: OrderedDict[str, RequestVectors] = OrderedDict()
        self._lock = threading.Lock()

    @property
    def names(self) -> list[str]:
        """The names of its models, which are shorter than their ids."""
        return [own.id if isinstance(own, EndpointModel) else own.id.partition("@")[0] for own in self.models]

    @property
    def is_remote(self) -> bool:
        """Whether a server embeds, which may answer with other dimensions next time."""
        return any(isinstance(model, EndpointModel) for model in self.models)

    @property
    def dimensions_by_model(self) -> tuple[int, ...]:
        return tuple(model.dimensions for model in self.models)

    @property
    def dimensions(self) -> int:
        return sum(self.dimensions_by_model)

    @property
    def columns(self) -> dict[str, slice]:
        """Where each model's vector is in a row, by the id of the model."""
        return columns_of(self.id, self.dimensions, {model.id: model.dimensions for model in self.models})

    def projected(self, vector: Floats, columns: Mapping[str, slice]) -> Floats:
        """A vector of other models with the columns of these models; zeros for a model that it does not have."""
        return np.concatenate(
            [
                vector[columns[model.id]] if model.id in columns else np.zeros(model.dimensions, np.float32)
                for model in self.models
            ]
        )

    def assume_dimensions(self, stored: tuple[str, int] | None) -> None:
        """Until a remote model answers, take the length of its vectors from the store: model id and length."""
        for model in self.models:
            if isinstance(model, EndpointModel) and stored and stored[0] == self.id:
                model.assume(stored[1])

    def probe(self) -> None:
        """Ask a remote model once, to learn the length of its vectors."""
        for model in self.models:
            model.scale()

    def embed_documents(
        self, documents: Sequence[Document], *, known: Mapping[str, Floats] | None = None
    ) -> list[Floats]:
        """One vector per skill: its text, and its name if that has weight.

        `known` has what a model has made of these documents before, by its id: a row for each.
        """
        named = [row for row, document in enumerate(documents) if document.name_weight > 0]
        texts = [document.text for document in documents] + [documents[row].title for row in named]
        weights = np.array([documents[row].name_weight for row in named], np.float32)[:, None]
        by_model = []
        for model in self.models:
            if known is not None and model.id in known:
                by_model.append(known[model.id])
                continue
            vectors = model.embed(texts)
            combined = np.array(vectors[: len(documents)])
            combined[named] = (1 - weights) * combined[named] + weights * vectors[len(documents) :]
            by_model.append(combined)
        return list(np.concatenate(by_model, axis=1))

    def embed_request(self, request: str) -> RequestVectors:
        """The request and its clauses; recent ones are cached."""
        with self._lock:
            if request in self._requests:
                self._requests.move_to_end(request)
                return self._requests[request]
        vectors = tuple(_embed_request(model, request) for model in self.models)
        with self._lock:
            self._requests[request] = vectors
            if len(self._requests) > CACHED_REQUESTS:
                self._requests.popitem(last=False)
        return vectors


def columns_of(id: str, length: int, dimensions: Mapping[str, int]) -> dict[str, slice]:
    """Where the vectors of these models are in a stored row, by the id of the model.

    `id` is that of the embedder that made the row. The models between two unknown ones are left out, because the length
    of vectors of unknown models is unknown too.
    """
    ids = [id] if id.startswith(ENDPOINT_PREFIX) else id.split("+")
    columns: dict[str, slice] = {}
    start, end = 0, length
    for model in itertools.takewhile(dimensions.__contains__, ids):
        columns[model] = slice(start, start + dimensions[model])
        start += dimensions[model]
    if len(columns) == len(ids):
        return columns if start == length else {}
    for model in itertools.takewhile(dimensions.__contains__, reversed(ids)):
        columns[model] = slice(end - dimensions[model], end)
        end -= dimensions[model]
    return {model: columns[model] for model in ids if model in columns} if start < end else {}


def choose_embedder(settings: RetrievalSettings, data_dir: Path | None = None) -> Embedder:
    """The embedder for these settings, and else for the choice of `apex models use`.

    Settings that are incomplete, or name a model that is not installed, are an INVALID_SETTING. A model that was chosen
    and is not installed any more is left out.
    """
    if settings.embedding == "openai":
        if not settings.base_url or not settings.model:
            raise ServerError(
                "APEX_EMBEDDING=openai needs APEX_EMBEDDING_BASE_URL and APEX_EMBEDDING_MODEL.", code="INVALID_SETTING"
            )
        return Embedder([EndpointModel(base_url=settings.base_url, model=settings.model, api_key=settings.api_key)])
    models = installed_models(data_dir)
    chosen = () if settings.models or data_dir is None else read_choice(data_dir)
    names = settings.models or chosen
    unknown = [name for name in names if name not in models]
    if unknown and settings.models:
        raise ServerError(_unknown_model(unknown[0], models, data_dir), code="INVALID_SETTING")
    problem = None
    if unknown:
        problem = (
            f"The model {unknown[0]} was chosen and is not installed any more. Add it again and restart, or choose "
            "others: apex models use"
        )
        logger.warning("%s", problem)
    found = [name for name in names if name in models] or [name for name in DEFAULT_MODELS if name in models]
    return Embedder([models[name] for name in dict.fromkeys(found)], problem=problem)


def _unknown_model(name: str, models: Collection[str], data_dir: Path | None) -> str:
    added, _ = ModelStore(data_dir).models()
    if any(model.card.name == name for model in added):
        return f"APEX_EMBEDDING_MODELS names {name}, which is a reranker: name it in APEX_RERANKER instead."
    near = did_you_mean(near_names(name, models)) or f". Add it: apex models add {name}"
    return f"APEX_EMBEDDING_MODELS names {name}, which is not installed{near} There is: {', '.join(models)}."


def installed_models(data_dir: Path | None) -> dict[str, Model]:
    """By name. None of them is loaded yet."""
    models: dict[str, Model] = {MultilingualModel.id: MultilingualModel()}
    if (english := find_english_model()) is not None:
        models[ENGLISH_MODEL.name] = english
    added, problems = ModelStore(data_dir).models()
    for problem in problems.values():
        logger.warning("%s", problem)
    # The English model may be added too, as a faster version. The multilingual one always comes from its package.
    own = {model.card.name: model.open() for model in added if model.card.kind == "embedding"}
    own.pop(MultilingualModel.id, None)
    return {**models, **own}


def _embed_request(model: Model, request: str) -> ModelVectors | None:
    is_gist = model.english_only and not is_english(request)
    text = english_gist(request) if is_gist else request
    if text is None or (model.english_only and not tokens(text)):
        return None  # for such a model, all requests without a word that says something are alike
    vectors = model.embed([text] if is_gist else [text, *clauses(text)], are_requests=True)
    return ModelVectors(whole=vectors[0], clauses=vectors[1:], scale=model.scale(), is_gist=is_gist)
