"""The list of skills: filters, orders, figures and tags."""

from pathlib import Path
from typing import Any

import pytest

from apexbridge.bridge import Bridge
from apexbridge.sandbox.layers import LayerStore
from apexbridge.skills.manager import SkillManager
from apexbridge.skills.models import SkillPage
from tests.conftest import Workshop
from tests.making import skill_zip, write_skill, zip_of
from tests.sandbox.test_layers import make_wheel, wheel_index

pytestmark = pytest.mark.anyio


def names(page: SkillPage) -> list[str]:
    return [skill.name for skill in page]


async def listed(skills: SkillManager, **options: Any) -> list[str]:
    page = await skills.list_skills(**options)
    assert page.total == len(page)
    return names(page)


async def install(skills: SkillManager, name: str, files: dict[str, str | bytes] | None = None, **fields: Any) -> None:
    await skills.install_skill(skill_zip(name, files=files, **fields), overwrite=True)


# --------------------------------------------------------------------------------------------------------- filters
async def test_each_word_of_a_query_occurs_in_the_name_or_the_description(skills: SkillManager) -> None:
    await install(skills, "pdf-merge", description="Merges Files. 合并文件")
    await install(skills, "csv-merge", description="Joins tables of the Élan team")
    assert await listed(skills, query="MERGE") == ["csv-merge", "pdf-merge"]
    assert await listed(skills, query="merge files") == ["pdf-merge"]
    assert await listed(skills, query="  pdf   files ") == ["pdf-merge"]
    assert await listed(skills, query="合并") == ["pdf-merge"]
    assert await listed(skills, query="éLAN") == ["csv-merge"], "letters beyond ASCII have a case too"
    assert await listed(skills, query="merge nothing") == []
    assert await listed(skills, query="   ") == ["csv-merge", "pdf-merge"]


@pytest.mark.parametrize("query", ["%", "_", "'", '"', "\\", "\0", "a' OR 1=1 --", "*", "\U0010ffff", "𝔸"])
async def test_hostile_words_are_only_text(skills: SkillManager, query: str) -> None:
    await install(skills, "plain", description="Nothing odd here")
    assert await listed(skills, query=query) == []
    assert await listed(skills, source=query) == []
    assert await listed(skills, plugin=query) == []
    assert (await skills.list_tags(query)).tags == []


async def test_the_list_is_filtered_by_mode_state_source_and_plugin(workshop: Workshop, tmp_path: Path) -> None:
    root = tmp_path / "team"
    write_skill(root, "shared")
    async with workshop.open(roots=[root]) as skills:
        await install(skills, "runs", files={"scripts/execute.py": ""})
        await install(skills, "tells", mode="direct")
        package = {"box/.claude-plugin/plugin.json": '{"name": "box"}', "box/skills/part/SKILL.md": "# P\n\nDoes it.\n"}
        await skills.install_skill(zip_of(package))
        await skills.set_enabled("tells", False)
        assert await listed(skills, mode="sandbox") == ["runs"]
        assert await listed(skills, mode="direct") == ["part", "shared", "tells"]
        assert await listed(skills, enabled=False) == ["tells"]
        assert await listed(skills, enabled=True) == ["part", "runs", "shared"]
        assert await listed(skills) == ["part", "runs", "shared", "tells"]
        (label,) = {skill.source for skill in await skills.list_skills()} - {"installed"}
        assert await listed(skills, source=label) == ["shared"]
        assert await listed(skills, source="installed") == ["part", "runs", "tells"]
        assert await listed(skills, source="elsewhere") == []
        assert await listed(skills, plugin="box") == ["part"]
        assert await listed(skills, mode="direct", enabled=True, source="installed", query="does") == ["part"]
        await skills.update_config({"defaultMode": "sandbox"})
        assert await listed(skills, mode="direct") == ["tells"]
        assert await listed(skills, mode="sandbox") == ["part", "runs", "shared"]


# ---------------------------------------------------------------------------------------------------------- health
async def test_skills_with_warnings_and_dangerous_ones_are_found(skills: SkillManager) -> None:
    await install(skills, "fine")
    await install(skills, "odd", markdown="---\nname: odd\ndescription: Does it.\n---\nSee [it](missing.md).\n")
    await install(skills, "risky", dangerous=True)
    assert await listed(skills, health="warnings") == ["odd"]
    assert await listed(skills, health="confirm") == ["risky"]
    (odd,) = await skills.list_skills(name="odd")
    detail = await skills.get_skill("odd")
    assert odd.warning_count == detail.warning_count == len(detail.warnings) > 0


async def test_a_skill_needs_access_until_everything_is_granted_to_its_content(skills: SkillManager) -> None:
    asked = ["net:API.example.org:443", "env:TOKEN"]
    await install(skills, "quiet")
    await install(skills, "asks", metadata={"apex": {"permissions": asked}})
    assert await listed(skills, health="access") == ["asks"]
    await skills.grant("asks", "env:TOKEN")
    assert (await skills.get_skill("asks")).needs_access
    await skills.grant("asks", "net:api.example.org:443")
    assert await listed(skills, health="access") == []
    assert not (await skills.get_skill("asks")).needs_access
    await install(skills, "asks", metadata={"apex": {"permissions": asked}}, description="Another content.")
    assert await listed(skills, health="access") == ["asks"], "the grants are void"


