"""`apex models`: the choice of embedding models, on a stopped data directory, with a running server and over HTTP."""

import errno
import json
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from apexbridge._time import now_ms
from apexbridge.bridge import Bridge
from apexbridge.retrieval.embedders.model_card import CARD_FILE
from apexbridge.retrieval.embedders.model_store import ModelStore
from apexbridge.settings import Settings
from apexbridge.storage.chat_store import ChatRow
from tests.conftest import client_of
from tests.making import write_skill
from tests.retrieval.conftest import endpoint as endpoint
from tests.retrieval.endpoint import Endpoint
from tests.retrieval.tiny_model import DIMENSIONS, write_model
from tests.surfaces.conftest import Apex, Server, StartServer
from tests.waiting import PATIENCE_SECONDS, until, wait_until

CHAT: dict[str, Any] = {
    "caller": "",
    "model": "m",
    "upstream": "u",
    "duration_ms": 1,
    "is_stream": False,
    "turns": 1,
    "calls": 1,
    "stop_cause": "answered",
    "outcome": "answered",
}
TINY = {"APEX_EMBEDDING_MODELS": "one"}


@pytest.fixture
def shared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("apexbridge.retrieval.embedders.model_store.SHARED_FOLDER", tmp_path / "shared")


@pytest.fixture
def models(data_dir: Path, tmp_path: Path, shared: None) -> Path:
    """The data directory has two small models and two skills."""
    for seed, name in ((1, "one"), (2, "two")):
        ModelStore(data_dir).add(str(write_model(tmp_path / name, seed=seed)), say=lambda text: None)
    for name, description in (("pdf-merge", "merge pdf files"), ("weather", "weather")):
        write_skill(data_dir / "skills", name, description=description)
    return data_dir / "models"


def search(server: Server, query: str) -> dict[str, Any]:
    response = httpx.post(
        f"{server.url}/api/skills/search", json={"query": query, "threshold": 0}, timeout=PATIENCE_SECONDS
    )
    assert response.status_code == 200, response.text
    answer: dict[str, Any] = response.json()
    return answer


def state(server: Server) -> dict[str, Any]:
    answer: dict[str, Any] = httpx.get(f"{server.url}/api/embedding-models", timeout=PATIENCE_SECONDS).json()
    return answer


def wait_until_ready(server: Server) -> None:
    wait_until(lambda: httpx.get(f"{server.url}/readyz", timeout=PATIENCE_SECONDS).status_code == 200)


# -------------------------------------------------------------------------------------------------- on the command line
def test_models_are_chosen_on_a_stopped_data_directory(apex: Apex, models: Path, data_dir: Path) -> None:
    assert apex("models", "use", "one", "two", "one").code == 0
    chosen = apex("models", "list", "--json").json
    assert (chosen["chosen"], chosen["inUse"], chosen["change"]) == (["one", "two"], ["one", "two"], None)
    assert {model["name"] for model in chosen["models"] if model["inUse"]} == {"one", "two"}
    found = apex("skills", "search", "merge pdf files", "--json").json
    assert (found["results"][0]["name"], found.get("degraded"), found["warnings"]) == ("pdf-merge", None, [])
    used = apex("models", "use", "two", "--json").json
    assert (used["inUse"], used["change"], used["droppedRequests"]) == (["two"], None, 0)
    marker = json.loads((data_dir / "skills/pdf-merge/.vectorized").read_text())
    assert (marker["embedder"].partition("@")[0], marker["dimensions"]) == ("two", DIMENSIONS)
    assert (data_dir / "models.json").stat().st_mode & 0o777 == 0o600
    listed = apex("models", "list").out.splitlines()
    assert [line.split("\t")[4] for line in listed if line.split("\t")[0] in ("one", "two")] == ["no", "yes"]
    default = apex("models", "use", "--default", "--json").json
    assert (default["chosen"], default["inUse"][0]) == (None, "use-multilingual-v3")


