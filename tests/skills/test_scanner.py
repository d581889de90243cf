"""The disk is the source of truth: folders are scanned at the start and watched while running."""

import json
import os
import sqlite3
from collections.abc import Callable
from pathlib import Path

import anyio
import pytest

from apexbridge.bridge import Bridge
from apexbridge.errors import ServerError, SkillError, SkillNotFoundError, SkillParseError, SkillReadOnlyError
from apexbridge.settings import Settings
from apexbridge.skills.manager import SkillManager
from apexbridge.skills.package.fingerprint import hash_folder, scan_folder
from tests.conftest import Workshop
from tests.making import WatchedIndex, skill_markdown, skill_zip, walk, write_skill
from tests.waiting import until

pytestmark = pytest.mark.anyio


async def names(skills: SkillManager) -> list[str]:
    return [skill.name for skill in await skills.list_skills()]


# ---------------------------------------------------------------------------------------------------- at the start
@pytest.mark.requirement("E2")
async def test_a_start_skips_marked_skills_and_embeds_the_others(workshop: Workshop, data_dir: Path) -> None:
    async with workshop.open() as skills:
        await skills.install_skill(skill_zip("one"))
        await skills.install_skill(skill_zip("two"))
    write_skill(data_dir / "skills", "three")
    workshop.index.embedded.clear()
    async with workshop.open() as skills:
        assert await names(skills) == ["one", "three", "two"]
    assert workshop.index.embedded == ["three"]
    workshop.index.embedded.clear()
    async with workshop.open():
        assert workshop.index.embedded == []


@pytest.mark.requirement("E2")
async def test_a_start_embeds_skills_again_that_changed_in_size_or_content(workshop: Workshop, data_dir: Path) -> None:
    async with workshop.open() as skills:
        await skills.install_skill(skill_zip("one", description="The letter A is written here."))
        await skills.install_skill(skill_zip("two"))
        await skills.install_skill(skill_zip("three"))
    path = data_dir / "skills/one/SKILL.md"
    before = path.stat()
    path.write_text(path.read_text().replace("letter A", "letter B"))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))  # same size, same time: only the content differs
    (data_dir / "skills/two/more.md").write_text("more")
    workshop.index.embedded.clear()
    async with workshop.open() as skills:
        assert (await skills.get_skill("one")).description == "The letter B is written here."
    assert sorted(workshop.index.embedded) == ["one", "two"]


@pytest.mark.requirement("E2")
async def test_a_start_embeds_all_skills_again_for_another_model(workshop: Workshop, data_dir: Path) -> None:
    async with workshop.open() as skills:
        await skills.install_skill(skill_zip("one"))
        await skills.install_skill(skill_zip("two"))
    workshop.index = WatchedIndex(embedder="better", dimensions=8)
    async with workshop.open():
        assert sorted(workshop.index.embedded) == ["one", "two"]
    marker = json.loads((data_dir / "skills/one/.vectorized").read_text())
    assert (marker["embedder"], marker["dimensions"]) == ("better", 8)


@pytest.mark.requirement("E2")
async def test_a_start_removes_the_vectors_of_missing_folders(workshop: Workshop, data_dir: Path) -> None:
    async with workshop.open() as skills:
        await skills.install_skill(skill_zip("one"))
        await skills.install_skill(skill_zip("two"))
    workshop.index.vectors["never-heard-of"] = [0.0]
    (data_dir / "skills/one").rename(data_dir / "elsewhere")
    async with workshop.open() as skills:
        assert await names(skills) == ["two"]
        assert (await skills.reconcile()).model_dump() == {"indexed": 0, "skipped": 1, "removed": 0}
    assert set(workshop.index.vectors) == {"two"}
    assert set(workshop.tool_names) == {"two"}


@pytest.mark.requirement("E2")
async def test_a_missing_vector_or_marker_is_created_again(workshop: Workshop, data_dir: Path) -> None:
    async with workshop.open() as skills:
        await skills.install_skill(skill_zip("one"))
        await skills.install_skill(skill_zip("two"))
    del workshop.index.vectors["one"]
    (data_dir / "skills/two/.vectorized").unlink()
    workshop.index.embedded.clear()
    async with workshop.open():
        assert sorted(workshop.index.embedded) == ["one", "two"]
    assert (data_dir / "skills/two/.vectorized").exists()


