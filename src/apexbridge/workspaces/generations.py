"""The files of one workspace as a series of generations, of which one is current.

A change builds the next generation from hard links, changes that, and then makes it the current one. So a reader sees
one state, and a crash leaves the old state or the new one. Files of a generation never change: they are replaced.
"""

import os
import secrets
import shutil
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

from apexbridge._fs import PRIVATE_FILE, PRIVATE_FOLDER, make_private_folder
from apexbridge.sandbox.launcher.removal import remove_tree
from apexbridge.sandbox.workspace_files import AppliedChanges, Changes, CollectedFile, TreeEntry, list_tree

_CURRENT = "current"
_PREFIX = "generation-"
_NONE = f"{_PREFIX}none"
T = TypeVar("T")


class Generations:
    """The folder of one workspace. Changes must not overlap; reading is always possible. Thread-safe."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._readers: Counter[str] = Counter()
        self._lock = threading.Lock()
        self._current = self._recover()

    def acquire(self) -> Path:
        """The current generation, which is kept until it is released. It does not exist if the workspace is empty."""
        with self._lock:
            self._readers[self._current] += 1
            return self._folder / self._current

    def release(self, generation: Path) -> bool:
        """Release a generation; returns whether it is to be removed with `remove_tree`."""
        with self._lock:
            self._readers[generation.name] -= 1
            is_last = not self._readers[generation.name]
            if is_last:
                del self._readers[generation.name]
            return is_last and generation.name != self._current

    def change(self, work: Callable[[Path], T], check: Callable[[Sequence[TreeEntry]], None]) -> "Changed[T]":
        """Run `work` on a copy and make that the current generation, unless `work` or `check` fails."""
        name = f"{_PREFIX}{secrets.token_hex(8)}"
        folder = self._folder / name
        make_private_folder(self._folder)
        try:
            before = _link_tree(self._folder / self._current, folder)
            result = work(folder)
            after = list_tree(folder)
            check(after)
            pointer = self._folder / f"{name}.pointer"
            pointer.symlink_to(name)
            pointer.replace(self._folder / _CURRENT)
        except BaseException:
            remove_tree(str(folder))
            raise
        with self._lock:
            old, self._current = self._current, name
            is_read = old in self._readers
        if not is_read:
            remove_tree(str(self._folder / old))
        return Changed(result=result, before=before, after=after)

    def remove(self) -> None:
        with self._lock:
            self._current = _NONE
        remove_tree(str(self._folder))

    def _recover(self) -> str:
        """Find the current generation, and remove what a crash has left."""
        current = _NONE
        with suppress(OSError):
            current = str((self._folder / _CURRENT).readlink())
        with suppress(OSError):
            for entry in list(os.scandir(self._folder)):
                if entry.name not in (current, _CURRENT):
                    remove_tree(entry.path)
        return current


@dataclass(frozen=True, slots=True, kw_only=True)
class Changed(Generic[T]):
    """A change, with the files and folders before and after it."""

    result: T
    before: Sequence[TreeEntry]
    after: Sequence[TreeEntry]

    def new_files(self) -> list[TreeEntry]:
        """Files that were made or replaced."""
        known = {entry.path: entry for entry in self.before}
        return [entry for entry in self.after if not entry.is_folder and known.get(entry.path) != entry]


def _link_tree(source: Path, target: Path) -> Sequence[TreeEntry]:
    """Link all files of a folder in a new one; returns them."""
    target.mkdir(PRIVATE_FOLDER)
    tree = list_tree(source)
    for entry in tree:
        if entry.is_folder:
            (target / entry.path).mkdir(PRIVATE_FOLDER)
        else:
            os.link(source / entry.path, target / entry.path)
    return tree


def apply_changes(top: Path, changes: Changes, artifacts: Path) -> AppliedChanges:
    """Apply what a run changed to a generation, except files whose name another run has taken."""
    applied: list[CollectedFile] = []
    warnings: list[str] = []
    for path in sorted(changes.removed, reverse=True):  # files before their folders
        with suppress(OSError):  # changed by another run in the meantime
            (top / path).rmdir() if (top / path).is_dir() else (top / path).unlink()
    for path in sorted(changes.folders):
        if (problem := _problem(top, path, is_folder=True)) is not None:
            warnings.append(f"{path} was not kept: {problem}")
        else:
            (top / path).mkdir(PRIVATE_FOLDER, parents=True, exist_ok=True)
    for file in changes.files:
        if (problem := _problem(top, file.path, is_folder=False)) is not None:
            warnings.append(f"{file.path} was not kept: {problem}")
            continue
        target = top / file.path
        target.parent.mkdir(PRIVATE_FOLDER, parents=True, exist_ok=True)
        target.unlink(missing_ok=True)
        _link_or_copy(artifacts / file.artifact, target)
        target.chmod(PRIVATE_FOLDER if file.is_executable else PRIVATE_FILE)
        applied.append(file)
    return AppliedChanges(files=applied, warnings=warnings)


def _link_or_copy(source: Path, target: Path) -> None:
    try:
        os.link(source, target)
    except OSError:  # on another file system
        shutil.copyfile(source, target)


def _problem(top: Path, path: str, *, is_folder: bool) -> str | None:
    """Why a file or folder cannot be created: another run may have used the name."""
    for parent in reversed((top / path).relative_to(top).parents[:-1]):
        if (top / parent).exists() and not (top / parent).is_dir():
            return f"{parent} is a file"
    target = top / path
    if not is_folder and target.is_dir():
        return "a folder has this name"
    if is_folder and target.exists() and not target.is_dir():
        return "a file has this name"
    return None