def test_a_running_server_is_asked_and_says_what_was_dropped(
    apex: Apex, models: Path, start_server: StartServer
) -> None:
    assert apex("models", "use", "one").code == 0
    server = start_server()
    wait_until_ready(server)
    assert state(server)["inUse"] == ["one"]
    remembered = httpx.post(
        f"{server.url}/api/skills/remember", json={"request": "merge these", "name": "weather"}, timeout=60
    )
    assert remembered.json() == {"remembered": True}
    used = apex("models", "use", "two")
    assert (used.code, used.err.splitlines()[-1]) == (
        0,
        "Search uses two. 1 past request had to be dropped: no text of them is recorded",
    )
    status = httpx.get(f"{server.url}/api/status", timeout=60).json()
    assert status["embedder"]["name"].startswith("two@")
    assert (status["embedder"]["state"], status["embedder"]["change"]) == ("ready", None)
    assert search(server, "merge pdf files")["results"][0]["name"] == "pdf-merge"
    server.stop()
    assert apex("models", "list", "--json").json["inUse"] == ["two"]


def test_a_choice_that_cannot_be_used_is_refused_and_changes_nothing(
    apex: Apex, models: Path, data_dir: Path, tmp_path: Path
) -> None:
    assert apex("models", "use", "one").code == 0
    broken: dict[str, Callable[[Path], object]] = {
        "lost": lambda folder: (folder / "tokenizer.json").unlink(),
        "corrupt": lambda folder: (folder / "model.onnx").write_bytes(b"\x00" * 100),
        "other": lambda folder: (folder / CARD_FILE).write_text(
            json.dumps({"name": "other", "file": "model.onnx", "dimensions": 9})
        ),
    }
    for seed, (name, damage) in enumerate(broken.items()):
        ModelStore(data_dir).add(str(write_model(tmp_path / name, seed=seed + 10)), say=lambda text: None)
        damage(models / name)
    for names, reason in (
        (["nonsense"], "No embedding model named nonsense is installed"),
        (["one", "../one"], "No embedding model named ../one is installed"),
        (["lost"], "tokenizer.json"),
        (["corrupt"], "corrupt cannot be loaded: its file has changed"),
        (["other"], "8 dimensions instead of 9"),
        ([], "apex models use --default"),
        (["one", "--default"], "apex models use --default"),
        ([""], "No embedding model named"),
    ):
        refused = apex("models", "use", *names)
        assert refused.code != 0, names
        assert reason in refused.err
    listed = apex("models", "list", "--json").json
    assert (listed["chosen"], listed["inUse"], listed["change"]) == (["one"], ["one"], None)
    assert any("tokenizer.json" in problem for problem in listed["problems"])
    removed = apex("models", "remove", "one")
    assert removed.code != 0
    assert "apex models use --default" in removed.err
    assert apex("models", "remove", "corrupt").code == 0


