"""Pairs of skills that search may confuse, over HTTP and on the command line."""

from pathlib import Path

import pytest

from apexbridge.bridge import Bridge
from tests.conftest import client_of
from tests.making import skill_zip, write_skill
from tests.surfaces.conftest import Apex

EXAMPLES = Path(__file__).parent.parent.parent / "examples/skills"


@pytest.fixture
def team(tmp_path: Path) -> Path:
    for name, description in {
        "pdf-merge": "Merge PDF files into one",
        "pdf-joiner": "Joins PDF files into one file",
        "weather": "Weather forecast for a city",
        "forecast": "Weather forecast for a city",
    }.items():
        write_skill(tmp_path / "team", name, description=description)
    return tmp_path / "team"


@pytest.mark.anyio
async def test_confusable_pairs_are_listed_over_http_in_pages(bridge: Bridge) -> None:
    for name in ("weather", "forecast", "outlook"):
        await bridge.skills.install_skill(skill_zip(name, description="Weather forecast for a city"))
    async with client_of(bridge) as client:
        report = (await client.get("/api/insights/confusable", params={"limit": 1})).json()
        assert {key: report[key] for key in ("total", "page", "limit", "compared", "warnings")} == {
            "total": 2,
            "page": 1,
            "limit": 1,
            "compared": 3,
            "warnings": [],
        }
        (pair,) = report["pairs"]
        assert (pair["score"], pair["duplicate"]) == (1.0, True)
        assert set(pair["first"]) == {"kind", "name", "ownWords"}
        await client.post("/api/skills/outlook/disable")
        assert (await client.get("/api/insights/confusable")).json()["total"] == 1
        assert (await client.get("/api/insights/confusable", params={"limit": 0})).status_code == 422


def test_the_command_lists_pairs_with_the_words_that_differ_and_what_to_do(apex: Apex, team: Path) -> None:
    assert apex("skills", "import", team).code == 0
    shown = apex("skills", "doctor", "--confusable")
    assert shown.code == 0
    rows = [line.split("\t") for line in shown.out.splitlines()]
    assert sorted(rows[0][1:3]) == ["forecast", "weather"]
    assert (rows[0][0], rows[0][3]) == ("1.00", "none: the descriptions are the same")
    assert sorted(rows[1][1:3]) == ["pdf-joiner", "pdf-merge"]
    assert "merge" in rows[1][3]
    assert "joins" in rows[1][3]
    assert "apex skills uninstall NAME" in shown.err
    assert "apex skills set-description NAME TEXT --preview" in shown.err
    report = apex("skills", "doctor", "--confusable", "--json").json
    assert [pair["duplicate"] for pair in report["pairs"]] == [True, False]


def test_the_example_skills_are_not_confusable(apex: Apex) -> None:
    assert apex("skills", "import", EXAMPLES).code == 0
    shown = apex("skills", "doctor", "--confusable")
    assert (shown.code, shown.out) == (0, "")
    assert shown.err.endswith("No two of 5 skills and tools are easily confused.\n")


@pytest.mark.parametrize("arguments", [(), (".", "--confusable"), ("--write", "--confusable")])
def test_the_command_needs_either_a_path_or_the_option(apex: Apex, arguments: tuple[str, ...]) -> None:
    refused = apex("skills", "doctor", *arguments)
    assert refused.code == 2
    assert "--confusable" in refused.err
