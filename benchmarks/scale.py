"""Search among 1,000, 10,000 and 100,000 skills with bodies: CPU time, agreement with the exact ranking, memory, start.

Embedding 100,000 texts takes too long, so the vectors are made up: each word has a vector, a text has the sum of those
of its words. Words of a topic are near each other, and the variance of the components falls as that of real skills
does: the first 192 of 1,280 components have 0.8 of it. Everything else is the real code, with LanceDB.
"""

import itertools
import random
import resource
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import zlib
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path

import numpy as np

from apexbridge.retrieval.documents import Document
from apexbridge.retrieval.embedders.embedder import Embedder
from apexbridge.retrieval.embedders.model import Floats, Scale, normalized
from apexbridge.retrieval.index.slot_vectors import MatrixVectors
from apexbridge.retrieval.packed_body import PackedBody
from apexbridge.retrieval.ranking import Request, rank
from apexbridge.retrieval.service import ToolRetrievalService
from apexbridge.retrieval.text import tokens
from benchmarks.measuring import Comparison, within_limit

SIZES = (1_000, 10_000, 100_000)
DIMENSIONS = (512, 384, 384)
OFFSETS = (0.41, 0.40, 0.89)
"""Length of the mean vector of real skills, for each model."""
SPECTRUM = -0.43
"""Standard deviation of a component as a power of its number."""
TOPICS, WORDS_OF_TOPIC, GENERAL_WORDS = 1_000, 30, 4_000
ASKED = 100
BODY_WORDS, OWN_SHARE = 225, 0.42
"""Of a body, and how many of them its description has. Real bodies have 225 words too, 125 of them different."""
MAX_COMPARING_MS, MAX_HELD_MS = 60_000, 100
MAX_MEMORY_MB, MAX_TOTAL_MB, MAX_START_MS, MAX_SEARCH_MS, MAX_MISSING = 275, 600, 5_000, 25, 2.0
CHILD = """
import sys, time
from pathlib import Path
import anyio
from apexbridge.retrieval.config import RetrievalSettings
from apexbridge.retrieval.embedders.embedder import choose_embedder
from apexbridge.retrieval.service import ToolRetrievalService
from benchmarks.scale import made_embedder, memory_mb, requests
real = choose_embedder(RetrievalSettings())
real.embed_request("load the models")
own = made_embedder()
own.embed_request("load the words")
async def main():
    service = ToolRetrievalService(Path(sys.argv[1]), own)
    before, begun = memory_mb(), time.process_time()
    asking = requests(int(sys.argv[2]))
    async with service.running():
        await service.search(next(asking), threshold=0)
        first = time.process_time() - begun
        for _ in range(100):
            await service.search(next(asking), threshold=0)
        print(1000 * first, memory_mb() - before, memory_mb())
anyio.run(main)
"""


async def run() -> list[Comparison]:
    """All measurements, for each size."""
    found: list[Comparison] = []
    seconds: dict[int, float] = {}
    for size in SIZES:
        with tempfile.TemporaryDirectory() as directory:
            measured = await _measure(Path(directory), size)
            seconds[size] = measured[0].ours_ms
            found += measured
            found += _start(Path(directory), size)
            found += await _background(Path(directory), size)
    for smaller, larger in itertools.pairwise(SIZES):
        found.append(
            Comparison(
                what=f"growth of a search, {smaller:,} to {larger:,} skills",
                ours_ms=seconds[larger],
                baseline=f"among {smaller:,}",
                baseline_ms=seconds[smaller],
                goal=larger / smaller,
                spread=1.0,
            )
        )
    return found


