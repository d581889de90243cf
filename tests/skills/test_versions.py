"""Versions of skills: every change of an installed skill makes one, and each can be installed again."""

import asyncio
import errno
import io
import json
import os
import random
import zipfile
from pathlib import Path
from typing import Any

import pytest

from apexbridge._time import MS_PER_DAY
from apexbridge.bridge import DATABASE_FILE
from apexbridge.errors import ApexBridgeError
from apexbridge.skills.manager import SkillManager
from apexbridge.skills.store.skill_versions import skill_id
from tests.conftest import Workshop
from tests.making import skill_markdown, skill_zip, walk, write_skill, zip_of
from tests.skills.source_server import SourceRepository
from tests.skills.test_plugins import plugin_zip

pytestmark = pytest.mark.anyio


async def history(skills: SkillManager, name: str = "pdf") -> list[tuple[int, str, str]]:
    """Number, source and description of each version, the newest first; a star marks the default."""
    found = await skills.versions.listed(name)
    return [
        (version.version, version.source, f"{'*' if version.default else ''}{version.description}")
        for version in found.versions
    ]


def pdf(description: str, **files: str) -> bytes:
    return skill_zip("pdf", {path.replace("_", "."): text for path, text in files.items()}, description=description)


def contents(data_dir: Path, name: str = "pdf") -> dict[str, str]:
    own = walk(data_dir / "skills" / name)
    return {path: value for path, value in own.items() if not path.startswith(".")}


def stored(data_dir: Path, name: str = "pdf") -> list[str]:
    return sorted(path.name for path in (data_dir / "versions" / name).glob("*.zip"))


async def test_installs_overwrites_edits_and_changes_on_disk_make_versions(
    skills: SkillManager, data_dir: Path
) -> None:
    await skills.install_skill(pdf("one"), caller="key1")
    await skills.install_skill(pdf("two"), overwrite=True, caller="key2")
    await skills.update_skill_description("pdf", "three", caller="key3")
    write_skill(data_dir / "skills", "pdf", description="four")
    await skills.reload_skill("pdf")
    assert await history(skills) == [
        (4, "disk", "*four"),
        (3, "edit", "three"),
        (2, "install", "two"),
        (1, "install", "one"),
    ]
    found = await skills.versions.listed("pdf")
    assert [version.author for version in found.versions] == ["", "key3", "key2", "key1"]
    assert (found.default_version, found.latest_version, found.id) == (4, 4, skill_id("pdf"))
    assert len({version.id for version in found.versions}) == 4
    assert all(version.id.startswith("skillver_") and len(version.id) == 41 for version in found.versions)
    assert found.versions[0].content_hash == (await skills.get_skill("pdf")).content_hash


async def test_the_same_content_makes_no_new_version(skills: SkillManager, data_dir: Path) -> None:
    await skills.install_skill(pdf("one"))
    await skills.install_skill(pdf("one"), overwrite=True)
    await skills.reload_skill("pdf")
    assert await history(skills) == [(1, "install", "*one")]
    assert list((data_dir / "staging").iterdir()) == []


async def test_an_older_content_that_is_installed_again_is_a_new_version(skills: SkillManager, data_dir: Path) -> None:
    for text in ("one", "two", "one"):
        await skills.install_skill(pdf(text), overwrite=True)
    assert await history(skills) == [(3, "install", "*one"), (2, "install", "two"), (1, "install", "one")]
    assert len(stored(data_dir)) == 2  # contents are stored once


async def test_a_rollback_installs_the_exact_bytes_and_modes_of_a_version(skills: SkillManager, data_dir: Path) -> None:
    files: dict[str, str | bytes] = {
        "pdf/SKILL.md": skill_markdown("pdf", "one"),
        "pdf/scripts/run.sh": b"#!/bin/sh\n\xff\x00",
        "pdf/ü.txt": "x",
    }
    await skills.install_skill(zip_of(files, executable=["pdf/scripts/run.sh"]))
    before, detail = contents(data_dir), await skills.get_skill("pdf")
    await skills.install_skill(pdf("two", other_md="y"), overwrite=True)
    receipt = await skills.versions.rollback("pdf")
    assert (receipt.version, receipt.previous) == (1, 2)
    assert contents(data_dir) == before
    assert (await skills.get_skill("pdf")).content_hash == detail.content_hash
    assert await history(skills) == [(2, "install", "two"), (1, "install", "*one")]
    await skills.versions.rollback("pdf", 2)
    assert (await skills.get_skill("pdf")).description == "two"
    assert await history(skills) == [(2, "install", "*two"), (1, "install", "one")]
    assert list((data_dir / "staging").iterdir()) == []


