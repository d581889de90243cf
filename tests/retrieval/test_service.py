"""Search end to end: the real models, a real LanceDB."""

import asyncio
import functools
import shutil
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import pytest

from apexbridge.errors import InvalidInputError, ServerError
from apexbridge.retrieval import dictionary, text
from apexbridge.retrieval.config import RetrievalSettings
from apexbridge.retrieval.documents import Document, SkillFacts
from apexbridge.retrieval.embedders.bundled import MultilingualModel
from apexbridge.retrieval.embedders.embedder import Embedder, choose_embedder
from apexbridge.retrieval.embedders.model import EmbeddingError, Floats, Scale
from apexbridge.retrieval.index.lance_store import LanceStore, StoreError
from apexbridge.retrieval.ranking import Candidate
from apexbridge.retrieval.service import MODEL_THREADS, ToolRetrievalService
from tests.retrieval.conftest import LIBRARY, Searching
from tests.retrieval.endpoint import Endpoint
from tests.waiting import until

pytestmark = pytest.mark.anyio
INDEXED = {document.name: document.version for document in LIBRARY}
TOPICS = (
    *("dashboards", "charts", "cooking", "gardening", "invoices", "travel", "music", "chess", "physics", "history"),
    *("poems", "databases", "networks", "photos", "videos", "maps", "taxes", "email", "calendars", "contracts"),
)


class BrokenModel:
    """A model whose files are damaged."""

    id = MultilingualModel.id
    dimensions = MultilingualModel.dimensions
    english_only = False
    weight = 1.0

    def scale(self) -> Scale:
        return Scale(unrelated=0.0, related=1.0)

    def embed(self, texts: Any, *, are_requests: bool = False) -> Floats:
        raise EmbeddingError("The model is broken.")


# ---------------------------------------------------------------------------------------------------------- search
@pytest.mark.requirement("E7")
async def test_the_examples_of_the_requirements_hold(service: ToolRetrievalService) -> None:
    (first, *_) = await service.find_relevant_skills("帮我提交代码", limit=5)
    assert first.name == "git-commit"
    assert first.score >= 0.6
    top = await service.find_relevant_skills("分析Excel文件", limit=3)
    (excel,) = [match for match in top if match.name == "excel-analysis"]
    assert excel.score >= 0.6


@pytest.mark.requirement("E7")
@pytest.mark.parametrize(
    "description",
    [
        "自动生成Git提交信息，支持emoji和conventional commits格式",
        "Writes commit messages and commits staged changes in a git repository.",
        "Create git commits with conventional messages",
        "Git commit helper",
    ],
)
async def test_git_commit_is_found_with_any_usual_description(searching: Searching, description: str) -> None:
    async with searching.open() as service:
        rivals = [
            Document(name="code-review", description="Reviews pull requests for bugs and style."),
            Document(name="code-format", description="Formats source code in many languages"),
        ]
        await service.index_skills([*LIBRARY[1:], *rivals, Document(name="git-commit", description=description)])
        (first, *_) = await service.find_relevant_skills("帮我提交代码")
        assert first.name == "git-commit"
        assert first.score >= 0.6


@pytest.mark.requirement("E4", "E7")
@pytest.mark.parametrize(
    ("query", "name"),
    [
        ("commit my changes", "git-commit"),
        ("will it rain tomorrow", "weather"),
        ("明天会下雨吗", "weather"),
        ("合并两个PDF", "pdf-merge"),
        ("traduire ce texte en anglais", "translator"),
    ],
)
async def test_skills_are_found_by_meaning_in_either_language(
    service: ToolRetrievalService, query: str, name: str
) -> None:
    answer = await service.search(query, threshold=0)
    assert answer.results[0].name == name
    scores = [match.score for match in answer.results]
    assert scores == sorted(scores, reverse=True)
    assert all(0 <= score <= 1 for score in scores)
    assert answer.degraded is None
    assert answer.warnings == []


@pytest.mark.requirement("E4")
async def test_each_match_explains_its_score(service: ToolRetrievalService) -> None:
    (match,) = await service.find_relevant_skills("analyze these excel files", limit=1)
    assert (match.why.vector_rank, match.why.keyword_rank) == (1, 1)
    assert {"excel", "files"} <= set(match.why.matched_words)
    assert match.why.past_use == 0
    assert match.tags == ["office"]


