"""Measures search on a corpus and requests with known answers: recall, MRR, nDCG."""

import json
import math
import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator
from pydantic_core import PydanticCustomError

from apexbridge.errors import InvalidInputError
from apexbridge.retrieval.config import DEFAULT_THRESHOLD, SPARE_CANDIDATES
from apexbridge.retrieval.documents import Document
from apexbridge.retrieval.embedders.embedder import Embedder, RequestVectors
from apexbridge.retrieval.embedders.onnx_reranker import OnnxReranker
from apexbridge.retrieval.index.vector_index import VectorIndex
from apexbridge.retrieval.matches import shown_scores
from apexbridge.retrieval.ranking import Candidate, Request, rank
from apexbridge.retrieval.reranking import reranked
from apexbridge.retrieval.text import visible
from apexbridge.retrieval.usage import UsageMemory, request_vector
from apexbridge.wire import WireModel

RANKED = 20
"""Results that are scored and written to a run file."""
SHOWN = 5
"""Results of a search that are counted at the threshold."""
BATCH = 100
MOST_CONFUSED = 10
Progress = Callable[[int, int], None]
M = TypeVar("M", bound=BaseModel)


class Entry(BaseModel):
    model_config = ConfigDict(coerce_numbers_to_str=True)

    id: str | None = None
    name: str
    description: str
    tags: tuple[str, ...] | None = None

    def identified(self) -> tuple[str, Document]:
        """Its id, and its document."""
        document = Document(name=self.name, description=self.description, tags=self.tags or ())
        return self.name if self.id is None else self.id, document


class Question(BaseModel):
    """A line of a file of requests: a request with the ids of the skills that answer it."""

    model_config = ConfigDict(coerce_numbers_to_str=True)

    qid: str | None = None
    query: str
    gold: frozenset[str]

    @field_validator("gold")
    @classmethod
    def _check_gold(cls, gold: frozenset[str]) -> frozenset[str]:
        if not gold:
            raise PydanticCustomError("empty", "is empty; name the id of at least one skill that answers the query")
        return gold

    @field_validator("query")
    @classmethod
    def _check_query(cls, query: str) -> str:
        if not visible(query):
            raise PydanticCustomError("empty", "is empty")
        return query


class Metrics(WireModel):
    """Means over all requests."""

    requests: int
    recall_at_1: float = Field(alias="R@1", description="Share of the right skills that come first.")
    recall_at_5: float = Field(alias="R@5", description="Share of the right skills among the first five.")
    recall_at_10: float = Field(alias="R@10", description="Share of the right skills among the first ten.")
    mrr: float = Field(alias="MRR", description="One over the rank of the first right skill.")
    ndcg_at_10: float = Field(alias="nDCG@10", description="Right skills, discounted by their rank.")
    hit_at_5: float = Field(alias="Hit@5", description="Share of the requests with a right skill among five.")
    full_at_5: float = Field(alias="Full@5", description="Share of the requests with all right skills among five.")


class AtThreshold(WireModel):
    """What users see: skills below the threshold are hidden."""

    threshold: float
    recall_at_5: float = Field(
        alias="R@5", description="Share of the right skills that are shown among the first five."
    )
    empty: float = Field(description="Share of the requests whose answer is empty.")


class Confusion(WireModel):
    """A skill that was missed, and the one that ranked first instead."""

    missed: str
    taken: str
    times: int


class Evaluation(WireModel):
    """The result of an evaluation."""

    corpus: int
    embedder: str
    metrics: Metrics
    at_threshold: AtThreshold
    words_alone: Metrics = Field(description="Without the meanings: what search finds if the models fail.")
    confusions: list[Confusion] = Field(description="The most frequent confusions.")
    with_usage_memory: Metrics | None = Field(
        default=None, description="Each half of the requests, searched after the other half was learned."
    )
    warnings: list[str] = Field(default_factory=list)


