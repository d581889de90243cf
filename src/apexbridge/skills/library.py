"""The data directory's own skills: stage, commit by rename, trash, recover.

Nothing live changes before its replacement lies complete and synced beside it. What a crash leaves half-done is
either unreachable rubbish in `staging/` and `trash/`, or a plan that `recover()` carries out.
"""

import errno
import hashlib
import json
import os
import threading
import uuid
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from apexbridge.skills.archive import Entry, read_entry
from apexbridge.skills.files import exchange, is_there, remove_tree, replace_file, sync_folder
from apexbridge.skills.fingerprint import content_hash, hash_folder, look
from apexbridge.skills.marker import MAX_MILLISECONDS
from apexbridge.skills.models import NAME_PATTERN, PackageFile

_PLAN = "plan.json"
_TRASH = ".apex-trash-"
_ASIDE = ".apex-aside-"
_GONE = "gone."
"""Before the name of a folder that a plan took away; no skill's name has a dot in it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StagedSkill:
    """A skill that lies complete and synced, waiting to be put in place."""

    name: str
    path: Path
    content_hash: str
    size: int


class Library:
    """Folders of the data directory that belong to skills."""

    def __init__(self, data_dir: Path, skills: Path | None = None) -> None:
        self.skills = skills or data_dir / "skills"
        self.skills.mkdir(parents=True, exist_ok=True)
        # A rename stays within one mount; dot-folders are no skills to anybody.
        one_mount = _can_rename(data_dir, self.skills)
        self.staging = data_dir / "staging" if one_mount else self.skills / ".staging"
        self.trash = data_dir / "trash" if one_mount else self.skills / ".trash"
        self.plugins = data_dir / "plugins"
        self.markers = data_dir / "markers"
        self._plugin_records = threading.RLock()

    def prepare(self) -> None:
        """Make the folders, finish what a crash left half-done, and clear what it left behind."""
        for folder in (self.plugins, self.staging, self.trash, self.markers):
            folder.mkdir(parents=True, exist_ok=True)
        for aside in sorted(self.skills.glob(f"{_ASIDE}*")):  # a swap in three steps was cut off
            target = self.skills / aside.name.removeprefix(_ASIDE)
            aside.rename(self.trash / uuid.uuid4().hex if is_there(target) else target)
        for path in sorted(self.staging.glob(f"*/{_PLAN}")):
            if plan := _read_plan(path):
                self._carry_out(path.parent, plan)
        for leftover in (*self.staging.iterdir(), *self.trash.iterdir()):
            remove_tree(leftover)

    # ------------------------------------------------------------------------------------------------- staging
    def new_stage(self) -> Path:
        """A fresh folder for one installation."""
        return _make_folder(self.staging / uuid.uuid4().hex)

    def stage_skill(
        self, file: BinaryIO, entries: Iterable[Entry], *, root: tuple[str, ...], name: str, stage: Path
    ) -> StagedSkill:
        """Extract one skill of an archive into a stage, every byte counted, hashed and synced."""
        target = _make_folder(stage / name)
        folders = {target}
        hashed: list[tuple[PackageFile, str]] = []
        for entry in entries:
            parts = entry.parts[len(root) :]
            path = target.joinpath(*parts)
            for depth in range(1, len(parts)):
                folder = target.joinpath(*parts[:depth])
                if folder not in folders:
                    folders.add(_make_folder(folder))
            packed = PackageFile(path="/".join(parts), size=entry.size, executable=entry.executable)
            hashed.append((packed, _write_entry(file, entry, path)))
        for folder in folders:
            sync_folder(folder)
        size = sum(packed.size for packed, _ in hashed)
        return StagedSkill(name=name, path=target, content_hash=content_hash(hashed), size=size)

    def discard(self, folder: Path) -> None:
        """Remove what nobody can reach any more."""
        remove_tree(folder)

    def discard_stage(self, stage: Path) -> None:
        """Remove a stage, unless it holds a plan that is not done: the next start carries that out."""
        if not is_there(stage / _PLAN):
            remove_tree(stage)

    # -------------------------------------------------------------------------------------------------- commit
    def put(self, staged: StagedSkill, target: Path) -> None:
        """The commit point of a single skill: in place in one step, the old one (if any) now where the new one was."""
        self._put_in_place(staged.path, target)
        sync_folder(target.parent)

    def place_beside(self, path: Path) -> Path:
        """A folder on the same mount as a skill's file, for its replacement to wait in."""
        return self.staging if path.is_relative_to(self.skills) else path.parent

    def _put_in_place(self, staged: Path, target: Path) -> None:
        """Make the staged folder the target; what the target was, if anything, then lies where it was staged."""
        if not is_there(target):
            staged.rename(target)
            return
        try:
            exchange(staged, target)
        except OSError as error:
            if error.errno not in (errno.ENOSYS, errno.EINVAL, errno.ENOTSUP):
                raise
            aside = target.with_name(f"{_ASIDE}{target.name}")  # `prepare` knows what to do with it after a crash
            target.rename(aside)
            staged.rename(target)
            aside.rename(staged)

    def put_plugin(
        self, stage: Path, staged: list[StagedSkill], plugin: dict[str, Any], *, superseded: list[str]
    ) -> None:
        """The commit point of a plugin: a plan on disk, then every skill of it, all or none.

        `superseded` skills go away with the same step; with none staged, that is how a plugin is removed.
        """
        plan = {
            "plugin": plugin,
            "before": next((known for known in self.read_plugins() if known["name"] == plugin["name"]), None),
            "skills": {skill.name: skill.content_hash for skill in staged},
            "superseded": superseded,
        }
        sync_folder(stage)
        replace_file(stage / _PLAN, json.dumps(plan).encode(), beside=stage, durable=True)
        try:
            self._carry_out(stage, plan)
        except BaseException:
            self._take_back(stage, plan)
            raise

    def remove(self, folder: Path, root: Path) -> Path:
        """Take a folder of a root out of sight in one step; gives where it lies now, to be discarded."""
        if root == self.skills:
            gone = self.trash / f"{folder.name}-{uuid.uuid4().hex}"
        else:  # another root may be another mount; a dot-folder is no skill to anybody
            gone = root / f"{_TRASH}{uuid.uuid4().hex}"
        folder.rename(gone)
        sync_folder(folder.parent)
        return gone

    def clear_trash_of(self, folder: Path) -> None:
        """Remove what a crash left of uninstalls from another root."""
        for left in (*folder.glob(f"{_TRASH}*"), *folder.glob(f"*/{_TRASH}*")):
            remove_tree(left)

    def _carry_out(self, stage: Path, plan: dict[str, Any]) -> None:
        """Put a plan's skills in place; done again after a crash it does only what is missing."""
        for name, wanted in plan["skills"].items():
            self._swap_in(stage / name, wanted, self.skills / name)
        for name in plan["superseded"]:
            if is_there(self.skills / name):
                (self.skills / name).rename(stage / f"{_GONE}{name}")
        self.write_plugin(plan["plugin"])
        sync_folder(self.skills)
        (stage / _PLAN).unlink()

    def _take_back(self, stage: Path, plan: dict[str, Any]) -> None:
        for name, wanted in plan["skills"].items():
            live = self.skills / name
            if live.exists() and _hash(live) == wanted:
                if (stage / name).exists():
                    self._put_in_place(stage / name, live)
                else:
                    live.rename(stage / name)
        for name in plan["superseded"]:
            if (stage / f"{_GONE}{name}").exists():
                (stage / f"{_GONE}{name}").rename(self.skills / name)
        self.write_plugin(plan["before"] or {**plan["plugin"], "skills": []})
        (stage / _PLAN).unlink(missing_ok=True)

    def _swap_in(self, staged: Path, wanted: str, target: Path) -> None:
        if staged.exists() and _hash(staged) == wanted:
            self._put_in_place(staged, target)
        # Else it is in place already, and what lies here is what it replaced.

    # ------------------------------------------------------------------------------------------------- plugins
    def read_plugins(self) -> list[dict[str, Any]]:
        """The plugins that are written down, by name."""
        found = []
        for path in sorted(self.plugins.glob("*.json")):
            try:
                plugin = json.loads(path.read_bytes())
            except (OSError, ValueError):
                continue
            if _is_plugin(plugin) and plugin["name"] == path.stem:
                found.append(plugin)
        return found

    def read_plugin(self, name: str) -> dict[str, Any] | None:
        """One plugin's record."""
        return next((plugin for plugin in self.read_plugins() if plugin["name"] == name), None)

    def leave_plugins(self, names: Sequence[str], but: str | None = None) -> None:
        """Skills that no longer are what their plugin brought are no longer part of it."""
        with self._plugin_records:
            for plugin in self.read_plugins():
                left = [name for name in plugin["skills"] if name not in names]
                if plugin["name"] != but and left != plugin["skills"]:
                    self.write_plugin({**plugin, "skills": left})

    def write_plugin(self, plugin: dict[str, Any]) -> None:
        """Write a plugin down, or forget it when it has no skill left."""
        path = self.plugins / f"{plugin['name']}.json"
        with self._plugin_records:
            if plugin["skills"]:
                data = json.dumps(plugin, ensure_ascii=False, indent=1).encode()
                replace_file(path, data, beside=self.plugins, durable=True)
            else:
                path.unlink(missing_ok=True)