@pytest.mark.requirement("E7")
async def test_limit_and_threshold_bound_the_results(service: ToolRetrievalService) -> None:
    assert len(await service.find_relevant_skills("files", limit=2, threshold=0)) == 2
    assert len(await service.find_relevant_skills("files", threshold=0)) == 5
    sure = await service.find_relevant_skills("analyze this excel file", threshold=0.9)
    assert [match.name for match in sure] == ["excel-analysis"]
    assert await service.find_relevant_skills("bake a chocolate cake") == []


async def test_declared_and_derived_tags_filter_the_search(service: ToolRetrievalService) -> None:
    found = await service.find_relevant_skills("anything", threshold=0, tags=["OFFICE", "translator"])
    assert {match.name for match in found} == {"excel-analysis", "translator"}


@pytest.mark.requirement("E12")
async def test_a_hidden_skill_is_not_found_by_a_model(service: ToolRetrievalService) -> None:
    await service.index_skill(Document(name="drop-database", description="Drops the whole database", hidden=True))
    by_people = await service.search("drop the database")
    assert by_people.results[0].name == "drop-database"
    by_model = await service.search("drop the database", for_model=True, threshold=0)
    assert "drop-database" not in [match.name for match in by_model.results]


async def test_only_enabled_skills_of_the_library_are_shown(service: ToolRetrievalService) -> None:
    async def facts(names: Any) -> dict[str, SkillFacts]:
        return {name: SkillFacts(mode="direct", enabled=name != "weather") for name in names if name != "pdf-merge"}

    service.facts = facts
    found = await service.find_relevant_skills("files and weather", threshold=0)
    assert {match.name for match in found} == {"git-commit", "excel-analysis", "translator"}
    assert {match.mode for match in found} == {"direct"}


async def test_the_dictionary_is_not_loaded_in_the_event_loop(service: ToolRetrievalService) -> None:
    dictionary._entries.cache_clear()
    text._parts.cache_clear()
    assert (await service.search("合并几个彩虹色的PDF文件")).results[0].name == "pdf-merge"


async def test_whether_any_skill_fits_is_judged_by_the_first_that_is_enabled(
    service: ToolRetrievalService, monkeypatch: pytest.MonkeyPatch
) -> None:
    judged: list[int | None] = []

    async def facts(names: Any) -> dict[str, SkillFacts]:
        return {name: SkillFacts(mode="direct", enabled=name != "pdf-merge") for name in names}

    def fits(first: Candidate) -> float:
        judged.append(first.vector_rank)
        return 0.0

    monkeypatch.setattr("apexbridge.retrieval.matches.confidence_of_any", fits)
    assert (await service.search("merge pdf files into one")).results == []
    service.facts = facts
    assert (await service.search("merge pdf files into one")).results == []
    assert judged == [1, 2]


async def test_a_pending_skill_is_found_by_a_word_of_its_name(service: ToolRetrievalService) -> None:
    others = [Document(name=f"helper-{topic}", description=f"Helps with {topic}") for topic in TOPICS]
    await service.index_skills(others)
    await service.upsert([Document(name="grafana-snapshots", description="Exports what a board shows")], [None])
    for request in ("grafana", "show me grafana"):
        assert (await service.search(request)).results[0].name == "grafana-snapshots", request


BAD_INPUT: list[tuple[str, str, dict[str, Any], str]] = [
    ("empty", "", {}, "INVALID_INPUT"),
    ("blank", " \n\t ", {}, "INVALID_INPUT"),
    ("control characters only", "\x00\x1b\u200b", {}, "INVALID_INPUT"),
    ("lone surrogate", "\ud800", {}, "INVALID_INPUT"),
    ("one megabyte", "x" * 1_000_000, {}, "INVALID_INPUT"),
    ("limit 0", "files", {"limit": 0}, "INVALID_INPUT"),
    ("limit negative", "files", {"limit": -1}, "INVALID_INPUT"),
    ("limit huge", "files", {"limit": 10**9}, "INVALID_INPUT"),
    ("threshold above 1", "files", {"threshold": 1.5}, "INVALID_INPUT"),
    ("threshold no number", "files", {"threshold": float("nan")}, "INVALID_INPUT"),
    ("one character", "x", {}, "anything"),
    ("one ideograph", "云", {}, "anything"),
    ("only stop words", "the of and to", {}, "nothing"),
    ("punctuation", "?!.,;", {}, "nothing"),
    ("emoji", "😀🎉", {}, "nothing"),
    ("mixed scripts", "please 合并 the PDF файлы 📄", {}, "pdf-merge"),
    ("control characters inside", "merge\x00PDF\x1b[31m files", {}, "pdf-merge"),
    ("quotes and operators", 'merge\' OR name = "PDF" -- files', {}, "pdf-merge"),
    ("right to left", "دمج ملفات PDF", {}, "pdf-merge"),
    ("the longest that is allowed", ("merge PDF files " * 300)[:4_000], {}, "pdf-merge"),
    ("limit of all there are", "merge PDF files", {"limit": 100}, "pdf-merge"),
]