class Corpus:
    """An indexed corpus."""

    def __init__(
        self,
        embedder: Embedder,
        entries: Sequence[tuple[str, Document]],
        progress: Progress | None,
        *,
        reranker: OnnxReranker | None = None,
    ) -> None:
        """An entry has an id, which is unique, and a document, whose name may be that of others."""
        self._embedder = embedder
        self._reranker = reranker
        self._ids: list[str] = []
        self._memory = VectorIndex(embedder.dimensions_by_model)
        self._requests: dict[str, RequestVectors] = {}
        for start in range(0, len(entries), BATCH):
            self._index(entries[start : start + BATCH])
            if progress:
                progress(len(self._ids), len(entries))
        self.usage = UsageMemory(embedder.dimensions_by_model)

    def _index(self, entries: Sequence[tuple[str, Document]]) -> None:
        vectors = self._embedder.embed_documents([document for _, document in entries])
        self._memory.reshape(self._embedder.dimensions_by_model)  # known after the first answer of an endpoint
        for (id, document), vector in zip(entries, vectors, strict=True):
            name = document.name
            while name in self._memory:  # names of a public corpus may repeat, ids do not
                name = id if name == document.name != id else f"{name}'"
            self._memory.put(replace(document, name=name), vector)
            self._ids.append(id)

    def search(self, question: Question) -> list[str]:
        """The ids of the best skills, best first, whatever their confidence."""
        return self._ids_of(self._best(question))

    def search_and_show(self, question: Question, threshold: float) -> tuple[list[str], list[str]]:
        """The same, and the ids of those that a search shows at a threshold."""
        best = self._best(question)
        ranked = best[: SHOWN + SPARE_CANDIDATES]
        scores = shown_scores(ranked, threshold) or []
        shown = [candidate for candidate, score in zip(ranked, scores, strict=False) if score is not None]
        return self._ids_of(best), self._ids_of(shown[:SHOWN])

    def search_by_words(self, question: Question) -> list[str]:
        """The ids of the best skills by words alone, best first."""
        return self._ids_of(self._rank(Request.of(visible(question.query), None)))

    def teach(self, question: Question) -> None:
        """Learn that the right skills answered this request."""
        _, vectors = self._embed(question)
        vector = request_vector(vectors, self._embedder.dimensions_by_model)
        for slot, key in enumerate(self._ids):
            if key in question.gold:
                self.usage.teach(self._memory.documents[slot].name, vector, caller="")

    def _best(self, question: Question) -> list[Candidate]:
        text, vectors = self._embed(question)
        past = self.usage.recall(vectors, caller="", shared=True)
        found = self._rank(Request.of(text, vectors, past))
        if self._reranker is not None:
            ranked = [(self._memory.documents[candidate.slot], candidate) for candidate in found]
            ranked, _ = reranked(self._reranker, text, ranked, budget_seconds=math.inf)
            found = [candidate for _, candidate in ranked]
        return found

    def _rank(self, request: Request) -> list[Candidate]:
        return rank(self._memory, self._embedder.models, request, count=RANKED)

    def _ids_of(self, candidates: Sequence[Candidate]) -> list[str]:
        return [self._ids[candidate.slot] for candidate in candidates]

    def _embed(self, question: Question) -> tuple[str, RequestVectors]:
        text = visible(question.query)
        if text not in self._requests:
            self._requests[text] = self._embedder.embed_request(text)
        return text, self._requests[text]


def evaluate(
    embedder: Embedder,
    corpora: Sequence[Path],
    questions: Path,
    *,
    run_out: Path | None = None,
    usage_memory: bool = False,
    threshold: float = DEFAULT_THRESHOLD,
    reranker: OnnxReranker | None = None,
    progress: Progress | None = None,
) -> Evaluation:
    """Search a corpus with every question. Raises InvalidInputError for a file that cannot be used."""
    entries = _entries(corpora)
    asked, warnings = _questions(questions, entries)
    if run_out is not None:
        check_output(run_out)
    corpus = Corpus(embedder, list(entries.items()), progress, reranker=reranker)
    found = [corpus.search_and_show(question, threshold) for question in asked]
    answers, shown = [ranked for ranked, _ in found], [own for _, own in found]
    if run_out is not None:
        write_lines(run_out, _run(asked, answers))
    later: list[list[str]] = []
    first, second = asked[::2], asked[1::2]
    for taught, examined in ((first, second), (second, first)) if usage_memory else ():
        corpus.usage = UsageMemory(embedder.dimensions_by_model)
        for question in taught:
            corpus.teach(question)
        later += [corpus.search(question) for question in examined]
    return Evaluation(
        corpus=len(entries),
        embedder=embedder.id,
        metrics=measure(asked, answers),
        at_threshold=_at_threshold(threshold, asked, shown),
        words_alone=measure(asked, [corpus.search_by_words(question) for question in asked]),
        confusions=_confusions(asked, answers),
        with_usage_memory=measure([*second, *first], later) if usage_memory else None,
        warnings=warnings,
    )


def measure(questions: Sequence[Question], answers: Sequence[Sequence[str]]) -> Metrics:
    rows = [_score(question.gold, answer) for question, answer in zip(questions, answers, strict=True)]
    means = {name: round(sum(row[name] for row in rows) / len(rows), 4) for name in rows[0]} if rows else {}
    return Metrics.model_validate({"requests": len(rows), **means})


