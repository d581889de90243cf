"""The versions of served skills: list, install again, remove, download.

The installed content of a skill is its default version: chat, search and runs use it. Skills of other roots, which this
server does not change, have one version, their current content.
"""

import functools
import hashlib
import zipfile
import zlib
from collections.abc import Awaitable, Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import IO

from apexbridge._tasks import in_thread, run_to_completion
from apexbridge._time import from_ms
from apexbridge.disk import Disk
from apexbridge.errors import ServerError, SkillError, SkillNotFoundError
from apexbridge.skills.models import RollbackReceipt, SkillVersion, SkillVersionList, VersionDiff
from apexbridge.skills.package.packing import packed
from apexbridge.skills.store.catalog import Row
from apexbridge.skills.store.names import own_name
from apexbridge.skills.store.roots import INSTALLED_ROOT
from apexbridge.skills.store.skill_store import SkillStore
from apexbridge.skills.store.version_diff import diff_archives
from apexbridge.skills.store.versions import Change, History, Version, version_id
from apexbridge.storage.directory import storage_faults

_REMEMBERED_IDS = 100_000


@functools.lru_cache(_REMEMBERED_IDS)
def skill_id(name: str) -> str:
    """The id of a skill in the skills APIs. It follows from the name, so it survives updates and a lost database."""
    return f"skill_{hashlib.sha256(f'skill {name}'.encode()).hexdigest()[:32]}"


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionedSkill:
    """A served skill with its versions."""

    row: Row
    versions: tuple[Version, ...]
    """The oldest first; at least one."""
    default: Version
    """The installed one."""
    stored: bool
    """Whether the content of the default version is stored. Otherwise it is only in the skill's folder."""
    display_name: str | None

    @property
    def name(self) -> str:
        return self.row.name

    @property
    def id(self) -> str:
        return skill_id(self.row.name)

    @property
    def latest(self) -> Version:
        return self.versions[-1]

    def listed(self) -> SkillVersionList:
        return SkillVersionList(
            name=self.name,
            id=self.id,
            default_version=self.default.number,
            latest_version=self.latest.number,
            versions=[self._shown(version) for version in reversed(self.versions)],
        )

    def _shown(self, version: Version) -> SkillVersion:
        return SkillVersion(
            version=version.number,
            id=version.id,
            name=version.name,
            description=version.description,
            created_at=from_ms(version.created_at),
            source=version.source,
            author=version.author,
            signer=version.signer,
            content_hash=version.content_hash,
            size=version.size,
            default=version is self.default,
            latest=version is self.latest,
        )

    def numbered(self, number: int) -> Version:
        """Raises SkillError: VERSION_NOT_FOUND."""
        for version in self.versions:
            if version.number == number:
                return version
        raise version_not_found(self.name, str(number))


