"""ToolRetrievalService: finds the right skills for a request, and says why."""

import time
from collections import OrderedDict
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path

import anyio.to_thread
import numpy as np
from numpy.typing import NDArray

from apexbridge.errors import InvalidInputError, ServerError
from apexbridge.retrieval.config import MAX_LIMIT, RetrievalSettings
from apexbridge.retrieval.documents import Document, FactsOf
from apexbridge.retrieval.embedders.embedder import Embedder, RequestVectors
from apexbridge.retrieval.embedders.model import EmbeddingError, Floats
from apexbridge.retrieval.index.search_index import SearchIndex
from apexbridge.retrieval.matches import SearchAnswer, SearchMode, SkillMatch, confidence, explain
from apexbridge.retrieval.ranking import Candidate, Request, rank, rank_of_slot
from apexbridge.retrieval.text import visible
from apexbridge.retrieval.usage import UsagePair, request_vector

MAX_REQUEST_CHARACTERS = 4_000
MOST_RAW_CHARACTERS = 2 * MAX_REQUEST_CHARACTERS
"""Before white space and what cannot be seen is taken out."""
SPARE_CANDIDATES = 5
"""Ranked beyond the limit, in case some are switched off."""
CACHED_RANKINGS = 1000
FORGOTTEN_CHATS = 1000
"""A chat teaches behind its answer, so its record may be deleted before that."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Ranking:
    """The candidates for a request, with what was lacking when they were ranked."""

    found: tuple[tuple[Document, Candidate], ...]
    degraded: bool
    warnings: tuple[str, ...]


class ToolRetrievalService(SearchIndex):
    """The index of skills: fed by whoever keeps them, asked by whoever needs one.

    Example:
        service = ToolRetrievalService(Path("data"), choose_embedder(settings), settings)
        async with service.running():
            await service.index_skills(documents)
            hits = await service.find_relevant_skills("merge two PDF files")
    """

    def __init__(
        self,
        data_dir: Path,
        embedder: Embedder,
        settings: RetrievalSettings | None = None,
        *,
        facts: FactsOf | None = None,
    ) -> None:
        self.settings = settings or RetrievalSettings()
        super().__init__(data_dir, embedder, usage_days=self.settings.usage_days)
        self.facts = facts
        """Who says which skills may be shown; nobody where that is left open."""
        self._rankings: OrderedDict[tuple[object, ...], _Ranking] = OrderedDict()
        self._ranked_version = 0
        self._forgotten_chats: OrderedDict[str, None] = OrderedDict()

    # -------------------------------------------------------------------------------------------------- asking
    async def find_relevant_skills(
        self, query: str, limit: int | None = None, *, threshold: float | None = None, tags: Collection[str] = ()
    ) -> list[SkillMatch]:
        """The skills that fit a request, best first."""
        return (await self.search(query, limit=limit, threshold=threshold, tags=tags)).results

    async def search(
        self,
        query: str,
        *,
        limit: int | None = None,
        threshold: float | None = None,
        tags: Collection[str] = (),
        mode: SearchMode = "hybrid",
        for_model: bool = False,
        caller: str = "",
    ) -> SearchAnswer:
        """The skills that fit a request, with what was lacking in finding them.

        `for_model` leaves out skills that a model must not find by itself.

        Raises:
            InvalidInputError: no words to search for, or a limit or threshold that makes no sense.
            ServerError: LANCE_SEARCH_ERROR, meaning was to be compared and cannot be.
        """
        begun = time.monotonic()
        text = _checked(query)
        limit = self.settings.limit if limit is None else limit
        threshold = self.settings.threshold if threshold is None else threshold
        if not 1 <= limit <= MAX_LIMIT:
            raise InvalidInputError(f"limit must be between 1 and {MAX_LIMIT}")
        if not 0 <= threshold <= 1:
            raise InvalidInputError("threshold must be between 0 and 1")
        await self.wake()
        wanted = frozenset(tag.casefold() for tag in tags)
        count = limit + SPARE_CANDIDATES
        while True:
            async with self._turns.turn(caller):
                ranking = await anyio.to_thread.run_sync(
                    self._ranking, text, count, wanted, mode, for_model, caller, limiter=self._asking
                )
            results, was_enough = await self._results(ranking, limit, threshold)
            if was_enough or len(ranking.found) < count:
                break
            count *= 10  # many of the best were switched off
        return SearchAnswer(
            results=results,
            took=round((time.monotonic() - begun) * 1000, 2),
            degraded="keyword" if ranking.degraded else None,
            warnings=[*ranking.warnings, *self._store_warnings()],
        )

    async def _results(self, ranking: _Ranking, limit: int, threshold: float) -> tuple[list[SkillMatch], bool]:
        """What of the ranking may be shown, and whether more candidates could not change that."""
        names = [document.name for document, _ in ranking.found]
        facts = await self.facts(names) if self.facts and names else {}
        results: list[SkillMatch] = []
        score, skipped = 1.0, False
        for document, candidate in ranking.found:
            known = facts.get(document.name)
            if self.facts and (known is None or not known.enabled):
                skipped = True
                continue
            if len(results) == limit:
                return results, True
            own = round(confidence(candidate), 4)
            if own < threshold:
                continue
            score = min(score, own)  # the order is the ranking's, whatever the evidence
            results.append(
                SkillMatch(
                    name=document.name,
                    description=document.description,
                    score=score,
                    tags=list(document.tags or document.derived_tags),
                    mode=known.mode if known else None,
                    why=explain(candidate),
                )
            )
        return results, len(results) == limit or not skipped

    async def rank_of(self, name: str, query: str) -> int | None:
        """The place of one skill among all for a request, 1 being the first; None where it is not known."""
        text = _checked(query)
        await self.wake()
        async with self._turns.turn():
            return await anyio.to_thread.run_sync(self._place, name, text, limiter=self._asking)

    def _place(self, name: str, text: str) -> int | None:
        vectors, _ = self._request_vectors(text)
        with self._memory.locked():
            slot = self._memory.slot(name)
            if slot is None:
                return None
            return rank_of_slot(self._memory, self._embedder.models, Request.of(text, vectors), slot)

    def _ranking(
        self, text: str, count: int, tags: frozenset[str], mode: SearchMode, for_model: bool, caller: str
    ) -> _Ranking:
        vectors, warnings = self._request_vectors(text)
        with self._memory.locked():
            if vectors is not None and not self._memory.has_vector.any() and len(self._memory):
                vectors, warnings = None, ["No skill is indexed by meaning yet."]
            if mode == "vector" and vectors is None:
                raise ServerError(
                    f"LanceDB connection failed: {' '.join(warnings)} Search by words works: leave mode out.",
                    code="LANCE_SEARCH_ERROR",
                )
            if self._ranked_version != self._memory.version:
                self._rankings.clear()
                self._ranked_version = self._memory.version
            key = (text, count, tags, mode, for_model, caller)
            if vectors is not None and key in self._rankings:
                self._rankings.move_to_end(key)
                return self._rankings[key]
            past = (
                self._usage.recall(vectors, caller=caller, shared=self.settings.usage_memory_shared)
                if vectors is not None and self.settings.usage_memory
                else {}
            )
            candidates = rank(
                self._memory,
                self._embedder.models,
                Request.of(text, vectors, past),
                count=count,
                allowed=self._allowed(tags, for_model),
                lexical=mode == "hybrid",
            )
            found = tuple(
                (self._memory.documents[candidate.slot], candidate)
                for candidate in candidates
                if vectors is not None or candidate.matched  # by words alone, a skill without a word is no candidate
            )
            warnings += self._waiting_warnings()
            ranking = _Ranking(found=found, degraded=vectors is None, warnings=tuple(warnings))
            if vectors is not None:  # what was lacking a moment ago may be there now
                self._rankings[key] = ranking
                if len(self._rankings) > CACHED_RANKINGS:
                    self._rankings.popitem(last=False)
            return ranking

    def _request_vectors(self, text: str) -> tuple[RequestVectors | None, list[str]]:
        if self._closed_store is not None:
            return None, [f"The index cannot be opened: {self._closed_store}."]
        try:
            vectors = self._embedder.embed_request(text)
        except EmbeddingError as error:
            self._note_model(str(error))
            return None, [str(error)]
        self._note_model(None)
        if self._embedder.dimensions_by_model != self._memory.dimensions:
            return None, ["No skill is indexed by meaning yet."]
        return vectors, []

    def _allowed(self, tags: frozenset[str], for_model: bool) -> NDArray[np.bool_] | None:
        if not tags and not for_model:
            return None
        return np.fromiter(
            (
                not (for_model and document.hidden)
                and (not tags or any(tag.casefold() in tags for tag in (*document.tags, *document.derived_tags)))
                for document in self._memory.documents
            ),
            np.bool_,
            len(self._memory),
        )

    def _waiting_warnings(self) -> list[str]:
        waiting = len(self._memory) - int(self._memory.has_vector.sum())
        if not waiting or self._closed_store is not None:
            return []
        return [f"{waiting} of {len(self._memory)} skills are not indexed by meaning yet."]

    def _store_warnings(self) -> list[str]:
        if not self.problem:
            return []
        return [f"The index on disk cannot be written ({self.problem}); search goes on from memory."]

    # ------------------------------------------------------------------------------------------------ past use
    async def remember(self, request: str, skill: str, *, succeeded: bool, caller: str = "", chat: str = "") -> bool:
        """Learn that a request was answered by a skill; a run that failed teaches nothing. False where it did not.

        What is learnt with the link of a `chat` can be forgotten by it.
        """
        if not self.settings.usage_memory or not succeeded:
            return False
        text = _checked(request)
        await self.wake()
        if skill not in self._memory:
            return False
        async with self._turns.turn(caller):
            taught = await anyio.to_thread.run_sync(self._teach, text, skill, caller, chat, limiter=self._asking)
        if taught is None:
            return False
        pair, vector, crowded = taught
        if pair in self._usage:  # else it was forgotten again in the meantime
            self._writer.put_pair(pair, vector)
        self._writer.drop_pairs(crowded)
        return True

    async def forget(self, skill: str | None = None) -> int:
        """Forget what past requests taught about a skill, or about all; gives how many pairs that were."""
        await self.wake()
        return await self._forget(
            lambda: self._usage.forget_all_but(()) if skill is None else self._usage.forget([skill])
        )

    async def forget_chat(self, chat: str) -> int:
        """Forget what a chat taught, and what it may still be about to teach; returns how many pairs that were."""
        self._forgotten_chats[chat] = None
        if len(self._forgotten_chats) > FORGOTTEN_CHATS:
            self._forgotten_chats.popitem(last=False)
        if not self._awake and not self._store.exists():
            return 0
        await self.wake()
        return await self._forget(lambda: self._usage.forget_chat(chat))

    async def forget_expired(self) -> int:
        """Forget what was not confirmed for too long; returns how many pairs that were."""
        if not self._awake:  # it is done when the index is loaded
            return 0
        return await self._forget(lambda: self._usage.forget_before(self._oldest_moment()))

    async def _forget(self, drop: Callable[[], list[UsagePair]]) -> int:
        """Drop pairs; they are gone from the disk when this returns, unless that cannot be written now."""

        def work() -> list[UsagePair]:
            with self._memory.locked():
                self._memory.version += 1
                return drop()

        pairs = await anyio.to_thread.run_sync(work)
        if pairs:
            self._writer.drop_pairs(pairs)
            self._writer.erase_pairs()
            await self._writer.flush()
        return len(pairs)

    def _teach(self, text: str, skill: str, caller: str, chat: str) -> tuple[UsagePair, Floats, list[UsagePair]] | None:
        vectors, _ = self._request_vectors(text)
        if vectors is None:
            return None
        vector = request_vector(vectors, self._embedder.dimensions_by_model)
        with self._memory.locked():
            if skill not in self._memory or chat in self._forgotten_chats:
                return None
            self._memory.version += 1
            pair, crowded = self._usage.teach(skill, vector, caller=caller, chat=chat)
            return pair, vector, crowded


def _checked(query: str) -> str:
    if len(query) > MOST_RAW_CHARACTERS:
        raise InvalidInputError(f"query has {len(query)} characters; at most {MAX_REQUEST_CHARACTERS} are allowed")
    text = visible(query)
    if not text:
        raise InvalidInputError("query must hold something to search for")
    if len(text) > MAX_REQUEST_CHARACTERS:
        raise InvalidInputError(f"query has {len(text)} characters; at most {MAX_REQUEST_CHARACTERS} are allowed")
    return text