def _score(gold: frozenset[str], ranked: Sequence[str]) -> dict[str, float]:
    ranks = [position for position, key in enumerate(ranked, 1) if key in gold]
    first_five = set(ranked[:5])
    gain = sum(1 / math.log2(position + 1) for position in ranks if position <= 10)
    ideal = sum(1 / math.log2(position + 1) for position in range(1, min(len(gold), 10) + 1))
    return {
        **{f"R@{count}": len(gold & set(ranked[:count])) / len(gold) for count in (1, 5, 10)},
        "MRR": 1 / ranks[0] if ranks else 0.0,
        "nDCG@10": gain / ideal,
        "Hit@5": float(bool(gold & first_five)),
        "Full@5": float(gold <= first_five),
    }


def _at_threshold(threshold: float, questions: Sequence[Question], shown: Sequence[Sequence[str]]) -> AtThreshold:
    recall = measure(questions, shown).recall_at_5
    empty = round(sum(not own for own in shown) / len(shown), 4)
    return AtThreshold.model_validate({"threshold": threshold, "R@5": recall, "empty": empty})


def _confusions(questions: Sequence[Question], answers: Sequence[Sequence[str]]) -> list[Confusion]:
    pairs = Counter(
        (missed, answer[0])
        for question, answer in zip(questions, answers, strict=True)
        if answer and answer[0] not in question.gold
        for missed in question.gold
        if missed not in answer[:5]
    )
    return [
        Confusion(missed=missed, taken=taken, times=times)
        for (missed, taken), times in pairs.most_common(MOST_CONFUSED)
    ]


def _entries(corpora: Sequence[Path]) -> dict[str, Document]:
    """The skills of all files by id."""
    entries: dict[str, Document] = {}
    first: dict[str, str] = {}
    for path in corpora:
        for line, entry in _rows(path, Entry):
            id, document = entry.identified()
            if id in entries:
                raise InvalidInputError(f'{line}: the id "{id}" is that of {first[id]}; give each skill its own "id"')
            entries[id], first[id] = document, line
    if not entries:
        raise InvalidInputError(f"{', '.join(path.name for path in corpora)} has no skills: no line has text")
    return entries


def _questions(path: Path, entries: Mapping[str, Document]) -> tuple[list[Question], list[str]]:
    """The questions of a file, and a warning if the corpus lacks some of the right answers."""
    asked: list[Question] = []
    lost: list[str] = []
    for line, question in _rows(path, Question):
        lost += [f'"{id}" ({line})' for id in sorted(question.gold - entries.keys())]
        asked.append(question)
    if not asked:
        raise InvalidInputError(f"{path.name} has no queries: no line has text")
    total = sum(len(question.gold) for question in asked)
    if len(lost) == total:
        raise InvalidInputError(f"None of the right answers is in the corpus; the first one is {lost[0]}")
    more = f"{lost[0]}, …" if len(lost) > 1 else "".join(lost)
    warning = f"{len(lost)} of {total} right answers are not in the corpus and count as missed: {more}"
    return asked, [warning] if lost else []


def _rows(path: Path, row: type[M]) -> Iterator[tuple[str, M]]:
    """The rows of a file, each with the file and the number of its line, for messages."""
    try:
        lines = path.read_text("utf-8").split("\n")  # not at the line separators that a JSON string may have
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise InvalidInputError(f"{path.name} cannot be read: {reason}") from error
    for number, text in enumerate(lines, 1):
        if text.strip():
            line = f"{path.name} line {number}"
            try:
                yield line, row.model_validate_json(text)
            except ValidationError as error:
                problem = error.errors(include_url=False)[0]
                raise InvalidInputError(f"{line}: {': '.join(map(str, (*problem['loc'], problem['msg'])))}") from error


def check_output(path: Path) -> None:
    """Raise InvalidInputError if a file cannot be written, before the work whose result it is to have."""
    if path.is_dir():
        problem = "it is a folder"
    elif not path.parent.is_dir():
        problem = f"there is no folder {path.parent}"
    elif not os.access(path if path.exists() else path.parent, os.W_OK):
        problem = "it is not writable"
    else:
        return
    raise InvalidInputError(f"{path.name} cannot be written: {problem}")


def write_lines(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Write a file with one JSON object a line. Raises InvalidInputError."""
    try:
        path.write_text("".join(f"{json.dumps(row, ensure_ascii=False)}\n" for row in rows), "utf-8")
    except OSError as error:
        raise InvalidInputError(f"{path.name} cannot be written: {error.strerror}") from error


def _run(questions: Sequence[Question], answers: Sequence[Sequence[str]]) -> list[dict[str, Any]]:
    """The lines of a run file."""
    return [
        {"qid": question.qid or str(number), "ranked": list(answer)}
        for number, (question, answer) in enumerate(zip(questions, answers, strict=True), 1)
    ]
