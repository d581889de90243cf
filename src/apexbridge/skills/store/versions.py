"""Versions of installed skills: the contents that each of them has had, and which one is installed.

A folder for each skill has a record, `versions.json`, and one archive per content, named by its content hash. An
archive is complete before the record names it, and the record is replaced by rename: a crash leaves the old list or
the new one. What is installed decides which version is the default; the record only says which one, if several have
the same content.
"""

import contextlib
import hashlib
import json
import logging
import os
import re
import secrets
import stat
import threading
import uuid
import zipfile
import zlib
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO, BinaryIO, Literal, cast

from pydantic import Field

from apexbridge._fs import replace_file, sync_folder
from apexbridge._time import MAX_MS, MS_PER_DAY, now_ms
from apexbridge.disk import MB
from apexbridge.errors import InvalidArchiveError, ServerError
from apexbridge.sandbox.launcher.removal import remove_tree
from apexbridge.skills import MAX_SKILL_FILE_BYTES
from apexbridge.skills.config import VersionLimits
from apexbridge.skills.models import Origin
from apexbridge.skills.package.entry_names import is_skill_file
from apexbridge.skills.package.fingerprint import content_hash
from apexbridge.skills.package.frontmatter import parse_leniently
from apexbridge.skills.package.packing import PackLimits, add_file
from apexbridge.skills.package.skill import PackageFile
from apexbridge.skills.store.names import folder_of_name, own_name
from apexbridge.wire import WireModel

RECORD_FILE = "versions.json"
MAX_DESCRIPTION = 4096
"""Characters of a description that are recorded; a lenient install accepts longer ones."""
ORPHAN_DAYS = 7
"""How long versions are kept of a skill whose folder was removed by hand."""
SignerOf = Callable[[Path, str], str | None]
"""Returns the trusted signer of the skill in a folder, by the name under which it is served."""
VersionSource = Literal["install", "upload", "edit", "update", "disk"]
_ORPHAN_FILE = "removed"
_CHUNK_BYTES = 1024 * 1024
_ARCHIVE_NAME = re.compile(r"([0-9a-f]{64})\.zip\Z")
NS_PER_MS = 1_000_000
logger = logging.getLogger(__name__)


class Version(WireModel):
    """One version of a skill, as it is recorded."""

    number: int = Field(ge=1)
    id: str = Field(pattern=r"^skillver_[0-9a-f]{32}$")
    content_hash: str = Field(pattern=r"^[0-9a-f]{64}$")
    created_at: int = Field(ge=0, le=MAX_MS)
    """Milliseconds; later than that of the version before."""
    name: str
    description: str
    source: VersionSource
    author: str = ""
    """The id of the API key; empty without one."""
    signer: str | None = None
    """Who signed it, as known when it was stored."""
    size: int = 0
    """Of its files together, in bytes."""
    origin: Origin | None = None
    """Where its content was fetched from."""


