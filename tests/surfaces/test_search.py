"""Search over HTTP, on the command line and after a restart."""

import json
import shutil
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, cast

import anyio
import httpx
import pytest

from apexbridge.bridge import Bridge
from apexbridge.retrieval.embedders.embedder import Embedder
from apexbridge.retrieval.embedders.model import EmbeddingError
from apexbridge.settings import Settings
from tests.conftest import client_of
from tests.making import skill_zip, write_skill
from tests.retrieval.conftest import endpoint as endpoint
from tests.retrieval.endpoint import Endpoint
from tests.surfaces.conftest import Apex, StartServer
from tests.waiting import until, wait_until

SKILLS = {
    "git-commit": "自动生成提交信息",
    "excel-analysis": "Analyze Excel files: statistics, pivots and charts",
    "weather": "Weather forecast for a city",
    "pdf-merge": "Merge PDF files into one",
}


@pytest.fixture
async def filled_bridge(bridge: Bridge) -> Bridge:
    for name, description in SKILLS.items():
        await bridge.skills.install_skill(skill_zip(name, description=description))
    return bridge


@pytest.fixture
async def client(filled_bridge: Bridge) -> AsyncIterator[httpx.AsyncClient]:
    async with client_of(filled_bridge) as client:
        yield client


async def search_names(client: httpx.AsyncClient, query: str, **more: Any) -> list[str]:
    response = await client.post("/api/skills/search", json={"query": query, **more})
    assert response.status_code == 200, response.text
    return [hit["name"] for hit in response.json()["results"]]


async def install(client: httpx.AsyncClient, archive: bytes) -> None:
    response = await client.post("/api/skills", content=archive, headers={"content-type": "application/zip"})
    assert response.status_code == 201, response.text


# ------------------------------------------------------------------------------------------------------------- http
@pytest.mark.requirement("E4", "E7")
@pytest.mark.anyio
async def test_a_search_returns_scores_and_reasons(client: httpx.AsyncClient) -> None:
    response = await client.post("/api/skills/search", json={"query": "帮我提交代码", "limit": 3})
    body = response.json()
    assert set(body) == {"results", "took", "warnings"}
    hit = body["results"][0]
    assert set(hit) == {"kind", "name", "description", "score", "tags", "mode", "why"}
    assert (hit["name"], hit["mode"], hit["tags"]) == ("git-commit", "direct", ["git", "commit"])
    assert 0.6 <= hit["score"] <= 1
    assert hit["why"]["vectorRank"] == 1
    assert "commit" in hit["why"]["matchedWords"]


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        ({}, 422, "INVALID_INPUT"),
        ({"query": ""}, 422, "INVALID_INPUT"),
        ({"query": "x", "limit": 0}, 422, "INVALID_INPUT"),
        ({"query": "x", "limit": 101}, 422, "INVALID_INPUT"),
        ({"query": "x", "threshold": 2}, 422, "INVALID_INPUT"),
        ({"query": "x", "mode": "magic"}, 422, "INVALID_INPUT"),
        ({"query": "x", "colour": "red"}, 422, "INVALID_INPUT"),
        ({"query": ["x"]}, 422, "INVALID_INPUT"),
        ({"query": "x" * 1_000_000}, 422, "INVALID_INPUT"),
    ],
)
@pytest.mark.anyio
async def test_an_invalid_search_is_refused(client: httpx.AsyncClient, body: Any, status: int, code: str) -> None:
    response = await client.post("/api/skills/search", json=body)
    assert (response.status_code, response.json()["code"]) == (status, code)


