"""ToolRetrievalService: finds the right skills and tools for a request, and explains why."""

import asyncio
import logging
import math
import time
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Literal, TypeVar

import numpy as np

from apexbridge._fair_queue import Turns
from apexbridge._tasks import in_thread
from apexbridge._usage import ResourceUsage
from apexbridge.errors import InvalidInputError, ServerError
from apexbridge.retrieval.config import MAX_LIMIT, SPARE_CANDIDATES, RetrievalSettings
from apexbridge.retrieval.confusable import Compared, ConfusablePairs, ConfusableReport
from apexbridge.retrieval.documents import Document, FactsOf, Searchable, kind_of
from apexbridge.retrieval.embedders.embedder import DocumentVector, Embedder, RequestVectors
from apexbridge.retrieval.embedders.model import EmbeddingError, Floats
from apexbridge.retrieval.embedders.onnx_reranker import OnnxReranker
from apexbridge.retrieval.index.search_index import InstalledModels, ModelsSwitchedError, SearchIndex
from apexbridge.retrieval.index.vector_file import VectorFileError
from apexbridge.retrieval.kinds import Kind
from apexbridge.retrieval.matches import (
    RankPreview,
    SearchAnswer,
    SearchMode,
    SkillMatch,
    explain,
    shown_scores,
)
from apexbridge.retrieval.model_switch import ModelSwitch, Progress, RequestTexts
from apexbridge.retrieval.past_requests import PastPreview, PastRequests, compare
from apexbridge.retrieval.ranking import Candidate, Request, best_of, rank, rank_of_slot, scores_of_all
from apexbridge.retrieval.reranking import RERANKED, Ranked, reranked
from apexbridge.retrieval.text import visible, words_by_token
from apexbridge.retrieval.usage import MAX_PAIRS, UsagePair, request_vector

MAX_REQUEST_CHARACTERS = 4_000
MAX_RAW_CHARACTERS = 2 * MAX_REQUEST_CHARACTERS
"""Before control characters and repeated white space are removed."""
CACHED_RANKINGS = 1000
MAX_OVERTAKEN = 20
"""Skills that a preview names for each request."""
BATCH = 100
"""Skills embedded at a time."""
SKILL_SHARE = 0.6
"""Share of the results that tools cannot take from skills, even if more tools have a higher score."""
MODEL_THREADS = 8
"""Searches and embeddings that run at once."""
MAX_MODEL_THREADS = 4 * MODEL_THREADS
"""A cancelled call keeps its thread until the model answers; these are beyond it."""

T = TypeVar("T")
OnSearch = Callable[[str, int, bool], None]
"""Called with the text of a search, the number of its results, and whether it was a model's."""
logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Ranking:
    candidates: tuple[tuple[Document, Candidate], ...]
    degraded: bool
    warnings: tuple[str, ...]
    words: Mapping[str, str] = field(default_factory=dict)
    """The words of the request, by token."""


@dataclass(slots=True)
class _Budget:
    """What is left of the time for reranking."""

    seconds: float

    @contextmanager
    def spent(self) -> Iterator[None]:
        start = time.monotonic()
        try:
            yield
        finally:
            self.seconds = max(0.0, self.seconds - (time.monotonic() - start))