@pytest.mark.parametrize(
    ("query", "options", "outcome"), [row[1:] for row in BAD_INPUT], ids=[row[0] for row in BAD_INPUT]
)
async def test_unusual_requests_get_results_or_a_clear_error(
    service: ToolRetrievalService, query: str, options: dict[str, Any], outcome: str
) -> None:
    if outcome == "INVALID_INPUT":
        with pytest.raises(InvalidInputError) as refused:
            await service.search(query, **options)
        assert refused.value.code == "INVALID_INPUT"
        return
    names = [match.name for match in await service.find_relevant_skills(query, **options)]
    if outcome != "anything":
        assert names[:1] == ([] if outcome == "nothing" else [outcome])


async def test_an_empty_library_has_no_results(searching: Searching) -> None:
    async with searching.open() as service:
        answer = await service.search("anything")
        assert (answer.results, answer.degraded, answer.warnings) == ([], None, [])


# ------------------------------------------------------------------------------------------------- index and restart
@pytest.mark.requirement("E6")
async def test_indexing_the_same_name_again_updates_the_skill(searching: Searching) -> None:
    async with searching.open() as service:
        await service.index_skill(Document(name="one", description="Bakes bread"))
        await service.index_skill(Document(name="one", description="Repairs bicycles"))
        assert [match.name for match in await service.find_relevant_skills("fix my bike", threshold=0)] == ["one"]
    async with searching.open() as again:
        (match,) = await again.find_relevant_skills("fix my bike", threshold=0)
        assert match.description == "Repairs bicycles"


@pytest.mark.requirement("E6")
@pytest.mark.computes_in_loop
async def test_embedding_is_deterministic_and_works_for_chinese(embedder: Embedder) -> None:
    documents = [Document(name="天气", description="查询城市天气预报"), LIBRARY[1]]
    first, second = embedder.embed_documents(documents), embedder.embed_documents(documents[::-1])[::-1]
    assert all(abs(one - other).max() < 1e-5 for one, other in zip(first, second, strict=True))
    assert all(abs(vector).max() > 0 for vector in first)


@pytest.mark.requirement("E1")
async def test_the_store_is_a_small_lancedb_in_the_data_directory(searching: Searching, data_dir: Path) -> None:
    skills = [Document(name=f"skill-{number}", description=f"Does the thing number {number}") for number in range(100)]
    async with searching.open() as service:
        assert await service.index_skills(skills) == 100
    import lancedb

    table = lancedb.connect(data_dir / "skills.lance").open_table("skills")
    assert table.count_rows() == 100
    row = table.search().limit(1).to_list()[0]
    assert row["embedder"] == service.embedder
    assert len(row["vector"]) == service.dimensions
    size = sum(path.stat().st_size for path in (data_dir / "skills.lance").rglob("*") if path.is_file())
    assert size <= 5_000_000


async def test_a_change_is_visible_immediately_despite_the_cache(service: ToolRetrievalService) -> None:
    for _ in range(2):
        assert (await service.find_relevant_skills("rain tomorrow"))[0].name == "weather"
    await service.remove_skill("weather")
    assert "weather" not in [match.name for match in await service.find_relevant_skills("rain tomorrow", threshold=0)]
    await service.index_skill(Document(name="umbrella", description="Says whether it will rain tomorrow"))
    assert (await service.find_relevant_skills("rain tomorrow"))[0].name == "umbrella"


