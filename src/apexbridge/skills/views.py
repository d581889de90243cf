"""Read-only access to skills: lists, details, files, statistics."""

import functools
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from pathlib import Path
from typing import IO, BinaryIO, Literal

import anyio.to_thread

from apexbridge.disk import Disk
from apexbridge.errors import InvalidInputError, SkillError, SkillNotFoundError
from apexbridge.retrieval.documents import SkillFacts
from apexbridge.skills.config import SkillManagerConfig
from apexbridge.skills.files import open_beneath
from apexbridge.skills.models import (
    CallStatistics,
    GrowthPoint,
    PluginSummary,
    Problem,
    SkillDetail,
    SkillPage,
    SkillStatistics,
)
from apexbridge.skills.package.packing import packed
from apexbridge.skills.runs.grants import SkillGrants
from apexbridge.skills.store.catalog import Catalog, Row
from apexbridge.skills.store.details import describe
from apexbridge.skills.store.home import SkillHome
from apexbridge.skills.store.locks import NameLocks
from apexbridge.skills.store.roots import SkillRoot
from apexbridge.skills.store.scanner import Scanner
from apexbridge.storage.statistics import CallStatisticsStore

DEFAULT_PAGE_SIZE = 50


class SkillViews:
    """The read-only part of `SkillManager`."""

    _catalog: Catalog
    _statistics: CallStatisticsStore
    _config: SkillManagerConfig
    _home: SkillHome
    _disk: Disk
    _commits: NameLocks
    """Held during a commit, and by readers that must see a single version."""
    grants: SkillGrants

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
        rows, total = await self._catalog.page(part=name, tags=tags, offset=offset, limit=limit)
        labels, mode = self._scanner.labels(), self._config.default_mode
        skills = [row.to_summary(mode, labels.get(row.root, "")) for row in rows]
        return SkillPage.model_construct(skills=skills, total=total, page=page or 1, limit=limit)

    async def get_skill(self, name: str) -> SkillDetail:
        """Everything about one skill.

        Raises:
            SkillNotFoundError: no skill has that name.
        """
        async with self._reading(name) as row:
            granted = await self.grants.granted(row)
            return await anyio.to_thread.run_sync(
                describe, row, self._scanner.folder_of(row.key), self._config.default_mode, granted
            )

    async def open_skill_file(self, name: str, path: str) -> BinaryIO:
        """Open a bundled file for reading.

        Raises:
            SkillError: FILE_NOT_FOUND; also for anything that is not a regular file inside the skill's folder.
        """
        async with self._reading(name) as row:
            try:
                return await anyio.to_thread.run_sync(open_beneath, self._folder(row), path)
            except (OSError, ValueError) as error:
                raise SkillError(f"{name} has no file {path}", code="FILE_NOT_FOUND", skill=name) from error

    async def export_skill(self, name: str, *, caller: str = "") -> IO[bytes]:
        """The skill as a ZIP, in an unnamed file positioned at its start.

        The file counts against the caller's quota until it is closed.

        Raises:
            ServerError: STORAGE_FULL.
        """
        async with self._reading(name) as row:
            pack = functools.partial(packed, staging=self._home.library.staging, disk=self._disk, caller=caller)
            return await anyio.to_thread.run_sync(pack, self._folder(row), name)

    async def facts(self, names: Collection[str]) -> dict[str, SkillFacts]:
        """Mode and enabled state of these skills, for search results."""
        standing = await self._catalog.standing(names, self._config.default_mode)
        return {name: SkillFacts(mode=mode, enabled=enabled) for name, (mode, enabled) in standing.items()}

    async def problems(self) -> list[Problem]:
        """Folders that are not available as skills: broken, shadowed or missing, each with the reason."""
        found = await self._catalog.problems(self._scanner.labels())
        missing = await anyio.to_thread.run_sync(lambda: [root for root in self.roots if not root.path.is_dir()])
        return found + [
            Problem(name=root.label, source=root.label, source_path="", kind="broken", reason="there is no such folder")
            for root in missing
        ]

    # ---------------------------------------------------------------------------------------------- statistics
    async def statistics(self) -> SkillStatistics:
        """Totals of the library: skills by tag and mode, calls, unused skills."""
        return await self._catalog.statistics(self._config.default_mode)

    async def skill_statistics(self, name: str) -> CallStatistics:
        """Call count, success rate and average duration of one skill."""
        await self._live(name)
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

    # ----------------------------------------------------------------------------------- plugins, roots, config
    async def list_plugins(self) -> list[PluginSummary]:
        """Installed plugins with their skills."""
        return await self._home.plugins.all()

    @property
    def roots(self) -> list[SkillRoot]:
        """The skill roots; the installed root is last."""
        return self._scanner.roots

    @property
    def _scanner(self) -> Scanner:
        return self._home.scanner

    def get_config(self) -> SkillManagerConfig:
        """The configuration that can be changed at runtime."""
        return self._config

    # -------------------------------------------------------------------------------------------------- details
    async def _live(self, name: str, code: str | None = None) -> Row:
        row = await self._catalog.live(name)
        if row is None:
            raise SkillNotFoundError(name, code=code)
        return row

    @asynccontextmanager
    async def _reading(self, name: str) -> AsyncIterator[Row]:
        """Lock a skill against replacement while the block reads it, so that no response mixes two versions.

        This waits only for a commit, which is short, not for the whole install.

        Raises:
            SkillNotFoundError: the skill does not exist, or its folder was just removed by hand.
        """
        async with self._commits.hold(name):
            row = await self._live(name)
            try:
                yield row
            except FileNotFoundError as error:
                raise SkillNotFoundError(name) from error

    def _folder(self, row: Row) -> Path:
        return self._scanner.folder_of(row.key).path
