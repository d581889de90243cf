"""A change of the embedding models: everything is embedded again while the old vectors serve, past use included."""

import asyncio
import threading
from collections.abc import AsyncIterator, Collection, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import numpy as np
import pytest

from apexbridge._fs import exchange
from apexbridge.retrieval.config import RetrievalSettings
from apexbridge.retrieval.documents import Document, tool_key
from apexbridge.retrieval.embedders.embedder import Embedder, choose_embedder, columns_of
from apexbridge.retrieval.embedders.model import EmbeddingError, Floats, Scale
from apexbridge.retrieval.embedders.model_choice import CHOICE_FILE, read_choice, write_choice
from apexbridge.retrieval.embedders.model_store import ModelStore
from apexbridge.retrieval.embedders.onnx_model import OnnxModel
from apexbridge.retrieval.index.lance_store import Contents, LanceStore, StoreError
from apexbridge.retrieval.index.vector_index import VectorIndex
from apexbridge.retrieval.service import ToolRetrievalService
from apexbridge.retrieval.usage import UsagePair, same_text_cosines
from tests.retrieval.tiny_model import DIMENSIONS, card_of, write_model
from tests.waiting import until

pytestmark = [pytest.mark.anyio, pytest.mark.computes_in_loop]
LIBRARY = [
    Document(name="pdf-merge", description="merge pdf files", version="1"),
    Document(name="weather", description="weather", version="1"),
    Document(name=tool_key("mcp:files"), description="files", version="1"),
]
NAMES = {document.name: document.version for document in LIBRARY}
REQUEST = "merge these files"


class GatedModel:
    """A model in ONNX format that waits for the test, or fails, when it embeds."""

    english_only = False
    weight = 1.0
    dimensions = DIMENSIONS

    def __init__(self, folder: Path, name: str, seed: int) -> None:
        card = card_of(write_model(folder / name, seed=seed))
        self.id = name
        self.name = name
        self._model = OnnxModel(folder / name, card, id=name)
        self.gate = threading.Event()
        self.gate.set()
        self.waiting = threading.Event()
        self.fails = False
        self.texts: list[str] = []

    def scale(self) -> Scale:
        return Scale(unrelated=0.1, related=0.6)

    def embed(self, texts: Sequence[str], *, are_requests: bool = False) -> Floats:
        self.texts += texts
        if not self.gate.is_set():
            self.waiting.set()
            assert self.gate.wait(60)
        if self.fails:
            raise EmbeddingError(f"The model {self.name} failed.")
        return self._model.embed(texts, are_requests=are_requests)


class Models:
    def __init__(self, data_dir: Path, folder: Path) -> None:
        self.data_dir = data_dir
        self.one, self.two, self.three = (GatedModel(folder, f"model-{seed}", seed) for seed in (1, 2, 3))
        self.texts: dict[str, str] = {}
        """Of recorded chats."""

    async def _texts_of(self, links: Collection[str]) -> Mapping[str, str]:
        return {link: self.texts[link] for link in links if link in self.texts}

    @asynccontextmanager
    async def open(
        self, *used: GatedModel, installed: Sequence[GatedModel] = ()
    ) -> AsyncIterator[ToolRetrievalService]:
        self.data_dir.mkdir(exist_ok=True)
        service = ToolRetrievalService(
            self.data_dir,
            Embedder(used),
            RetrievalSettings(threshold=0),
            installed=lambda: installed,
            texts=self._texts_of,
        )

        async def note_switch() -> None:
            self.switches += 1

        self.switches = 0
        async with service.running():
            running = asyncio.create_task(service.models.run(note_switch))
            try:
                yield service
            finally:
                self.release()
                running.cancel()
                await asyncio.wait([running])

    def release(self) -> None:
        for model in (self.one, self.two, self.three):
            model.gate.set()


@pytest.fixture
def models(data_dir: Path, tmp_path: Path) -> Iterator[Models]:
    made = Models(data_dir, tmp_path / "made")
    yield made
    made.release()


def vectors(service: ToolRetrievalService) -> dict[str, list[float]]:
    index = service._index
    return {
        document.name: memory.vector(slot).round(4).tolist()
        for memory in (index.memory, index.tools)
        for slot, document in enumerate(memory.documents)
        if memory.has_vector[slot]
    }


def expected(*used: GatedModel, documents: Sequence[Document] = LIBRARY) -> dict[str, list[float]]:
    made = Embedder(used).embed_documents(documents)
    return {document.name: vector.round(4).tolist() for document, vector in zip(documents, made, strict=True)}


