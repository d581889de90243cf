"""Installs checked packages: stage, embed, commit, settle."""

import errno
import itertools
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import BinaryIO, Literal

from apexbridge._tasks import in_thread
from apexbridge._text import near_names
from apexbridge._time import now_ms
from apexbridge.errors import (
    InvalidArchiveError,
    RequestError,
    SkillAlreadyExistsError,
    SkillError,
    SkillNotFoundError,
    SkillParseError,
    did_you_mean,
)
from apexbridge.skills import MAX_NAME_CHARACTERS
from apexbridge.skills.models import InstallReceipt, Origin, SkillScan
from apexbridge.skills.package.dependencies import Dependencies, read_dependencies
from apexbridge.skills.package.detection import Use, detect
from apexbridge.skills.package.fingerprint import scan_folder
from apexbridge.skills.package.progress import report_phase
from apexbridge.skills.package.skill import Skill
from apexbridge.skills.package.validation import BrokenFolderError, Package, PackagedPlugin, PackagedSkill
from apexbridge.skills.remote.source_text import parse_source
from apexbridge.skills.store.catalog import Catalog, Row, derived_tags_of
from apexbridge.skills.store.indexer import IndexDocument, SkillIndex
from apexbridge.skills.store.intake import Admission, Intake
from apexbridge.skills.store.library import Library, StagedSkill
from apexbridge.skills.store.locks import NameLocks
from apexbridge.skills.store.names import folder_of_name, qualified_name
from apexbridge.skills.store.plugins import PluginRecord
from apexbridge.skills.store.roots import INSTALLED_ROOT, FoundFolder
from apexbridge.skills.store.scanner import Prepared, Scanner
from apexbridge.skills.store.trash import HiddenSkill, Removed, RemovedSkill, gone_folder
from apexbridge.skills.store.versions import BY_HAND, Change, Content, Version