def _can_rename(data_dir: Path, skills: Path) -> bool:
    """Whether a folder can be moved from one to the other; only trying tells, for a mount may be of the same disk."""
    probe, target = data_dir / f".probe-{uuid.uuid4().hex}", skills / f".probe-{uuid.uuid4().hex}"
    probe.mkdir()
    try:
        probe.rename(target)
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        target = probe
        return False
    finally:
        target.rmdir()
    return True


def _is_plugin(record: Any) -> bool:
    """Whether a record is one that we wrote."""
    if not isinstance(record, dict) or not isinstance(record.get("skills"), list):
        return False
    names = [record.get("name"), *record["skills"]]
    told = [record.get("version"), record.get("description")]
    return (
        all(isinstance(name, str) and NAME_PATTERN.match(name) for name in names)
        and all(isinstance(text, (str, type(None))) for text in told)
        and isinstance(record.get("installedAt"), int)
        and 0 <= record["installedAt"] <= MAX_MILLISECONDS
    )


def _read_plan(path: Path) -> dict[str, Any] | None:
    """A plan that was written whole; anything else was never begun and is rubbish."""
    try:
        plan = json.loads(path.read_bytes())
        names = [*plan["skills"], *plan["superseded"]]
        sound = _is_plugin(plan["plugin"]) and all(NAME_PATTERN.match(name) for name in names)
        return plan if sound else None
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def _hash(folder: Path) -> str:
    return hash_folder(folder, look(folder).files)


def _make_folder(path: Path) -> Path:
    path.mkdir()
    path.chmod(0o755)  # whatever the umask: a sandboxed run is another user and must be able to read it
    return path


def _write_entry(file: BinaryIO, entry: Entry, path: Path) -> str:
    """Write one file that must not exist yet; gives its SHA-256."""
    digest = hashlib.sha256()
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    with os.fdopen(descriptor, "wb") as target:
        for piece in read_entry(file, entry):
            digest.update(piece)
            target.write(piece)
        target.flush()
        os.fchmod(descriptor, 0o755 if entry.executable else 0o644)
        os.fsync(descriptor)
    return digest.hexdigest()