@pytest.mark.requirement("E2", "E3", "E6")
@pytest.mark.anyio
async def test_install_edit_disable_and_uninstall_affect_the_next_search(
    client: httpx.AsyncClient, data_dir: Path
) -> None:
    assert (await search_names(client, "repair my bicycle")) == []
    await install(client, skill_zip("workshop", description="Repairs bicycles"))
    assert (await search_names(client, "repair my bicycle"))[0] == "workshop"
    marker = json.loads((data_dir / "skills/workshop/.vectorized").read_bytes())
    assert set(marker) == {"indexedAt", "skillSize", "skillHash", "embedder", "dimensions"}
    assert marker["embedder"].startswith("use-multilingual-v3")

    edited = await client.put(
        "/api/skills/workshop/description",
        json={"description": "Bakes sourdough bread"},
        params={"request": ["repair my bicycle", "bake a loaf of bread"]},
    )
    ranks = {change["request"]: (change["before"], change["after"]) for change in edited.json()["ranks"]}
    assert ranks["repair my bicycle"][0] == 1
    assert ranks["bake a loaf of bread"][1] == 1
    assert await search_names(client, "repair my bicycle") == []
    assert (await search_names(client, "bake a loaf of bread"))[0] == "workshop"

    await client.post("/api/skills/workshop/disable")
    assert "workshop" not in await search_names(client, "bake a loaf of bread", threshold=0)
    await client.post("/api/skills/workshop/enable")
    assert (await search_names(client, "bake a loaf of bread"))[0] == "workshop"

    await client.delete("/api/skills/workshop")
    assert "workshop" not in await search_names(client, "bake a loaf of bread", threshold=0)


@pytest.mark.requirement("E10")
@pytest.mark.anyio
async def test_derived_tags_are_marked_filterable_and_counted(client: httpx.AsyncClient) -> None:
    await install(client, skill_zip("declared", tags=["mine"], description="Merge branches"))
    detail = (await client.get("/api/skills/pdf-merge")).json()
    assert (detail["tags"], detail["derivedTags"]) == ([], ["pdf", "merge"])
    declared = (await client.get("/api/skills/declared")).json()
    assert (declared["tags"], declared["derivedTags"]) == (["mine"], [])
    listed = (await client.get("/api/skills", params={"tags": "merge"})).json()["skills"]
    assert [skill["name"] for skill in listed] == ["pdf-merge"]
    assert await search_names(client, "merge", tags=["merge"], threshold=0) == ["pdf-merge"]
    counts = (await client.get("/api/skills/stats")).json()
    assert counts["byTag"] == {"mine": 1}
    assert counts["byDerivedTag"]["merge"] == 1


@pytest.mark.requirement("E11")
@pytest.mark.anyio
async def test_remember_and_forget_change_search_results(client: httpx.AsyncClient) -> None:
    query = "the thing we do on Fridays"
    assert await search_names(client, query) == []
    example = {"request": query, "name": "excel-analysis"}
    assert (await client.post("/api/skills/remember", json=example)).json() == {"remembered": True}
    assert (await search_names(client, query))[0] == "excel-analysis"
    assert (await client.post("/api/skills/forget", json={"name": "excel-analysis"})).json() == {"forgotten": 1}
    assert await search_names(client, query) == []
    for name in ("none", "\ud800", "../x"):
        body = json.dumps({"name": name, "request": "x"})
        headers = {"content-type": "application/json"}
        response = await client.post("/api/skills/remember", content=body, headers=headers)
        assert response.status_code == 404
        response = await client.post("/api/skills/forget", content=json.dumps({"name": name}), headers=headers)
        assert response.status_code == 404
    assert (await client.post("/api/skills/forget")).json() == {"forgotten": 0}


@pytest.mark.requirement("E12")
@pytest.mark.anyio
async def test_a_skill_hidden_from_models_can_be_called_by_name(
    filled_bridge: Bridge, client: httpx.AsyncClient
) -> None:
    hidden_skill = skill_zip(
        "quiet", description="Deletes old backups", **cast("dict[str, Any]", {"disable-model-invocation": True})
    )
    await install(client, hidden_skill)
    response = await filled_bridge.retrieval.search("delete old backups", for_model=True, threshold=0)
    assert "quiet" not in [match.name for match in response.results]
    assert (await client.post("/api/skills/quiet/execute", json={})).status_code == 200


@pytest.mark.requirement("E5")
@pytest.mark.anyio
async def test_a_skill_that_search_does_not_find_can_be_called_by_name(client: httpx.AsyncClient) -> None:
    assert "weather" not in await search_names(client, "merge PDF files", limit=1)
    assert (await client.get("/api/skills/weather")).status_code == 200
    assert (await client.post("/api/skills/weather/execute", json={})).json()["mode"] == "direct"


