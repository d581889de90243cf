"""The lifecycle of a skill: install, list, show, edit, reload, uninstall, statistics."""

import asyncio
import contextlib
import io
import json
import os
import threading
import zipfile
from pathlib import Path

import anyio
import pytest

from apexbridge.errors import (
    ApexBridgeError,
    FieldNotEditableError,
    InvalidInputError,
    InvalidSkillStructureError,
    SkillAlreadyExistsError,
    SkillError,
    SkillNotFoundError,
    SkillParseError,
)
from apexbridge.skills.manager import SkillManager
from apexbridge.skills.store.library import Library, StagedSkill
from tests.conftest import Workshop
from tests.making import DESCRIPTION, skill_markdown, skill_zip, walk, write_skill, zip_of

pytestmark = pytest.mark.anyio


# -------------------------------------------------------------------------------------------------------- install
@pytest.mark.requirement("D1")
async def test_an_install_extracts_indexes_marks_and_registers(
    skills: SkillManager, workshop: Workshop, data_dir: Path
) -> None:
    receipt = await skills.install_skill(skill_zip(files={"scripts/execute.js": "1", "reference.md": "r"}))
    assert (receipt.success, receipt.name, receipt.message) == (True, "git-commit", "Skill installed successfully")
    assert receipt.duration >= 0
    assert (data_dir / "skills/git-commit/reference.md").read_text() == "r"
    assert "git-commit" in workshop.index.vectors
    assert (data_dir / "skills/git-commit/.vectorized").is_file()
    assert workshop.tool_names == ["git-commit"]
    assert not list((data_dir / "staging").iterdir()), "the uploaded archive is deleted"


@pytest.mark.requirement("D1")
async def test_a_skill_installs_from_bytes_a_file_an_open_file_and_a_folder(
    skills: SkillManager, tmp_path: Path
) -> None:
    (tmp_path / "one.zip").write_bytes(skill_zip("one"))
    (tmp_path / "two.skill").write_bytes(skill_zip("two"))
    folder = write_skill(tmp_path, "three", {"scripts/helper.py": "print()"})
    for source in (skill_zip("zero"), tmp_path / "one.zip", str(tmp_path / "two.skill"), folder):
        await skills.install_skill(source)
    await skills.install_skill(io.BytesIO(skill_zip("four")))
    assert [skill.name for skill in await skills.list_skills()] == ["four", "one", "three", "two", "zero"]


async def test_a_folder_is_read_leniently_and_an_archive_is_not(skills: SkillManager, tmp_path: Path) -> None:
    folder = write_skill(tmp_path, "My Skill", markdown="# My Skill\n\nDoes a lot of useful things.\n")
    receipt = await skills.install_skill(folder)
    assert receipt.name == "my-skill"
    assert receipt.warnings
    with pytest.raises(SkillError):
        await skills.install_skill(zip_of({"my-skill/SKILL.md": "# My Skill\n\nWords.\n"}))
    flat = zip_of({"SKILL.md": "# Flat\n\nA flat archive.\n"})
    assert (await skills.install_skill(flat, profile="lenient", filename="Flat One.zip")).name == "flat-one"


async def test_a_missing_source_is_reported(skills: SkillManager, tmp_path: Path) -> None:
    with pytest.raises(ApexBridgeError) as caught:
        await skills.install_skill(tmp_path / "nothing.zip")
    assert caught.value.code == "FILE_NOT_FOUND"


async def test_a_folder_with_a_symlink_to_the_outside_is_refused(skills: SkillManager, tmp_path: Path) -> None:
    folder = write_skill(tmp_path, "linked")
    (folder / "inside.md").symlink_to("SKILL.md")
    assert (await skills.install_skill(folder)).name == "linked"
    (folder / "passwd").symlink_to("/etc/passwd")
    with pytest.raises(SkillError) as caught:
        await skills.install_skill(folder, overwrite=True)
    assert caught.value.code == "UNSAFE_ENTRY"
    os.mkfifo(folder / "pipe")
    (folder / "passwd").unlink()
    with pytest.raises(SkillError, match="regular file"):
        await skills.install_skill(folder, overwrite=True)


