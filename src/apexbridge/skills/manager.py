"""SkillManager: the skill lifecycle, used by the CLI, the HTTP API and Python callers."""

import time
from collections.abc import Collection, Mapping
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread

from apexbridge._tasks import run_to_completion
from apexbridge.disk import Disk
from apexbridge.errors import (
    SkillNotFoundError,
    SkillParseError,
    SkillReadOnlyError,
)
from apexbridge.sandbox.layers import LayerStore
from apexbridge.skills.catalog import INSTALLED_ROOT, Catalog, Row, derived_tags_of
from apexbridge.skills.config import SkillManagerConfig, SkillsSettings
from apexbridge.skills.editing import checked_description, with_description
from apexbridge.skills.execution import SkillExecution
from apexbridge.skills.files import replace_file
from apexbridge.skills.grants import SkillGrants
from apexbridge.skills.home import SkillHome
from apexbridge.skills.indexer import Progress
from apexbridge.skills.locks import Gate, NameLocks
from apexbridge.skills.models import (
    NAME_PATTERN,
    InstallReceipt,
    Profile,
    Receipt,
    ScanReport,
    SkillDetail,
    ValidationReport,
    effective_mode,
)
from apexbridge.skills.needs import SkillNeeds
from apexbridge.skills.package import open_package, validate_package
from apexbridge.skills.ports import (
    IndexDocument,
    NoIndex,
    NoRunner,
    SkillIndex,
    SkillRunner,
    SkillToolSource,
)
from apexbridge.skills.roots import SkillRoot
from apexbridge.skills.running import SkillRunning
from apexbridge.skills.secrets import SecretStore
from apexbridge.skills.sources import SkillSource, default_profile_of, open_source
from apexbridge.skills.tool_factory import SkillToolFactory
from apexbridge.skills.toolkeeper import ToolKeeper
from apexbridge.storage.approvals import SqliteApprovals
from apexbridge.storage.database import Database
from apexbridge.storage.faults import storage_faults
from apexbridge.storage.grants import GrantStore
from apexbridge.storage.statistics import CallStatisticsStore
from apexbridge.tools.confirmation import Confirmation
from apexbridge.tools.naming import skill_tool_id
from apexbridge.tools.registry import ToolRegistry
from apexbridge.tools.tool import Tool


