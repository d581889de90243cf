"""Plugins: skills that are installed together, all or none, and uninstalled together."""

import json
from collections.abc import Mapping
from pathlib import Path

import anyio
import pytest

from apexbridge.errors import ApexBridgeError, SkillAlreadyExistsError, SkillError
from apexbridge.skills.manager import SkillManager
from tests.conftest import Workshop
from tests.making import skill_markdown, skill_zip, walk, write_skill, zip_of

pytestmark = pytest.mark.anyio


def plugin_zip(
    *names: str, root: str = "my-plugin/", manifest: Mapping[str, object] | None = None, **fields: str
) -> bytes:
    files: dict[str, str | bytes] = {f"{root}skills/{name}/SKILL.md": skill_markdown(name, **fields) for name in names}
    files[f"{root}README.md"] = "read me"
    if manifest is not None:
        files[f"{root}.claude-plugin/plugin.json"] = json.dumps(manifest)
    return zip_of(files)


@pytest.mark.requirement("D9")
async def test_a_plugin_installs_all_its_skills_and_is_listed(skills: SkillManager, workshop: Workshop) -> None:
    manifest = {"name": "toolbox", "version": "2.0", "description": "Tools."}
    receipt = await skills.install_skill(plugin_zip("alpha", "beta", manifest=manifest))
    assert (receipt.name, receipt.names) == ("toolbox", ["alpha", "beta"])
    assert [(skill.name, skill.plugin) for skill in await skills.list_skills()] == [
        ("alpha", "toolbox"),
        ("beta", "toolbox"),
    ]
    (plugin,) = await skills.list_plugins()
    assert (plugin.name, plugin.version, plugin.description, plugin.skills) == (
        "toolbox",
        "2.0",
        "Tools.",
        ["alpha", "beta"],
    )
    assert set(workshop.index.vectors) == {"alpha", "beta"}
    assert set(workshop.tool_names) == {"alpha", "beta"}


@pytest.mark.requirement("D9")
async def test_uninstalling_a_plugin_removes_all_its_skills(
    skills: SkillManager, workshop: Workshop, data_dir: Path
) -> None:
    await skills.install_skill(skill_zip("other"))
    await skills.install_skill(plugin_zip("alpha", "beta"))
    assert (await skills.uninstall_plugin("my-plugin")).message == "Plugin uninstalled successfully"
    assert [skill.name for skill in await skills.list_skills()] == ["other"]
    assert await skills.list_plugins() == []
    assert set(workshop.index.vectors) == {"other"}
    assert sorted(path.name for path in (data_dir / "skills").iterdir()) == ["other"]
    with pytest.raises(ApexBridgeError) as caught:
        await skills.uninstall_plugin("my-plugin")
    assert caught.value.code == "PLUGIN_NOT_FOUND"


@pytest.mark.requirement("D9")
async def test_a_strict_plugin_install_is_all_or_nothing(skills: SkillManager, data_dir: Path) -> None:
    before = walk(data_dir)
    bad = zip_of({"p/skills/good/SKILL.md": skill_markdown("good"), "p/skills/bad/SKILL.md": "---\nname: bad\n---\n"})
    with pytest.raises(SkillError, match="bad: Missing required fields: description"):
        await skills.install_skill(bad, strict=True)
    assert walk(data_dir) == before


@pytest.mark.requirement("D3")
async def test_another_plugin_of_the_same_name_is_refused_without_overwrite(
    skills: SkillManager, data_dir: Path
) -> None:
    await skills.install_skill(plugin_zip("alpha", "beta", manifest={"name": "plug"}))
    before = walk(data_dir)
    with pytest.raises(SkillAlreadyExistsError, match="Plugin plug already exists"):
        await skills.install_skill(plugin_zip("gamma", manifest={"name": "plug"}))
    assert walk(data_dir) == before


async def test_lone_surrogates_in_a_manifest_are_replaced(skills: SkillManager) -> None:
    archive = zip_of(
        {
            "p/.claude-plugin/plugin.json": '{"name": "p", "description": "half \\ud800"}',
            "p/skills/a/SKILL.md": skill_markdown("a"),
        }
    )
    await skills.install_skill(archive)
    assert [plugin.description for plugin in await skills.list_plugins()] == ["half ?"]