async def test_search_finds_the_installed_version(skills: SkillManager, workshop: Workshop) -> None:
    await skills.install_skill(pdf("one"))
    await skills.install_skill(pdf("two"), overwrite=True)
    await skills.versions.rollback("pdf")
    assert workshop.index.vectors["pdf"] == workshop.index.vector_of("pdf", "one")


async def test_a_rollback_needs_an_earlier_version_that_exists(skills: SkillManager) -> None:
    await skills.install_skill(pdf("one"))
    for version in (None, 7):
        with pytest.raises(ApexBridgeError) as caught:
            await skills.versions.rollback("pdf", version)
        assert caught.value.code == "VERSION_NOT_FOUND"
    assert (await skills.versions.rollback("pdf", 1)).previous == 1
    with pytest.raises(ApexBridgeError) as caught:
        await skills.versions.rollback("none")
    assert caught.value.code == "SKILL_NOT_FOUND"


async def test_a_change_after_a_rollback_is_the_newest_version(skills: SkillManager) -> None:
    await skills.install_skill(pdf("one"))
    await skills.install_skill(pdf("two"), overwrite=True)
    await skills.versions.rollback("pdf")
    await skills.update_skill_description("pdf", "three")
    assert await history(skills) == [(3, "edit", "*three"), (2, "install", "two"), (1, "install", "one")]
    assert (await skills.versions.rollback("pdf")).version == 2  # one step back by number


async def test_unnoticed_edits_by_hand_stay_as_a_version(skills: SkillManager, data_dir: Path) -> None:
    await skills.install_skill(pdf("one"))
    write_skill(data_dir / "skills", "pdf", description="by hand")
    await skills.install_skill(pdf("two"), overwrite=True)
    assert await history(skills) == [(3, "install", "*two"), (2, "disk", "by hand"), (1, "install", "one")]
    write_skill(data_dir / "skills", "pdf", description="by hand again")
    await skills.versions.rollback("pdf", 1)
    assert [entry[2] for entry in await history(skills)] == ["by hand again", "two", "by hand", "*one"]


async def test_grants_are_void_after_a_rollback_to_other_content(skills: SkillManager) -> None:
    asks: dict[str, Any] = {"metadata": {"apex": {"permissions": "net:example.com:443"}}}
    await skills.install_skill(skill_zip("pdf", description="one", **asks))
    await skills.install_skill(skill_zip("pdf", description="two", **asks), overwrite=True)
    (view,) = await skills.grants_of("pdf")
    await skills.grant("pdf", view.permission)
    await skills.versions.rollback("pdf")
    assert (await skills.get_skill("pdf")).grants == []


async def test_versions_survive_a_restart_and_the_loss_of_the_database(workshop: Workshop, data_dir: Path) -> None:
    async with workshop.open() as skills:
        await skills.install_skill(pdf("one"))
        await skills.install_skill(pdf("two"), overwrite=True)
        await skills.versions.rollback("pdf")
        before = await skills.versions.listed("pdf")
    for path in data_dir.glob(f"{DATABASE_FILE}*"):
        path.unlink()
    async with workshop.open() as skills:
        assert await skills.versions.listed("pdf") == before


async def test_skills_of_an_earlier_release_get_a_first_version_at_the_start(
    workshop: Workshop, data_dir: Path
) -> None:
    async with workshop.open() as skills:
        await skills.install_skill(pdf("one"))
    for path in (data_dir / "versions" / "pdf").iterdir():
        path.unlink()
    (data_dir / "versions" / "pdf").rmdir()
    async with workshop.open() as skills:
        assert await history(skills) == [(1, "disk", "*one")]
        assert len(stored(data_dir)) == 1


async def test_a_removed_skill_takes_its_versions_along_and_brings_them_back(
    skills: SkillManager, data_dir: Path
) -> None:
    await skills.install_skill(pdf("one"))
    await skills.install_skill(pdf("two"), overwrite=True)
    await skills.uninstall_skill("pdf")
    assert list((data_dir / "versions").iterdir()) == []
    await skills.install_skill(pdf("three"))
    assert await history(skills) == [(1, "install", "*three")]
    (removed,) = [item.id for item in await skills.removed_skills()]
    await skills.uninstall_skill("pdf")
    await skills.restore_skill("pdf", id=removed)
    assert await history(skills) == [(2, "install", "*two"), (1, "install", "one")]
    assert (await skills.versions.rollback("pdf")).version == 1