@pytest.mark.requirement("E3")
async def test_the_marker_records_size_hash_model_and_time_and_excludes_itself(
    skills: SkillManager, data_dir: Path
) -> None:
    await skills.install_skill(skill_zip(files={"a/b.md": "12345"}))
    folder = data_dir / "skills/git-commit"
    marker = json.loads((folder / ".vectorized").read_text())
    assert set(marker) == {"indexedAt", "skillSize", "skillHash", "embedder", "dimensions"}
    assert marker["skillSize"] == (folder / "SKILL.md").stat().st_size + 5
    assert marker["skillHash"] == (await skills.get_skill("git-commit")).content_hash
    (folder / ".vectorized").unlink()
    assert hash_folder(folder, scan_folder(folder).files) == marker["skillHash"]
    assert abs(marker["indexedAt"] / 1000 - folder.stat().st_mtime) < 3600


@pytest.mark.requirement("E3")
async def test_the_hash_covers_path_mode_and_content(tmp_path: Path) -> None:
    folder = write_skill(tmp_path, "x", {"a.sh": "echo"})

    def digest() -> str:
        return hash_folder(folder, scan_folder(folder).files)

    hashes = [digest()]
    (folder / "a.sh").chmod(0o755)
    hashes.append(digest())
    (folder / "a.sh").write_text("ECHO")
    hashes.append(digest())
    (folder / "a.sh").rename(folder / "b.sh")
    hashes.append(digest())
    assert len(set(hashes)) == 4


async def test_skills_are_listed_if_the_index_fails_at_the_start(workshop: Workshop, data_dir: Path) -> None:
    write_skill(data_dir / "skills", "one")
    workshop.index.fault = RuntimeError("no model")
    async with workshop.open() as skills:
        assert await names(skills) == ["one"]
        workshop.index.fault = None
        assert (await skills.reconcile()).indexed == 1


async def test_a_lost_database_is_rebuilt_from_the_disk(workshop: Workshop, data_dir: Path) -> None:
    async with workshop.open() as skills:
        await skills.install_skill(skill_zip("one", tags=["a"]))
        installed = (await skills.get_skill("one")).installed_at
    for path in data_dir.glob("apex.sqlite3*"):
        path.unlink()
    workshop.index.embedded.clear()
    async with workshop.open() as skills:
        detail = await skills.get_skill("one")
        assert detail.tags == ["a"]
        assert abs((detail.installed_at - installed).total_seconds()) < 5
    assert workshop.index.embedded == [], "the marker still matches the index"


