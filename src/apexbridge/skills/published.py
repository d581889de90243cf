"""Skills for everyone: the index of `/.well-known/agent-skills` and the files behind it.

The format is Agent Skills Discovery 0.2.0. Each skill is one download: its SKILL.md if it has no other file, else a
flat ZIP. Downloads are packed once for each content hash, in a folder that can be deleted at any time.
"""

import asyncio
import hashlib
import json
import logging
import re
import uuid
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from apexbridge._fs import make_private_folder
from apexbridge._tasks import in_thread
from apexbridge.disk import Disk
from apexbridge.errors import InvalidArchiveError, RequestError, SkillNotFoundError
from apexbridge.skills import MAX_DESCRIPTION_CHARACTERS, SKILL_FILE
from apexbridge.skills.package.fingerprint import FolderTooLargeError, hash_folder, scan_folder
from apexbridge.skills.package.packing import pack_folder
from apexbridge.skills.remote.discovery import PUBLIC_NAME, SCHEMA, DownloadKind
from apexbridge.skills.store.catalog import PublicSkill
from apexbridge.skills.store.skill_store import SkillStore
from apexbridge.storage.directory import storage_faults

_SUFFIXES: dict[DownloadKind, str] = {"skill-md": ".md", "archive": ".zip"}
_FILE_NAME = re.compile(r"([0-9a-f]{64})\.([0-9a-f]{64})(\.md|\.zip)\Z")
logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Download:
    """A packed skill."""

    kind: DownloadKind
    content_hash: str
    """Of the skill."""
    digest: str
    """SHA-256 of the file."""

    @property
    def file_name(self) -> str:
        return f"{self.content_hash}.{self.digest}{_SUFFIXES[self.kind]}"


@dataclass(frozen=True, slots=True, kw_only=True)
class PublicIndex:
    """The index as JSON."""

    body: bytes
    etag: str