@pytest.mark.parametrize("how", ["snapshot", "tables"])
async def test_the_results_are_the_same_after_a_restart(searching: Searching, data_dir: Path, how: str) -> None:
    async with searching.open() as service:
        await service.index_skills(LIBRARY)
        await service.remember("make a copy of my work", "git-commit", succeeded=True)
        before = (await service.search("merge files", threshold=0)).results
    if how == "tables":
        (data_dir / "skills.snapshot").unlink()
    async with searching.open() as again:
        assert (await again.search("merge files", threshold=0)).results == before
        assert await again.missing(INDEXED) == []
        assert (await again.search("make a copy of my work")).results[0].why.past_use == 1


async def test_another_version_of_a_skill_counts_as_missing(service: ToolRetrievalService) -> None:
    await service.index_skill(Document(name="one", description="Old words", version="1"))
    assert await service.missing({"one": "1"}) == []
    assert await service.missing({"one": "2"}) == ["one"]


async def test_a_snapshot_of_another_commit_is_ignored(searching: Searching, data_dir: Path) -> None:
    async with searching.open() as service:
        await service.index_skills(LIBRARY)
    old = (data_dir / "skills.snapshot").read_bytes()
    async with searching.open() as service:
        await service.remove_skill("weather")
    (data_dir / "skills.snapshot").write_bytes(old)
    async with searching.open() as again:
        await again.wake()
        assert await again.missing({"weather": "", "pdf-merge": ""}) == ["weather"]


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 nonsense", b"\x93NUMPY"])
async def test_a_damaged_snapshot_is_ignored(searching: Searching, data_dir: Path, content: bytes) -> None:
    async with searching.open() as service:
        await service.index_skills(LIBRARY)
    (data_dir / "skills.snapshot").write_bytes(content)
    async with searching.open() as again:
        await again.wake()
        assert await again.missing(INDEXED) == []


async def test_two_readers_can_use_the_index_of_one_writer(
    searching: Searching, data_dir: Path, embedder: Embedder
) -> None:
    async with searching.open() as writer:
        await writer.index_skills(LIBRARY)
        await until(lambda: (data_dir / "skills.lance/skills.lance/_versions").is_dir() and not writer.is_behind)
        readers = [ToolRetrievalService(data_dir, embedder) for _ in range(2)]
        for reader in readers:
            assert (await reader.find_relevant_skills("rain tomorrow"))[0].name == "weather"
        await writer.remove_skill("weather")
        await until(lambda: not writer.is_behind)
        for reader in readers:
            await reader.refresh()
            assert await reader.missing({"weather": ""}) == ["weather"]


# ---------------------------------------------------------------------------------------------------------- errors
def remove_everything(store: Path) -> None:
    shutil.rmtree(store)


def truncate_newest_manifests(store: Path) -> None:
    for versions in store.glob("*.lance/_versions"):
        newest = min(versions.glob("*.manifest"))
        newest.write_bytes(newest.read_bytes()[:7])


def truncate_data(store: Path) -> None:
    for file in store.glob("*.lance/data/*"):
        file.write_bytes(file.read_bytes()[:10])


def remove_data(store: Path) -> None:
    for folder in store.glob("*.lance/data"):
        shutil.rmtree(folder)


DAMAGE = [remove_everything, truncate_newest_manifests, truncate_data, remove_data]


@pytest.mark.requirement("E8")
@pytest.mark.parametrize("damage", DAMAGE, ids=lambda damage: damage.__name__)
async def test_an_index_lost_while_running_is_rebuilt_and_search_continues(
    searching: Searching, data_dir: Path, damage: Callable[[Path], None]
) -> None:
    async with searching.open() as service:
        await service.index_skills(LIBRARY)
        await until(lambda: not service.is_behind)
        damage(data_dir / "skills.lance")
        assert (await service.find_relevant_skills("rain tomorrow"))[0].name == "weather"
        await service.index_skill(Document(name="late", description="Arrives after the damage"))
        assert (await service.search("rain tomorrow")).degraded is None
        await until(lambda: not service.is_behind)
    (data_dir / "skills.snapshot").unlink()
    async with searching.open() as again:
        await again.wake()
        assert await again.missing({**INDEXED, "late": ""}) == []