@pytest.mark.requirement("D2")
async def test_all_errors_of_a_structure_are_reported_together(skills: SkillManager, data_dir: Path) -> None:
    archive = zip_of({"git-commit/SKILL.md": "---\nname: Other\nmode: odd\n---\n"})
    with pytest.raises(InvalidSkillStructureError) as caught:
        await skills.install_skill(archive)
    errors = caught.value.details["errors"]
    assert len(errors) == 4
    assert caught.value.message == f"Invalid skill structure: {'; '.join(errors)}"
    assert caught.value.code == "INVALID_SKILL_STRUCTURE"
    assert not (data_dir / "skills/git-commit").exists()


@pytest.mark.requirement("D2")
async def test_a_missing_skill_file_is_reported(skills: SkillManager) -> None:
    with pytest.raises(InvalidSkillStructureError, match=r"Invalid skill structure: SKILL\.md not found"):
        await skills.install_skill(zip_of({"git-commit/README.md": "x"}))


@pytest.mark.requirement("D3")
async def test_an_existing_skill_is_not_changed_without_overwrite(skills: SkillManager, data_dir: Path) -> None:
    await skills.install_skill(skill_zip())
    before = walk(data_dir)
    with pytest.raises(SkillAlreadyExistsError) as caught:
        await skills.install_skill(skill_zip(description="Another one entirely."))
    assert caught.value.message == "Skill git-commit already exists. Use overwrite:true to replace."
    assert caught.value.code == "SKILL_ALREADY_EXISTS"
    assert walk(data_dir) == before


@pytest.mark.requirement("D3")
async def test_an_overwrite_replaces_everything_and_indexes_again(
    skills: SkillManager, workshop: Workshop, data_dir: Path
) -> None:
    await skills.install_skill(skill_zip(files={"old.md": "x"}))
    before = workshop.index.vectors["git-commit"]
    first = await skills.get_skill("git-commit")
    receipt = await skills.install_skill(skill_zip(description="Another one entirely."), overwrite=True)
    assert receipt.replaced
    assert not (data_dir / "skills/git-commit/old.md").exists()
    assert workshop.index.vectors["git-commit"] != before
    assert workshop.tools.get("skill:git-commit").description == "Another one entirely."
    second = await skills.get_skill("git-commit")
    assert second.installed_at == first.installed_at
    assert second.updated_at > first.updated_at
    assert not list((data_dir / "trash").iterdir())
    assert not list((data_dir / "staging").iterdir())


@pytest.mark.slow
@pytest.mark.requirement("D3")
async def test_a_skill_is_never_missing_while_it_is_overwritten(skills: SkillManager, data_dir: Path) -> None:
    await skills.install_skill(skill_zip())
    target, missing, done = data_dir / "skills/git-commit/SKILL.md", 0, anyio.Event()

    def count_missing() -> int:
        count = 0
        while not done.is_set():
            count += not target.exists()
        return count

    async def watch() -> None:
        nonlocal missing
        missing = await anyio.to_thread.run_sync(count_missing)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(watch)
        for number in range(25):
            await skills.install_skill(skill_zip(description=f"Version number {number}."), overwrite=True)
        done.set()
    assert missing == 0


async def test_only_one_of_many_concurrent_installs_of_one_name_succeeds(skills: SkillManager) -> None:
    outcomes: list[str] = []

    async def install(number: int) -> None:
        try:
            await skills.install_skill(skill_zip(description=f"The one of number {number}."))
            outcomes.append("installed")
        except SkillAlreadyExistsError:
            outcomes.append("exists")

    async with anyio.create_task_group() as tasks:
        for number in range(40):
            tasks.start_soon(install, number)
    assert sorted(outcomes) == ["exists"] * 39 + ["installed"]


async def test_many_skills_install_concurrently(skills: SkillManager) -> None:
    async with anyio.create_task_group() as tasks:
        for number in range(60):
            tasks.start_soon(skills.install_skill, skill_zip(f"skill-{number}"))
    assert (await skills.list_skills()).total == 60


