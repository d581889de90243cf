"""Tools in the search beside skills: kinds, limits, and no effect on the ranking of skills."""

from collections.abc import AsyncIterator, Collection, Mapping
from pathlib import Path

import pytest

from apexbridge.mcp_client.tool_index import IndexedTool
from apexbridge.retrieval.documents import Document, SkillFacts, tool_key
from apexbridge.retrieval.embedders.embedder import Embedder
from apexbridge.retrieval.service import ToolRetrievalService
from tests.waiting import until

pytestmark = pytest.mark.anyio
SKILLS = {
    "git-commit": "Writes commit messages for staged changes.",
    "pdf-merge": "Merges several PDF files into one.",
    "weather": "Tells the weather of a town.",
    "csv-clean": "Cleans CSV tables: duplicates, empty rows, wrong encodings.",
}
REQUESTS = ["commit my work", "join two pdf documents", "will it rain tomorrow", "remove duplicates from a table"]


def skill(name: str) -> Document:
    return Document(name=name, description=SKILLS[name])


def tool(id: str, description: str) -> IndexedTool:
    return IndexedTool(id=id, description=description, tags=(id.partition("_")[0],), version="1")


@pytest.fixture
async def service(data_dir: Path, embedder: Embedder) -> AsyncIterator[ToolRetrievalService]:
    service = ToolRetrievalService(data_dir, embedder)
    async with service.running():
        await service.index_skills([skill(name) for name in SKILLS])
        yield service


async def test_hits_have_a_kind_and_names_may_coincide(service: ToolRetrievalService) -> None:
    await service.index_skills([tool("weather", "Tells the weather of a town.")])
    found = (await service.search("weather of a town")).results
    assert [(hit.kind, hit.name) for hit in found[:2]] == [("skill", "weather"), ("tool", "weather")]
    assert [hit.name for hit in await service.find_relevant_skills("weather of a town")] == ["weather"]
    for kind in ("skill", "tool"):
        only = (await service.search("weather of a town", kind=kind)).results
        assert {hit.kind for hit in only} == {kind}
    tagged = (await service.search("weather of a town", tags=["weather"])).results
    assert [hit.kind for hit in tagged] == ["tool"]
    assert await service.remove_skill("weather")
    assert {hit.kind for hit in (await service.search("weather of a town")).results} == {"tool"}


async def test_many_tools_do_not_change_the_ranking_of_skills(service: ToolRetrievalService) -> None:
    async def ranked() -> list[list[tuple[str, float]]]:
        answers = [await service.search(request, kind="skill", threshold=0) for request in REQUESTS]
        return [[(hit.name, hit.score) for hit in answer.results] for answer in answers]

    before = await ranked()
    await service.index_skills(
        [tool(f"other_t{number}", f"Commits pdf weather table {number}.") for number in range(300)]
    )
    assert await ranked() == before
    for request, skills in zip(REQUESTS, before, strict=True):
        mixed = (await service.search(request, threshold=0)).results
        assert len(mixed) == 5
        assert [hit.name for hit in mixed if hit.kind == "skill"][:3] == [name for name, _ in skills[:3]]
        assert [hit.score for hit in mixed] == sorted((hit.score for hit in mixed), reverse=True)


async def test_tools_fill_what_skills_leave(service: ToolRetrievalService) -> None:
    await service.index_skills(
        [tool(f"issues_t{number}", f"Lists issue {number} of a tracker.") for number in range(9)]
    )
    found = (await service.search("list the issues of the tracker", limit=6)).results
    assert [hit.kind for hit in found] == ["tool"] * 6
    assert [hit.kind for hit in (await service.search("list the issues of the tracker", limit=1)).results] == ["tool"]


async def test_tools_last_and_are_removed_apart_from_skills(
    service: ToolRetrievalService, data_dir: Path, embedder: Embedder
) -> None:
    await service.index_skills([tool("a_one", "Books a room."), tool("a_two", "Books a flight.")])
    await service.remember("a place to meet", tool_key("a_one"), succeeded=True)
    assert await service.retain(list(SKILLS)) == 0
    assert await service.retain([tool_key("a_one")], kind="tool") == 1
    await until(lambda: not service.is_behind)
    again = ToolRetrievalService(data_dir, embedder)
    found = (await again.search("book a room", kind="tool")).results
    assert [(hit.name, hit.mode) for hit in found] == [("a_one", None)]
    assert (await again.search("a place to meet", kind="tool")).results[0].why.past_use == 1
    assert await again.missing({tool_key("a_one"): "1", tool_key("a_two"): "1", "weather": ""}) == [tool_key("a_two")]


async def test_tools_of_servers_that_are_down_are_not_shown(data_dir: Path, embedder: Embedder) -> None:
    async def facts(keys: Collection[str]) -> Mapping[str, SkillFacts]:
        return {key: SkillFacts(mode=None, enabled=key.endswith("up")) for key in keys}

    service = ToolRetrievalService(data_dir, embedder, facts=facts)
    names = [f"s_t{number}_{state}" for number in range(50) for state in ("up", "down")]
    await service.index_skills([tool(name, "Books a room.") for name in names])
    found = (await service.search("book a room")).results
    assert len(found) == 5
    assert all(hit.name.endswith("up") for hit in found)
