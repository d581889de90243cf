"""Reconciles catalog, index, markers and tools with the disk, for one folder or for all.

Every change ends here: an install, an edit, an uninstall and a manual change of a folder all scan that folder again.
So there is a single point of reconciliation with the disk.
"""

import asyncio
import logging
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

from apexbridge._tasks import in_thread, run_to_completion
from apexbridge._time import now_ms
from apexbridge.errors import ServerError
from apexbridge.skills.models import ScanReport
from apexbridge.skills.package.fingerprint import FolderScan, FolderTooLargeError, scan_folder
from apexbridge.skills.package.skill import Skill
from apexbridge.skills.package.validation import BrokenFolderError, read_folder
from apexbridge.skills.store.catalog import Catalog, FolderKey, FolderState, Row, columns_of
from apexbridge.skills.store.indexer import Indexer, Progress, SkillIndex
from apexbridge.skills.store.library import Library, read_origin
from apexbridge.skills.store.locks import NameLocks
from apexbridge.skills.store.names import folder_of_name, name_of_folder, own_name, served_name
from apexbridge.skills.store.roots import INSTALLED_ROOT, FoundFolder, SkillRoot, discover, locate
from apexbridge.skills.store.versions import BY_HAND, Change, Content
from apexbridge.storage.directory import storage_faults

BATCH = 100
"""Folders per batch: small enough for a progress bar to move."""

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """What is known about a skill before its folder changes."""

    vector: Any
    skill: Skill | None = None
    signature: str = ""
    """Signature of the staged folder. If the committed folder still has it, `skill` describes it."""


