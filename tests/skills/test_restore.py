"""Removed skills are kept for some days and can be restored; skills of other roots are hidden, not deleted."""

import json
from pathlib import Path

import anyio
import pytest

from apexbridge._time import MS_PER_DAY
from apexbridge.errors import ApexBridgeError
from apexbridge.skills import MARKER_FILE
from apexbridge.skills.manager import SkillManager
from apexbridge.skills.store import trash
from tests.conftest import Workshop
from tests.making import skill_zip, walk, write_skill
from tests.skills.source_server import shop_of
from tests.skills.test_plugins import plugin_zip
from tests.waiting import until

pytestmark = pytest.mark.anyio


def age(data_dir: Path, days: float) -> None:
    """Make every entry of the trash older."""
    for path in (data_dir / "trash").glob("*/removed.json"):
        record = json.loads(path.read_text())
        record["removedAt"] -= int(days * MS_PER_DAY)
        path.write_text(json.dumps(record))


def contents(data_dir: Path) -> dict[str, str]:
    """The files of all skills, without markers, which contain a time."""
    return {path: value for path, value in walk(data_dir / "skills").items() if not path.endswith(MARKER_FILE)}


async def test_a_removed_skill_comes_back_with_its_edits_counts_and_state(
    skills: SkillManager, workshop: Workshop, data_dir: Path
) -> None:
    await skills.install_skill(skill_zip("pdf", {"notes.md": "x", "requirements.txt": "pypdf"}))
    await skills.update_skill_description("pdf", "A description that was edited here.")
    await skills.execute_skill("pdf")
    await skills.set_enabled("pdf", False)
    before = await skills.get_skill("pdf")
    dependencies = await skills.dependencies_of("pdf")
    receipt = await skills.uninstall_skill("pdf")
    assert receipt.restorable_until is not None
    assert (await skills.list_skills()).total == 0
    assert workshop.tool_names == []
    assert workshop.index.vectors == {}
    (item,) = await skills.removed_skills()
    assert (item.name, item.kind, item.skills) == ("pdf", "skill", ["pdf"])
    assert item.description == "A description that was edited here."
    assert item.restorable_until == receipt.restorable_until
    assert item.size > 0
    assert (await skills.restore_skill("pdf")).name == "pdf"
    after = await skills.get_skill("pdf")
    assert (after.content_hash, after.description, after.enabled) == (before.content_hash, before.description, False)
    assert (await skills.skill_statistics("pdf")).call_count == 1
    assert await skills.dependencies_of("pdf") == dependencies
    assert set(workshop.index.vectors) == {"pdf"}
    assert await skills.removed_skills() == []
    assert list((data_dir / "trash").iterdir()) == []


async def test_grants_are_not_restored(skills: SkillManager) -> None:
    permission = "net:example.org:443"
    await skills.install_skill(skill_zip("pdf", permissions=[permission]))
    await skills.grant("pdf", permission)
    await skills.uninstall_skill("pdf")
    await skills.restore_skill("pdf")
    assert [view.state for view in await skills.grants_of("pdf")] == ["requested"]


async def test_a_removed_skill_survives_a_restart_and_is_deleted_after_seven_days(
    workshop: Workshop, data_dir: Path
) -> None:
    async with workshop.open() as skills:
        await skills.install_skill(skill_zip("pdf"))
        await skills.uninstall_skill("pdf")
    age(data_dir, 6.9)
    async with workshop.open() as skills:
        assert [item.name for item in await skills.removed_skills()] == ["pdf"]
    age(data_dir, 0.2)
    async with workshop.open() as skills:
        assert await skills.removed_skills() == []
        with pytest.raises(ApexBridgeError) as caught:
            await skills.restore_skill("pdf")
        assert caught.value.code == "SKILL_NOT_FOUND"
    assert list((data_dir / "trash").iterdir()) == []


async def test_expired_entries_are_deleted_while_the_server_runs(skills: SkillManager, data_dir: Path) -> None:
    await skills.install_skill(skill_zip("pdf"))
    await skills.uninstall_skill("pdf")
    await skills.install_skill(skill_zip("other"))
    await skills.uninstall_skill("other")
    old = next(path for path in (data_dir / "trash").iterdir() if (path / "gone.pdf").exists())
    record = json.loads((old / "removed.json").read_text())
    (old / "removed.json").write_text(json.dumps(record | {"removedAt": 1}))
    skills.store.library.removed.sweep()
    assert [item.name for item in await skills.removed_skills()] == ["other"]
    assert not old.exists()