async def test_a_broken_database_is_quarantined(
    workshop: Workshop, data_dir: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with workshop.open() as skills:
        await skills.install_skill(skill_zip("one"))
    (data_dir / "apex.sqlite3").write_bytes(b"this is no database" * 1000)
    for suffix in ("-wal", "-shm"):
        (data_dir / f"apex.sqlite3{suffix}").unlink(missing_ok=True)
    async with workshop.open() as skills:
        assert await names(skills) == ["one"]
    assert list(data_dir.glob("apex.sqlite3.broken-*"))
    assert "cannot be read" in caplog.text


# --------------------------------------------------------------------------------------------------------- problems
@pytest.mark.requirement("D12")
async def test_folders_that_cannot_be_parsed_are_ignored_and_reported(
    workshop: Workshop, data_dir: Path, caplog: pytest.LogCaptureFixture
) -> None:
    root = data_dir / "skills"
    write_skill(root, "good")
    write_skill(root, "empty", markdown="")
    (root / "nothing").mkdir()
    write_skill(root, "huge", markdown=skill_markdown("huge") + "x" * 1024 * 1024)
    (write_skill(root, "odd") / os.fsdecode(b"bad-\xff.md")).write_text("x")
    write_skill(root, "stats")
    (root / os.fsdecode(b"folder-\xff")).mkdir()
    (root / "loose file.txt").write_text("x")
    async with workshop.open() as skills:
        assert await names(skills) == ["good"]
        found = {problem.name: (problem.kind, problem.reason) for problem in await skills.problems()}
        assert set(found) == {"empty", "nothing", "huge", "odd", "stats", "folder-\\xff"}
        assert "nothing in installed is not served: SKILL.md not found" in caplog.text
        assert {kind for kind, _ in found.values()} == {"broken"}
        assert found["nothing"][1] == "SKILL.md not found"
        assert "1 MB" in found["huge"][1]
        assert "reserved" in found["stats"][1]
        assert str(data_dir) not in str(found)
        (root / "empty/SKILL.md").write_text(skill_markdown("empty"))
        await skills.reconcile()
        assert await names(skills) == ["empty", "good"]


@pytest.mark.requirement("D12")
async def test_a_malformed_folder_does_not_stop_the_start(workshop: Workshop, data_dir: Path) -> None:
    deep = write_skill(data_dir / "skills", "deep")
    await anyio.run_process(["mkdir", "-p", deep / "/".join("d" * 200)])
    odd = write_skill(data_dir / "skills", "odd")
    marker = {"indexedAt": -(10**17), "skillSize": 1, "skillHash": "x", "embedder": "none", "dimensions": 0}
    (odd / ".vectorized").write_text(json.dumps(marker))
    async with workshop.open() as skills:
        assert await names(skills) == ["odd"]
        assert [problem.name for problem in await skills.problems()] == ["deep"]
        await skills.uninstall_skill("deep")
        assert not (data_dir / "skills/deep").exists()


@pytest.mark.parametrize("name", [".", "..", ".hidden", "x" * 300, "a/b", ""])
async def test_a_path_is_not_a_skill_name(skills: SkillManager, data_dir: Path, name: str) -> None:
    (data_dir / "skills/SKILL.md").write_text(skill_markdown("flat-one"))
    write_skill(data_dir / "skills", ".hidden")
    before = walk(data_dir)
    with pytest.raises(SkillNotFoundError):
        await skills.reload_skill(name)
    assert await skills.problems() == []
    assert (await skills.list_skills()).total == 0
    assert walk(data_dir) == before


@pytest.mark.requirement("D12")
async def test_a_broken_folder_can_be_uninstalled(workshop: Workshop, data_dir: Path) -> None:
    write_skill(data_dir / "skills", "ill", markdown="")
    async with workshop.open() as skills:
        await skills.uninstall_skill("ill")
        assert await skills.problems() == []
        await skills.install_skill(skill_zip("ill"))


@pytest.mark.requirement("D12")
async def test_a_skill_is_removed_when_its_file_breaks_and_restored_when_it_is_fixed(
    workshop: Workshop, data_dir: Path
) -> None:
    async with workshop.open() as skills:
        await skills.install_skill(skill_zip("one"))
        path = data_dir / "skills/one/SKILL.md"
        path.write_text("")
        await skills.reconcile()
        assert await names(skills) == []
        assert workshop.index.vectors == {}
        path.write_text(skill_markdown("one"))
        await skills.reconcile()
        assert await names(skills) == ["one"]
        assert set(workshop.index.vectors) == {"one"}


async def test_a_skill_in_a_folder_with_another_name_is_listed_by_its_own_name(
    workshop: Workshop, data_dir: Path
) -> None:
    write_skill(data_dir / "skills", "folder", markdown=skill_markdown("real-name"))
    async with workshop.open() as skills:
        assert await names(skills) == ["real-name"]
        assert (await skills.get_skill("real-name")).source_path == "folder/SKILL.md"
        with pytest.raises(Exception, match="already exists"):
            await skills.install_skill(skill_zip("real-name"))
        await skills.uninstall_skill("real-name")
        assert not (data_dir / "skills/folder").exists()


# ------------------------------------------------------------------------------------------------------------ roots
@pytest.mark.requirement("D11")
async def test_a_later_root_overrides_an_earlier_one_and_an_installed_skill_wins(
    workshop: Workshop, tmp_path: Path
) -> None:
    first, second = tmp_path / "team/skills", tmp_path / "mine"
    write_skill(first, "shared", description="The one of the first root.")
    write_skill(first, "only-first")
    write_skill(second / "nested/deeper", "shared", description="The one of the second root.")
    async with workshop.open(roots=(first, second)) as skills:
        assert await names(skills) == ["only-first", "shared"]
        detail = await skills.get_skill("shared")
        assert (detail.description, detail.source) == ("The one of the second root.", "mine")
        assert detail.source_path == "nested/deeper/shared/SKILL.md"
        (problem,) = await skills.problems()
        assert (problem.kind, problem.source, problem.name) == ("shadowed", "team/skills", "shared")
        assert "mine" in problem.reason
        receipt = await skills.install_skill(skill_zip("shared", description="The one that was installed."))
        assert any("mine" in warning for warning in receipt.warnings)
        assert (await skills.get_skill("shared")).source == "installed"
        assert len(await skills.problems()) == 2
        assert workshop.index.vectors["shared"] == workshop.index.vector_of("shared", "The one that was installed.")
        await skills.uninstall_skill("shared")
        assert (await skills.get_skill("shared")).description == "The one of the second root."
        await skills.reconcile()
        assert workshop.index.vectors["shared"] == workshop.index.vector_of("shared", "The one of the second root.")
        assert workshop.tools.get("skill:shared").description == "The one of the second root."


@pytest.mark.requirement("D11")
async def test_a_read_only_root_is_never_written_to(workshop: Workshop, tmp_path: Path, data_dir: Path) -> None:
    root = tmp_path / "library"
    folder = write_skill(root, "fixed")
    folder.chmod(0o555)
    root.chmod(0o555)
    before = walk(root)
    async with workshop.open(roots=(root,)) as skills:
        assert (await skills.get_skill("fixed")).read_only
        for change in (
            skills.update_skill_description("fixed", "Another description."),
            skills.uninstall_skill("fixed", delete=True),
        ):
            with pytest.raises(SkillReadOnlyError) as caught:
                await change
            assert caught.value.code == "SKILL_READ_ONLY"
        await skills.reconcile()
    assert walk(root) == before
    assert len(list((data_dir / "markers").rglob("*.json"))) == 1
    workshop.index.embedded.clear()
    async with workshop.open(roots=(root,)):
        assert workshop.index.embedded == [], "its marker in the data directory is used"
    root.chmod(0o755)
    folder.chmod(0o755)


async def test_skills_in_a_writable_root_can_be_edited_and_uninstalled(workshop: Workshop, tmp_path: Path) -> None:
    root = tmp_path / "mine"
    write_skill(root, "open")
    async with workshop.open(roots=(root,)) as skills:
        await skills.update_skill_description("open", "A description of our own.")
        assert (root / "open/.vectorized").exists()
        await skills.uninstall_skill("open", delete=True)
        assert list(root.iterdir()) == []
    write_skill(root, ".apex-trash-1234")
    async with workshop.open(roots=(root,)):
        assert list(root.iterdir()) == [], "leftovers of an interrupted uninstall are deleted"


@pytest.mark.requirement("D11")
async def test_symlinks_are_followed_inside_the_roots_and_refused_outside(workshop: Workshop, tmp_path: Path) -> None:
    root, outside = tmp_path / "root", tmp_path / "outside"
    write_skill(root / "packs", "real")
    write_skill(outside, "secret")
    write_skill(root / "node_modules/pkg", "dependency")
    write_skill(root / ".git/x", "history")
    write_skill(root / "a/b/c/d/e", "deep")
    write_skill(root / "a/b/c/d/e/f", "too-deep")
    (root / "linked").symlink_to("packs/real")
    (root / "loop").symlink_to(".")
    (root / "out").symlink_to(outside / "secret")
    async with workshop.open(roots=(root,)) as skills:
        assert await names(skills) == ["deep", "real"]
        out = next(problem for problem in await skills.problems() if problem.name == "out")
        assert "APEX_SKILL_ROOTS" in out.reason
    async with workshop.open(roots=(root, outside)) as skills:
        assert await names(skills) == ["deep", "real", "secret"]


async def test_a_symlink_among_the_installed_skills_must_not_point_outside_the_roots(
    workshop: Workshop, tmp_path: Path, data_dir: Path
) -> None:
    real = write_skill(tmp_path / "elsewhere", "linked")
    (data_dir / "skills").mkdir(parents=True)
    (data_dir / "skills/linked").symlink_to(real)
    async with workshop.open() as skills:
        assert await names(skills) == []
        assert [problem.name for problem in await skills.problems()] == ["linked"]
    async with workshop.open(roots=(tmp_path / "elsewhere",)) as skills:
        assert await names(skills) == ["linked"]
        await skills.uninstall_skill("linked")
        assert (real / "SKILL.md").exists(), "only the link is removed, not its target"


async def test_a_symlink_created_while_running_must_not_point_outside_the_roots(data_dir: Path, tmp_path: Path) -> None:
    real = write_skill(tmp_path / "elsewhere", "linked")
    before = walk(tmp_path / "elsewhere")
    async with Bridge.open(Settings(data_dir=data_dir)) as bridge:
        (data_dir / "skills/linked").symlink_to(real)
        write_skill(data_dir / "skills", "plain")
        await until_listed(lambda found: found == {"plain"}, bridge.skills)
        with pytest.raises(SkillParseError, match="leads outside"):
            await bridge.skills.reload_skill("linked")
        assert await names(bridge.skills) == ["plain"]
    assert walk(tmp_path / "elsewhere") == before


@pytest.mark.requirement("D11")
async def test_a_read_only_root_is_not_written_to_through_a_symlink(
    workshop: Workshop, tmp_path: Path, data_dir: Path
) -> None:
    root = tmp_path / "library"
    folder = write_skill(root, "fixed")
    folder.chmod(0o555)
    root.chmod(0o555)
    (data_dir / "skills").mkdir(parents=True)
    (data_dir / "skills/fixed").symlink_to(folder)
    before = walk(root)
    async with workshop.open(roots=(root,)) as skills:
        assert await names(skills) == ["fixed"]
        with pytest.raises(SkillReadOnlyError):
            await skills.update_skill_description("fixed", "Another description.")
    assert walk(root) == before
    root.chmod(0o755)
    folder.chmod(0o755)


async def test_concurrent_refreshes_of_folders_with_one_skill_name_do_not_conflict(
    skills: SkillManager, data_dir: Path
) -> None:
    for number in range(10):
        write_skill(data_dir / "skills", f"f{number}", markdown=skill_markdown("same"))
    installed = skills.roots[-1]
    async with anyio.create_task_group() as tasks:
        for number in range(10):
            tasks.start_soon(skills.refresh, {(installed, f"f{number}")})
        tasks.start_soon(skills.install_skill, skill_zip("other"))
    assert await names(skills) == ["other", "same"]
    assert len(await skills.problems()) == 9


@pytest.mark.requirement("D3")
async def test_an_overwrite_replaces_a_skill_in_a_folder_with_another_name(workshop: Workshop, data_dir: Path) -> None:
    write_skill(data_dir / "skills", "folder", markdown=skill_markdown("real"))
    async with workshop.open() as skills:
        assert (await skills.install_skill(skill_zip("real"), overwrite=True)).replaced
        assert sorted(path.name for path in (data_dir / "skills").iterdir()) == ["real"]
        assert await skills.problems() == []


async def test_a_missing_root_is_a_problem(workshop: Workshop, tmp_path: Path) -> None:
    async with workshop.open(roots=(tmp_path / "nowhere",)) as skills:
        (problem,) = await skills.problems()
        assert (problem.name, problem.reason) == ("nowhere", "the folder does not exist")


async def test_a_skill_is_uninstalled_even_if_the_index_fails(skills: SkillManager, workshop: Workshop) -> None:
    async def fail(_: object) -> None:
        raise RuntimeError("the index is gone")

    await skills.install_skill(skill_zip())
    for call in ("remove", "missing", "retain"):
        setattr(workshop.index, call, fail)
    await skills.uninstall_skill("git-commit")
    assert await names(skills) == []
    assert (await skills.reconcile()).removed == 0


@pytest.mark.requirement("D10")
async def test_a_root_that_appears_later_is_served_and_watched(data_dir: Path, tmp_path: Path) -> None:
    root = tmp_path / "later"
    async with Bridge.open(Settings(data_dir=data_dir, skill_roots=(root,))) as bridge:
        write_skill(root, "first")
        await until_listed(lambda found: found == {"first"}, bridge.skills)
        write_skill(root, "second")
        await until_listed(lambda found: found == {"first", "second"}, bridge.skills)


async def test_skills_of_a_root_that_is_no_longer_configured_are_not_listed(workshop: Workshop, tmp_path: Path) -> None:
    write_skill(tmp_path / "mine", "theirs")
    async with workshop.open(roots=(tmp_path / "mine", tmp_path / "missing")) as skills:
        assert await names(skills) == ["theirs"]
    async with workshop.open() as skills:
        assert await names(skills) == []
    assert workshop.index.vectors == {}
    assert (tmp_path / "mine/theirs/SKILL.md").exists()


# ---------------------------------------------------------------------------------------------------- while running
async def until_listed(condition: Callable[[set[str]], bool], skills: SkillManager) -> None:
    async def is_met() -> bool:
        return condition(set(await names(skills)))

    await until(is_met)


@pytest.mark.requirement("D10")
async def test_manual_changes_to_folders_are_detected(data_dir: Path, tmp_path: Path) -> None:
    extra = tmp_path / "extra"
    write_skill(extra, "in-extra")
    async with Bridge.open(Settings(data_dir=data_dir, skill_roots=(extra,))) as bridge:
        skills = bridge.skills
        write_skill(data_dir / "skills", "by-hand")
        write_skill(extra, "later")
        await until_listed(lambda found: found == {"by-hand", "in-extra", "later"}, skills)
        path = data_dir / "skills/by-hand/SKILL.md"
        path.write_text(skill_markdown("renamed"))
        await until_listed(lambda found: found == {"renamed", "in-extra", "later"}, skills)
        (data_dir / "skills/by-hand").rename(tmp_path / "away")
        (extra / "later").rename(tmp_path / "away-too")
        await until_listed(lambda found: found == {"in-extra"}, skills)
        with pytest.raises(SkillNotFoundError):
            await skills.get_skill("renamed")


@pytest.mark.requirement("D10")
async def test_folders_are_polled_if_the_kernel_cannot_watch_them(
    data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(28, "inotify watch limit reached")

    monkeypatch.setattr("apexbridge.skills.watcher.awatch", refuse)
    monkeypatch.setattr("apexbridge.skills.watcher.SWEEP_SECONDS", 0.05)
    async with Bridge.open(Settings(data_dir=data_dir)) as bridge:
        write_skill(data_dir / "skills", "by-hand")
        await until_listed(lambda found: found == {"by-hand"}, bridge.skills)


async def test_a_file_name_that_is_not_utf8_does_not_stop_the_watcher(data_dir: Path) -> None:
    async with Bridge.open(Settings(data_dir=data_dir)) as bridge:
        await bridge.skills.install_skill(skill_zip("one"))
        (data_dir / "skills/one" / os.fsdecode(b"b\xff.txt")).write_text("x")
        assert len((await bridge.skills.get_skill("one")).files) == 1
        with pytest.raises(SkillError) as caught:
            await bridge.skills.export_skill("one")
        assert caught.value.code == "UNSAFE_ENTRY"
        write_skill(data_dir / "skills", "two")
        await until_listed(lambda found: found == {"two"}, bridge.skills)


async def test_changes_that_could_not_be_recorded_are_recorded_later(
    data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Bridge.open(Settings(data_dir=data_dir)) as bridge:
        skills = bridge.skills
        await skills.install_skill(skill_zip("one"))
        await skills.install_skill(skill_zip("two"))

        async def full(*_: object, **__: object) -> None:
            error = sqlite3.OperationalError("database or disk is full")
            error.sqlite_errorcode = sqlite3.SQLITE_FULL
            raise error

        with monkeypatch.context() as patched:
            patched.setattr(skills._catalog, "save", full)
            for change in (
                skills.uninstall_skill("one"),
                skills.update_skill_description("two", "Changed while the disk was full."),
                skills.install_skill(skill_zip("three")),
            ):
                with pytest.raises(ServerError) as caught:
                    await change
                assert caught.value.code == "STORAGE_FULL"
                assert "nothing was changed" not in caught.value.message
        await until_listed(lambda found: found == {"two", "three"}, skills)
        assert (await skills.get_skill("two")).description == "Changed while the disk was full."


async def test_a_database_that_cannot_be_written_stops_a_change_before_it_starts(
    workshop: Workshop, data_dir: Path
) -> None:
    async with workshop.open() as skills:
        await skills.install_skill(skill_zip("one"))
        before = walk(data_dir)
        skills._catalog._database._writer.execute("PRAGMA query_only = ON")
        for change in (skills.install_skill(skill_zip("two")), skills.update_skill_description("one", "Another text.")):
            with pytest.raises(ServerError) as caught:
                await change
            assert caught.value.code == "STORAGE_FULL"
            assert walk(data_dir) == before
        assert (await skills.execute_skill("one")).content  # type: ignore[union-attr]


async def test_the_watcher_survives_a_folder_that_cannot_be_read(
    data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Bridge.open(Settings(data_dir=data_dir)) as bridge:
        refresh, calls = bridge.skills.refresh, []

        async def fail_once(folders: object) -> None:
            calls.append(folders)
            if len(calls) == 1:
                raise OSError(5, "Input/output error")
            await refresh(folders)  # type: ignore[arg-type]

        monkeypatch.setattr(bridge.skills, "refresh", fail_once)
        write_skill(data_dir / "skills", "first")
        await until(lambda: calls)
        write_skill(data_dir / "skills", "second")
        await until_listed(lambda found: "second" in found, bridge.skills)
