"""What a new description wins and loses over past requests."""

from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from apexbridge.retrieval import past_requests
from apexbridge.retrieval.documents import Document, tool_key
from apexbridge.retrieval.past_requests import PastPreview
from apexbridge.retrieval.ranking import Request, rank_of_slot, ranks_by_meaning
from apexbridge.retrieval.service import ToolRetrievalService
from tests.retrieval.conftest import LIBRARY, Searching

pytestmark = pytest.mark.anyio
RAIN = ["weather forecast for Paris", "how is the weather in this city", "tomorrow's weather in the city of Rome"]
MERGE = ["combine these PDF documents", "put two PDF files together"]
WEATHER = Document(name="alpha", description="Weather forecast for a city")
BREAD = Document(name="alpha", description="Bakes bread and cakes")
PDF = Document(name="alpha", description="Combines PDF documents: puts two PDF files together, or more")
SKILLS = [
    *(skill for skill in LIBRARY if skill.name not in ("weather", "pdf-merge")),
    WEATHER,
    Document(name="beta", description="Merges several documents into one"),
    Document(name="gamma", description="Statistics of the climate in the past: rain, temperature, wind"),
]
"""With names that say nothing, so that the descriptions decide."""


@pytest.fixture
async def service(searching: Searching) -> AsyncIterator[ToolRetrievalService]:
    async with searching.open() as opened:
        await opened.index_skills(SKILLS)
        yield opened


async def teach(service: ToolRetrievalService, skill: str, requests: list[str], *, caller: str = "") -> None:
    for request in requests:
        assert await service.remember(request, skill, succeeded=True, caller=caller)


async def preview(service: ToolRetrievalService, skill: Document, **options: object) -> PastPreview:
    found = await service.preview_past(skill, **options)  # type: ignore[arg-type]
    assert found is not None
    return found


async def test_a_description_of_something_else_loses_the_skill_s_own_past_requests(
    service: ToolRetrievalService,
) -> None:
    await teach(service, "alpha", RAIN)
    past = await preview(service, BREAD)
    first = past.own.first
    assert (past.own.requests, first.before, first.after, first.won, first.lost) == (3, 3, 0, 0, 3)
    assert past.others.requests == 0
    assert past.harmed == []


async def test_a_description_in_the_words_of_past_requests_wins_them(service: ToolRetrievalService) -> None:
    await teach(service, "translator", RAIN)
    past = await preview(
        service, Document(name="translator", description="Rain, wind and temperature in Paris, Rome and elsewhere")
    )
    assert past.own.first.before == 0
    assert past.own.first.won == past.own.first.after > 0
    assert past.own.first.lost == 0


async def test_skills_that_would_lose_their_first_place_are_named(service: ToolRetrievalService) -> None:
    await teach(service, "alpha", RAIN)
    await teach(service, "beta", MERGE)
    past = await preview(service, PDF)
    assert (past.others.requests, past.others.first.before) == (2, 2)
    assert past.others.first.lost > 0
    (harmed,) = past.harmed
    assert (harmed.name, harmed.requests, harmed.first, harmed.first_five) == (
        "beta",
        2,
        past.others.first.lost,
        0,
    )


async def test_the_current_description_changes_nothing(service: ToolRetrievalService) -> None:
    await teach(service, "alpha", RAIN)
    await teach(service, "beta", MERGE)
    past = await preview(service, WEATHER, texts=[*RAIN, *MERGE])
    for ranks in (past.own, past.others):
        for tally in (ranks.first, ranks.first_five):
            assert (tally.won, tally.lost) == (0, 0)
    assert (past.harmed, past.changed) == ([], [])


async def test_a_preview_of_past_requests_changes_nothing_in_the_index(service: ToolRetrievalService) -> None:
    await teach(service, "alpha", RAIN)
    version = service._index.version
    await preview(service, BREAD)
    assert service._index.version == version
    assert (await service.find_relevant_skills(RAIN[0]))[0].name == "alpha"


async def test_texts_are_shown_only_if_they_are_past_requests_and_change_a_rank(service: ToolRetrievalService) -> None:
    await teach(service, "alpha", RAIN)
    past = await preview(service, BREAD, texts=[RAIN[0], "bake some bread", "\x00"])
    (changed,) = past.changed
    assert (changed.request, changed.name, changed.before) == (RAIN[0], "alpha", 1)
    assert changed.after > 1
    assert (await preview(service, BREAD)).changed == []


async def test_an_owner_sees_its_own_past_requests_only(service: ToolRetrievalService) -> None:
    await teach(service, "alpha", RAIN[:1], caller="one")
    await teach(service, "alpha", RAIN[1:], caller="two")
    await teach(service, "beta", MERGE, caller="two")
    for owner, own, others in (("one", 1, 0), ("two", 2, 2), ("three", 0, 0), (None, 3, 2)):
        past = await preview(service, BREAD, owner=owner)
        assert (past.own.requests, past.others.requests) == (own, others)


async def test_shared_past_use_counts_for_every_owner(searching: Searching) -> None:
    async with searching.open(usage_memory_shared=True) as service:
        await service.index_skills(SKILLS)
        await teach(service, "alpha", RAIN, caller="one")
        assert (await preview(service, BREAD, owner="two")).own.requests == 3


async def test_past_use_that_is_off_is_not_compared(searching: Searching) -> None:
    async with searching.open() as service:
        await service.index_skills(SKILLS)
        await teach(service, "alpha", RAIN)
    async with searching.open(usage_memory=False) as again:
        assert (await preview(again, BREAD)).own.requests == 0


async def test_past_requests_of_tools_are_left_out(service: ToolRetrievalService) -> None:
    key = tool_key("docs__join")
    await service.index_skill(Document(name=key, description="Joins PDF files"))
    await teach(service, key, MERGE)
    assert (await preview(service, PDF)).others.requests == 0


async def test_a_skill_that_is_not_indexed_wins_from_nothing(service: ToolRetrievalService) -> None:
    await teach(service, "beta", MERGE)
    past = await preview(service, Document(name="joiner", description=PDF.description))
    assert (past.own.requests, past.others.first.before) == (0, 2)
    assert past.others.first.lost > 0


async def test_only_the_newest_past_requests_are_compared(
    service: ToolRetrievalService, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(past_requests, "MAX_OWN", 2)
    monkeypatch.setattr(past_requests, "MAX_OTHERS", 1)
    await teach(service, "alpha", RAIN)
    await teach(service, "beta", MERGE)
    past = await preview(service, BREAD, texts=RAIN)
    assert (past.own.requests, past.others.requests, past.left_out) == (2, 1, 2)
    assert {changed.request for changed in past.changed} == set(RAIN[1:])


@pytest.mark.computes_in_loop
async def test_many_requests_are_ranked_at_once_as_one_by_one(service: ToolRetrievalService) -> None:
    requests = [service._index.embedder.embed_request(text) for text in (*RAIN, *MERGE, "什么天气")]
    models = service._index.embedder.models
    whole = [tuple(own and replace(own, clauses=own.clauses[:0]) for own in vectors) for vectors in requests]
    with service._index.memory.locked() as memory:
        slots = [number % len(memory) for number in range(len(whole))]
        one_by_one = [
            rank_of_slot(memory, models, Request(text="", vectors=vectors), slot)
            for vectors, slot in zip(whole, slots, strict=True)
        ]
        assert ranks_by_meaning(memory, models, whole, slots) == one_by_one
