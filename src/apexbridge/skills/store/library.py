"""Installed skills in the data directory: stage, commit by rename, trash, recover.

A live folder changes only after its replacement is complete and synced on the same mount. A crash leaves either
unreachable files in `staging/` and `trash/`, or a plan that `prepare()` applies.
"""

import errno
import hashlib
import logging
import os
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from apexbridge._fs import exchange, sync_folder
from apexbridge.sandbox.launcher.removal import remove_tree
from apexbridge.skills.package.archive import Entry, read_entry
from apexbridge.skills.package.fingerprint import FolderTooLargeError, content_hash, hash_folder, scan_folder
from apexbridge.skills.package.skill import PackageFile, Skill
from apexbridge.skills.package.validation import PackagedSkill
from apexbridge.skills.store.plugins import PLAN_FILE, Plan, PluginRecord, PluginRecords

logger = logging.getLogger(__name__)
_TRASH = ".apex-trash-"
_ASIDE = ".apex-aside-"
_GONE = "gone."
"""Prefix of folders that a plan removed. Skill names contain no dot, so it cannot collide."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StagedSkill:
    """A complete and synced skill, ready to be committed."""

    path: Path
    skill: Skill
    signature: str
    """Signature of the complete folder, which a rename does not change."""

    @property
    def name(self) -> str:
        return self.skill.name


class Library:
    """The skill folders of the data directory."""

    def __init__(self, data_dir: Path, skills: Path | None = None) -> None:
        self.skills = skills or data_dir / "skills"
        self.skills.mkdir(parents=True, exist_ok=True)
        # A rename cannot cross mounts. Dot-folders are never read as skills.
        one_mount = _can_rename(data_dir, self.skills)
        self.staging = data_dir / "staging" if one_mount else self.skills / ".staging"
        self.trash = data_dir / "trash" if one_mount else self.skills / ".trash"
        self.plugins = PluginRecords(data_dir / "plugins")
        self.markers = data_dir / "markers"

    def prepare(self) -> None:
        """Create the folders, finish plans that a crash interrupted, and remove leftovers."""
        for folder in (self.plugins.folder, self.staging, self.trash, self.markers):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        for aside in sorted(self.skills.glob(f"{_ASIDE}*")):  # a crash interrupted a three-step swap
            target = self.skills / aside.name.removeprefix(_ASIDE)
            aside.rename(self.trash / uuid.uuid4().hex if os.path.lexists(target) else target)
        for stage in sorted(self.staging.iterdir()):
            if plan := Plan.read(stage):
                try:
                    self._apply(stage, plan)
                except OSError:
                    logger.exception("a change of several skills could not be finished; the next start tries again")
        for leftover in (*self.staging.iterdir(), *self.trash.iterdir()):
            if not Plan.read(leftover):
                remove_tree(str(leftover))

    # ------------------------------------------------------------------------------------------------- staging
    def stage_path(self) -> Path:
        """A path for the folder of one installation, which `make_stage` creates."""
        return self.staging / uuid.uuid4().hex

    def make_stage(self, stage: Path) -> Path:
        return _make_folder(stage)

    def stage_skill(self, file: BinaryIO, package: PackagedSkill, stage: Path) -> StagedSkill:
        """Extract one skill of an archive into a stage; hash and sync every file."""
        target = _make_folder(stage / package.metadata.name)
        folders = {target}
        hashed: list[tuple[PackageFile, str]] = []
        for entry in package.entries:
            parts = entry.parts[len(package.root) :]
            path = target.joinpath(*parts)
            for depth in range(1, len(parts)):
                folder = target.joinpath(*parts[:depth])
                if folder not in folders:
                    folders.add(_make_folder(folder))
            packed = PackageFile(path="/".join(parts), size=entry.size, executable=entry.executable)
            hashed.append((packed, _write_entry(file, entry, path)))
        for folder in folders:
            sync_folder(folder)
        scan = scan_folder(target)
        skill = package.assessment.skill(target, scan, content_hash(hashed))
        return StagedSkill(path=target, skill=skill, signature=scan.signature)

    def discard(self, folder: Path) -> None:
        """Delete a folder that is no longer reachable."""
        remove_tree(str(folder))

    def discard_stage(self, stage: Path) -> None:
        """Delete a stage, unless it contains an unfinished plan: the next start applies that."""
        if not os.path.lexists(stage / PLAN_FILE):
            remove_tree(str(stage))

    # -------------------------------------------------------------------------------------------------- commit
    def put(self, staged: StagedSkill, target: Path) -> None:
        """Commit a single skill atomically. The replaced folder, if any, is then at the staged path."""
        self._put_in_place(staged.path, target)
        sync_folder(target.parent)

    def draft_folder(self, path: Path) -> Path:
        """A folder on the same mount as a skill's file, for drafts of its replacement."""
        return self.staging if path.is_relative_to(self.skills) else path.parent

    def _put_in_place(self, staged: Path, target: Path) -> None:
        """Move the staged folder to the target. The old target, if any, is then at the staged path."""
        if not os.path.lexists(target):
            staged.rename(target)
            return
        try:
            exchange(staged, target)
        except OSError as error:
            if error.errno not in (errno.ENOSYS, errno.EINVAL, errno.ENOTSUP):
                raise
            aside = target.with_name(f"{_ASIDE}{target.name}")  # `prepare` handles it after a crash
            if os.path.lexists(aside):
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
        """Commit a plugin: write a plan to disk, then install every skill of it, or none.

        The same plan removes `superseded` skills. Without staged skills, it removes the plugin.
        """
        plan = Plan(
            plugin=plugin,
            before=self.plugins.named(plugin.name),
            skills={one.name: one.skill.content_hash for one in staged},
            superseded=tuple(superseded),
        )
        sync_folder(stage)
        plan.write(stage)
        try:
            self._apply(stage, plan)
        except BaseException:
            self._undo(stage, plan)
            raise

    def remove(self, folder: Path, root: Path) -> Path:
        """Atomically move a folder out of its root; returns the new path, for `discard`."""
        if root == self.skills:
            gone = self.trash / f"{folder.name}-{uuid.uuid4().hex}"
        else:  # another root may be another mount; dot-folders are never read as skills
            gone = root / f"{_TRASH}{uuid.uuid4().hex}"
        folder.rename(gone)
        sync_folder(folder.parent)
        return gone

    def clear_trash_of(self, folder: Path) -> None:
        """Delete what a crash left of uninstalls in another root."""
        for left in (*folder.glob(f"{_TRASH}*"), *folder.glob(f"*/{_TRASH}*")):
            remove_tree(str(left))

    def _apply(self, stage: Path, plan: Plan) -> None:
        """Apply a plan. Idempotent: after a crash, only the missing steps are done."""
        for name, expected in plan.skills.items():
            self._swap_in(stage / name, expected, self.skills / name)
        for name in plan.superseded:
            if os.path.lexists(self.skills / name):
                (self.skills / name).rename(stage / f"{_GONE}{name}")
        self.plugins.write(plan.plugin)
        sync_folder(self.skills)
        (stage / PLAN_FILE).unlink()

    def _undo(self, stage: Path, plan: Plan) -> None:
        for name, expected in plan.skills.items():
            live = self.skills / name
            if live.exists() and _hash(live) == expected:
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

    def _swap_in(self, staged: Path, expected: str, target: Path) -> None:
        if staged.exists() and _hash(staged) == expected:
            self._put_in_place(staged, target)
        # Otherwise it is committed already, and the staged path holds the folder that it replaced.


def _can_rename(data_dir: Path, skills: Path) -> bool:
    """Whether folders can be renamed between both. Device numbers do not show it: a bind mount has the same one."""
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
    """The content hash; empty if the folder cannot be read or is too large for a skill."""
    try:
        return hash_folder(folder, scan_folder(folder).files)
    except (OSError, FolderTooLargeError):
        return ""


def _make_folder(path: Path) -> Path:
    path.mkdir()
    path.chmod(0o755)  # ignore the umask: sandboxed runs have another user id and must be able to read it
    return path


def _write_entry(file: BinaryIO, entry: Entry, path: Path) -> str:
    """Write one file, which must not exist yet; returns its SHA-256."""
    digest = hashlib.sha256()
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    with os.fdopen(descriptor, "wb") as target:
        for chunk in read_entry(file, entry):
            digest.update(chunk)
            target.write(chunk)
        target.flush()
        os.fchmod(descriptor, 0o755 if entry.executable else 0o644)
        os.fsync(descriptor)
    return digest.hexdigest()
