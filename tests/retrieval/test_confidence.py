"""Requests that no skill answers."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from apexbridge.retrieval.body import searchable_body
from apexbridge.retrieval.config import RetrievalSettings
from apexbridge.retrieval.documents import Document
from apexbridge.retrieval.matches import confidence, confidence_of_any
from apexbridge.retrieval.packed_body import PackedBody
from apexbridge.retrieval.ranking import Candidate
from apexbridge.skills.package.skill_md import read_skill_markdown
from tests.retrieval.conftest import Searching

ROOT = Path(__file__).parents[2]
REQUESTS = Path(__file__).with_name("requests_without_answer.txt").read_text().splitlines()
ANSWERED = {
    "commit my changes with a good message": "commit-message",
    "帮我提交代码": "commit-message",
}
IN_OTHER_LANGUAGES = {
    "schreibe eine gute Commit-Nachricht für meine Änderungen": "commit-message",
    "écrire un message de commit pour mes changements": "commit-message",
    "analizar los datos de un archivo CSV": "csv-insights",
    "напиши сообщение для коммита": "commit-message",
}
MAX_FALSE_ALARMS = 0.08
DEFAULT_THRESHOLD = RetrievalSettings().threshold
NEAR = Candidate(
    slot=0,
    score=1.0,
    likeness=0.6,
    vector_rank=1,
    keyword_rank=1,
    matched=["word"],
    share=0.3,
    rarest=0.3,
    known=0.7,
    field=0.1,
    variation=0.1,
    past=0.0,
    crowd=2.0,
)


def examples() -> list[Document]:
    found = []
    for path in sorted((ROOT / "examples/skills").rglob("SKILL.md")):
        reading = read_skill_markdown(path.read_bytes(), folder=path.parent.name, profile="lenient")
        assert reading.metadata is not None
        found.append(
            Document(
                name=reading.metadata.name,
                description=reading.metadata.description,
                tags=reading.metadata.tags,
                packed_body=PackedBody.of(searchable_body(reading.body)),
            )
        )
    return found


@pytest.mark.anyio
@pytest.mark.computes_in_loop
async def test_nothing_is_shown_for_most_requests_that_no_skill_answers(searching: Searching) -> None:
    async with searching.open() as service:
        await service.index_skills(examples())
        shown = [text for text in REQUESTS if (await service.search(text)).results]
        assert len(shown) <= MAX_FALSE_ALARMS * len(REQUESTS), shown
        for text, name in ANSWERED.items():
            assert (await service.search(text)).results[0].name == name


@pytest.mark.anyio
@pytest.mark.computes_in_loop
@pytest.mark.parametrize(("text", "name"), IN_OTHER_LANGUAGES.items())
async def test_a_request_in_another_language_shows_its_skill(searching: Searching, text: str, name: str) -> None:
    async with searching.open() as service:
        await service.index_skills(examples())
        assert [match.name for match in (await service.search(text)).results][:1] == [name]
        assert not (await service.search("warum ist der Himmel am Abend für mich so rot")).results


@pytest.mark.parametrize(
    ("name", "lower", "higher"),
    [
        ("likeness", 0.3, 0.6),
        ("rarest", 0.1, 0.3),
        ("known", 0.3, 0.7),
        ("field", 0.0, 0.1),
        ("variation", 0.03, 0.1),
        ("crowd", 3.0, 2.0),
        ("past", 0.0, 0.5),
    ],
)
def test_that_any_skill_is_right_is_likelier_with_each_sign_of_it(name: str, lower: float, higher: float) -> None:
    changes: list[dict[str, Any]] = [{name: lower}, {name: higher}]
    less, more = (confidence_of_any(replace(NEAR, **change)) for change in changes)
    assert less < more


def test_a_confirmed_request_is_shown_even_if_its_words_say_nothing() -> None:
    confirmed = replace(NEAR, likeness=-0.35, rarest=0.0, known=0.0, field=-0.2, variation=0.06, crowd=3.0, past=1.0)
    assert min(confidence(confirmed), confidence_of_any(confirmed)) > DEFAULT_THRESHOLD


def test_by_words_alone_only_the_skill_itself_counts() -> None:
    assert confidence_of_any(replace(NEAR, likeness=None)) == 1.0


@pytest.mark.anyio
@pytest.mark.computes_in_loop
async def test_no_match_is_surer_than_that_any_skill_is_right(
    searching: Searching, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with searching.open() as service:
        await service.index_skills(examples())
        request = next(iter(ANSWERED))
        assert (await service.search(request)).results[0].score > 0.9
        monkeypatch.setattr("apexbridge.retrieval.matches.confidence_of_any", lambda first: 0.2)
        assert {match.score for match in (await service.search(request, threshold=0)).results[:1]} == {0.2}
        monkeypatch.setattr("apexbridge.retrieval.matches.confidence_of_any", lambda first: 0.1)
        assert (await service.search(request)).results == []