async def test_a_plugin_keeps_the_versions_of_its_skills_and_its_members(skills: SkillManager, data_dir: Path) -> None:
    await skills.install_skill(skill_zip("known"))
    await skills.install_skill(plugin_zip("known", "other", description="one", root="bag/"))
    await skills.install_skill(plugin_zip("known", "other", description="two", root="bag/"), overwrite=True)
    assert [entry[0] for entry in await history(skills, "bag:known")] == [2, 1]
    await skills.versions.rollback("bag:known")
    assert (await skills.get_skill("bag:known")).description == "one"
    assert (await skills.get_skill("bag:known")).plugin == "bag"
    assert (await skills.get_skill("known")).plugin is None
    await skills.uninstall_plugin("bag")
    assert [path.name for path in (data_dir / "versions").iterdir()] == ["known"]
    await skills.restore_plugin("bag")
    assert [entry[0] for entry in await history(skills, "bag:known")] == [2, 1]
    await skills.install_skill(plugin_zip("other", description="three", root="bag/"), overwrite=True)
    await skills.restore_skill("bag:known")  # a skill that the new version of the plugin lacks
    assert [entry[0] for entry in await history(skills, "bag:known")] == [2, 1]


async def test_old_versions_are_deleted_by_count(workshop: Workshop, data_dir: Path) -> None:
    async with workshop.open(versions={"count": 3}) as skills:
        for text in ("one", "two", "three"):
            await skills.install_skill(pdf(text), overwrite=True)
        await skills.versions.rollback("pdf", 1)
        for text in ("four", "five"):
            await skills.add_version("pdf", pdf(text), default=False)
        # The installed version and the newest one always stay.
        assert await history(skills) == [(5, "upload", "five"), (4, "upload", "four"), (1, "install", "*one")]
        assert len(stored(data_dir)) == 3
    async with workshop.open(versions={"count": 1}) as skills:
        await skills.add_version("pdf", pdf("six"), default=False)
        assert await history(skills) == [(6, "upload", "six"), (1, "install", "*one")]


async def test_old_versions_are_deleted_by_space(workshop: Workshop, data_dir: Path) -> None:
    def large(text: str) -> bytes:
        return pdf(text, data_bin=random.Random(text).randbytes(600_000).hex())

    async with workshop.open(versions={"mb": 2}) as skills:
        for text in ("one", "two", "three"):
            await skills.install_skill(large(text), overwrite=True)
        await skills.versions.rollback("pdf", 1)
        await skills.add_version("pdf", large("four"), default=False)
        assert await history(skills) == [(4, "upload", "four"), (3, "install", "three"), (1, "install", "*one")]
        assert len(stored(data_dir)) == 3
    async with workshop.open(versions={"mb": 1}) as skills:
        skills.store.library.sweep({"pdf"})
        assert await history(skills) == [(4, "upload", "four"), (1, "install", "*one")]


async def test_old_versions_are_deleted_by_age(workshop: Workshop, data_dir: Path) -> None:
    async with workshop.open(versions={"days": 30}) as skills:
        for text in ("one", "two", "three"):
            await skills.install_skill(pdf(text), overwrite=True)
        await skills.versions.rollback("pdf", 1)
        path = data_dir / "versions/pdf/versions.json"
        record = json.loads(path.read_text())
        for version in record["versions"]:
            version["createdAt"] -= 31 * MS_PER_DAY
        path.write_text(json.dumps(record))
        skills.store.library.sweep({"pdf"})
        assert await history(skills) == [(3, "install", "three"), (1, "install", "*one")]
        assert len(stored(data_dir)) == 2


async def test_versions_of_a_skill_that_was_removed_by_hand_are_deleted_after_some_days(
    skills: SkillManager, data_dir: Path
) -> None:
    await skills.install_skill(pdf("one"))
    (data_dir / "skills/pdf").rename(data_dir / "moved")
    await skills.reconcile()
    skills.store.library.sweep(set())
    assert stored(data_dir)
    (data_dir / "moved").rename(data_dir / "skills/pdf")
    await skills.reconcile()
    skills.store.library.sweep({"pdf"})
    assert not (data_dir / "versions/pdf/removed").exists()
    assert await history(skills) == [(1, "install", "*one")]
    (data_dir / "skills/pdf").rename(data_dir / "moved")
    await skills.reconcile()
    skills.store.library.sweep(set())
    os.utime(data_dir / "versions/pdf/removed", (0, 0))
    skills.store.library.sweep(set())
    assert not (data_dir / "versions/pdf").exists()


