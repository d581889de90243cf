"""SkillManager: the skill lifecycle, used by the CLI, the HTTP API and Python callers."""

import asyncio
import functools
import os
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path
from typing import IO, Any, BinaryIO, Literal, TypeVar

from apexbridge._fs import replace_file
from apexbridge._safe_open import open_file_beneath
from apexbridge._tasks import in_thread, run_to_completion
from apexbridge._time import from_ms
from apexbridge.disk import Disk
from apexbridge.errors import InvalidInputError, SkillError, SkillNotFoundError, SkillParseError
from apexbridge.sandbox.layers import LayerStore
from apexbridge.sandbox.models import ExecutionResult
from apexbridge.skills.config import SkillManagerConfig, SkillsSettings
from apexbridge.skills.models import (
    NAME_PATTERN,
    CallStatistics,
    DirectSkillResult,
    GrowthPoint,
    InstallReceipt,
    Mode,
    PluginSummary,
    Problem,
    Profile,
    Receipt,
    ScanReport,
    SkillDetail,
    SkillFile,
    SkillPage,
    SkillStatistics,
    ValidationReport,
)
from apexbridge.skills.package.entry_names import is_text
from apexbridge.skills.package.fingerprint import scan_folder
from apexbridge.skills.package.frontmatter import checked_description, parse_leniently, with_description
from apexbridge.skills.package.packing import packed
from apexbridge.skills.package.skill import runnable_scripts
from apexbridge.skills.package.sources import SkillSource, default_profile_of, open_source
from apexbridge.skills.package.validation import open_package, validate_package
from apexbridge.skills.runs.grants import GrantView, SkillGrants
from apexbridge.skills.runs.secrets import SecretStore
from apexbridge.skills.runs.skill_layers import DependencyView, SkillLayers
from apexbridge.skills.runs.skill_runs import SkillCall, SkillRuns
from apexbridge.skills.runs.tracker import RunTracker
from apexbridge.skills.store.catalog import INSTALLED_ROOT, Catalog, Row, derived_tags_of
from apexbridge.skills.store.indexer import IndexDocument, Progress, SkillIndex
from apexbridge.skills.store.roots import SkillRoot
from apexbridge.skills.store.scanner import Prepared
from apexbridge.skills.store.skill_store import SkillStore
from apexbridge.skills.tool_factory import SkillToolFactory, SkillTools
from apexbridge.storage.call_statistics import CallStatisticsStore
from apexbridge.storage.database import Database
from apexbridge.storage.directory import storage_faults
from apexbridge.storage.grant_store import GrantStore
from apexbridge.tools.approvals import Approvals
from apexbridge.tools.naming import skill_tool_id
from apexbridge.tools.registry import ToolRegistry
from apexbridge.tools.tool import Tool

DEFAULT_PAGE_SIZE = 50
T = TypeVar("T")