async def test_an_index_failure_stops_an_install_or_edit_before_anything_changes(
    skills: SkillManager, workshop: Workshop, data_dir: Path
) -> None:
    await skills.install_skill(skill_zip("other"))
    before = walk(data_dir)
    workshop.index.fault = ApexBridgeError("the model is gone")
    with pytest.raises(ApexBridgeError, match="model is gone"):
        await skills.install_skill(skill_zip())
    assert walk(data_dir) == before
    with pytest.raises(ApexBridgeError, match="model is gone"):
        await skills.update_skill_description("other", "A new description for it.")
    assert walk(data_dir) == before


@pytest.mark.requirement("D4")
@pytest.mark.parametrize("profile", ["seed", "strict"])
async def test_files_at_the_root_of_an_archive_are_refused(skills: SkillManager, profile: str) -> None:
    with pytest.raises(SkillError) as caught:
        await skills.install_skill(zip_of({"SKILL.md": skill_markdown()}), profile=profile)  # type: ignore[arg-type]
    assert caught.value.message == "Invalid ZIP structure: missing root directory"
    assert caught.value.code == "INVALID_SKILL_STRUCTURE"


@pytest.mark.requirement("D4")
async def test_an_archive_with_several_skills_is_refused_with_their_names(skills: SkillManager) -> None:
    archive = zip_of({"pack/alpha/SKILL.md": skill_markdown("alpha"), "pack/beta/SKILL.md": skill_markdown("beta")})
    with pytest.raises(InvalidSkillStructureError, match="pack/alpha, pack/beta"):
        await skills.install_skill(archive)


# ------------------------------------------------------------------------------------------------------ uninstall
@pytest.mark.requirement("D5")
async def test_an_uninstall_removes_folder_vectors_row_and_tool(
    skills: SkillManager, workshop: Workshop, data_dir: Path
) -> None:
    await skills.install_skill(skill_zip())
    receipt = await skills.uninstall_skill("git-commit")
    assert (receipt.name, receipt.message) == ("git-commit", "Skill uninstalled successfully")
    assert not (data_dir / "skills/git-commit").exists()
    assert workshop.index.vectors == {}
    assert workshop.tool_names == []
    assert (await skills.list_skills()).total == 0
    with pytest.raises(SkillNotFoundError):
        await skills.get_skill("git-commit")


@pytest.mark.requirement("D5")
async def test_uninstalling_a_missing_skill_is_reported(skills: SkillManager) -> None:
    with pytest.raises(SkillNotFoundError) as caught:
        await skills.uninstall_skill("non-existent")
    assert caught.value.message == "Skills not found: non-existent"
    assert caught.value.code == "SKILL_NOT_FOUND"


async def test_statistics_survive_an_uninstall(skills: SkillManager) -> None:
    await skills.install_skill(skill_zip())
    await skills.execute_skill("git-commit")
    await skills.uninstall_skill("git-commit")
    await skills.install_skill(skill_zip())
    assert (await skills.skill_statistics("git-commit")).call_count == 1


# ----------------------------------------------------------------------------------------------------------- edit
@pytest.mark.requirement("D6")
async def test_an_edit_rewrites_the_description_and_indexes_again(
    skills: SkillManager, workshop: Workshop, data_dir: Path
) -> None:
    markdown = "---\n# ours\nname: git-commit\ndescription: old # short\nversion: 1.10\n---\r\n# Body {{x}}\n"
    await skills.install_skill(skill_zip(markdown=markdown))
    path, marker = data_dir / "skills/git-commit/SKILL.md", data_dir / "skills/git-commit/.vectorized"
    before, written = json.loads(marker.read_text()), marker.stat()
    new = "自动生成Git提交信息，支持emoji和conventional commits格式"
    receipt = await skills.update_skill_description("git-commit", new)
    assert (receipt.name, receipt.message) == ("git-commit", "Description updated")
    assert path.read_bytes().decode() == markdown.replace("old", f'"{new}"')
    assert workshop.index.vectors["git-commit"] == workshop.index.vector_of("git-commit", new)
    after = json.loads(marker.read_text())
    assert after["indexedAt"] >= before["indexedAt"]
    assert marker.stat().st_mtime_ns > written.st_mtime_ns
    assert after["skillHash"] != before["skillHash"]
    assert workshop.tools.get("skill:git-commit").description == new
    assert (await skills.get_skill("git-commit")).description == new


