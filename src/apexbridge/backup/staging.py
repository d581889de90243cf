"""Copies of folders that change: most of the work without a lock, the remainder while nothing changes."""

import os
import shutil
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

from apexbridge.backup.archive import Item, printable
from apexbridge.sandbox.launcher.removal import remove_tree

_SETTLED_NS = 50_000_000
"""A folder that changed more recently may change again without another time: the clock of the kernel is coarse."""
_Identity = tuple[tuple[str, int, int], ...]
"""Of each folder of an entry: its path, inode and time of change. Every change of ours makes another one."""
IsIncluded = Callable[[str], bool]


class FolderCopy:
    """A copy of a folder. `begin` copies it while others change it, `finish` what has changed since then.

    The entries of the folder are copied one by one: skills, entries of the trash, files of runs.
    """

    def __init__(self, source: Path, target: Path, *, links: bool, is_included: IsIncluded = lambda name: True) -> None:
        """With `links`, files are linked: they must be replaced, never changed in place, and their ctime must not
        matter. `is_included` chooses among the entries.
        """
        self.target = target
        self.left_out: list[str] = []
        self._source = source
        self._links = links
        self._is_included = is_included
        self._copied: dict[str, _Identity | None] = {}

    def begin(self) -> None:
        for name in self._names():
            self._copied[name] = self._copy(name)

    def finish(self, *, keep: bool = False) -> None:
        """Make it an exact copy. With `keep`, entries that were removed meanwhile stay in it."""
        names = self._names()
        for name in names:
            known = self._copied.get(name)
            if known is None or not _is_same(known):
                remove_tree(str(self.target / name))
                self._copied[name] = self._copy(name)
        for name in () if keep else self._copied.keys() - set(names):
            remove_tree(str(self.target / name))

    def _names(self) -> list[str]:
        try:
            return sorted(filter(self._is_included, os.listdir(self._source)))  # noqa: PTH208  # names, not paths
        except FileNotFoundError:
            return []

    def _copy(self, name: str) -> _Identity | None:
        """Copy an entry; None if it may have changed meanwhile."""
        self.target.mkdir(mode=0o700, parents=True, exist_ok=True)
        identity = _identity(self._source / name)
        self._try(self._source / name, self.target / name)
        return identity

    def _try(self, source: Path, target: Path) -> None:
        try:
            self._copy_tree(source, target)
        except FileNotFoundError:  # removed or replaced meanwhile
            pass
        except PermissionError:
            self._leave_out(source)

    def _leave_out(self, source: Path) -> None:
        self.left_out.append(printable(f"{self.target.name}/{source.relative_to(self._source)}"))

    def _copy_tree(self, source: Path, target: Path) -> None:
        mode = source.lstat().st_mode
        if stat.S_ISDIR(mode):
            target.mkdir(mode=0o700)
            with os.scandir(source) as entries:
                for entry in sorted(entries, key=lambda one: one.name):
                    self._try(source / entry.name, target / entry.name)
            shutil.copystat(source, target, follow_symlinks=False)
            target.chmod(stat.S_IMODE(mode) | 0o700)
        elif stat.S_ISREG(mode):
            _link_or_copy(source, target, links=self._links)
        else:
            self._leave_out(source)


def _link_or_copy(source: Path, target: Path, *, links: bool) -> None:
    if links:
        with suppress(OSError):  # not every file system can, nor for files of another user
            os.link(source, target, follow_symlinks=False)
            return
    shutil.copyfile(source, target, follow_symlinks=False)
    shutil.copystat(source, target, follow_symlinks=False)


def _identity(path: Path) -> _Identity | None:
    """None if it is missing, or was changed a moment ago."""
    found, waiting = [], [path]
    newest = time.time_ns() - _SETTLED_NS
    try:
        while waiting:
            folder = waiting.pop()
            status = folder.lstat()
            if status.st_mtime_ns > newest:
                return None
            found.append((str(folder), status.st_ino, status.st_mtime_ns))
            if stat.S_ISDIR(status.st_mode):
                with os.scandir(folder) as entries:
                    waiting += [folder / entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]
    except OSError:
        return None
    return tuple(sorted(found))


def _is_same(identity: _Identity) -> bool:
    """Whether none of these folders has changed. A new subfolder changes the folder that it is in."""
    try:
        for path, inode, mtime_ns in identity:
            status = os.lstat(path)
            if (status.st_ino, status.st_mtime_ns) != (inode, mtime_ns):
                return False
    except OSError:
        return False
    return True


def items_of(folder: Path, name: str, *, is_included: IsIncluded = lambda name: True) -> Iterator[Item]:
    """A folder, which nothing changes, and everything in it. `is_included` chooses among its entries."""
    if not folder.is_dir():
        return
    yield Item(name, folder, is_folder=True)
    for path, entry in _walk(folder, "", is_included):
        yield Item(f"{name}/{path}", Path(entry.path), is_folder=entry.is_dir(follow_symlinks=False))


def _walk(
    folder: Path, prefix: str, is_included: IsIncluded = lambda name: True
) -> Iterator[tuple[str, "os.DirEntry[str]"]]:
    with os.scandir(folder) as entries:
        found = sorted((entry for entry in entries if is_included(entry.name)), key=lambda entry: entry.name)
    for entry in found:
        if entry.is_dir(follow_symlinks=False):
            yield prefix + entry.name, entry
            yield from _walk(folder / entry.name, f"{prefix}{entry.name}/")
        elif entry.is_file(follow_symlinks=False):
            yield prefix + entry.name, entry


def bytes_below(folder: Path) -> int:
    """The sizes of all files below a folder together."""
    total = 0
    with suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            with suppress(OSError):
                if entry.is_dir(follow_symlinks=False):
                    total += bytes_below(Path(entry.path))
                elif entry.is_file(follow_symlinks=False):
                    total += entry.stat(follow_symlinks=False).st_size
    return total
