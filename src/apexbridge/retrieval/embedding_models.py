"""The embedding models of a data directory: which are installed, which are in use, and the choice of others."""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pydantic import Field

from apexbridge._text import near_names
from apexbridge.errors import InvalidInputError, did_you_mean
from apexbridge.retrieval.config import RetrievalSettings
from apexbridge.retrieval.documents import Document
from apexbridge.retrieval.embedders.embedder import DEFAULT_MODELS, Embedder, installed_models
from apexbridge.retrieval.embedders.model import EmbeddingError
from apexbridge.retrieval.embedders.model_card import ModelCard, ModelKind, Pooling
from apexbridge.retrieval.embedders.model_choice import read_choice, write_choice
from apexbridge.retrieval.embedders.model_sources import KNOWN_MODELS
from apexbridge.retrieval.embedders.model_store import ModelStore
from apexbridge.retrieval.embedders.onnx_model import OnnxModel
from apexbridge.retrieval.model_switch import ModelChange
from apexbridge.retrieval.reranking import RERANKER_WEIGHT
from apexbridge.retrieval.service import ToolRetrievalService
from apexbridge.wire import WireModel

PROBE = Document(name="probe", description="merge two files")


class EmbeddingModel(WireModel):
    name: str
    kind: ModelKind = Field(description="A reranker orders the best results again; APEX_RERANKER names it.")
    dimensions: int
    english_only: bool
    pooling: Pooling | None = Field(
        description="How the vectors of its tokens become one; null if the model does it, and for a reranker."
    )
    request_prefix: str = Field(description="What it reads before each request.")
    document_prefix: str = Field(description="What it reads before the text of each skill.")
    weight: float
    bytes: int | None = Field(description="On disk; null for a bundled model.")
    source: str = Field(description="Where it was added from; empty for a bundled model.")
    in_use: bool = Field(description="Whether searches use it now.")


class EmbeddingModelList(WireModel):
    """The installed models, and which of them are used."""

    models: list[EmbeddingModel]
    chosen: list[str] | None = Field(description="By `apex models use`; null for the default ones.")
    in_use: list[str] = Field(description="The models that made the vectors of the index.")
    change: ModelChange | None = Field(description="Null unless everything is being embedded again.")
    dropped_requests: int = Field(description="Past requests that the last change since the start dropped.")
    problems: list[str] = Field(description="Models that cannot be used, and why.")


class EmbeddingModels:
    def __init__(self, data_dir: Path, settings: RetrievalSettings, retrieval: ToolRetrievalService) -> None:
        self._data_dir = data_dir
        self._settings = settings
        self._retrieval = retrieval
        self._lock = asyncio.Lock()

    async def list(self) -> EmbeddingModelList:
        await self._retrieval.wake()
        return await asyncio.to_thread(self._list)

    def _list(self) -> EmbeddingModelList:
        switch = self._retrieval.models
        change, in_use = (
            switch.change,
            switch.in_use.names,
        )  # in this order: a change that ends meanwhile is still shown
        added, problems = ModelStore(self._data_dir).models()
        cards = {model.card.name: model for model in added}
        if switch.target.problem:
            problems[""] = switch.target.problem
        return EmbeddingModelList(
            models=[
                EmbeddingModel(
                    name=name,
                    kind="embedding",
                    dimensions=model.dimensions,
                    english_only=model.english_only,
                    **how_it_reads(model.card if isinstance(model, OnnxModel) else None),
                    weight=model.weight,
                    bytes=cards[name].size if name in cards else None,
                    source=cards[name].card.source if name in cards else "",
                    in_use=name in in_use,
                )
                for name, model in installed_models(self._data_dir).items()
            ]
            + [
                EmbeddingModel(
                    name=model.card.name,
                    kind="reranker",
                    dimensions=model.card.dimensions,
                    english_only=model.card.english_only,
                    **how_it_reads(None),
                    weight=RERANKER_WEIGHT,
                    bytes=model.size,
                    source=model.card.source,
                    in_use=model.card.name == self._settings.reranker,
                )
                for model in added
                if model.card.kind == "reranker"
            ],
            chosen=list(read_choice(self._data_dir)) or None,
            in_use=in_use,
            change=change,
            dropped_requests=switch.dropped,
            problems=list(problems.values()),
        )

    async def use(self, names: Sequence[str] | None) -> EmbeddingModelList:
        """Choose the models of search, by default those that are installed along.

        Each has to embed a text. Then everything is embedded again in the background, and the choice is stored.
        Raises InvalidInputError.
        """
        self._check_settings()
        if names is not None and not names:
            raise InvalidInputError("Name at least one model, as in: apex models use use-multilingual-v3")
        await self._retrieval.wake()
        async with self._lock:
            chosen = tuple(dict.fromkeys(names or ()))
            embedder = await asyncio.to_thread(self._probed, chosen)
            await asyncio.to_thread(write_choice, self._data_dir, chosen)
            self._retrieval.models.want(embedder)
        return await self.list()

    def _check_settings(self) -> None:
        settings = self._settings
        if settings.embedding != "bundled":
            raise InvalidInputError(
                f"APEX_EMBEDDING={settings.embedding} takes vectors from an endpoint. To use local models, remove it "
                "and restart."
            )
        if settings.models:
            raise InvalidInputError(
                f"APEX_EMBEDDING_MODELS={','.join(settings.models)} takes precedence over this choice. Change it, or "
                "remove it, and restart."
            )

    def _probed(self, chosen: Sequence[str]) -> Embedder:
        installed = installed_models(self._data_dir)
        added, problems = ModelStore(self._data_dir).models()
        rerankers = {model.card.name for model in added if model.card.kind == "reranker"}
        for name in chosen:
            if name in problems:
                raise InvalidInputError(f"{problems[name]} Add it again: apex models add … --name {name} --replace")
            if name in rerankers:
                raise InvalidInputError(f"{name} is a reranker: to use it, set APEX_RERANKER={name} and restart")
            if name not in installed:
                near = did_you_mean(near_names(name, {*installed, *KNOWN_MODELS}))
                raise InvalidInputError(
                    f"No embedding model named {name} is installed{near or '.'} There is: {', '.join(installed)}. "
                    "Add others: apex models add …"
                )
        switch = self._retrieval.models
        loaded = {model.id: model for model in (*switch.in_use.models, *switch.target.models)}
        models = [installed[name] for name in chosen or DEFAULT_MODELS if name in installed]
        embedder = Embedder(loaded.get(model.id, model) for model in models)
        try:
            embedder.embed_documents([PROBE])
        except EmbeddingError as error:
            raise InvalidInputError(f"{error} The models in use stay the same.") from error
        return embedder


def how_it_reads(card: ModelCard | None) -> dict[str, Any]:
    """The fields of a model that say what it makes of a text."""
    if card is None or card.kind == "reranker":
        return {"pooling": None, "request_prefix": "", "document_prefix": ""}
    return {
        "pooling": None if card.output else card.pooling,
        "request_prefix": card.request_prefix,
        "document_prefix": card.document_prefix,
    }