async def test_a_skill_removed_by_hand_is_no_longer_listed_in_its_plugin(
    skills: SkillManager, data_dir: Path, tmp_path: Path
) -> None:
    await skills.install_skill(plugin_zip("alpha", "beta"))
    (data_dir / "skills/alpha").rename(tmp_path / "alpha")
    assert [plugin.skills for plugin in await skills.list_plugins()] == [["beta"]]
    (data_dir / "skills/beta").rename(tmp_path / "beta")
    assert await skills.list_plugins() == []


@pytest.mark.parametrize(
    "record",
    [
        '{"skills": ["a"]}',
        '{"name": "x", "skills": ["../../etc"], "installedAt": 1}',
        "[]",
        '{"name": "x", "skills": 5}',
        '{"name": "x", "skills": ["a"], "installedAt": -99999999999999999999}',
        '{"name": "y", "skills": ["a"], "installedAt": 1}',
    ],
)
async def test_an_invalid_plugin_record_is_ignored(skills: SkillManager, data_dir: Path, record: str) -> None:
    (data_dir / "plugins/x.json").write_text(record)
    assert await skills.list_plugins() == []
    await skills.install_skill(skill_zip())


@pytest.mark.parametrize(
    "plan", ["", "{", "[]", '{"plugin": 5}', '{"plugin": {}, "skills": {"../x": "y"}, "superseded": []}']
)
async def test_an_incomplete_or_invalid_plan_is_deleted_at_the_start(
    workshop: Workshop, data_dir: Path, plan: str
) -> None:
    (data_dir / "staging/x").mkdir(parents=True)
    (data_dir / "staging/x/plan.json").write_text(plan)
    async with workshop.open():
        assert list((data_dir / "staging").iterdir()) == []


async def test_concurrent_uninstalls_are_all_removed_from_the_plugin(skills: SkillManager) -> None:
    names = [f"s-{number}" for number in range(20)]
    await skills.install_skill(plugin_zip(*names))
    async with anyio.create_task_group() as tasks:
        for name in names[1:]:
            tasks.start_soon(skills.uninstall_skill, name)
    assert [plugin.skills for plugin in skills.store.library.plugins.all()] == [("s-0",)]


