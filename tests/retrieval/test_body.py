"""The body of SKILL.md in search: what of it is compared, and requests from held-back lines."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from apexbridge.errors import InvalidInputError
from apexbridge.retrieval.body import MAX_BODY_CHARACTERS, searchable_body
from apexbridge.retrieval.body_evaluation import SkillText, evaluate_bodies, hold_back, request_of
from apexbridge.retrieval.documents import Document
from apexbridge.retrieval.embedders.embedder import Embedder
from apexbridge.retrieval.index.keyword_index import KeywordIndex
from apexbridge.retrieval.packed_body import PackedBody
from apexbridge.retrieval.text import tokens
from apexbridge.surfaces.cli.app import app
from tests.retrieval.conftest import Searching

BODY = """# Sailing

Intro about boats.

## Setup

Run `make` first.

```bash
# When to use: never shown
rm -rf /
```

| a | table |
|---|---|

## When to use

- Planning a **weekend trip** with [tides](https://example.org/tides)
- "How strong is the wind tomorrow?"

## When not to use

- Buying a yacht
"""


def test_what_says_when_to_use_a_skill_comes_first_then_headings_then_other_prose() -> None:
    assert searchable_body(BODY).splitlines() == [
        "Planning a weekend trip with tides",
        '"How strong is the wind tomorrow?"',
        "Sailing",
        "Setup",
        "When to use",
        "Intro about boats.",
        "Run make first.",
    ]


@pytest.mark.parametrize(
    "body",
    ["", "\n\n", "```\nnever closed\n# When to use\n- x", "|a|b|\n|--|--|", "#" * 100_000, "# " * 100_000],
    ids=["empty", "blank", "open fence", "table", "hashes", "headings"],
)
def test_a_body_without_prose_is_empty_or_short(body: str) -> None:
    assert len(searchable_body(body)) < 1000


@pytest.mark.parametrize("body", ["word " * 2_000_000, "- item\n" * 1_500_000, "[" * 10_000_000, "**" * 5_000_000])
def test_a_body_of_ten_megabytes_is_read_in_part(body: str) -> None:
    assert len(searchable_body(body)) <= MAX_BODY_CHARACTERS


@pytest.mark.anyio
async def test_a_skill_is_found_by_words_of_its_body(searching: Searching) -> None:
    plain = Document(name="sailing", description="All about boats")
    skill = Document(name="sailing", description="All about boats", packed_body=PackedBody.of("knots and splices"))
    other = Document(name="cooking", description="Recipes for two")
    async with searching.open() as service:
        await service.index_skills([plain, other])
        before = await service.search("zeppelin splices", threshold=0)
        assert "splices" not in before.results[0].why.matched_words
        await service.index_skills([skill])
        after = await service.search("zeppelin splices", threshold=0)
        assert after.results[0].name == "sailing"
        assert after.results[0].why.matched_words == ["splices"]
    async with searching.open() as again:  # from the snapshot
        assert (await again.search("zeppelin splices", threshold=0)).results == after.results
    searching.data_dir.joinpath("skills.snapshot").unlink()
    async with searching.open() as again:  # from the tables
        assert (await again.search("zeppelin splices", threshold=0)).results == after.results


def test_words_of_the_description_weigh_more_than_those_of_the_body() -> None:
    index = KeywordIndex()
    index.put(0, ["boat", "red"], body=["sail"])
    index.put(1, ["sail", "red"], body=["boat"])
    assert index.score(["sail"])[1] > index.score(["sail"])[0] > 0
    assert index.matched(0, ["sail", "boat"])[0] == ["sail", "boat"]
    assert index.matched(0, ["sail"])[1] == 0, "only words of the description count for the confidence"


@pytest.mark.parametrize(
    ("line", "request_"),
    [
        ('"What is the wind like?" - asks a sailor', "What is the wind like?"),
        ("Merging two PDF files", "merge two PDF files"),
        ("Planning a trip", "plan a trip"),
        ("The user wants to convert a video", "convert a video"),
        ("When the user asks for a chart", "a chart"),
        ("用户想要合并文件。", "用户想要合并文件"),
    ],
)
def test_a_line_becomes_a_request(line: str, request_: str) -> None:
    assert request_of(line) == request_


def skill(id: str, body: str, description: str = "Something else entirely") -> SkillText:
    return SkillText(id=id, name=f"skill {id}", description=description, body=body)


def test_a_request_is_held_back_with_every_line_that_has_its_words() -> None:
    body = "## When to use\n- Merging two PDF files quickly\n\n## Notes\nTwo PDF files, merged quickly.\nAnother line"
    (held,) = hold_back([skill("1", body)])
    assert held.request == "merge two PDF files quickly"
    assert held.body.splitlines() == ["When to use", "Notes", "Another line"]


@pytest.mark.parametrize(
    "one",
    [
        skill("1", "## Notes\n- Merging two PDF files quickly"),
        skill("1", "## When not to use\n- Merging two PDF files quickly"),
        skill("1", "## When to use\n- Skill 1 tasks and others"),
        skill("1", "## When to use\n- Merging two PDF files", description="Merges two PDF files"),
        skill("1", "## When to use\n- Run `a/b` --now with {input} files"),
    ],
    ids=["other section", "not to use", "names the skill", "in the description", "a command"],
)
def test_lines_that_would_tell_nothing_are_not_held_back(one: SkillText) -> None:
    assert hold_back([one]) == []


def test_a_line_that_two_skills_have_is_not_held_back() -> None:
    body = "## When to use\n- Merging two PDF files quickly"
    assert hold_back([skill("1", body), skill("2", body)]) == []


def test_bodies_are_measured_with_and_without(embedder: Embedder) -> None:
    sail = "## When to use\n- Splicing ropes on deck quickly\n\n## Work\nA splice lasts. Learn to splice.\nA dry deck."
    skills = [skill("sail", sail, "Number nine"), *(skill(str(n), "", f"Deck chairs of kind {n}") for n in range(8))]
    found, held = evaluate_bodies(embedder, skills)
    assert [one.id for one in held] == ["sail"]
    assert found.with_body.mrr > found.without_body.mrr
    with pytest.raises(InvalidInputError, match="No body of 1 skills"):
        evaluate_bodies(embedder, [skill("1", "nothing")])


def test_the_command_reads_a_folder_of_skills(tmp_path: Path) -> None:
    for name in ("sail", "cook"):
        (tmp_path / "deep" / name).mkdir(parents=True)
        text = f"---\nname: {name}\ndescription: About it, {name}\n---\n## When to use\n- Ropes, {name[1:]} and knots\n"
        (tmp_path / "deep" / name / "SKILL.md").write_text(text)
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken/SKILL.md").write_bytes(b"\xff\xfe")
    out = tmp_path / "requests.jsonl"
    done = CliRunner().invoke(app, ["eval", "body", str(tmp_path), "--queries-out", str(out)])
    assert done.exit_code == 0, done.output
    assert "with bodies" in done.output
    assert out.read_text().count('"gold": ["deep/') == 2
    failed = CliRunner().invoke(app, ["eval", "body", str(tmp_path / "broken")])
    assert isinstance(failed.exception, InvalidInputError)
    assert "has no skills" in str(failed.exception)
    missing = CliRunner().invoke(app, ["eval", "body", str(tmp_path / "missing")])
    assert str(missing.exception) == f"There is no folder {tmp_path / 'missing'}."
    unwritable = CliRunner().invoke(app, ["eval", "body", str(tmp_path), "--queries-out", str(tmp_path)])
    assert str(unwritable.exception) == f"{tmp_path.name} cannot be written: it is a folder"


def test_tokens_of_a_body_are_those_of_a_description() -> None:
    document = Document(name="a", description="b", packed_body=PackedBody.of("合并 merging"))
    assert tokens(document.body) == tokens("合并 merging")