async def test_the_server_checks_the_age_of_entries_at_intervals(
    skills: SkillManager, data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("apexbridge.skills.manager.SWEEP_SECONDS", 0.01)
    await skills.install_skill(skill_zip("pdf"))
    await skills.uninstall_skill("pdf")
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(skills.keep_tidy)
        age(data_dir, 8)
        await until(lambda: not list((data_dir / "trash").iterdir()))
        tasks.cancel_scope.cancel()


async def test_the_oldest_entries_are_deleted_beyond_the_size_limit(
    skills: SkillManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("one", "two", "three"):
        await skills.install_skill(skill_zip(name, {"data": "x" * 50_000}))
        await skills.uninstall_skill(name)
    monkeypatch.setattr(trash, "MAX_TRASH_BYTES", 200_000)
    skills.store.library.removed.sweep()
    assert [item.name for item in await skills.removed_skills()] == ["three", "two"]


async def test_without_free_space_a_skill_is_deleted_and_not_kept(
    skills: SkillManager, data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await skills.install_skill(skill_zip("pdf"))
    await skills.install_skill(plugin_zip("alpha", "beta"))
    monkeypatch.setattr("apexbridge.disk.RESERVE_BYTES", 1 << 62)
    assert (await skills.uninstall_skill("pdf")).restorable_until is None
    assert (await skills.uninstall_plugin("my-plugin")).restorable_until is None
    assert list((data_dir / "trash").iterdir()) == []
    assert (await skills.list_skills()).total == 0


async def test_a_taken_name_is_reported_and_an_older_version_is_restored_by_its_id(skills: SkillManager) -> None:
    for text in ("The first version of this skill.", "The second version of this skill."):
        await skills.install_skill(skill_zip("pdf", description=text))
        await skills.uninstall_skill("pdf")
    newest, oldest = await skills.removed_skills()
    await skills.restore_skill("pdf")
    assert (await skills.get_skill("pdf")).description == "The second version of this skill."
    with pytest.raises(ApexBridgeError) as caught:
        await skills.restore_skill("pdf")
    assert caught.value.code == "NAME_TAKEN"
    assert "Uninstall the skill first" in caught.value.message
    await skills.uninstall_skill("pdf")
    await skills.restore_skill("pdf", id=oldest.id)
    assert (await skills.get_skill("pdf")).description == "The first version of this skill."
    with pytest.raises(ApexBridgeError) as caught:
        await skills.restore_skill("pdf", id="0" * 32)
    assert caught.value.code == "SKILL_NOT_FOUND"
    assert newest.id != oldest.id


async def test_a_plugin_comes_back_with_all_its_skills(skills: SkillManager, data_dir: Path) -> None:
    await skills.install_skill(plugin_zip("alpha", "beta", manifest={"name": "toolbox", "version": "2"}))
    before = await skills.list_plugins()
    await skills.uninstall_plugin("toolbox")
    (item,) = await skills.removed_skills()
    assert (item.name, item.kind, item.skills) == ("toolbox", "plugin", ["alpha", "beta"])
    with pytest.raises(ApexBridgeError) as caught:
        await skills.restore_skill("alpha")
    assert caught.value.details["restorable"] == []
    await skills.restore_plugin("toolbox")
    assert await skills.list_plugins() == before
    assert [skill.plugin for skill in await skills.list_skills()] == ["toolbox", "toolbox"]
    assert list((data_dir / "trash").iterdir()) == []
    with pytest.raises(ApexBridgeError) as caught:
        await skills.restore_plugin("toolbox")
    assert caught.value.code == "PLUGIN_NOT_FOUND"


async def test_a_plugin_is_not_restored_if_one_of_its_names_is_taken(skills: SkillManager, data_dir: Path) -> None:
    await skills.install_skill(plugin_zip("alpha", "beta"))
    await skills.uninstall_plugin("my-plugin")
    await skills.install_skill(skill_zip("beta"))
    before = walk(data_dir / "skills")
    with pytest.raises(ApexBridgeError) as caught:
        await skills.restore_plugin("my-plugin")
    assert caught.value.code == "NAME_TAKEN"
    assert walk(data_dir / "skills") == before
    assert len(await skills.removed_skills()) == 1


async def test_a_restored_skill_belongs_to_its_plugin_again(skills: SkillManager) -> None:
    await skills.install_skill(plugin_zip("alpha", "beta"))
    await skills.uninstall_skill("beta")
    assert [plugin.skills for plugin in await skills.list_plugins()] == [["alpha"]]
    await skills.restore_skill("beta")
    assert [plugin.skills for plugin in await skills.list_plugins()] == [["alpha", "beta"]]
    assert (await skills.get_skill("beta")).plugin == "my-plugin"


async def test_qualified_names_are_removed_and_restored(skills: SkillManager, data_dir: Path) -> None:
    await skills.install_skill(skill_zip("alpha"))
    await skills.install_skill(plugin_zip("alpha", "beta", manifest={"name": "toolbox"}))
    before, listed = contents(data_dir), await skills.list_plugins()
    await skills.uninstall_skill("toolbox:alpha")
    (item,) = await skills.removed_skills()
    assert (item.name, item.kind) == ("toolbox:alpha", "skill")
    assert [skill.name for skill in await skills.list_skills()] == ["alpha", "beta"]
    await skills.restore_skill("toolbox:alpha")
    assert (contents(data_dir), await skills.list_plugins()) == (before, listed)
    assert (await skills.get_skill("toolbox:alpha")).plugin == "toolbox"
    await skills.uninstall_plugin("toolbox")
    (item,) = await skills.removed_skills()
    assert (item.name, item.kind, item.skills) == ("toolbox", "plugin", ["beta", "toolbox:alpha"])
    await skills.restore_plugin("toolbox")
    assert (contents(data_dir), await skills.list_plugins()) == (before, listed)
    assert list((data_dir / "trash").iterdir()) == []


async def test_the_plugins_of_a_marketplace_are_removed_and_restored_one_by_one(
    skills: SkillManager, tmp_path: Path, data_dir: Path
) -> None:
    for path, content in shop_of(("tea", "brew"), ("coffee", "brew")).items():
        (tmp_path / "shop" / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "shop" / path).write_text(content)
    await skills.install_skill(tmp_path / "shop")
    before = contents(data_dir)
    await skills.uninstall_plugin("coffee")
    await skills.uninstall_plugin("tea")
    assert (await skills.list_skills()).total == 0
    await skills.restore_plugin("tea")
    await skills.restore_plugin("coffee")
    assert contents(data_dir) == before
    assert [(plugin.name, plugin.skills) for plugin in await skills.list_plugins()] == [
        ("coffee", ["coffee:brew"]),
        ("tea", ["brew"]),
    ]


async def test_a_skill_that_its_plugin_has_under_another_name_comes_back_alone(skills: SkillManager) -> None:
    await skills.install_skill(skill_zip("alpha"))
    await skills.install_skill(plugin_zip("alpha", "beta"))
    await skills.uninstall_skill("my-plugin:alpha")
    await skills.uninstall_skill("alpha")
    await skills.install_skill(plugin_zip("alpha", "beta"), overwrite=True)
    await skills.restore_skill("my-plugin:alpha")
    assert [plugin.skills for plugin in await skills.list_plugins()] == [["alpha", "beta"]]
    assert (await skills.get_skill("my-plugin:alpha")).plugin is None


async def test_added_packages_come_back_and_another_skill_does_not_get_them(skills: SkillManager) -> None:
    await skills.install_skill(skill_zip("alpha"))
    await skills.install_skill(plugin_zip("alpha"))
    for name in ("alpha", "my-plugin:alpha"):
        await skills.change_dependencies(name, add=["pypdf>=4", "npm:docx"])
    before = await skills.dependencies_of("my-plugin:alpha")
    await skills.uninstall_skill("alpha")
    await skills.uninstall_plugin("my-plugin")
    await skills.install_skill(skill_zip("alpha"))
    assert (await skills.dependencies_of("alpha")).added == []
    await skills.restore_plugin("my-plugin")
    assert await skills.dependencies_of("my-plugin:alpha") == before
    await skills.uninstall_skill("alpha")
    await skills.restore_skill("alpha", id=(await skills.removed_skills())[-1].id)
    assert (await skills.dependencies_of("alpha")).added == before.added


async def test_a_hidden_skill_gets_its_added_packages_again(workshop: Workshop, tmp_path: Path) -> None:
    write_skill(tmp_path / "team", "shared")
    async with workshop.open(roots=[tmp_path / "team"]) as skills:
        await skills.change_dependencies("shared", add=["pypdf"])
        before = await skills.dependencies_of("shared")
        await skills.uninstall_skill("shared")
        await skills.restore_skill("shared")
        assert await skills.dependencies_of("shared") == before
        assert before.added


async def test_a_skill_of_another_root_is_hidden_and_its_folder_stays(workshop: Workshop, tmp_path: Path) -> None:
    root = tmp_path / "team"
    write_skill(root, "shared")
    write_skill(root, "other")
    async with workshop.open(roots=(root,)) as skills:
        before = {path: text for path, text in walk(root).items() if "vectorized" not in path}
        receipt = await skills.uninstall_skill("shared")
        assert (receipt.hidden, receipt.restorable_until) == (True, None)
        assert [skill.name for skill in await skills.list_skills()] == ["other"]
        assert workshop.tool_names == ["other"]
        assert set(workshop.index.vectors) == {"other"}
        await skills.reconcile()
        assert [skill.name for skill in await skills.list_skills()] == ["other"]
        assert {path: text for path, text in walk(root).items() if "vectorized" not in path} == before
    async with workshop.open(roots=(root,)) as skills:
        assert [skill.name for skill in await skills.list_skills()] == ["other"]
        assert await skills.problems() == []
        (item,) = await skills.removed_skills()
        assert (item.name, item.kind, item.source, item.restorable_until) == ("shared", "hidden", "team", None)
        await skills.restore_skill("shared")
        assert [skill.name for skill in await skills.list_skills()] == ["other", "shared"]
        assert "shared" in workshop.index.vectors
        assert await skills.removed_skills() == []


async def test_a_skill_of_a_read_only_root_can_be_hidden(workshop: Workshop, tmp_path: Path) -> None:
    root = tmp_path / "library"
    folder = write_skill(root, "fixed")
    folder.chmod(0o555)
    root.chmod(0o555)
    try:
        before = walk(root)
        async with workshop.open(roots=(root,)) as skills:
            assert (await skills.uninstall_skill("fixed")).hidden
            assert (await skills.list_skills()).total == 0
        assert walk(root) == before
    finally:
        root.chmod(0o755)
        folder.chmod(0o755)


async def test_a_hidden_skill_is_not_shown_while_its_name_is_taken(workshop: Workshop, tmp_path: Path) -> None:
    root = tmp_path / "team"
    write_skill(root, "shared")
    async with workshop.open(roots=(root,)) as skills:
        await skills.uninstall_skill("shared")
        await skills.install_skill(skill_zip("shared"))
        assert (await skills.get_skill("shared")).source == "installed"
        with pytest.raises(ApexBridgeError) as caught:
            await skills.restore_skill("shared")
        assert caught.value.code == "NAME_TAKEN"


async def test_an_installed_skill_comes_back_before_one_of_another_root(workshop: Workshop, tmp_path: Path) -> None:
    root = tmp_path / "team"
    write_skill(root, "shared", description="The one of the other root.")
    async with workshop.open(roots=(root,)) as skills:
        await skills.install_skill(skill_zip("shared", description="The one that was installed."))
        await skills.uninstall_skill("shared")
        assert (await skills.get_skill("shared")).description == "The one of the other root."
        await skills.restore_skill("shared")
        assert (await skills.get_skill("shared")).description == "The one that was installed."


@pytest.mark.parametrize("content", ["", "{}", '[{"root": 1}]', "[1]"])
async def test_a_damaged_list_of_hidden_skills_hides_nothing(workshop: Workshop, data_dir: Path, content: str) -> None:
    data_dir.mkdir()
    (data_dir / "hidden.json").write_text(content)
    async with workshop.open() as skills:
        await skills.install_skill(skill_zip("pdf"))
        assert (await skills.list_skills()).total == 1


async def test_leftovers_in_the_trash_are_deleted_at_the_start(workshop: Workshop, data_dir: Path) -> None:
    left = data_dir / "trash/left"
    left.mkdir(parents=True)
    record = {"kind": "skill", "name": "pdf", "skills": [{"name": "pdf"}], "removedAt": 1}
    (left / "removed.json").write_text(json.dumps(record))
    write_skill(data_dir / "trash", "old-style-1234")
    async with workshop.open():
        assert list((data_dir / "trash").iterdir()) == []


async def test_a_folder_that_is_not_a_skill_can_be_restored_too(workshop: Workshop, data_dir: Path) -> None:
    write_skill(data_dir / "skills", "ill", markdown="")
    async with workshop.open() as skills:
        await skills.uninstall_skill("ill")
        await skills.restore_skill("ill")
        assert (data_dir / "skills/ill/SKILL.md").exists()
        assert [problem.name for problem in await skills.problems()] == ["ill"]
