"""Skill roots: extra roots in order, `<data-dir>/skills` last, so that an installed skill wins."""

import hashlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from apexbridge.skills.package.entry_names import is_skill_file, is_text

INSTALLED_ROOT = "installed"
"""The id of `<data-dir>/skills`. The id of every other root is its path."""
MAX_ROOT_DEPTH = 6
_SKIPPED = {"node_modules"}
_LEADS_OUT = "a link that leads outside the skill roots; add its target's folder to APEX_SKILL_ROOTS"


@dataclass(frozen=True, slots=True, kw_only=True)
class SkillRoot:
    """A folder of skill folders."""

    id: str
    path: Path

    @property
    def is_installed(self) -> bool:
        """Whether this is the root for installs."""
        return self.id == INSTALLED_ROOT

    @property
    def label(self) -> str:
        """A short display name; never a full path of the server."""
        if self.is_installed:
            return INSTALLED_ROOT
        return "/".join(self.path.parts[-2:]) if self.path.name == "skills" else self.path.name

    @property
    def key(self) -> str:
        """A file name that identifies this root."""
        return hashlib.sha256(self.id.encode()).hexdigest()[:16]

    def is_writable(self, folder: Path) -> bool:
        """Whether a skill of this root may be changed: the folder and its root are writable.

        Checks the mode in addition to `access`, because root can write to folders that their owner made read-only.
        """
        if folder.is_symlink():  # check the target of the link
            real = folder.resolve()
            return all(_may_be_written(path) for path in (real.parent, real))
        return self.is_installed or all(_may_be_written(path) for path in (self.path, folder))


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundFolder:
    """A folder that is or should be a skill."""

    root: SkillRoot
    folder: str
    """Relative to the root, separated by `/`."""
    path: Path
    problem: str | None = None

    @property
    def key(self) -> tuple[str, str]:
        """The key in the catalog."""
        return self.root.id, self.folder


def locate(root: SkillRoot, folder: str, allowed: list[Path]) -> FoundFolder:
    """A folder of a root by its relative path; with a problem if a link leads out of the `allowed` paths."""
    path = root.path / folder
    if _leads_into(path, [allowed_path.resolve() for allowed_path in allowed]):
        return _found(root, folder, path)
    return FoundFolder(root=root, folder=folder, path=path, problem=_LEADS_OUT)


def discover(root: SkillRoot, allowed: list[Path]) -> Iterator[FoundFolder]:
    """The skill folders of a root; links may lead into the `allowed` paths only."""
    if not root.path.is_dir():
        return
    targets = [path.resolve() for path in allowed]
    if not root.is_installed:
        yield from _descend(root, root.path, "", 1, targets, {root.path.resolve()})
        return
    for name in sorted(_folder_names(root.path)):
        path = root.path / name
        if path.is_symlink() and not _leads_into(path, targets):
            yield FoundFolder(root=root, folder=name, path=path, problem=_LEADS_OUT)
        else:
            yield _found(root, name, path)


def _descend(
    root: SkillRoot, folder: Path, prefix: str, depth: int, allowed: list[Path], seen: set[Path]
) -> Iterator[FoundFolder]:
    for name in sorted(_folder_names(folder)):
        path, relative = folder / name, prefix + name
        if path.is_symlink():
            if not _leads_into(path, allowed):
                if any(is_skill_file(entry) for entry in _file_names(path)):
                    yield FoundFolder(root=root, folder=relative, path=path, problem=_LEADS_OUT)
                continue
            target = path.resolve()
            if target in seen:
                continue
            seen.add(target)
        if any(is_skill_file(entry) for entry in _file_names(path)):
            yield _found(root, relative, path)
        elif depth < MAX_ROOT_DEPTH and name not in _SKIPPED:
            yield from _descend(root, path, f"{relative}/", depth + 1, allowed, seen)


def _may_be_written(path: Path) -> bool:
    try:
        return os.access(path, os.W_OK) and bool(path.stat().st_mode & 0o222)
    except FileNotFoundError:
        return True  # nothing to protect


def _leads_into(link: Path, targets: list[Path]) -> bool:
    target = link.resolve()
    return any(target.is_relative_to(allowed_path) for allowed_path in targets)


def _found(root: SkillRoot, folder: str, path: Path) -> FoundFolder:
    if not is_text(folder):
        shown = os.fsencode(folder).decode("utf-8", "backslashreplace")
        return FoundFolder(root=root, folder=shown, path=path, problem="the folder's name is not UTF-8")
    return FoundFolder(root=root, folder=folder, path=path)


def _folder_names(folder: Path) -> list[str]:
    try:
        with os.scandir(folder) as entries:
            return [entry.name for entry in entries if not entry.name.startswith(".") and entry.is_dir()]
    except OSError:
        return []


def _file_names(folder: Path) -> list[str]:
    try:
        with os.scandir(folder) as entries:
            return [entry.name for entry in entries if entry.is_file(follow_symlinks=False)]
    except OSError:
        return []