# ---------------------------------------------------------------------------------------------------------- restart
@pytest.mark.requirement("E2", "E8")
@pytest.mark.parametrize("lost", ["nothing", "skills.lance", "skills.snapshot", "apex.sqlite3", "all"])
@pytest.mark.anyio
async def test_search_results_survive_a_restart_with_missing_files(
    data_dir: Path, embedder: Embedder, lost: str
) -> None:
    settings = Settings(data_dir=data_dir)
    async with Bridge.open(settings, watch=False, embedder=embedder) as bridge:
        for name, description in SKILLS.items():
            await bridge.skills.install_skill(skill_zip(name, description=description))
        before = await bridge.retrieval.find_relevant_skills("will it rain", threshold=0)
    shutil.rmtree(data_dir / "skills/pdf-merge")
    write_skill(data_dir / "skills", "umbrella", description="Says whether it will rain")
    for name in ["skills.lance", "skills.snapshot", "apex.sqlite3"] if lost == "all" else [lost]:
        path = data_dir / name
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
    async with Bridge.open(settings, watch=False, embedder=embedder) as bridge:
        response = await bridge.retrieval.search("will it rain", threshold=0)
        assert (response.degraded, response.warnings) == (None, [])
        names = [match.name for match in response.results]
        assert names[0] == "umbrella"
        assert set(names) == {match.name for match in before} - {"pdf-merge"} | {"umbrella"}
        assert (data_dir / "skills/umbrella/.vectorized").is_file()


CRASH = """
import os, sys
import anyio
from apexbridge import Bridge, Settings
async def main():
    async with Bridge.open(Settings(data_dir=sys.argv[1]), watch=False) as bridge:
        await bridge.skills.update_skill_description("weather", "Bakes sourdough bread")
        os._exit(0)
anyio.run(main)
"""


@pytest.mark.slow
@pytest.mark.anyio
@pytest.mark.requirement("E2")
async def test_a_crash_right_after_an_edit_leaves_no_old_text_in_the_index(data_dir: Path, embedder: Embedder) -> None:
    settings = Settings(data_dir=data_dir)
    async with Bridge.open(settings, watch=False, embedder=embedder) as bridge:
        await bridge.skills.install_skill(skill_zip("weather", description="Weather forecast for a city"))
    await anyio.run_process([sys.executable, "-c", CRASH, str(data_dir)])
    async with Bridge.open(settings, watch=False, embedder=embedder) as bridge:
        (match,) = await bridge.retrieval.find_relevant_skills("bake a loaf of bread")
        assert match.description == "Bakes sourdough bread"


@pytest.mark.anyio
@pytest.mark.requirement("E2", "E9")
async def test_an_endpoint_embeds_each_skill_once(data_dir: Path, endpoint: Endpoint) -> None:
    settings = Settings(data_dir=data_dir, embedding="openai", embedding_base_url=endpoint.url, embedding_model="bag")
    async with Bridge.open(settings, watch=False) as bridge:
        for name, description in SKILLS.items():
            await bridge.skills.install_skill(skill_zip(name, description=description))
    for indexing in ("wait", "on-demand"):
        endpoint.batches.clear()
        async with Bridge.open(settings, watch=False, indexing=cast("Any", indexing)) as bridge:
            await bridge.prepare_search()
            assert (await bridge.retrieval.search("weather forecast")).results[0].name == "weather"
        assert not any("weather: " in text for batch in endpoint.batches for text in batch if "Reports" not in text)


