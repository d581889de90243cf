"""A backup or a restore that is killed, or has no space, leaves everything as it was."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from apexbridge._tasks import in_thread
from apexbridge.bridge import Bridge
from apexbridge.errors import ServerError
from apexbridge.retrieval.embedders.embedder import Embedder
from apexbridge.settings import Settings
from apexbridge.storage import restore_plan
from apexbridge.storage.directory import owned
from tests.backup.test_backups import restore, save
from tests.making import skill_zip, walk
from tests.mounting import mounted_disk

pytestmark = pytest.mark.anyio
ROOT = Path(__file__).parent.parent.parent


async def make(folder: Path, name: str, embedder: Embedder, file: Path | None = None, *, size: int = 10) -> None:
    async with Bridge.open(Settings(data_dir=folder), watch=False, embedder=embedder) as bridge:
        content = {"data.bin": os.urandom(size)}
        await bridge.skills.install_skill(skill_zip(name, content, description=f"The skill of the {name} directory."))
        if file is not None:
            await save(bridge, file)


def interrupt(folder: Path) -> None:
    raise KeyboardInterrupt


async def test_a_restore_that_is_interrupted_after_its_plan_is_finished_by_the_next_process(
    tmp_path: Path, embedder: Embedder, monkeypatch: pytest.MonkeyPatch
) -> None:
    await make(tmp_path / "new", "new-skill", embedder, tmp_path / "x.backup")
    await make(tmp_path / "target", "old-skill", embedder)
    with monkeypatch.context() as patch:
        patch.setattr(restore_plan, "finish_restore", interrupt)
        with pytest.raises(KeyboardInterrupt):
            await in_thread(restore, tmp_path / "x.backup", tmp_path / "target", force=True)
    assert (tmp_path / "target/skills/old-skill").exists()
    with owned(tmp_path / "target"):
        assert [path.name for path in (tmp_path / "target/skills").iterdir()] == ["new-skill"]
    (aside,) = (tmp_path / "target").glob("before-restore-*")
    assert (aside / "skills/old-skill").exists()
    assert not (tmp_path / "target/.restore").exists()


@pytest.mark.slow
async def test_a_kill_at_any_step_leaves_the_old_state_or_the_new_one(tmp_path: Path, embedder: Embedder) -> None:
    await make(tmp_path / "new", "new-skill", embedder, tmp_path / "x.backup")
    await make(tmp_path / "old", "old-skill", embedder)
    (tmp_path / "base").mkdir()
    paths = [str(tmp_path / name) for name in ("base", "x.backup", "old", "new")]
    command = [sys.executable, "-m", "tests.backup.crash_driver", *paths, "3"]

    def run() -> Any:
        return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=1800)

    done = await in_thread(run)
    assert done.returncode == 0, done.stderr[-3000:]
    report = json.loads(done.stdout)
    expected = {"restore": ("none", "new"), "restore with force": ("old", "new"), "backup": ("old", "new")}
    for what, (before, after) in expected.items():
        states = report[what]
        assert set(states) == {before, after}, what
        assert states == sorted(states, key=[before, after].index), f"{what}: {before} follows {after}"
        assert len(states) > 10, what


async def test_a_restore_without_space_changes_nothing(
    tmp_path: Path, embedder: Embedder, monkeypatch: pytest.MonkeyPatch
) -> None:
    await make(tmp_path / "new", "new-skill", embedder, tmp_path / "x.backup", size=6_000_000)
    monkeypatch.setattr("apexbridge.backup.restore.SPARE_BYTES", 0)
    for megabytes, spare in ((8, False), (8, True)):  # noticed before it begins, or in the middle
        with mounted_disk(tmp_path / "disk", megabytes=megabytes) as disk:
            if spare:
                monkeypatch.setattr("apexbridge.backup.restore.shutil.disk_usage", lambda path: Plenty)
            target = disk / "data"
            with pytest.raises(ServerError) as refused:
                await in_thread(restore, tmp_path / "x.backup", target)
            assert refused.value.code == "STORAGE_FULL"
            assert not target.exists()
            target.mkdir()
            (target / "skills").mkdir()
            before = walk(target)
            with pytest.raises(ServerError) as refused:
                await in_thread(restore, tmp_path / "x.backup", target, force=True)
            assert refused.value.code == "STORAGE_FULL"
            assert {path: what for path, what in walk(target).items() if path != ".lock"} == before
        (tmp_path / "disk").rmdir()


class Plenty:
    free = 1 << 40