async def test_a_version_is_added_without_being_installed(skills: SkillManager) -> None:
    await skills.install_skill(pdf("one"))
    version = await skills.add_version("pdf", pdf("two"), default=False, caller="key1")
    assert (version.number, version.author) == (2, "key1")
    assert (await skills.get_skill("pdf")).description == "one"
    assert await history(skills) == [(2, "upload", "two"), (1, "install", "*one")]
    version = await skills.add_version("pdf", pdf("three"), default=True)
    assert await history(skills) == [(3, "install", "*three"), (2, "upload", "two"), (1, "install", "one")]


@pytest.mark.parametrize(
    ("package", "code"),
    [
        (skill_zip("other"), "NAME_MISMATCH"),
        (zip_of({"pdf/README.md": "x"}), "INVALID_SKILL_STRUCTURE"),
        (zip_of({"pdf/SKILL.md": skill_markdown("pdf"), "pdf/sub/skill.md": "x"}), "INVALID_SKILL_STRUCTURE"),
        (plugin_zip("pdf", "b", root="box/"), "INVALID_SKILL_STRUCTURE"),
        (b"not a zip", "INVALID_ZIP"),
        (zip_of({"../SKILL.md": "x"}), "UNSAFE_PATH"),
    ],
)
async def test_a_package_that_is_not_one_skill_of_that_name_is_refused(
    skills: SkillManager, data_dir: Path, package: bytes, code: str
) -> None:
    await skills.install_skill(pdf("one"))
    for default in (False, True):
        with pytest.raises(ApexBridgeError) as caught:
            await skills.add_version("pdf", package, default=default)
        assert caught.value.code == code
    assert await history(skills) == [(1, "install", "*one")]
    assert list((data_dir / "staging").iterdir()) == []


async def test_the_folder_in_the_package_may_have_any_name_or_be_missing(skills: SkillManager) -> None:
    for files in ({"x/SKILL.md": skill_markdown("pdf", "one")}, {"SKILL.md": skill_markdown("pdf", "two")}):
        await (
            skills.add_version("pdf", zip_of(files), default=True)
            if "SKILL.md" in files
            else skills.create_skill(zip_of(files))
        )
    assert await history(skills) == [(2, "install", "*two"), (1, "install", "one")]


async def test_the_installed_version_and_the_only_one_are_not_removed(skills: SkillManager, data_dir: Path) -> None:
    await skills.install_skill(pdf("one"))
    for version, code in ((1, "VERSION_IN_USE"), (2, "VERSION_NOT_FOUND")):
        with pytest.raises(ApexBridgeError) as caught:
            await skills.versions.remove("pdf", version)
        assert caught.value.code == code
    await skills.install_skill(pdf("two"), overwrite=True)
    await skills.versions.remove("pdf", 1)
    assert await history(skills) == [(2, "install", "*two")]
    assert len(stored(data_dir)) == 1
    await skills.install_skill(pdf("one"), overwrite=True)
    assert [entry[0] for entry in await history(skills)] == [3, 2]  # numbers are not used again


async def test_an_archive_of_a_version_has_one_top_folder_and_always_the_same_bytes(skills: SkillManager) -> None:
    await skills.install_skill(pdf("one", b_md="b", a_md="a"))
    await skills.install_skill(pdf("two"), overwrite=True)
    with await skills.versions.open("pdf", 1) as file:
        data = file.read()
    assert zipfile.ZipFile(io.BytesIO(data)).namelist() == ["pdf/SKILL.md", "pdf/a.md", "pdf/b.md"]
    await skills.uninstall_skill("pdf")
    await skills.install_skill(data)
    with await skills.versions.open("pdf", 1) as file:
        assert file.read() == data


async def test_a_removed_version_can_be_read_to_its_end(skills: SkillManager) -> None:
    await skills.install_skill(pdf("one"))
    await skills.install_skill(pdf("two"), overwrite=True)
    with await skills.versions.open("pdf", 1) as file:
        start = file.read(10)
        await skills.versions.remove("pdf", 1)
        assert zipfile.ZipFile(io.BytesIO(start + file.read())).testzip() is None
    with pytest.raises(ApexBridgeError) as caught:
        await skills.versions.open("pdf", 1)
    assert caught.value.code == "VERSION_NOT_FOUND"