class SkillManager:
    """Installs, lists, shows, edits, reloads, counts, runs and uninstalls skills."""

    def __init__(
        self,
        *,
        data_dir: Path,
        database: Database,
        catalog: Catalog,
        index: SkillIndex,
        tools: ToolRegistry,
        approvals: Approvals,
        tracker: RunTracker | None,
        disk: Disk,
        settings: SkillsSettings | None = None,
    ) -> None:
        settings = settings or SkillsSettings()
        self.tools = tools
        self.approvals = approvals
        self.grants = SkillGrants(GrantStore(database), SecretStore(data_dir / "secrets.json"), data_dir=data_dir)
        self.layers = SkillLayers(LayerStore(data_dir / "layers"))
        self._settings = settings
        self._disk = disk
        self._catalog = catalog
        self._index = index
        self._statistics = CallStatisticsStore(database)
        self._skill_tools = SkillTools(tools, SkillToolFactory(self._call), catalog)
        config = SkillManagerConfig(
            skills_path=data_dir / "skills",
            custom_paths=settings.roots,
            default_mode=settings.default_mode,
            sandbox_timeout=settings.sandbox_timeout_ms,
            enable_direct_mode=settings.enable_direct_mode,
        )
        self.store = SkillStore(
            data_dir,
            config,
            catalog=catalog,
            index=index,
            listener=self._skill_tools,
            require_entry_script=settings.require_entry_script,
        )
        self.runner = SkillRuns(
            self.store,
            tools.executor,
            tracker=tracker,
            grants=self.grants,
            layers=self.layers,
            statistics=self._statistics,
            max_timeout_ms=settings.max_sandbox_timeout_ms,
        )

    # -------------------------------------------------------------------------------------- startup and scanning
    async def initialize(self, progress: Progress | None = None, *, index: bool = True) -> ScanReport:
        """Recover from a crash, scan the disk, and register every skill as a tool.

        Without `index`, skills that are not indexed yet are left for `reconcile`.
        """
        with storage_faults():
            await self.store.recover()
            report = await self.store.scanner.reconcile(None if index else progress)
            if index:
                report = _with_indexed(report, await self.store.scanner.indexer.sync(progress))
        await self.register_all_skill_tools()
        return report

    async def reconcile(self, progress: Progress | None = None) -> ScanReport:
        """Scan every root again, and index skills that are not indexed yet."""
        with storage_faults():
            async with self.store.scanner.indexer.exclusive() as sync:
                async with self.store.gate.working():
                    report = await self.store.scanner.reconcile()
                return _with_indexed(report, await sync(progress))

    async def index_in_background(self) -> None:
        """Embed new and changed skills until cancelled."""
        while True:
            moved = self.store.roots_changed
            indexing = asyncio.ensure_future(self.store.scanner.indexer.run())
            try:
                await moved.wait()
            finally:
                indexing.cancel()
                with suppress(asyncio.CancelledError):
                    await run_to_completion(indexing)

    async def refresh(self, targets: Collection[tuple[SkillRoot, str | None]]) -> None:
        """Scan a folder of the installed root again, or (None) a whole root."""
        async with self.store.gate.working():
            await self.store.scanner.refresh(targets)

    async def retry(self) -> None:
        """Record changes that could not be recorded before because the disk was full."""
        async with self.store.gate.working():
            await self.store.scanner.retry()

    @property
    def staging(self) -> Path:
        """A folder for uploads before they are installed; cleared at every start."""
        return self.store.library.staging

    @property
    def roots(self) -> list[SkillRoot]:
        """The skill roots; the installed root is last."""
        return self.store.scanner.roots

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
        with ExitStack() as stack, storage_faults():
            file, package = await self._read_package(stack, open_package, source, profile, filename)
            async with self.store.gate.working():
                receipt = await run_to_completion(self.store.installer.install(file, package, overwrite=overwrite))
        return receipt.model_copy(update={"duration": round((time.monotonic() - begun) * 1000)})

    async def validate_skill(
        self, source: SkillSource, *, profile: Profile | None = None, filename: str | None = None
    ) -> ValidationReport:
        """Check whether a package could be installed. Writes nothing."""
        with ExitStack() as stack:
            _, report = await self._read_package(stack, validate_package, source, profile, filename)
            return report

    async def _read_package(
        self,
        stack: ExitStack,
        read: Callable[..., T],
        source: SkillSource,
        profile: Profile | None,
        filename: str | None,
    ) -> tuple[BinaryIO, T]:
        profile = profile or default_profile_of(source, self._settings.default_profile)

        def read_in_thread() -> tuple[BinaryIO, T]:
            file, own_name = stack.enter_context(open_source(source))
            result = read(
                file,
                filename=filename or own_name,
                profile=profile,
                require_entry_script=self._settings.require_entry_script,
            )
            return file, result

        return await in_thread(read_in_thread)

    async def uninstall_skill(self, name: str) -> Receipt:
        """Remove a skill with its grants and approvals. Its call history is kept."""
        async with self.store.gate.working(), self.store.locks.hold(name):
            row = await self._catalog.live(name)
            if row is None:  # an installed folder that is no longer a valid skill can still be uninstalled
                rows = await self._catalog.named([name])
                row = next((row for row in rows if row.root == INSTALLED_ROOT and row.state == "broken"), None)
            if row is None:
                raise SkillNotFoundError(name)
            folder = self.store.writable_folder(row)
            with storage_faults():
                await run_to_completion(self.store.installer.uninstall(name, folder))
                await self._forget(name)
        return Receipt(name=name, message="Skill uninstalled successfully")

    async def list_plugins(self) -> list[PluginSummary]:
        """Installed plugins with their skills."""
        return await in_thread(self._plugins)

    def _plugins(self) -> list[PluginSummary]:
        library = self.store.library
        found = [
            PluginSummary(
                name=record.name,
                version=record.version,
                description=record.description,
                installed_at=from_ms(record.installed_at),
                skills=[skill for skill in record.skills if os.path.lexists(library.skills / skill)],
            )
            for record in library.plugins.all()
        ]
        return [plugin for plugin in found if plugin.skills]  # all its folders may have been removed by hand

    async def uninstall_plugin(self, name: str) -> Receipt:
        """Remove a plugin with all its skills."""
        with storage_faults():
            async with self.store.gate.working():
                members = next((plugin.skills for plugin in await self.list_plugins() if plugin.name == name), [])
                await run_to_completion(self.store.installer.uninstall_plugin(name))
                for member in members:
                    await self._forget(member)
        return Receipt(name=name, message="Plugin uninstalled successfully")

    async def _forget(self, name: str) -> None:
        """Delete the grants and approvals of a removed skill."""
        await self.grants.forget(name)
        await self.approvals.forget(skill_tool_id(name))

    # -------------------------------------------------------------------------------------------- edit, reload
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
        async with self.store.gate.working(), self.store.locks.hold(name):
            row = await self.store.live(name)
            path = self.store.writable_folder(row) / row.filename
            metadata = replace(row.metadata, description=text)
            document = IndexDocument(metadata=metadata, derived_tags=derived_tags_of(metadata), summary=row.summary)
            (vector,) = await self._index.embed([document])
            with storage_faults():
                await self._catalog.prove_writable()
                async with self.store.reading(name):
                    edited = await in_thread(with_description, path, text, skill=name)
                    await in_thread(self._write_skill_file, path, edited)
                    folder = self.store.scanner.folder_of(row.key)
                    await self.store.scanner.settle([folder], prepared={name: Prepared(vector=vector)})

    def _write_skill_file(self, path: Path, data: bytes) -> None:
        beside = self.store.library.draft_folder(path)
        replace_file(path, data, beside=beside, mode=path.stat().st_mode & 0o777, durable=True)

    async def reload_skill(self, name: str) -> SkillDetail:
        """Read a skill from disk again and update its tool.

        Raises:
            SkillParseError: its folder exists but no longer contains a valid skill.
            SkillNotFoundError: there is no such folder.
        """
        scanner = self.store.scanner
        async with self.store.gate.working(), self.store.locks.hold(name):
            keys = {row.key for row in await self._catalog.named([name])}
            if NAME_PATTERN.match(name):  # the folder may not be cataloged yet; other names could be paths
                keys.add((INSTALLED_ROOT, name))
            with storage_faults():
                await scanner.settle([scanner.folder_of(key) for key in sorted(keys)])
            rows = await self._catalog.named([name])
            live = next((row for row in rows if row.state == "live"), None)
            if live is not None:
                self._skill_tools.register(live)
        await scanner.indexer.sync(names=[name])
        if live is None:
            if broken := next((row for row in rows if row.state == "broken"), None):
                raise SkillParseError(f"{name} cannot be loaded: {broken.reason}", skill=name)
            raise SkillNotFoundError(name)
        return await self.get_skill(name)

    async def set_enabled(self, name: str, enabled: bool) -> SkillDetail:
        """Enable or disable a skill. A disabled skill is listed but not run."""
        async with self.store.gate.working(), self.store.locks.hold(name):
            await self.store.live(name)
            with storage_faults():
                await self._catalog.set_enabled(name, enabled)
            self._skill_tools.register(await self.store.live(name))
        return await self.get_skill(name)

    # ------------------------------------------------------------------------------------------- lists and details
    async def list_skills(
        self,
        *,
        name: str | None = None,
        tags: Collection[str] = (),
        page: int | None = None,
        limit: int | None = None,
    ) -> SkillPage:
        """Skills sorted by name; filtered by a substring of the name (case-insensitive) and by tags (any of them)."""
        if page is not None and limit is None:
            limit = DEFAULT_PAGE_SIZE
        if (page is not None and page < 1) or (limit is not None and limit < 1):
            raise InvalidInputError("page and limit count from 1")
        offset = ((page or 1) - 1) * (limit or 0)
        rows, total = await self._catalog.page(name_part=name, tags=tags, offset=offset, limit=limit)
        labels, mode = self.store.scanner.labels(), self._catalog.default_mode
        skills = [row.to_summary(mode, labels.get(row.root, "")) for row in rows]
        return SkillPage.model_construct(skills=skills, total=total, page=page or 1, limit=limit)

    async def get_skill(self, name: str) -> SkillDetail:
        """Everything about one skill.

        Raises:
            SkillNotFoundError: no skill has that name.
        """
        async with self.store.reading(name) as row:
            granted = await self.grants.granted(row)
            return await in_thread(self._detail, row, granted)

    def _detail(self, row: Row, granted: list[str]) -> SkillDetail:
        """Combine the row with the instructions and files that are on disk now."""
        found = self.store.scanner.folder_of(row.key)
        files = scan_folder(found.path).files
        markdown = (found.path / row.filename).read_bytes().decode("utf-8", "replace")
        metadata = row.metadata
        return SkillDetail(
            **row.to_summary(self._catalog.default_mode, found.root.label).model_dump(by_alias=False),
            entry=row.entry,
            content=parse_leniently(markdown).body,
            summary=row.summary,
            filename=row.filename,
            source_path=f"{row.folder}/{row.filename}",
            files=[SkillFile(path=file.path, size=file.size) for file in files if is_text(file.path)],
            scripts=runnable_scripts(file.path for file in files),
            content_hash=row.content_hash,
            size=row.size,
            warnings=row.warnings,
            parameters=row.parameters,
            script_parameters={path: arguments.schema() for path, arguments in row.arguments.items()},
            permissions=list(metadata.permissions),
            grants=granted,
            allowed_tools=list(metadata.allowed_tools),
            timeout=metadata.timeout_ms,
            confirm=metadata.confirm,
            license=metadata.license,
            compatibility=metadata.compatibility,
            disable_model_invocation=metadata.disable_model_invocation,
            metadata=metadata.metadata,
            read_only=not found.root.is_writable(found.path),
        )

    async def open_skill_file(self, name: str, path: str) -> BinaryIO:
        """Open a bundled file for reading.

        Raises:
            SkillError: FILE_NOT_FOUND; also for anything that is not a regular file inside the skill's folder.
        """
        async with self.store.reading(name) as row:
            try:
                return await in_thread(open_file_beneath, self.store.folder(row), path)
            except (OSError, ValueError) as error:
                raise SkillError(f"{name} has no file {path}", code="FILE_NOT_FOUND", skill=name) from error

    async def export_skill(self, name: str, *, caller: str = "") -> IO[bytes]:
        """The skill as a ZIP, in an unnamed file positioned at its start.

        The file counts against the caller's quota until it is closed.

        Raises:
            ServerError: STORAGE_FULL.
        """
        async with self.store.reading(name) as row:
            pack = functools.partial(packed, staging=self.staging, disk=self._disk, caller=caller)
            return await in_thread(pack, self.store.folder(row), name)

    async def problems(self) -> list[Problem]:
        """Folders that are not available as skills: broken, shadowed or missing, each with the reason."""
        found = await self._catalog.problems(self.store.scanner.labels())
        missing = await in_thread(lambda: [root for root in self.roots if not root.path.is_dir()])
        return found + [
            Problem(
                name=root.label, source=root.label, source_path="", kind="broken", reason="the folder does not exist"
            )
            for root in missing
        ]

    # ---------------------------------------------------------------------------------------------- statistics
    async def statistics(self) -> SkillStatistics:
        """Totals of the library: skills by tag and mode, calls, unused skills."""
        return await self._catalog.statistics()

    async def skill_statistics(self, name: str) -> CallStatistics:
        """Call count, success rate and average duration of one skill."""
        await self.store.live(name)
        counts = await self._statistics.of(name)
        return CallStatistics(
            tool_name=name,
            call_count=counts.calls,
            success_count=counts.successes,
            average_duration=counts.average_ms,
            success_rate=counts.success_rate,
        )

    async def growth(self, by: Literal["day", "week"] = "day") -> list[GrowthPoint]:
        """Number of first installs by day or week."""
        return await self._catalog.growth(by)

    # -------------------------------------------------------------------------------------------------- running
    async def execute_skill(
        self,
        name: str,
        input: Mapping[str, Any] | None = None,
        mode: Mode | None = None,
        *,
        script: str | None = None,
        args: Sequence[str] = (),
        files: Sequence[str] = (),
        timeout: int | None = None,
        approval: str | None = None,
    ) -> ExecutionResult | DirectSkillResult:
        """Run a skill in the sandbox, or return its instructions in direct mode. Raises as `SkillRuns.call` does."""
        return await self.runner.result(
            SkillCall(
                skill=name,
                input=input or {},
                mode=mode,
                script=script,
                args=args,
                files=files,
                timeout=timeout,
                approval=approval,
            )
        )

    async def execute_skill_direct(self, name: str, input: Mapping[str, Any] | None = None) -> DirectSkillResult:
        """A skill's instructions, regardless of its mode."""
        return await self.runner.render(name, input or {})

    async def _call(self, call: SkillCall) -> ExecutionResult | DirectSkillResult:
        return await self.runner.result(call)  # the tools exist before the runner, which needs their registry

    # ---------------------------------------------------------------------------------- grants and dependencies
    async def grant(self, name: str, permission: str) -> GrantView:
        """Grant a requested permission to a skill. The grant is void once the skill's content changes."""
        row = await self.store.live(name)
        return await self.grants.grant(row, self.store.folder(row), permission)

    async def revoke(self, name: str, permission: str) -> None:
        """Revoke a granted permission."""
        await self.grants.revoke(await self.store.live(name), permission)

    async def grants_of(self, name: str) -> list[GrantView]:
        """The requested and granted permissions of a skill."""
        return await self.grants.views(await self.store.live(name))

    async def dependencies_of(self, name: str) -> DependencyView:
        """The declared dependencies of a skill, and whether they are installed."""
        row = await self.store.live(name)
        return await self.layers.view(row, self.store.folder(row))

    async def install_dependencies(self, name: str, progress: Callable[[str], None] | None = None) -> DependencyView:
        """Install the declared dependencies of a skill. Runs never install anything."""
        row = await self.store.live(name)
        return await self.layers.install(row, self.store.folder(row), progress)

    # ---------------------------------------------------------------------------------------------------- tools
    async def register_skill_tool(self, name: str) -> Tool:
        """Register a skill as the tool `skill:{name}`; returns the tool."""
        return self._skill_tools.register(await self.store.live(name))

    async def register_all_skill_tools(self) -> None:
        """Register every live skill as a tool. Tools of disabled skills are disabled too."""
        for row in await self._catalog.all_live():
            self._skill_tools.register(row)

    def unregister_skill_tool(self, name: str) -> bool:
        """Unregister a skill's tool; False if it was not registered."""
        return self.tools.unregister(skill_tool_id(name))

    # --------------------------------------------------------------------------------------------------- config
    def get_config(self) -> SkillManagerConfig:
        """The configuration that can be changed at runtime."""
        return self.store.config

    async def update_config(self, changes: Mapping[str, Any]) -> SkillManagerConfig:
        """Change some fields of the configuration. If one value is invalid, nothing changes.

        Raises:
            InvalidInputError: a field is unknown or a value is invalid.
            ServerError: BUSY, a path cannot change while a run or an install is active.
        """
        before, cap = self.store.config, self._settings.max_sandbox_timeout_ms
        config = await in_thread(before.changed, changes, max_timeout=cap)
        if config.paths == before.paths:
            self.store.config = config
        else:
            await self.store.move(config)
        if config.default_mode != before.default_mode:
            self._catalog.default_mode = config.default_mode
            for row in await self._catalog.all_live():
                async with self.store.locks.hold(row.name):  # do not register a skill that was removed meanwhile
                    if live := await self._catalog.live(row.name):
                        self._skill_tools.register(live)
        return config


def _with_indexed(report: ScanReport, indexed: int) -> ScanReport:
    """Count skills that were embedded after the scan as indexed, not as skipped."""
    return report.model_copy(update={"indexed": report.indexed + indexed, "skipped": report.skipped - indexed})
