"""SkillManager: the skill lifecycle, used by the CLI, the HTTP API and Python callers."""

import asyncio
import functools
import logging
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import IO, Any, BinaryIO, Literal, TypeVar

from apexbridge._fs import replace_file
from apexbridge._safe_open import open_file_beneath
from apexbridge._tasks import in_thread, run_to_completion
from apexbridge._time import from_ms
from apexbridge.disk import Disk, size_on_disk
from apexbridge.errors import (
    ApexBridgeError,
    InvalidArchiveError,
    InvalidInputError,
    InvalidSkillStructureError,
    RequestError,
    SkillError,
    SkillNotFoundError,
    SkillParseError,
)
from apexbridge.sandbox.bundles import Bundles
from apexbridge.sandbox.layers import LayerStore
from apexbridge.sandbox.models import ExecutionResult
from apexbridge.skills import SERVED_NAME_PATTERN, SKILL_FILE, Mode, Profile
from apexbridge.skills.config import SkillManagerConfig, SkillsSettings
from apexbridge.skills.fetched_packages import (
    CheckedNote,
    CheckedPackage,
    local_refused,
    origin_of,
    packaged_skill,
    part_of,
)
from apexbridge.skills.lock_file import LOCK_FILE
from apexbridge.skills.models import (
    CallStatistics,
    ContentScan,
    DirectSkillResult,
    GrowthPoint,
    InstallReceipt,
    LeftOut,
    Lock,
    LockedPackage,
    LockReport,
    Origin,
    OriginItem,
    PluginSummary,
    Problem,
    Receipt,
    RemovalReceipt,
    RemovedItem,
    ReplacedSkill,
    ScanReport,
    SkillChange,
    SkillDetail,
    SkillFile,
    SkillHealth,
    SkillPage,
    SkillSort,
    SkillStatistics,
    TagList,
    UpdateReport,
    ValidationReport,
)
from apexbridge.skills.package.entry_names import is_text
from apexbridge.skills.package.fingerprint import scan_folder
from apexbridge.skills.package.frontmatter import checked_description, parse_leniently, with_description
from apexbridge.skills.package.named_files import SHOWN_CHARACTERS, NamedFile, NoSuchNameError, find_file
from apexbridge.skills.package.packing import packed
from apexbridge.skills.package.progress import report_phase
from apexbridge.skills.package.scan.scanner import scan_skill_folder
from apexbridge.skills.package.skill import Needs, runnable_scripts
from apexbridge.skills.package.sources import SkillSource, default_profile_of, default_profile_of_several, open_source
from apexbridge.skills.package.validation import Package, ReadOptions, check_package, open_package, validate_package
from apexbridge.skills.remote.fetcher import Fetched, FetchedSkill, Fetcher
from apexbridge.skills.remote.source_text import RemoteSource, parse_source
from apexbridge.skills.runs.grants import GrantView, SkillGrants
from apexbridge.skills.runs.secrets import SecretStore
from apexbridge.skills.runs.skill_layers import DependencyView, SkillLayers
from apexbridge.skills.runs.skill_runs import SkillCall, SkillRuns
from apexbridge.skills.runs.tracker import RunTracker
from apexbridge.skills.skill_lock import SkillLock
from apexbridge.skills.store.catalog import Catalog, Row, Standing, derived_tags_of
from apexbridge.skills.store.comparison import compare
from apexbridge.skills.store.indexer import IndexDocument, Progress, SkillIndex
from apexbridge.skills.store.intake import Intake
from apexbridge.skills.store.library import read_origin
from apexbridge.skills.store.listing import SkillFilter
from apexbridge.skills.store.names import folder_of_name, own_name
from apexbridge.skills.store.roots import INSTALLED_ROOT, SkillRoot
from apexbridge.skills.store.scanner import Prepared
from apexbridge.skills.store.signers import SIGNERS_FILE, SignerStore
from apexbridge.skills.store.skill_store import SkillStore
from apexbridge.skills.store.skill_versions import SkillVersions
from apexbridge.skills.store.trash import Removed
from apexbridge.skills.store.verification import SkillVerification
from apexbridge.skills.store.versions import Change, Version
from apexbridge.skills.tool_factory import SkillToolFactory, SkillTools
from apexbridge.storage.call_statistics import CallStatisticsStore
from apexbridge.storage.database import Database
from apexbridge.storage.directory import storage_faults
from apexbridge.storage.grant_store import GrantStore
from apexbridge.storage.package_store import PackageStore
from apexbridge.tools.approvals import Approvals
from apexbridge.tools.conversation import Conversation, OpenWorkspace, no_workspaces
from apexbridge.tools.naming import skill_tool_id
from apexbridge.tools.registry import ToolRegistry
from apexbridge.tools.tool import Tool