async def _measure(data_dir: Path, size: int) -> list[Comparison]:
    """A search, its agreement with the exact ranking, and a change."""
    embedder = made_embedder()
    service = ToolRetrievalService(data_dir, embedder)
    async with service.running():
        corpus = documents(size)
        while batch := list(itertools.islice(corpus, 2_000)):
            await service.upsert(batch, await service.embed(batch))
        while service.is_behind:
            await service._index.writer.flush()
        with service._index.memory.locked() as memory:
            exact = memory.copy()
            exact.vectors = MatrixVectors.of(memory.vectors, DIMENSIONS)
        asked = list(itertools.islice(requests(size), ASKED))
        for text in asked:
            embedder.embed_request(text)
        same, searches, scans = {5: 0.0, 10: 0.0}, [], []
        for text in asked:
            begun = time.process_time()
            answer = await service.search(text, limit=10, threshold=0)
            searches.append((time.process_time() - begun) * 1000)
            names = [match.name for match in answer.results]
            begun = time.process_time()
            ranked = rank(exact, embedder.models, Request.of(text, embedder.embed_request(text)), count=10)
            scans.append((time.process_time() - begun) * 1000)
            truth = [exact.documents[candidate.slot].name for candidate in ranked]
            for count in same:
                same[count] += len(set(names[:count]) & set(truth[:count])) / count / len(asked)
        changes = []
        for number, text in enumerate(asked[:20]):
            document = Document(name=f"late-{number}", description=text)
            made = await service.embed([document])
            begun = time.process_time()
            await service.upsert([document], made)
            await service._index.writer.flush()
            await service.search(text, threshold=0)
            changes.append((time.process_time() - begun) * 1000)
    search = Comparison(
        what=f"CPU of a search among {size:,}, request embedded before",
        ours_ms=statistics.median(searches),
        baseline="the exact ranking in memory",
        baseline_ms=statistics.median(scans),
        goal=2.5 if size < 100_000 else 1.0,
        spread=max(searches) / statistics.median(searches),
    )
    return [
        search,
        within_limit(f"CPU of a search among {size:,}", search.ours_ms, MAX_SEARCH_MS),
        *(
            within_limit(f"missing of the exact first {count} among {size:,}", 100 * (1 - share), MAX_MISSING, unit="%")
            for count, share in same.items()
        ),
        within_limit(f"CPU of a change among {size:,}, written and searched", statistics.median(changes), 250),
    ]


def _start(data_dir: Path, size: int) -> list[Comparison]:
    """A process that loads the real models and searches the index on disk."""
    started, memory, total = _child(data_dir, size)
    with tempfile.TemporaryDirectory() as empty:
        _, without, _ = _child(Path(empty), size)
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    _child(data_dir, size, searches=False)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = (after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime) * 1000
    return [
        within_limit(f"CPU to load {size:,} skills and answer", started, MAX_START_MS),
        within_limit(f"CPU of a process from its start to the answer among {size:,}, with models", cpu, MAX_START_MS),
        within_limit(f"memory for {size:,} skills", memory - without, MAX_MEMORY_MB, unit="MB"),
        within_limit(f"memory of the process with models and {size:,} skills", total, MAX_TOTAL_MB, unit="MB"),
    ]


async def _background(data_dir: Path, size: int) -> list[Comparison]:
    """A report of confusable pairs, and a change of one model of three: how long they keep searches waiting."""
    service = ToolRetrievalService(data_dir, made_embedder())
    async with service.running():
        await service.wake()
        lock = _TimedLock()
        for memory in (service._index.memory, service._index.tools):
            memory._lock = lock  # type: ignore[assignment]
        begun = time.process_time()
        await service.confusable()
        comparing = (time.process_time() - begun) * 1000
        held, lock.longest = lock.longest, 0.0
        new = MadeModel(2)
        new.id = "made-again"
        service.models.want(Embedder([MadeModel(0), MadeModel(1), new]))
        await service.models.run_once()
    return [
        within_limit(f"CPU of the confusable pairs of {size:,}", comparing, MAX_COMPARING_MS),
        within_limit(f"CPU without searches, confusable pairs of {size:,}", held, MAX_HELD_MS),
        within_limit(f"CPU without searches, a change of models among {size:,}", lock.longest, MAX_HELD_MS),
    ]


class _TimedLock:
    """Remembers the most CPU time, in milliseconds, that a thread has used while it held the lock."""

    def __init__(self) -> None:
        self.longest = 0.0
        self._lock = threading.Lock()
        self._begun = 0.0

    def __enter__(self) -> None:
        self._lock.acquire()
        self._begun = time.thread_time()

    def __exit__(self, *error: object) -> None:
        self.longest = max(self.longest, (time.thread_time() - self._begun) * 1000)
        self._lock.release()


def _child(data_dir: Path, size: int, *, searches: bool = True) -> tuple[float, float, float]:
    code = CHILD if searches else CHILD.replace("range(100)", "range(0)")
    ran = subprocess.run([sys.executable, "-c", code, str(data_dir), str(size)], check=True, capture_output=True)
    first, memory, total = map(float, ran.stdout.split())
    return first, memory, total


