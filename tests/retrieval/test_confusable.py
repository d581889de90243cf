"""Pairs of skills and tools that requests may confuse."""

import asyncio
import threading
from collections.abc import Collection, Mapping
from dataclasses import replace

import numpy as np
import pytest

from apexbridge.retrieval.confusable import ConfusablePair, ConfusableReport, _Nearest
from apexbridge.retrieval.documents import Document, SkillFacts, tool_key
from apexbridge.retrieval.embedders.embedder import Embedder
from apexbridge.retrieval.embedders.model import Scale
from apexbridge.retrieval.service import ToolRetrievalService
from tests.retrieval.conftest import LIBRARY, Searching
from tests.retrieval.test_scale import WordModel, library
from tests.waiting import until

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


# ----------------------------------------------------------------------------------------------------- large libraries
class EnglishModel(WordModel):
    english_only = True


def many() -> list[Document]:
    """Skills, some of which are nearly the same, some in Chinese."""
    common = library(200)
    again = [replace(one, name=f"again-{one.name}", description=f"{one.description} twice") for one in common[::9]]
    chinese = [
        Document(name=f"zh-{number}", description=f"把{thing}转换成表格并核对金额{number}")
        for number, thing in enumerate(["发票", "合同", "照片", "会议", "食谱", "地图", "账单", "日志"])
    ]
    others = [Document(name=f"other-{number}", description=f"topic{number} thing{number * 7}") for number in range(60)]
    return [
        *common[:100],
        *chinese,
        *again,
        *others,
        *common[100:],
        replace(chinese[0], name="zh", description="把发票转换成表格并核对金额"),
    ]


@pytest.mark.parametrize("with_tools", [False, True])
async def test_the_pairs_of_a_large_library_are_those_of_an_exact_comparison(
    searching: Searching, monkeypatch: pytest.MonkeyPatch, with_tools: bool
) -> None:
    embedder = Embedder([WordModel("one", 256), EnglishModel("two", 192)])
    documents = many()
    if with_tools:
        documents[50:250] = [replace(one, name=tool_key(one.name)) for one in documents[50:250]]
    async with searching.open(embedder) as service:
        await service.index_skills(documents)
        exact = await service.confusable(limit=1000)
    monkeypatch.setattr("apexbridge.retrieval.index.vector_index.EXACT_LIMIT", 60)
    monkeypatch.setattr("apexbridge.retrieval.confusable.EXACT_ROWS", 100)
    monkeypatch.setattr("apexbridge.retrieval.confusable.BLOCK_ROWS", 64)
    monkeypatch.setattr("apexbridge.retrieval.confusable.READ_ROWS", 16)
    async with searching.open(embedder) as service:
        await service.index_skills([Document(name="late", description="unlike the others")])
        await service.remove_skill("late")
        assert not service._index.memory.vectors.is_exact
        coded = await service.confusable(limit=1000)
    assert exact.total > 10
    assert any(pair.first.name.startswith("zh") for pair in exact.pairs)
    shares = [{(pair.first.name, pair.second.name): pair.score for pair in own.pairs} for own in (exact, coded)]
    same = shares[0].keys() & shares[1].keys()
    assert len(same) >= 0.97 * max(map(len, shares))
    assert all(abs(shares[0][pair] - shares[1][pair]) <= 0.03 for pair in same)


@pytest.mark.parametrize("block", [7, 64, 1000])
def test_the_nearest_neighbours_are_found_in_blocks_of_any_size(monkeypatch: pytest.MonkeyPatch, block: int) -> None:
    vectors = np.random.default_rng(1).standard_normal((150, 12)).astype(np.float32)
    similarity = vectors @ vectors.T
    found = _Nearest(150, 20)
    parts = [slice(start, min(start + block, 150)) for start in range(0, 150, block)]
    np.fill_diagonal(similarity, -np.inf)
    for number, rows in enumerate(parts):
        found.add(rows, rows, np.ascontiguousarray(similarity[rows, rows]))
        for columns in parts[number + 1 :]:
            own = np.ascontiguousarray(similarity[rows, columns])
            found.add(rows, columns, own)
            found.add(columns, rows, own.T)
    np.testing.assert_array_equal(np.sort(found.rows, axis=1), np.sort(np.argsort(-similarity, axis=1)[:, :20], axis=1))


async def test_searches_answer_while_pairs_are_compared(searching: Searching) -> None:
    waiting, released = threading.Event(), threading.Event()

    class GatedModel(WordModel):
        is_comparing = False

        def scale(self) -> Scale:
            if self.is_comparing:
                waiting.set()
                assert released.wait(60)
            return super().scale()

    model = GatedModel("one", 64)
    async with searching.open(Embedder([model])) as service:
        await service.index_skills(LIBRARY)
        before = await service.search("merge pdf files", threshold=0)
        model.is_comparing = True
        comparing = asyncio.create_task(service.confusable())
        await until(waiting.is_set)
        service._rankings.clear()
        assert (await service.search("merge pdf files", threshold=0)).results == before.results
        await service.index_skill(Document(name="quagga", description="walks the quagga"))
        released.set()
        assert (await comparing).compared == len(LIBRARY)
