"""Requests that no skill answers."""

from pathlib import Path

import pytest

from apexbridge.retrieval.body import searchable_body
from apexbridge.retrieval.documents import Document, packed_body
from apexbridge.skills.package.skill_md import read_skill_markdown
from tests.retrieval.conftest import Searching

ROOT = Path(__file__).parents[2]
REQUESTS = Path(__file__).with_name("requests_without_answer.txt").read_text().splitlines()
ANSWERED = {
    "commit my changes with a good message": "commit-message",
    "帮我提交代码": "commit-message",
}
MAX_FALSE_ALARMS = 0.1


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
                packed_body=packed_body(searchable_body(reading.body)),
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
