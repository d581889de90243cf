"""The skills on disk and their catalog: which skills there are, and where their folders are."""

import asyncio
import os
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path

from apexbridge._tasks import in_thread, run_to_completion
from apexbridge._text import near_names
from apexbridge._time import from_ms
from apexbridge.errors import SkillNotFoundError, SkillReadOnlyError
from apexbridge.skills.config import IntakeSettings, SkillManagerConfig, VersionLimits
from apexbridge.skills.models import OriginItem, PluginSummary
from apexbridge.skills.store.catalog import Catalog, Row
from apexbridge.skills.store.indexer import SkillIndex
from apexbridge.skills.store.installer import Installer
from apexbridge.skills.store.intake import Intake
from apexbridge.skills.store.library import Library, read_origin
from apexbridge.skills.store.locks import Gate, NameLocks
from apexbridge.skills.store.names import folder_of_name
from apexbridge.skills.store.roots import INSTALLED_ROOT, SkillRoot
from apexbridge.skills.store.scanner import Listener, Scanner
from apexbridge.skills.store.signers import SIGNERS_FILE, SignerStore
from apexbridge.storage.directory import storage_faults


class SkillStore:
    """Library, scanner and installer for the configured roots, which can change at run time."""

    def __init__(
        self,
        data_dir: Path,
        config: SkillManagerConfig,
        *,
        catalog: Catalog,
        index: SkillIndex,
        listener: Listener,
        require_entry_script: bool,
        versions: VersionLimits | None = None,
        intake: Intake | None = None,
    ) -> None:
        self.catalog = catalog
        self.locks = NameLocks()
        """Held by name while a skill changes."""
        self.commits = NameLocks()
        """Held during a commit, and by readers that must see a single version."""
        self.gate = Gate()
        """Closed while the roots change."""
        self.roots_changed = asyncio.Event()
        """Set when the roots change, and then replaced by a new event: waiters must read it again."""
        self._data_dir = data_dir
        self._index = index
        self._listener = listener
        self._require_entry_script = require_entry_script
        self._version_limits = versions
        self.intake = intake or Intake(SignerStore(data_dir / SIGNERS_FILE), IntakeSettings())
        self._use(config)

    def _use(self, config: SkillManagerConfig) -> None:
        self.config = config
        self.library = Library(self._data_dir, config.skills_path, self._version_limits, signer_of=self._signer_of)
        roots = [SkillRoot(id=str(path), path=path) for path in config.custom_paths]
        self.scanner = Scanner(
            catalog=self.catalog,
            library=self.library,
            index=self._index,
            locks=self.locks,
            listener=self._listener,
            roots=[*roots, SkillRoot(id=INSTALLED_ROOT, path=config.skills_path)],
            require_entry_script=self._require_entry_script,
        )
        self.installer = Installer(
            library=self.library,
            catalog=self.catalog,
            scanner=self.scanner,
            index=self._index,
            locks=self.locks,
            commits=self.commits,
            intake=self.intake,
            require_entry_script=self._require_entry_script,
        )

    def _signer_of(self, folder: Path, name: str) -> str | None:
        signature = self.intake.signature_of(folder, name)
        return signature.signer if signature.state == "valid" else None

    async def recover(self) -> None:
        """Complete changes that a crash interrupted and remove leftovers. No other change may run meanwhile."""
        await in_thread(self.library.prepare)
        for root in self.scanner.roots:
            if not root.is_installed and root.path.is_dir() and root.is_writable(root.path):
                await in_thread(self.library.clear_trash_of, root.path)

    async def move(self, config: SkillManagerConfig) -> None:
        """Switch to other roots. If that fails, switch back.

        Raises:
            ServerError: BUSY, a run or an install is active.
        """
        async with self.gate.closed():
            before = self.config, self.library, self.scanner, self.installer
            with storage_faults():
                try:
                    await in_thread(self._use, config)
                    await self.recover()
                    await self.scanner.reconcile()
                except BaseException:
                    self.config, self.library, self.scanner, self.installer = before
                    with suppress(Exception):  # drop records of the new roots again
                        await run_to_completion(self.scanner.reconcile())
                    raise
        self.roots_changed.set()
        self.roots_changed = asyncio.Event()

    async def live(self, name: str, code: str | None = None) -> Row:
        """The skill with this name. Raises SkillNotFoundError: there is none."""
        row = await self.catalog.live(name)
        if row is None:
            raise await self.not_found(name, code=code)
        return row

    async def not_found(self, name: str, *, code: str | None = None) -> SkillNotFoundError:
        """The error for a name that is not installed, with similar names."""
        near = await in_thread(near_names, name, await self.catalog.live_names())
        return SkillNotFoundError(name, code=code, near=near)

    @asynccontextmanager
    async def reading(self, name: str) -> AsyncIterator[Row]:
        """Lock a skill against replacement while the block reads it, so that no response mixes two versions.

        This waits only for a commit, which is short, not for the whole install.

        Raises:
            SkillNotFoundError: the skill does not exist, or its folder was just removed by hand.
        """
        async with self.commits.hold(name):
            row = await self.live(name)
            try:
                yield row
            except FileNotFoundError as error:
                raise SkillNotFoundError(name) from error

    @asynccontextmanager
    async def unchanged(self) -> AsyncIterator[None]:
        """No change of a skill is committed or settled during the block: folders and catalog agree."""
        async with self.commits.hold_all(), self.scanner.paused():
            yield

    def folder(self, row: Row) -> Path:
        return self.scanner.folder_of(row.key).path

    def writable_folder(self, row: Row) -> Path:
        """The folder of a skill that can be changed. Raises SkillReadOnlyError: it is in a read-only root."""
        found = self.scanner.folder_of(row.key)
        if not found.root.is_writable(found.path):
            raise SkillReadOnlyError(
                f"{row.name} is in {found.root.label}, which is read-only; install a copy to change it.",
                skill=row.name,
            )
        return found.path

    def plugins(self) -> list[PluginSummary]:
        """Installed plugins with their skills."""
        library = self.library
        found = [
            PluginSummary(
                name=record.name,
                version=record.version,
                description=record.description,
                installed_at=from_ms(record.installed_at),
                origin=record.origin,
                skills=[skill for skill in record.skills if os.path.lexists(library.skills / folder_of_name(skill))],
            )
            for record in library.plugins.all()
        ]
        return [plugin for plugin in found if plugin.skills]  # all its folders may have been removed by hand

    def origins(self, rows: Sequence[Row]) -> list[OriginItem]:
        """Plugins and skills that were fetched from a source, sorted by name. `rows` are the installed skills."""
        plugins = [
            OriginItem(name=plugin.name, kind="plugin", origin=plugin.origin)
            for plugin in self.plugins()
            if plugin.origin
        ]
        names = {plugin.name for plugin in plugins}
        skills = [
            OriginItem(name=row.name, kind="skill", origin=origin)
            for row in rows
            if row.plugin not in names and (origin := read_origin(self.folder(row)))
        ]
        return sorted([*plugins, *skills], key=lambda item: item.name)
