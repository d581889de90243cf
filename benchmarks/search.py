"""Search compared with a numpy scan, indexing, one write, and the time from a start to the first answer."""

import itertools
import random
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from apexbridge.bridge import Bridge
from apexbridge.retrieval.config import RetrievalSettings
from apexbridge.retrieval.documents import Document
from apexbridge.retrieval.embedders.embedder import DocumentVector, Embedder, choose_embedder
from apexbridge.retrieval.index.lance_store import SKILLS, LanceStore
from apexbridge.retrieval.service import ToolRetrievalService
from apexbridge.settings import Settings
from benchmarks.measuring import Comparison, compare, within_limit

LARGE, SMALL = 10_000, 1_000
VERBS = ("analyze", "merge", "convert", "summarize", "translate", "deploy", "review", "schedule", "track", "generate")
THINGS = (
    "invoices",
    "spreadsheets",
    "commits",
    "photos",
    "contracts",
    "servers",
    "meetings",
    "recipes",
    "logs",
    "maps",
)
FIELDS = ("finance", "travel", "medicine", "teaching", "gardening", "logistics", "music", "chemistry", "law", "sports")
FIRST_ANSWER = """
import sys
import anyio
from apexbridge import Bridge, Settings
async def main():
    async with Bridge.open(Settings(data_dir=sys.argv[1]), watch=False) as bridge:
        assert await bridge.retrieval.find_relevant_skills("merge invoices for finance", threshold=0)
anyio.run(main)
"""


async def run() -> list[Comparison]:
    """All measurements of search."""
    embedder = choose_embedder(RetrievalSettings())
    embedder.embed_request("load the models")
    return [
        *await _searches(embedder),
        *await _indexing(embedder),
        await _recording(),
    ]


def documents(count: int) -> list[Document]:
    chance = random.Random(1)
    return [
        Document(
            name=f"{chance.choice(VERBS)}-{chance.choice(THINGS)}-{number}",
            description=f"{chance.choice(VERBS).title()} {chance.choice(THINGS)} for {chance.choice(FIELDS)}: "
            + " ".join(chance.choice((*VERBS, *THINGS, *FIELDS)) for _ in range(20)),
        )
        for number in range(count)
    ]


def requests() -> Iterator[str]:
    for number, (verb, thing, field) in enumerate(itertools.product(VERBS, THINGS, FIELDS)):
        yield f"please {verb} my {thing} for the {field} department, case {number}"


async def _searches(embedder: Embedder) -> list[Comparison]:
    chance = np.random.default_rng(1)
    with tempfile.TemporaryDirectory() as directory:
        service = ToolRetrievalService(Path(directory), embedder)
        vectors = chance.normal(size=(LARGE, embedder.dimensions)).astype(np.float32)
        vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
        await service.upsert(
            documents(LARGE), [DocumentVector(vector=vector, embedder=embedder.id) for vector in vectors]
        )
        split = np.split(vectors, np.cumsum(embedder.dimensions_by_model)[:-1], axis=1)
        matrices = [np.ascontiguousarray(matrix) for matrix in split]
        asking = requests()
        known = list(itertools.islice(asking, 200))
        for request in known:
            embedder.embed_request(request)
        asked, scanned = iter(known), itertools.cycle(known)

        def scan(request: str) -> None:
            scores = sum(
                matrix @ own.whole
                for matrix, own in zip(matrices, embedder.embed_request(request), strict=True)
                if own is not None
            )
            np.argpartition(-scores, 5)[:5]

        async def search_known() -> None:
            await service.search(next(asked), threshold=0)

        async def scan_known() -> None:
            scan(next(scanned))

        async def search_new() -> None:
            await service.search(next(asking), threshold=0)

        async def scan_new() -> None:
            scan(next(asking))

        return [
            await compare(
                f"search among {LARGE:,}, request embedded before",
                search_known,
                "a numpy scan of the same matrix",
                scan_known,
                goal=2.5,
                rounds=100,
            ),
            await compare(f"search among {LARGE:,}", search_new, "embedding and scan", scan_new, goal=1.3, rounds=100),
        ]


async def _recording() -> Comparison:
    """What it costs to record the text of a search."""
    asking = itertools.chain(requests(), requests())
    with tempfile.TemporaryDirectory() as directory:
        async with Bridge.open(Settings(data_dir=Path(directory)), watch=False) as bridge:
            search = bridge.retrieval.search
            return await compare(
                "search whose text is recorded",
                lambda: search(next(asking), record=True),
                "the same without a record",
                lambda: search(next(asking), record=False),
                goal=1.1,
                rounds=200,
            )


async def _indexing(embedder: Embedder) -> list[Comparison]:
    skills = documents(SMALL)
    with tempfile.TemporaryDirectory() as directory:
        data_dir = Path(directory) / "data"
        data_dir.mkdir()
        service = ToolRetrievalService(data_dir, embedder)
        async with service.running():
            begun = time.perf_counter()
            await service.index_skills(skills)
            indexed = within_limit(f"{SMALL:,} skills indexed", (time.perf_counter() - begun) * 1000, 10_000)
        store = LanceStore(data_dir / "skills.lance")
        vector = embedder.embed_documents(skills[:1])[0]
        writes = []
        for number in range(41):
            document = skills[number]
            begun = time.perf_counter()
            await service.upsert([document], [DocumentVector(vector=vector, embedder=embedder.id)])
            store.write(SKILLS, embedder.id, [(document, vector)])
            writes.append((time.perf_counter() - begun) * 1000)
        written = within_limit("one skill written, with a precomputed vector", sorted(writes[1:])[20], 15)
        return [indexed, written, _first_answer(Path(directory) / "library", skills)]


def _first_answer(data_dir: Path, documents: list[Document]) -> Comparison:
    """CPU time of a new process until its first answer. The first of these processes does the indexing."""
    for document in documents:
        folder = data_dir / "skills" / document.name
        folder.mkdir(parents=True)
        (folder / "SKILL.md").write_text(f"---\nname: {document.name}\ndescription: '{document.description}'\n---\nx\n")
    times = []
    for _ in range(6):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([sys.executable, "-c", FIRST_ANSWER, str(data_dir)], check=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        times.append((after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime) * 1000)
    what = f"CPU from a start with {SMALL:,} indexed skills to the first answer"
    return within_limit(what, sorted(times[1:])[2], 2_500)
