"""Fallbacks for kernels and mounts that lack an operation, and recovery from an interrupted fallback."""

import errno
from pathlib import Path

import pytest

from apexbridge.skills.manager import SkillManager
from apexbridge.skills.store.library import Library
from tests.conftest import Workshop
from tests.making import skill_zip, write_skill

pytestmark = pytest.mark.anyio


def fail_to_exchange(one: Path, other: Path) -> None:
    raise OSError(errno.EINVAL, "Invalid argument")


async def test_an_overwrite_works_without_an_atomic_exchange(
    skills: SkillManager, data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("apexbridge.skills.store.library.exchange", fail_to_exchange)
    await skills.install_skill(skill_zip(description="The first version of it."))
    await skills.install_skill(skill_zip(description="The second version of it."), overwrite=True)
    assert (await skills.get_skill("git-commit")).description == "The second version of it."
    assert [path.name for path in (data_dir / "skills").iterdir()] == ["git-commit"]


@pytest.mark.parametrize("new_is_in_place", [False, True])
async def test_an_interrupted_swap_is_finished_at_the_next_start(
    workshop: Workshop, data_dir: Path, new_is_in_place: bool
) -> None:
    async with workshop.open() as skills:
        await skills.install_skill(skill_zip(description="The old version of it."))
    folder = data_dir / "skills/git-commit"
    folder.rename(folder.with_name(".apex-aside-git-commit"))
    if new_is_in_place:
        write_skill(data_dir / "skills", "git-commit", description="The new version of it.")
    async with workshop.open() as skills:
        expected = "The new version of it." if new_is_in_place else "The old version of it."
        assert (await skills.get_skill("git-commit")).description == expected
    assert [path.name for path in (data_dir / "skills").iterdir()] == ["git-commit"]
    assert list((data_dir / "trash").iterdir()) == []


def test_staging_is_inside_the_skills_folder_if_renames_cannot_cross_devices(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rename = Path.rename

    def refuse(self: Path, target: Path) -> Path:
        if self.parent != target.parent:
            raise OSError(errno.EXDEV, "Invalid cross-device link")
        return rename(self, target)

    assert Library(tmp_path).staging == tmp_path / "staging"
    monkeypatch.setattr(Path, "rename", refuse)
    assert Library(tmp_path).staging == tmp_path / "skills/.staging"
    assert not list(tmp_path.glob(".probe-*"))
    assert list((tmp_path / "skills").iterdir()) == []