def memory_mb() -> float:
    """Resident memory of this process."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 1e6


# ------------------------------------------------------------------------------------------------- texts and vectors
SYLLABLES = [
    f"{first}{second}" for first in "bcdfghklmnprstvw" for second in ("a", "e", "i", "o", "u", "ar", "en", "ol")
]


def _word(number: int) -> str:
    """A made-up word of three syllables."""
    chance = random.Random(number)
    return "".join(chance.choice(SYLLABLES) for _ in range(3)) + "aeiou"[number % 5]


@cache
def _vocabulary() -> tuple[list[list[str]], list[str]]:
    """Words of each topic, and words that every text uses."""
    numbers = itertools.count()
    topics = [[_word(next(numbers)) for _ in range(WORDS_OF_TOPIC)] for _ in range(TOPICS)]
    return topics, [_word(next(numbers)) for _ in range(GENERAL_WORDS)]


def documents(count: int) -> Iterator[Document]:
    """Skills of many topics, popular ones more often, with 15 to 45 words each."""
    topics, general = _vocabulary()
    chance = random.Random(1)
    for number in range(count):
        topic = topics[int(TOPICS * chance.random() ** 2)]
        words = [
            _frequent(topic, chance) if chance.random() < 0.4 else _frequent(general, chance)
            for _ in range(chance.randint(15, 45))
        ]
        yield Document(
            name=f"{_frequent(topic, chance)}-{_frequent(topic, chance)}-{number}",
            description=" ".join(words).capitalize() + ".",
            tags=(_frequent(topic, chance),),
            packed_body=PackedBody.of(" ".join(_body(words, topic, number))),
            version=f"{number:064x}",
        )


def _body(own: Sequence[str], topic: Sequence[str], number: int) -> Iterator[str]:
    chance = random.Random(-1 - number)
    _, general = _vocabulary()
    for _ in range(chance.randint(BODY_WORDS // 2, BODY_WORDS * 3 // 2)):
        if chance.random() < OWN_SHARE:
            yield chance.choice(own)
        else:
            yield _frequent(topic if chance.random() < 0.3 else general, chance)


def requests(size: int) -> Iterator[str]:
    """Requests for one of the skills each: some of its words, and others."""
    _, general = _vocabulary()
    chance = random.Random(2)
    for document in itertools.islice(itertools.cycle(documents(size)), 7, None, max(1, size // 997)):
        words = chance.sample(document.description.lower().rstrip(".").split(), 5)
        yield " ".join(("please", *words[:3], "the", _frequent(general, chance), *words[3:], "for me"))


def _frequent(words: Sequence[str], chance: random.Random) -> str:
    """A word; the first ones more often."""
    return words[int(len(words) * chance.random() ** 3)]


class MadeModel:
    """A model whose vectors are sums of vectors of words."""

    english_only = False
    weight = 1.0

    def __init__(self, number: int) -> None:
        self.id = f"made-{number}"
        self.dimensions = DIMENSIONS[number]
        self._number = number

    def scale(self) -> Scale:
        return Scale(unrelated=0.2, related=0.7)

    def embed(self, texts: Sequence[str], *, are_requests: bool = False) -> Floats:
        """Their vectors."""
        start = sum(DIMENSIONS[: self._number])
        columns = slice(start, start + self.dimensions)
        sums = [np.sum([_vector(word)[columns] for word in tokens(text) or [""]], axis=0) for text in texts]
        own = normalized(np.stack(sums))
        offset = np.zeros(self.dimensions, np.float32)
        offset[0] = OFFSETS[self._number]
        return normalized((own * (1 - OFFSETS[self._number] ** 2) ** 0.5 + offset).astype(np.float32))


def made_embedder() -> Embedder:
    """Three models of the dimensions of the usual ones."""
    return Embedder([MadeModel(number) for number in range(len(DIMENSIONS))])


@cache
def _deviations() -> Floats:
    """Of the components, in a random order, so that each model has some of the large ones."""
    sizes = np.arange(1, sum(DIMENSIONS) + 1) ** SPECTRUM
    return np.random.default_rng(3).permutation(sizes).astype(np.float32)


@cache
def _topic_of() -> dict[str, int]:
    return {token: topic for topic, words in enumerate(_vocabulary()[0]) for word in words for token in tokens(word)}


@cache
def _vector(token: str) -> Floats:
    """Of a word: near that of its topic, or short if it has none."""
    topic = _topic_of().get(token)
    own = _noise(zlib.crc32(token.encode()))
    mixed = np.float32(0.4) * own if topic is None else _noise(-1 - topic) + np.float32(0.7) * own
    vector: Floats = mixed * _deviations()
    return vector


@cache
def _noise(seed: int) -> Floats:
    return np.random.default_rng(abs(seed) * 2 + (seed < 0)).standard_normal(sum(DIMENSIONS), np.float32)
