"""Installs checked packages: stage, embed, commit, settle."""

import os
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from apexbridge._tasks import in_thread
from apexbridge._time import now_ms
from apexbridge.errors import RequestError, SkillAlreadyExistsError, SkillNotFoundError
from apexbridge.skills.models import InstallReceipt
from apexbridge.skills.package.validation import Package, PluginManifest
from apexbridge.skills.store.catalog import INSTALLED_ROOT, Catalog, Row, derived_tags_of
from apexbridge.skills.store.indexer import IndexDocument, SkillIndex
from apexbridge.skills.store.library import Library, StagedSkill
from apexbridge.skills.store.locks import NameLocks
from apexbridge.skills.store.plugins import PluginRecord
from apexbridge.skills.store.scanner import Prepared, Scanner


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
    ) -> None:
        self._library = library
        self._catalog = catalog
        self._scanner = scanner
        self._index = index
        self._locks = locks
        self._commits = commits

    async def install(self, file: BinaryIO, package: Package, *, overwrite: bool) -> InstallReceipt:
        """Install every skill of the package, or none.

        Raises:
            SkillAlreadyExistsError: one of them is installed and `overwrite` is false.
        """
        names = [skill.metadata.name for skill in package.skills]
        if not overwrite:  # fail early; checked again under the lock
            await self._refuse_existing(names, package.plugin, await self._catalog.named(names))
        stage = self._library.stage_path()
        try:
            staged = await in_thread(self._stage, file, package, stage)
            documents = [
                IndexDocument(
                    metadata=skill.metadata,
                    derived_tags=derived_tags_of(skill.metadata),
                    summary=skill.assessment.summary,
                )
                for skill in package.skills
            ]
            vectors = await self._index.embed(documents)
            prepared = {
                one.name: Prepared(vector=vector, skill=one.skill, signature=one.signature)
                for one, vector in zip(staged, vectors, strict=True)
            }
            async with self._holding(names, package.plugin.name if package.plugin else None) as members:
                known = await self._catalog.named(names)
                if not overwrite:
                    await self._refuse_existing(names, package.plugin, known)
                superseded = [name for name in members if name not in names]
                # Manually added folders of the installed root that hold one of these skills under another folder name.
                elsewhere = [row.folder for row in known if row.root == INSTALLED_ROOT and row.folder != row.name]
                replaced = bool(elsewhere) or any(self._exists(name) for name in names)
                await self._catalog.prove_writable()
                async with self._commits.hold(*names, *superseded):
                    await in_thread(self._commit, stage, staged, package.plugin, superseded, elsewhere)
                    await self._settle([*names, *superseded, *elsewhere], prepared)
        finally:
            await in_thread(self._library.discard_stage, stage)
        return InstallReceipt(
            name=package.plugin.name if package.plugin else names[0],
            names=names,
            message=f"{'Plugin' if package.plugin else 'Skill'} installed successfully",
            replaced=replaced,
            warnings=package.warnings + await self._shadow_warnings(names),
        )

    async def uninstall(self, name: str, folder: Path) -> None:
        """Remove a skill. The caller holds its name."""
        async with self._commits.hold(name):
            rows = await self._catalog.named([name])
            found = [self._scanner.folder_of(row.key) for row in rows]
            try:
                gone = await in_thread(self._remove, name, folder)
            except FileNotFoundError as error:  # removed by hand a moment ago
                await self._scanner.settle(found)
                raise SkillNotFoundError(name) from error
            # The folder first: on a full disk, removing it frees the space that the record needs.
            await in_thread(self._library.discard, gone)
            await self._scanner.settle(found)

    async def uninstall_plugin(self, name: str) -> None:
        """Remove all skills of a plugin, or none. Raises RequestError: PLUGIN_NOT_FOUND."""
        stage = await in_thread(self._library.make_stage, self._library.stage_path())
        try:
            async with self._holding([], name) as members:
                plugin = await in_thread(self._library.plugins.named, name)
                if plugin is None:
                    raise RequestError(f"Plugin not found: {name}", code="PLUGIN_NOT_FOUND", plugin=name)
                async with self._commits.hold(*members):
                    await in_thread(lambda: self._library.put_plugin(stage, [], plugin.having(()), superseded=members))
                    await self._settle(members, {})
        finally:
            await in_thread(self._library.discard_stage, stage)

    @asynccontextmanager
    async def _holding(self, names: Sequence[str], plugin: str | None) -> AsyncIterator[list[str]]:
        """Lock these names, a plugin and its current skills; yields those skills.

        All locks are taken in one `hold`, so that two installs cannot deadlock. The plugin's skills may change before
        they are locked, so they are read again under the locks.
        """
        while True:
            members = await self._members(plugin)
            async with self._locks.hold(*names, *members, *([f"plugin:{plugin}"] if plugin else [])):
                if await self._members(plugin) == members:
                    yield members
                    return

    async def _members(self, plugin: str | None) -> list[str]:
        if plugin is None:
            return []
        record = await in_thread(self._library.plugins.named, plugin)
        return list(record.skills) if record else []

    def _path(self, name: str) -> Path:
        return self._library.skills / name

    def _exists(self, name: str) -> bool:
        """Whether the folder exists; a dangling link counts."""
        return os.path.lexists(self._path(name))

    async def _refuse_existing(self, names: Sequence[str], plugin: PluginManifest | None, known: Sequence[Row]) -> None:
        """Fail if a name is taken: by its folder, or by a manually added folder of another name with that skill.

        Raises:
            SkillAlreadyExistsError: a name is taken.
        """
        if plugin is not None and await self._members(plugin.name):
            raise SkillAlreadyExistsError(plugin.name, kind="Plugin")
        taken = {row.name for row in known if row.root == INSTALLED_ROOT}
        for name in names:
            if name in taken or self._exists(name):
                raise SkillAlreadyExistsError(name)

    def _stage(self, file: BinaryIO, package: Package, stage: Path) -> list[StagedSkill]:
        self._library.make_stage(stage)
        return [self._library.stage_skill(file, skill, stage) for skill in package.skills]

    def _commit(
        self,
        stage: Path,
        staged: list[StagedSkill],
        plugin: PluginManifest | None,
        superseded: list[str],
        elsewhere: list[str],
    ) -> None:
        names = [skill.name for skill in staged]
        if plugin is None:
            # Before the folder changes: a crash in between loses only the link to the old plugin, never the skill.
            self._library.plugins.drop(names)
            self._library.put(staged[0], self._path(staged[0].name))
        else:
            record = PluginRecord(
                name=plugin.name,
                version=plugin.version,
                description=plugin.description,
                installed_at=now_ms(),
                skills=tuple(sorted(names)),
            )
            self._library.plugins.drop(names, except_plugin=plugin.name)
            self._library.put_plugin(stage, staged, record, superseded=superseded)
        for folder in elsewhere:
            if self._exists(folder):
                self._library.discard(self._library.remove(self._path(folder), self._library.skills))

    def _remove(self, name: str, folder: Path) -> Path:
        installed = folder.parent == self._library.skills
        if installed:
            with suppress(OSError):  # disk full: the record keeps the removed name, which listings filter out
                self._library.plugins.drop([name])
        return self._library.remove(folder, self._library.skills if installed else folder.parent)

    async def _settle(self, names: Sequence[str], prepared: dict[str, Prepared]) -> None:
        await self._scanner.settle(
            [self._scanner.folder_of((INSTALLED_ROOT, name)) for name in names], prepared=prepared
        )

    async def _shadow_warnings(self, names: Sequence[str]) -> list[str]:
        labels = self._scanner.labels()
        return [
            f"{row.name} now shadows the skill of the same name in {labels.get(row.root, row.root)}"
            for row in await self._catalog.named(names)
            if row.state == "shadowed"
        ]