@pytest.mark.requirement("D6")
async def test_only_the_description_can_be_edited(skills: SkillManager, data_dir: Path) -> None:
    await skills.install_skill(skill_zip())
    before = walk(data_dir)
    with pytest.raises(FieldNotEditableError) as caught:
        await skills.update_skill_description("git-commit", {"description": "x", "name": "other", "tags": []})
    assert caught.value.message == "Only description field can be modified"
    assert (caught.value.code, caught.value.details["fields"]) == ("FIELD_NOT_EDITABLE", ["name", "tags"])
    assert walk(data_dir) == before


@pytest.mark.requirement("D6")
async def test_an_edit_adds_frontmatter_to_a_file_without_it(
    skills: SkillManager, tmp_path: Path, data_dir: Path
) -> None:
    await skills.install_skill(write_skill(tmp_path, "plain", markdown="# Plain\n\nWords of it.\n"))
    await skills.update_skill_description("plain", "Now with a description.")
    text = (data_dir / "skills/plain/SKILL.md").read_text()
    assert text == '---\nname: "plain"\ndescription: "Now with a description."\n---\n# Plain\n\nWords of it.\n'
    assert (await skills.get_skill("plain")).description == "Now with a description."


@pytest.mark.parametrize("bad", ["", "   ", "x" * 1025, "half \ud800", None, 5, {"description": ["x"]}, {}])
async def test_an_invalid_description_is_refused(skills: SkillManager, data_dir: Path, bad: object) -> None:
    await skills.install_skill(skill_zip())
    before = walk(data_dir)
    with pytest.raises(InvalidInputError):
        await skills.update_skill_description("git-commit", bad)  # type: ignore[arg-type]
    assert walk(data_dir) == before


# ---------------------------------------------------------------------------------------------------- list and show
@pytest.mark.requirement("D7")
async def test_the_list_is_sorted_filtered_and_paged(skills: SkillManager) -> None:
    for number in range(25):
        await skills.install_skill(skill_zip(f"tool-{number:02}", tags=["even" if number % 2 == 0 else "Odd"]))
    await skills.install_skill(skill_zip("git-push", tags=["git", "even"]))
    whole = await skills.list_skills()
    assert whole.total == len(whole) == 26
    assert [skill.name for skill in whole] == sorted(skill.name for skill in whole)
    assert [skill.name for skill in await skills.list_skills(name="GIT")] == ["git-push"]
    assert [skill.name for skill in await skills.list_skills(tags=["git", "nothing"])] == ["git-push"]
    assert (await skills.list_skills(tags=["EVEN"])).total == 14
    assert (await skills.list_skills(tags=["odd"], name="tool-0")).total == 5
    page = await skills.list_skills(page=2, limit=10)
    assert ([skill.name for skill in page], page.total) == ([f"tool-{number:02}" for number in range(9, 19)], 26)
    assert (await skills.list_skills(page=4, limit=10)).skills == []
    assert len(await skills.list_skills(page=1)) == 26
    wire = page.skills[0].model_dump(mode="json")
    assert set(wire) >= {"name", "description", "version", "tags", "installedAt", "derivedTags", "mode", "enabled"}
    with pytest.raises(InvalidInputError):
        await skills.list_skills(page=0)


async def test_sql_wildcards_in_the_name_filter_are_literal(skills: SkillManager) -> None:
    await skills.install_skill(skill_zip())
    assert (await skills.list_skills(name="%")).total == 0
    assert (await skills.list_skills(name="_")).total == 0