@pytest.mark.anyio
async def test_an_endpoint_that_becomes_available_later_is_used(
    data_dir: Path, endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("apexbridge.skills.store.indexer.FIRST_PAUSE_SECONDS", 0.1)
    monkeypatch.setattr("apexbridge.retrieval.embedders.endpoint.FIRST_PAUSE_SECONDS", 0.01)
    monkeypatch.setattr("apexbridge.retrieval.embedders.endpoint.COOLDOWN_SECONDS", 0.0)
    endpoint.answer = lambda texts: (503, {})
    settings = Settings(data_dir=data_dir, embedding="openai", embedding_base_url=endpoint.url, embedding_model="bag")
    async with Bridge.open(settings, watch=False) as bridge:
        await bridge.skills.install_skill(skill_zip("weather", description="Weather forecast"))
        assert (await bridge.retrieval.search("weather")).degraded == "keyword"
        assert not (data_dir / "skills/weather/.vectorized").exists()
        endpoint.answer = endpoint.vectors
        await until((data_dir / "skills/weather/.vectorized").exists)
        response = await bridge.retrieval.search("weather")
        assert (response.degraded, response.warnings) == (None, [])


@pytest.mark.anyio
async def test_folders_copied_into_the_data_directory_are_found_by_meaning(data_dir: Path, embedder: Embedder) -> None:
    async with Bridge.open(Settings(data_dir=data_dir), embedder=embedder) as bridge:
        write_skill(data_dir / "skills", "umbrella", description="Says whether it will rain")
        await until((data_dir / "skills/umbrella/.vectorized").exists)
        assert (await bridge.retrieval.find_relevant_skills("do I get wet today"))[0].name == "umbrella"


@pytest.mark.slow
def test_a_server_answers_while_it_indexes(start_server: StartServer, data_dir: Path) -> None:
    for number in range(150):
        write_skill(data_dir / "skills", f"skill-{number}", description=f"Handles the topic number {number}")
    write_skill(data_dir / "skills", "umbrella", description="Says whether it will rain")
    server = start_server()
    with httpx.Client(base_url=server.url, timeout=60) as client:
        assert client.get("/api/skills").json()["total"] == 151
        early = client.post("/api/skills/search", json={"query": "umbrella rain"}).json()
        assert early["results"][0]["name"] == "umbrella"

        def is_ready() -> bool:
            assert client.get("/healthz").status_code == 200
            return client.get("/readyz").status_code == 200

        wait_until(is_ready)
        ready = client.post("/api/skills/search", json={"query": "do I get wet today", "threshold": 0}).json()
        assert "degraded" not in ready
        assert ready["warnings"] == []
        assert ready["results"][0]["name"] == "umbrella"


# ------------------------------------------------------------------------------------------------------ command line
@pytest.mark.requirement("E4")
def test_the_command_line_shows_search_results_and_reasons(apex: Apex, data_dir: Path) -> None:
    for name, description in SKILLS.items():
        write_skill(data_dir / "skills", name, description=description)
    completed = apex("skills", "search", "merge two documents")
    assert completed.code == 0
    assert completed.out.startswith("pdf-merge\t")
    assert "meaning #1" in completed.out
    hits = apex("skills", "find", "帮我提交代码", "--limit", "1", "--json").json
    assert [hit["name"] for hit in hits["results"]] == ["git-commit"]
    nothing = apex("skills", "search", "bake a chocolate cake")
    assert (nothing.code, nothing.out) == (0, "")
    assert "Nothing fits" in nothing.err
    assert apex("skills", "search", "").code == 1
    assert apex("skills", "search", "x", "--limit", "0").code == 2
    edited = apex("skills", "set-description", "weather", "Bakes bread", "--request", "bake a loaf")
    before, after, *_ = edited.out.split("\t")
    assert (before.isdigit(), after) == (True, "1")
    assert "past requests deleted: 0" in apex("skills", "forget", "--all").err
    assert apex("skills", "forget").code == 2


def test_retrieval_is_evaluated_on_corpus_and_query_files(apex: Apex, tmp_path: Path) -> None:
    corpus, queries, run = tmp_path / "corpus.jsonl", tmp_path / "queries.jsonl", tmp_path / "run.jsonl"
    rows = [{"id": f"id-{name}", "name": name, "description": text} for name, text in SKILLS.items()]
    rows += [{"name": f"bread-{number}", "description": f"Bakes bread of kind {number}"} for number in range(6)]
    corpus.write_text("\n".join(json.dumps(row) for row in [*rows, {**rows[0], "id": "twin"}]) + "\n\n")
    requests = [
        {"qid": "a", "query": "will it rain", "gold": ["id-weather"]},
        {"qid": "b", "query": "merge two files", "gold": ["id-pdf-merge"]},
        {"qid": "c", "query": "make bread", "gold": ["id-git-commit"]},
        {"query": "rain again?", "gold": ["id-weather"]},
    ]
    queries.write_text("\n".join(map(json.dumps, requests)))
    files = ("--corpus", corpus, "--queries", queries)
    figures = apex("eval", "retrieval", *files, "--run-out", run, "--usage-memory", "--json").json
    assert figures["corpus"] == 11
    assert figures["metrics"]["requests"] == 4
    assert figures["metrics"]["R@5"] == 0.75
    assert 0.75 < figures["metrics"]["MRR"] < 0.8
    assert figures["withUsageMemory"]["requests"] == 4
    assert figures["wordsAlone"]["R@5"] == 0.75
    assert figures["atThreshold"]["threshold"] == 0.15
    assert figures["atThreshold"]["R@5"] <= 0.75
    assert 0 <= figures["atThreshold"]["empty"] < 1
    assert figures["confusions"][0]["missed"] == "id-git-commit"
    lines = [json.loads(line) for line in run.read_text().splitlines()]
    assert [line["qid"] for line in lines] == ["a", "b", "c", "4"]
    assert lines[0]["ranked"][0] == "id-weather"
    assert {"id-git-commit", "twin"} <= set(lines[0]["ranked"]), "two skills with the same name"
    completed = apex("eval", "retrieval", *files)
    assert "all\t4\t0.7500" in completed.out
    assert "at the threshold of 0.15: " in completed.out
    assert "id-git-commit" in completed.out
    assert figures["warnings"] == []


def test_right_answers_that_the_corpus_lacks_count_as_missed(apex: Apex, tmp_path: Path) -> None:
    (tmp_path / "corpus.jsonl").write_text('{"name": "pdf", "description": "Merge PDF files"}')
    queries = ['{"query": "merge PDF files", "gold": ["pdf", "pdf-tools"]}', '{"query": "join", "gold": ["none"]}']
    (tmp_path / "queries.jsonl").write_text("\n".join(queries))
    completed = apex(
        "eval", "retrieval", "--corpus", tmp_path / "corpus.jsonl", "--queries", tmp_path / "queries.jsonl"
    )
    assert completed.code == 0
    assert "all\t2\t0.2500" in completed.out
    expected = (
        'warning: 2 of 3 right answers are not in the corpus and count as missed: "pdf-tools" (queries.jsonl line 1), …'
    )
    assert expected in completed.err


@pytest.mark.parametrize(
    ("corpus", "queries", "expected"),
    [
        ("{", '{"query": "x", "gold": ["a"]}', "corpus.jsonl line 1: Invalid JSON"),
        ("[]", '{"query": "x", "gold": ["a"]}', "should be an object"),
        ('{"name": "a"}', '{"query": "x", "gold": ["a"]}', "description"),
        ('{"name": "a", "description": "b", "tags": 3}', '{"query": "x", "gold": ["a"]}', "tags"),
        (
            '{"name": "a", "description": "b"}',
            '{"query": "x", "gold": []}',
            "queries.jsonl line 1: gold: is empty; name the id of at least one skill",
        ),
        ('{"name": "a", "description": "b"}', '{"query": "x"}', "queries.jsonl line 1"),
        (None, '{"query": "x", "gold": ["a"]}', "corpus.jsonl cannot be read: No such file"),
        ('{"name": "a", "description": "b"}', "\n", "queries.jsonl has no queries"),
        ("\n", '{"query": "x", "gold": ["a"]}', "corpus.jsonl has no skills"),
        ('{"name": "a", "description": "b"}', '{"query": "\\n ", "gold": ["a"]}', "line 1: query: is empty"),
        (
            '{"name": "a", "description": "b"}',
            '\n{"query": "x", "gold": ["b"]}\n{"query": "x", "gold": ["c"]}',
            'None of the right answers is in the corpus; the first one is "b" (queries.jsonl line 2)',
        ),
        (
            '{"name": "a", "description": "b"}\n{"id": "a", "name": "c", "description": "d"}',
            '{"query": "x", "gold": ["a"]}',
            'corpus.jsonl line 2: the id "a" is that of corpus.jsonl line 1; give each skill its own "id"',
        ),
    ],
)
def test_invalid_evaluation_files_are_explained(
    apex: Apex, tmp_path: Path, corpus: str | None, queries: str, expected: str
) -> None:
    if corpus is not None:
        (tmp_path / "corpus.jsonl").write_text(corpus)
    (tmp_path / "queries.jsonl").write_text(queries)
    completed = apex(
        "eval", "retrieval", "--corpus", tmp_path / "corpus.jsonl", "--queries", tmp_path / "queries.jsonl"
    )
    assert completed.code == 1
    assert expected in completed.err


@pytest.mark.parametrize(
    ("out", "problem"), [("missing/run.jsonl", "there is no folder"), (".", "it is a folder"), ("run.jsonl", "")]
)
def test_a_run_that_cannot_be_written_is_said_before_anything_is_embedded(
    apex: Apex, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, out: str, problem: str
) -> None:
    (tmp_path / "corpus.jsonl").write_text('{"name": "a", "description": "b"}')
    (tmp_path / "queries.jsonl").write_text('{"query": "x", "gold": ["a"]}')
    embedded: list[Any] = []

    def embed(self: Embedder, documents: Any) -> Any:
        embedded.append(documents)
        raise EmbeddingError("The model failed.")

    monkeypatch.setattr(Embedder, "embed_documents", embed)
    files = ("--corpus", tmp_path / "corpus.jsonl", "--queries", tmp_path / "queries.jsonl")
    completed = apex("eval", "retrieval", *files, "--run-out", tmp_path / out)
    assert completed.code == 1
    assert bool(embedded) == (not problem)
    assert problem in completed.err


# ---------------------------------------------------------------------------------------------------------- preview
PREVIEW = "/api/skills/weather/description/preview"


@pytest.mark.anyio
async def test_a_preview_shows_the_ranks_that_the_edit_gives_and_changes_nothing(
    client: httpx.AsyncClient, filled_bridge: Bridge
) -> None:
    requests = ["merge PDF files into one", "will it rain in Paris", "自动生成提交信息"]
    description = "Merge PDF files into one, and put several PDF files together"
    version = filled_bridge.retrieval._index.version
    response = await client.post(PREVIEW, json={"description": description, "requests": requests})
    ranks = response.raise_for_status().json()["ranks"]
    assert [rank["request"] for rank in ranks] == requests
    assert ranks[0]["before"] > ranks[0]["after"]
    assert ranks[0]["passed"]
    assert ranks[0]["fallsBehind"] == []
    assert ranks[1]["before"] == 1
    assert len(ranks[1]["fallsBehind"]) == ranks[1]["after"] - 1
    assert filled_bridge.retrieval._index.version == version
    assert (await client.get("/api/skills/weather")).json()["description"] == SKILLS["weather"]
    edited = await client.put(
        "/api/skills/weather/description", json={"description": description}, params={"request": requests}
    )
    expected = [{key: rank[key] for key in ("request", "before", "after")} for rank in ranks]
    assert edited.json()["ranks"] == expected


@pytest.mark.anyio
async def test_a_preview_of_a_skill_without_vectors_compares_words(filled_bridge: Bridge) -> None:
    await filled_bridge.retrieval.remove(["weather"])
    document = await filled_bridge.skills.described("weather", "Tells whether it rains")
    (rank,) = await filled_bridge.retrieval.preview(document, ["rains"])
    assert (rank.before, rank.after, rank.passed, rank.falls_behind) == (None, 1, [], [])


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("path", "body", "status", "code"),
    [
        (PREVIEW, {"description": ""}, 422, "INVALID_INPUT"),
        (PREVIEW, {"description": "x" * 1025}, 422, "INVALID_INPUT"),
        (PREVIEW, {"description": "x", "requests": ["a"] * 21}, 422, "INVALID_INPUT"),
        (PREVIEW, {"description": "x", "requests": ["a" * 9000]}, 422, "INVALID_INPUT"),
        (PREVIEW, {"description": "x", "requests": [" "]}, 422, "INVALID_INPUT"),
        (PREVIEW, {"description": "x", "name": "y"}, 422, "INVALID_INPUT"),
        (PREVIEW.replace("weather", "none"), {"description": "x"}, 404, "SKILL_NOT_FOUND"),
    ],
)
async def test_a_bad_preview_is_refused(
    client: httpx.AsyncClient, path: str, body: dict[str, Any], status: int, code: str
) -> None:
    response = await client.post(path, json=body)
    assert (response.status_code, response.json()["code"]) == (status, code)


@pytest.mark.anyio
async def test_a_preview_with_lone_surrogates_is_answered(client: httpx.AsyncClient) -> None:
    headers = {"content-type": "application/json"}
    body = rb'{"description": "rain", "requests": ["rain \ud800 in Paris"]}'
    response = await client.post(PREVIEW, content=body, headers=headers)
    assert response.json()["ranks"][0]["request"] == "rain ? in Paris"
    assert (await client.post(PREVIEW, json={"description": "rain"})).json()["ranks"] == []
