"""Rerankers: models that read a request and a skill together."""

import asyncio
import dataclasses
import json
import threading
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from apexbridge.errors import InvalidInputError, ServerError
from apexbridge.retrieval.config import RetrievalSettings
from apexbridge.retrieval.documents import Document, tool_key
from apexbridge.retrieval.embedders.embedder import Embedder, installed_models
from apexbridge.retrieval.embedders.model import EmbeddingError, Floats
from apexbridge.retrieval.embedders.model_card import ModelCard
from apexbridge.retrieval.embedders.model_store import ModelStore
from apexbridge.retrieval.embedders.onnx_model import LoadedModel, load_onnx
from apexbridge.retrieval.embedders.onnx_reranker import BATCH, OnnxReranker
from apexbridge.retrieval.reranking import choose_reranker
from apexbridge.retrieval.service import ToolRetrievalService
from tests.retrieval.tiny_model import WORDS, card_of, table, write_graph, write_model
from tests.waiting import PATIENCE_SECONDS

LIBRARY = [
    Document(name="first", description="merge files"),
    Document(name="second", description="merge pdf files pdf pdf pdf"),
    Document(name="third", description="weather"),
]


def write_reranker(folder: Path, *, labels: int = 1) -> Path:
    """A model whose score is the number of times that "pdf" occurs in request and text."""
    write_model(folder, architectures=["BertForSequenceClassification"])
    scores = np.zeros((len(WORDS), labels), np.float32)
    scores[WORDS.index("pdf"), -1] = 1
    inputs = [helper.make_tensor_value_info("input_ids", TensorProto.INT64, ["n", "t"])]
    output = helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["n", labels])
    nodes = [
        helper.make_node("Gather", ["table", "input_ids"], ["each"]),
        helper.make_node("ReduceSum", ["each", "axes"], ["logits"], keepdims=0),
    ]
    constants = [numpy_helper.from_array(scores, "table"), numpy_helper.from_array(np.array([1]), "axes")]
    model = helper.make_model(
        helper.make_graph(nodes, "tiny", inputs, [output], constants), opset_imports=[helper.make_opsetid("", 17)]
    )
    model.ir_version = 9
    onnx.save(model, folder / "model.onnx")
    return folder


@pytest.fixture
def shared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("apexbridge.retrieval.embedders.model_store.SHARED_FOLDER", tmp_path / "shared")


@pytest.fixture
def added(tmp_path: Path, shared: None) -> Path:
    """A data directory with a reranker."""
    ModelStore(tmp_path / "data").add(str(write_reranker(tmp_path / "tiny-reranker")), say=lambda text: None)
    return tmp_path / "data"


@pytest.mark.parametrize("labels", [1, 2])
def test_a_reranker_reads_request_and_text_together(tmp_path: Path, labels: int) -> None:
    folder = write_reranker(tmp_path / "tiny", labels=labels)
    card = card_of(folder)
    assert card.kind == "reranker"
    texts = ["merge", "pdf pdf", "weather", "pdf", "pdf pdf pdf"]
    scores = OnnxReranker(folder, card).score("pdf files", texts, budget_seconds=60)
    assert scores.tolist() == [1, 3, 1, 2, 4]


def test_a_budget_that_is_used_up_leaves_the_rest_unscored(tmp_path: Path) -> None:
    reranker = OnnxReranker(write_reranker(tmp_path / "tiny"), card_of(tmp_path / "tiny"))
    texts = ["pdf"] * (BATCH + 1)
    assert len(reranker.score("pdf", texts, budget_seconds=60)) == BATCH + 1
    assert len(reranker.score("pdf", texts, budget_seconds=0)) == 0


def test_a_model_with_three_labels_is_not_a_reranker(tmp_path: Path) -> None:
    reranker = OnnxReranker(write_reranker(tmp_path / "tiny", labels=3), card_of(tmp_path / "tiny"))
    with pytest.raises(EmbeddingError, match="not a reranker"):
        reranker.score("pdf", ["pdf"], budget_seconds=60)


def test_the_setting_names_an_installed_reranker(added: Path) -> None:
    assert choose_reranker(RetrievalSettings(), added) is None
    assert choose_reranker(RetrievalSettings(reranker="tiny-reranker"), added) is not None
    assert "tiny-reranker" not in installed_models(added), "it has no vectors"
    with pytest.raises(ServerError) as caught:
        choose_reranker(RetrievalSettings(reranker="gone"), added)
    assert caught.value.code == "INVALID_SETTING"
    assert "tiny-reranker" in str(caught.value)