@pytest.mark.requirement("C6")
@pytest.mark.requirement("C8")
async def test_the_detail_of_a_skill_includes_content_files_mode_and_permissions(skills: SkillManager) -> None:
    body = "# Title\n" + "0123456789" * 30
    await skills.install_skill(
        skill_zip(body=body, files={"scripts/execute.py": "1", "docs/deep/x.md": "x"}, permissions=["env:A"], timeout=5)
    )
    detail = await skills.get_skill("git-commit")
    assert detail.content == body
    assert detail.summary == body[:200]
    assert (detail.filename, detail.source_path) == ("SKILL.md", "git-commit/SKILL.md")
    assert [file.path for file in detail.files] == ["SKILL.md", "docs/deep/x.md", "scripts/execute.py"]
    assert (detail.entry, detail.mode, detail.scripts) == ("scripts/execute.py", "sandbox", ["scripts/execute.py"])
    assert (detail.permissions, detail.grants, detail.timeout) == (["env:A"], [], 5)
    assert len(detail.content_hash) == 64
    assert not detail.read_only


@pytest.mark.requirement("C1")
async def test_a_lower_case_skill_file_is_accepted_with_a_warning(skills: SkillManager) -> None:
    receipt = await skills.install_skill(zip_of({"git-commit/skill.md": skill_markdown()}))
    assert any("rename it to SKILL.md" in warning for warning in receipt.warnings)
    assert (await skills.get_skill("git-commit")).filename == "skill.md"
    await skills.update_skill_description("git-commit", "It can be edited as well.")
    assert (await skills.get_skill("git-commit")).description == "It can be edited as well."


@pytest.mark.requirement("C7")
@pytest.mark.parametrize(
    ("fields", "files", "warning"),
    [
        ({"description": "Commits."}, {}, "shorter than 20"),
        ({"description": "Git commit, git commit!"}, {}, "nothing beyond the name"),
        ({"body": "word " * 5000}, {}, "tokens"),
        ({"body": "提交" * 3000}, {}, "tokens"),
        ({"body": "See [a](reference.md) and [b](docs/x.md#y)."}, {"docs/x.md": ""}, "link to reference.md"),
        ({}, {"my file.md": "x"}, "odd file names"),
    ],
)
async def test_advice_is_reported_as_warnings(
    skills: SkillManager, fields: dict[str, str], files: dict[str, str], warning: str
) -> None:
    receipt = await skills.install_skill(skill_zip(files=files, **fields))
    assert [found for found in receipt.warnings if warning in found]
    assert len(receipt.warnings) == 1
    assert (await skills.get_skill("git-commit")).warnings == receipt.warnings


@pytest.mark.requirement("C7")
async def test_external_links_and_links_in_code_cause_no_warning(skills: SkillManager) -> None:
    fenced = "````\n```\n[e](no.md)\n```\n````\n- item\n  ~~~ sh\n  [g](no.md)\n  ~~~\n``[h](no.md)`` `[c](no.md)`\n"
    links = "[w](https://x.org/a) [m](mailto:a@b.c) [t](#here) [abs](/etc)\n```\n[d](no.md)\n```\n[f](docs)\n"
    assert (await skills.install_skill(skill_zip(body=fenced + links, files={"docs/x.md": ""}))).warnings == []


@pytest.mark.parametrize(
    "body", ["x" + "`" * 200_000 + "x", "[" * 400_000, "](" * 200_000, "` `` " * 60_000, "~~~\n" * 90_000]
)
async def test_a_hostile_body_does_not_make_the_advice_slow(skills: SkillManager, body: str) -> None:
    with anyio.fail_after(60):
        assert (await skills.install_skill(skill_zip(body=body))).name == "git-commit"


@pytest.mark.slow
async def test_a_read_never_mixes_two_versions(skills: SkillManager) -> None:
    def version(number: int) -> bytes:
        return skill_zip(
            files={f"f{index}.md": str(number) for index in range(20)}, description=f"Version number {number}."
        )

    await skills.install_skill(version(0))
    done = anyio.Event()

    async def read() -> None:
        while not done.is_set():
            with await skills.export_skill("git-commit") as exported:
                archive = zipfile.ZipFile(io.BytesIO(exported.read()))
            texts = {archive.read(name) for name in archive.namelist() if "/f" in name}
            assert len(texts) == 1
            assert len((await skills.get_skill("git-commit")).files) == 21

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(read)
        tasks.start_soon(read)
        for number in range(1, 20):
            await skills.install_skill(version(number), overwrite=True)
        done.set()


