"""Installed skills in the data directory: stage, commit by rename, trash, recover.

A live folder changes only after its replacement is complete and synced on the same mount. A crash leaves either
unreachable files in `staging/` and `trash/`, or a plan that `prepare()` applies.
"""

import errno
import hashlib
import logging
import os
import shutil
import uuid
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from apexbridge._fs import exchange, replace_file, sync_folder
from apexbridge.sandbox.launcher.removal import remove_tree
from apexbridge.skills import ORIGIN_FILE
from apexbridge.skills.config import VersionLimits
from apexbridge.skills.models import Origin
from apexbridge.skills.package.archive import Entry, read_entry
from apexbridge.skills.package.fingerprint import FolderTooLargeError, content_hash, hash_folder, scan_folder
from apexbridge.skills.package.skill import PackageFile, Skill
from apexbridge.skills.package.validation import PackagedSkill, read_folder
from apexbridge.skills.store.names import folder_of_name, own_name
from apexbridge.skills.store.plugins import PLAN_FILE, Plan, PluginChange, PluginRecord, PluginRecords
from apexbridge.skills.store.trash import HiddenSkills, Removed, Trash, gone_folder
from apexbridge.skills.store.versions import SignerOf, Version, VersionStore

logger = logging.getLogger(__name__)
_TRASH = ".apex-trash-"
_ASIDE = ".apex-aside-"
_VERSIONS = "versions."
"""Prefix of the versions of a removed skill in its entry of the trash."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StagedSkill:
    """A complete and synced skill, ready to be committed."""

    path: Path
    skill: Skill
    signature: str
    """Signature of the complete folder, which a rename does not change."""

    @property
    def name(self) -> str:
        """The name under which it will be served."""
        return self.skill.name

    def renamed(self, name: str) -> "StagedSkill":
        """The same skill, to be served under another name. Its folder is renamed within the stage."""
        if name == self.name:
            return self
        path = self.path.with_name(folder_of_name(name))
        self.path.rename(path)
        return StagedSkill(path=path, skill=self.skill.renamed(name), signature=self.signature)


class Library:
    """The skill folders of the data directory."""

    def __init__(
        self,
        data_dir: Path,
        skills: Path | None = None,
        limits: VersionLimits | None = None,
        *,
        signer_of: SignerOf = lambda folder, name: None,
    ) -> None:
        self.skills = skills or data_dir / "skills"
        self.skills.mkdir(parents=True, exist_ok=True)
        # A rename cannot cross mounts. Dot-folders are never read as skills.
        one_mount = _can_rename(data_dir, self.skills)
        self.staging = data_dir / "staging" if one_mount else self.skills / ".staging"
        self.trash = data_dir / "trash" if one_mount else self.skills / ".trash"
        self.removed = Trash(self.trash)
        self.hidden = HiddenSkills(data_dir / "hidden.json")
        self.plugins = PluginRecords(data_dir / "plugins")
        self.markers = data_dir / "markers"
        # Versions belong to one folder of skills, which can change at run time.
        is_own = one_mount and self.skills.absolute() == (data_dir / "skills").absolute()
        self.versions = VersionStore(
            data_dir / "versions" if is_own else self.skills / ".versions",
            limits or VersionLimits(),
            drafts=lambda: self.staging,
            signer_of=signer_of,
        )

    def prepare(self) -> None:
        """Create the folders, finish plans that a crash interrupted, and remove leftovers."""
        for folder in (self.plugins.folder, self.staging, self.trash, self.markers, self.versions.folder):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        for aside in sorted(self.skills.glob(f"{_ASIDE}*")):  # a crash interrupted a three-step swap
            target = self.skills / aside.name.removeprefix(_ASIDE)
            aside.rename(self.trash / uuid.uuid4().hex if os.path.lexists(target) else target)
        for stage in sorted((*self.staging.iterdir(), *self.trash.iterdir())):
            if plan := Plan.read(stage):
                try:
                    self._apply(stage, plan)
                except OSError:
                    logger.exception("a change of several skills could not be finished; the next start tries again")
        for leftover in self.staging.iterdir():
            if not Plan.read(leftover):
                remove_tree(str(leftover))
        self._reunite_versions()
        self.removed.sweep()

    def sweep(self, served: Collection[str]) -> None:
        """Delete removed skills and versions that are too old. `served` are the names of all skills."""
        folders = {folder_of_name(name) for name in served}
        self.removed.sweep()
        self.versions.sweep(lambda folder: folder in folders or os.path.lexists(self.skills / folder))

    def _reunite_versions(self) -> None:
        """Move versions of removed skills into their entries of the trash: a crash may have come in between.

        Removals move the versions after the folder, and restores move them before it.
        """
        lost = [folder for folder in self.versions.names() if not os.path.lexists(self.skills / folder)]
        entries = self.removed.all() if lost else []
        for folder in lost:
            for entry, record in entries:
                own = [name for name in record.names if folder_of_name(name) == folder]
                if own and os.path.lexists(gone_folder(entry, own[0])):
                    self._take_versions(own[0], entry)
                    break

    def _take_versions(self, name: str, entry: Path) -> None:
        """Move the versions of a removed skill next to its folder in an entry of the trash, or in a stage."""
        target = entry / f"{_VERSIONS}{folder_of_name(name)}"
        source = self.versions.path(name)
        if os.path.lexists(source) and not os.path.lexists(target):
            source.rename(target)
            sync_folder(self.versions.folder)

    def _return_versions(self, name: str, entry: Path) -> None:
        """Move the versions of a skill back before its folder is restored."""
        source, target = entry / f"{_VERSIONS}{folder_of_name(name)}", self.versions.path(name)
        if os.path.lexists(source):
            self.discard_versions(name)  # of a skill of the same name whose folder was removed by hand
            source.rename(target)
            sync_folder(self.versions.folder)

    @contextmanager
    def unchanged(self) -> Iterator[None]:
        """No thread changes versions, plugins or the trash during the block."""
        with self.removed.lock, self.versions.lock, self.plugins.lock:
            yield

    # ------------------------------------------------------------------------------------------------- staging
    def stage_path(self) -> Path:
        """A path for the folder of one installation, which `make_stage` creates."""
        return self.staging / uuid.uuid4().hex

    def make_stage(self, stage: Path) -> Path:
        return _make_folder(stage)

    def stage_skill(
        self, file: BinaryIO, package: PackagedSkill, name: str, stage: Path, origin: Origin | None = None
    ) -> StagedSkill:
        """Extract one skill of an archive into a stage, to be served as `name`; hash and sync every file."""
        target = _make_folder(stage / folder_of_name(name))
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
        content = content_hash(hashed)
        if origin is not None:
            write_origin(target, origin.model_copy(update={"content_hash": content}))
        for folder in folders:
            sync_folder(folder)
        scan = scan_folder(target)
        skill = package.assessment.skill(target, scan, content)
        return StagedSkill(path=target, skill=skill.renamed(name), signature=scan.signature)

    def stage_version(self, name: str, version: Version, stage: Path, *, require_entry_script: bool) -> StagedSkill:
        """Write a version of a skill into a stage, with the origin that it had.

        Raises:
            FileNotFoundError: the version was removed a moment ago.
            ServerError: its archive is damaged.
            BrokenFolderError: it is not a valid skill any more.
        """
        target = _make_folder(stage / folder_of_name(name))
        self.versions.extract(name, version, target)
        if version.origin is not None:
            write_origin(target, version.origin)
        scan = scan_folder(target)
        skill = read_folder(target, scan, require_entry_script=require_entry_script, folder=own_name(name))
        return StagedSkill(path=target, skill=skill.renamed(name), signature=scan.signature)

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

    def put_plugins(
        self,
        stage: Path,
        staged: Sequence[StagedSkill],
        plugins: Sequence[PluginRecord],
        *,
        superseded: Sequence[str],
        keep: Sequence[Removed] = (),
    ) -> None:
        """Commit plugins: write a plan to disk, then install every skill of it, or none.

        The same plan removes `superseded` skills: those of `keep` to the trash. A plugin without skills is removed.
        """
        with self.removed.lock:
            plan = Plan(
                plugins=tuple(PluginChange(after=one, before=self.plugins.named(one.name)) for one in plugins),
                skills={one.name: one.skill.content_hash for one in staged},
                superseded=tuple(superseded),
                trash={record.name: self.removed.begin(record).name for record in keep},
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

    def retire(self, folder: Path, record: Removed) -> None:
        """Move a folder of the installed root into a new entry of the trash. Raises FileNotFoundError."""
        with self.removed.lock:
            entry = self.removed.begin(record)
            try:
                folder.rename(gone_folder(entry, record.name))
            except BaseException:
                remove_tree(str(entry))
                raise
            sync_folder(folder.parent)
            self._take_versions(record.name, entry)
            sync_folder(entry)

    def discard_versions(self, name: str) -> None:
        """Delete the versions of a skill."""
        if os.path.lexists(source := self.versions.path(name)):
            gone = self.staging / uuid.uuid4().hex
            source.rename(gone)
            remove_tree(str(gone))

    def keep_copy(self, folder: Path, record: Removed) -> Path:
        """Copy a folder that will be replaced into a new entry of the trash; returns the entry.

        The record is written last: a copy without one is deleted at the next start.
        """
        with self.removed.lock:
            return self.removed.begin(
                record, lambda entry: shutil.copytree(folder, gone_folder(entry, record.name), symlinks=True)
            )

    def retire_plugin(self, plugin: PluginRecord, record: Removed) -> None:
        """Move all folders of a plugin into a new entry of the trash, or none."""
        with self.removed.lock:
            entry = self.removed.begin(record)
            try:
                self.put_plugins(entry, [], [plugin.having(())], superseded=record.names)
            except BaseException:
                self.discard_stage(entry)
                raise

    def restore(self, entry: Path, record: Removed) -> None:
        """Move the folders of an entry back, all or none, and delete the entry. Their names must be free.

        Raises:
            FileNotFoundError: the entry is gone.
        """
        with self.removed.lock:
            if self.removed.read(entry) is None:
                raise FileNotFoundError(entry)
            if record.kind == "plugin" and record.plugin is not None:
                self._restore_plugin(entry, record.plugin)
            else:
                plugin = self.plugins.named(record.plugin.name) if record.plugin else None
                if plugin and plugin.name_of(own_name(record.name)) is None:
                    self.plugins.write(plugin.having(sorted({*plugin.skills, record.name})))
                self._return_versions(record.name, entry)
                gone_folder(entry, record.name).rename(self.skills / folder_of_name(record.name))
                sync_folder(self.skills)
            remove_tree(str(entry))

    def _restore_plugin(self, entry: Path, plugin: PluginRecord) -> None:
        names = tuple(name for name in plugin.skills if os.path.lexists(gone_folder(entry, name)))
        change = PluginChange(after=plugin.having(names), before=self.plugins.named(plugin.name))
        plan = Plan(plugins=(change,), skills={}, superseded=(), restored=names)
        plan.write(entry)
        try:
            self._apply(entry, plan)
        except BaseException:
            self._undo(entry, plan)
            raise

    def clear_trash_of(self, folder: Path) -> None:
        """Delete what a crash left of uninstalls in another root."""
        for left in (*folder.glob(f"{_TRASH}*"), *folder.glob(f"*/{_TRASH}*")):
            remove_tree(str(left))

    def _apply(self, stage: Path, plan: Plan) -> None:
        """Apply a plan. Idempotent: after a crash, only the missing steps are done."""
        for name, expected in plan.skills.items():
            folder = folder_of_name(name)
            self._swap_in(stage / folder, expected, self.skills / folder)
        for name in plan.superseded:
            live, gone = self.skills / folder_of_name(name), self._gone(stage, plan, name)
            if os.path.lexists(live):
                live.rename(gone)
            self._take_versions(name, gone.parent)
        for name in plan.restored:
            gone, live = gone_folder(stage, name), self.skills / folder_of_name(name)
            self._return_versions(name, stage)
            if os.path.lexists(gone) and not os.path.lexists(live):
                gone.rename(live)
        for change in plan.plugins:
            self.plugins.write(change.after)
        sync_folder(self.skills)
        (stage / PLAN_FILE).unlink()

    def _undo(self, stage: Path, plan: Plan) -> None:
        for name, expected in plan.skills.items():
            folder = folder_of_name(name)
            live = self.skills / folder
            if live.exists() and _hash(live) == expected:
                if (stage / folder).exists():
                    self._put_in_place(stage / folder, live)
                else:
                    live.rename(stage / folder)
        for name in plan.superseded:
            if os.path.lexists(gone := self._gone(stage, plan, name)):
                self._return_versions(name, gone.parent)
                gone.rename(self.skills / folder_of_name(name))
        for entry in plan.trash.values():
            remove_tree(str(self.trash / entry))
        for name in plan.restored:
            if not os.path.lexists(gone_folder(stage, name)):
                (self.skills / folder_of_name(name)).rename(gone_folder(stage, name))
            self._take_versions(name, stage)
        (stage / PLAN_FILE).unlink(missing_ok=True)
        for change in plan.plugins:
            if self.plugins.named(change.after.name) != change.before:
                self.plugins.write(change.before or change.after.having(()))

    def _gone(self, stage: Path, plan: Plan, name: str) -> Path:
        """Where a plan puts a superseded skill: into its entry of the trash, or into the stage, to be deleted."""
        entry = self.trash / plan.trash[name] if name in plan.trash else stage
        return gone_folder(entry if entry.is_dir() else stage, name)

    def _swap_in(self, staged: Path, expected: str, target: Path) -> None:
        if staged.exists() and _hash(staged) == expected:
            self._put_in_place(staged, target)
        # Otherwise it is committed already, and the staged path holds the folder that it replaced.


def write_origin(folder: Path, origin: Origin) -> None:
    """Record where the skill of a staged folder was fetched from."""
    data = origin.model_dump_json(indent=1).encode()
    replace_file(folder / ORIGIN_FILE, data, beside=folder, durable=True)


def read_origin(folder: Path) -> Origin | None:
    """Where an installed skill was fetched from; None if it was not, or if the record is invalid."""
    try:
        return Origin.model_validate_json((folder / ORIGIN_FILE).read_bytes())
    except (OSError, ValueError):
        return None


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
