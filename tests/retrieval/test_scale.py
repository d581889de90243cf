"""A large index: approximate cosines find the candidates, which are then compared exactly."""

import asyncio
import os
import random
import shutil
import signal
import sys
import threading
import zlib
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import anyio
import lancedb
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from apexbridge.retrieval.documents import Document
from apexbridge.retrieval.embedders.embedder import DocumentVector, Embedder
from apexbridge.retrieval.embedders.model import Floats, Scale, normalized
from apexbridge.retrieval.index.vector_file import PENDING_ROWS, VectorFile, VectorFileError
from apexbridge.retrieval.index.vector_index import VectorIndex
from apexbridge.retrieval.ranking import Request, rank, rank_of_slot
from apexbridge.retrieval.service import ToolRetrievalService
from apexbridge.retrieval.text import tokens
from tests.mounting import mounted_disk
from tests.retrieval.conftest import Searching
from tests.waiting import until

VERBS = ("merge", "convert", "translate", "deploy", "review", "schedule", "summarize", "track")
THINGS = ("invoices", "photos", "contracts", "servers", "meetings", "recipes", "logs", "maps", "poems", "bills")
FIELDS = ("finance", "travel", "medicine", "teaching", "gardening", "logistics", "music", "chemistry", "law", "sports")
ROOT = Path(__file__).parents[2]
LIMIT = 100
MANY = 300


class WordModel:
    """A model whose vectors are sums of vectors of words."""

    english_only = False
    weight = 1.0

    def __init__(self, id: str, dimensions: int) -> None:
        self.id = id
        self.dimensions = dimensions

    def scale(self) -> Scale:
        return Scale(unrelated=0.1, related=0.8)

    def embed(self, texts: Sequence[str], *, are_requests: bool = False) -> Floats:
        words = [["", *tokens(text)] for text in texts]
        sums = [np.sum([_vector(self.id, self.dimensions, word) for word in own], axis=0) for own in words]
        return normalized(np.stack(sums))


@cache
def _vector(model: str, dimensions: int, word: str) -> Floats:
    chance = np.random.default_rng(zlib.crc32(f"{model} {word}".encode()))
    deviations = np.arange(1, dimensions + 1, dtype=np.float32) ** np.float32(-0.4)
    vector: Floats = chance.standard_normal(dimensions, np.float32) * deviations
    return vector


def word_embedder() -> Embedder:
    return Embedder([WordModel("one", 256), WordModel("two", 192)])


def library(count: int) -> list[Document]:
    chance = random.Random(1)
    return [
        Document(
            name=f"{chance.choice(VERBS)}-{chance.choice(THINGS)}-{number}",
            description=" ".join(
                (chance.choice(VERBS), chance.choice(THINGS), "for", *chance.choices(FIELDS, k=3), f"case{number % 37}")
            ),
            tags=(chance.choice(FIELDS),),
            hidden=number % 7 == 0,
            version=str(number),
        )
        for number in range(count)
    ]


def requests(count: int) -> list[str]:
    chance = random.Random(2)
    return [
        f"{chance.choice(VERBS)} my {chance.choice(THINGS)} for {chance.choice(FIELDS)}"
        + (f", then {chance.choice(VERBS)} the {chance.choice(THINGS)}" if number % 2 else "")
        for number in range(count)
    ]


def index_of(embedder: Embedder, documents: Sequence[Document], *, exact_limit: int) -> VectorIndex:
    index = VectorIndex(embedder.dimensions_by_model, exact_limit=exact_limit)
    for document, vector in zip(documents, embedder.embed_documents(documents), strict=True):
        index.put(document, vector)
    return index


def found(index: VectorIndex, embedder: Embedder, text: str, count: int = 10, **options: Any) -> list[str]:
    request = Request.of(text, embedder.embed_request(text))
    return [index.documents[one.slot].name for one in rank(index, embedder.models, request, count=count, **options)]


def agreement(one: VectorIndex, other: VectorIndex, embedder: Embedder, **options: Any) -> float:
    shares = [
        len(set(found(one, embedder, text, **options)) & set(found(other, embedder, text, **options))) / 10
        for text in requests(40)
    ]
    return sum(shares) / len(shares)