async def test_a_folder_that_was_just_removed_by_hand_is_not_found(
    skills: SkillManager, data_dir: Path, tmp_path: Path
) -> None:
    for name in ("one", "two", "three"):
        await skills.install_skill(skill_zip(name))
        (data_dir / "skills" / name).rename(tmp_path / name)
    for change in (
        skills.uninstall_skill("one"),
        skills.update_skill_description("two", "Another description."),
        skills.export_skill("three"),
    ):
        with pytest.raises(ApexBridgeError) as caught:
            await change
        assert caught.value.status == 404
    assert "one" not in [skill.name for skill in await skills.list_skills()]


async def test_a_dangling_symlink_occupies_a_name(skills: SkillManager, data_dir: Path) -> None:
    (data_dir / "skills/git-commit").symlink_to("nowhere")
    with pytest.raises(SkillAlreadyExistsError):
        await skills.install_skill(skill_zip())
    await skills.install_skill(skill_zip(), overwrite=True)
    assert (data_dir / "skills/git-commit/SKILL.md").is_file()


async def test_only_files_inside_the_skill_can_be_read(skills: SkillManager, data_dir: Path) -> None:
    await skills.install_skill(skill_zip(files={"docs/中文 名.md": "text"}))
    with await skills.open_skill_file("git-commit", "docs/中文 名.md") as file:
        assert file.read() == b"text"
    folder = data_dir / "skills/git-commit"
    (folder / "out").symlink_to("/etc/passwd")
    (folder / "up").symlink_to("/etc")
    os.mkfifo(folder / "pipe")
    for path in (
        "out",
        "up/passwd",
        "pipe",
        "docs",
        "../git-commit/SKILL.md",
        "/etc/passwd",
        "",
        "a\0b",
        "no.md",
        "./../git-commit/SKILL.md",
    ):
        with pytest.raises(ApexBridgeError) as caught:
            await skills.open_skill_file("git-commit", path)
        assert caught.value.code == "FILE_NOT_FOUND"


async def test_an_export_with_a_high_compression_ratio_installs_again(skills: SkillManager, tmp_path: Path) -> None:
    await skills.install_skill(write_skill(tmp_path, "zeros", {"zeros.txt": "0" * 3_000_000}))
    with await skills.export_skill("zeros") as exported:
        assert (await skills.install_skill(exported.read(), overwrite=True)).replaced


async def test_a_folder_beyond_the_limits_is_refused_before_it_is_read(skills: SkillManager, tmp_path: Path) -> None:
    large = write_skill(tmp_path, "large")
    with (large / "sparse").open("wb") as file:
        file.truncate(3 * 1024**3)
    maze = write_skill(tmp_path, "maze")
    for number in range(27):
        (maze / f"d{number}").mkdir()
        if number:
            (maze / f"d{number - 1}/a").symlink_to(f"../d{number}")
            (maze / f"d{number - 1}/b").symlink_to(f"../d{number}")
    for folder, code in ((large, "ARCHIVE_TOO_LARGE"), (maze, "UNSAFE_ENTRY")):
        with anyio.fail_after(60), pytest.raises(SkillError) as caught:
            await skills.install_skill(folder)
        assert caught.value.code == code


async def test_an_export_installs_again_with_the_same_content(skills: SkillManager) -> None:
    files = {"scripts/execute.sh": "echo", "__pycache__/x.pyc": "kept", "资料.md": "x"}
    await skills.install_skill(skill_zip(files=files))
    before = (await skills.get_skill("git-commit")).content_hash
    with await skills.export_skill("git-commit") as exported:
        data = exported.read()
    assert {name.split("/", 1)[0] for name in zipfile.ZipFile(io.BytesIO(data)).namelist()} == {"git-commit"}
    await skills.uninstall_skill("git-commit")
    await skills.install_skill(data)
    assert (await skills.get_skill("git-commit")).content_hash == before