PackagesOf = Callable[[str], Awaitable[tuple[str, ...]]]
"""Returns the packages that were added to a skill."""
AddPackages = Callable[[str, Sequence[str]], Awaitable[None]]
"""Adds packages to a skill."""
_Packages = Mapping[str, tuple[str, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class ExaminedSkill:
    """A skill of a package as it would be installed."""

    name: str
    """Under which it would be served."""
    skill: Skill
    paths: tuple[str, ...]
    declared: Dependencies
    uses: tuple[Use, ...]
    admission: Admission


class Installer:
    """Installs packages. A failure before the commit leaves no trace; after it, the scanner can finish the work.

    Call its methods through `run_to_completion`: a cancelled call would leave a thread working in a removed folder.
    """

    def __init__(
        self,
        *,
        library: Library,
        catalog: Catalog,
        scanner: Scanner,
        index: SkillIndex,
        locks: NameLocks,
        commits: NameLocks,
        intake: Intake,
        require_entry_script: bool,
    ) -> None:
        self._library = library
        self._catalog = catalog
        self._scanner = scanner
        self._index = index
        self._locks = locks
        self._commits = commits
        self._intake = intake
        self._require_entry_script = require_entry_script

    async def install(
        self,
        file: BinaryIO,
        package: Package,
        *,
        overwrite: bool,
        origin: Origin | None = None,
        keep: Collection[str] = (),
        served_as: str | None = None,
        change: Change,
    ) -> InstallReceipt:
        """Install every skill of the package, or none. `origin` is recorded with each of them, `change` with versions.

        A package of one skill replaces the skill that is served as `served_as`, if that is set. It stays in its plugin.

        Skills that a new version of a plugin lacks go to the trash, and so do the replaced versions of `keep`.

        Raises:
            SkillAlreadyExistsError: the skill or one of the plugins is installed and `overwrite` is false.
            SkillError: SIGNATURE_REQUIRED, SCAN_REFUSED.
        """
        package = await in_thread(self._with_own_plugin_names, package)
        plugins = [plugin.name for plugin in package.plugins]
        names = await self.names(
            package, overwrite=overwrite, served_as=served_as
        )  # fails early; computed again under the lock
        stage = self._library.stage_path()
        drafts: list[Path] = []
        try:
            report_phase("unpacking")
            staged = await in_thread(self._stage, file, package, names, stage, origin)
            admissions = await in_thread(self._admit, staged)
            report_phase("indexing")
            vectors = await self._index.embed([_document(one) for one in staged])
            async with self._holding([*_candidates(package), *names], plugins) as members:
                names = await self.names(package, overwrite=overwrite, served_as=served_as)
                staged = await in_thread(_renamed, staged, names)
                prepared = {
                    one.name: Prepared(vector=vector, skill=one.skill, signature=one.signature)
                    for one, vector in zip(staged, vectors, strict=True)
                }
                superseded = [name for name in members if name not in names]
                # Manually added folders of the installed root that hold one of these skills under another folder name.
                elsewhere = [
                    row.folder
                    for row in await self._catalog.named(names)
                    if row.root == INSTALLED_ROOT and row.folder != folder_of_name(row.name)
                ]
                replaced = bool(elsewhere) or any(self._exists(name) for name in names)
                report_phase("installing")
                await self._catalog.prove_writable()
                drafts = await in_thread(self._prepare_versions, staged)
                await self._settle_changed(names)
                known = await self._catalog.named([*names, *superseded])
                async with self._commits.hold(*names, *superseded):
                    copies = await in_thread(self._keep_copies, [one for one in keep if one in names], known)
                    try:
                        gone = [_removed("skill", name, known, None) for name in superseded if self._exists(name)]
                        plugins_of = None if served_as else plugins
                        await in_thread(self._commit, stage, staged, package, gone, elsewhere, origin, plugins_of)
                    except BaseException:
                        for entry in copies:
                            await in_thread(self._library.discard, entry)
                        raise
                    folders = [*map(folder_of_name, [*names, *superseded]), *elsewhere]
                    await self._settle(folders, prepared, change)
        finally:
            for draft in drafts:  # of contents that are stored already
                await in_thread(draft.unlink, missing_ok=True)
            await in_thread(self._library.discard_stage, stage)
        return InstallReceipt(
            name=package.name,
            names=names,
            plugins=plugins,
            left_out=list(package.left_out),
            message=f"{_kind(package)} installed successfully",
            replaced=replaced,
            warnings=package.warnings + _warnings(names, admissions) + await self._shadow_warnings(names),
            scans=[
                SkillScan(name=name, scan=one.scan, signature=one.signature)
                for name, one in zip(names, admissions, strict=True)
            ],
        )

    async def examine(self, file: BinaryIO, package: Package) -> list[ExaminedSkill]:
        """What would be installed, under which names. The skills are staged one after the other, and removed again."""
        package = await in_thread(self._with_own_plugin_names, package)
        names = await self.names(package, overwrite=True)
        report_phase("unpacking")
        return await in_thread(self._examine, file, package, names)

    def _examine(self, file: BinaryIO, package: Package, names: Sequence[str]) -> list[ExaminedSkill]:
        examined = []
        for skill, name in zip(package.skills, names, strict=True):
            stage = self._library.make_stage(self._library.stage_path())
            try:
                staged = self._library.stage_skill(file, skill, name, stage)
                examined.append(
                    ExaminedSkill(
                        name=name,
                        skill=staged.skill,
                        paths=tuple(file.path for file in scan_folder(staged.path).files),
                        declared=read_dependencies(staged.path),
                        uses=tuple(detect(staged.path)),
                        admission=self._intake.examine(staged.path, name, replaced=self._path(name)),
                    )
                )
            finally:
                self._library.discard_stage(stage)
        return examined

    async def install_version(self, name: str, number: int, *, served: Row, change: Change) -> None:
        """Replace an installed skill by one of its versions. The caller holds its name.

        Raises:
            FileNotFoundError: the version was removed a moment ago.
            SkillParseError: its content is not a valid skill by the current settings.
        """
        stage = self._library.stage_path()
        try:
            staged = await in_thread(self._stage_version, name, number, stage)
            await in_thread(self._admit, [staged])
            (vector,) = await self._index.embed([_document(staged)])
            await self._catalog.prove_writable()
            await self._settle_changed([name])
            async with self._commits.hold(name):
                await in_thread(self._library.put, staged, self._library.skills / served.folder)
                prepared = Prepared(vector=vector, skill=staged.skill, signature=staged.signature)
                await self._settle([served.folder], {name: prepared}, replace(change, default=number))
        finally:
            await in_thread(self._library.discard_stage, stage)

    def _stage_version(self, name: str, number: int, stage: Path) -> StagedSkill:
        version = self._library.versions.of(name).numbered(number)
        if version is None:
            raise FileNotFoundError(number)
        self._library.make_stage(stage)
        try:
            return self._library.stage_version(name, version, stage, require_entry_script=self._require_entry_script)
        except BrokenFolderError as error:
            problem = f"Version {number} of {name} cannot be installed: {error}"
            raise SkillParseError(problem, skill=name) from error

    async def add_version(self, file: BinaryIO, package: Package, name: str, *, change: Change) -> Version:
        """Store a package of one skill as a version of an installed skill, which does not change. The caller holds its
        name.

        Raises:
            InvalidArchiveError: ARCHIVE_TOO_LARGE.
        """
        stage = self._library.stage_path()
        try:
            (staged,) = await in_thread(self._stage, file, package, [name], stage, None)
            await in_thread(self._admit, [staged])
            version = await in_thread(self._library.versions.add, _content(staged), change, as_default=False)
        finally:
            await in_thread(self._library.discard_stage, stage)
        if version is None:
            raise InvalidArchiveError("The package is too large to be stored as a version", code="ARCHIVE_TOO_LARGE")
        return version

    def _admit(self, staged: Sequence[StagedSkill]) -> list[Admission]:
        """Raises SkillError: SIGNATURE_REQUIRED, SCAN_REFUSED."""
        return [self._intake.admit(one.path, one.name, replaced=self._path(one.name)) for one in staged]

    def _prepare_versions(self, staged: Sequence[StagedSkill]) -> list[Path]:
        """Pack the contents before they are committed: on a full disk, nothing is installed. Returns the drafts."""
        drafts = [self._library.versions.prepare(_content(one)) for one in staged]
        return [draft for draft in drafts if draft]

    async def _settle_changed(self, names: Sequence[str]) -> None:
        """Record edits by hand of skills that are about to be replaced, so that they stay as a version."""
        rows = [row for row in await self._catalog.named(names) if row.root == INSTALLED_ROOT]
        changed = await in_thread(lambda: [row.folder for row in rows if self._scanner.is_changed(row)])
        if changed:
            await self._settle(changed, {})

    async def uninstall(self, name: str, folder: Path, *, keep: bool, packages_of: PackagesOf) -> Removed | None:
        """Remove a skill. The caller holds its name. With `keep`, it goes to the trash, and its record is returned.

        The record has the added packages that `packages_of` returns.
        """
        async with self._commits.hold(name):
            rows = await self._catalog.named([name])
            found = [self._scanner.folder_of(row.key) for row in rows]
            packages = {name: await packages_of(name)}
            try:
                gone, record = await in_thread(self._remove, name, folder, rows, packages, keep)
            except FileNotFoundError as error:  # removed by hand a moment ago
                await self._scanner.settle(found)
                raise SkillNotFoundError(name) from error
            if gone is not None:  # the folder first: on a full disk, removing it frees the space that the record needs
                await in_thread(self._library.discard, gone)
            await self._scanner.settle(found)
            return record

    async def uninstall_plugin(self, name: str, *, keep: bool, packages_of: PackagesOf) -> Removed | None:
        """Remove all skills of a plugin, or none; as `uninstall`. Raises RequestError: PLUGIN_NOT_FOUND."""
        async with self._holding([], [name]) as members:
            plugin = await in_thread(self._library.plugins.named, name)
            if plugin is None:
                known = [record.name for record in await in_thread(self._library.plugins.all)]
                message = f"Plugin not found: {name}{did_you_mean(near_names(name, known))}"
                raise RequestError(message, code="PLUGIN_NOT_FOUND", plugin=name)
            rows = await self._catalog.named(members)
            async with self._commits.hold(*members):
                packages = {member: await packages_of(member) for member in members}
                record = await in_thread(self._remove_plugin, plugin, rows, packages, keep)
                await self._settle(list(map(folder_of_name, members)), {})
                return record

    async def hide(self, name: str, found: FoundFolder, *, packages_of: PackagesOf) -> None:
        """Stop serving a skill of another root, whose folder is not changed. The caller holds its name."""
        async with self._commits.hold(name):
            hidden = HiddenSkill(
                root=found.root.id,
                folder=found.folder,
                name=name,
                hidden_at=now_ms(),
                packages=await packages_of(name),
            )
            await in_thread(self._library.hidden.add, hidden)
            await self._scanner.settle([found])

    async def show(self, hidden: HiddenSkill) -> None:
        """Serve a hidden skill again. Raises SkillError: NAME_TAKEN."""
        async with self._locks.hold(hidden.name):
            if await self._catalog.live(hidden.name):
                raise _name_taken(hidden.name)
            async with self._commits.hold(hidden.name):
                await in_thread(self._library.hidden.remove, hidden.key)
                await self._scanner.settle([self._scanner.folder_of(hidden.key)])

    async def restore(self, entry: Path, record: Removed, *, add_packages: AddPackages) -> None:
        """Bring the skills of an entry of the trash back, all or none. `add_packages` gets their added packages.

        Raises:
            SkillError: NAME_TAKEN, a skill or the plugin of that name is installed; SIGNATURE_REQUIRED, SCAN_REFUSED.
        """
        names = record.names
        async with self._holding(names, [record.plugin.name] if record.plugin else []) as members:
            if record.kind == "plugin" and members:
                raise _name_taken(record.name, "plugin")
            taken = {row.name for row in await self._catalog.named(names) if row.root == INSTALLED_ROOT}
            for name in names:
                if name in taken or self._exists(name):
                    raise _name_taken(name)
            await in_thread(self._admit_removed, entry, names)
            await self._catalog.prove_writable()
            async with self._commits.hold(*names):
                for skill in record.skills:  # before the folders, so that a crash does not lose them
                    await add_packages(skill.name, skill.packages)
                try:
                    await in_thread(self._library.restore, entry, record)
                except FileNotFoundError as error:  # restored or deleted a moment ago
                    raise SkillNotFoundError(record.name) from error
                await self._settle(list(map(folder_of_name, names)), {})

    def _admit_removed(self, entry: Path, names: Sequence[str]) -> None:
        for name in names:
            if (folder := gone_folder(entry, name)).is_dir():
                self._intake.admit(folder, name)

    @asynccontextmanager
    async def _holding(self, names: Sequence[str], plugins: Sequence[str]) -> AsyncIterator[list[str]]:
        """Lock these names, plugins and their current skills; yields those skills.

        All locks are taken in one `hold`, so that two installs cannot deadlock. The plugins' skills may change before
        they are locked, so they are read again under the locks.
        """
        while True:
            members = await self._members(plugins)
            async with self._locks.hold(*names, *members, *(f"plugin {plugin}" for plugin in plugins)):
                if await self._members(plugins) == members:
                    yield members
                    return

    async def _members(self, plugins: Sequence[str]) -> list[str]:
        records = await in_thread(self._library.plugins.all) if plugins else []
        return [name for record in records if record.name in plugins for name in record.skills]

    def _path(self, name: str) -> Path:
        return self._library.skills / folder_of_name(name)

    def _exists(self, name: str) -> bool:
        """Whether the folder exists; a dangling link counts."""
        return os.path.lexists(self._path(name))

    def _with_own_plugin_names(self, package: Package) -> Package:
        """Number plugins that are named after their folder if another package has that name: `skills-2`.

        Archives of different repositories often have the same top folder. A plugin without a common skill is another
        package, which must be neither a reason to refuse this one nor replaced by it.
        """
        records = {record.name: record for record in self._library.plugins.all()}
        used = {plugin.name for plugin in package.plugins}
        plugins = []
        for plugin in package.plugins:
            name = plugin.name if plugin.is_declared else _free_name(plugin, records, used)
            used.add(name)
            plugins.append(replace(plugin, name=name))
        return replace(package, name=plugins[0].name if len(plugins) == 1 else package.name, plugins=tuple(plugins))

    async def names(self, package: Package, *, overwrite: bool, served_as: str | None = None) -> list[str]:
        """The names under which the skills of a package will be served, in its order.

        A skill of a plugin keeps the name that it has. Otherwise it gets its own name, or `plugin:skill` if that is
        taken: by a folder, or by a manually added folder of another name with that skill.

        Raises:
            SkillAlreadyExistsError: the skill or one of the plugins is installed and `overwrite` is false.
        """
        if package.skill and served_as:
            if not any(row.root == INSTALLED_ROOT for row in await self._catalog.named([served_as])):
                raise SkillNotFoundError(served_as)  # uninstalled in the meantime
            return [served_as]
        candidates = _candidates(package)
        known = await self._catalog.named(candidates)
        taken = {row.name for row in known if row.root == INSTALLED_ROOT}
        taken |= {name for name in candidates if self._exists(name)}
        if package.skill:
            if not overwrite and package.name in taken:
                raise SkillAlreadyExistsError(package.name)
            return [package.name]
        records = {record.name: record for record in await in_thread(self._library.plugins.all)}
        for plugin in package.plugins:
            if plugin.name in records and not overwrite:
                raise SkillAlreadyExistsError(plugin.name, kind="Plugin")
        own = {
            (plugin.name, skill.metadata.name): records[plugin.name].name_of(skill.metadata.name)
            for plugin in package.plugins
            if plugin.name in records
            for skill in plugin.skills
        }
        taken |= {name for name in own.values() if name}
        names = []
        for plugin in package.plugins:
            for skill in plugin.skills:
                plain = skill.metadata.name
                name = own.get((plugin.name, plain))
                if name is None:
                    name = plain if plain not in taken else qualified_name(plugin.name, plain)
                    if name in taken and not overwrite:
                        raise SkillAlreadyExistsError(name)
                    taken.add(name)
                names.append(name)
        return names

    def _stage(
        self, file: BinaryIO, package: Package, names: Sequence[str], stage: Path, origin: Origin | None
    ) -> list[StagedSkill]:
        self._library.make_stage(stage)
        return [
            self._library.stage_skill(
                file, skill, name, stage, _own_origin(origin, skill) if package.plugins else origin
            )
            for skill, name in zip(package.skills, names, strict=True)
        ]

    def _commit(
        self,
        stage: Path,
        staged: list[StagedSkill],
        package: Package,
        superseded: list[Removed],
        elsewhere: list[str],
        origin: Origin | None,
        plugins_of: Sequence[str] | None,
    ) -> None:
        names = [skill.name for skill in staged]
        if plugins_of is not None:
            # Before the folders change: a crash in between loses only the link to the old plugin, never the skill.
            self._library.plugins.drop(names, except_plugins=plugins_of)
        if package.skill:
            self._library.put(staged[0], self._path(staged[0].name))
        else:
            now, pending = now_ms(), iter(names)
            records = [
                PluginRecord(
                    name=plugin.name,
                    version=plugin.version,
                    description=plugin.description,
                    installed_at=now,
                    skills=tuple(sorted(next(pending) for _ in plugin.skills)),
                    origin=origin,
                )
                for plugin in package.plugins
            ]
            members = [one.name for one in superseded]
            self._library.put_plugins(stage, staged, records, superseded=members, keep=superseded)
        for folder in elsewhere:
            path = self._library.skills / folder
            if os.path.lexists(path):
                self._library.discard(self._library.remove(path, self._library.skills))

    def _keep_copies(self, names: Sequence[str], rows: Sequence[Row]) -> list[Path]:
        """Copy skills that will be replaced to the trash; returns the entries."""
        return [self._library.keep_copy(self._path(name), _removed("skill", name, rows, None)) for name in names]

    def _remove(
        self, name: str, folder: Path, rows: Sequence[Row], packages: _Packages, keep: bool
    ) -> tuple[Path | None, Removed | None]:
        """Move a folder out of its root: to the trash, or to a path that has to be deleted."""
        if folder.parent != self._library.skills:
            return self._library.remove(folder, folder.parent), None
        plugin = next((own for own in self._library.plugins.all() if name in own.skills), None)
        gone = record = None
        if keep:
            removed = _removed("skill", name, rows, plugin, packages)
            with _full_disk_means_delete():
                self._library.retire(folder, removed)
                record = removed
        if record is None:
            gone = self._library.remove(folder, self._library.skills)
            self._library.discard_versions(name)
        # Last: after a crash or on a full disk, the plugin's record has the removed name, which listings filter out.
        with suppress(OSError):
            self._library.plugins.drop([name])
        return gone, record

    def _remove_plugin(
        self, plugin: PluginRecord, rows: Sequence[Row], packages: _Packages, keep: bool
    ) -> Removed | None:
        if keep:
            record = _removed("plugin", plugin.name, rows, plugin, packages)
            with _full_disk_means_delete():
                self._library.retire_plugin(plugin, record)
                return record
        stage = self._library.make_stage(self._library.stage_path())
        try:
            self._library.put_plugins(stage, [], [plugin.having(())], superseded=plugin.skills)
        finally:
            self._library.discard_stage(stage)
        return None

    async def _settle(self, folders: Sequence[str], prepared: dict[str, Prepared], change: Change = BY_HAND) -> None:
        found = [self._scanner.folder_of((INSTALLED_ROOT, folder)) for folder in folders]
        await self._scanner.settle(found, prepared=prepared, change=change)

    async def _shadow_warnings(self, names: Sequence[str]) -> list[str]:
        labels = self._scanner.labels()
        return [
            f"{row.name} now shadows the skill of the same name in {labels.get(row.root, row.root)}"
            for row in await self._catalog.named(names)
            if row.state == "shadowed"
        ]


def _free_name(plugin: PackagedPlugin, records: Mapping[str, PluginRecord], used: Collection[str]) -> str:
    """The plugin's name, numbered until it is free or names a plugin that has one of its skills."""
    skills = [skill.metadata.name for skill in plugin.skills]
    name = plugin.name
    for number in itertools.count(2):
        record = records.get(name)
        if (record is None or any(map(record.name_of, skills))) and (name == plugin.name or name not in used):
            break
        name = f"{plugin.name[: MAX_NAME_CHARACTERS - 6]}-{number}"
    return name


def _candidates(package: Package) -> list[str]:
    """All names that the skills of a package may get."""
    names = [skill.metadata.name for skill in package.skills]
    return names + [
        qualified_name(plugin.name, skill.metadata.name) for plugin in package.plugins for skill in plugin.skills
    ]


def _renamed(staged: Sequence[StagedSkill], names: Sequence[str]) -> list[StagedSkill]:
    return [one.renamed(name) for one, name in zip(staged, names, strict=True)]


def _document(staged: StagedSkill) -> IndexDocument:
    metadata = staged.skill.metadata
    return IndexDocument(metadata=metadata, derived_tags=derived_tags_of(metadata), body=staged.skill.body)


def _content(staged: StagedSkill) -> Content:
    return Content(
        name=staged.name,
        description=staged.skill.metadata.description,
        content_hash=staged.skill.content_hash,
        folder=staged.path,
        files=scan_folder(staged.path).files,
    )


def _warnings(names: Sequence[str], admissions: Sequence[Admission]) -> list[str]:
    """The warnings of all skills, prefixed with the skill's name if there are several."""
    return [
        warning if len(names) == 1 else f"{name}: {warning}"
        for name, admission in zip(names, admissions, strict=True)
        for warning in admission.warnings
    ]


def _kind(package: Package) -> str:
    if package.skill:
        return "Skill"
    return "Plugin" if len(package.plugins) == 1 else f"{len(package.plugins)} plugins"


def _removed(
    kind: Literal["skill", "plugin"],
    name: str,
    rows: Sequence[Row],
    plugin: PluginRecord | None,
    packages: _Packages | None = None,
) -> Removed:
    known = {row.name: row for row in rows if row.root == INSTALLED_ROOT}
    names = [name] if kind == "skill" or plugin is None else plugin.skills
    return Removed(
        kind=kind,
        name=name,
        skills=tuple(
            RemovedSkill(
                name=one,
                description=known[one].description if one in known else "",
                enabled=known[one].enabled if one in known else True,
                packages=(packages or {}).get(one, ()),
            )
            for one in names
        ),
        removed_at=now_ms(),
        plugin=plugin,
    )


def _own_origin(origin: Origin | None, skill: PackagedSkill) -> Origin | None:
    """The origin of one skill of a plugin, so that it can be updated alone if it leaves the plugin."""
    source = parse_source(origin.source) if origin and origin.kind == "git" else None
    if origin is None or source is None:
        return origin
    path = "/".join([*filter(None, [origin.path]), *skill.root[1:]])  # the first is the folder that was fetched
    return origin.model_copy(update={"path": path or None, "source": source.at(path) if path else origin.source})


@contextmanager
def _full_disk_means_delete() -> Iterator[None]:
    """Go on after the block if the disk is too full for an entry of the trash: a removal must free space."""
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise


def _name_taken(name: str, kind: str = "skill") -> SkillError:
    return SkillError(
        f"A {kind} named {name} is installed, so the removed one was not restored. Uninstall the {kind} first, and "
        "restore the older one by its id, which `apex skills restore` lists.",
        skill=name if kind == "skill" else None,
        code="NAME_TAKEN",
    )
