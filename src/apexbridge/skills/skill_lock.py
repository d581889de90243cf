"""The lock of the data directory, `skills.lock`: what was fetched, and installing exactly that again."""

import asyncio
import logging
import os
from collections.abc import Awaitable, Callable, Collection, Sequence
from contextlib import AsyncExitStack, ExitStack
from dataclasses import replace
from pathlib import Path
from typing import BinaryIO

from apexbridge._fs import replace_file
from apexbridge._tasks import in_thread, run_to_completion
from apexbridge.errors import ApexBridgeError, InvalidInputError, RequestError
from apexbridge.skills import SERVED_NAME_PATTERN, Profile
from apexbridge.skills.fetched_packages import local_refused, origin_of, part_of
from apexbridge.skills.lock_file import LOCK_FILE, format_lock, read_lock
from apexbridge.skills.models import Lock, LockedPackage, LockReport, Origin, OriginItem
from apexbridge.skills.package.validation import Package
from apexbridge.skills.remote.fetcher import Fetcher
from apexbridge.skills.remote.source_text import parse_source
from apexbridge.skills.store.catalog import Row
from apexbridge.skills.store.comparison import content_hashes
from apexbridge.skills.store.library import read_origin
from apexbridge.skills.store.names import folder_of_name, own_name
from apexbridge.skills.store.roots import INSTALLED_ROOT
from apexbridge.skills.store.skill_store import SkillStore
from apexbridge.skills.store.versions import Change
from apexbridge.storage.directory import storage_faults

MAX_NAMES = 100
"""Skills that an error names."""
ReadPackage = Callable[[ExitStack, Path, Profile | None, bool], Awaitable[tuple[BinaryIO, Package]]]
"""Opens a fetched package, by its profile, strictly or not; the stack closes it."""
logger = logging.getLogger(__name__)