class ToolRetrievalService:
    """Indexes skills and searches them.

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
        on_search: OnSearch | None = None,
        on_answer: Callable[[SearchAnswer], None] | None = None,
        installed: InstalledModels = tuple,
        texts: RequestTexts | None = None,
        reranker: OnnxReranker | None = None,
    ) -> None:
        """`on_search` and `on_answer`, which is called with every answer, must be quick and must not raise.

        If the stored vectors were made by other models, these are looked for among `installed` and used until
        everything is embedded again. `texts` returns the texts of past requests that are recorded. `reranker` orders
        the best results again.
        """
        self.settings = settings or RetrievalSettings()
        self.facts = facts
        """Says which skills may be shown; without it, all of them."""
        self._on_search = on_search
        self._on_answer = on_answer
        self._reranker = reranker
        self._index = SearchIndex(data_dir, embedder, usage_days=self.settings.usage_days, installed=installed)
        # Its own threads: a model that hangs must not block everything else that uses threads.
        self._threads = ThreadPoolExecutor(MAX_MODEL_THREADS, thread_name_prefix="search")
        self._turns = Turns(MODEL_THREADS)
        """Callers take turns, so that many requests of one do not delay those of the others."""
        self._model_problem: str | None = None
        self._rankings: OrderedDict[tuple[object, ...], _Ranking] = OrderedDict()
        self._ranked_version = 0
        self.models = ModelSwitch(self._index, self._in_turn, texts)
        """Changes the models."""
        self._confusable: tuple[int, ConfusablePairs] | None = None
        """With the version of the index."""
        self._finding_pairs = asyncio.Lock()

    def running(self) -> AbstractAsyncContextManager[None]:
        """Keep the copy on disk up to date while the block runs."""
        return self._index.running()

    async def wake(self) -> None:
        """Load the index, unless it is loaded; every other method does it automatically."""
        await self._index.load()

    async def load_reranker(self) -> None:
        """Load the reranker, if there is one. Meanwhile searches go on without it; else the first one would wait."""
        if self._reranker is not None:
            try:
                await in_thread(self._reranker.load)
            except EmbeddingError as error:
                logger.warning("%s The results are not reranked.", error)

    async def refresh(self) -> None:
        """Load the index again if another process changed it on disk."""
        await self._index.refresh()

    @property
    def is_behind(self) -> bool:
        """Whether changes are not on disk yet."""
        return self._index.writer.is_behind

    @property
    def problem(self) -> str | None:
        """Why the copy on disk cannot be written."""
        return self._index.writer.problem

    @property
    def model_state(self) -> tuple[Literal["ready", "loading", "failed"], str | None]:
        """Whether requests can be compared by meaning, and if not, why."""
        if problem := self._index.unavailable or self._model_problem:
            return "failed", problem
        return ("ready" if self._index.is_loaded else "loading"), None

    @property
    def model_warnings(self) -> list[str]:
        """What is to be known of the models, although requests are compared by meaning."""
        warnings = [self._index.target.problem] if self._index.target.problem else []
        if (change := self.models.change) is not None:
            warnings.append(f"{change.done} of {change.total} skills are embedded for the new models.")
            if change.problem:
                warnings.append(f"The new models cannot be used yet: {change.problem}")
        return warnings

    def vector_counts(self) -> tuple[int, int]:
        """How many skills the index has, and how many of them have a vector."""
        with self._index.memory.locked() as memory:
            return len(memory), int(np.count_nonzero(memory.has_vector))

    @property
    def embedder(self) -> str:
        """The id of the embedding models in use."""
        return self._index.embedder.id

    @property
    def dimensions(self) -> int:
        return self._index.embedder.dimensions

    # ---------------------------------------------------------------------------------------------- index skills
    async def index_skill(self, skill: Searchable) -> bool:
        """Make a skill findable; False if the model failed and it is found by its words only."""
        return await self.index_skills([skill]) == 1

    async def index_skills(self, skills: Sequence[Searchable], progress: Progress | None = None) -> int:
        """Make many skills findable; returns how many of them are found by meaning too."""
        embedded = 0
        for start in range(0, len(skills), BATCH):
            batch = skills[start : start + BATCH]
            vectors = await self.embed(batch)
            await self.upsert(batch, vectors)
            embedded += sum(vector is not None for vector in vectors)
            if progress:
                progress(min(start + BATCH, len(skills)), len(skills))
        return embedded

    async def remove_skill(self, name: str) -> bool:
        """Remove a skill with its past use; False if it was not known."""
        return bool(await self.remove([name]))

    async def embed(self, skills: Sequence[Searchable], *, caller: str = "") -> list[DocumentVector | None]:
        """One vector per skill; None for all if the model cannot be used now. Known vectors are not computed again."""
        await self.wake()
        if self._index.unavailable is not None:
            return [None] * len(skills)
        documents = [Document.from_skill(skill) for skill in skills]
        held = await asyncio.to_thread(self._index.held, documents)
        new = [document for document, vector in zip(documents, held, strict=True) if vector is None]
        embedder = self._index.embedder
        try:
            made = iter(await self._in_turn(caller, lambda: embedder.embed_documents(new)) if new else ())
        except EmbeddingError as error:
            self._set_model_problem(str(error))
            return [None] * len(skills)
        if new:
            self._set_model_problem(None)
        return [vector or DocumentVector(vector=next(made), embedder=embedder.id) for vector in held]

    async def upsert(self, skills: Sequence[Searchable], vectors: Sequence[DocumentVector | None]) -> None:
        """Add or replace skills; one without a vector is found by its words only."""
        await self.wake()
        stale: Sequence[Searchable] = await self._index.put([Document.from_skill(skill) for skill in skills], vectors)
        while stale:  # the models were switched after these vectors were made
            again = await self.embed(stale)
            stale = await self._index.put([Document.from_skill(skill) for skill in stale], again)

    async def remove(self, names: Collection[str]) -> list[str]:
        """Remove skills with their past use; returns those that were known."""
        if self._index.is_empty:
            return []
        await self.wake()
        return await self._index.remove(names)

    async def missing(self, versions: Mapping[str, str]) -> list[str]:
        """Which of these skills the index does not have in this version; none while it is not loaded."""
        return await self._index.missing(versions) if self._index.is_loaded else []

    async def retain(self, names: Collection[str], *, kind: Kind = "skill") -> int:
        """Remove all others of this kind; returns how many were removed."""
        return len(await self._index.retain(names, kind=kind)) if self._index.is_loaded else 0

    # ---------------------------------------------------------------------------------------------------- search
    async def find_relevant_skills(
        self, query: str, limit: int | None = None, *, threshold: float | None = None, tags: Collection[str] = ()
    ) -> list[SkillMatch]:
        """The skills that fit a request, best first."""
        return (await self.search(query, limit=limit, threshold=threshold, tags=tags, kind="skill")).results

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
        kind: Kind | None = None,
        record: bool = True,
    ) -> SearchAnswer:
        """The skills and tools that fit a request, with warnings if the search was incomplete.

        `for_model` leaves out skills that a model must not find on its own. `kind` leaves out the other kind. Without
        `record`, the search is not among the recorded ones.

        Raises:
            InvalidInputError: the query is empty or too long, or limit or threshold is out of range.
            ServerError: LANCE_SEARCH_ERROR, mode is "vector" and vectors cannot be compared.
        """
        started = time.monotonic()
        text = _checked(query)
        limit = self.settings.limit if limit is None else limit
        threshold = self.settings.threshold if threshold is None else threshold
        if not 1 <= limit <= MAX_LIMIT:
            raise InvalidInputError(f"limit must be between 1 and {MAX_LIMIT}")
        if not 0 <= threshold <= 1:
            raise InvalidInputError("threshold must be between 0 and 1")
        await self.wake()
        any_tag = frozenset(tag.casefold() for tag in tags)
        found: dict[Kind, list[SkillMatch]] = {"skill": [], "tool": []}
        warnings: list[str] = []
        is_degraded = False
        kinds, reranking_seconds = self._searched_kinds(kind), self.settings.reranker_seconds
        for number, each in enumerate(kinds):
            count = limit + SPARE_CANDIDATES
            budget = _Budget(reranking_seconds / (len(kinds) - number))
            reranking_seconds -= budget.seconds
            while True:
                rank = partial(self._rank, text, count, any_tag, mode, for_model, each, caller, budget)
                ranking = await self._in_turn(caller, rank)
                found[each], is_complete = await self._results(ranking, limit, threshold)
                if is_complete or len(ranking.candidates) < count:
                    break
                count *= 10  # many of the best are disabled
            reranking_seconds += budget.seconds
            warnings += [warning for warning in ranking.warnings if warning not in warnings]
            is_degraded |= ranking.degraded
        results = _merged(found["skill"], found["tool"], limit)
        warnings += self.model_warnings
        if self.problem:
            warnings.append(f"The index on disk cannot be written ({self.problem}); search works from memory.")
        if record and self._on_search is not None:
            self._on_search(text, len(results), for_model)
        answer = SearchAnswer(
            results=results,
            took=round((time.monotonic() - started) * 1000, 2),
            degraded="keyword" if is_degraded else None,
            warnings=warnings,
        )
        if self._on_answer is not None:
            self._on_answer(answer)
        return answer

    def _searched_kinds(self, kind: Kind | None) -> Sequence[Kind]:
        if kind is not None:
            return (kind,)
        return ("skill", "tool") if len(self._index.tools) else ("skill",)

    async def _results(self, ranking: _Ranking, limit: int, threshold: float) -> tuple[list[SkillMatch], bool]:
        """What of the ranking may be shown, and whether more candidates could not change that."""
        names = [document.name for document, _ in ranking.candidates]
        facts = await self.facts(names) if self.facts and names else {}
        enabled = [
            (document, candidate)
            for document, candidate in ranking.candidates
            if not self.facts or ((known := facts.get(document.name)) is not None and known.enabled)
        ]
        scores = shown_scores([candidate for _, candidate in enabled], threshold)
        if scores is None:
            return [], True
        results = [
            SkillMatch(
                kind=document.kind,
                name=document.label,
                description=document.description,
                score=score,
                tags=list(document.tags or document.derived_tags),
                mode=facts[document.name].mode if self.facts else None,
                why=explain(candidate, ranking.words),
            )
            for (document, candidate), score in zip(enabled, scores, strict=True)
            if score is not None
        ][:limit]
        return results, len(results) == limit or len(enabled) == len(ranking.candidates)

    async def rank_of(self, name: str, query: str) -> int | None:
        """The rank of one skill among all for a request, 1 being the best; None if it is not known."""
        text = _checked(query)
        await self.wake()

        def rank_of() -> int | None:
            with self._comparing([text]) as (embedder, [vectors], _):
                memory = self._index.memory
                slot = memory.slot(name)
                if slot is None:
                    return None
                return rank_of_slot(memory, embedder.models, Request.of(text, vectors), slot)

        return await self._in_turn("", rank_of)

    async def preview(self, skill: Searchable, queries: Sequence[str], *, caller: str = "") -> list[RankPreview]:
        """What would change in the rank of a skill for some requests, if it were indexed like this. Changes nothing."""
        texts = [_checked(query) for query in queries]
        if not texts:
            return []
        (made,) = await self.embed([skill], caller=caller)
        return await self._in_turn(caller, partial(self._preview, Document.from_skill(skill), made, queries, texts))

    def _preview(
        self, document: Document, made: DocumentVector | None, queries: Sequence[str], texts: Sequence[str]
    ) -> list[RankPreview]:
        with self._comparing(texts) as (embedder, vectors, _):
            memory, models = self._index.memory, embedder.models
            requests = [Request.of(text, own) for text, own in zip(texts, vectors, strict=True)]
            vector = made.vector if made is not None and made.embedder == embedder.id else None
            known = memory.slot(document.name)
            before = [] if known is None else [scores_of_all(memory, models, one, slot=known) for one in requests]
            changed = memory.with_document(document, vector)
        slot = changed.slot(document.name)
        assert slot is not None  # noqa: S101  # it was put there
        previews = []
        for number, (query, request) in enumerate(zip(queries, requests, strict=True)):
            new = scores_of_all(changed, models, request, slot=slot)
            old = before[number] if before else new
            was_ahead, is_ahead = old > old[slot], new > new[slot]  # the slots are the same
            passed = best_of(old, was_ahead & ~is_ahead, MAX_OVERTAKEN)
            overtaken_by = best_of(new, is_ahead & ~was_ahead, MAX_OVERTAKEN)
            previews.append(
                RankPreview(
                    request=query.encode("utf-8", "replace").decode(),
                    before=int(np.count_nonzero(was_ahead)) + 1 if before else None,
                    after=int(np.count_nonzero(is_ahead)) + 1,
                    passed=[changed.documents[one].label for one in passed],
                    falls_behind=[changed.documents[one].label for one in overtaken_by],
                )
            )
        return previews

    async def preview_past(
        self, skill: Searchable, *, owner: str | None = None, texts: Sequence[str] = (), caller: str = ""
    ) -> PastPreview | None:
        """What past requests would win and lose, if a skill were indexed like this. Changes nothing.

        With an `owner`, only what search uses for this caller. `texts` are requests that may be shown, if they are
        among the past ones. None if meaning cannot be compared now.
        """
        (made,) = await self.embed([skill], caller=caller)
        if made is None:
            return None
        return await self._in_turn(caller, partial(self._preview_past, Document.from_skill(skill), made, owner, texts))

    def _preview_past(
        self, document: Document, made: DocumentVector, owner: str | None, texts: Sequence[str]
    ) -> PastPreview | None:
        name, settings = document.name, self.settings
        with self._index.memory.locked() as memory:
            embedder = self._index.embedder
            if made.embedder != embedder.id:  # the models were switched a moment ago
                return None
            pairs = [
                (pair, stored)
                for pair, stored in (self._index.usage.pairs() if settings.usage_memory else ())
                if kind_of(pair.skill) == "skill"  # tools are ranked apart
                and (owner is None or settings.usage_memory_shared or pair.caller == owner)
            ]
            slot = memory.slot(name)
            is_embedded = slot is not None and bool(memory.has_vector[slot])
            old = document if slot is None else memory.documents[slot]
            before = memory.with_document(old, memory.vector(slot) if slot is not None and is_embedded else None)
            after = memory.with_document(document, made.vector)
        if slot is None:
            before.drop([name])
        past = PastRequests(name, pairs)
        try:
            requests = past.requests(embedder, [text for one in texts if (text := visible(one))])
        except EmbeddingError as error:
            self._set_model_problem(str(error))
            return None
        return compare(name, before, after, embedder.models, requests, left_out=past.left_out)

    async def confusable(self, *, page: int = 1, limit: int = 50, caller: str = "") -> ConfusableReport:
        """Pairs of skills and tools that requests may confuse, the most similar first. Disabled ones are left out."""
        await self.wake()
        async with self._finding_pairs:  # seconds for thousands of skills, so it is done once for each change
            version = self._index.version
            if self._confusable is None or self._confusable[0] != version:
                self._confusable = version, await self._in_turn(caller, self._compare)
            _, found = self._confusable
        names = {found.documents[number].name for pair in found.scored for number in (pair.first, pair.second)}
        facts = await self.facts(names) if self.facts and names else None
        shown = {name for name in names if facts is None or (name in facts and facts[name].enabled)}
        pairs = [
            pair
            for pair in found.scored
            if found.documents[pair.first].name in shown and found.documents[pair.second].name in shown
        ]
        chosen = pairs[(page - 1) * limit : page * limit]
        return ConfusableReport(
            pairs=await self._in_turn(caller, lambda: [found.described(pair) for pair in chosen]),
            total=len(pairs),
            page=page,
            limit=limit,
            compared=len(found.documents),
            warnings=found.warnings,
        )

    def _compare(self) -> ConfusablePairs:
        with self._index.memory.locked():
            compared = Compared.copy_of([self._index.memory, self._index.tools])
            models = self._index.embedder.models
        return ConfusablePairs(compared, models)

    def _rank(
        self,
        text: str,
        count: int,
        tags: frozenset[str],
        mode: SearchMode,
        for_model: bool,
        kind: Kind,
        caller: str,
        budget: _Budget,
    ) -> _Ranking:
        key = (text, count, tags, mode, for_model, caller, kind)
        with self._comparing([text]) as (embedder, [vectors], warnings):
            memory = self._index.memory if kind == "skill" else self._index.tools
            if vectors is not None and not memory.has_vector.any() and len(memory):
                vectors, warnings = None, [f"No {kind} is indexed by meaning yet."]
                if mode == "vector" and kind == "tool":
                    return _Ranking(candidates=(), degraded=False, warnings=tuple(warnings))
            if mode == "vector" and vectors is None:
                raise ServerError(
                    f"LanceDB connection failed: {' '.join(warnings)} Search by words works: leave mode out.",
                    code="LANCE_SEARCH_ERROR",
                )
            if self._ranked_version != self._index.version:
                self._rankings.clear()
                self._ranked_version = self._index.version
            if vectors is not None and key in self._rankings:
                self._rankings.move_to_end(key)
                return self._rankings[key]
            past = (
                self._index.usage.recall(vectors, caller=caller, shared=self.settings.usage_memory_shared)
                if vectors is not None and self.settings.usage_memory
                else {}
            )
            candidates = rank(
                memory,
                embedder.models,
                Request.of(text, vectors, past),
                count=count if self._reranker is None else max(count, RERANKED),
                allowed=memory.allowed(tags, for_model=for_model),
                lexical=mode == "hybrid",
            )
            without_vector = len(memory) - int(np.count_nonzero(memory.has_vector))
            if without_vector and self._index.unavailable is None:
                warnings.append(f"{without_vector} of {len(memory)} {kind}s are not indexed by meaning yet.")
            ranked = [
                (memory.documents[candidate.slot], candidate)
                for candidate in candidates
                if vectors is not None or candidate.matched  # without vectors, a word must match
            ]
            version = self._index.version
        is_complete = vectors is not None
        if self._reranker is not None and mode == "hybrid":
            ranked, is_reranked, problem = self._reranked(self._reranker, text, ranked, budget)
            is_complete &= is_reranked
            warnings += [f"{problem} The results are not reranked."] if problem else []
        ranking = _Ranking(
            candidates=tuple(ranked[:count]),
            degraded=vectors is None,
            warnings=tuple(warnings),
            words=words_by_token(text),  # on this thread: the first Chinese request loads the dictionary
        )
        with self._index.memory.locked():
            # A degraded ranking, or one that the budget cut off, is not cached: the next one may be complete.
            if is_complete and version == self._ranked_version == self._index.version:
                self._rankings[key] = ranking
                if len(self._rankings) > CACHED_RANKINGS:
                    self._rankings.popitem(last=False)
        return ranking

    def _reranked(
        self, reranker: OnnxReranker, text: str, ranked: list[Ranked], budget: _Budget
    ) -> tuple[list[Ranked], bool, str | None]:
        """The candidates in their new order, whether all of them were compared, and a problem."""
        if reranker.is_loading:
            return ranked, False, "The reranker is being loaded."
        try:
            with budget.spent():
                return *reranked(reranker, text, ranked, budget_seconds=budget.seconds), None
        except EmbeddingError as error:
            return ranked, False, str(error)

    @contextmanager
    def _comparing(self, texts: Sequence[str]) -> Iterator[tuple[Embedder, Sequence[RequestVectors | None], list[str]]]:
        """Lock the index, with the requests' vectors by the models that made its vectors, and warnings."""
        while True:
            embedder = self._index.embedder
            vectors, warnings = zip(*(self._request_vectors(embedder, text) for text in texts), strict=True)
            with self._index.memory.locked():
                if embedder is self._index.embedder:  # else the models were switched meanwhile
                    yield embedder, vectors, list(warnings[0])
                    return

    def _request_vectors(self, embedder: Embedder, text: str) -> tuple[RequestVectors | None, list[str]]:
        """The request's vectors; None with a warning if only words can be compared."""
        if self._index.unavailable is not None:
            return None, [f"The index cannot be opened: {self._index.unavailable}."]
        try:
            vectors = embedder.embed_request(text)
        except EmbeddingError as error:
            self._set_model_problem(str(error))
            return None, [str(error)]
        self._set_model_problem(None)
        if embedder.dimensions_by_model != self._index.memory.dimensions:
            return None, ["No skill is indexed by meaning yet."]
        if all(own is None for own in vectors):
            return None, ["No embedding model in use can read this request."]
        return vectors, []

    def _set_model_problem(self, problem: str | None) -> None:
        if problem and problem != self._model_problem:
            logger.warning("%s Search compares words only.", problem)
        self._model_problem = problem

    async def _in_turn(self, caller: str, work: Callable[[], T]) -> T:
        loop = asyncio.get_running_loop()
        async with self._turns.turn(caller):
            try:
                return await loop.run_in_executor(self._threads, work)
            except VectorFileError as error:
                logger.warning("%s; the vectors are read from LanceDB", error)
                await self._index.reload()
                return await loop.run_in_executor(self._threads, work)

    async def usage(self, caller: str) -> Sequence[ResourceUsage]:
        def counts() -> tuple[int, int]:
            with self._index.memory.locked():  # not on the event loop: a search may hold the lock
                return self._index.usage.count_of(caller), len(self._index.usage)

        own, total = await asyncio.to_thread(counts)
        return (
            ResourceUsage(
                resource="searches",
                used=self._turns.running_of(caller) + self._turns.waiting_of(caller),
                total=self._turns.running + self._turns.waiting,
            ),
            ResourceUsage(resource="past-requests", used=own, limit=MAX_PAIRS, total=total, total_limit=MAX_PAIRS),
        )

    # -------------------------------------------------------------------------------------------------- past use
    async def remember(self, request: str, skill: str, *, succeeded: bool, caller: str = "", chat: str = "") -> bool:
        """Learn that a request was answered by a skill, or by a tool with this key; returns whether it was learned.

        A failed run is not learned. What is learned with a `chat` can be forgotten by it.
        """
        if not self.settings.usage_memory or not succeeded:
            return False
        text = _checked(request)
        await self.wake()
        if skill not in self._index:
            return False
        while True:
            embedder = self._index.embedder
            vectors, _ = await self._in_turn(caller, partial(self._request_vectors, embedder, text))
            if vectors is None:
                return False
            vector = request_vector(vectors, embedder.dimensions_by_model)
            try:
                pair = await self._index.teach(skill, vector, embedder=embedder.id, caller=caller, chat=chat)
            except ModelsSwitchedError:
                continue
            if pair is not None:
                self.models.learn(pair, text)
            return pair is not None

    async def past_use(self) -> list[tuple[UsagePair, Floats]]:
        """All confirmed requests with their vectors, the oldest first."""
        if self._index.is_empty:
            return []
        await self.wake()
        return await asyncio.to_thread(self._index.pairs)

    async def forget(self, skill: str | None = None) -> int:
        """Forget the past use of a skill, or of all; returns how many requests were forgotten."""
        await self.wake()
        return await self._index.forget(lambda pair: skill is None or pair.skill == skill)

    async def forget_chat(self, chat: str) -> int:
        """Forget what a chat taught, now and later; returns how many requests were forgotten."""
        self._index.ignore_chat(chat)
        if self._index.is_empty:
            return 0
        await self.wake()
        return await self._index.forget(lambda pair: pair.chat == chat)

    async def forget_expired(self) -> int:
        """Forget past use that was not confirmed for too long; returns how many requests were forgotten."""
        # Loading does it too.
        return await self._index.forget(self._index.is_expired) if self._index.is_loaded else 0


def _merged(skills: list[SkillMatch], tools: list[SkillMatch], limit: int) -> list[SkillMatch]:
    """The best of both, best first. Skills keep their share of the results, and tools fill what skills leave."""
    reserved = skills[: math.ceil(limit * SKILL_SHARE)] if limit > 1 else []
    others = sorted([*skills[len(reserved) :], *tools], key=lambda match: -match.score)
    chosen = [*reserved, *others[: limit - len(reserved)]]
    return sorted(chosen, key=lambda match: (-match.score, match.kind != "skill"))


def _checked(query: str) -> str:
    text = visible(query) if len(query) <= MAX_RAW_CHARACTERS else query
    if len(text) > MAX_REQUEST_CHARACTERS:
        raise InvalidInputError(f"query has {len(text)} characters; at most {MAX_REQUEST_CHARACTERS} are allowed")
    if not text:
        raise InvalidInputError("query must contain something to search for")
    return text