@pytest.mark.anyio
@pytest.mark.computes_in_loop
@pytest.mark.parametrize("seconds", [60, 1e-9])
async def test_results_are_ordered_again_within_the_budget(added: Path, embedder: Embedder, seconds: float) -> None:
    settings = RetrievalSettings(reranker="tiny-reranker", reranker_seconds=seconds, threshold=0)
    reranker = choose_reranker(settings, added)
    service = ToolRetrievalService(added, embedder, settings, reranker=reranker)
    async with service.running():
        await service.index_skills(LIBRARY)
        found = [match.name for match in (await service.search("merge files", limit=2)).results]
        assert found == (["second", "first"] if seconds == 60 else ["first", "second"])
        chinese = await service.search("合并文件")
        assert chinese.results, "a reranker that reads English only leaves other requests as they are"


@pytest.mark.anyio
@pytest.mark.computes_in_loop
async def test_a_reranker_that_fails_leaves_the_ranking_with_a_warning(added: Path, embedder: Embedder) -> None:
    settings = RetrievalSettings(reranker="tiny-reranker", threshold=0)
    reranker = choose_reranker(settings, added)
    (added / "models/tiny-reranker/model.onnx").write_bytes(b"damaged")
    service = ToolRetrievalService(added, embedder, settings, reranker=reranker)
    async with service.running():
        await service.index_skills(LIBRARY)
        answer = await service.search("merge files")
        assert answer.results[0].name == "first"
        assert any("not reranked" in warning for warning in answer.warnings)
        assert answer.degraded is None


def test_the_card_of_a_reranker_is_stored(added: Path) -> None:
    card = json.loads((added / "models/tiny-reranker/apex-model.json").read_text())
    assert card["kind"] == "reranker"


@pytest.mark.anyio
@pytest.mark.computes_in_loop
async def test_a_ranking_that_the_budget_cut_off_is_not_kept(added: Path, embedder: Embedder) -> None:
    settings = RetrievalSettings(reranker="tiny-reranker", reranker_seconds=1e-9, threshold=0)
    service = ToolRetrievalService(added, embedder, settings, reranker=choose_reranker(settings, added))
    async with service.running():
        await service.index_skills(LIBRARY)
        assert (await service.search("merge files")).results[0].name == "first"
        service.settings = dataclasses.replace(settings, reranker_seconds=60)
        assert (await service.search("merge files")).results[0].name == "second"


@pytest.mark.anyio
@pytest.mark.computes_in_loop
async def test_searches_go_on_while_the_reranker_is_loaded(
    added: Path, embedder: Embedder, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, released = threading.Event(), threading.Event()

    def load(folder: Path, card: ModelCard) -> LoadedModel:
        begun.set()
        released.wait(PATIENCE_SECONDS)
        return load_onnx(folder, card)

    monkeypatch.setattr("apexbridge.retrieval.embedders.onnx_reranker.load_onnx", load)
    settings = RetrievalSettings(reranker="tiny-reranker", reranker_seconds=60, threshold=0)
    service = ToolRetrievalService(added, embedder, settings, reranker=choose_reranker(settings, added))
    async with service.running():
        await service.index_skills(LIBRARY)
        loading = asyncio.create_task(service.load_reranker())
        await asyncio.to_thread(begun.wait, PATIENCE_SECONDS)
        answer = await service.search("merge files")
        assert (answer.results[0].name, answer.warnings) == (
            "first",
            ["The reranker is being loaded. The results are not reranked."],
        )
        released.set()
        await loading
        answer = await service.search("merge files")
        assert (answer.results[0].name, answer.warnings) == ("second", [])


@pytest.mark.anyio
@pytest.mark.computes_in_loop
async def test_skills_and_tools_share_the_budget(added: Path, embedder: Embedder) -> None:
    budgets: list[float] = []

    class Recorded(OnnxReranker):
        def score(self, request: str, texts: Sequence[str], *, budget_seconds: float) -> Floats:
            budgets.append(budget_seconds)
            return super().score(request, texts, budget_seconds=budget_seconds)

    folder = added / "models/tiny-reranker"
    settings = RetrievalSettings(reranker="tiny-reranker", reranker_seconds=60, threshold=0)
    service = ToolRetrievalService(added, embedder, settings, reranker=Recorded(folder, card_of(folder)))
    async with service.running():
        await service.index_skills([*LIBRARY, Document(name=tool_key("x__merge"), description="merge pdf")])
        await service.search("merge files")
    assert budgets[0] == 30
    assert 0 < budgets[1] < 60


def test_a_decoder_is_not_a_reranker(tmp_path: Path, shared: None) -> None:
    folder = write_model(tmp_path / "tiny", architectures=["Qwen3ForSequenceClassification"])
    write_graph(folder / "model.onnx", weights=table(), layout="decoder")
    with pytest.raises(InvalidInputError, match="is a decoder"):
        ModelStore(tmp_path / "data").add(str(folder), say=lambda text: None)