def test_a_setting_comes_before_the_choice(apex: Apex, models: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert apex("models", "use", "one").code == 0
    with monkeypatch.context() as setting:
        setting.setenv("APEX_EMBEDDING_MODELS", "two")
        refused = apex("models", "use", "one")
        assert refused.code != 0
        assert "APEX_EMBEDDING_MODELS=two" in refused.err
        assert apex("skills", "search", "merge", "--json").json["warnings"] == []
        assert apex("models", "list", "--json").json["inUse"] == ["two"]
    with monkeypatch.context() as setting:
        setting.setenv("APEX_EMBEDDING", "openai")
        setting.setenv("APEX_EMBEDDING_BASE_URL", "http://127.0.0.1:9/v1")
        setting.setenv("APEX_EMBEDDING_MODEL", "m")
        assert "APEX_EMBEDDING=openai" in apex("models", "use", "one").err
    assert apex("models", "list", "--json").json["chosen"] == ["one"]


def test_a_chosen_model_that_is_gone_is_reported_and_the_others_serve(apex: Apex, models: Path, data_dir: Path) -> None:
    assert apex("models", "use", "one", "two").code == 0
    (models / "two" / CARD_FILE).unlink()
    found = apex("skills", "search", "merge pdf files", "--json").json
    assert (found["results"][0]["name"], found.get("degraded")) == ("pdf-merge", None)
    assert "The model two was chosen and is not installed any more" in found["warnings"][0]
    listed = apex("models", "list", "--json").json
    assert (listed["chosen"], listed["inUse"], listed["change"]) == (["one", "two"], ["one"], None)


def test_a_model_in_use_is_not_removed(
    apex: Apex, models: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    ModelStore().add(str(write_model(tmp_path / "gte-small")), shared=True, say=lambda text: None)
    refused = apex("models", "remove", "gte-small", "--shared")
    assert refused.code != 0
    assert "one of the default models" in refused.err
    with monkeypatch.context() as setting:
        setting.setenv("APEX_EMBEDDING_MODELS", "one,two")
        refused = apex("models", "remove", "one")
        assert refused.code != 0
        assert "APEX_EMBEDDING_MODELS names one" in refused.err
    assert apex("models", "use", "one").code == 0
    assert "--shared" in apex("models", "remove", "gte-small").err
    assert apex("models", "remove", "gte-small", "--shared").code == 0
    assert apex("models", "remove", "one").code != 0
    assert apex("models", "remove", "two").code == 0


def test_what_is_assumed_of_a_model_is_shown(apex: Apex, models: Path, tmp_path: Path) -> None:
    added = apex("models", "add", str(write_model(tmp_path / "my-e5", pooling=None)))
    assert added.code == 0
    assert [line.partition(":")[0] for line in added.err.splitlines()][:2] == ["warning", "warning"]
    assert "mean pooling, 'query: ' before requests, 'passage: ' before skills, all languages" in added.err
    assert "apex models use use-multilingual-v3 minilm-l6-v2 my-e5" in added.err, "the default ones stay"
    options = ["--pooling", "cls", "--request-prefix", "", "--document-prefix", "", "--english-only", "--replace"]
    changed = apex("models", "add", str(tmp_path / "my-e5"), *options, "--json").json
    assert (changed["pooling"], changed["request_prefix"], changed["english_only"]) == ("cls", "", True)
    assert changed["guesses"] == []
    (listed,) = [model for model in apex("models", "list", "--json").json["models"] if model["name"] == "my-e5"]
    assert (listed["pooling"], listed["requestPrefix"], listed["documentPrefix"]) == ("cls", "", "")


def test_a_reranker_or_a_mistyped_name_is_explained(
    apex: Apex, models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_model(tmp_path / "rr", architectures=["BertForSequenceClassification"])
    card = {"name": "rr", "kind": "reranker", "file": "model.onnx", "dimensions": 1}
    (models / "rr").mkdir()
    for path in (folder / "model.onnx", folder / "tokenizer.json"):
        path.rename(models / "rr" / path.name)
    (models / "rr" / CARD_FILE).write_text(json.dumps(card))
    assert "rr is a reranker: to use it, set APEX_RERANKER=rr" in apex("models", "use", "rr").err
    assert 'Did you mean "gte-small"?' in apex("models", "use", "gte-smal").err
    for names, reason in (("rr", "which is a reranker"), ("tw", 'Did you mean "two"?'), ("xyz", "apex models add xyz")):
        monkeypatch.setenv("APEX_EMBEDDING_MODELS", names)
        refused = apex("models", "list")
        assert refused.code != 0
        assert reason in refused.err


# ----------------------------------------------------------------------------------------- with a server that is killed
class Held:
    """An endpoint that holds its answers until it is released."""

    def __init__(self, endpoint: Endpoint) -> None:
        self.released = threading.Event()
        self.asked = threading.Event()

        def answer(texts: list[str]) -> tuple[int, Any]:
            self.asked.set()
            self.released.wait(PATIENCE_SECONDS)
            return endpoint.vectors(texts)

        endpoint.answer = answer


@pytest.fixture
def held(endpoint: Endpoint) -> Iterator[Held]:
    made = Held(endpoint)
    yield made
    made.released.set()


def test_search_goes_on_while_skills_are_embedded_again_and_after_a_kill(
    apex: Apex, models: Path, start_server: StartServer, endpoint: Endpoint, held: Held
) -> None:
    server = start_server(**TINY)
    wait_until_ready(server)
    before = search(server, "merge pdf files")
    assert (before["results"][0]["name"], before.get("degraded"), before["warnings"]) == ("pdf-merge", None, [])
    assert server.stop() == 0
    remote = {"APEX_EMBEDDING": "openai", "APEX_EMBEDDING_BASE_URL": endpoint.url, "APEX_EMBEDDING_MODEL": "bag"}
    for _ in range(2):
        held.asked.clear()
        server = start_server(**remote)
        wait_until_ready(server)
        assert held.asked.wait(PATIENCE_SECONDS)
        during = search(server, "merge pdf files")
        assert (during["results"], during.get("degraded")) == (before["results"], None)
        assert during["warnings"] == ["0 of 2 skills are embedded for the new models."]
        status = httpx.get(f"{server.url}/api/status", timeout=60).json()["embedder"]
        assert status["state"] == "ready"
        assert status["change"] == {"models": ["openai:bag"], "done": 0, "total": 2, "problem": None}
        server.stop(signal.SIGKILL)
    held.released.set()
    server = start_server(**remote)
    wait_until_ready(server)
    wait_until(lambda: state(server)["inUse"] == ["openai:bag"] and not state(server)["change"])
    after = search(server, "merge pdf files")
    assert (after["results"][0]["name"], after.get("degraded"), after["warnings"]) == ("pdf-merge", None, [])


@pytest.mark.anyio
async def test_models_are_chosen_over_http(models: Path, data_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with Bridge.open(Settings(data_dir=data_dir), watch=False) as bridge, client_of(bridge) as client:
        chosen = await client.put("/api/embedding-models", json={"models": ["one"]})
        assert chosen.status_code == 200, chosen.text

        async def is_used() -> bool:
            found = (await client.get("/api/embedding-models")).json()
            return found["change"] is None and found["inUse"] == ["one"]

        await until(is_used)
        for body, status in (
            ({"models": []}, 422),
            ({"models": ["nonsense"]}, 422),
            ({"models": ["x"] * 21}, 422),
            ({"models": "one"}, 422),
            ({}, 422),
        ):
            refused = await client.put("/api/embedding-models", json=body)
            assert (refused.status_code, refused.json()["code"]) == (status, "INVALID_INPUT"), body
        assert (await client.get("/api/embedding-models")).json()["chosen"] == ["one"]

        def full(*_: object, **__: object) -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

        with monkeypatch.context() as disk:
            disk.setattr("apexbridge.retrieval.embedders.model_choice.replace_file", full)
            refused = await client.put("/api/embedding-models", json={"models": ["two"]})
            assert (refused.status_code, refused.json()["code"]) == (507, "STORAGE_FULL")
        after = (await client.get("/api/embedding-models")).json()
        assert (after["chosen"], after["inUse"], after["change"]) == (["one"], ["one"], None)
        rows = await bridge.skills.store.catalog.embedders()
        assert {row.partition("@")[0] for row in rows} == {"one"}


@pytest.mark.anyio
async def test_past_use_of_a_recorded_chat_survives_a_change_of_all_models(models: Path, data_dir: Path) -> None:
    settings = Settings(data_dir=data_dir, chat_records="full", search_threshold=0)
    async with Bridge.open(settings, watch=False) as bridge:
        await bridge.use_models(["one"])
        await until(lambda: bridge.retrieval.models.change is None)
        messages = [{"role": "user", "content": "do the usual thing"}, {"role": "assistant", "content": "ok"}]
        for link, own in (("recorded", json.dumps(messages)), ("redacted", None)):
            bridge.chats.keep(ChatRow(**CHAT, id=link, link=link, messages=own, started_at=now_ms()))
            request = "do the usual thing" if own else "another thing altogether"
            assert await bridge.retrieval.remember(request, "weather", succeeded=True, chat=link)
        await bridge.use_models(["two"])
        await until(lambda: bridge.retrieval.models.change is None)
        assert bridge.retrieval.models.dropped == 1
        (match, *_) = await bridge.retrieval.find_relevant_skills("do the usual thing")
        assert (match.name, match.why.past_use) == ("weather", 1.0)
        await bridge.chats.delete("recorded")
        (match, *_) = await bridge.retrieval.find_relevant_skills("do the usual thing")
        assert match.why.past_use == 0