# ---------------------------------------------------------------------------------------------------- mode, entry
@pytest.mark.requirement("C4")
@pytest.mark.parametrize(
    ("fields", "files", "default", "mode"),
    [
        ({}, {"scripts/execute.js": ""}, "auto", "sandbox"),
        ({}, {"scripts/execute.mjs": ""}, "auto", "sandbox"),
        ({}, {"index.js": ""}, "auto", "sandbox"),
        ({}, {"scripts/helper.py": ""}, "auto", "direct"),
        ({}, {}, "auto", "direct"),
        ({}, {}, "sandbox", "sandbox"),
        ({}, {"scripts/execute.py": ""}, "direct", "direct"),
        ({"mode": "direct"}, {"scripts/execute.py": ""}, "auto", "direct"),
        ({"mode": "sandbox"}, {"scripts/execute.sh": ""}, "direct", "sandbox"),
        ({"metadata": {"apex": {"entrypoint": "bin/run.py"}}}, {"bin/run.py": ""}, "auto", "sandbox"),
    ],
)
async def test_the_mode_comes_from_the_frontmatter_the_default_or_the_files(
    workshop: Workshop, fields: dict[str, str], files: dict[str, str], default: str, mode: str
) -> None:
    async with workshop.open(default_mode=default) as skills:
        await skills.install_skill(skill_zip(files=files, **fields))
        assert (await skills.get_skill("git-commit")).mode == mode
        assert (await skills.statistics()).by_mode[mode] == 1


@pytest.mark.requirement("C4")
async def test_a_sandbox_skill_with_scripts_needs_an_entry_script(skills: SkillManager) -> None:
    with pytest.raises(InvalidSkillStructureError, match="entry script"):
        await skills.install_skill(skill_zip(files={"scripts/helper.py": ""}, mode="sandbox"))
    with pytest.raises(InvalidSkillStructureError, match=r"bin/run\.py"):
        await skills.install_skill(skill_zip(metadata={"apex": {"entrypoint": "bin/run.py"}}))


@pytest.mark.requirement("C4")
async def test_an_operator_can_require_entry_scripts(workshop: Workshop, tmp_path: Path) -> None:
    async with workshop.open(require_entry_script=True) as skills:
        with pytest.raises(InvalidSkillStructureError, match="entry script"):
            await skills.install_skill(skill_zip(files={"scripts/helper.py": ""}))
        with pytest.raises(InvalidSkillStructureError, match="entry script"):
            await skills.install_skill(write_skill(tmp_path, "x", {"scripts/helper.py": ""}))
        assert await skills.install_skill(skill_zip(files={"scripts/execute.py": ""}))


# ------------------------------------------------------------------------------------------------------- statistics
@pytest.mark.requirement("D8")
async def test_statistics_count_skills_tags_modes_and_calls(skills: SkillManager) -> None:
    await skills.install_skill(skill_zip("one", tags=["git", "vcs"], files={"scripts/execute.js": ""}))
    await skills.install_skill(skill_zip("two", tags=["git"]))
    await skills.install_skill(skill_zip("three"))
    for success in (True, False):  # as a run is counted when it ends
        await skills._statistics.record("one", success=success, duration_ms=150)
    await skills.execute_skill("two")
    statistics = await skills.statistics()
    assert statistics.model_dump() == {
        "total": 3,
        "byTag": {"git": 2, "vcs": 1},
        "byDerivedTag": {"three": 1},
        "byMode": {"sandbox": 1, "direct": 2},
        "calls": 3,
        "successRate": 0.67,
        "unused": 1,
        "unusedNames": ["three"],
    }
    one = await skills.skill_statistics("one")
    assert (one.call_count, one.success_count, one.average_duration, one.success_rate) == (2, 1, 150, 0.5)
    three = await skills.skill_statistics("three")
    assert (three.call_count, three.average_duration, three.success_rate) == (0, 0, 0)
    with pytest.raises(SkillNotFoundError):
        await skills.skill_statistics("none")