def past(service: ToolRetrievalService) -> dict[str, tuple[UsagePair, Floats]]:
    return {pair.skill: (pair, vector) for pair, vector in service._index.usage.pairs()}


async def begin_waiting(service: ToolRetrievalService, *used: GatedModel) -> None:
    """Want these models, and return while the last of them is waiting."""
    used[-1].gate.clear()
    service.models.want(Embedder(used))
    await until(used[-1].waiting.is_set)


async def finished(service: ToolRetrievalService) -> None:
    await until(lambda: service.models.change is None)


# ---------------------------------------------------------------------------------------------------- while it runs
async def test_the_old_vectors_serve_until_all_new_ones_are_there(models: Models) -> None:
    async with models.open(models.one) as service:
        await service.index_skills(LIBRARY)
        before = vectors(service)
        await begin_waiting(service, models.two)
        answer = await service.search("merge pdf files")
        assert answer.degraded is None
        assert answer.results[0].name == "pdf-merge"
        assert answer.results[0].why.vector_rank == 1
        assert answer.warnings == ["0 of 3 skills are embedded for the new models."]
        assert (await service.search("merge pdf", mode="vector")).results[0].name == "pdf-merge"
        assert (service.embedder, service.model_state) == ("model-1", ("ready", None))
        assert vectors(service) == before
        models.two.gate.set()
        await finished(service)
        assert (service.embedder, service.dimensions) == ("model-2", DIMENSIONS)
        assert vectors(service) == expected(models.two)
        answer = await service.search("merge pdf files")
        assert (answer.degraded, answer.warnings, answer.results[0].name) == (None, [], "pdf-merge")
        await until(lambda: models.switches == 1)
    models.two.texts.clear()
    async with models.open(models.two) as again:
        await again.wake()
        assert await again.missing(NAMES) == []
        assert again.models.change is None
        assert models.two.texts == []


async def test_changes_during_the_embedding_are_right_afterwards(models: Models) -> None:
    edited = Document(name="weather", description="weather files", version="2")
    new = Document(name="new", description="pdf", version="1")
    async with models.open(models.one) as service:
        await service.index_skills(LIBRARY)
        await begin_waiting(service, models.one, models.two)
        await service.index_skills([edited, new])
        assert await service.remove_skill("pdf-merge")
        assert set(vectors(service)) == {"weather", "new", LIBRARY[2].name}, "found by meaning at once"
        models.two.gate.set()
        await finished(service)
        final = [edited, new, LIBRARY[2]]
        assert vectors(service) == expected(models.one, models.two, documents=final)
    async with models.open(models.one, models.two) as again:
        await again.wake()
        assert vectors(again) == expected(models.one, models.two, documents=final)


async def test_a_vector_of_the_old_models_that_arrives_after_the_switch_is_made_again(models: Models) -> None:
    new = Document(name="new", description="pdf", version="1")
    async with models.open(models.one) as service:
        await service.index_skills(LIBRARY)
        late = await service.embed([new])
        service.models.want(Embedder([models.two]))
        await finished(service)
        await service.upsert([new], late)
        assert vectors(service)["new"] == expected(models.two, documents=[new])["new"]
        assert await service.missing({"new": "1"}) == []


async def test_a_known_vector_is_not_computed_again(models: Models) -> None:
    async with models.open(models.one) as service:
        await service.index_skills(LIBRARY)
        models.one.texts.clear()
        version = service._index.version
        assert await service.index_skills(LIBRARY) == len(LIBRARY)
        await service.upsert(LIBRARY, [None] * len(LIBRARY))
        assert models.one.texts == []
        assert vectors(service) == expected(models.one)
        assert service._index.version == version


async def test_a_second_change_replaces_the_first(models: Models) -> None:
    async with models.open(models.one) as service:
        await service.index_skills(LIBRARY)
        await begin_waiting(service, models.two)
        service.models.want(Embedder([models.three]))
        assert service.models.change is not None
        assert service.models.change.models == ["model-3"]
        models.two.gate.set()
        await finished(service)
        assert vectors(service) == expected(models.three)
        await begin_waiting(service, models.two)
        service.models.want(service._index.embedder)
        assert service.models.change is None
        models.two.gate.set()
        await until(lambda: not service.models._requested.is_set() and not service.models._lock.locked())
        assert vectors(service) == expected(models.three)


