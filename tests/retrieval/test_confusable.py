"""Pairs of skills and tools that requests may confuse."""

from collections.abc import Collection, Mapping
from dataclasses import replace

import pytest

from apexbridge.retrieval.confusable import ConfusablePair, ConfusableReport
from apexbridge.retrieval.documents import Document, SkillFacts, tool_key
from apexbridge.retrieval.service import ToolRetrievalService
from tests.retrieval.conftest import LIBRARY, Searching

pytestmark = pytest.mark.anyio
JOINER = Document(name="pdf-joiner", description="Joins PDF files into one file")
SERVICES = ("Asana", "Basecamp", "Calendly", "Dropbox", "Figma", "GitHub", "HubSpot", "Intercom", "Jira", "Klaviyo")
MORE_SERVICES = ("Linear", "Mailchimp", "Notion", "Outlook", "PagerDuty", "QuickBooks", "Reddit", "Slack", "Trello")
EVEN_MORE_SERVICES = ("Unsplash", "Vimeo", "WordPress", "Xero", "YouTube", "Zendesk", "Airtable", "Bitbucket")


def names(report: ConfusableReport) -> list[tuple[str, str]]:
    return [(pair.first.name, pair.second.name) for pair in report.pairs]


async def only_pair(service: ToolRetrievalService) -> ConfusablePair:
    report = await service.confusable()
    (pair,) = report.pairs
    assert report.total == 1
    return pair


async def test_a_library_of_different_skills_has_no_confusable_pair(service: ToolRetrievalService) -> None:
    report = await service.confusable()
    assert (report.pairs, report.total, report.compared, report.warnings) == ([], 0, len(LIBRARY), [])


async def test_two_skills_for_the_same_are_reported_with_the_words_that_differ(service: ToolRetrievalService) -> None:
    await service.index_skill(JOINER)
    pair = await only_pair(service)
    assert (pair.first.name, pair.second.name, pair.duplicate) == ("pdf-merge", "pdf-joiner", False)
    assert 0.45 <= pair.score < 1
    assert pair.first.own_words == ["merge"]
    assert pair.second.own_words == ["joins", "joiner"]
    assert set(pair.shared_words) == {"pdf", "files", "into", "one"}


async def test_an_equal_description_is_a_duplicate_in_any_case_and_white_space(
    service: ToolRetrievalService,
) -> None:
    await service.index_skill(Document(name="forecast", description="weather  forecast\nfor a City"))
    pair = await only_pair(service)
    assert (pair.first.name, pair.second.name, pair.score, pair.duplicate) == ("weather", "forecast", 1.0, True)


async def test_each_further_copy_of_a_description_is_one_pair(service: ToolRetrievalService) -> None:
    await service.index_skills([replace(LIBRARY[2], name=f"weather-{number}") for number in range(4)])
    assert names(await service.confusable()) == [("weather", f"weather-{number}") for number in range(4)]


async def test_chinese_skills_are_compared_by_the_model_that_reads_chinese(service: ToolRetrievalService) -> None:
    await service.index_skills(
        [
            Document(name="invoices", description="核对发票的金额和税号，找出重复报销的发票。"),
            Document(name="holiday", description="根据员工的入职日期计算剩余年假天数。"),
            Document(name="bills", description="检查发票的金额和税号，找出重复报销。"),
        ]
    )
    assert names(await service.confusable()) == [("invoices", "bills")]


async def test_skills_of_one_pattern_are_not_confusable_if_one_word_differs(searching: Searching) -> None:
    pattern = "Automate {} tasks through the gateway. Always search the tools first for the current schemas."
    services = (*SERVICES, *MORE_SERVICES, *EVEN_MORE_SERVICES)
    async with searching.open() as service:
        await service.index_skills(
            [Document(name=f"{one.lower()}-automation", description=pattern.format(one)) for one in services]
        )
        assert names(await service.confusable()) == []


async def test_tools_are_compared_with_skills_and_with_each_other(service: ToolRetrievalService) -> None:
    await service.index_skills([Document(name=tool_key("docs__join"), description=JOINER.description)])
    pair = await only_pair(service)
    assert (pair.first.kind, pair.first.name) == ("skill", "pdf-merge")
    assert (pair.second.kind, pair.second.name) == ("tool", "docs__join")


async def test_disabled_skills_are_left_out(searching: Searching) -> None:
    async with searching.open() as service:
        await service.index_skills([*LIBRARY, JOINER])
        assert names(await service.confusable()) == [("pdf-merge", "pdf-joiner")]
        disabled = {"pdf-joiner"}

        async def facts(keys: Collection[str]) -> Mapping[str, SkillFacts]:
            return {key: SkillFacts(mode="direct", enabled=key not in disabled) for key in keys}

        service.facts = facts
        assert (await service.confusable()).total == 0
        disabled.clear()
        assert (await service.confusable()).total == 1


async def test_pairs_have_pages(service: ToolRetrievalService) -> None:
    await service.index_skills([replace(LIBRARY[2], name=f"weather-{number}") for number in range(3)])
    report = await service.confusable(page=2, limit=2)
    assert (names(report), report.total, report.page, report.limit) == ([("weather", "weather-2")], 3, 2, 2)


async def test_skills_without_a_vector_are_counted_and_compared_by_equal_descriptions(
    service: ToolRetrievalService,
) -> None:
    await service.upsert([replace(LIBRARY[2], name="forecast"), JOINER], [None, None])
    report = await service.confusable()
    assert names(report) == [("weather", "forecast")]
    assert report.warnings == [
        "2 of 7 skills and tools are not indexed by meaning yet. Of these, only equal descriptions are listed."
    ]


async def test_an_empty_library_has_no_pair(searching: Searching) -> None:
    async with searching.open() as service:
        assert (await service.confusable()).total == 0