async def test_an_overwrite_whose_rollback_also_fails_loses_nothing(
    workshop: Workshop, data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with workshop.open() as skills:
        await skills.install_skill(plugin_zip("alpha", "beta", description="The first version of it."))

        def fail(*_: object) -> None:
            raise OSError(5, "Input/output error")

        monkeypatch.setattr(skills.store.library.plugins, "write", fail)
        with pytest.raises(OSError, match="Input/output"):
            await skills.install_skill(plugin_zip("alpha", "beta", description="The second version."), overwrite=True)
    async with workshop.open() as skills:
        found = {skill.description for skill in await skills.list_skills()}
        assert found == {"The first version of it."}, "the folders were rolled back, and no plan is left to apply"
        assert list((data_dir / "staging").iterdir()) == []


@pytest.mark.requirement("D9")
async def test_a_failure_during_an_overwrite_is_rolled_back(
    skills: SkillManager, data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await skills.install_skill(plugin_zip("alpha", "beta", description="The first version of it."))
    before = walk(data_dir)
    rename, calls = Path.rename, []

    def fail_later(self: Path, target: Path) -> Path:
        calls.append(target)
        if target == data_dir / "skills/gamma":
            raise OSError(5, "Input/output error")
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", fail_later)
    with pytest.raises(OSError, match="Input/output error"):
        await skills.install_skill(
            plugin_zip("alpha", "beta", "gamma", description="The second version of it."), overwrite=True
        )
    monkeypatch.undo()
    assert calls
    after = walk(data_dir)
    assert {path: state for path, state in after.items() if path.startswith("skills")} == {
        path: state for path, state in before.items() if path.startswith("skills")
    }
    assert list((data_dir / "staging").iterdir()) == []


@pytest.mark.requirement("D9")
async def test_a_new_version_replaces_the_old_one_completely(skills: SkillManager, workshop: Workshop) -> None:
    await skills.install_skill(plugin_zip("alpha", "beta"))
    await skills.install_skill(plugin_zip("beta", "gamma", description="The new version of it."), overwrite=True)
    assert [skill.name for skill in await skills.list_skills()] == ["beta", "gamma"]
    assert [plugin.skills for plugin in await skills.list_plugins()] == [["beta", "gamma"]]
    assert set(workshop.index.vectors) == {"beta", "gamma"}


async def test_an_uninstalled_or_replaced_skill_is_removed_from_its_plugin(skills: SkillManager) -> None:
    await skills.install_skill(plugin_zip("alpha", "beta", "gamma"))
    await skills.uninstall_skill("alpha")
    await skills.install_skill(skill_zip("beta", description="Somebody else's version."), overwrite=True)
    assert [plugin.skills for plugin in await skills.list_plugins()] == [["gamma"]]
    assert (await skills.get_skill("beta")).plugin is None
    await skills.install_skill(plugin_zip("gamma", root="other/"), overwrite=True)
    assert [(plugin.name, plugin.skills) for plugin in await skills.list_plugins()] == [
        ("my-plugin", ["gamma"]),
        ("other", ["other:gamma"]),
    ]


async def test_plugins_survive_a_restart_and_a_lost_database(workshop: Workshop, data_dir: Path) -> None:
    async with workshop.open() as skills:
        await skills.install_skill(plugin_zip("alpha"))
    for path in data_dir.glob("apex.sqlite3*"):
        path.unlink()
    (data_dir / "plugins/broken.json").write_text("{")
    async with workshop.open() as skills:
        assert (await skills.get_skill("alpha")).plugin == "my-plugin"
        assert [plugin.name for plugin in await skills.list_plugins()] == ["my-plugin"]


@pytest.mark.parametrize(
    ("archive", "name"),
    [
        (plugin_zip("alpha", root="wrapper/Cool Plugin/"), "cool-plugin"),
        (plugin_zip("alpha", "beta", root="", manifest={"name": "flat-plugin"}), "flat-plugin"),
        (plugin_zip("alpha", root="x/", manifest={"name": 7, "version": 1}), "x"),
    ],
)
async def test_a_plugin_is_named_by_its_manifest_or_its_folder(skills: SkillManager, archive: bytes, name: str) -> None:
    assert (await skills.install_skill(archive)).name == name


@pytest.mark.parametrize(
    ("archive", "reason"),
    [
        (plugin_zip("alpha", "beta", root=""), "several skills"),
        (zip_of({"p/.claude-plugin/plugin.json": "{", "p/skills/a/SKILL.md": skill_markdown("a")}), "not valid JSON"),
        (zip_of({"p/.claude-plugin/plugin.json": " " * 70_000, "p/skills/a/SKILL.md": skill_markdown("a")}), "64 KB"),
        (plugin_zip("alpha", root="stats/"), "reserved"),
    ],
)
async def test_a_plugin_that_cannot_be_named_or_read_is_refused(
    skills: SkillManager, archive: bytes, reason: str
) -> None:
    with pytest.raises(SkillError, match=reason):
        await skills.install_skill(archive)


async def test_the_second_skill_with_one_name_in_a_plugin_is_left_out(skills: SkillManager) -> None:
    archive = zip_of({"p/skills/a/SKILL.md": skill_markdown("Same"), "p/skills/b/SKILL.md": skill_markdown("same")})
    receipt = await skills.install_skill(archive)
    assert receipt.names == ["same"]
    assert [(one.name, one.path) for one in receipt.left_out] == [("b", "p/skills/b")]
    assert 'p/skills/a is also named "same"' in receipt.left_out[0].reason


@pytest.mark.parametrize("broken", [bytes(range(256)) * 12, b"---\nname: bad\ndescription: [a: b: c\n---\nText.\n"])
async def test_a_skill_whose_file_cannot_be_read_is_left_out_or_refused(
    skills: SkillManager, tmp_path: Path, broken: bytes
) -> None:
    archive = zip_of({"p/skills/bad/SKILL.md": broken, "p/skills/good/SKILL.md": skill_markdown("good")})
    with pytest.raises(SkillError, match=r"bad: SKILL\.md line"):
        await skills.install_skill(archive, strict=True)
    receipt = await skills.install_skill(archive)
    assert (receipt.names, [one.name for one in receipt.left_out]) == (["good"], ["bad"])
    (write_skill(tmp_path, "bad") / "SKILL.md").write_bytes(broken)
    with pytest.raises(SkillError, match=r"SKILL\.md line"):
        await skills.install_skill(tmp_path / "bad")


async def test_a_plugin_installs_from_a_folder(skills: SkillManager, tmp_path: Path) -> None:
    write_skill(tmp_path / "box/skills", "one")
    write_skill(tmp_path / "box/skills", "two")
    assert (await skills.install_skill(tmp_path / "box")).names == ["one", "two"]
