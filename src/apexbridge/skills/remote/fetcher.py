"""Fetches sources into a folder of the staging area, which is removed afterwards, or at the next start."""

import asyncio
import hashlib
import uuid
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path

from apexbridge._tasks import in_thread
from apexbridge.disk import MB, Disk
from apexbridge.errors import RequestError, ServerError, SkillError
from apexbridge.sandbox.launcher.removal import remove_tree
from apexbridge.skills.config import FetchSettings
from apexbridge.skills.package.archive import MAX_ARCHIVE_BYTES
from apexbridge.skills.package.progress import report_phase
from apexbridge.skills.remote.discovery import (
    MAX_INDEX_BYTES,
    IndexEntry,
    NotAnIndexError,
    SkillIndex,
    parse_index,
    unpack,
)
from apexbridge.skills.remote.download import download, fetch_from_github
from apexbridge.skills.remote.egress import Egress
from apexbridge.skills.remote.git import Repository, find_git
from apexbridge.skills.remote.source_text import RemoteSource
from apexbridge.skills.remote.tree import RAISE_LIMIT
from apexbridge.storage.directory import storage_faults


@dataclass(frozen=True, slots=True, kw_only=True)
class Fetched:
    """A source on the local disk."""

    path: Path
    """A folder, or an archive."""
    commit: str | None = None
    digest: str | None = None
    """SHA-256 of a download that is not from a repository."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchedSkill:
    """A skill of an index on the local disk."""

    source: RemoteSource
    fetched: Fetched
    problem: SkillError | RequestError | None = None
    """Why there is nothing at its path."""


class Fetcher:
    """Fetches sources within the limits of the settings."""

    def __init__(self, staging: Callable[[], Path], disk: Disk, settings: FetchSettings) -> None:
        self._staging = staging
        self._disk = disk
        self._settings = settings
        self._egress = Egress(allow_private=settings.private_addresses)

    @asynccontextmanager
    async def fetched(self, source: RemoteSource, *, caller: str = "") -> AsyncIterator[Fetched]:
        """Fetch a source; what was fetched is removed when the block ends. It counts against the caller's quota.

        Raises:
            RequestError: ADDRESS_REFUSED, SOURCE_NOT_FOUND or SOURCE_UNREACHABLE.
            InvalidArchiveError: UNSAFE_PATH or ARCHIVE_TOO_LARGE.
            ServerError: TIMEOUT, STORAGE_FULL, or NOT_READY if there is no git.
        """
        if source.kind == "index":
            index = await self.find_index(source, caller=caller)
            entries = index.choose([source.skill]) if index else []  # such a source has an index, or raises
            async with self.fetched_skills(source, entries, caller=caller) as (skill,):
                if skill.problem:
                    raise skill.problem
                yield skill.fetched
            return
        async with self._workspace(source, caller) as (folder, claim):
            with storage_faults(), self._time_limit(source):
                async with asyncio.timeout(self._settings.timeout_seconds):
                    fetched = await self._fetch(source, folder, claim)
            yield fetched

    async def find_index(self, source: RemoteSource, *, caller: str = "") -> SkillIndex | None:
        """The index of a server that publishes skills; None if the source is, or may be, a repository. Raises as
        `fetched`.
        """
        if source.index_url is None:
            return None
        async with self._workspace(source, caller) as (folder, claim):
            path = folder / "index.json"
            try:
                with storage_faults(), self._time_limit(source):
                    async with asyncio.timeout(self._settings.timeout_seconds):
                        await self._download(source.index_url, path, MAX_INDEX_BYTES, claim, "Larger ones are not read")
            except RequestError as error:
                if source.kind == "index" or error.code not in ("SOURCE_NOT_FOUND", "SOURCE_UNREACHABLE"):
                    raise
                return None
            try:
                return await in_thread(lambda: parse_index(path.read_bytes(), source.index_url or ""))
            except NotAnIndexError as error:
                if source.kind == "index":
                    raise RequestError(
                        f"{source.index_url} is not an index of skills: {error}", code="SOURCE_NOT_FOUND"
                    ) from error
                return None

    @asynccontextmanager
    async def fetched_skills(
        self, source: RemoteSource, entries: Sequence[IndexEntry], *, caller: str = ""
    ) -> AsyncIterator[list[FetchedSkill]]:
        """Download skills of the index of a source, and check their digests; as `fetched`.

        A skill that is missing, has another digest (DIGEST_MISMATCH) or cannot be unpacked has a `problem`.
        """
        async with self._workspace(source, caller) as (folder, claim):
            found: list[FetchedSkill] = []
            with storage_faults(), self._time_limit(source):
                async with asyncio.timeout(self._settings.timeout_seconds):
                    left, used = self._settings.max_mb * MB, 0
                    for number, entry in enumerate(entries):
                        own = folder / str(number)
                        await in_thread(own.mkdir)
                        problem: SkillError | RequestError | None = None
                        try:
                            size = await self._fetch_entry(entry, own, max_bytes=left - used, claim=_after(claim, used))
                            used += size
                        except (SkillError, RequestError) as error:
                            if error.code in ("ADDRESS_REFUSED", "SOURCE_UNREACHABLE"):
                                raise
                            problem = error
                        fetched = Fetched(path=own / entry.name, digest=entry.digest)
                        skill = source.of_skill(source.index_url or source.url, entry.name)
                        found.append(FetchedSkill(source=skill, fetched=fetched, problem=problem))
            yield found

    async def _fetch_entry(
        self, entry: IndexEntry, folder: Path, *, max_bytes: int, claim: Callable[[int], None]
    ) -> int:
        """Download and unpack one skill into `folder`; returns the size of its files."""
        path = folder / "download"
        await self._download(entry.url, path, min(max_bytes, MAX_ARCHIVE_BYTES), claim, RAISE_LIMIT)
        if (digest := await in_thread(_digest, path)) != entry.digest:
            raise RequestError(
                f"{entry.url} was not installed: its SHA-256 is {digest[:12]}…, and the index names "
                f"{entry.digest[:12]}…. It was changed a moment ago, or by someone else. Try again later.",
                code="DIGEST_MISMATCH",
                skill=entry.name,
            )
        size = await in_thread(unpack, path, entry, folder / entry.name, max_bytes=max_bytes)
        claim(size)
        await in_thread(path.unlink)
        return size

    async def _download(self, url: str, path: Path, limit: int, claim: Callable[[int], None], advice: str) -> None:
        with path.open("xb") as file:
            await download(self._egress, url, file, max_bytes=limit, claim=claim, advice=advice)

    async def find_commit(self, source: RemoteSource, *, caller: str = "") -> str | None:
        """The commit that a repository has now; None if that takes a fetch. Raises as `fetched`."""
        git = find_git()
        if source.kind != "git" or git is None:
            return None
        async with self._workspace(source, caller) as (folder, claim):
            repository = Repository(folder, git, source, max_bytes=self._settings.max_mb * MB)
            with self._time_limit(source):
                async with asyncio.timeout(self._settings.timeout_seconds):
                    return await repository.find_commit(self._egress, claim=claim)

    @asynccontextmanager
    async def _workspace(self, source: RemoteSource, caller: str) -> AsyncIterator[tuple[Path, Callable[[int], None]]]:
        """A folder for a download, and a function that claims its size on the disk."""
        if source.scheme == "http" and not self._settings.private_addresses:
            raise RequestError(
                "Plain HTTP is not used for downloads; use https://. For servers of your own network, set "
                "APEX_INSTALL_PRIVATE_ADDRESSES=true.",
                code="ADDRESS_REFUSED",
            )
        await in_thread(self._disk.used_by, caller)  # may scan folders, which `claim` would do here
        folder = self._staging() / f"fetch-{uuid.uuid4().hex}"
        with self._disk.claim(caller, self._staging()) as space:
            claimed = 0

            def claim(size: int) -> None:
                nonlocal claimed
                if size > claimed:
                    report_phase("downloading", size)
                    space.take(size - claimed)
                    space.wrote()
                    claimed = size

            report_phase("downloading")
            try:
                await in_thread(folder.mkdir)
                yield folder, claim
            finally:
                await in_thread(remove_tree, str(folder))

    @contextmanager
    def _time_limit(self, source: RemoteSource) -> Iterator[None]:
        try:
            yield
        except TimeoutError as error:
            raise ServerError(
                f"{source.url} was not fetched within {self._settings.timeout_seconds:g} seconds. Nothing was "
                "installed. Try again, or raise APEX_INSTALL_TIMEOUT_SECONDS.",
                code="TIMEOUT",
            ) from error

    async def _fetch(self, source: RemoteSource, folder: Path, claim: Callable[[int], None]) -> Fetched:
        max_bytes = self._settings.max_mb * MB
        if source.kind == "archive":
            path = folder / source.name
            limit = min(max_bytes, MAX_ARCHIVE_BYTES)
            advice = RAISE_LIMIT if limit < MAX_ARCHIVE_BYTES else "Larger archives are not installed"
            await self._download(source.url, path, limit, claim, advice)
            return Fetched(path=path, digest=await in_thread(_digest, path))
        git = find_git()
        if git is None:
            return await self._fetch_without_git(source, folder, claim)
        repository = Repository(folder, git, source, max_bytes=max_bytes)
        await repository.fetch(self._egress, claim=claim)
        tree = await repository.extract(source.path, folder / "tree", claim=claim)
        return Fetched(path=tree, commit=repository.commit)

    async def _fetch_without_git(self, source: RemoteSource, folder: Path, claim: Callable[[int], None]) -> Fetched:
        if source.github_repository is None:
            raise ServerError(
                "git is not on the PATH of the server. Install it (the package `git` of your system), and try again.",
                code="NOT_READY",
            )
        max_bytes = self._settings.max_mb * MB
        tree, commit = await fetch_from_github(self._egress, source, folder, max_bytes=max_bytes, claim=claim)
        return Fetched(path=tree, commit=commit)


def _after(claim: Callable[[int], None], used: int) -> Callable[[int], None]:
    """Claims the size of one of several downloads."""
    return lambda size: claim(used + size)


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
