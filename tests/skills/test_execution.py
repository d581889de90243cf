"""Calls of skills: mode, script and placeholders; and configuration that can change while running."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from apexbridge.bridge import Bridge
from apexbridge.errors import ApexBridgeError, DirectModeDisabledError, InvalidInputError, ServerError, SkillError
from apexbridge.sandbox.models import ExecutionResult
from apexbridge.skills.manager import SkillManager
from apexbridge.skills.models import DirectSkillResult
from apexbridge.skills.runs.direct import render
from apexbridge.skills.runs.skill_runs import SkillCall
from apexbridge.skills.runs.tracker import Run
from apexbridge.skills.store.indexer import IndexDocument
from apexbridge.skills.store.skill_store import SkillStore
from tests.conftest import Workshop
from tests.making import skill_zip, write_skill

pytestmark = pytest.mark.anyio


async def execute(bridge: Bridge, name: str, *args: Any, **call: Any) -> ExecutionResult:
    result = await bridge.skills.execute_skill(name, *args, **call)
    assert isinstance(result, ExecutionResult)
    return result


@pytest.mark.requirement("C5")
async def test_scripts_of_a_skill_without_an_entry_run_by_name(bridge: Bridge) -> None:
    skills, echo = bridge.skills, "import os, sys\nprint(sys.argv[1:], os.listdir('input'))\n"
    await skills.install_skill(
        skill_zip(files={"scripts/a.py": echo, "scripts/deep/b.sh": "", "scripts/data.json": "{}"})
    )
    detail = await skills.get_skill("git-commit")
    assert (detail.mode, detail.entry, detail.scripts) == ("direct", None, ["scripts/a.py", "scripts/deep/b.sh"])
    workspace = bridge.settings.workspace
    workspace.mkdir(parents=True, exist_ok=True)
    (workspace / "f").write_text("")
    result = await execute(bridge, "git-commit", {"x": 1}, script="./scripts/a.py", args=["--v"], files=["f"])
    assert result.stdout == "['--v'] ['f']\n"
    record = await bridge.runs.get(result.id)
    assert (record.script, record.content_hash) == ("scripts/a.py", detail.content_hash)
    assert isinstance(await skills.execute_skill("git-commit"), DirectSkillResult), "the skill is still direct"
    for wrong in ("scripts/none.py", "SKILL.md", "scripts/data.json", "../x.py", "/bin/sh"):
        with pytest.raises(InvalidInputError, match="no script"):
            await skills.execute_skill("git-commit", script=wrong)
    with pytest.raises(InvalidInputError, match="several scripts"):
        await skills.execute_skill("git-commit", mode="sandbox")


@pytest.mark.requirement("C5")
async def test_the_only_runnable_script_is_the_default(bridge: Bridge) -> None:
    await bridge.skills.install_skill(skill_zip("one", files={"scripts/only.sh": 'echo "$@"', "scripts/n.txt": ""}))
    await bridge.skills.install_skill(skill_zip("none"))
    assert (await execute(bridge, "one", mode="sandbox")).stdout == "\n"
    assert (await execute(bridge, "one", args=["x"])).stdout == "x\n"
    with pytest.raises(InvalidInputError, match="no script to run"):
        await bridge.skills.execute_skill("none", mode="sandbox")


async def test_a_skill_runs_its_entry_within_its_own_timeout(bridge: Bridge) -> None:
    entry = "import json, sys, time\nprint(json.load(sys.stdin), flush=True)\ntime.sleep(60)\n"
    files = {"scripts/execute.py": entry, "scripts/x.py": "import sys\nprint(sys.argv[1:])\n"}
    await bridge.skills.install_skill(skill_zip(files=files, timeout=3000))
    result = await execute(bridge, "git-commit", {"a": 1})
    assert (result.status, result.stdout) == ("timeout", "{'a': 1}\n")
    assert (await execute(bridge, "git-commit", {"a": 1}, script="scripts/x.py")).stdout == "['--a', '1']\n"


async def test_a_skill_does_not_run_without_a_sandbox(skills: SkillManager) -> None:
    await skills.install_skill(skill_zip(files={"scripts/execute.js": ""}))
    with pytest.raises(SkillError) as caught:
        await skills.execute_skill("git-commit")
    assert caught.value.code == "SANDBOX_UNAVAILABLE"
    assert (await skills.skill_statistics("git-commit")).call_count == 0


async def test_a_skill_tool_is_registered_and_unregistered(skills: SkillManager) -> None:
    await skills.install_skill(skill_zip())
    assert (await skills.register_skill_tool("git-commit")).id == "skill:git-commit"
    assert skills.unregister_skill_tool("git-commit")
    assert not skills.unregister_skill_tool("git-commit")


@pytest.mark.parametrize("call", ["execute_skill", "execute_skill_direct"])
async def test_executing_a_missing_skill_reports_enoent(skills: SkillManager, call: str) -> None:
    with pytest.raises(SkillError) as caught:
        await getattr(skills, call)("none")
    assert (caught.value.code, caught.value.message) == ("ENOENT", "Skills not found: none")


async def test_a_folder_that_was_just_moved_or_broken_is_reported(
    skills: SkillManager, data_dir: Path, tmp_path: Path
) -> None:
    await skills.install_skill(skill_zip())
    (data_dir / "skills/git-commit").rename(tmp_path / "away")
    with pytest.raises(SkillError) as caught:
        await skills.execute_skill("git-commit")
    assert caught.value.code == "ENOENT"
    with pytest.raises(SkillError) as caught:
        await skills.get_skill("git-commit")
    assert caught.value.code == "SKILL_NOT_FOUND"
    (tmp_path / "away").rename(data_dir / "skills/git-commit")
    (data_dir / "skills/git-commit/SKILL.md").unlink()
    (data_dir / "skills/git-commit/SKILL.md").mkdir()
    with pytest.raises(SkillError) as caught:
        await skills.execute_skill("git-commit")
    assert caught.value.code == "EACCES"


@pytest.mark.requirement("F4")
def test_placeholders_are_filled_in_one_pass() -> None:
    body = "{{input.a}} {{ input.b.c }} {{input.list}} {{input.none}} {{other}} {{system.cwd}} {{system.no}} {baseDir}"
    result = render(
        name="x",
        body=body,
        source_path="x/SKILL.md",
        input={"a": "{{input.b.c}}", "b": {"c": 5}, "list": [1, "二"], "none": None},
    )
    assert result.content == '{{input.b.c}} 5 [1, "二"] null {{other}} / {{system.no}} {baseDir}'
    assert result.warnings == []
    missing = render(name="x", body="{{input.q}} {{input.q}} {{input.a.b}}", source_path="x/SKILL.md", input={"a": 1})
    assert missing.content == "{{input.q}} {{input.q}} {{input.a.b}}"
    assert missing.warnings == ["no input for {{input.q}}", "no input for {{input.a.b}}"]
    assert (missing.mode, missing.metadata.skill_name, missing.metadata.source_path) == ("direct", "x", "x/SKILL.md")
    timed = render(name="x", body="{{system.timestamp}}", source_path="x/SKILL.md", input={})
    assert timed.content == str(timed.metadata.generated_at)


# ----------------------------------------------------------------------------------------------------------- config
@pytest.mark.requirement("D14")
async def test_the_configuration_can_be_read_and_changed(skills: SkillManager, workshop: Workshop) -> None:
    await skills.install_skill(skill_zip())
    assert skills.get_config().default_mode == "auto"
    changed = await skills.update_config({"default_mode": "sandbox", "sandboxTimeout": 5000})
    assert (changed.default_mode, changed.sandbox_timeout) == ("sandbox", 5000)
    assert (await skills.get_skill("git-commit")).mode == "sandbox"
    with pytest.raises(InvalidInputError, match="no script to run"):
        await workshop.tools.execute("skill:git-commit")


@pytest.mark.requirement("D14")
@pytest.mark.parametrize(
    "bad",
    [
        {"default_mode": "odd"},
        {"sandbox_timeout": 0},
        {"sandboxTimeout": "soon"},
        {"nothing": 1},
        {"custom_paths": ["/no/such/folder"]},
        {"skills_path": "/dev/null"},
        {"enable_direct_mode": 7},
    ],
)
async def test_an_update_with_a_bad_value_changes_nothing(skills: SkillManager, bad: dict[str, object]) -> None:
    before = skills.get_config()
    with pytest.raises(InvalidInputError) as caught:
        await skills.update_config({"sandbox_timeout": 1234} | bad)
    assert caught.value.details["errors"]
    assert skills.get_config() == before


@pytest.mark.requirement("D14")
async def test_direct_skills_are_refused_if_direct_mode_is_off(skills: SkillManager) -> None:
    await skills.install_skill(skill_zip())
    await skills.update_config({"enable_direct_mode": False})
    for call in (skills.execute_skill("git-commit"), skills.execute_skill_direct("git-commit")):
        with pytest.raises(DirectModeDisabledError) as caught:
            await call
        assert caught.value.code == "DIRECT_MODE_DISABLED"


@pytest.mark.requirement("D14")
async def test_paths_can_change_while_running(skills: SkillManager, workshop: Workshop, tmp_path: Path) -> None:
    await skills.install_skill(skill_zip("here"))
    write_skill(tmp_path / "there", "there")
    write_skill(tmp_path / "extra", "extra")
    changed = skills.store.roots_changed
    await skills.update_config({"skillsPath": str(tmp_path / "there"), "customPaths": [str(tmp_path / "extra")]})
    assert changed.is_set()
    assert [skill.name for skill in await skills.list_skills()] == ["extra", "there"]
    await skills.install_skill(skill_zip("new"))
    assert (tmp_path / "there/new/SKILL.md").exists()
    assert set(workshop.index.vectors) == {"extra", "there", "new"}


@pytest.mark.requirement("D14")
async def test_paths_cannot_change_during_a_run_or_an_install(
    bridge: Bridge, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    skills, embed, refused = bridge.skills, bridge.retrieval.embed, list[str]()

    async def try_to_change_paths() -> None:
        try:
            await skills.update_config({"customPaths": [str(tmp_path)]})
        except ServerError as error:
            refused.append(error.code)
        await skills.update_config({"sandboxTimeout": 4321})

    async def change_paths_while_embedding(documents: Sequence[IndexDocument]) -> Sequence[Any]:
        await try_to_change_paths()
        return await embed(documents)

    monkeypatch.setattr(bridge.retrieval, "embed", change_paths_while_embedding)
    await skills.install_skill(skill_zip(files={"scripts/execute.py": "import time\ntime.sleep(60)"}))
    await skills.update_skill_description("git-commit", "A new one for it.")
    run = await skills.runner.call(SkillCall(skill="git-commit"))
    assert isinstance(run, Run)
    await try_to_change_paths()
    run.cancel()
    await run.result()
    assert refused == ["BUSY"] * 3
    assert skills.get_config().sandbox_timeout == 4321
    assert (await skills.get_skill("git-commit")).description == "A new one for it."


@pytest.mark.requirement("D14")
async def test_installs_during_a_path_change_go_to_the_new_folder(
    skills: SkillManager, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "there").mkdir()
    is_changing, are_waiting, recover = anyio.Event(), anyio.Event(), SkillStore.recover

    async def recover_after_the_installs_began(self: SkillStore) -> None:
        is_changing.set()
        await are_waiting.wait()
        await recover(self)

    monkeypatch.setattr(SkillStore, "recover", recover_after_the_installs_began)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(skills.update_config, {"skillsPath": str(tmp_path / "there")})
        await is_changing.wait()
        for number in range(10):
            tasks.start_soon(skills.install_skill, skill_zip(f"s-{number}"))
        await anyio.lowlevel.checkpoint()
        are_waiting.set()
    assert len([path for path in (tmp_path / "there").iterdir() if not path.name.startswith(".")]) == 10
    assert (await skills.list_skills()).total == 10


@pytest.mark.requirement("D14")
async def test_an_unusable_path_changes_nothing(skills: SkillManager) -> None:
    await skills.install_skill(skill_zip())
    before = skills.get_config()
    with pytest.raises((OSError, ServerError)):
        await skills.update_config({"skillsPath": "/proc"})
    assert skills.get_config() == before
    assert (await skills.get_skill("git-commit")).name == "git-commit"
    await skills.install_skill(skill_zip("another"))


@pytest.mark.requirement("D14")
async def test_paths_become_absolute_and_duplicate_folders_are_refused(
    skills: SkillManager, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "extra").mkdir()
    (tmp_path / "same").symlink_to("extra")
    monkeypatch.chdir(tmp_path)
    changed = await skills.update_config({"customPaths": ["extra"]})
    assert changed.custom_paths == (tmp_path / "extra",)
    with pytest.raises(InvalidInputError, match="twice"):
        await skills.update_config({"customPaths": ["extra", "same"]})


async def test_every_error_has_a_status(skills: SkillManager) -> None:
    def kinds(base: type[ApexBridgeError]) -> list[type[ApexBridgeError]]:
        return [base, *(found for child in base.__subclasses__() for found in kinds(child))]

    assert len(kinds(ApexBridgeError)) > 20
    from apexbridge.errors import STATUS_OF_CODE

    assert {kind.default_code for kind in kinds(ApexBridgeError)} <= STATUS_OF_CODE.keys()


def test_rendered_instructions_and_warnings_are_limited() -> None:
    body = "{{input.a}}" * 2_000
    assert len(render(name="a", body=body, source_path="x", input={"a": "x" * 1_000}).content) == 2_000_000
    with pytest.raises(InvalidInputError, match="longer than"):
        render(name="a", body=body, source_path="x", input={"a": "x" * 300_000})
    many = "".join(f"{{{{input.a{number}}}}}" for number in range(5_000))
    assert len(render(name="a", body=many, source_path="x", input={}).warnings) == 20