async def test_files_that_an_install_would_skip_come_back_too(skills: SkillManager, data_dir: Path) -> None:
    await skills.install_skill(pdf("one"))
    write_skill(data_dir / "skills", "pdf", {"node_modules/x/i.js": "1", ".git/HEAD": "x"}, description="two")
    await skills.reload_skill("pdf")
    before = contents(data_dir)
    await skills.versions.rollback("pdf")
    await skills.versions.rollback("pdf", 2)
    assert contents(data_dir) == before


async def test_a_damaged_archive_is_not_installed(skills: SkillManager, data_dir: Path) -> None:
    await skills.install_skill(pdf("one"))
    (name,) = stored(data_dir)
    await skills.install_skill(pdf("two"), overwrite=True)
    for damaged in (b"", b"PK", zip_of({"pdf/SKILL.md": "other"}), zip_of({"pdf/../../out": "x"})):
        (data_dir / "versions/pdf" / name).write_bytes(damaged)
        with pytest.raises(ApexBridgeError) as caught:
            await skills.versions.rollback("pdf")
        assert "damaged" in caught.value.message
    assert (await skills.get_skill("pdf")).description == "two"
    assert not (data_dir / "out").exists()
    assert list((data_dir / "staging").iterdir()) == []


@pytest.mark.parametrize("damage", ["damaged", "nested", "lost"])
async def test_a_damaged_or_lost_record_is_made_again_from_the_archives(
    skills: SkillManager, data_dir: Path, damage: str
) -> None:
    for text in ("one", "two", "three"):
        await skills.install_skill(pdf(text), overwrite=True)
    record = data_dir / "versions/pdf/versions.json"
    if damage == "lost":
        record.unlink()
    else:
        record.write_text("{" if damage == "damaged" else "[" * 100_000)
    expected = [(3, "disk", "*three"), (2, "disk", "two"), (1, "disk", "one")]
    assert await history(skills) == expected
    skills.store.library.sweep({"pdf"})
    assert await history(skills) == expected
    await skills.install_skill(pdf("four"), overwrite=True)
    assert await history(skills) == [
        (4, "install", "*four"),
        (3, "disk", "three"),
        (2, "disk", "two"),
        (1, "disk", "one"),
    ]
    await skills.versions.rollback("pdf", 1)
    assert (await skills.get_skill("pdf")).description == "one"


async def test_an_encrypted_archive_does_not_stop_the_record_from_being_made_again(
    skills: SkillManager, data_dir: Path
) -> None:
    for text in ("one", "two"):
        await skills.install_skill(pdf(text), overwrite=True)
    folder = data_dir / "versions/pdf"
    encrypted = bytearray(zip_of({"pdf/SKILL.md": "text"}))
    for signature, flags in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        encrypted[encrypted.index(signature) + flags] |= 1
    (folder / f"{'0' * 64}.zip").write_bytes(encrypted)
    (folder / "versions.json").unlink()
    assert await history(skills) == [(2, "disk", "*two"), (1, "disk", "one")]


async def test_versions_stay_if_their_record_cannot_be_read(skills: SkillManager, data_dir: Path) -> None:
    for text in ("one", "two"):
        await skills.install_skill(pdf(text), overwrite=True)
    record = data_dir / "versions/pdf/versions.json"
    record.rename(record.with_name("aside"))
    record.mkdir()  # reading it fails, as with too many open files
    skills.store.library.sweep({"pdf"})
    assert await history(skills) == [(1, "disk", "*two")]
    await skills.install_skill(pdf("three"), overwrite=True)
    record.rmdir()
    record.with_name("aside").rename(record)
    assert await history(skills) == [(3, "disk", "*three"), (2, "install", "two"), (1, "install", "one")]
    await skills.versions.rollback("pdf", 1)
    assert (await skills.get_skill("pdf")).description == "one"


async def test_a_skill_of_another_root_has_its_content_as_the_only_version(
    workshop: Workshop, data_dir: Path, tmp_path: Path
) -> None:
    write_skill(tmp_path / "team", "shared", description="one")
    async with workshop.open(roots=(tmp_path / "team",)) as skills:
        assert await history(skills, "shared") == [(1, "disk", "*one")]
        with await skills.versions.open("shared", 1) as file:
            assert zipfile.ZipFile(io.BytesIO(file.read())).namelist() == ["shared/SKILL.md"]
        with pytest.raises(ApexBridgeError) as caught:
            await skills.add_version("shared", skill_zip("shared"), default=True)
        assert caught.value.code == "SKILL_READ_ONLY"
        assert not (data_dir / "versions/shared").exists()