class History(WireModel):
    """The versions of one skill, the oldest first."""

    next: int = Field(default=1, ge=1)
    """Numbers are never used again."""
    default: int = 0
    """The number of the installed version."""
    display_name: str | None = None
    """A title that Anthropic's clients set."""
    versions: tuple[Version, ...] = ()

    @property
    def newest(self) -> Version | None:
        return self.versions[-1] if self.versions else None

    def numbered(self, number: int) -> Version | None:
        return next((version for version in self.versions if version.number == number), None)

    def installed(self, content_hash: str) -> Version | None:
        """The version with the installed content: the default, or else the newest with it; None if there is none."""
        default = self.numbered(self.default)
        if default is not None and default.content_hash == content_hash:
            return default
        return next((version for version in reversed(self.versions) if version.content_hash == content_hash), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """Why the content of a skill changes, and who changed it."""

    source: VersionSource = "disk"
    author: str = ""
    default: int | None = None
    """The version that is installed again; None if the content is a new version."""


BY_HAND = Change()
"""A change of the folder that was found on disk."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Content:
    """The content of a skill on disk, and what a version records of it."""

    name: str
    """The name under which the skill is served."""
    description: str
    content_hash: str
    folder: Path
    files: Sequence[PackageFile]
    origin: Origin | None = None


class VersionStore:
    """The versions below one folder. Thread-safe."""

    def __init__(
        self,
        folder: Path,
        limits: VersionLimits,
        *,
        drafts: Callable[[], Path],
        signer_of: SignerOf = lambda folder, name: None,
    ) -> None:
        """`drafts` returns a folder on the same mount, which is cleared at every start."""
        self.folder = folder
        self._limits = limits
        self._drafts = drafts
        self._signer_of = signer_of
        self.lock = threading.RLock()
        """Held while a record or the archives that it names change."""

    # ------------------------------------------------------------------------------------------------- reading
    def of(self, name: str) -> History:
        """The versions of a skill; empty if it has none, or if they cannot be read now."""
        try:
            return self._read(name)
        except OSError:
            logger.exception("the versions of %s cannot be read", name)
            return History()

    def _read(self, name: str, *, besides: str = "") -> History:
        """As `of`, for a change. A record that is damaged or lost is made again from the archives, except for that of
        the content `besides`, which is about to be recorded.

        Raises:
            OSError: it cannot be read now. Nothing may be deleted then.
        """
        try:
            return History.model_validate(json.loads((self.path(name) / RECORD_FILE).read_bytes()))
        except FileNotFoundError:
            return self._rebuilt(name, besides)
        except (ValueError, RecursionError):
            logger.warning("the record of the versions of %s is damaged; it is made again from their archives", name)
            return self._rebuilt(name, besides)

    def _rebuilt(self, name: str, besides: str) -> History:
        """The versions whose archives are there, the oldest first. Who made them, and from where, is lost."""
        try:
            found = sorted((path.stat().st_mtime_ns, path) for path in self.path(name).iterdir())
        except FileNotFoundError:  # no versions, or they were moved a moment ago
            return History()
        versions: list[Version] = []
        for modified, path in found:
            matched = _ARCHIVE_NAME.match(path.name)
            if matched is None or matched[1] == besides or (summary := _summary(path)) is None:
                continue
            description, size = summary
            earliest = versions[-1].created_at + 1 if versions else 0
            versions.append(
                Version(
                    number=len(versions) + 1,
                    id=version_id(name, matched[1]),
                    content_hash=matched[1],
                    created_at=max(modified // NS_PER_MS, earliest),
                    name=name,
                    description=description,
                    source="disk",
                    size=size,
                )
            )
        return History(next=len(versions) + 1, versions=tuple(versions))

    def without_record(self, names: Collection[str]) -> set[str]:
        """Those of these skills that have no versions yet."""
        known = set(self.names())
        return {name for name in names if folder_of_name(name) not in known}

    def names(self) -> list[str]:
        """The folders of all skills that have versions, also of those that are not installed."""
        try:
            return sorted(os.listdir(self.folder))  # noqa: PTH208  # names, not paths
        except OSError:
            return []

    def open(self, name: str, version: Version) -> BinaryIO:
        """The archive of a version, with one top folder. It can be read to its end, even if the version is removed.

        Raises:
            FileNotFoundError: the version was removed a moment ago.
        """
        return self._archive(name, version.content_hash).open("rb")

    # ------------------------------------------------------------------------------------------------- writing
    def prepare(self, content: Content, *, durable: bool = True) -> Path | None:
        """Pack a content that is about to be installed; returns the draft, which `record` then uses.

        None if it changes meanwhile or is too large for a package.
        """
        ready = self._draft(content)
        draft = ready.with_name(f"{uuid.uuid4().hex}.zip")
        try:
            with draft.open("xb") as file:
                os.fchmod(file.fileno(), 0o600)
                found = _pack(content.folder, content.files, file, name=own_name(content.name))
                file.flush()
                if durable:
                    os.fsync(file.fileno())
            if found != content.content_hash:  # an editor is at work: the next scan records what it leaves
                return None
            return draft.rename(ready)
        except InvalidArchiveError as error:
            logger.warning("no version of %s is stored: %s", content.name, error.message)
            return None
        finally:
            draft.unlink(missing_ok=True)

    def _keep(self, content: Content, *, durable: bool) -> bool:
        """Store a content, unless it is stored already; False if `prepare` returns None."""
        target = self._archive(content.name, content.content_hash)
        if zipfile.is_zipfile(target):  # not only whether it exists: a power failure may have cut it off
            return True
        if not (draft := self._draft(content)).exists() and not self.prepare(content, durable=durable):
            return False
        self._make_folder(content.name)
        draft.rename(target)
        if durable:
            sync_folder(target.parent)
            sync_folder(self.folder)
        return True

    def _draft(self, content: Content) -> Path:
        return self._drafts() / f"{folder_of_name(content.name)}.{content.content_hash}.zip"

    def record(self, content: Content, change: Change) -> Version | None:
        """Record the content that is installed now, as the default version; None if it cannot be stored."""
        with self.lock:
            history = self._read(content.name, besides=content.content_hash)
            known = history.installed(content.content_hash)
            version = history.numbered(change.default) if change.default else None
            if version is None and change.source == "disk":
                version = known
            if version is None or version.content_hash != content.content_hash:
                return self.add(content, change, as_default=True)
            if history.default != version.number:
                self._write(content.name, history.model_copy(update={"default": version.number}))
            return version

    def add(self, content: Content, change: Change, *, as_default: bool) -> Version | None:
        """Record a content as the newest version, unless the newest one has it; None if it cannot be stored.

        The first version of a folder that was found on disk is not synced: syncing thousands at the first start would
        take minutes, and its content is in that folder.
        """
        durable = change.source != "disk" or bool(self._read(content.name).versions)
        if not self._keep(content, durable=durable):
            return None
        with self.lock:
            history = self._read(content.name, besides=content.content_hash)
            version = history.newest
            if version is None or version.content_hash != content.content_hash:
                version = Version(
                    number=history.next,
                    id=f"skillver_{secrets.token_hex(16)}",
                    content_hash=content.content_hash,
                    created_at=max(now_ms(), version.created_at + 1 if version else 0),
                    name=content.name,
                    description=content.description[:MAX_DESCRIPTION],
                    source=change.source,
                    author=change.author,
                    signer=self._signer_of(content.folder, content.name),
                    size=sum(file.size for file in content.files),
                    origin=content.origin,
                )
                history = history.model_copy(
                    update={"next": version.number + 1, "versions": (*history.versions, version)}
                )
            if as_default:
                history = history.model_copy(update={"default": version.number})
            self._write(content.name, self._bounded(content.name, history), durable=durable)
            if version.number > 1:
                self._tidy(content.name)
            return version

    def remove(self, name: str, number: int) -> None:
        """Remove a version that is neither the default nor the only one."""
        with self.lock:
            history = self._read(name)
            left = tuple(version for version in history.versions if version.number != number)
            self._write(name, history.model_copy(update={"versions": left}))
            self._tidy(name)

    def set_display_name(self, name: str, display_name: str) -> None:
        with self.lock:
            self._make_folder(name)
            self._write(name, self._read(name).model_copy(update={"display_name": display_name}))

    def is_intact(self, name: str, version: Version) -> bool:
        """Whether the archive of a version has its content. Raises FileNotFoundError: there is none."""
        with self.open(name, version) as file:
            try:
                return _hash_archive(file) == version.content_hash
            except (zipfile.BadZipFile, ValueError, EOFError, zlib.error, RuntimeError, OSError):
                return False

    def extract(self, name: str, version: Version, target: Path) -> None:
        """Write the files of a version into an empty folder, durably.

        Raises:
            FileNotFoundError: the version was removed a moment ago.
            ServerError: the archive is damaged.
        """
        with self.open(name, version) as file:
            try:
                found = _extract(file, target)
            except (zipfile.BadZipFile, ValueError, EOFError) as error:
                raise _damaged(name, version) from error
        if found != version.content_hash:
            raise _damaged(name, version)

    # ------------------------------------------------------------------------------------------------ removing
    def sweep(self, is_installed: Callable[[str], bool]) -> None:
        """Apply the limits to all skills, and delete versions of skills whose folder was removed by hand long ago.

        `is_installed` returns whether a folder exists among the installed skills.
        """
        for folder in self._folders():
            with self.lock:
                if is_installed(folder.name):
                    try:
                        self._sweep(folder)
                    except OSError:
                        logger.exception("the versions in %s could not be checked; trying again later", folder)
                elif _orphaned_since(folder) < now_ms() - ORPHAN_DAYS * MS_PER_DAY:
                    remove_tree(str(folder))

    def _sweep(self, folder: Path) -> None:
        (folder / _ORPHAN_FILE).unlink(missing_ok=True)
        history = self._read(folder.name)
        bounded = self._bounded(folder.name, history)
        if bounded != history:
            self._write(folder.name, bounded)
        self._tidy(folder.name)

    def _bounded(self, name: str, history: History) -> History:
        """The history within the limits of number, age and space. The default and the newest version always stay."""
        oldest = now_ms() - self._limits.days * MS_PER_DAY
        protected = {history.default, history.versions[-1].number if history.versions else 0}
        left = [
            version
            for version in history.versions
            if version.number in protected or not self._limits.days or version.created_at >= oldest
        ]
        archives = Counter(version.content_hash for version in left)
        sizes = {digest: self._size(name, digest) for digest in archives}
        surplus, excess = len(left) - self._limits.count, sum(sizes.values()) - self._limits.mb * MB
        removed = set()
        for version in left:
            if surplus <= 0 and excess <= 0:
                break
            if version.number not in protected:
                removed.add(version.number)
                archives[version.content_hash] -= 1
                surplus -= 1
                if not archives[version.content_hash]:
                    excess -= sizes[version.content_hash]
        versions = tuple(version for version in left if version.number not in removed)
        return history.model_copy(update={"versions": versions})

    def _size(self, name: str, content_hash: str) -> int:
        try:
            return self._archive(name, content_hash).stat().st_size
        except FileNotFoundError:
            return 0

    def _tidy(self, name: str) -> None:
        """Delete archives that no version has."""
        folder = self.path(name)
        stored = {f"{version.content_hash}.zip" for version in self._read(name).versions}
        with os.scandir(folder) as entries:
            for entry in entries:
                if entry.name.endswith(".zip") and entry.name not in stored:
                    (folder / entry.name).unlink(missing_ok=True)

    # ------------------------------------------------------------------------------------------------- on disk
    def _write(self, name: str, history: History, *, durable: bool = True) -> None:
        data = history.model_dump_json(indent=1).encode()
        replace_file(self.path(name) / RECORD_FILE, data, beside=self._drafts(), mode=0o600, durable=durable)

    def path(self, name: str) -> Path:
        """The folder of a skill's versions."""
        return self.folder / folder_of_name(name)

    def _archive(self, name: str, content_hash: str) -> Path:
        return self.path(name) / f"{content_hash}.zip"

    def _make_folder(self, name: str) -> None:
        self.path(name).mkdir(mode=0o700, exist_ok=True)

    def _folders(self) -> list[Path]:
        return [self.folder / name for name in self.names()]


def version_id(name: str, content_hash: str) -> str:
    """The id of a version that is not recorded; always the same for a content."""
    return f"skillver_{hashlib.sha256(f'{name} {content_hash}'.encode()).hexdigest()[:32]}"


def _summary(path: Path) -> tuple[str, int] | None:
    """The description of the skill in an archive, and the size of its files; None if it is damaged."""
    try:
        with zipfile.ZipFile(path) as archive:
            description = ""
            for info in archive.infolist():
                parts = PurePosixPath(info.filename).parts
                if len(parts) == 2 and is_skill_file(parts[1]):
                    text = archive.open(info).read(MAX_SKILL_FILE_BYTES).decode("utf-8", "replace")
                    field = parse_leniently(text).fields.get("description")
                    description = str(field.value) if field else ""
            return description[:MAX_DESCRIPTION], sum(info.file_size for info in archive.infolist())
    except (zipfile.BadZipFile, ValueError, EOFError, RuntimeError, zlib.error, FileNotFoundError):
        return None  # RuntimeError: an entry is encrypted, or compressed in a way that is not supported


def _pack(folder: Path, files: Sequence[PackageFile], target: IO[bytes], *, name: str) -> str:
    """Write exactly these files as a ZIP with one top folder; returns the hash of what was written.

    Raises:
        InvalidArchiveError: ARCHIVE_TOO_LARGE, they are beyond what a package may hold.
        OSError: a file cannot be read.
    """
    hashed: list[tuple[PackageFile, str]] = []
    limits = PackLimits()
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        for file in sorted(files, key=lambda file: file.path):
            limits.take(file.size, file.path)
            with os.fdopen(os.open(folder / file.path, os.O_RDONLY | os.O_NOFOLLOW), "rb") as opened:
                data = opened.read(file.size + 1)  # more than its size: it is being changed, and the hash differs
            hashed.append((file, hashlib.sha256(data).hexdigest()))
            add_file(archive, data, f"{name}/{file.path}", executable=file.executable)
    return content_hash(hashed)


def _hash_archive(file: BinaryIO) -> str:
    """The content hash of the files of one of our own archives."""
    hashed = []
    with zipfile.ZipFile(file) as archive:
        for info in archive.infolist():
            path = "/".join(PurePosixPath(info.filename).parts[1:])
            executable = bool(info.external_attr >> 16 & stat.S_IXUSR)
            with archive.open(info) as source:
                digest = hashlib.sha256()
                while chunk := source.read(_CHUNK_BYTES):
                    digest.update(chunk)
            hashed.append((PackageFile(path=path, size=info.file_size, executable=executable), digest.hexdigest()))
    return content_hash(hashed)


def _extract(file: BinaryIO, target: Path) -> str:
    """Write the files of one of our own archives; returns their content hash.

    Raises:
        ValueError: a path leads out of the folder.
    """
    hashed: list[tuple[PackageFile, str]] = []
    folders = {target}
    with zipfile.ZipFile(file) as archive:
        for info in archive.infolist():
            parts = PurePosixPath(info.filename).parts[1:]
            if not parts or info.filename.startswith("/") or ".." in parts:
                raise ValueError(info.filename)
            folders |= _make_folders(target, parts[:-1])
            executable = bool(info.external_attr >> 16 & stat.S_IXUSR)
            with archive.open(info) as source, _new_file(target.joinpath(*parts), executable=executable) as written:
                digest, size = hashlib.sha256(), 0
                while chunk := source.read(_CHUNK_BYTES):
                    digest.update(chunk)
                    size += len(chunk)
                    written.write(chunk)
            path = "/".join(parts)
            hashed.append((PackageFile(path=path, size=size, executable=executable), digest.hexdigest()))
    for folder in folders:
        sync_folder(folder)
    return content_hash(hashed)


def _make_folders(target: Path, parts: Sequence[str]) -> set[Path]:
    folders = set()
    for depth in range(1, len(parts) + 1):
        folder = target.joinpath(*parts[:depth])
        if not folder.is_dir():
            folder.mkdir()
            folder.chmod(0o755)  # ignore the umask: sandboxed runs have another user id and must be able to read it
        folders.add(folder)
    return folders


@contextmanager
def _new_file(path: Path, *, executable: bool) -> Iterator[BinaryIO]:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        yield cast(BinaryIO, file)
        file.flush()
        os.fchmod(descriptor, 0o755 if executable else 0o644)
        os.fsync(descriptor)


def _orphaned_since(folder: Path) -> int:
    """When the skill of these versions was first found missing, in milliseconds."""
    marker = folder / _ORPHAN_FILE
    try:
        return int(marker.stat().st_mtime * 1000)
    except OSError:
        with contextlib.suppress(OSError):
            marker.touch(mode=0o600)
        return now_ms()


def _damaged(name: str, version: Version) -> ServerError:
    return ServerError(f"The stored content of version {version.number} of {name} is damaged. Nothing was changed.")