async def test_a_skill_needs_packages_until_they_are_installed(
    bridge: Bridge, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    skills = bridge.skills
    make_wheel(wheel_index(monkeypatch, tmp_path), "pyyaml", {"yaml.py": ""})
    await install(
        skills, "alone", files={"scripts/execute.py": "import json, own_module\n", "scripts/own_module.py": ""}
    )
    await install(skills, "uses", files={"scripts/execute.py": "import yaml\n"})
    await install(skills, "declares", files={"requirements.txt": "pyyaml\n"})
    await install(skills, "refused", files={"requirements.txt": "git+https://example.org/x\n"})
    assert await listed(skills, health="packages") == ["declares", "refused", "uses"]
    await skills.install_dependencies("declares")
    assert await listed(skills, health="packages") == ["refused", "uses"]
    assert not (await skills.get_skill("declares")).needs_packages
    assert (await skills.get_skill("uses")).needs_packages
    await skills.change_dependencies("uses", add=["pyyaml"], install=True)
    await skills.change_dependencies("alone", add=["jinja2"])
    assert await listed(skills, health="packages") == ["alone", "refused"]
    shown = {skill.name: skill.needs_packages for skill in await skills.list_skills()}
    assert shown == {"alone": True, "declares": False, "refused": True, "uses": False}


async def test_the_list_reads_no_file_of_a_skill(skills: SkillManager, data_dir: Path) -> None:
    await install(skills, "uses", files={"scripts/execute.py": "import yaml\n"})
    folder = data_dir / "skills/uses"
    folder.rename(data_dir / "away")
    assert await listed(skills, health="packages", query="commit", sort="calls") == ["uses"]


def test_layers_are_listed_by_their_keys(tmp_path: Path) -> None:
    store = LayerStore(tmp_path / "layers")
    assert store.keys() == set()
    (tmp_path / "layers/python/0123456789ab/layer").mkdir(parents=True)
    assert store.keys() == {("python", "0123456789ab")}


# ----------------------------------------------------------------------------------------------------------- orders
async def test_the_list_is_sorted_by_name_time_calls_and_failures(skills: SkillManager) -> None:
    for name in ("b-first", "a-second", "c-third"):
        await install(skills, name)
    await install(skills, "b-first", description="Changed.")
    for success in (True, False, False):
        await skills._statistics.record("c-third", success=success, duration_ms=5)
    for _ in range(4):
        await skills._statistics.record("a-second", success=True, duration_ms=5)
    by_name = ["a-second", "b-first", "c-third"]
    assert await listed(skills) == by_name
    assert await listed(skills, sort="-name") == by_name[::-1]
    assert await listed(skills, sort="installed") == ["c-third", "a-second", "b-first"]
    assert await listed(skills, sort="updated") == ["b-first", "c-third", "a-second"]
    assert await listed(skills, sort="calls") == ["a-second", "c-third", "b-first"]
    assert await listed(skills, sort="failures") == ["c-third", "a-second", "b-first"]
    assert await listed(skills, sort="updated", query="c-") == ["c-third"]
    page = await skills.list_skills(sort="calls", page=2, limit=1)
    assert (names(page), page.total) == (["c-third"], 3)
    third = page.skills[0]
    assert (third.calls, third.failures) == (3, 2)
    assert third.last_used_at is not None
    assert third.last_used_at >= third.installed_at
    unused = (await skills.list_skills(name="b-first")).skills[0]
    assert (unused.calls, unused.failures, unused.last_used_at) == (0, 0, None)
    detail = await skills.get_skill("c-third")
    assert (detail.calls, detail.failures, detail.last_used_at) == (3, 2, third.last_used_at)


async def test_a_database_of_an_earlier_version_is_filled_at_the_next_start(workshop: Workshop) -> None:
    async with workshop.open() as skills:
        await install(skills, "uses", files={"scripts/execute.py": "import yaml\n"}, permissions=["env:TOKEN"])
        before = await skills.get_skill("uses")
        reset = "UPDATE skills SET needs = '{}', permissions = '[]', warning_count = 0, signature = ''"
        await skills._catalog._database.execute(reset)  # as the migration leaves it
        assert await listed(skills, health="packages") == []
    async with workshop.open() as skills:
        assert await listed(skills, health="packages") == ["uses"]
        assert await skills.get_skill("uses") == before


# ------------------------------------------------------------------------------------------------------------- tags
async def test_tags_are_counted_the_most_frequent_first(workshop: Workshop, tmp_path: Path) -> None:
    root = tmp_path / "team"
    write_skill(root, "one", tags=["shadowed"])
    async with workshop.open(roots=[root]) as skills:
        await install(skills, "one", tags=["PDF", "data"])
        await install(skills, "two", tags=["pdf", "draw_x"])
        await install(skills, "three", description="Handles spreadsheets and workbooks of accountants")
        found = await skills.list_tags()
        assert [(tag.tag, tag.count) for tag in found.tags][:2] == [("pdf", 2), ("data", 1)]
        assert "shadowed" not in [tag.tag for tag in found.tags]
        assert "three" in [tag.tag for tag in found.tags], "derived tags count too"
        assert found.total == len(found.tags)
        few = await skills.list_tags("D", limit=1)
        assert ([tag.tag for tag in few.tags], few.total) == (["data"], 2)
        assert (await skills.list_tags("draw%")).total == 0
        await skills.uninstall_skill("two")
        assert (await skills.list_tags("pdf")).tags[0].count == 1


async def test_a_skill_cannot_have_the_name_of_the_route(skills: SkillManager) -> None:
    report = await skills.validate_skill(skill_zip("tags"))
    assert (report.valid, "reserved" in report.errors[0]) == (False, True)