# --------------------------------------------------------------------------------------------------------- failures
async def test_a_model_that_fails_leaves_the_old_vectors_and_is_tried_again(
    models: Models, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("apexbridge.retrieval.model_switch.FIRST_PAUSE_SECONDS", 0.01)
    async with models.open(models.one) as service:
        await service.index_skills(LIBRARY)
        models.two.fails = True
        service.models.want(Embedder([models.one, models.two]))
        await until(lambda: service.models.problem)
        answer = await service.search("merge pdf files")
        assert (answer.degraded, answer.results[0].name) == (None, "pdf-merge")
        assert answer.warnings == [
            "0 of 3 skills are embedded for the new models.",
            "The new models cannot be used yet: The model model-2 failed.",
        ]
        assert service.model_state == ("ready", None)
        models.two.fails = False
        await finished(service)
        assert vectors(service) == expected(models.one, models.two)
        assert service.models.problem is None


async def test_a_full_disk_keeps_the_old_vectors_on_disk(models: Models, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise StoreError("No space left on device")

    async with models.open(models.one) as service:
        await service.index_skills(LIBRARY)
        await service.remember(REQUEST, "pdf-merge", succeeded=True)
        await until(lambda: not service.is_behind)
        with monkeypatch.context() as full:
            full.setattr(LanceStore, "write", refuse)
            service.models.want(Embedder([models.one, models.two]))
            await until(lambda: service.problem is not None)
            answer = await service.search("merge pdf files")
            assert (answer.degraded, service.embedder) == (None, "model-1+model-2")
            stored = LanceStore(models.data_dir / "skills.lance")
            assert stored.model() == ("model-1", DIMENSIONS)
        await until(lambda: service.problem is None and not service.is_behind)
    async with models.open(models.one, models.two) as again:
        await again.wake()
        assert vectors(again) == expected(models.one, models.two)
        assert list(past(again)) == ["pdf-merge"]
    assert not (models.data_dir / "skills.lance.damaged").exists()


# --------------------------------------------------------------------------------------------------------- at a start
async def test_stored_vectors_of_installed_models_serve_after_a_start(models: Models) -> None:
    async with models.open(models.one) as service:
        await service.index_skills(LIBRARY)
    models.two.gate.clear()
    async with models.open(models.two, installed=[models.one]) as service:
        answer = await service.search("merge pdf files")
        assert (answer.degraded, answer.results[0].name, service.embedder) == (None, "pdf-merge", "model-1")
        assert answer.warnings == ["0 of 3 skills are embedded for the new models."]
        service.models.request()
        await until(models.two.waiting.is_set)
        models.two.gate.set()
        await finished(service)
        assert vectors(service) == expected(models.two)


async def test_columns_of_a_model_that_is_left_serve_without_those_of_a_removed_one(models: Models) -> None:
    async with models.open(models.one, models.two, models.three) as service:
        await service.index_skills(LIBRARY)
        await service.remember(REQUEST, "pdf-merge", succeeded=True)
    models.one.texts.clear()
    async with models.open(models.three, models.one) as service:
        await service.wake()
        assert (service.embedder, service.models.change is None) == ("model-1+model-3", False)
        assert vectors(service) == expected(models.one, models.three)
        await service.models.run_once()
        assert vectors(service) == expected(models.three, models.one)
        assert past(service)["pdf-merge"][1].any()
    async with models.open(models.three) as service:
        await service.wake()
        assert service.models.change is None
        assert vectors(service) == expected(models.three)
        await until(lambda: not service.is_behind)
        assert LanceStore(models.data_dir / "skills.lance").model() == ("model-3", DIMENSIONS)


async def test_without_any_of_the_old_models_search_compares_words_until_skills_are_embedded(models: Models) -> None:
    async with models.open(models.one) as service:
        await service.index_skills(LIBRARY)
    async with models.open(models.two) as service:
        await service.upsert(LIBRARY, [None] * len(LIBRARY))
        assert (await service.search("merge pdf files")).degraded == "keyword"
        await service.index_skills(LIBRARY)
        assert (await service.search("merge pdf files")).degraded is None


@pytest.mark.parametrize(
    ("known", "columns"),
    [
        ({"a": 2, "b": 3, "c": 4}, {"a": slice(0, 2), "b": slice(2, 5), "c": slice(5, 9)}),
        ({"a": 2, "b": 3}, {"a": slice(0, 2), "b": slice(2, 5)}),
        ({"b": 3, "c": 4}, {"b": slice(2, 5), "c": slice(5, 9)}),
        ({"a": 2, "c": 4}, {"a": slice(0, 2), "c": slice(5, 9)}),
        ({"b": 3}, {}),
        ({}, {}),
        ({"a": 2, "b": 3, "c": 5}, {}),
        ({"a": 6, "c": 4}, {}),
    ],
)
def test_the_columns_of_models_are_found_in_a_stored_row(known: dict[str, int], columns: dict[str, slice]) -> None:
    assert columns_of("a+b+c", 9, known) == columns


def test_the_name_of_an_endpoint_model_may_have_a_plus() -> None:
    assert columns_of("openai:a+b", 4, {"openai:a+b": 4}) == {"openai:a+b": slice(0, 4)}


# ----------------------------------------------------------------------------------------------------------- past use
async def test_past_use_keeps_the_columns_of_models_that_stay(models: Models) -> None:
    async with models.open(models.one, models.two) as service:
        await service.index_skills(LIBRARY)
        await service.remember(REQUEST, "pdf-merge", succeeded=True)
        service.models.want(Embedder([models.three, models.two]))
        await finished(service)
        (_, vector) = past(service)["pdf-merge"]
        assert not vector[:DIMENSIONS].any()
        assert np.allclose(vector[DIMENSIONS:], models.two.embed([REQUEST])[0], atol=1e-5)
        assert service.models.dropped == 0
        (match, *_) = (await service.search(REQUEST)).results
        assert (match.name, match.why.past_use) == ("pdf-merge", 1.0)
        key = past(service)["pdf-merge"][0].key
        await service.remember(REQUEST, "pdf-merge", succeeded=True)
        assert past(service)["pdf-merge"][0].key == key, "the same request, although a model had not read it"
        assert past(service)["pdf-merge"][1][:DIMENSIONS].any()


async def test_past_use_of_a_recorded_chat_is_embedded_again_from_its_text(models: Models) -> None:
    models.texts = {"chat-1": f"  {REQUEST}", "chat-2": "another text of the same chat"}
    async with models.open(models.one) as service:
        await service.index_skills(LIBRARY)
        await service.remember(REQUEST, "pdf-merge", succeeded=True, chat="chat-1")
        await service.remember("weather", "weather", succeeded=True, chat="chat-2")
        service.models.want(Embedder([models.one, models.two]))
        await finished(service)
        both = np.concatenate([model.embed([REQUEST])[0] for model in (models.one, models.two)])
        assert np.allclose(past(service)["pdf-merge"][1], both, atol=1e-5)
        other = past(service)["weather"][1]
        assert other[:DIMENSIONS].any()
        assert not other[DIMENSIONS:].any(), "the pair is from a search in the chat, not from its question"
        service.models.want(Embedder([models.three]))
        await finished(service)
        assert np.allclose(past(service)["pdf-merge"][1], models.three.embed([REQUEST])[0], atol=1e-5)
        assert set(past(service)) == {"pdf-merge", "weather"}
        assert past(service)["pdf-merge"][0].chat == "chat-1"


async def test_past_use_without_text_or_model_is_dropped_when_the_switch_is_done(
    models: Models, data_dir: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with models.open(models.one) as service:
        await service.index_skills(LIBRARY)
        await service.remember(REQUEST, "pdf-merge", succeeded=True)
        key = past(service)["pdf-merge"][0].key.encode()
        await begin_waiting(service, models.two)
        await service.remember("weather", "weather", succeeded=True)
        assert set(past(service)) == {"pdf-merge", "weather"}
        assert (await service.search(REQUEST)).results[0].why.past_use == 1.0
        models.two.gate.set()
        await finished(service)
        assert set(past(service)) == {"weather"}, "what is learnt meanwhile is embedded by both"
        assert np.allclose(past(service)["weather"][1], models.two.embed(["weather"])[0], atol=1e-5)
        assert service.models.dropped == 1
        assert "1 past requests were dropped" in caplog.text
        await until(lambda: not service.is_behind)
        assert [path for path in data_dir.rglob("*") if path.is_file() and key in path.read_bytes()] == []


@pytest.mark.parametrize("restarts", [False, True])
async def test_past_use_of_models_that_are_gone_comes_back_from_recorded_chats(models: Models, restarts: bool) -> None:
    models.texts = {"chat-1": REQUEST}
    async with models.open(models.one) as service:
        await service.index_skills(LIBRARY)
        await service.remember(REQUEST, "pdf-merge", succeeded=True, chat="chat-1")
        await service.remember("weather", "weather", succeeded=True)
    if restarts:
        async with models.open(models.two) as service:
            await service.index_skills(LIBRARY)
            assert len(past(service)) == 2
            assert (await service.search(REQUEST)).degraded is None
    async with models.open(models.two) as service:
        await service.index_skills(LIBRARY)
        assert not await service.models.run_once()
        assert list(past(service)) == ["pdf-merge"]
        assert np.allclose(past(service)["pdf-merge"][1], models.two.embed([REQUEST])[0], atol=1e-5)
        assert service.models.dropped == 1


async def test_forgotten_past_use_does_not_come_back_with_the_new_models(models: Models) -> None:
    models.texts = {"chat-1": REQUEST}
    async with models.open(models.one) as service:
        await service.index_skills(LIBRARY)
        await service.remember(REQUEST, "pdf-merge", succeeded=True, chat="chat-1")
        await begin_waiting(service, models.two)
        assert await service.forget_chat("chat-1") == 1
        models.two.gate.set()
        await finished(service)
        assert past(service) == {}
        assert service.models.dropped == 0


def test_only_models_that_read_both_texts_say_whether_they_are_the_same() -> None:
    known = np.array([[1, 0, 0, 0], [0, 0, 1, 0], [1, 0, 0, 1], [0, 0, 0, 0]], np.float32)
    cosines = same_text_cosines(known, np.array([1, 0, 0, 1], np.float32), (2, 2))
    assert cosines.tolist() == [1.0, 0.0, 1.0, 0.0]


async def test_a_request_that_no_model_can_read_is_searched_by_words(models: Models) -> None:
    models.one.english_only = True
    async with models.open(models.one) as service:
        await service.index_skills([*LIBRARY, Document(name="tianqi", description="天气预报")])
        await service.remember(REQUEST, "pdf-merge", succeeded=True)
        answer = await service.search("天气预报")
        assert answer.results[0].name == "tianqi"


# ---------------------------------------------------------------------------------------------------------- the choice
@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"models": "x"}', b'{"models": [1]}', b"\xff", b'{"x": 1}'])
def test_a_choice_that_cannot_be_read_is_an_error_that_names_the_file(data_dir: Path, content: bytes) -> None:
    data_dir.mkdir()
    (data_dir / CHOICE_FILE).write_bytes(content)
    with pytest.raises(Exception, match=CHOICE_FILE) as refused:
        choose_embedder(RetrievalSettings(), data_dir)
    assert getattr(refused.value, "code", None) == "INVALID_SETTING"


def test_a_chosen_model_that_is_gone_is_left_out_and_said(data_dir: Path, tmp_path: Path) -> None:
    store = ModelStore(data_dir)
    store.add(str(write_model(tmp_path / "tiny")), say=lambda text: None)
    write_choice(data_dir, ("use-multilingual-v3", "tiny"))
    assert read_choice(data_dir) == ("use-multilingual-v3", "tiny")
    assert choose_embedder(RetrievalSettings(), data_dir).names == ["use-multilingual-v3", "tiny"]
    store.remove("tiny")
    embedder = choose_embedder(RetrievalSettings(), data_dir)
    assert embedder.names == ["use-multilingual-v3"]
    assert embedder.problem is not None
    assert "tiny" in embedder.problem
    write_choice(data_dir, ("tiny",))
    assert choose_embedder(RetrievalSettings(), data_dir).names[0] == "use-multilingual-v3", "the default ones"
    assert choose_embedder(RetrievalSettings(models=("use-multilingual-v3",)), data_dir).problem is None


# ----------------------------------------------------------------------------------------------------------- a crash
class KilledError(BaseException):
    """Stands for the end of the process."""


@pytest.mark.parametrize("is_exchanged", [False, True])
async def test_a_crash_during_the_switch_leaves_the_old_or_the_new_index(
    models: Models, monkeypatch: pytest.MonkeyPatch, is_exchanged: bool
) -> None:
    async with models.open(models.one) as service:
        await service.index_skills(LIBRARY)
        await service.remember(REQUEST, "pdf-merge", succeeded=True)

    def exchange_and_die(one: Path, other: Path) -> None:
        if is_exchanged:
            exchange(one, other)
        raise KilledError

    store = LanceStore(models.data_dir / "skills.lance")
    index = VectorIndex(Embedder([models.two]).dimensions_by_model)
    for document, vector in zip(LIBRARY, Embedder([models.two]).embed_documents(LIBRARY), strict=True):
        index.put(document, vector)
    contents = Contents(indexes={"skill": index}, pairs=[])
    with monkeypatch.context() as crash:
        crash.setattr("apexbridge.retrieval.index.lance_store.exchange", exchange_and_die)
        with pytest.raises(KilledError):
            store.replace("model-2", contents)
    async with models.open(models.two, installed=[models.one]) as service:
        await service.wake()
        assert vectors(service) == expected(models.two if is_exchanged else models.one)
        assert len(past(service)) == (0 if is_exchanged else 1)
        assert (await service.search("merge pdf files")).degraded is None
        await service.models.run_once()
        assert vectors(service) == expected(models.two)