async def test_a_removed_index_is_rebuilt_without_waiting_for_a_change(searching: Searching, data_dir: Path) -> None:
    async with searching.open() as service:
        await service.index_skills(LIBRARY)
        await until(lambda: not service.is_behind)
        shutil.rmtree(data_dir / "skills.lance")
        await until(lambda: (data_dir / "skills.lance/skills.lance/_versions").is_dir())


@pytest.mark.requirement("E8")
@pytest.mark.parametrize("damage", DAMAGE, ids=lambda damage: damage.__name__)
async def test_an_index_damaged_before_the_start_is_rebuilt(
    searching: Searching, data_dir: Path, damage: Callable[[Path], None]
) -> None:
    async with searching.open() as service:
        await service.index_skills(LIBRARY)
    damage(data_dir / "skills.lance")
    (data_dir / "skills.snapshot").unlink()
    async with searching.open() as again:
        await again.wake()
        lost = await again.missing(INDEXED)
        assert len(lost) == len(LIBRARY)
        await again.upsert(LIBRARY, [None] * len(LIBRARY))
        answer = await again.search("merge pdf files")
        assert (answer.degraded, answer.results[0].name) == ("keyword", "pdf-merge")
        assert answer.warnings
        await again.index_skills(LIBRARY)
        assert (await again.search("merge pdf files")).degraded is None


@pytest.mark.requirement("E8")
async def test_search_uses_keywords_if_the_store_cannot_be_opened(searching: Searching, data_dir: Path) -> None:
    data_dir.mkdir()
    (data_dir / "skills.lance").write_text("this is mine")
    async with searching.open() as service:
        await service.index_skills(LIBRARY)
        answer = await service.search("merge pdf files")
        assert answer.degraded == "keyword"
        assert [match.name for match in answer.results][:1] == ["pdf-merge"]
        assert any("cannot be opened" in warning for warning in answer.warnings)
        with pytest.raises(ServerError, match="LanceDB connection failed") as refused:
            await service.search("merge pdf files", mode="vector")
        assert (refused.value.code, refused.value.status) == ("LANCE_SEARCH_ERROR", 503)
        assert (await service.search("nothing of the kind")).results == []
    assert (data_dir / "skills.lance").read_text() == "this is mine"


@pytest.mark.requirement("E8")
async def test_search_uses_keywords_if_the_model_fails(searching: Searching) -> None:
    async with searching.open() as service:
        await service.index_skills(LIBRARY)
    async with searching.open(Embedder([BrokenModel()])) as service:
        await service.upsert(LIBRARY, [None] * len(LIBRARY))
        answer = await service.search("merge pdf files")
        assert (answer.degraded, answer.results[0].name) == ("keyword", "pdf-merge")
        assert answer.warnings[0] == "The model is broken."
        with pytest.raises(ServerError) as refused:
            await service.search("merge pdf files", mode="vector")
        assert refused.value.code == "LANCE_SEARCH_ERROR"
        assert await service.index_skill(Document(name="new", description="Something new")) is False
        assert (await service.search("something new")).results[0].name == "new"


@pytest.mark.requirement("E8")
async def test_vector_mode_fails_if_no_skill_has_a_vector(searching: Searching) -> None:
    async with searching.open() as service:
        await service.upsert(LIBRARY, [None] * len(LIBRARY))
        with pytest.raises(ServerError) as refused:
            await service.search("merge pdf files", mode="vector")
        assert refused.value.code == "LANCE_SEARCH_ERROR"


async def test_a_skill_ranked_below_many_disabled_ones_is_found(service: ToolRetrievalService) -> None:
    off = [Document(name=f"rain-{number}", description="Says whether it will rain") for number in range(60)]
    await service.index_skills(off)

    async def facts(names: Any) -> dict[str, SkillFacts]:
        return {name: SkillFacts(mode="direct", enabled=not name.startswith("rain")) for name in names}

    service.facts = facts
    assert [match.name for match in await service.find_relevant_skills("will it rain", limit=1)] == ["weather"]