# ----------------------------------------------------------------------------------------------------------- ranking
@pytest.fixture(scope="module")
def large() -> tuple[Embedder, VectorIndex, VectorIndex]:
    """An exact and an approximate index of the same skills."""
    embedder, documents = word_embedder(), library(1500)
    return (
        embedder,
        index_of(embedder, documents, exact_limit=1500),
        index_of(embedder, documents, exact_limit=LIMIT),
    )


def test_the_limit_decides_whether_all_vectors_are_compared(large: tuple[Embedder, VectorIndex, VectorIndex]) -> None:
    _, exact, approximate = large
    assert exact.vectors.is_exact
    assert not approximate.vectors.is_exact
    approximate.copy().drop([document.name for document in approximate.documents[:10]])
    assert len(approximate) == 1500


@pytest.mark.parametrize("lexical", [True, False])
def test_a_large_index_ranks_as_an_exact_one(
    large: tuple[Embedder, VectorIndex, VectorIndex], lexical: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    embedder, exact, approximate = large
    monkeypatch.setattr("apexbridge.retrieval.ranking.COMPARED", 150)
    assert agreement(exact, approximate, embedder, lexical=lexical) >= 0.98


def test_filters_of_a_large_index_leave_enough_candidates(large: tuple[Embedder, VectorIndex, VectorIndex]) -> None:
    embedder, exact, approximate = large
    allowed = exact.allowed({"law"}, for_model=True)
    np.testing.assert_array_equal(allowed, approximate.allowed({"law"}, for_model=True))
    assert agreement(exact, approximate, embedder, allowed=allowed) >= 0.98
    for name in found(approximate, embedder, "merge my invoices", allowed=allowed):
        document = approximate.documents[approximate.slot(name) or 0]
        assert (document.tags, document.hidden) == (("law",), False)


def test_reasons_in_a_large_index_are_those_of_an_exact_one(large: tuple[Embedder, VectorIndex, VectorIndex]) -> None:
    embedder, exact, approximate = large
    for text in requests(10):
        request = Request.of(text, embedder.embed_request(text))
        (one, *_), (other, *_) = (rank(index, embedder.models, request, count=5) for index in (exact, approximate))
        assert (one.slot, one.keyword_rank, one.matched, one.share) == (
            other.slot,
            other.keyword_rank,
            other.matched,
            other.share,
        )
        assert other.likeness == pytest.approx(one.likeness, abs=1e-4)
        assert one.vector_rank is not None
        assert other.vector_rank is not None
        assert abs(one.vector_rank - other.vector_rank) <= 1 + one.vector_rank // 10
        assert rank_of_slot(approximate, embedder.models, request, other.slot) == 1


def test_all_skills_can_be_ranked_in_a_large_index(large: tuple[Embedder, VectorIndex, VectorIndex]) -> None:
    embedder, exact, approximate = large
    text = "merge my invoices for finance, then translate the poems"
    request = Request.of(text, embedder.embed_request(text))
    by_slot = [
        {one.slot: one.score for one in rank(index, embedder.models, request, count=1500)}
        for index in (exact, approximate)
    ]
    assert len(by_slot[0]) == 1500
    assert by_slot[1] == pytest.approx(by_slot[0], abs=1e-5)


def test_an_index_that_was_changed_ranks_as_a_new_one(large: tuple[Embedder, VectorIndex, VectorIndex]) -> None:
    embedder, _, _ = large
    before, after = library(600), library(900)[300:]
    edited = [Document(name=one.name, description=f"{one.description} again") for one in after[:50]]
    index = index_of(embedder, before, exact_limit=LIMIT)
    for document, vector in zip(after, embedder.embed_documents(after), strict=True):
        index.put(document, None)
        index.put(document, vector)
    for document, vector in zip(edited, embedder.embed_documents(edited), strict=True):
        index.put(document, vector)
    index.retain([document.name for document in after])
    fresh = index_of(embedder, [*edited, *after[50:]], exact_limit=1000)
    assert agreement(index, fresh, embedder) >= 0.98


def test_an_index_becomes_exact_again_if_it_shrinks() -> None:
    embedder, documents = word_embedder(), library(MANY)
    index = index_of(embedder, documents, exact_limit=LIMIT)
    index.retain([document.name for document in documents[:40]])
    assert index.vectors.is_exact
    assert agreement(index, index_of(embedder, documents[:40], exact_limit=LIMIT), embedder) == 1


def test_skills_without_a_vector_are_found_by_words_in_a_large_index() -> None:
    embedder, documents = word_embedder(), library(MANY)
    index = VectorIndex(embedder.dimensions_by_model, exact_limit=LIMIT)
    for document in documents:
        index.put(document, None)
    index.put(Document(name="quagga", description="feeds the quagga"), None)
    assert found(index, embedder, "feed the quagga")[0] == "quagga"
    for document, vector in zip(documents, embedder.embed_documents(documents), strict=True):
        index.put(document, vector)
    assert index.without_vector() == ["quagga"]
    assert "quagga" in found(index, embedder, "feed the quagga", count=100)
    assert agreement(index, index_of(embedder, documents, exact_limit=1000), embedder) >= 0.98


@pytest.mark.parametrize("kind", ["identical", "zero", "two kinds", "huge"])
def test_vectors_without_variance_are_ranked(kind: str) -> None:
    embedder = word_embedder()
    index = VectorIndex(embedder.dimensions_by_model, exact_limit=LIMIT)
    (same,) = embedder.embed_documents([Document(name="x", description="merges invoices")])
    for number in range(MANY):
        vector = {"identical": same, "zero": 0 * same, "two kinds": same * (-1) ** number, "huge": 1e18 * same}[kind]
        index.put(Document(name=f"x-{number}", description="merges invoices"), vector)
    with np.errstate(all="raise", under="ignore"):
        names = found(index, embedder, "merge invoices", count=5)
    assert len(names) == 5
    assert all(name.startswith("x-") for name in names)
    if kind == "two kinds":
        assert all(int(name[2:]) % 2 == 0 for name in names)


@pytest.mark.slow
@pytest.mark.anyio
async def test_a_hundred_thousand_identical_descriptions_hide_nothing(data_dir: Path) -> None:
    embedder = word_embedder()
    searching = Searching(data_dir, embedder)
    description = "merges invoices for finance"
    (same,) = embedder.embed_documents([Document(name="copy", description=description)])
    vector = DocumentVector(vector=same, embedder=embedder.id)
    other = Document(name="translate-poems", description="translates poems")
    async with searching.open() as service:
        for start in range(0, 100_000, 5_000):
            copies = [
                Document(name=f"copy-{number}", description=description) for number in range(start, start + 5_000)
            ]
            await service.upsert(copies, [vector] * len(copies))
        await service.index_skill(other)
        for text, name in (("merge my invoices", "copy-"), ("translate a poem", other.name)):
            found = (await service.search(text, threshold=0)).results
            assert found[0].name.startswith(name)
        report = await service.confusable(limit=10)
        assert (report.total, len(report.pairs)) == (99_999, 10)
        assert await service.remove(["copy-17"]) == ["copy-17"]
    async with searching.open() as again:
        assert (await again.search("translate a poem", threshold=0)).results[0].name == other.name
        assert len(again.model_warnings) == 0


@pytest.mark.parametrize("dimensions", [(1,), (64,), (300, 5)])
def test_any_vector_length_can_be_approximated(dimensions: tuple[int, ...]) -> None:
    embedder = Embedder([WordModel(f"model-{size}", size) for size in dimensions])
    index = index_of(embedder, library(MANY), exact_limit=LIMIT)
    assert agreement(index, index_of(embedder, library(MANY), exact_limit=1000), embedder) >= 0.98


def test_a_preview_changes_nothing_in_a_large_index() -> None:
    embedder, documents = word_embedder(), library(MANY)
    index = index_of(embedder, documents, exact_limit=LIMIT)
    new = Document(name=documents[5].name, description="walks the quagga of the emperor")
    copy = index.with_document(new, embedder.embed_documents([new])[0])
    assert found(copy, embedder, "walk the quagga")[0] == new.name
    assert index.documents[5] == documents[5]
    np.testing.assert_array_equal(index.vector(5), embedder.embed_documents(documents)[5])
    assert index.keywords.coverage(["quagga"]) == 0


@settings(max_examples=30, deadline=None)
@given(st.lists(st.tuples(st.booleans(), st.integers(0, 60), st.booleans()), max_size=200))
def test_packed_indexes_are_restored_after_any_changes(changes: list[tuple[bool, int, bool]]) -> None:
    index = VectorIndex((3, 2), exact_limit=10)
    for version, (put, number, has_vector) in enumerate(changes):
        if put:
            document = Document(name=f"skill-{number}", description=f"text {version}", tags=("a\nb", "\ud800"))
            index.put(document, np.full(5, version, np.float32) if has_vector else None)
        else:
            index.drop([f"skill-{number}"])

    def reopened(id: str, checksums: Any) -> VectorFile:
        file: VectorFile = index.vectors.file  # type: ignore[attr-defined]
        assert file.id == id
        return file

    restored = VectorIndex.unpacked((3, 2), index.packed(), open_file=reopened)
    stored = [row for batch in index.stored() for row in batch]
    assert [document for document, _ in stored] == restored.documents
    for slot, (_, vector) in enumerate(stored):
        np.testing.assert_array_equal(restored.vector(slot), vector)
    restored.put(Document(name="one more", description="text"), np.ones(5, np.float32))
    assert len(restored) == len(stored) + 1


# ------------------------------------------------------------------------------------------------- the file of vectors
def test_vectors_are_read_back_from_their_file(tmp_path: Path) -> None:
    file = VectorFile.create(tmp_path / "vectors", 3)
    vectors = np.arange(3 * 2 * PENDING_ROWS, dtype=np.float32).reshape(-1, 3)
    for vector in vectors[:10]:
        file.append(vector[None])
    assert file.append(vectors[10:]) == 10
    rows = np.array([0, 5, len(vectors) - 1, 5], np.int32)
    np.testing.assert_array_equal(file.read(rows), vectors[rows])
    assert file.flush()
    assert (tmp_path / "vectors").stat().st_mode & 0o077 == 0
    again = VectorFile.open(tmp_path / "vectors", 3, id=file.id, checksums=file.checksums)
    np.testing.assert_array_equal(again.read(rows), vectors[rows])


def test_a_file_that_was_changed_is_not_used(tmp_path: Path) -> None:
    path = tmp_path / "vectors"
    file = VectorFile.create(path, 3)
    file.append(np.ones((5, 3), np.float32))
    file.flush()
    other = VectorFile.create(tmp_path / "other", 3)
    with pytest.raises(VectorFileError):
        VectorFile.open(path, 3, id=other.id, checksums=file.checksums)
    content = path.read_bytes()
    path.write_bytes(content[:-1])
    with pytest.raises(VectorFileError):
        VectorFile.open(path, 3, id=file.id, checksums=file.checksums)
    with pytest.raises(VectorFileError):
        file.read(np.array([4], np.int32))
    path.write_bytes(content[:-1] + b"x")
    with pytest.raises(VectorFileError):
        file.read(np.array([4], np.int32))
    assert len(file.read(np.array([3], np.int32))) == 1


def test_vectors_stay_in_memory_while_the_disk_is_full() -> None:
    file = VectorFile(os.open("/dev/full", os.O_RDWR), 3, np.zeros(0, np.uint32), "00")
    vectors = np.arange(3 * 2 * PENDING_ROWS, dtype=np.float32).reshape(-1, 3)
    file.append(vectors)
    assert not file.flush()
    np.testing.assert_array_equal(file.read(np.array([7, 8], np.int32)), vectors[7:9])


# ----------------------------------------------------------------------------------------------------------- restarts
@pytest.fixture
def small_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("apexbridge.retrieval.index.vector_index.EXACT_LIMIT", LIMIT)


def vectors_file(data_dir: Path) -> Path:
    return data_dir / "skills.snapshot.skill-vectors"


async def answers(service: ToolRetrievalService) -> list[list[str]]:
    return [
        [match.name for match in await service.find_relevant_skills(text, limit=10, threshold=0)]
        for text in requests(10)
    ]


def nothing(data_dir: Path) -> None:
    pass


def remove_snapshot(data_dir: Path) -> None:
    (data_dir / "skills.snapshot").unlink()


def remove_vectors(data_dir: Path) -> None:
    vectors_file(data_dir).unlink()


def truncate_vectors(data_dir: Path) -> None:
    os.truncate(vectors_file(data_dir), 1000)


def overwrite_vectors(data_dir: Path) -> None:
    with vectors_file(data_dir).open("r+b") as file:
        file.seek(1000)
        file.write(b"x" * 100_000)


def truncate_snapshot(data_dir: Path) -> None:
    os.truncate(data_dir / "skills.snapshot", 5000)


LOSSES = [nothing, remove_snapshot, remove_vectors, truncate_vectors, overwrite_vectors, truncate_snapshot]


@pytest.mark.anyio
@pytest.mark.usefixtures("small_limit")
@pytest.mark.parametrize("lose", LOSSES, ids=lambda lose: lose.__name__)
async def test_a_large_index_is_the_same_after_a_restart(
    searching: Searching, data_dir: Path, lose: Callable[[Path], None]
) -> None:
    documents = library(MANY)
    async with searching.open(word_embedder()) as service:
        await service.index_skills(documents)
        before = await answers(service)
    assert vectors_file(data_dir).stat().st_mode & 0o077 == 0
    lose(data_dir)
    for _ in range(2):
        async with searching.open(word_embedder()) as again:
            assert await answers(again) == before
            assert await again.missing({one.name: one.version for one in documents}) == []
            assert not again._index.memory.vectors.is_exact


@pytest.mark.anyio
@pytest.mark.usefixtures("small_limit")
@pytest.mark.parametrize("lose", LOSSES, ids=lambda lose: lose.__name__)
async def test_a_large_index_survives_losses_while_it_is_used(
    searching: Searching, data_dir: Path, lose: Callable[[Path], None]
) -> None:
    async with searching.open(word_embedder()) as service:
        await service.index_skills(library(MANY))
    async with searching.open(word_embedder()) as service:
        before = await answers(service)
        lose(data_dir)
        service._rankings.clear()
        assert await answers(service) == before
        await service.index_skill(Document(name="quagga", description="walks the quagga"))
    async with searching.open(word_embedder()) as again:
        assert (await again.search("walk the quagga")).results[0].name == "quagga"
        await again.remove_skill("quagga")
        assert await answers(again) == before


@pytest.mark.anyio
@pytest.mark.usefixtures("small_limit")
async def test_changes_after_a_snapshot_are_read_from_the_tables(searching: Searching, data_dir: Path) -> None:
    documents = library(MANY)
    async with searching.open(word_embedder()) as service:
        await service.index_skills(documents)
        await service.remember("do the usual thing", documents[3].name, succeeded=True)
    files = [data_dir / "skills.snapshot", vectors_file(data_dir)]
    for file in files:
        shutil.copy(file, file.with_suffix(".old"))
    edited = Document(name=documents[7].name, description="walks the quagga", version="new")
    async with searching.open(word_embedder()) as service:
        await service.index_skill(edited)
        await service.remove_skill(documents[8].name)
        await service.forget()
        after = await answers(service)
    for file in files:
        file.with_suffix(".old").replace(file)
    async with searching.open(word_embedder()) as again:
        assert await answers(again) == after
        assert (await again.search("walk the quagga")).results[0].name == edited.name
        versions = {documents[7].name: "new", documents[8].name: documents[8].version}
        assert await again.missing(versions) == [documents[8].name]
        assert await again.forget() == 0


@pytest.mark.anyio
@pytest.mark.usefixtures("small_limit")
async def test_a_large_index_is_written_again_if_its_tables_are_lost(searching: Searching, data_dir: Path) -> None:
    async with searching.open(word_embedder()) as service:
        await service.index_skills(library(MANY))
        await until(lambda: not service.is_behind)
        shutil.rmtree(data_dir / "skills.lance")
        await service.index_skill(Document(name="late", description="Arrives after the loss"))
        await until(lambda: (data_dir / "skills.lance").exists() and not service.is_behind)
        before = await answers(service)
    table = lancedb.connect(data_dir / "skills.lance").open_table("skills")
    assert table.count_rows() == MANY + 1
    (data_dir / "skills.snapshot").unlink()
    async with searching.open(word_embedder()) as again:
        assert await answers(again) == before


@pytest.mark.anyio
@pytest.mark.usefixtures("small_limit")
async def test_the_file_of_vectors_is_removed_with_the_large_index(searching: Searching, data_dir: Path) -> None:
    documents = library(MANY)
    async with searching.open(word_embedder()) as service:
        await service.index_skills(documents)
    assert vectors_file(data_dir).exists()
    async with searching.open(word_embedder()) as service:
        await service.wake()
        assert await service.retain([one.name for one in documents[:20]]) == MANY - 20
    assert not vectors_file(data_dir).exists()
    async with searching.open(word_embedder()) as again:
        assert len((await again.search("merge invoices", limit=100, threshold=0)).results) == 20


# ----------------------------------------------------------------------------------------------- a change of the models
class ObservedModel(WordModel):
    """A model that counts the texts it has embedded, and calls the test before it embeds more."""

    def __init__(self, id: str, dimensions: int) -> None:
        super().__init__(id, dimensions)
        self.count = 0
        self.before: Callable[[], object] = lambda: None

    def embed(self, texts: Sequence[str], *, are_requests: bool = False) -> Floats:
        if not are_requests:
            self.before()
            self.count += len(texts)
        return super().embed(texts, are_requests=are_requests)


def next_file(data_dir: Path) -> Path:
    return data_dir / "skills.snapshot.skill-vectors.next"


async def changed(service: ToolRetrievalService, embedder: Embedder) -> None:
    service.models.want(embedder)
    assert await service.models.run_once()
    assert service.models.problem is None


@pytest.mark.anyio
@pytest.mark.usefixtures("small_limit")
async def test_a_large_index_is_searched_while_its_models_change_and_is_then_as_a_new_one(
    searching: Searching, data_dir: Path, tmp_path: Path
) -> None:
    first, new = WordModel("one", 256), ObservedModel("three", 320)
    async with Searching(tmp_path / "fresh", Embedder([new])).open() as fresh:
        await fresh.index_skills(library(MANY))
        expected = await answers(fresh)
    waiting, released = threading.Event(), threading.Event()

    def wait() -> None:
        if new.count >= MANY // 3:
            waiting.set()
            assert released.wait(60)

    async with searching.open(Embedder([first])) as service:
        await service.index_skills(library(MANY))
        before = await answers(service)
        new.count, new.before = 0, wait
        service.models.want(Embedder([new]))
        running = asyncio.create_task(service.models.run_once())
        await until(waiting.is_set)
        service._rankings.clear()
        assert await answers(service) == before
        assert service.models.change is not None
        assert 0 < service.models.change.done < MANY
        assert next_file(data_dir).exists()
        released.set()
        assert await running
        assert await answers(service) == expected
        assert not service._index.memory.vectors.is_exact
        await service.index_skill(Document(name="quagga", description="walks the quagga"))
        assert (await service.search("walk the quagga")).results[0].name == "quagga"
        await service.remove_skill("quagga")
    assert vectors_file(data_dir).exists()
    assert not next_file(data_dir).exists()
    new.count = 0
    async with searching.open(Embedder([new])) as again:
        assert await answers(again) == expected
        assert again.models.change is None
    assert new.count == 0


@pytest.mark.anyio
@pytest.mark.computes_in_loop
@pytest.mark.parametrize("limit", [LIMIT, 10_000])
async def test_models_that_stay_do_not_embed_again(
    searching: Searching, monkeypatch: pytest.MonkeyPatch, limit: int
) -> None:
    monkeypatch.setattr("apexbridge.retrieval.index.vector_index.EXACT_LIMIT", limit)
    one, two, three = (ObservedModel(id, 64) for id in ("one", "two", "three"))
    documents = library(MANY)
    async with searching.open(Embedder([one, two])) as service:
        await service.index_skills(documents[:-1])
        await service.upsert(documents[-1:], [None])  # not embedded yet
        one.count = two.count = three.count = 0
        target = Embedder([three, two])
        await changed(service, target)
        assert (one.count, two.count) == (0, 2), "text and name of the skill without a vector"
        assert three.count == 2 * MANY
        memory = service._index.memory
        made = target.embed_documents(memory.documents)
        np.testing.assert_allclose([memory.vector(slot) for slot in range(MANY)], made, atol=1e-6)


@pytest.mark.anyio
@pytest.mark.usefixtures("small_limit")
async def test_a_change_that_is_given_up_leaves_no_file(searching: Searching, data_dir: Path) -> None:
    first, new, other = Embedder([WordModel("one", 64)]), ObservedModel("two", 64), WordModel("three", 64)
    async with searching.open(first) as service:
        await service.index_skills(library(MANY))
        seen: list[bool] = []

        def give_up() -> None:
            if next_file(data_dir).exists():
                seen.append(True)
                service.models.want(first)

        new.before = give_up
        service.models.want(Embedder([new]))
        assert not await service.models.run_once()
        assert seen
        assert not next_file(data_dir).exists()
        await changed(service, Embedder([other]))


KILLED = """
import sys
from pathlib import Path
import anyio
from apexbridge.retrieval.embedders.embedder import Embedder
from apexbridge.retrieval.index import vector_index
from apexbridge.retrieval.service import ToolRetrievalService
from tests.retrieval.test_scale import LIMIT, ObservedModel, WordModel, die_at, library
vector_index.EXACT_LIMIT = LIMIT
async def main():
    service = ToolRetrievalService(Path(sys.argv[1]), Embedder([WordModel("one", 64)]))
    async with service.running():
        new = ObservedModel("two", 64)
        new.before = lambda: die_at(Path(sys.argv[1]))
        await service.wake()
        service.models.want(Embedder([new]))
        await service.models.run_once()
anyio.run(main)
"""


def die_at(data_dir: Path) -> None:
    """Kill this process when a part of the new vectors is in its file."""
    if next_file(data_dir).exists():
        os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.anyio
@pytest.mark.usefixtures("small_limit")
async def test_a_kill_during_a_change_of_a_large_index_keeps_the_old_one(searching: Searching, data_dir: Path) -> None:
    first, second = Embedder([WordModel("one", 64)]), Embedder([WordModel("two", 64)])
    async with searching.open(first) as service:
        await service.index_skills(library(MANY))
        before = await answers(service)
    killed = await anyio.run_process([sys.executable, "-c", KILLED, str(data_dir)], check=False, cwd=ROOT)
    assert killed.returncode == -signal.SIGKILL
    assert next_file(data_dir).exists()
    async with searching.open(first) as service:
        assert await answers(service) == before
        assert not next_file(data_dir).exists()
        await changed(service, second)
        after = await answers(service)
    async with searching.open(second) as again:
        assert await answers(again) == after


@pytest.mark.anyio
@pytest.mark.usefixtures("small_limit")
async def test_a_full_disk_during_a_change_of_a_large_index_keeps_the_old_one(tmp_path: Path) -> None:
    first, second = Embedder([WordModel("one", 64)]), Embedder([WordModel("two", 256)])
    with mounted_disk(tmp_path / "disk", megabytes=16) as disk:
        searching = Searching(disk / "data", first)
        async with searching.open() as service:
            await service.index_skills(library(MANY))
            before = await answers(service)
            await until(lambda: not service.is_behind)
            ballast = disk / "ballast"
            with ballast.open("wb", buffering=0) as file, suppress(OSError):
                while True:
                    file.write(bytes(4096))
            service.models.want(second)
            assert not await service.models.run_once()
            assert service.models.problem == "The new vectors cannot be written: No space left on device."
            service._rankings.clear()
            assert await answers(service) == before
            ballast.unlink()
            assert await service.models.run_once()
            after = await answers(service)
            assert service.models.problem is None
        async with searching.open(second) as again:
            assert await answers(again) == after
