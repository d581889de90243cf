"""Measures search on a corpus and requests with known answers: recall, MRR, nDCG."""

import json
import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pydantic import Field

from apexbridge.errors import InvalidInputError
from apexbridge.retrieval.documents import Document
from apexbridge.retrieval.embedders.embedder import Embedder, RequestVectors
from apexbridge.retrieval.index.memory import MemoryIndex
from apexbridge.retrieval.ranking import Request, rank
from apexbridge.retrieval.text import visible
from apexbridge.retrieval.usage import UsageMemory, request_vector
from apexbridge.wire import WireModel

RANKED = 20
"""Results that are scored and written to a run file."""
BATCH = 100
MOST_CONFUSED = 10
Progress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """A request with the ids of the skills that answer it."""

    id: str
    request: str
    gold: frozenset[str]


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
    confusions: list[Confusion] = Field(description="The most frequent confusions.")
    with_usage_memory: Metrics | None = Field(
        default=None, description="Each half of the requests, searched after the other half was learned."
    )


class _Corpus:
    """An indexed corpus; thresholds are off."""

    def __init__(self, embedder: Embedder) -> None:
        self._embedder = embedder
        self._memory: MemoryIndex | None = None
        self._ids: list[str] = []
        self._requests: dict[str, RequestVectors] = {}
        self._usage = UsageMemory()

    def index(self, entries: Sequence[tuple[str, Document]], progress: Progress | None = None) -> None:
        """Index documents with their ids. A name that occurs again is replaced by the id."""
        names: set[str] = set()
        for start in range(0, len(entries), BATCH):
            batch = entries[start : start + BATCH]
            vectors = self._embedder.embed_documents([document for _, document in batch])
            if self._memory is None:
                self._memory = MemoryIndex(self._embedder.dimensions_by_model)
            for (key, document), vector in zip(batch, vectors, strict=True):
                unique = document if document.name not in names else replace(document, name=key)
                names.add(unique.name)
                self._memory.put(unique, vector)
                self._ids.append(key)
            if progress:
                progress(min(start + BATCH, len(entries)), len(entries))

    def search(self, request: str) -> list[str]:
        """The ids of the best skills, best first."""
        if self._memory is None:
            return []
        text, vectors = self._embed(request)
        past = self._usage.recall(vectors, caller="", shared=True)
        found = rank(self._memory, self._embedder.models, Request.of(text, vectors, past), count=RANKED)
        return [self._ids[candidate.slot] for candidate in found]

    def _embed(self, request: str) -> tuple[str, RequestVectors]:
        text = visible(request)
        if text not in self._requests:
            self._requests[text] = self._embedder.embed_request(text)
        return text, self._requests[text]

    def clear_past_use(self) -> None:
        self._usage = UsageMemory()

    def teach(self, question: Question) -> None:
        """Learn that the right skills answered this request."""
        if self._memory is None:
            return
        _, vectors = self._embed(question.request)
        vector = request_vector(vectors, self._embedder.dimensions_by_model)
        for slot, key in enumerate(self._ids):
            if key in question.gold:
                self._usage.teach(self._memory.documents[slot].name, vector, caller="")


def evaluate(
    embedder: Embedder,
    corpora: Sequence[Path],
    questions: Path,
    *,
    run_out: Path | None = None,
    usage_memory: bool = False,
    progress: Progress | None = None,
) -> Evaluation:
    """Search a corpus with every question.

    Raises:
        InvalidInputError: a file cannot be read or has the wrong form.
    """
    entries = [entry for path in corpora for entry in read_corpus(path)]
    asked = read_questions(questions)
    corpus = _Corpus(embedder)
    corpus.index(entries, progress)
    answers = [corpus.search(question.request) for question in asked]
    if run_out is not None:
        _write_run(run_out, asked, answers)
    later: list[list[str]] = []
    halves = (asked[::2], asked[1::2]) if usage_memory else ()
    for taught, examined in (halves, halves[::-1]) if halves else ():
        corpus.clear_past_use()
        for question in taught:
            corpus.teach(question)
        later += [corpus.search(question.request) for question in examined]
    return Evaluation(
        corpus=len(entries),
        embedder=embedder.id,
        metrics=measure(asked, answers),
        confusions=_confusions(asked, answers),
        with_usage_memory=measure([*asked[1::2], *asked[::2]], later) if usage_memory else None,
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


def read_corpus(path: Path) -> list[tuple[str, Document]]:
    """Rows of `{"id", "name", "description", "tags"?}`.

    Raises:
        InvalidInputError: a line has the wrong form; the message names it.
    """
    entries = []
    for line, row in _rows(path):
        try:
            name, description = str(row["name"]), str(row["description"])
        except KeyError as error:
            raise InvalidInputError(f"{path.name} line {line}: {error} is missing") from error
        tags = row.get("tags") or []
        if not isinstance(tags, list):
            raise InvalidInputError(f"{path.name} line {line}: tags must be a list")
        entries.append(
            (str(row.get("id", name)), Document(name=name, description=description, tags=tuple(map(str, tags))))
        )
    return entries


def read_questions(path: Path) -> list[Question]:
    """Rows of `{"query", "gold": [ids], "qid"?}`.

    Raises:
        InvalidInputError: a line has the wrong form; the message names it.
    """
    questions = []
    for line, row in _rows(path):
        gold = row.get("gold")
        if not isinstance(row.get("query"), str) or not isinstance(gold, list) or not gold:
            raise InvalidInputError(f"{path.name} line {line}: needs a query and a list gold with at least one id")
        questions.append(Question(id=str(row.get("qid", line)), request=row["query"], gold=frozenset(map(str, gold))))
    return questions


def _rows(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    try:
        lines = path.read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise InvalidInputError(f"{path.name} cannot be read: {reason}") from error
    for number, line in enumerate(lines, 1):
        if line.strip():
            try:
                row = json.loads(line)
            except ValueError as error:
                raise InvalidInputError(f"{path.name} line {number} is not JSON") from error
            if not isinstance(row, dict):
                raise InvalidInputError(f"{path.name} line {number} is not a JSON object")
            yield number, row


def _write_run(path: Path, questions: Sequence[Question], answers: Sequence[Sequence[str]]) -> None:
    lines = [
        json.dumps({"qid": question.id, "ranked": list(answer)}, ensure_ascii=False)
        for question, answer in zip(questions, answers, strict=True)
    ]
    try:
        path.write_text("\n".join(lines) + "\n", "utf-8")
    except OSError as error:
        raise InvalidInputError(f"{path.name} cannot be written: {error.strerror}") from error
