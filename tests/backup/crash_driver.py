"""Restore a backup, or make one, in a child that kills itself at a chosen step; then report what is there.

As `tests/skills/crash_driver.py`: a step is any file system operation, and its own program because it forks.
"""

import json
import os
import shutil
import signal
import sqlite3
import sys
from collections.abc import Callable
from contextlib import closing, redirect_stderr
from pathlib import Path
from typing import Any

from apexbridge.backup.restore import check_backup, restore_backup
from apexbridge.storage.directory import owned
from apexbridge.surfaces.cli.app import main as apex

STEPS = {"open", "os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.chmod", "os.link", "shutil.rmtree"}


def killed_at(step: int, work: Callable[[], object]) -> bool:
    """Run `work` in a child that is killed at this step. Return whether it finished before."""
    child = os.fork()
    if child == 0:
        taken = 0

        def count(event: str, arguments: tuple[Any, ...]) -> None:
            nonlocal taken
            if event in STEPS:
                taken += 1
                if taken == step:
                    os.kill(os.getpid(), signal.SIGKILL)

        with open(os.devnull, "w") as nowhere, redirect_stderr(nowhere):  # noqa: PTH123
            sys.addaudithook(count)
            try:
                work()
            except BaseException:
                os._exit(1)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    if not os.WIFSIGNALED(status) and os.WEXITSTATUS(status):
        raise SystemExit(f"it failed before it was killed at step {step}")
    return not os.WIFSIGNALED(status)


def quiet(done: int, total: int) -> None:
    """No progress."""


def state(folder: Path) -> str:
    """What the next process that opens the directory finds: `old`, `new`, `none`, or something in between."""
    if not folder.exists():
        return "none"
    with owned(folder):
        pass
    skills = sorted(path.name for path in (folder / "skills").iterdir()) if (folder / "skills").is_dir() else []
    names = []
    if (folder / "apex.sqlite3").exists():
        with closing(sqlite3.connect(folder / "apex.sqlite3")) as connection:
            names = [name for (name,) in connection.execute("SELECT name FROM skills WHERE state = 'live'")]
    aside = [path for path in folder.glob("before-restore-*") if any(path.iterdir())]
    left = [path.name for path in folder.iterdir() if path.name in (".restore", "past-requests.jsonl")]
    kinds = {("old-skill",): "old", ("new-skill",): "new", (): "none"}
    found = kinds.get(tuple(skills), "torn")
    is_whole = sorted(names) == skills and bool(aside) == (found == "new" and IS_FORCED) and not left
    return found if is_whole else f"torn: {skills} {names} {aside} {left}"


IS_FORCED = False


def restores(base: Path, file: Path, old: Path | None, every: int) -> list[str]:
    global IS_FORCED
    IS_FORCED = old is not None
    states, step, is_done = [], 1, False
    while not is_done:
        target = base / "target"
        if old is not None:
            shutil.copytree(old, target, symlinks=True)

        def work(target: Path = target) -> None:
            restore_backup(file, target, force=old is not None, checking=quiet, copying=quiet)

        is_done = killed_at(step, work)
        states.append(state(target))
        shutil.rmtree(target, ignore_errors=True)
        step += every
    return states


def backups(base: Path, data_dir: Path, every: int) -> list[str]:
    """Each kill leaves the old file or a complete new one, and the next backup removes what it has left."""
    states, step, is_done = [], 1, False
    file = base / "out" / "x.backup"
    while not is_done:
        shutil.rmtree(file.parent, ignore_errors=True)
        file.parent.mkdir()
        file.write_text("old")

        def work() -> None:
            sys.argv = ["apex", "backup", str(file), "--force", "--data-dir", str(data_dir)]
            try:
                apex()
            except SystemExit as end:
                if end.code:
                    raise

        is_done = killed_at(step, work)
        if file.read_bytes() == b"old":
            states.append("old")
        else:
            states.append("new" if check_backup(file, quiet).header.skills == 1 else "torn")
        step += every
    if killed_at(10**9, work) and [path.name for path in file.parent.iterdir()] != ["x.backup"]:
        states.append("left")
    return states


if __name__ == "__main__":
    base, file, old, new = map(Path, sys.argv[1:5])
    every = int(sys.argv[5])
    print(
        json.dumps(
            {
                "restore": restores(base, file, None, every),
                "restore with force": restores(base, file, old, every),
                "backup": backups(base, new, every * 20),
            }
        )
    )
