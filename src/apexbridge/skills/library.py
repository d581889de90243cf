"""The data directory's own skills: stage, commit by rename, trash, recover.

Nothing live changes before its replacement lies complete and synced beside it. What a crash leaves half-done is
either unreachable rubbish in `staging/` and `trash/`, or a plan that `recover()` carries out.
"""

import errno
import hashlib
import logging
import os
import uuid
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from apexbridge.skills.archive import Entry, read_entry
from apexbridge.skills.files import exchange, is_there, remove_tree, sync_folder
from apexbridge.skills.fingerprint import FolderTooLargeError, content_hash, hash_folder, look
from apexbridge.skills.models import PackageFile
from apexbridge.skills.records import PLAN_FILE, Plan, PluginRecord, PluginRecords

logger = logging.getLogger(__name__)
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
        self.plugins = PluginRecords(data_dir / "plugins")
        self.markers = data_dir / "markers"

    def prepare(self) -> None:
        """Make the folders, finish what a crash left half-done, and clear what it left behind."""
        for folder in (self.plugins.folder, self.staging, self.trash, self.markers):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        for aside in sorted(self.skills.glob(f"{_ASIDE}*")):  # a swap in three steps was cut off
            target = self.skills / aside.name.removeprefix(_ASIDE)
            aside.rename(self.trash / uuid.uuid4().hex if is_there(target) else target)
        for stage in sorted(self.staging.iterdir()):
            if plan := Plan.read(stage):
                try:
                    self._carry_out(stage, plan)
                except OSError:
                    logger.exception("a change of several skills could not be finished; the next start tries again")
        for leftover in (*self.staging.iterdir(), *self.trash.iterdir()):
            if not Plan.read(leftover):
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
        if not is_there(stage / PLAN_FILE):
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
            if is_there(aside):
                aside.rename(self.trash / uuid.uuid4().hex)
            target.rename(aside)
            try:
                staged.rename(target)
            except BaseException:
                aside.rename(target)
                raise
            aside.rename(staged)

    def put_plugin(
        self, stage: Path, staged: Sequence[StagedSkill], plugin: PluginRecord, *, superseded: Sequence[str]
    ) -> None:
        """The commit point of a plugin: a plan on disk, then every skill of it, all or none.

        `superseded` skills go away with the same step; with none staged, that is how a plugin is removed.
        """
        plan = Plan(
            plugin=plugin,
            before=self.plugins.named(plugin.name),
            skills={skill.name: skill.content_hash for skill in staged},
            superseded=tuple(superseded),
        )
        sync_folder(stage)
        plan.write(stage)
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

    def _carry_out(self, stage: Path, plan: Plan) -> None:
        """Put a plan's skills in place; done again after a crash it does only what is missing."""
        for name, wanted in plan.skills.items():
            self._swap_in(stage / name, wanted, self.skills / name)
        for name in plan.superseded:
            if is_there(self.skills / name):
                (self.skills / name).rename(stage / f"{_GONE}{name}")
        self.plugins.write(plan.plugin)
        sync_folder(self.skills)
        (stage / PLAN_FILE).unlink()

    def _take_back(self, stage: Path, plan: Plan) -> None:
        for name, wanted in plan.skills.items():
            live = self.skills / name
            if live.exists() and _hash(live) == wanted:
                if (stage / name).exists():
                    self._put_in_place(stage / name, live)
                else:
                    live.rename(stage / name)
        for name in plan.superseded:
            if (stage / f"{_GONE}{name}").exists():
                (stage / f"{_GONE}{name}").rename(self.skills / name)
        (stage / PLAN_FILE).unlink(missing_ok=True)
        if self.plugins.named(plan.plugin.name) != plan.before:
            self.plugins.write(plan.before or plan.plugin.having(()))

    def _swap_in(self, staged: Path, wanted: str, target: Path) -> None:
        if staged.exists() and _hash(staged) == wanted:
            self._put_in_place(staged, target)
        # Else it is in place already, and what lies here is what it replaced.


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


def _hash(folder: Path) -> str:
    """The content hash; of a folder that no package of ours can be, nothing."""
    try:
        return hash_folder(folder, look(folder).files)
    except (OSError, FolderTooLargeError):
        return ""


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
