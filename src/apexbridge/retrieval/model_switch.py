"""Changes the embedding models: embeds everything again while the old vectors serve, then switches at once."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any, Protocol, TypeVar

import numpy as np
from pydantic import Field

from apexbridge._tasks import run_to_completion, wait_up_to
from apexbridge.retrieval.documents import Document
from apexbridge.retrieval.embedders.embedder import Embedder
from apexbridge.retrieval.embedders.model import EmbeddingError, Floats
from apexbridge.retrieval.index.search_index import SearchIndex
from apexbridge.retrieval.index.vector_draft import VectorDrafts
from apexbridge.retrieval.index.vector_file import VectorFileError
from apexbridge.retrieval.text import visible
from apexbridge.retrieval.usage import SAME_COSINE, UsagePair, request_vector, same_text_cosines
from apexbridge.wire import WireModel

BATCH = 100
"""Documents or past requests embedded at a time: searches take their turn in between."""
FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 5.0, 40.0
"""Between attempts after a failure."""

T = TypeVar("T")
Progress = Callable[[int, int], None]
RequestTexts = Callable[[Collection[str]], Awaitable[Mapping[str, str]]]
"""Returns the requests of the chats with these links, of those whose texts are recorded."""
logger = logging.getLogger(__name__)


class ModelChange(WireModel):
    """A change of the embedding models that is not complete yet."""

    models: list[str] = Field(description="The new models.")
    done: int = Field(description="Skills and tools that are embedded by them.")
    total: int
    problem: str | None = Field(description="Why they cannot be used; the next attempt follows within a minute.")


class _InTurn(Protocol):
    def __call__(self, caller: str, work: Callable[[], T]) -> Awaitable[T]: ...


class ModelSwitch:
    """Makes the target of an index the embedder in use. Until then, searches use the old models."""

    def __init__(self, index: SearchIndex, in_turn: _InTurn, texts: RequestTexts | None) -> None:
        self.problem: str | None = None
        """Why the last attempt failed."""
        self.dropped = 0
        """Past requests that the last switch dropped, because no model in use has a vector of them."""
        self._index = index
        self._in_turn = in_turn
        self._texts = texts
        self._begun: Embedder | None = None
        """Whose vectors follow."""
        self._drafts: VectorDrafts | None = None
        self._pairs: dict[UsagePair, Floats | None] = {}
        self._learnt: dict[UsagePair, str] = {}
        """Texts of pairs that were learnt during the change."""
        self._total = 0
        self._requested = asyncio.Event()
        self._lock = asyncio.Lock()

    @property
    def in_use(self) -> Embedder:
        return self._index.embedder

    @property
    def target(self) -> Embedder:
        return self._index.target

    @property
    def change(self) -> ModelChange | None:
        """What is going on; None if the target is in use."""
        index, target = self._index, self._index.target
        is_switched, is_begun = target.id == index.embedder.id, self._begun is target
        if not index.is_loaded or (is_switched and not is_begun):
            return None
        total = self._total if is_begun and not is_switched else index.document_count
        return ModelChange(
            models=target.names,
            done=total if is_switched else min(len(self._drafts or ()), total) if is_begun else 0,
            total=total,
            problem=self.problem,
        )

    def want(self, embedder: Embedder) -> None:
        """Embed everything by these models, in `run`; an unfinished change to other ones is given up."""
        self._index.target = embedder
        self.problem, self.dropped = None, 0
        self.request()

    def request(self) -> None:
        """Let `run` begin, if the target is not in use."""
        self._requested.set()

    async def run(self, on_switched: Callable[[], Awaitable[Any]]) -> None:
        """Switch the models whenever it is requested, until cancelled. After a failure, try again."""
        pause = FIRST_PAUSE_SECONDS
        while True:
            await self._requested.wait()
            self._requested.clear()
            try:
                if await self.run_once():
                    await run_to_completion(on_switched())
            except Exception as error:
                logger.exception("the embedding models could not be changed")
                self.problem = type(error).__name__
            if self.problem is None:
                pause = FIRST_PAUSE_SECONDS
            else:
                await wait_up_to(pause, self._requested)
                pause = min(pause * 2, LONGEST_PAUSE_SECONDS)
                self._requested.set()

    async def run_once(self, progress: Progress | None = None) -> bool:
        """Embed everything by the target and switch to it; returns whether that was done.

        A failure of the models is logged, and `problem` says why.
        """
        async with self._lock:
            await self._index.load()
            is_switched = False
            try:
                while (target := self._index.target).id != self._index.embedder.id:
                    is_switched = await self._switch_to(target, progress)
                await self._complete_pairs()
            except (EmbeddingError, VectorFileError) as error:
                if self.problem != str(error):
                    logger.warning("%s Search goes on with %s.", error, self._index.embedder.id)
                self.problem = str(error)
                return is_switched
            self.problem = None
            await asyncio.to_thread(self._forget_vectors)
            self._learnt.clear()
            return is_switched

    def learn(self, pair: UsagePair, request: str) -> None:
        """Keep the text of a new pair in memory until the new models have embedded it; it is not stored."""
        if self.change is not None:
            self._learnt[pair] = request

    def _forget_vectors(self) -> None:
        if self._drafts is not None:
            self._drafts.discard()
        self._begun, self._drafts, self._pairs = None, None, {}

    async def _switch_to(self, target: Embedder, progress: Progress | None) -> bool:
        """One attempt; False if the target is another one by now."""
        if self._begun is not target or self._drafts is None:
            await asyncio.to_thread(self._forget_vectors)
            self._begun, self._total = target, self._index.document_count
            if target.is_remote:
                await self._in_turn("", target.probe)  # the length of its vectors
            self._drafts = await asyncio.to_thread(self._index.drafts, target)
        drafts = self._drafts
        while self._index.target is target:
            await asyncio.to_thread(drafts.write)
            documents = await asyncio.to_thread(self._without_vector, drafts)
            pairs = await asyncio.to_thread(self._index.pairs)
            past = [(pair, vector) for pair, vector in pairs if pair not in self._pairs]
            if not documents and not past:
                await asyncio.to_thread(drafts.finish)
                dropped = await self._index.switch(target, drafts, self._pairs)
                if dropped is not None:
                    self._drafts = None
                    self._report(dropped)
                    return True
                continue
            await self._embed_documents(target, drafts, documents, progress)
            await self._embed_pairs(target, past)
        return False

    def _without_vector(self, drafts: VectorDrafts) -> list[Document]:
        documents = self._index.documents()
        self._total = len(documents)
        drafts.retain({document.name for document in documents})
        return drafts.missing(documents)

    async def _embed_documents(
        self, target: Embedder, drafts: VectorDrafts, documents: Sequence[Document], progress: Progress | None
    ) -> None:
        for start in range(0, len(documents), BATCH):
            if self._index.target is not target:
                return
            batch = documents[start : start + BATCH]
            vectors = await self._in_turn("", partial(self._vectors_of, target, batch))
            await asyncio.to_thread(drafts.put, batch, vectors)
            if progress:
                progress(min(len(drafts), self._total), self._total)

    def _vectors_of(self, target: Embedder, documents: Sequence[Document]) -> list[Floats]:
        """The vectors by the new models. What models that stay have made is copied."""
        embedder = self._index.embedder
        columns = {id: own for id, own in embedder.columns.items() if id in {model.id for model in target.models}}
        held = self._index.held(documents) if columns else [None] * len(documents)
        known = {row: own.vector for row, own in enumerate(held) if own is not None and own.embedder == embedder.id}
        others = [row for row in range(len(documents)) if row not in known]
        vectors: dict[int, Floats] = {}
        if known:
            matrix = np.stack(list(known.values()))
            parts = {id: matrix[:, own] for id, own in columns.items()}
            again = target.embed_documents([documents[row] for row in known], known=parts)
            vectors |= zip(known, again, strict=True)
        if others:
            vectors |= zip(others, target.embed_documents([documents[row] for row in others]), strict=True)
        return [vectors[row] for row in range(len(documents))]

    async def _embed_pairs(self, target: Embedder, past: Sequence[tuple[UsagePair, Floats]]) -> None:
        """Convert past requests: columns of models that stay are kept, others come from the text of the chat."""
        columns = self._index.embedder.columns
        for start in range(0, len(past), BATCH):
            if self._index.target is not target:
                return
            batch = past[start : start + BATCH]
            links = {pair.chat for pair, _ in batch if pair.chat}
            recorded = await self._texts(links) if self._texts is not None and links else {}
            texts = {pair: self._learnt.get(pair) or recorded.get(pair.chat, "") for pair, _ in batch}
            pairs = [(pair, target.projected(vector, columns)) for pair, vector in batch]
            self._pairs |= await self._in_turn("", partial(_converted, pairs, texts, target))

    async def _complete_pairs(self) -> None:
        """Embed past requests that have no vector, which were made by models that are not installed any more."""
        embedder = self._index.target
        while embedder.dimensions:
            pairs = await asyncio.to_thread(self._index.pairs)
            if all(vector.any() for _, vector in pairs):
                return
            self._begun, self._pairs = embedder, {pair: vector for pair, vector in pairs if vector.any()}
            await self._embed_pairs(embedder, [(pair, vector) for pair, vector in pairs if not vector.any()])
            dropped = await self._index.switch(embedder, None, self._pairs)
            if dropped is not None:
                self._report(dropped)
            elif self._index.target is not embedder:
                return

    def _report(self, dropped: Collection[UsagePair]) -> None:
        self.dropped += len(dropped)
        logger.info("search uses the models %s now", self._index.embedder.id)
        if dropped:
            logger.warning(
                "%d past requests were dropped: no model in use has read them, and no record has their text",
                len(dropped),
            )


def _converted(
    pairs: Sequence[tuple[UsagePair, Floats]], texts: Mapping[UsagePair, str], embedder: Embedder
) -> dict[UsagePair, Floats | None]:
    """The vectors of past requests by the new models; None for one that has none."""
    converted: dict[UsagePair, Floats | None] = {}
    for pair, vector in pairs:
        text = visible(texts[pair])
        again = _vector(embedder, text) if text else np.zeros_like(vector)
        if vector.any():
            # The models that stay tell whether this is the text: a pair may be from a model's search in the same chat.
            is_same = same_text_cosines(vector[None], again, embedder.dimensions_by_model)[0] >= SAME_COSINE
            converted[pair] = again if is_same else vector
        else:
            converted[pair] = again if again.any() else None
    return converted


def _vector(embedder: Embedder, request: str) -> Floats:
    return request_vector(embedder.embed_request(request), embedder.dimensions_by_model)