class SkillLock:
    """Lists what was fetched, writes it to a file, and installs what such a list names."""

    def __init__(self, path: Path, store: SkillStore, fetcher: Fetcher, read: ReadPackage) -> None:
        self._path = path
        self._store = store
        self._fetcher = fetcher
        self._read = read
        self._writing = asyncio.Lock()
        self._names: set[str] | None = None
        """Skills and plugins in the file; None until it was read."""

    async def current(self) -> Lock:
        """What was fetched, with its commits, digests and contents."""
        rows = [row for row in await self._store.catalog.all_live() if row.root == INSTALLED_ROOT]
        return await in_thread(self._current, rows)

    def _current(self, rows: Sequence[Row]) -> Lock:
        plugins = {plugin.name: plugin for plugin in self._store.plugins()}
        contents = {row.name: origin.content_hash for row in rows if (origin := read_origin(self._store.folder(row)))}
        packages = []
        for item in self._store.origins(rows):
            members = plugins[item.name].skills if item.kind == "plugin" else [item.name]
            own = {name: f"sha256:{digest}" for name in members if (digest := contents.get(name))}
            origin = item.origin
            if own:
                packages.append(
                    LockedPackage(
                        name=item.name,
                        kind=item.kind,
                        source=origin.source,
                        commit=origin.commit,
                        digest=f"sha256:{origin.digest}" if origin.digest else None,
                        profile=origin.profile,
                        strict=origin.strict,
                        contents=own,
                    )
                )
        locked = {name for package in packages for name in package.contents}
        return Lock(
            packages=packages,
            others=[row.name for row in rows if row.name not in locked],
            edited=[row.name for row in rows if row.name in locked and row.content_hash != contents[row.name]],
        )

    async def install(
        self, packages: Sequence[LockedPackage], *, local: bool = True, caller: str = ""
    ) -> list[LockReport]:
        """Install exactly the locked contents, or report which source no longer delivers them.

        Skills that have other contents are replaced; their old versions can be restored. Skills that are not locked
        are left alone.
        """
        groups: dict[tuple[object, ...], list[LockedPackage]] = {}
        for package in packages:
            for name in (package.name, *package.contents):
                if not SERVED_NAME_PATTERN.match(name):  # it becomes the name of a folder
                    raise InvalidInputError(f"{name[:100]!a} cannot be the name of a skill or a plugin")
            key = package.source, package.commit, package.digest, package.profile, package.strict
            groups.setdefault(key, []).append(package)
        reports: dict[int, LockReport] = {}
        for group in groups.values():
            for package, report in zip(group, await self._install_group(group, local, caller), strict=True):
                reports[id(package)] = report
        if any(report.state == "installed" for report in reports.values()):
            await self.rewrite([])
        return [reports[id(package)] for package in packages]

    async def _install_group(self, group: Sequence[LockedPackage], local: bool, caller: str) -> list[LockReport]:
        """Install packages of one source and revision, which is fetched once, and only if one of them has changed."""
        installed = {package.name: package for package in (await self.current()).packages}
        rows = {row.name: row for row in await self._store.catalog.all_live() if row.root == INSTALLED_ROOT}

        def is_unchanged(package: LockedPackage) -> bool:
            own = installed.get(package.name)
            return own == package and all(
                name in rows and f"sha256:{rows[name].content_hash}" == digest
                for name, digest in package.contents.items()
            )

        states = {package.name: "unchanged" for package in group if is_unchanged(package)}
        errors: dict[str, ApexBridgeError] = {}
        missing = [package for package in group if package.name not in states]
        if missing:
            try:
                await self._fetch(missing, errors, local=local, caller=caller)
            except ApexBridgeError as error:
                errors |= dict.fromkeys((package.name for package in missing), error)
        return [
            LockReport(name=one.name, kind=one.kind, state="failed", error=errors[one.name].to_json())
            if one.name in errors
            else LockReport(name=one.name, kind=one.kind, state="unchanged" if one.name in states else "installed")
            for one in group
        ]

    async def _fetch(
        self, packages: Sequence[LockedPackage], errors: dict[str, ApexBridgeError], *, local: bool, caller: str
    ) -> None:
        first = packages[0]
        source = parse_source(first.source)
        if source is None:
            raise InvalidInputError(f"{first.name}: {first.source!a} is not a source that can be fetched")
        if source.is_local and not local:
            raise local_refused()
        pinned = replace(source, ref=first.commit) if first.commit and source.kind == "git" else source
        async with AsyncExitStack() as stack:
            fetched = await stack.enter_async_context(self._fetcher.fetched(pinned, caller=caller))
            origin = origin_of(source, fetched, first.profile, first.strict)
            with storage_faults():
                files = stack.enter_context(ExitStack())
                file, whole = await self._read(files, fetched.path, first.profile, first.strict)
                for package in packages:
                    try:
                        await self._install_part(file, whole, origin, package, caller)
                    except ApexBridgeError as error:
                        errors[package.name] = error

    async def _install_part(
        self, file: BinaryIO, whole: Package, origin: Origin, locked: LockedPackage, caller: str
    ) -> None:
        item = OriginItem(name=locked.name, kind=locked.kind, origin=origin)
        part = part_of(item, list(locked.contents), whole)
        found = await in_thread(content_hashes, file, part)
        expected = {own_name(name): digest.removeprefix("sha256:") for name, digest in locked.contents.items()}
        if found != expected:
            names = sorted(name for name in {*found, *expected} if found.get(name) != expected.get(name))
            raise RequestError(
                f"{locked.source} no longer delivers the locked content of {', '.join(names[:MAX_NAMES])}. Nothing "
                f"of {locked.name} was changed. Install what it delivers now with: apex skills install {locked.source} "
                "--overwrite",
                code="SOURCE_CHANGED",
                skills=names[:MAX_NAMES],
            )
        is_installed = locked.kind == "skill" and bool(await in_thread(self._existing, [locked.name]))
        served_as = locked.name if is_installed else None
        names = await self._store.installer.names(part, overwrite=True, served_as=served_as)
        replaced = await in_thread(self._existing, names)
        async with self._store.gate.working():
            change = Change(source="install", author=caller)
            installing = self._store.installer.install(
                file, part, overwrite=True, origin=origin, keep=replaced, served_as=served_as, change=change
            )
            await run_to_completion(installing)

    def _existing(self, names: Sequence[str]) -> list[str]:
        """The names whose folders exist."""
        return [name for name in names if os.path.lexists(self._store.library.skills / folder_of_name(name))]

    async def rewrite(self, names: Collection[str], *, is_fetched: bool = True) -> None:
        """Write the file again, if a change of these skills and plugins concerns it."""
        async with self._writing:
            try:
                if self._names is None:
                    self._names = await in_thread(_names_in, self._path)
                if not is_fetched and self._names.isdisjoint(names):
                    return
                packages = (await self.current()).packages
                text = format_lock(package.model_dump(mode="json") for package in packages)
                await in_thread(_write, self._path, text)
                self._names = {name for one in packages for name in (one.name, *one.contents)}
            except OSError:  # the skills are installed; the next change writes the file
                logger.warning("%s could not be written", LOCK_FILE, exc_info=True)


def _names_in(path: Path) -> set[str]:
    """The skills and plugins of a lock file; none if it is missing or unreadable."""
    try:
        packages = read_lock(path)
        return {name for one in packages for name in (one["name"], *one["contents"])}
    except (RequestError, KeyError, TypeError):
        return set()


def _write(path: Path, text: str) -> None:
    """Write the file if it changes."""
    data = text.encode()
    if not path.exists() or path.read_bytes() != data:
        replace_file(path, data, beside=path.parent, mode=0o600)