async def test_a_skill_that_is_too_large_for_a_package_is_served_without_stored_versions(
    skills: SkillManager, data_dir: Path
) -> None:
    await skills.install_skill(pdf("one"))
    with (data_dir / "skills/pdf/large.bin").open("wb") as file:
        file.truncate(26 * 1024 * 1024)
    await skills.reload_skill("pdf")
    assert [entry[:2] for entry in await history(skills)] == [(2, "disk"), (1, "install")]
    assert len(stored(data_dir)) == 1
    assert (await skills.versions.rollback("pdf")).version == 1
    assert await history(skills) == [(1, "install", "*one")]


async def test_many_changes_at_once_lose_no_version(skills: SkillManager, data_dir: Path) -> None:
    await skills.install_skill(pdf("zero"))
    uploads = [skills.add_version("pdf", pdf(f"upload {number}"), default=False) for number in range(5)]
    installs = [skills.add_version("pdf", pdf(f"install {number}"), default=True) for number in range(5)]
    rollbacks = [skills.versions.rollback("pdf", 1) for _ in range(3)]
    await asyncio.gather(*uploads, *installs, *rollbacks)
    found = await skills.versions.listed("pdf")
    assert sorted(version.version for version in found.versions) == list(range(1, 12))
    assert len(stored(data_dir)) == 11
    installed = next(version for version in found.versions if version.default)
    assert installed.content_hash == (await skills.get_skill("pdf")).content_hash


async def test_a_version_is_not_added_to_a_skill_that_is_removed_meanwhile(skills: SkillManager) -> None:
    await skills.install_skill(pdf("one"))
    adding = asyncio.gather(
        *(skills.add_version("pdf", pdf(f"v{number}"), default=number % 2 == 0) for number in range(4)),
        return_exceptions=True,
    )
    removing = asyncio.gather(skills.uninstall_skill("pdf"), return_exceptions=True)
    outcomes = [*await adding, *await removing]
    refused = [outcome.code for outcome in outcomes if isinstance(outcome, ApexBridgeError)]
    assert set(refused) <= {"SKILL_NOT_FOUND"}
    assert not [
        outcome for outcome in outcomes if isinstance(outcome, Exception) and not isinstance(outcome, ApexBridgeError)
    ]
    assert (await skills.list_skills()).total == 0


async def test_an_update_makes_a_version_and_a_rollback_brings_the_old_origin_back(
    skills: SkillManager, tmp_path: Path
) -> None:
    repository = SourceRepository(tmp_path / "upstream")
    old = repository.commit({"skills/pdf/SKILL.md": skill_markdown("pdf", "one")})
    await skills.install_skill(f"{repository.url}#skills/pdf")
    new = repository.commit({"skills/pdf/SKILL.md": skill_markdown("pdf", "two")})
    await skills.update_skill("pdf", apply=True, caller="key1")
    assert await history(skills) == [(2, "update", "*two"), (1, "install", "one")]
    await skills.versions.rollback("pdf")
    detail = await skills.get_skill("pdf")
    assert detail.origin is not None
    assert detail.origin.commit == old
    report = await skills.update_skill("pdf", apply=True)
    assert (report.old_revision, report.new_revision, report.applied) == (old, new, True)
    assert [change.edited for change in report.skills] == [False]
    assert await history(skills) == [(2, "update", "*two"), (1, "install", "one")]


async def test_a_full_disk_refuses_an_install_and_does_not_hide_a_change_on_disk(
    skills: SkillManager, data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await skills.install_skill(pdf("one"))

    def full(*_: object, **__: object) -> str:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr("apexbridge.skills.store.versions._pack", full)
        with pytest.raises(ApexBridgeError) as caught:
            await skills.install_skill(pdf("two"), overwrite=True)
        assert caught.value.code == "STORAGE_FULL"
        assert (await skills.get_skill("pdf")).description == "one"
        write_skill(data_dir / "skills", "pdf", description="by hand")
        assert (await skills.reload_skill("pdf")).description == "by hand"
        assert await history(skills) == [(2, "disk", "*by hand"), (1, "install", "one")]
        assert len(stored(data_dir)) == 1
    await skills.reload_skill("pdf")
    assert await history(skills) == [(2, "disk", "*by hand"), (1, "install", "one")]
    assert len(stored(data_dir)) == 2
    assert list((data_dir / "staging").iterdir()) == []