class SkillVersions:
    """Reads and changes the versions of skills."""

    def __init__(self, store: SkillStore, disk: Disk, *, replaced: Callable[[Sequence[str]], Awaitable[None]]) -> None:
        """`replaced` is called with the skills whose installed version is another one now."""
        self._store = store
        self._disk = disk
        self._replaced = replaced

    async def of(self, name: str) -> VersionedSkill:
        """A skill with its versions. Raises SkillNotFoundError."""
        (found,) = await self.of_rows([await self._store.live(name)])
        return found

    async def of_rows(self, rows: Sequence[Row]) -> list[VersionedSkill]:
        return await in_thread(lambda: [self._versioned(row) for row in rows])

    async def served(self) -> list[Row]:
        """All served skills."""
        return await self._store.catalog.all_live()

    async def named(self, id: str) -> str:
        """The name of the skill with this id. A name is accepted too. Raises SkillNotFoundError."""
        names = await self._store.catalog.live_names()
        if id in names:
            return id
        found = next((name for name in names if skill_id(name) == id), None)
        if found is None:
            raise SkillNotFoundError(id)
        return found

    def _versioned(self, row: Row) -> VersionedSkill:
        history = self._store.library.versions.of(row.name) if row.root == INSTALLED_ROOT else History()
        default = history.installed(row.content_hash)
        versions = history.versions if default else (*history.versions, _current(row, history))
        return VersionedSkill(
            row=row,
            versions=versions,
            default=default or versions[-1],
            stored=default is not None,
            display_name=history.display_name,
        )

    async def listed(self, name: str) -> SkillVersionList:
        """The versions of a skill, the newest first."""
        return (await self.of(name)).listed()

    async def rollback(self, name: str, version: int | None = None) -> RollbackReceipt:
        """Install a version again: the one with this number, or the one before the installed one.

        Grants follow the rules of an overwrite: those for other content are void.

        Raises:
            SkillError: VERSION_NOT_FOUND; SKILL_READ_ONLY for a skill of another root.
        """
        async with self._store.gate.working(), self._store.locks.hold(name):
            skill = await self.of(name)
            before = skill.default.number
            if version is None:
                earlier = [one.number for one in skill.versions if one.number < before]
                if not earlier:
                    problem = f"{name} has no version before {before}."
                    raise SkillError(problem, skill=name, code="VERSION_NOT_FOUND")
                version = earlier[-1]
            skill.numbered(version)
            if version != before:
                await self.check_managed(name)
                await self._install(skill, version)
        await self._replaced([name])
        return RollbackReceipt(
            name=name, message=f"Version {version} of {name} is installed", version=version, previous=before
        )

    async def _install(self, skill: VersionedSkill, number: int) -> None:
        installing = self._store.installer.install_version(skill.name, number, served=skill.row, change=Change())
        with storage_faults():
            try:
                await run_to_completion(installing)
            except FileNotFoundError as error:  # removed a moment ago, because of its age
                raise version_not_found(skill.name, str(number)) from error

    async def remove(self, name: str, version: int) -> None:
        """Delete a version. Raises SkillError: VERSION_NOT_FOUND; VERSION_IN_USE for the installed one."""
        async with self._store.gate.working(), self._store.locks.hold(name):
            skill = await self.of(name)
            number = skill.numbered(version).number
            if number == skill.default.number:
                reason = "the only one" if len(skill.versions) == 1 else "installed; install another one first"
                raise SkillError(
                    f"Version {number} of {name} was not deleted: it is {reason}.", skill=name, code="VERSION_IN_USE"
                )
            with storage_faults():
                await run_to_completion(in_thread(self._store.library.versions.remove, name, number))

    async def open(self, name: str, version: int, *, caller: str = "") -> IO[bytes]:
        """A version as a ZIP with one top folder. Raises SkillError: VERSION_NOT_FOUND."""
        skill = await self.of(name)
        found = skill.numbered(version)
        if found is not skill.default or skill.stored:
            try:
                return await in_thread(self._store.library.versions.open, name, found)
            except FileNotFoundError as error:
                raise version_not_found(name, str(version)) from error
        async with self._store.reading(name) as row:
            pack = functools.partial(packed, staging=self._store.library.staging, disk=self._disk, caller=caller)
            return await in_thread(pack, self._store.folder(row), own_name(name))

    async def diff(self, name: str, version: int, against: int | None = None, *, caller: str = "") -> VersionDiff:
        """Compare a version with another one, by default with the one before it.

        Raises:
            SkillError: VERSION_NOT_FOUND.
        """
        skill = await self.of(name)
        skill.numbered(version)
        if against is None:
            against = max((one.number for one in skill.versions if one.number < version), default=None)
        with ExitStack() as stack:
            new = stack.enter_context(await self.open(name, version, caller=caller))
            old = None if against is None else stack.enter_context(await self.open(name, against, caller=caller))
            try:
                files, is_cut = await in_thread(diff_archives, old, new)
            except (zipfile.BadZipFile, ValueError, EOFError, zlib.error, RuntimeError) as error:
                raise ServerError(f"The stored content of a version of {name} is damaged.") from error
        return VersionDiff(name=name, version=version, against=against, files=files, truncated=is_cut)

    async def set_display_name(self, name: str, display_name: str) -> None:
        """Set the title that Anthropic's clients see. Raises SkillNotFoundError."""
        async with self._store.locks.hold(name):
            await self._store.live(name)
            with storage_faults():
                await in_thread(self._store.library.versions.set_display_name, name, display_name)

    async def check_managed(self, name: str) -> None:
        """Raises SkillError: SKILL_READ_ONLY for a skill of another root, whose content this server does not change."""
        row = await self._store.live(name)
        if row.root != INSTALLED_ROOT:
            label = self._store.scanner.labels().get(row.root, row.root)
            raise SkillError(
                f"{name} is in {label}, not among the installed skills; install a copy to have versions of it.",
                skill=name,
                code="SKILL_READ_ONLY",
            )


def version_not_found(name: str, version: str) -> SkillError:
    return SkillError(f"{name} has no version {version[:80]}", skill=name, code="VERSION_NOT_FOUND")


def _current(row: Row, history: History) -> Version:
    """A version for content that is not stored: of another root, too large, or changed on a full disk."""
    newest = history.newest
    return Version(
        number=history.next,
        id=version_id(row.name, row.content_hash),
        content_hash=row.content_hash,
        created_at=max(row.updated_at, newest.created_at + 1 if newest else 0),
        name=row.name,
        description=row.description,
        source="disk",
        size=row.size,
    )