class SkillManager(SkillRunning):
    """Installs, lists, shows, edits, reloads, counts, runs and uninstalls skills."""

    def __init__(
        self,
        *,
        data_dir: Path,
        database: Database,
        settings: SkillsSettings | None = None,
        index: SkillIndex | None = None,
        tools: ToolRegistry | None = None,
        confirmation: Confirmation | None = None,
        runner: SkillRunner | None = None,
        disk: Disk | None = None,
    ) -> None:
        settings = settings or SkillsSettings()
        self.confirmation = confirmation or Confirmation(SqliteApprovals(database), enabled=settings.confirm_dangerous)
        self.tools = tools or ToolRegistry(confirmation=self.confirmation)
        self._factory = SkillToolFactory(self.call_as_tool)
        self._data_dir = data_dir
        self._disk = disk or Disk(data_dir)
        self._settings = settings
        self._index = index or NoIndex()
        self._keeper = ToolKeeper(self.tools, lambda row: self._factory.create_tool(self._tool_source(row)))
        self._catalog = Catalog(database)
        self._statistics = CallStatisticsStore(database)
        self._locks = NameLocks()
        self._commits = NameLocks()
        self._gate = Gate()
        self._config = SkillManagerConfig(
            skills_path=data_dir / "skills",
            custom_paths=settings.roots,
            default_mode=settings.default_mode,
            sandbox_timeout=settings.sandbox_timeout_ms,
            enable_direct_mode=settings.enable_direct_mode,
        )
        self.grants = SkillGrants(GrantStore(database), SecretStore(data_dir / "secrets.json"), data_dir=data_dir)
        self.needs = SkillNeeds(LayerStore(data_dir / "layers"))
        self._execution = SkillExecution(
            runner=runner or NoRunner(),
            statistics=self._statistics,
            grants=self.grants,
            needs=self.needs,
            settings=settings,
        )
        self.roots_changed = anyio.Event()
        """Set when the skill roots change, and then replaced by a new event: waiters must read it again."""
        self._home = self._home_at(self._config)

    def _home_at(self, config: SkillManagerConfig) -> SkillHome:
        return SkillHome(
            self._data_dir,
            config,
            catalog=self._catalog,
            index=self._index,
            listener=self._keeper,
            locks=self._locks,
            commits=self._commits,
            require_entry_script=self._settings.require_entry_script,
        )

    # -------------------------------------------------------------------------------------- startup and scanning
    async def initialize(self, progress: Progress | None = None, *, index: bool = True) -> ScanReport:
        """Recover from a crash, scan the disk, and register every skill as a tool.

        Without `index`, skills that are not indexed yet are left for `reconcile`.
        """
        with storage_faults():
            await anyio.to_thread.run_sync(self._home.tidy)
            report = await self._scanner.reconcile(None if index else progress)
            if index:
                report = _with_indexed(report, await self._scanner.indexer.catch_up(progress))
        await self.register_all_skill_tools()
        return report

    async def reconcile(self, progress: Progress | None = None) -> ScanReport:
        """Scan every root again, and index skills that are not indexed yet."""
        with storage_faults():
            async with self._scanner.indexer.alone() as catch_up:
                async with self._gate.working():
                    report = await self._scanner.reconcile()
                return _with_indexed(report, await catch_up(progress))

    async def index_in_background(self) -> None:
        """Embed new and changed skills until cancelled."""
        while True:
            moved = self.roots_changed
            async with anyio.create_task_group() as group:
                group.start_soon(self._scanner.indexer.keep_up)
                await moved.wait()
                group.cancel_scope.cancel()

    async def refresh(self, places: Collection[tuple[SkillRoot, str | None]]) -> None:
        """Scan some places again: a folder of the installed root, or (None) a whole root."""
        async with self._gate.working():
            await self._scanner.refresh(places)

    async def retry(self) -> None:
        """Record changes that could not be recorded before because the disk was full."""
        async with self._gate.working():
            await self._scanner.retry()

    @property
    def staging(self) -> Path:
        """A folder for uploads before they are installed; cleared at every start."""
        return self._home.library.staging

    # ---------------------------------------------------------------------------------------- install, uninstall
    async def install_skill(
        self,
        source: SkillSource,
        *,
        overwrite: bool = False,
        profile: Profile | None = None,
        filename: str | None = None,
    ) -> InstallReceipt:
        """Install a skill or a plugin from archive bytes, a `.zip` or `.skill` file, or a folder.

        Raises:
            InvalidArchiveError: the archive breaks the ZIP policy.
            InvalidSkillStructureError: it contains no valid skill; the error lists all reasons.
            SkillAlreadyExistsError: the name is taken and `overwrite` is false.
        """
        begun = time.monotonic()
        profile = profile or default_profile_of(source, self._settings.default_profile)
        with ExitStack() as stack:
            file, own_name = await anyio.to_thread.run_sync(stack.enter_context, open_source(source))
            with storage_faults():
                package = await anyio.to_thread.run_sync(
                    lambda: open_package(
                        file,
                        filename=filename or own_name,
                        profile=profile,
                        require_entry_script=self._settings.require_entry_script,
                    )
                )
                async with self._gate.working():
                    receipt = await run_to_completion(self._home.installer.install(file, package, overwrite=overwrite))
        return receipt.model_copy(update={"duration": round((time.monotonic() - begun) * 1000)})

    async def validate_skill(
        self, source: SkillSource, *, profile: Profile | None = None, filename: str | None = None
    ) -> ValidationReport:
        """Check whether a package could be installed. Writes nothing."""
        profile = profile or default_profile_of(source, self._settings.default_profile)
        with ExitStack() as stack:
            file, own_name = await anyio.to_thread.run_sync(stack.enter_context, open_source(source))
            return await anyio.to_thread.run_sync(
                lambda: validate_package(
                    file,
                    filename=filename or own_name,
                    profile=profile,
                    require_entry_script=self._settings.require_entry_script,
                )
            )

    async def uninstall_skill(self, name: str) -> Receipt:
        """Remove a skill with its grants and approvals. Its call history is kept."""
        async with self._gate.working(), self._locks.hold(name):
            row = await self._catalog.live(name) or await self._broken(name)
            if row is None:
                raise SkillNotFoundError(name)
            folder = self._writable_folder(row)
            with storage_faults():
                await run_to_completion(self._home.installer.uninstall(name, folder))
                await self._forget(name)
        return Receipt(name=name, message="Skill uninstalled successfully")

    # ----------------------------------------------------------------------------------------------------- edit
    async def update_skill_description(self, name: str, description: str | Mapping[str, Any]) -> Receipt:
        """Change the description. A mapping may contain `description` only.

        Raises:
            FieldNotEditableError: the mapping contains another field.
            SkillReadOnlyError: the skill is in a read-only root.
        """
        text = checked_description(description, skill=name)
        await run_to_completion(self._set_description(name, text))
        return Receipt(name=name, message="Description updated")

    async def _set_description(self, name: str, text: str) -> None:
        async with self._gate.working(), self._locks.hold(name):
            row = await self._live(name)
            path = self._writable_folder(row) / row.filename
            metadata = replace(row.metadata, description=text)
            document = IndexDocument(metadata=metadata, derived_tags=derived_tags_of(metadata), summary=row.summary)
            (vector,) = await self._index.embed([document])
            with storage_faults():
                await self._catalog.prove_writable()
                async with self._reading(name):
                    edited = await anyio.to_thread.run_sync(lambda: with_description(path, text, skill=name))
                    await anyio.to_thread.run_sync(self._write_skill_file, path, edited)
                    await self._scanner.settle([self._scanner.folder_of(row.key)], prepared={name: vector})

    async def reload_skill(self, name: str) -> SkillDetail:
        """Read a skill from disk again and update its tool.

        Raises:
            SkillParseError: its folder exists but no longer contains a valid skill.
            SkillNotFoundError: there is no such folder.
        """
        async with self._gate.working(), self._locks.hold(name):
            keys = {row.key for row in await self._catalog.named([name])}
            if NAME_PATTERN.match(name):  # the folder may not be cataloged yet; other names could be paths
                keys.add((INSTALLED_ROOT, name))
            with storage_faults():
                await self._scanner.settle([self._scanner.folder_of(key) for key in sorted(keys)])
            rows = await self._catalog.named([name])
            live = next((row for row in rows if row.state == "live"), None)
            if live is not None:
                self._keeper.skill_is_live(live)
        await self._scanner.indexer.catch_up(names=[name])
        if live is None:
            if broken := next((row for row in rows if row.state == "broken"), None):
                raise SkillParseError(f"{name} cannot be loaded: {broken.reason}", skill=name)
            raise SkillNotFoundError(name)
        return await self.get_skill(name)

    async def set_enabled(self, name: str, enabled: bool) -> SkillDetail:
        """Enable or disable a skill. A disabled skill is listed but not run."""
        async with self._gate.working(), self._locks.hold(name):
            await self._live(name)
            with storage_faults():
                await self._catalog.set_enabled(name, enabled)
            self._keeper.skill_is_live(await self._live(name))
        return await self.get_skill(name)

    # -------------------------------------------------------------------------------------------------- plugins
    async def uninstall_plugin(self, name: str) -> Receipt:
        """Remove a plugin with all its skills."""
        with storage_faults():
            async with self._gate.working():
                members = next((plugin.skills for plugin in await self.list_plugins() if plugin.name == name), [])
                await run_to_completion(self._home.plugins.uninstall(name))
                for member in members:
                    await self._forget(member)
        return Receipt(name=name, message="Plugin uninstalled successfully")

    # ---------------------------------------------------------------------------------------------------- tools
    async def register_skill_tool(self, name: str) -> Tool:
        """Register a skill as the tool `skill:{name}`; returns the tool."""
        return self._keeper.register(await self._live(name))

    async def register_all_skill_tools(self) -> None:
        """Register every live skill as a tool. Tools of disabled skills are disabled too."""
        for row in await self._catalog.all_live():
            self._keeper.register(row)

    def unregister_skill_tool(self, name: str) -> bool:
        """Unregister a skill's tool; False if it was not registered."""
        return self._keeper.unregister(name)

    def _tool_source(self, row: Row) -> SkillToolSource:
        return SkillToolSource(
            metadata=row.metadata,
            mode=effective_mode(row.declared_mode, row.entry, self._config.default_mode),
            entry=row.entry,
            content_hash=row.content_hash,
            schema=row.parameters,
        )

    # --------------------------------------------------------------------------------------------------- config
    async def update_config(self, changes: Mapping[str, Any]) -> SkillManagerConfig:
        """Change some fields of the configuration. If one value is invalid, nothing changes.

        Raises:
            InvalidInputError: a field is unknown or a value is invalid.
            ServerError: BUSY, a path cannot change while a run or an install is active.
        """
        before, cap = self._config, self._settings.max_sandbox_timeout_ms
        wanted = await anyio.to_thread.run_sync(lambda: before.changed(changes, max_timeout=cap))
        if wanted.paths == before.paths:
            self._config = wanted
        else:
            async with self._gate.closed():
                await self._move(wanted)
        if wanted.default_mode != before.default_mode:
            for row in await self._catalog.all_live():
                async with self._locks.hold(row.name):  # do not register a skill that was removed meanwhile
                    if live := await self._catalog.live(row.name):
                        self._keeper.register(live)
        return wanted

    async def _move(self, wanted: SkillManagerConfig) -> None:
        """Switch to other roots. If that fails, switch back."""
        before = self._config, self._home
        with storage_faults():
            home = await anyio.to_thread.run_sync(self._home_at, wanted)
            await anyio.to_thread.run_sync(home.tidy)
            self._config, self._home = wanted, home
            try:
                await home.scanner.reconcile()
            except BaseException:
                self._config, self._home = before
                with suppress(Exception):  # drop records of the new roots again
                    await run_to_completion(self._home.scanner.reconcile())
                raise
        self.roots_changed.set()
        self.roots_changed = anyio.Event()

    # -------------------------------------------------------------------------------------------------- details
    async def _broken(self, name: str) -> Row | None:
        """An installed folder that is no longer a valid skill. It can still be uninstalled."""
        rows = await self._catalog.named([name])
        return next((row for row in rows if row.root == INSTALLED_ROOT and row.state == "broken"), None)

    async def _forget(self, name: str) -> None:
        """Delete the grants and approvals of a removed skill."""
        await self.grants.forget(name)
        await self.confirmation.forget(skill_tool_id(name))

    def _writable_folder(self, row: Row) -> Path:
        found = self._scanner.folder_of(row.key)
        if not found.root.is_writable(found.path):
            raise SkillReadOnlyError(
                f"{row.name} lives in {found.root.label}, which is read-only; install a copy to change it.",
                skill=row.name,
            )
        return found.path

    def _write_skill_file(self, path: Path, data: bytes) -> None:
        beside = self._home.library.place_beside(path)
        replace_file(path, data, beside=beside, mode=path.stat().st_mode & 0o777, durable=True)


def _with_indexed(report: ScanReport, indexed: int) -> ScanReport:
    """Count skills that were embedded after the scan as indexed, not as skipped."""
    return report.model_copy(update={"indexed": report.indexed + indexed, "skipped": report.skipped - indexed})
