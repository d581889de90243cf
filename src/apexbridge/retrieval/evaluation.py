"""Measures search on a corpus and requests with known answers: recall, MRR, nDCG."""

import json
import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from apexbridge.errors import InvalidInputError
from apexbridge.retrieval.documents import Document
from apexbridge.retrieval.embedders.embedder import Embedder, RequestVectors
from apexbridge.retrieval.embedders.onnx_reranker import OnnxReranker
from apexbridge.retrieval.index.vector_index import VectorIndex
from apexbridge.retrieval.ranking import Candidate, Request, rank
from apexbridge.retrieval.reranking import reranked
from apexbridge.retrieval.text import visible
from apexbridge.retrieval.usage import UsageMemory, request_vector
from apexbridge.wire import WireModel

RANKED = 20
"""Results that are scored and written to a run file."""
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
    gold: frozenset[str] = Field(min_length=1)


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
    words_alone: Metrics = Field(description="Without the meanings: what search finds if the models fail.")
    confusions: list[Confusion] = Field(description="The most frequent confusions.")
    with_usage_memory: Metrics | None = Field(
        default=None, description="Each half of the requests, searched after the other half was learned."
    )


class Corpus:
    """An indexed corpus; thresholds are off."""

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
            is_known = document.name in self._memory  # names of a public corpus may repeat, ids do not
            self._memory.put(replace(document, name=id) if is_known else document, vector)
            self._ids.append(id)

    def search(self, question: Question) -> list[str]:
        """The ids of the best skills, best first."""
        text, vectors = self._embed(question)
        past = self.usage.recall(vectors, caller="", shared=True)
        found = self._rank(Request.of(text, vectors, past))
        if self._reranker is not None:
            ranked = [(self._memory.documents[candidate.slot], candidate) for candidate in found]
            ranked, _ = reranked(self._reranker, text, ranked, budget_seconds=math.inf)
            found = [candidate for _, candidate in ranked]
        return self._ids_of(found)

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
    reranker: OnnxReranker | None = None,
    progress: Progress | None = None,
) -> Evaluation:
    """Search a corpus with every question. Raises InvalidInputError for a file that cannot be used."""
    entries = [entry for path in corpora for entry in _rows(path, Entry)]
    asked = _rows(questions, Question)
    corpus = Corpus(embedder, [entry.identified() for entry in entries], progress, reranker=reranker)
    answers = [corpus.search(question) for question in asked]
    if run_out is not None:
        _write_run(run_out, asked, answers)
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
        words_alone=measure(asked, [corpus.search_by_words(question) for question in asked]),
        confusions=_confusions(asked, answers),
        with_usage_memory=measure([*second, *first], later) if usage_memory else None,
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


def _rows(path: Path, row: type[M]) -> list[M]:
    try:
        lines = path.read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise InvalidInputError(f"{path.name} cannot be read: {reason}") from error
    rows = []
    for number, line in enumerate(lines, 1):
        if line.strip():
            try:
                rows.append(row.model_validate_json(line))
            except ValidationError as error:
                problem = error.errors(include_url=False)[0]
                text = ": ".join(map(str, (*problem["loc"], problem["msg"])))
                raise InvalidInputError(f"{path.name} line {number}: {text}") from error
    return rows


def _write_run(path: Path, questions: Sequence[Question], answers: Sequence[Sequence[str]]) -> None:
    lines = [
        json.dumps({"qid": question.qid or str(number), "ranked": list(answer)}, ensure_ascii=False)
        for number, (question, answer) in enumerate(zip(questions, answers, strict=True), 1)
    ]
    try:
        path.write_text("\n".join(lines) + "\n", "utf-8")
    except OSError as error:
        raise InvalidInputError(f"{path.name} cannot be written: {error.strerror}") from error