class PublishedSkills:
    """Lists and packs the skills that are served and enabled."""

    def __init__(self, store: SkillStore, folder: Path, *, disk: Disk) -> None:
        self._store = store
        self._folder = folder
        self._disk = disk
        self._lock = asyncio.Lock()
        self._downloads: dict[str, Download] | None = None
        """By content hash; None until the folder was read."""
        self._refused: set[str] = set()
        """Content hashes of skills that cannot be packed."""
        self._index: tuple[tuple[PublicSkill, ...], PublicIndex] | None = None
        """The last index, and the skills of which it was made."""

    async def index(self) -> PublicIndex:
        """The index of all published skills. Skills that cannot be packed are left out."""
        skills = await self._public_skills()
        if self._index and self._index[0] == skills:
            return self._index[1]
        async with self._lock:  # one client at a time: they all want the same files
            if self._index and self._index[0] == skills:
                return self._index[1]
            entries = [_entry(skill, found) for skill in skills if (found := await self._download(skill))]
            index = await in_thread(_document, entries)
            await in_thread(self._discard_others, {skill.content_hash for skill in skills})
            if len(entries) + sum(skill.content_hash in self._refused for skill in skills) == len(skills):
                self._index = skills, index
        return index

    async def open(self, name: str, kind: DownloadKind) -> tuple[BinaryIO, Download]:
        """Open the download of a published skill. Raises RequestError: NOT_FOUND."""
        for skill in await self._public_skills(name):
            for _ in range(2):  # the second time if the folder of the downloads was deleted
                download = (self._downloads or {}).get(skill.content_hash)
                if download is None:
                    async with self._lock:
                        download = await self._download(skill)
                if download is None or download.kind != kind:
                    break
                try:
                    return await in_thread((self._folder / download.file_name).open, "rb"), download
                except FileNotFoundError:
                    self._downloads = None
        raise RequestError("No such skill is published here.", code="NOT_FOUND")

    async def _public_skills(self, name: str | None = None) -> tuple[PublicSkill, ...]:
        skills = await self._store.catalog.public(name)
        return tuple(skill for skill in skills if PUBLIC_NAME.match(skill.name))

    async def _download(self, skill: PublicSkill) -> Download | None:
        """The packed skill; None if it cannot be packed, or was changed a moment ago."""
        if self._downloads is None:
            self._downloads = await in_thread(self._read_folder)
        found = self._downloads.get(skill.content_hash)
        if found is not None or skill.content_hash in self._refused:
            return found
        try:
            async with self._store.reading(skill.name) as row:
                if row.content_hash != skill.content_hash:
                    return None
                with storage_faults():
                    found = await in_thread(self._pack, self._store.folder(row), row.content_hash)
        except (InvalidArchiveError, FolderTooLargeError) as error:
            logger.warning("%s is not published: %s", skill.name, error)
            self._refused.add(skill.content_hash)
            return None
        except (SkillNotFoundError, RequestError, OSError) as error:  # removed, or a file of it cannot be read now
            logger.warning("%s is not published at present: %s", skill.name, error)
            return None
        if found is not None:
            self._downloads[skill.content_hash] = found
        return found

    def _read_folder(self) -> dict[str, Download]:
        """The downloads of an earlier start. Incomplete files are deleted."""
        make_private_folder(self._folder)
        found = {}
        for path in self._folder.iterdir():
            if matched := _FILE_NAME.match(path.name):
                content_hash, digest, suffix = matched.groups()
                kind: DownloadKind = "skill-md" if suffix == ".md" else "archive"
                found[content_hash] = Download(kind=kind, content_hash=content_hash, digest=digest)
            else:
                path.unlink(missing_ok=True)
        return found

    def _pack(self, folder: Path, content_hash: str) -> Download | None:
        """Pack a folder; None if it no longer has this content."""
        files = scan_folder(folder).files
        if hash_folder(folder, files) != content_hash:  # edited by hand: the watcher will report it
            return None
        kind: DownloadKind = "skill-md" if [file.path for file in files] == [SKILL_FILE] else "archive"
        draft = self._folder / f"{uuid.uuid4().hex}.part"
        try:
            with self._disk.claim("", self._folder) as claim, draft.open("x+b") as target:
                claim.take(sum(file.size for file in files))
                if kind == "skill-md":
                    target.write((folder / SKILL_FILE).read_bytes())
                else:
                    pack_folder(folder, target, is_flat=True)
                target.flush()
                target.seek(0)
                digest = hashlib.file_digest(target, "sha256").hexdigest()
            if hash_folder(folder, scan_folder(folder).files) != content_hash:
                return None
            download = Download(kind=kind, content_hash=content_hash, digest=digest)
            draft.replace(self._folder / download.file_name)
            return download
        finally:
            draft.unlink(missing_ok=True)

    def _discard_others(self, content_hashes: Iterable[str]) -> None:
        """Delete the downloads of skills that are gone or changed. Open files stay readable."""
        current = set(content_hashes)
        self._refused &= current
        for key, download in list((self._downloads or {}).items()):
            if key not in current and self._downloads is not None:
                (self._folder / download.file_name).unlink(missing_ok=True)
                del self._downloads[key]


def _entry(skill: PublicSkill, download: Download) -> dict[str, str]:
    path = f"{skill.name}/{SKILL_FILE}" if download.kind == "skill-md" else f"{skill.name}.zip"
    return {
        "name": skill.name,
        "type": download.kind,
        "description": skill.description[:MAX_DESCRIPTION_CHARACTERS],
        "url": path,  # relative to the index, so that a proxy may serve it below any path
        "digest": f"sha256:{download.digest}",
    }


def _document(entries: list[dict[str, str]]) -> PublicIndex:
    body = json.dumps({"$schema": SCHEMA, "skills": entries}, ensure_ascii=False, indent=1).encode("utf-8", "replace")
    return PublicIndex(body=body, etag=f'"{hashlib.sha256(body).hexdigest()}"')