@pytest.mark.requirement("D8")
async def test_growth_counts_first_installs_by_day_and_by_week(workshop: Workshop) -> None:
    async with workshop.open() as skills:
        for name in ("a", "b", "c", "d"):
            await skills.install_skill(skill_zip(name))
        await skills.uninstall_skill("a")
        await skills.install_skill(skill_zip("a"))
        days = {"a": "2026-01-04", "b": "2026-01-05", "c": "2026-01-11", "d": "2026-01-12"}

        def backdate(connection: object) -> None:
            for name, day in days.items():
                connection.execute(  # type: ignore[attr-defined]
                    "UPDATE first_installs SET installed_at = strftime('%s', ?) * 1000 + 86399000 WHERE name = ?",
                    (day, name),
                )

        await skills._catalog._database.write(backdate)
        by_day = [(point.date, point.count) for point in await skills.growth("day")]
        assert by_day == [(day, 1) for day in days.values()]
        by_week = [(point.date, point.count) for point in await skills.growth("week")]
        assert by_week == [("2025-12-29", 1), ("2026-01-05", 2), ("2026-01-12", 1)]


# ----------------------------------------------------------------------------------------------------------- reload
@pytest.mark.requirement("D10")
async def test_a_reload_reads_the_disk_and_updates_the_tool(
    skills: SkillManager, workshop: Workshop, data_dir: Path
) -> None:
    await skills.install_skill(skill_zip())
    path = data_dir / "skills/git-commit/SKILL.md"
    path.write_text(skill_markdown(description="Changed by hand, on disk.", dangerous=True))
    detail = await skills.reload_skill("git-commit")
    assert (detail.description, detail.dangerous) == ("Changed by hand, on disk.", True)
    assert workshop.tools.get("skill:git-commit").description == "Changed by hand, on disk."
    assert workshop.index.vectors["git-commit"] == workshop.index.vector_of("git-commit", "Changed by hand, on disk.")
    path.write_text("")
    with pytest.raises(SkillParseError) as caught:
        await skills.reload_skill("git-commit")
    assert caught.value.code == "SKILL_PARSE_ERROR"
    assert workshop.tool_names == []
    path.write_text(skill_markdown())
    assert (await skills.reload_skill("git-commit")).description == DESCRIPTION
    with pytest.raises(SkillNotFoundError):
        await skills.reload_skill("none")


async def test_a_disabled_skill_is_listed_and_not_run(skills: SkillManager, workshop: Workshop) -> None:
    await skills.install_skill(skill_zip())
    assert not (await skills.set_enabled("git-commit", False)).enabled
    assert workshop.tool_names == []
    with pytest.raises(SkillError) as caught:
        await skills.execute_skill("git-commit")
    assert caught.value.code == "TOOL_DISABLED"
    await skills.update_skill_description("git-commit", "Still disabled after an edit.")
    assert workshop.tool_names == []
    assert (await skills.set_enabled("git-commit", True)).enabled
    assert "git-commit" in workshop.tool_names


# ---------------------------------------------------------------------------------------------------- cancellation
async def test_an_install_is_completed_when_its_caller_is_cancelled(
    skills: SkillManager, data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started, is_cancelled, put = threading.Event(), threading.Event(), Library.put

    def slow_put(self: Library, staged: StagedSkill, target: Path) -> None:
        started.set()
        assert is_cancelled.wait(5)
        put(self, staged, target)

    monkeypatch.setattr(Library, "put", slow_put)
    for number in range(10):
        started.clear()
        is_cancelled.clear()
        files = {f"f{index}.md": str(number) for index in range(30)}
        task = asyncio.ensure_future(skills.install_skill(skill_zip(f"s-{number}", files)))
        await anyio.to_thread.run_sync(started.wait, 5)
        task.cancel()
        is_cancelled.set()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert len((await skills.get_skill(f"s-{number}")).files) == 31
        assert list((data_dir / "staging").iterdir()) == []


async def test_a_caller_that_times_out_leaves_the_old_state_or_the_new_one(
    skills: SkillManager, workshop: Workshop, data_dir: Path
) -> None:
    for number in range(30):
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(number / 2000):
                await skills.install_skill(skill_zip(description=f"Version number {number}."), overwrite=True)
        with contextlib.suppress(TimeoutError, ApexBridgeError):
            async with asyncio.timeout(number / 2000):
                await skills.uninstall_skill("git-commit")
        listed = [skill.name for skill in await skills.list_skills()]
        assert listed == [path.name for path in (data_dir / "skills").iterdir()]
        assert workshop.tool_names == listed
        assert list((data_dir / "staging").iterdir()) == []