class Listener(Protocol):
    """Receives notifications about changed and removed skills."""

    def skill_changed(self, row: Row) -> None:
        """Called if a skill is new or changed."""

    def skill_removed(self, name: str) -> None:
        """Called if no folder provides this name any more."""

    def skills_indexed(self, names: Sequence[str]) -> None:
        """Called if skills got their vectors after they were found by words only."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Seen:
    """The scan result of one folder."""

    found: FoundFolder
    signature: str
    marker: str = ""
    scan: FolderScan | None = None
    """None if the folder could not be scanned."""


class Scanner:
    """Compares the disk with the catalog and applies the differences."""

    def __init__(
        self,
        *,
        catalog: Catalog,
        library: Library,
        index: SkillIndex,
        locks: NameLocks,
        listener: Listener,
        roots: Sequence[SkillRoot],
        require_entry_script: bool,
    ) -> None:
        self.roots = list(roots)
        self._catalog = catalog
        self._library = library
        self._locks = locks
        self._listener = listener
        self._require_entry_script = require_entry_script
        self._unsettled: dict[FolderKey, FoundFolder] = {}
        self._settling = asyncio.Lock()
        self.indexer = Indexer(
            catalog=catalog,
            library=library,
            index=index,
            locks=locks,
            settling=self._settling,
            folder_of=self.folder_of,
            on_indexed=listener.skills_indexed,
        )

    @property
    def _link_targets(self) -> list[Path]:
        """Paths that links may lead into."""
        return [root.path for root in self.roots]

    # --------------------------------------------------------------------------------------------- reconciling
    async def reconcile(self, progress: Progress | None = None) -> ScanReport:
        """Apply all differences between the disk and the catalog, including skills missing from the index."""
        known = await self._catalog.states()
        seen = await in_thread(self._scan_all)
        live = {row.name: row.content_hash for row in known.values() if row.state == "live"}
        lost = await self.indexer.missing(live)
        changed = [
            one.found
            for key, one in seen.items()
            if (row := known.get(key)) is None
            or (row.signature, row.marker) != (one.signature, one.marker)
            or (row.state == "live" and (row.embedder != self.indexer.signature or row.name in lost))
        ]
        gone = [self.folder_of(key) for key in known if key not in seen]
        report = await self._settle_in_batches(changed + gone, known, progress)
        removed = await self.indexer.retain(await self._catalog.live_names())
        await self.record_missing_versions()
        return ScanReport(
            indexed=report.indexed,
            skipped=report.skipped + len(seen) - len(changed),
            removed=report.removed + removed,
        )

    async def refresh(self, targets: Collection[tuple[SkillRoot, str | None]]) -> None:
        """Reconcile a folder of the installed root, or (None) a whole root."""
        known = await self._catalog.states()
        changed: dict[FolderKey, FoundFolder] = {}
        for root, folder in targets:
            if folder is not None:
                changed[root.id, folder] = locate(root, folder, self._link_targets)
                continue
            seen = await in_thread(self._scan_root, root)
            for key, one in seen.items():
                if (row := known.get(key)) is None or (row.signature, row.marker) != (one.signature, one.marker):
                    changed[key] = one.found
            changed |= {key: self.folder_of(key) for key in known if key[0] == root.id and key not in seen}
        await self._settle_in_batches(list(changed.values()), known, None)

    def folder_of(self, key: FolderKey) -> FoundFolder:
        """The folder of a catalog key. If its root is no longer configured, the path does not exist."""
        for root in self.roots:
            if root.id == key[0]:
                return locate(root, key[1], self._link_targets)
        nowhere = SkillRoot(id=key[0], path=self._library.trash / "nowhere")
        return FoundFolder(root=nowhere, folder=key[1], path=nowhere.path / key[1])

    def labels(self) -> dict[str, str]:
        """Display names of the roots, by id."""
        return {root.id: root.label for root in self.roots}

    async def _settle_in_batches(
        self, folders: Sequence[FoundFolder], known: Mapping[FolderKey, FolderState], progress: Progress | None
    ) -> ScanReport:
        indexed = skipped = removed = 0
        for start in range(0, len(folders), BATCH):
            batch = folders[start : start + BATCH]
            names = {_expected_name(found) for found in batch} | {
                known[found.key].name for found in batch if found.key in known
            }
            async with self._locks.hold(*names):
                report = await self.settle(batch)
            indexed, skipped, removed = indexed + report.indexed, skipped + report.skipped, removed + report.removed
            if progress:
                progress(min(start + BATCH, len(folders)), len(folders))
        return ScanReport(indexed=indexed, skipped=skipped, removed=removed)

    # ------------------------------------------------------------------------------------------------ scanning
    def _scan_all(self) -> dict[FolderKey, _Seen]:
        return {key: one for root in self.roots for key, one in self._scan_root(root).items()}

    def _scan_root(self, root: SkillRoot) -> dict[FolderKey, _Seen]:
        hidden = self._library.hidden
        return {found.key: self._scan(found) for found in discover(root, self._link_targets) if found.key not in hidden}

    def _scan(self, found: FoundFolder) -> _Seen:
        if found.problem:
            return _Seen(found=found, signature=found.problem)
        try:
            scan = scan_folder(found.path)
        except (OSError, FolderTooLargeError) as error:
            return _Seen(found=found, signature=_why(error))
        marker = scan.marker
        if not found.root.is_installed and not marker:
            marker = self.indexer.marker_signature(found)
        return _Seen(found=found, signature=scan.signature, marker=marker, scan=scan)

    def _examine(self, found: FoundFolder, known: Row | None, prepared: Prepared | None) -> Row | None:
        """The folder's row as it is on disk, with state live or broken; None if the folder does not exist."""
        if found.key in self._library.hidden or not found.path.is_dir():
            return None
        now = now_ms()
        seen = self._scan(found)
        base = replace(
            known
            or Row(
                root=found.root.id,
                folder=found.folder,
                name="",
                state="live",
                signature="",
                installed_at=now,
                updated_at=now,
            ),
            signature=seen.signature,
            marker=seen.marker,
        )
        try:
            if seen.scan is None:
                raise BrokenFolderError(seen.signature)
            if prepared and prepared.skill and prepared.signature == seen.signature:
                skill = prepared.skill
            else:
                skill = read_folder(
                    found.path,
                    seen.scan,
                    require_entry_script=self._require_entry_script,
                    folder=own_name(_expected_name(found)),
                )
                if found.root.is_installed:
                    skill = skill.renamed(served_name(found.folder, skill.name))
        except Exception as error:  # a bad folder must not stop the others
            logger.warning("%s in %s is not served: %s", found.folder, found.root.label, _why(error))
            return replace(
                base, name=base.name or _expected_name(found), state="broken", reason=_why(error), embedder=None
            )
        marker = self.indexer.marker(found)
        if known is None and marker:  # the database was lost or the folder was moved here: the marker has the date
            base = replace(base, installed_at=min(now, marker.indexed_at))
        return replace(
            base,
            **columns_of(skill),
            state="live",
            reason=None,
            embedder=self.indexer.signature if self.indexer.holds(marker, skill) else None,
            updated_at=base.updated_at if known and known.content_hash == skill.content_hash else now,
        )

    # ------------------------------------------------------------------------------------------------ settling
    async def settle(
        self,
        folders: Sequence[FoundFolder],
        *,
        prepared: Mapping[str, Prepared] | None = None,
        change: Change = BY_HAND,
    ) -> ScanReport:
        """Scan these folders again and update versions, catalog, index, markers and tools.

        The caller holds their names.
        `prepared` is what was computed before the folders changed, by name; `change` is recorded with new versions.

        Raises:
            ServerError: STORAGE_FULL; the folders on disk are valid, and `retry` records them later.
        """
        try:
            report = await run_to_completion(self._settle_exclusively(folders, prepared or {}, change))
        except BaseException as error:
            self._unsettled |= {found.key: found for found in folders}
            if not isinstance(error, ServerError) or error.code != "STORAGE_FULL":
                raise
            raise ServerError(
                "What is on disk could not be recorded; it will be as soon as the data directory can be written to.",
                code="STORAGE_FULL",
            ) from error
        for found in folders:
            self._unsettled.pop(found.key, None)
        return report

    def paused(self) -> AbstractAsyncContextManager[None]:
        """Nothing settles during the block."""
        return self._settling

    async def _settle_exclusively(
        self, folders: Sequence[FoundFolder], prepared: Mapping[str, Prepared], change: Change
    ) -> ScanReport:
        """Settle one batch at a time: folders of different names may contain the same skill."""
        async with self._settling:
            with storage_faults():
                return await self._reconcile(folders, prepared, change)

    async def retry(self) -> None:
        """Settle folders again whose last attempt failed."""
        if self._unsettled:
            await self._settle_in_batches(list(self._unsettled.values()), await self._catalog.states(), None)

    async def _reconcile(
        self, folders: Sequence[FoundFolder], prepared: Mapping[str, Prepared], change: Change
    ) -> ScanReport:
        """Read the folders, choose for each affected name the folder that provides it, and record the changes.

        Index and versions come first, then the catalog, then the tools: a crash in between leaves a row that no longer
        matches its folder, so the next start repeats the work.
        """
        rows_before = await self._catalog.at([found.key for found in folders])
        rows_on_disk = await in_thread(self._examine_all, folders, rows_before, prepared)
        names = {row.name for row in (*rows_before.values(), *rows_on_disk.values())}
        rows_of_names = await self._catalog.named(names)
        live_before = {row.name: row for row in rows_of_names if row.state == "live"}
        elsewhere = [row for row in rows_of_names if row.key not in rows_before and row.key not in rows_on_disk]
        rows = self._ranked([*rows_on_disk.values(), *elsewhere], names)
        live = {row.name: row for row in rows if row.state == "live"}
        removed = [name for name in live_before if name not in live]

        not_indexed = await self.indexer.missing({name: row.content_hash for name, row in live.items()})
        to_index = [
            row
            for row in live.values()
            if row.embedder != self.indexer.signature
            or row.name in not_indexed
            # Another folder provides the name now: the index has the old folder's vector, even if the marker matches.
            or (row.name in live_before and live_before[row.name].key != row.key)
            or row.name in prepared
        ]
        await self.indexer.forget(removed)
        indexed = await self.indexer.put(to_index, {name: one.vector for name, one in prepared.items()})
        rows = [indexed.get(row.key, row) for row in rows]

        await in_thread(self._record_versions, list(live.values()), change)
        stored = {row.key: row for row in rows_of_names} | rows_before  # a folder's skill can change its name
        changed = [row for row in rows if stored.get(row.key) != row]
        await self._catalog.save(changed, forget=[key for key in rows_before if key not in rows_on_disk])
        if any(row.embedder is None for row in indexed.values()):
            self.indexer.mark_pending()  # after the save: the indexer reads the catalog
        for name in removed:
            self._listener.skill_removed(name)
        for row in changed:
            if row.state == "live":
                self._listener.skill_changed(row)
        embedded = sum(row.embedder is not None for row in indexed.values())
        return ScanReport(indexed=embedded, skipped=len(rows_on_disk) - embedded, removed=len(removed))

    def _record_versions(self, rows: Sequence[Row], change: Change) -> None:
        """Record new contents of installed skills as versions. On a full disk, skills are served without them."""
        for row in rows:
            if row.root != INSTALLED_ROOT:
                continue
            try:
                self._library.versions.record(self.content_of(row), change)
            except FileNotFoundError:  # removed a moment ago
                continue
            except (OSError, FolderTooLargeError):
                logger.exception("the version of %s could not be recorded", row.name)

    def content_of(self, row: Row) -> Content:
        """The content of an installed skill, for a version."""
        folder = self.folder_of(row.key).path
        return Content(
            name=row.name,
            description=row.description,
            content_hash=row.content_hash,
            folder=folder,
            files=scan_folder(folder).files,
            origin=read_origin(folder),
        )

    async def record_missing_versions(self) -> None:
        """Record a first version of installed skills that have none, such as those of an earlier release."""
        missing = await in_thread(self._library.versions.without_record, await self._catalog.installed_names())
        if missing:
            async with self._settling:
                rows = [row for row in await self._catalog.named(missing) if row.state == "live"]
                await in_thread(self._record_versions, rows, BY_HAND)

    def is_changed(self, row: Row) -> bool:
        """Whether the folder of a row has changed since it was read."""
        return self._scan(self.folder_of(row.key)).signature != row.signature

    def _examine_all(
        self,
        folders: Sequence[FoundFolder],
        rows_before: Mapping[FolderKey, Row],
        prepared: Mapping[str, Prepared],
    ) -> dict[FolderKey, Row]:
        """The rows of these folders as they are on disk. Folders that do not exist are omitted."""
        plugins = {skill: plugin.name for plugin in self._library.plugins.all() for skill in plugin.skills}
        rows = {}
        for found in folders:
            # In the installed root, where skills are prepared, a folder has the name of its skill.
            row = self._examine(found, rows_before.get(found.key), prepared.get(_expected_name(found)))
            if row is not None:
                rows[found.key] = replace(row, plugin=plugins.get(row.name) if found.root.is_installed else None)
        return rows

    def _ranked(self, rows: Sequence[Row], names: Iterable[str]) -> list[Row]:
        """Select one live row per name: the last root wins; within a root, the folder with the skill's name."""
        order = {root.id: number for number, root in enumerate(self.roots)}
        labels = self.labels()
        result = [row for row in rows if row.state == "broken"]
        for name in names:
            rivals = [row for row in rows if row.name == name and row.state != "broken"]
            rivals.sort(key=lambda row: row.folder)
            rivals.sort(
                key=lambda row: (order.get(row.root, -1), Path(row.folder).name == folder_of_name(row.name)),
                reverse=True,
            )
            if rivals:
                winner, *losers = rivals
                reason = (
                    f"shadowed by {winner.folder} in {labels.get(winner.root, winner.root)}, which has the same name"
                )
                result.append(replace(winner, state="live", reason=None))
                result += [replace(row, state="shadowed", reason=reason) for row in losers]
        return result


def _expected_name(found: FoundFolder) -> str:
    """The name that the skill of a folder should have."""
    name = Path(found.folder).name
    return name_of_folder(name) if found.root.is_installed else name


def _why(error: Exception) -> str:
    """The reason as text, without paths of the server."""
    return error.strerror or type(error).__name__ if isinstance(error, OSError) else str(error)