async def test_skills_without_a_vector_do_not_hide_others(service: ToolRetrievalService) -> None:
    await service.upsert([Document(name="invoice-basics", description="invoices")], [None])
    await service.index_skill(Document(name="reminder", description="Reminds customers of unpaid invoices by mail"))
    answer = await service.search("remind customers of invoices")
    names = [match.name for match in answer.results]
    assert "reminder" in names
    assert "1 of 7 skills" in answer.warnings[0]
    without_vector = [match for match in answer.results if match.name == "invoice-basics"]
    assert all(match.why.likeness is None for match in without_vector)


@pytest.mark.requirement("E8")
async def test_temporary_errors_leave_the_store_unchanged(
    searching: Searching, data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with searching.open() as service:
        await service.index_skills(LIBRARY)
        await service.remember("a thing of the past", "weather", succeeded=True)
    (data_dir / "skills.snapshot").unlink()
    with monkeypatch.context() as broken:
        broken.setitem(sys.modules, "lancedb", None)
        async with searching.open() as service:
            await service.upsert(LIBRARY, [None] * len(LIBRARY))
            answer = await service.search("merge pdf files")
            assert (answer.degraded, answer.results[0].name) == ("keyword", "pdf-merge")
            assert "LanceDB is not properly installed" in answer.warnings[0]
    async with searching.open() as again:
        await again.wake()
        assert await again.missing(INDEXED) == []
        assert await again.forget() == 1


@pytest.mark.slow
async def test_a_failed_write_does_not_lose_stored_skills(searching: Searching, data_dir: Path) -> None:
    async with searching.open() as service:
        await service.index_skills(LIBRARY)
    ran = await anyio.run_process([sys.executable, "-c", SMALL_FILES, str(data_dir)], check=False)
    assert ran.returncode == 0, ran.stderr.decode()
    assert b"File too large" in ran.stdout
    (data_dir / "skills.snapshot").unlink()
    async with searching.open() as again:
        await again.wake()
        assert await again.missing(INDEXED) == []


SMALL_FILES = """
import resource, signal, sys
from pathlib import Path
import anyio
from apexbridge.retrieval.config import RetrievalSettings
from apexbridge.retrieval.documents import Document
from apexbridge.retrieval.embedders.embedder import choose_embedder
from apexbridge.retrieval.service import ToolRetrievalService
async def main():
    service = ToolRetrievalService(Path(sys.argv[1]), choose_embedder(RetrievalSettings()))
    async with service.running():
        await service.wake()
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (100, resource.RLIM_INFINITY))
        await service.index_skill(Document(name="late", description="Does not fit"))
        while service.problem is None:
            await anyio.sleep(0.05)
        print((await service.search("does not fit")).warnings)
anyio.run(main)
"""


async def test_the_writer_is_only_used_on_the_event_loop(searching: Searching) -> None:
    asyncio.get_running_loop().set_debug(True)
    async with searching.open() as service:
        await service.index_skills(LIBRARY)
        await service.remember("a thing", "weather", succeeded=True)
        await service.remove_skill("weather")
        await service.forget()
        await service.retain(["pdf-merge"])
        await until(lambda: not service.is_behind)
        assert service.problem is None


async def test_vector_mode_searches_by_meaning(service: ToolRetrievalService) -> None:
    answer = await service.search("will it rain", mode="vector")
    assert answer.results[0].name == "weather"


async def test_a_failed_write_is_reported_and_retried(
    searching: Searching, data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise StoreError("No space left on device")

    async with searching.open() as service:
        with monkeypatch.context() as full:
            full.setattr(LanceStore, "write", refuse)
            await service.index_skills(LIBRARY)
            await until(lambda: service.problem is not None)
            answer = await service.search("rain tomorrow")
            assert answer.results[0].name == "weather"
            assert answer.degraded is None
            assert any("No space left" in warning for warning in answer.warnings)
        await until(lambda: service.problem is None and not service.is_behind)
    (data_dir / "skills.snapshot").unlink()
    async with searching.open() as again:
        await again.wake()
        assert await again.missing(INDEXED) == []


# --------------------------------------------------------------------------------------------------- other models
@pytest.mark.requirement("E9")
async def test_an_endpoint_is_called_in_batches_and_another_model_embeds_all_skills_again(
    searching: Searching, endpoint: Endpoint, embedder: Embedder
) -> None:
    other = choose_embedder(RetrievalSettings(embedding="openai", base_url=endpoint.url, model="bag", api_key="secret"))
    many = [Document(name=f"skill-{number}", description=f"topic{number} work") for number in range(120)]
    async with searching.open() as service:
        await service.index_skills(LIBRARY)
    async with searching.open(other) as service:
        assert sorted(await service.missing(INDEXED)) == []
        await service.wake()
        assert len(await service.missing(INDEXED)) == len(LIBRARY)
        assert await service.index_skills([*LIBRARY, *many]) == len(LIBRARY) + 120
        assert max(map(len, endpoint.batches)) <= 100
        assert set(endpoint.keys) == {"Bearer secret"}
        assert (service.embedder, service.dimensions) == ("openai:bag", 64)
        (match, *_) = await service.find_relevant_skills("weather forecast")
        assert match.name == "weather"
    requests = len(endpoint.batches)
    same = choose_embedder(RetrievalSettings(embedding="openai", base_url=endpoint.url, model="bag"))
    async with searching.open(same) as again:
        await again.wake()
        assert await again.missing(INDEXED) == []
        assert len(endpoint.batches) == requests + 1, "one request measures the scale, and none embeds a skill"
    async with searching.open(embedder) as back:
        await back.wake()
        assert len(await back.missing(INDEXED)) == len(LIBRARY)


@pytest.mark.requirement("E9")
@pytest.mark.computes_in_loop
async def test_the_last_thousand_request_embeddings_are_remembered(endpoint: Endpoint) -> None:
    embedder = choose_embedder(RetrievalSettings(embedding="openai", base_url=endpoint.url, model="bag"))
    for number in range(1001):
        embedder.embed_request(f"request{number}")
    requests = len(endpoint.batches)
    embedder.embed_request("request1")
    assert len(endpoint.batches) == requests
    embedder.embed_request("request0")
    assert len(endpoint.batches) == requests + 1


@pytest.mark.requirement("E9")
async def test_skills_are_embedded_again_if_an_endpoint_changes_its_dimensions(
    searching: Searching, endpoint: Endpoint
) -> None:
    settings = RetrievalSettings(embedding="openai", base_url=endpoint.url, model="bag")
    async with searching.open(choose_embedder(settings)) as service:
        await service.index_skills(LIBRARY)
    endpoint.dimensions = 32
    async with searching.open(choose_embedder(settings)) as service:
        await service.wake()
        assert service.dimensions == 32
        assert len(await service.missing(INDEXED)) == len(LIBRARY)
        assert await service.index_skills(LIBRARY) == len(LIBRARY)
        assert (await service.search("weather forecast")).results[0].name == "weather"


@pytest.mark.requirement("E8")
async def test_search_uses_keywords_if_an_endpoint_fails_or_changes_its_dimensions(
    searching: Searching, endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("apexbridge.retrieval.embedders.endpoint.FIRST_PAUSE_SECONDS", 0.01)
    monkeypatch.setattr("apexbridge.retrieval.embedders.endpoint.COOLDOWN_SECONDS", 0.0)
    other = choose_embedder(RetrievalSettings(embedding="openai", base_url=endpoint.url, model="bag"))
    async with searching.open(other) as service:
        await service.index_skills(LIBRARY)
        endpoint.answer = lambda texts: (500, {"error": "down"})
        answer = await service.search("merge pdf files please")
        assert (answer.degraded, answer.results[0].name) == ("keyword", "pdf-merge")
        assert "500" in answer.warnings[0]
        endpoint.dimensions, endpoint.answer = 32, endpoint.vectors
        answer = await service.search("merge pdf files today")
        assert (answer.degraded, answer.results[0].name) == ("keyword", "pdf-merge")
        assert "32 dimensions where 64" in answer.warnings[0]
        endpoint.dimensions = 64
        answer = await service.search("merge pdf files now")
        assert (answer.degraded, answer.results[0].name) == (None, "pdf-merge")


# -------------------------------------------------------------------------------------------------------- past use
@pytest.mark.requirement("E11")
async def test_successful_requests_improve_later_searches(service: ToolRetrievalService) -> None:
    request = "do the monthly thing for the boss"
    assert await service.find_relevant_skills(request) == []
    assert await service.remember(request, "excel-analysis", succeeded=True)
    (match, *_) = await service.find_relevant_skills("please do the monthly thing for my boss")
    assert match.name == "excel-analysis"
    assert match.why.past_use > 0.5
    assert await service.forget("excel-analysis") == 1
    assert await service.find_relevant_skills(request) == []


@pytest.mark.requirement("E11")
async def test_nothing_is_learnt_from_failures_other_callers_or_if_usage_memory_is_off(searching: Searching) -> None:
    request = "do the monthly thing for the boss"
    async with searching.open() as service:
        await service.index_skills(LIBRARY)
        assert not await service.remember(request, "excel-analysis", succeeded=False)
        assert not await service.remember(request, "unknown", succeeded=True)
        assert await service.remember(request, "excel-analysis", succeeded=True, caller="key-1")
        assert (await service.search(request, caller="key-2")).results == []
        assert (await service.search(request, caller="key-1")).results[0].name == "excel-analysis"
    async with searching.open(usage_memory_shared=True) as shared:
        assert (await shared.search(request, caller="key-2")).results[0].name == "excel-analysis"
    async with searching.open(usage_memory=False) as off:
        assert (await off.search(request, caller="key-1")).results == []
        assert not await off.remember(request, "weather", succeeded=True)


@pytest.mark.requirement("E11")
async def test_past_use_is_removed_with_its_skill(searching: Searching) -> None:
    request = "do the monthly thing for the boss"
    async with searching.open() as service:
        await service.index_skills(LIBRARY)
        await service.remember(request, "excel-analysis", succeeded=True)
        await service.remove_skill("excel-analysis")
        await service.index_skill(LIBRARY[1])
        assert await service.find_relevant_skills(request) == []
    async with searching.open() as again:
        await again.remove(["excel-analysis"])
        await again.index_skill(LIBRARY[1])
        assert await again.forget() == 0


@pytest.mark.requirement("E11")
async def test_forgotten_requests_are_removed_from_the_disk(searching: Searching, data_dir: Path) -> None:
    async with searching.open() as service:
        await service.index_skills(LIBRARY)
        await service.remember("the secret habit of the team", "weather", succeeded=True)
        await until(lambda: not service.is_behind)
        assert await service.forget() == 1
    left = [path for path in data_dir.rglob("*") if path.is_file() and b"secret habit" in path.read_bytes()]
    assert left == []


async def test_many_searches_of_one_caller_do_not_delay_those_of_another(
    service: ToolRetrievalService, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[str] = []
    release = threading.Event()
    rank = service._rank

    def blocked_rank(*values: Any) -> Any:
        started.append(values[-1])
        release.wait(60)
        return rank(*values)

    monkeypatch.setattr(service, "_rank", blocked_rank)
    with anyio.fail_after(60):
        async with anyio.create_task_group() as tasks:
            for _ in range(40):
                tasks.start_soon(functools.partial(service.search, "commit", caller="many"))
            await until(lambda: len(started) == MODEL_THREADS and service._turns.waiting == 40 - MODEL_THREADS)
            tasks.start_soon(functools.partial(service.search, "commit", caller="one"))
            await until(lambda: service._turns.waiting_of("one") == 1)
            release.set()
    assert len(started) == 41
    assert started.index("one") <= 2 * MODEL_THREADS


async def test_a_mistyped_request_finds_the_skill_and_shows_the_word_that_was_meant(searching: Searching) -> None:
    async with searching.open(Embedder([BrokenModel()])) as service:
        await service.index_skills(LIBRARY)
        (first, *_) = await service.find_relevant_skills("wether forcast")
        assert first.name == "weather"
        assert set(first.why.matched_words) == {"weather", "forecast"}
        assert await service.find_relevant_skills("leather footwear") == []


@pytest.mark.anyio
@pytest.mark.computes_in_loop
async def test_a_skill_is_first_for_its_name_although_words_of_a_name_count_less(searching: Searching) -> None:
    async with searching.open() as service:
        await service.index_skills(
            [
                Document(name="commit-message", description="Describes what changed, for the history"),
                Document(name="cut-off", description="Writes commit messages out of a diff"),
                Document(name="diff-viewer", description="Shows a diff in colours"),
            ]
        )
        assert (await service.search("commit message")).results[0].name == "commit-message"
        assert (await service.search("write a commit message for my diff")).results[0].name == "cut-off"
