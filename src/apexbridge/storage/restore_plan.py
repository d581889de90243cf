"""The last step of a restore: everything restored moves into the data directory, and what was there moves aside.

The plan is written first. From then on the restore is complete: the next process that opens the directory applies
what is left of the plan. Before that, nothing in the directory has changed.
"""

import fnmatch
import json
import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from apexbridge._fs import make_private_folder, replace_file, sync_folder

RESTORE_FOLDER = ".restore"
NEW_FOLDER = "new"
ASIDE = "before-restore-*"
"""Folders with the earlier content of the data directory; each is a data directory too."""
_PLAN_FILE = "plan.json"


def aside_name(time: str) -> str:
    return ASIDE.replace("*", time)


def entries_of(data_dir: Path, patterns: Sequence[str]) -> list[str]:
    """The entries of a data directory that are named like one of the patterns."""
    with suppress(FileNotFoundError):
        names = sorted(os.listdir(data_dir))  # noqa: PTH208  # names, not paths
        return [name for name in names if any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)]
    return []


def commit_restore(data_dir: Path, *, moved_aside: Sequence[str], aside: str) -> None:
    """Replace the content of a data directory by the folder `new` of the restore. The caller owns the directory."""
    folder = data_dir / RESTORE_FOLDER
    restored = sorted(os.listdir(folder / NEW_FOLDER))  # noqa: PTH208  # names, not paths
    plan = {"aside": aside, "old": list(moved_aside), "new": restored}
    sync_folder(folder)
    replace_file(folder / _PLAN_FILE, json.dumps(plan).encode(), beside=folder, mode=0o600, durable=True)
    finish_restore(data_dir)


def finish_restore(data_dir: Path) -> bool:
    """Apply the plan of a restore that was interrupted; returns whether there was one. Idempotent.

    The caller owns the directory.
    """
    folder = data_dir / RESTORE_FOLDER
    try:
        plan = json.loads((folder / _PLAN_FILE).read_bytes())
    except FileNotFoundError:
        return False
    aside = data_dir / plan["aside"]
    if plan["old"]:
        make_private_folder(aside)
    for name in plan["old"]:
        if not os.path.lexists(aside / name) and os.path.lexists(data_dir / name):
            (data_dir / name).rename(aside / name)
    for name in plan["new"]:
        if os.path.lexists(folder / NEW_FOLDER / name):
            (folder / NEW_FOLDER / name).rename(data_dir / name)
    if plan["old"]:
        sync_folder(aside)
    sync_folder(data_dir)
    (folder / _PLAN_FILE).unlink()
    return True