DEFAULT_PAGE_SIZE = 50
DEFAULT_TAGS = 12
MAX_REASONS = 100
"""Skills of an index that are named as left out."""
SWEEP_SECONDS = 3600
"""How often removed skills are checked for their age."""
SkillNote = Literal["edited", "restored", "indexed", "granted", "packages"]
OnSkillChange = Callable[[SkillNote, Sequence[str]], None]
T = TypeVar("T")
logger = logging.getLogger(__name__)


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
        bundles: Bundles | None = None,
        has_program: Callable[[str], bool] = lambda program: False,
        open_workspace: OpenWorkspace = no_workspaces,
        settings: SkillsSettings | None = None,
        on_change: OnSkillChange = lambda change, names: None,
    ) -> None:
        """`has_program` returns whether runs find a program of the host. `on_change` is called after changes that the
        tool registry does not show.
        """
        settings = settings or SkillsSettings()
        self.tools = tools
        self.approvals = approvals
        self.grants = SkillGrants(GrantStore(database), SecretStore(data_dir / "secrets.json"), data_dir=data_dir)
        layers = LayerStore(data_dir / "layers")
        self.layers = SkillLayers(layers, PackageStore(database), bundles or Bundles(layers), has_program=has_program)
        self._settings = settings
        self._open_workspace = open_workspace
        self._disk = disk
        self._catalog = catalog
        self._index = index
        self._statistics = CallStatisticsStore(database)
        self._on_change = on_change
        self._skill_tools = SkillTools(
            tools, SkillToolFactory(self._call), catalog, lambda names: on_change("indexed", names)
        )
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
            versions=settings.versions,
            intake=Intake(SignerStore(data_dir / SIGNERS_FILE), settings.intake),
        )
        self._fetcher = Fetcher(lambda: self.staging, disk, settings.fetch)
        self._lock = SkillLock(data_dir / LOCK_FILE, self.store, self._fetcher, self._read_fetched)
        self.signers = self.store.intake.signers
        self.verification = SkillVerification(self.store, data_dir / LOCK_FILE)
        self.versions = SkillVersions(self.store, disk, replaced=self._lock.rewrite)
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

    async def has_other_vectors(self) -> bool:
        """Whether a live skill was embedded by other models than those in use."""
        return bool(await self._catalog.embedders() - {self.store.scanner.indexer.signature})

    async def sync_index(self) -> None:
        """Embed skills that lack a vector of the models in use. Skills that the index has are only marked so."""
        with storage_faults():
            await self.store.scanner.indexer.sync()

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
        source: SkillSource | RemoteSource,
        *,
        overwrite: bool = False,
        profile: Profile | None = None,
        filename: str | None = None,
        strict: bool = False,
        skills: Sequence[str] = (),
        local: bool = True,
        caller: str = "",
    ) -> InstallReceipt:
        """Install a skill, a plugin or a marketplace: from archive bytes, a `.zip`, a folder or a `SKILL.md`, or from a
        source that is fetched, such as `owner/repo`. A text is a path if there is such a file.

        Of a server that publishes skills, such as `https://example.org`, `skills` chooses some of them.

        Skills of plugins that cannot be installed are left out, and the receipt names them. With `strict`, one such
        skill refuses the whole package. Without `local`, a repository on this machine is refused. A download counts
        against the quota of `caller`.

        Raises:
            InvalidArchiveError: the archive breaks the ZIP policy.
            InvalidSkillStructureError: it contains no valid skill; the error lists all reasons.
            SkillAlreadyExistsError: the skill or the plugin exists and `overwrite` is false.
            RequestError: the source cannot be fetched.
        """
        begun = time.monotonic()
        if isinstance(source, str) and not await in_thread(os.path.lexists, source):
            source = parse_source(source) or source
        if isinstance(source, RemoteSource):
            if source.is_local and not local:
                raise local_refused()
            receipt = await self._install_fetched(
                source, skills, overwrite=overwrite, profile=profile, strict=strict, caller=caller
            )
        elif skills:
            raise _nothing_to_choose()
        else:
            receipt = await self._install(
                source, overwrite=overwrite, profile=profile, strict=strict, filename=filename, caller=caller
            )
        await self._lock.rewrite([*receipt.names, *receipt.plugins], is_fetched=isinstance(source, RemoteSource))
        return receipt.model_copy(update={"duration": round((time.monotonic() - begun) * 1000)})

    async def _install_fetched(
        self,
        source: RemoteSource,
        skills: Sequence[str],
        *,
        overwrite: bool,
        profile: Profile | None,
        strict: bool,
        caller: str,
    ) -> InstallReceipt:
        if index := await self._fetcher.find_index(source, caller=caller):
            entries = index.choose(skills or ([source.skill] if source.skill else []))
            async with self._fetcher.fetched_skills(source, entries, caller=caller) as found:
                left_out = () if skills or source.skill else index.left_out
                return await self._install_several(
                    source, found, left_out, overwrite=overwrite, profile=profile, strict=strict, caller=caller
                )
        if skills:
            raise _nothing_to_choose()
        async with self._fetcher.fetched(source, caller=caller) as fetched:
            origin = origin_of(source, fetched, profile, strict)
            with _explained(source):
                return await self._install(
                    fetched.path, overwrite=overwrite, profile=profile, strict=strict, origin=origin, caller=caller
                )

    async def _install_several(
        self,
        source: RemoteSource,
        found: Sequence[FetchedSkill],
        left_out: Sequence[LeftOut],
        *,
        overwrite: bool,
        profile: Profile | None,
        strict: bool,
        caller: str,
    ) -> InstallReceipt:
        """Install skills of an index, each with its own origin. All are read first; one that is taken refuses all."""
        refused = list(left_out)
        packages: list[tuple[BinaryIO, Package, Origin]] = []
        with ExitStack() as stack, storage_faults():
            for one in found:
                try:
                    if one.problem:
                        raise one.problem
                    file, package = await self._read_package(
                        stack, open_package, one.fetched.path, profile, None, strict
                    )
                    if package.skill is None or package.name != one.source.skill:
                        raise InvalidSkillStructureError([f'it is named "{package.name}" in its {SKILL_FILE}'])
                    await self.store.installer.names(package, overwrite=overwrite)
                    packages.append((file, package, origin_of(one.source, one.fetched, profile, strict)))
                except (InvalidSkillStructureError, InvalidArchiveError, RequestError) as error:
                    if strict or len(found) == 1:
                        raise
                    refused.append(LeftOut(name=one.source.skill, path="", reason=error.message))
            if not packages or (strict and refused):
                reasons = [f"{one.name}: {one.reason}" for one in refused] or ["the index lists no skill"]
                raise InvalidSkillStructureError(reasons[:MAX_REASONS])
            receipts = []
            async with self.store.gate.working():
                for file, package, origin in packages:
                    change = Change(source="install", author=caller)
                    installing = self.store.installer.install(
                        file, package, overwrite=overwrite, origin=origin, change=change
                    )
                    receipts.append(await run_to_completion(installing))
        if len(receipts) == 1 and not refused:
            return receipts[0]
        return InstallReceipt(
            name=source.host,
            names=[name for receipt in receipts for name in receipt.names],
            left_out=refused[:MAX_REASONS],
            message="Skills installed successfully",
            replaced=any(receipt.replaced for receipt in receipts),
            warnings=[
                *map(str, refused[:MAX_REASONS]),
                *(f"{receipt.name}: {warning}" for receipt in receipts for warning in receipt.warnings),
            ],
            scans=[scan for receipt in receipts for scan in receipt.scans],
        )

    async def _install(
        self,
        source: SkillSource,
        *,
        overwrite: bool,
        profile: Profile | None,
        strict: bool,
        filename: str | None = None,
        origin: Origin | None = None,
        caller: str = "",
        profiles: tuple[Profile, Profile] | None = None,
    ) -> InstallReceipt:
        change = Change(source="install", author=caller)
        with ExitStack() as stack, storage_faults():
            file, package = await self._read_package(
                stack, open_package, source, profile, filename, strict, profiles=profiles
            )
            async with self.store.gate.working():
                installing = self.store.installer.install(
                    file, package, overwrite=overwrite, origin=origin, change=change
                )
                return await run_to_completion(installing)

    async def create_skill(self, source: SkillSource, *, display_name: str | None = None, caller: str = "") -> str:
        """Install a package of exactly one skill, in a folder of any name; returns the name. Raises as `install_skill`.

        `display_name` is a title for Anthropic's clients.
        """
        with ExitStack() as stack, storage_faults():
            file, package = await self._read_single(stack, source)
            change = Change(source="install", author=caller)
            async with self.store.gate.working():
                await run_to_completion(self.store.installer.install(file, package, overwrite=False, change=change))
                if display_name:
                    await self.versions.set_display_name(package.name, display_name)
        return package.name

    async def add_version(self, name: str, source: SkillSource, *, default: bool, caller: str = "") -> Version:
        """Store a package as the newest version of an installed skill; with `default`, install it. Its grants, if it
        changes, are void, as after an overwrite.

        Raises:
            SkillError: NAME_MISMATCH, SKILL_READ_ONLY; otherwise as `install_skill`.
        """
        with ExitStack() as stack, storage_faults():
            file, package = await self._read_single(stack, source)
            if package.name != own_name(name):
                raise SkillError(
                    f"The package contains the skill {package.name}. A version of {name} must have the name "
                    f"{own_name(name)}.",
                    skill=name,
                    code="NAME_MISMATCH",
                )
            async with self.store.gate.working():
                await self.versions.check_managed(name)
                if default:
                    change = Change(source="install", author=caller)
                    installing = self.store.installer.install(
                        file, package, overwrite=True, served_as=name, change=change
                    )
                    await run_to_completion(installing)
                    await self._lock.rewrite([name], is_fetched=False)
                    return (await self.versions.of(name)).default
                async with self.store.locks.hold(name):
                    await self.versions.check_managed(name)
                    change = Change(source="upload", author=caller)
                    adding = self.store.installer.add_version(file, package, name, change=change)
                    return await run_to_completion(adding)

    async def _read_single(self, stack: ExitStack, source: SkillSource) -> tuple[BinaryIO, Package]:
        return await self._read_package(stack, open_package, source, None, None, True, only_skill=True)

    async def validate_skill(
        self,
        source: SkillSource,
        *,
        profile: Profile | None = None,
        filename: str | None = None,
        strict: bool = False,
    ) -> ValidationReport:
        """Check whether a package could be installed. Writes nothing."""
        with ExitStack() as stack:
            _, report = await self._read_package(stack, validate_package, source, profile, filename, strict)
            return report

    @asynccontextmanager
    async def checked(
        self,
        source: SkillSource | RemoteSource,
        *,
        profile: Profile | None = None,
        filename: str | None = None,
        strict: bool = False,
        skills: Sequence[str] = (),
        local: bool = True,
        caller: str = "",
    ) -> AsyncIterator[CheckedPackage]:
        """Check whether a package could be installed, what it asks for, and what it would replace; as `install_skill`.

        Of several skills of an index, which are separate packages, there is only a report.
        """
        async with AsyncExitStack() as stack:
            files = stack.enter_context(ExitStack())
            read = functools.partial(self._check, files, profile=profile, strict=strict, caller=caller)
            if not isinstance(source, RemoteSource):
                yield await read(source, filename=filename)
                return
            if source.is_local and not local:
                raise local_refused()
            if index := await self._fetcher.find_index(source, caller=caller):
                entries = index.choose(skills or ([source.skill] if source.skill else []))
                found = await stack.enter_async_context(self._fetcher.fetched_skills(source, entries, caller=caller))
                checked = [await self._check_fetched(read, one, profile, strict) for one in found]
                left_out = () if skills or source.skill else index.left_out
                yield checked[0] if len(checked) == 1 else CheckedPackage(report=_joined(source, checked, left_out))
                return
            if skills:
                raise _nothing_to_choose()
            fetched = await stack.enter_async_context(self._fetcher.fetched(source, caller=caller))
            yield await read(fetched.path, origin=origin_of(source, fetched, profile, strict))

    async def _check_fetched(
        self,
        read: Callable[..., Awaitable[CheckedPackage]],
        one: FetchedSkill,
        profile: Profile | None,
        strict: bool,
    ) -> CheckedPackage:
        if one.problem:
            problem = f"{one.source.skill}: {one.problem.message}"
            return CheckedPackage(report=ValidationReport(valid=False, errors=[problem], warnings=[]))
        return await read(one.fetched.path, origin=origin_of(one.source, one.fetched, profile, strict))

    async def _check(
        self,
        files: ExitStack,
        source: SkillSource,
        *,
        profile: Profile | None,
        strict: bool,
        caller: str,
        filename: str | None = None,
        origin: Origin | None = None,
    ) -> CheckedPackage:
        configured = self._settings.default_profile
        profiles = await in_thread(
            lambda: (default_profile_of(source, configured), default_profile_of_several(source, configured))
        )
        file, (report, package) = await self._read_package(
            files, check_package, source, profile, filename, strict, profiles=profiles
        )
        if package is None:
            return CheckedPackage(report=report)
        with ExitStack() as stack, storage_faults():
            claim = await in_thread(stack.enter_context, self._disk.claim(caller, self.staging))
            claim.take(max(sum(entry.size for entry in skill.entries) for skill in package.skills))
            examined = await run_to_completion(self.store.installer.examine(file, package))
        standings = await self._replaced_by([one.name for one in examined])
        packages = [packaged_skill(one, self._catalog.default_mode, standings.get(one.name)) for one in examined]
        if filename is None and isinstance(source, (Path, str)):
            filename = Path(source).name
        note = CheckedNote(origin=origin, filename=filename, profile=profile, profiles=profiles, strict=strict)
        await in_thread(file.seek, 0)
        return CheckedPackage(report=report.model_copy(update={"packages": packages}), file=file, note=note)

    async def _replaced_by(self, names: Sequence[str]) -> dict[str, ReplacedSkill]:
        """The installed skills of these names."""
        rows = [row for row in await self._catalog.named(names) if row.root == INSTALLED_ROOT]
        origins = await in_thread(lambda: {row.name: read_origin(self.store.folder(row)) for row in rows})
        return {
            row.name: ReplacedSkill(
                version=row.version,
                content_hash=row.content_hash,
                updated_at=from_ms(row.updated_at),
                calls=(await self._statistics.of(row.name)).calls,
                edited=bool((origin := origins[row.name]) and origin.content_hash != row.content_hash),
            )
            for row in rows
        }

    async def install_checked(
        self,
        file: BinaryIO,
        note: CheckedNote,
        *,
        overwrite: bool = False,
        profile: Profile | None = None,
        strict: bool = False,
        caller: str = "",
    ) -> InstallReceipt:
        """Install a package that was `checked`, in the way in which it was read then. Raises as `install_skill`."""
        begun = time.monotonic()
        receipt = await self._install(
            file,
            overwrite=overwrite,
            profile=profile or note.profile,
            strict=strict or note.strict,
            filename=note.filename,
            origin=note.origin,
            caller=caller,
            profiles=note.profiles,
        )
        await self._lock.rewrite([*receipt.names, *receipt.plugins], is_fetched=note.origin is not None)
        return receipt.model_copy(update={"duration": round((time.monotonic() - begun) * 1000)})

    async def _read_package(
        self,
        stack: ExitStack,
        read: Callable[..., T],
        source: SkillSource,
        profile: Profile | None,
        filename: str | None,
        strict: bool,
        only_skill: bool = False,
        profiles: tuple[Profile, Profile] | None = None,
    ) -> tuple[BinaryIO, T]:
        """`profiles` are those of one skill and of several, if `profile` is None; default: by the source."""
        configured = self._settings.default_profile
        report_phase("checking")

        def read_in_thread() -> tuple[BinaryIO, T]:
            file, stem = stack.enter_context(open_source(source))
            options = ReadOptions(
                profile=profile or (profiles[0] if profiles else default_profile_of(source, configured)),
                profile_of_several=profile
                or (profiles[1] if profiles else default_profile_of_several(source, configured)),
                require_entry_script=self._settings.require_entry_script,
                long_description=profile is None,
                only_skill=only_skill,
                strict=strict,
            )
            return file, read(file, options, filename=filename or stem)

        return await in_thread(read_in_thread)

    async def _read_fetched(
        self, stack: ExitStack, path: Path, profile: Profile | None, strict: bool
    ) -> tuple[BinaryIO, Package]:
        return await self._read_package(stack, open_package, path, profile, None, strict)

    async def scan_skill(self, name: str) -> ContentScan:
        """Scan an installed skill for hostile patterns, regardless of the setting."""
        async with self.store.reading(name) as row:
            return await in_thread(scan_skill_folder, self.store.folder(row))

    async def uninstall_skill(self, name: str, *, delete: bool = False) -> RemovalReceipt:
        """Remove a skill with its grants and approvals. Its call history is kept.

        An installed skill can be restored for some days. A skill of another root is hidden, and its folder stays. With
        `delete`, that folder is deleted.
        """
        async with self.store.gate.working(), self.store.locks.hold(name):
            row = await self._catalog.live(name)
            if row is None:  # an installed folder that is no longer a valid skill can still be uninstalled
                rows = await self._catalog.named([name])
                row = next((row for row in rows if row.root == INSTALLED_ROOT and row.state == "broken"), None)
            if row is None:
                raise await self.store.not_found(name)
            found = self.store.scanner.folder_of(row.key)
            is_hidden = not found.root.is_installed and not delete
            record = None
            with storage_faults():
                if is_hidden:
                    await run_to_completion(self.store.installer.hide(name, found, packages_of=self.layers.added_to))
                else:
                    folder = self.store.writable_folder(row)
                    keep = not self._disk.is_short
                    removing = self.store.installer.uninstall(name, folder, keep=keep, packages_of=self.layers.added_to)
                    record = await run_to_completion(removing)
                await self._forget(name)
        await self._lock.rewrite([name], is_fetched=False)
        message = "Skill uninstalled successfully"
        if is_hidden:
            message = f"Skill hidden; its folder in {found.root.label} stays"
        elif not found.root.is_installed:
            message = f"Skill deleted with its folder in {found.root.label}; it cannot be restored"
        return _removal_receipt(name, message, record, hidden=is_hidden)

    async def removed_skills(self) -> list[RemovedItem]:
        """Skills and plugins that can be restored, the newest first; then hidden skills."""
        return await in_thread(self._removed_items)

    def _removed_items(self) -> list[RemovedItem]:
        library, labels = self.store.library, self.store.scanner.labels()
        items = [
            RemovedItem(
                id=entry.name,
                kind=record.kind,
                name=record.name,
                skills=record.names,
                description=record.skills[0].description if record.kind == "skill" else "",
                source=INSTALLED_ROOT,
                removed_at=from_ms(record.removed_at),
                restorable_until=from_ms(record.until),
                size=size_on_disk(entry),
            )
            for entry, record in library.removed.all()
        ]
        return items + [
            RemovedItem(
                id=None,
                kind="hidden",
                name=hidden.name,
                skills=[hidden.name],
                description="",
                source=labels[hidden.root],
                removed_at=from_ms(hidden.hidden_at),
                restorable_until=None,
                size=0,
            )
            for hidden in library.hidden.all()
            if hidden.root in labels
        ]

    async def restore_skill(self, name: str, *, id: str | None = None) -> Receipt:
        """Bring a removed or hidden skill back: the newest of that name, or the one with this id.

        Its grants are not restored: the removal may have been meant to revoke them.

        Raises:
            SkillError: SKILL_NOT_FOUND if none can be restored, NAME_TAKEN.
        """
        if await self._restore("skill", name, id):
            return Receipt(name=name, message="Skill restored, without its grants")
        hidden = next((one for one in self.store.library.hidden.all() if one.name == name and id is None), None)
        if hidden is None or hidden.root not in self.store.scanner.labels():
            restorable = [item.name for item in await self.removed_skills() if item.kind != "plugin"]
            raise SkillError(
                f"No removed skill {name} can be restored.", skill=name, code="SKILL_NOT_FOUND", restorable=restorable
            )
        async with self.store.gate.working():
            with storage_faults():
                await run_to_completion(self.store.installer.show(hidden))
                await self.layers.restore(name, hidden.packages)
        self._on_change("restored", [name])
        await self.store.scanner.indexer.sync(names=[name])
        return Receipt(name=name, message="Skill is served again")

    async def restore_plugin(self, name: str, *, id: str | None = None) -> Receipt:
        """Bring a removed plugin back with all its skills; as `restore_skill`. Raises PLUGIN_NOT_FOUND."""
        if not await self._restore("plugin", name, id):
            restorable = [item.name for item in await self.removed_skills() if item.kind == "plugin"]
            raise RequestError(
                f"No removed plugin {name} can be restored.", code="PLUGIN_NOT_FOUND", restorable=restorable
            )
        return Receipt(name=name, message="Plugin restored, without its grants")

    async def _restore(self, kind: Literal["skill", "plugin"], name: str, id: str | None) -> bool:
        """Restore an entry of the trash; False if there is none."""
        entries = await in_thread(self.store.library.removed.all)
        fitting = (
            (entry, record)
            for entry, record in entries
            if record.kind == kind and record.name == name and id in (None, entry.name)
        )
        entry, record = next(fitting, (None, None))
        if entry is None or record is None:
            return False
        async with self.store.gate.working():
            with storage_faults():
                restoring = self.store.installer.restore(entry, record, add_packages=self.layers.restore)
                await run_to_completion(restoring)
        self._on_change("restored", list(record.names))
        for skill in record.skills:
            if not skill.enabled:
                with suppress(SkillNotFoundError):
                    await self.set_enabled(skill.name, False)
        await self.store.scanner.indexer.sync(names=record.names)
        await self._lock.rewrite(record.names)
        return True

    # ------------------------------------------------------------------------------------------------------ update
    async def origins(self) -> list[OriginItem]:
        """Plugins and skills that were fetched from a source, sorted by name."""
        rows = [row for row in await self._catalog.all_live() if row.root == INSTALLED_ROOT]
        return await in_thread(self.store.origins, rows)

    async def update_skill(
        self,
        name: str,
        *,
        apply: bool = False,
        revision: str | None = None,
        local: bool = True,
        caller: str = "",
    ) -> UpdateReport:
        """Fetch a skill's source again and report what changed; with `apply`, install it. A skill of a plugin is
        updated with its plugin.

        With `revision`, only that one is installed. Without `local`, sources on this machine are refused.

        Raises:
            SkillError: SOURCE_UNKNOWN, the skill was not fetched from a source.
            RequestError: the source cannot be fetched; SOURCE_CHANGED if it has another revision, or is another skill.
        """
        row = await self.store.live(name)
        plugin = next((one for one in await self.list_plugins() if one.name == row.plugin), None)
        if plugin and plugin.origin:
            return await self.update_plugin(plugin.name, apply=apply, revision=revision, local=local, caller=caller)
        is_installed = row.root == INSTALLED_ROOT
        origin = await in_thread(read_origin, self.store.folder(row)) if is_installed else None
        item = OriginItem(name=name, kind="skill", origin=_known_origin(name, "skill", origin))
        return await self._update(item, [name], apply=apply, revision=revision, local=local, caller=caller)

    async def update_plugin(
        self,
        name: str,
        *,
        apply: bool = False,
        revision: str | None = None,
        local: bool = True,
        caller: str = "",
    ) -> UpdateReport:
        """Fetch a plugin's source again; as `update_skill`. Raises RequestError: PLUGIN_NOT_FOUND."""
        plugin = next((one for one in await self.list_plugins() if one.name == name), None)
        if plugin is None:
            raise RequestError(f"Plugin not found: {name}", code="PLUGIN_NOT_FOUND", plugin=name)
        item = OriginItem(name=name, kind="plugin", origin=_known_origin(name, "plugin", plugin.origin))
        return await self._update(item, plugin.skills, apply=apply, revision=revision, local=local, caller=caller)

    async def update_source(
        self,
        source: str,
        *,
        apply: bool = False,
        revision: str | None = None,
        local: bool = True,
        caller: str = "",
    ) -> list[UpdateReport]:
        """Fetch a repository once for all plugins that were installed from it; as `update_plugin`.

        The report on a plugin that cannot be updated, such as one that the source no longer contains, has an error.

        Raises:
            SkillError: SOURCE_UNKNOWN, no plugin was fetched from it.
            RequestError: the source cannot be fetched; SOURCE_CHANGED if it has another revision.
        """
        members = {plugin.name: plugin.skills for plugin in await self.list_plugins()}
        items = [item for item in await self.origins() if item.kind == "plugin" and item.origin.source == source]
        if not items:
            raise SkillError(f"No plugin was installed from {source}", code="SOURCE_UNKNOWN")
        reports = await self._updates(
            [(item, members[item.name]) for item in items],
            apply=apply,
            revision=revision,
            local=local,
            caller=caller,
        )
        return [
            self._report(item, error=report.to_json()) if isinstance(report, ApexBridgeError) else report
            for item, report in zip(items, reports, strict=True)
        ]

    async def _update(
        self,
        item: OriginItem,
        members: Sequence[str],
        *,
        apply: bool,
        revision: str | None,
        local: bool,
        caller: str,
    ) -> UpdateReport:
        (report,) = await self._updates([(item, members)], apply=apply, revision=revision, local=local, caller=caller)
        if isinstance(report, ApexBridgeError):
            raise report
        return report

    async def _updates(
        self,
        items: Sequence[tuple[OriginItem, Sequence[str]]],
        *,
        apply: bool,
        revision: str | None,
        local: bool,
        caller: str,
    ) -> list[UpdateReport | ApexBridgeError]:
        """A report for each item with the names of its skills, or the reason why it cannot be updated.

        All have the same source, which is fetched once, and only if one of them has another commit.
        """
        first, _ = items[0]
        source = parse_source(first.origin.source)
        if source is None:
            raise _unknown_source(first.name, first.kind)
        if source.is_local and not local:
            raise local_refused()
        commits = {item.origin.commit for item, _ in items if item.origin.commit} & {
            revision or item.origin.commit for item, _ in items
        }
        current = source.ref if source.ref in commits else None
        if commits and current is None:
            current = await self._fetcher.find_commit(source, caller=caller)
        reports: list[UpdateReport | ApexBridgeError] = []
        async with AsyncExitStack() as stack:
            fetched: Fetched | None = None
            packages: dict[tuple[Profile | None, bool], tuple[BinaryIO, Package]] = {}
            for item, members in items:
                named = await self._catalog.named(members)
                rows = {row.name: row for row in named if row.root == INSTALLED_ROOT}
                if current is not None and item.origin.commit == current and current in commits:
                    reports.append(await in_thread(self._unchanged, item, rows))
                    continue
                if fetched is None:
                    fetched = await stack.enter_async_context(self._fetcher.fetched(source, caller=caller))
                origin = origin_of(source, fetched, item.origin.profile, item.origin.strict)
                if revision not in (None, origin.revision):
                    raise RequestError(
                        f"{item.name} was not updated: its source has changed again, to {origin.revision[:12]}. "
                        "Look at the changes, and try again.",
                        code="SOURCE_CHANGED",
                    )
                try:
                    with _explained(source), storage_faults():
                        key = origin.profile, origin.strict
                        if key not in packages:  # once for all plugins of a repository
                            files = stack.enter_context(ExitStack())
                            packages[key] = await self._read_package(
                                files, open_package, fetched.path, origin.profile, None, origin.strict
                            )
                        change = Change(source="update", author=caller) if apply else None
                        reports.append(await self._update_from(*packages[key], origin, item, rows, change=change))
                except ApexBridgeError as error:
                    reports.append(error)
        return reports

    async def _update_from(
        self,
        file: BinaryIO,
        whole: Package,
        origin: Origin,
        item: OriginItem,
        rows: dict[str, Row],
        *,
        change: Change | None,
    ) -> UpdateReport:
        """Report what an update changes; with `change`, install it."""
        installer, served_as = self.store.installer, item.name if item.kind == "skill" else None
        package = part_of(item, rows, whole)
        names = await installer.names(package, overwrite=True, served_as=served_as)
        changes = await in_thread(compare, file, package, names, self.store.library.skills, rows)
        is_changed = any(change.change != "unchanged" for change in changes)
        if is_changed and change:
            async with self.store.gate.working():
                edited = [change.name for change in changes if change.edited]
                installing = installer.install(
                    file, package, overwrite=True, origin=origin, keep=edited, served_as=served_as, change=change
                )
                await run_to_completion(installing)
            await self._lock.rewrite(names)
        return self._report(
            item,
            new_revision=origin.revision,
            changed=is_changed,
            applied=is_changed and change is not None,
            skills=changes,
            warnings=package.warnings,
        )

    def _report(self, item: OriginItem, **fields: Any) -> UpdateReport:
        """A report; unless `fields` say otherwise, that nothing changed."""
        revision = item.origin.revision
        unchanged = {"new_revision": revision, "changed": False, "skills": []}
        return UpdateReport(
            name=item.name,
            kind=item.kind,
            source=item.origin.source,
            old_revision=revision,
            **{**unchanged, **fields},
        )

    def _unchanged(self, item: OriginItem, rows: Mapping[str, Row]) -> UpdateReport:
        origins = {name: read_origin(self.store.folder(row)) for name, row in rows.items()}
        return self._report(
            item,
            skills=[
                SkillChange(
                    name=name,
                    change="unchanged",
                    edited=bool(origin and origin.content_hash != rows[name].content_hash),
                )
                for name, origin in origins.items()
            ],
        )

    # -------------------------------------------------------------------------------------------------------- lock
    async def lock(self) -> Lock:
        """What was fetched, with its commits, digests and contents."""
        return await self._lock.current()

    async def install_locked(
        self, packages: Sequence[LockedPackage], *, local: bool = True, caller: str = ""
    ) -> list[LockReport]:
        """Install exactly the locked contents, or report which source no longer delivers them.

        Skills that have other contents are replaced; their old versions can be restored. Skills that are not locked
        are left alone.
        """
        return await self._lock.install(packages, local=local, caller=caller)

    async def keep_tidy(self) -> None:
        """Delete removed skills and old versions after some days, until cancelled."""
        while True:
            await asyncio.sleep(SWEEP_SECONDS)
            try:
                async with self.store.gate.working():
                    await in_thread(self.store.library.sweep, await self._catalog.live_names())
            except Exception:
                logger.exception("old removed skills and versions could not be deleted; trying again later")

    async def list_plugins(self) -> list[PluginSummary]:
        """Installed plugins with their skills."""
        return await in_thread(self.store.plugins)

    async def uninstall_plugin(self, name: str) -> RemovalReceipt:
        """Remove a plugin with all its skills. It can be restored for some days."""
        with storage_faults():
            async with self.store.gate.working():
                members = next((plugin.skills for plugin in await self.list_plugins() if plugin.name == name), [])
                keep = not self._disk.is_short
                removing = self.store.installer.uninstall_plugin(name, keep=keep, packages_of=self.layers.added_to)
                record = await run_to_completion(removing)
                for member in members:
                    await self._forget(member)
        await self._lock.rewrite([name, *members], is_fetched=False)
        return _removal_receipt(name, "Plugin uninstalled successfully", record)

    async def _forget(self, name: str) -> None:
        """Delete the grants, added packages and approvals of a removed skill."""
        await self.grants.forget(name)
        await self.layers.forget(name)
        await self.approvals.forget(skill_tool_id(name))

    # -------------------------------------------------------------------------------------------- edit, reload
    async def update_skill_description(
        self, name: str, description: str | Mapping[str, Any], *, caller: str = ""
    ) -> Receipt:
        """Change the description. A mapping may contain `description` only. `caller` is recorded with the new version.

        Raises:
            FieldNotEditableError: the mapping contains another field.
            SkillReadOnlyError: the skill is in a read-only root.
        """
        text = checked_description(description, skill=name)
        self.store.intake.check_edit(name)
        await run_to_completion(self._set_description(name, text, Change(source="edit", author=caller)))
        self._on_change("edited", [name])
        return Receipt(name=name, message="Description updated")

    async def described(self, name: str, description: str) -> IndexDocument:
        """What would be indexed if a skill had this description. Raises as `update_skill_description`."""
        text = checked_description(description, skill=name)
        return _redescribed(await self.store.live(name), text)

    async def _set_description(self, name: str, text: str, change: Change) -> None:
        async with self.store.gate.working(), self.store.locks.hold(name):
            row = await self.store.live(name)
            path = self.store.writable_folder(row) / row.filename
            (vector,) = await self._index.embed([_redescribed(row, text)])
            with storage_faults():
                await self._catalog.prove_writable()
                async with self.store.reading(name):
                    edited = await in_thread(with_description, path, text, skill=name)
                    await in_thread(self._write_skill_file, path, edited)
                    folder = self.store.scanner.folder_of(row.key)
                    prepared = {name: Prepared(vector=vector)}
                    await self.store.scanner.settle([folder], prepared=prepared, change=change)

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
            if SERVED_NAME_PATTERN.match(name):  # the folder may not be cataloged yet; other names could be paths
                keys.add((INSTALLED_ROOT, folder_of_name(name)))
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
            raise await self.store.not_found(name)
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
        query: str | None = None,
        tags: Collection[str] = (),
        mode: Mode | None = None,
        enabled: bool | None = None,
        source: str | None = None,
        plugin: str | None = None,
        health: SkillHealth | None = None,
        sort: SkillSort = "name",
        page: int | None = None,
        limit: int | None = None,
    ) -> SkillPage:
        """Skills, filtered by everything that is set.

        `name` is a substring of the name, and each word of `query` one of the name or the description, in any case. One
        of the `tags` is enough. `source` is that of `SkillSummary`. `health` selects skills with warnings, or that need
        access, packages or a confirmation.
        """
        if page is not None and limit is None:
            limit = DEFAULT_PAGE_SIZE
        if (page is not None and page < 1) or (limit is not None and limit < 1):
            raise InvalidInputError("page and limit count from 1")
        offset = ((page or 1) - 1) * (limit or 0)
        labels = self.store.scanner.labels()
        filter = SkillFilter(
            name=name,
            query=query,
            tags=tuple(tags),
            mode=mode,
            enabled=enabled,
            roots=None if source is None else [root for root, label in labels.items() if label == source],
            plugin=plugin,
            health=health,
            lacking=await self.layers.lacking(await self._catalog.needs()) if health == "packages" else (),
        )
        found, total = await self._catalog.page(filter, sort=sort, offset=offset, limit=limit)
        lacking = await self.layers.lacking({row.name: Needs.from_json(row.needs) for row, _ in found})
        skills = [
            row.to_summary(
                self._catalog.default_mode,
                labels.get(row.root, ""),
                replace(standing, needs_packages=row.name in lacking),
            )
            for row, standing in found
        ]
        return SkillPage.model_construct(skills=skills, total=total, page=page or 1, limit=limit)

    async def list_tags(self, prefix: str = "", limit: int = DEFAULT_TAGS) -> TagList:
        """The most frequent tags, declared or derived, that begin with a prefix."""
        return await self._catalog.tags(prefix, limit)

    async def get_skill(self, name: str) -> SkillDetail:
        """Everything about one skill.

        Raises:
            SkillNotFoundError: no skill has that name.
        """
        async with self.store.reading(name) as row:
            granted = await self.grants.granted(row)
            lacking = await self.layers.lacking({name: Needs.from_json(row.needs)})
            standing = replace(await self._catalog.standing(row), needs_packages=bool(lacking))
            return await in_thread(self._detail, row, granted, standing)

    def _detail(self, row: Row, granted: list[str], standing: Standing) -> SkillDetail:
        """Combine the row with the instructions and files that are on disk now."""
        found = self.store.scanner.folder_of(row.key)
        files = scan_folder(found.path).files
        markdown = (found.path / row.filename).read_bytes().decode("utf-8", "replace")
        metadata = row.metadata
        return SkillDetail(
            **row.to_summary(self._catalog.default_mode, found.root.label, standing).model_dump(by_alias=False),
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
            origin=read_origin(found.path) if found.root.is_installed else None,
            signature=self.store.intake.signature_of(found.path, row.name),
        )

    async def open_skill_file(self, name: str, path: str) -> BinaryIO:
        """Open a bundled file for reading. Raises as `open_named_file`."""
        return (await self.open_named_file(name, path))[0]

    async def open_named_file(self, name: str, path: str) -> tuple[BinaryIO, NamedFile]:
        """Open a bundled file for reading, found by `find_file` if no file has exactly this path.

        Raises:
            SkillError: FILE_NOT_FOUND; also for anything that is not a regular file inside the skill's folder.
        """
        async with self.store.reading(name) as row:
            return await in_thread(_open_named_file, name, self.store.folder(row), path)

    async def export_skill(self, name: str, *, caller: str = "") -> IO[bytes]:
        """The skill as a ZIP, in an unnamed file positioned at its start.

        The file counts against the caller's quota until it is closed.

        Raises:
            ServerError: STORAGE_FULL.
        """
        async with self.store.reading(name) as row:
            pack = functools.partial(packed, staging=self.staging, disk=self._disk, caller=caller)
            return await in_thread(pack, self.store.folder(row), own_name(name))

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
        workspace: str | None = None,
        approval: str | None = None,
    ) -> ExecutionResult | DirectSkillResult:
        """Run a skill in the sandbox, or return its instructions in direct mode. Raises as `SkillRuns.call` does.

        With the id of a `workspace`, the run has its files, and its changes are kept there.
        """
        return await self.runner.result(
            SkillCall(
                skill=name,
                input=input or {},
                mode=mode,
                script=script,
                args=args,
                files=files,
                timeout=timeout,
                conversation=Conversation(workspace=self._open_workspace(workspace, "")),
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
        granted = await self.grants.grant(row, self.store.folder(row), permission)
        self._on_change("granted", [row.name])
        return granted

    async def revoke(self, name: str, permission: str) -> None:
        """Revoke a granted permission."""
        row = await self.store.live(name)
        await self.grants.revoke(row, permission)
        self._on_change("granted", [row.name])

    async def grants_of(self, name: str) -> list[GrantView]:
        """The requested and granted permissions of a skill."""
        return await self.grants.views(await self.store.live(name))

    async def dependencies_of(self, name: str, *, detect: bool = False) -> DependencyView:
        """The declared and added packages of a skill, and whether they are installed.

        With `detect`, also the packages and programs that its code uses.
        """
        async with self.store.reading(name) as row:
            return await self.layers.view(row, self.store.folder(row), with_detected=detect)

    async def change_dependencies(
        self,
        name: str,
        *,
        add: Sequence[str] = (),
        remove: Sequence[str] = (),
        install: bool = False,
        progress: Callable[[str], None] | None = None,
    ) -> DependencyView:
        """Add packages to a skill, or remove added ones: `pypdf>=4`, `npm:docx`. They stay if it is overwritten.

        With `install`, they are installed first. If that fails, nothing is changed.

        Raises:
            InvalidInputError: a package is not a name with a version, or one to be removed was not added.
            ServerError: with `install`, as `install_dependencies`.
        """
        row = await self.store.live(name)
        if install:
            await self.layers.install(row, self.store.folder(row), progress, add=add, remove=remove)
        async with self.store.locks.hold(row.name):  # do not add packages to a skill that was removed meanwhile
            row = await self.store.live(name)
            await self.layers.change(row, add=add, remove=remove)
        self._on_change("packages", [row.name])
        return await self.layers.view(row, self.store.folder(row))

    async def install_dependencies(self, name: str, progress: Callable[[str], None] | None = None) -> DependencyView:
        """Install the declared and added packages of a skill. Runs never install anything."""
        row = await self.store.live(name)
        installed = await self.layers.install(row, self.store.folder(row), progress)
        self._on_change("packages", [row.name])
        return installed

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


def _redescribed(row: Row, description: str) -> IndexDocument:
    metadata = replace(row.metadata, description=description)
    return IndexDocument(metadata=metadata, derived_tags=derived_tags_of(metadata), body=row.body)


def _open_named_file(skill: str, folder: Path, written: str) -> tuple[BinaryIO, NamedFile]:
    with suppress(OSError, ValueError):
        return open_file_beneath(folder, written), NamedFile(path=written)
    try:
        found = find_file(skill, written, [file.path for file in scan_folder(folder).files])
        return open_file_beneath(folder, found.path), found
    except NoSuchNameError as error:
        raise SkillError(str(error), code="FILE_NOT_FOUND", skill=skill, suggestions=error.suggestions) from error
    except (OSError, ValueError) as error:
        raise SkillError(
            f"{skill} has no file {written[:SHOWN_CHARACTERS]}", code="FILE_NOT_FOUND", skill=skill
        ) from error


@contextmanager
def _explained(source: RemoteSource) -> Iterator[None]:
    """Add to an error about a whole repository that the folder of one skill can be named."""
    try:
        yield
    except InvalidSkillStructureError as error:
        folders = [folder.partition("/")[2] for folder in error.details.get("folders", [])]
        if source.kind != "git" or not all(folders) or not folders:
            raise
        found = [f"{source.path}/{folder}".lstrip("/") for folder in folders]
        raise RequestError(
            f"{source.text} contains several skills, but neither a plugin nor a folder skills/. Name one of them, such "
            f"as: {source.at(found[0])}",
            code="INVALID_INPUT",
            sources=[source.at(folder) for folder in found],
        ) from error
    except InvalidArchiveError as error:
        if source.kind != "git" or source.path or error.code != "ARCHIVE_TOO_LARGE":
            raise
        raise InvalidArchiveError(
            f"{error.message}. Name the folder of one skill in the repository: {source.at('PATH')}", code=error.code
        ) from error


def _joined(source: RemoteSource, checked: Sequence[CheckedPackage], left_out: Sequence[LeftOut]) -> ValidationReport:
    """One report on several packages of an index."""
    reports = [one.report for one in checked]
    valid = [report for report in reports if report.valid]
    errors = [error for report in reports for error in report.errors]
    return ValidationReport(
        valid=bool(valid),
        name=source.host,
        names=[name for report in valid for name in report.names],
        errors=[] if valid else errors[:MAX_REASONS],
        warnings=[*(errors if valid else []), *(text for report in valid for text in report.warnings)],
        left_out=list(left_out)[:MAX_REASONS],
        packages=[package for report in valid for package in report.packages],
    )


def _removal_receipt(name: str, message: str, record: Removed | None, *, hidden: bool = False) -> RemovalReceipt:
    until = from_ms(record.until) if record else None
    return RemovalReceipt(name=name, message=message, hidden=hidden, restorable_until=until)


def _nothing_to_choose() -> InvalidInputError:
    return InvalidInputError(
        "Skills are chosen by name only from a server that publishes them, such as https://example.org. Of a "
        "repository or a folder, name the folder of the skill."
    )


def _known_origin(name: str, kind: str, origin: Origin | None) -> Origin:
    if origin is None:
        raise _unknown_source(name, kind)
    return origin


def _unknown_source(name: str, kind: str) -> SkillError:
    return SkillError(
        f"The {kind} {name} was not installed from a repository or an address, so it cannot be updated. "
        "Install it from its source: apex skills install SOURCE --overwrite",
        skill=name if kind == "skill" else None,
        code="SOURCE_UNKNOWN",
    )


def _with_indexed(report: ScanReport, indexed: int) -> ScanReport:
    """Count skills that were embedded after the scan as indexed, not as skipped."""
    return report.model_copy(update={"indexed": report.indexed + indexed, "skipped": report.skipped - indexed})
