"""Agent Skills Discovery 0.2.0: reads the index of a server, and unpacks the skills that it names."""

import gzip
import re
import stat
import tarfile
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Literal
from urllib.parse import urljoin, urlsplit

from apexbridge._json import loads_untrusted
from apexbridge._text import near_names
from apexbridge.errors import InvalidArchiveError, InvalidSkillStructureError, RequestError, did_you_mean
from apexbridge.skills import MAX_SKILL_FILE_BYTES, SKILL_FILE
from apexbridge.skills.models import LeftOut
from apexbridge.skills.package.archive import (
    MAX_FILE_BYTES,
    MAX_SKILL_ENTRIES,
    MAX_TOTAL_BYTES,
    inspect,
    read_entry,
)
from apexbridge.skills.package.entry_names import checked_parts, is_junk, is_skill_file
from apexbridge.skills.remote.source_text import INDEX_PATH as INDEX_PATH  # re-exported
from apexbridge.skills.remote.source_text import PUBLIC_NAME as PUBLIC_NAME
from apexbridge.skills.remote.tree import MB, TreeEntry, too_large, write_tree

SCHEMA = "https://schemas.agentskills.io/discovery/0.2.0/schema.json"
MAX_INDEX_BYTES = 16 * MB
MAX_INDEX_SKILLS = 10_000
MAX_UNCHOSEN = 200
"""Skills of an index that are installed together without being named."""
MAX_SHOWN_NAMES = 20
ALL_SKILLS = "*"
DownloadKind = Literal["skill-md", "archive"]
_DIGEST = re.compile(r"sha256:([0-9a-f]{64})\Z")
_TAR_OVERHEAD_BYTES = 4 * MB
"""Headers and padding of a tar file."""


class NotAnIndexError(ValueError):
    """The answer is something else than an index, such as a page of a website."""


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexEntry:
    """A skill of an index."""

    name: str
    kind: DownloadKind
    url: str
    digest: str
    """SHA-256 of the download, as hexadecimal digits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SkillIndex:
    """The usable entries of an index."""

    url: str
    entries: tuple[IndexEntry, ...]
    left_out: tuple[LeftOut, ...]
    """Entries that break the rules of the format."""

    def choose(self, names: Sequence[str]) -> list[IndexEntry]:
        """The named entries, or all of them.

        Raises:
            RequestError: SOURCE_NOT_FOUND for a name that it lacks; INVALID_INPUT if there are too many to install all.
        """
        if not names and len(self.entries) > MAX_UNCHOSEN:
            shown = ", ".join(entry.name for entry in self.entries[:MAX_SHOWN_NAMES])
            raise RequestError(
                f"{self.url} lists {len(self.entries):,} skills. Choose some with --skill NAME, or all with "
                f"--skill '{ALL_SKILLS}': {shown}, …",
                code="INVALID_INPUT",
            )
        if not names or ALL_SKILLS in names:
            return list(self.entries)
        known = {entry.name: entry for entry in self.entries}
        for name in names:
            if name not in known:
                reason = next((f" ({one.reason})" for one in self.left_out if one.name == name), "")
                near = did_you_mean(near_names(name, known))
                raise RequestError(
                    f"{self.url} lists no skill {name[:100]!r}{reason}{near}", code="SOURCE_NOT_FOUND", skill=name
                )
        return [known[name] for name in dict.fromkeys(names)]


def parse_index(data: bytes, url: str) -> SkillIndex:
    """Read an index that was downloaded from `url`.

    Raises:
        NotAnIndexError: it is something else.
        RequestError: SOURCE_UNREACHABLE, it is an index of another version.
    """
    try:
        document = loads_untrusted(data.decode("utf-8"))
    except ValueError as error:
        raise NotAnIndexError(f"not valid JSON ({error})") from error
    listed = document.get("skills") if isinstance(document, dict) else None
    if not isinstance(document, dict) or not isinstance(listed, list):
        raise NotAnIndexError("it has no list of skills")
    if document.get("$schema") != SCHEMA:
        shown = str(document.get("$schema") or "none, which is version 0.1.0")[:200]
        raise RequestError(
            f"{url} is an index of another version: {shown!a}. Version 0.2.0 is supported.", code="SOURCE_UNREACHABLE"
        )
    if len(listed) > MAX_INDEX_SKILLS:
        raise too_large(f"more than {MAX_INDEX_SKILLS:,} skills", advice="Larger indexes are not read")
    entries: dict[str, IndexEntry] = {}
    left_out: list[LeftOut] = []
    for item in listed:
        entry = _entry(item, url)
        if isinstance(entry, IndexEntry) and entry.name not in entries:
            entries[entry.name] = entry
            continue
        name = str(item.get("name", "unnamed"))[:64] if isinstance(item, dict) else "unnamed"
        reason = entry if isinstance(entry, str) else "its index lists the name twice"
        left_out.append(LeftOut(name=name, path="", reason=reason))
    return SkillIndex(url=url, entries=tuple(entries.values()), left_out=tuple(left_out))


def _entry(item: object, index_url: str) -> IndexEntry | str:
    """The entry, or why it cannot be used."""
    if not isinstance(item, dict):
        return "its index entry is not an object"
    name, kind, url, digest = (item.get(key) for key in ("name", "type", "url", "digest"))
    if not isinstance(name, str) or not PUBLIC_NAME.match(name):
        return "its index entry has no valid name"
    if kind not in ("skill-md", "archive"):
        return f"its index entry has an unknown type: {str(kind)[:50]!a}"
    matched = _DIGEST.match(digest) if isinstance(digest, str) else None
    if matched is None:
        return "its index entry has no SHA-256 digest"
    try:
        address = urljoin(index_url, url) if isinstance(url, str) and url.isprintable() else ""
        scheme = urlsplit(address).scheme
    except ValueError:
        scheme = ""
    if scheme not in ("https", "http"):
        return "its index entry has no address for a download"
    return IndexEntry(name=name, kind="archive" if kind == "archive" else "skill-md", url=address, digest=matched[1])


def unpack(download: Path, entry: IndexEntry, folder: Path, *, max_bytes: int) -> int:
    """Write the files of a download into a new folder; returns their size.

    The SKILL.md of an archive is at its root, or in its only top folder.

    Raises:
        InvalidArchiveError: the archive breaks the ZIP policy, whichever format it has.
        InvalidSkillStructureError: it contains no skill.
    """
    limit = min(max_bytes, MAX_TOTAL_BYTES)
    with download.open("rb") as file:
        if entry.kind == "skill-md":
            data = file.read(MAX_SKILL_FILE_BYTES + 1)
            if len(data) > min(limit, MAX_SKILL_FILE_BYTES):
                raise too_large(f"a {SKILL_FILE} of more than {MAX_SKILL_FILE_BYTES // MB} MB", advice="Shorten it")
            write_tree(folder, [(_tree_entry(SKILL_FILE, len(data), executable=False), data)])
            return len(data)
        magic = file.read(4)
        file.seek(0)
        try:
            files = dict(_zip_files(file, limit) if magic[:2] == b"PK" else _tar_files(file, magic, limit))
        except (tarfile.TarError, zlib.error, gzip.BadGzipFile, EOFError) as error:
            raise InvalidArchiveError(f"Invalid archive: {error}", code="INVALID_ZIP") from error
    root = _root_of(files)
    write_tree(
        folder,
        (
            (_tree_entry("/".join(parts[len(root) :]), len(data), executable=executable), data)
            for parts, (data, executable) in files.items()
        ),
    )
    return sum(len(data) for data, _ in files.values())


_Files = Iterator[tuple[tuple[str, ...], tuple[bytes, bool]]]
"""Path, content, and whether it is executable."""


def _zip_files(file: IO[bytes], limit: int) -> _Files:
    entries = inspect(file)  # type: ignore[arg-type]  # a file on disk
    if len(entries) > MAX_SKILL_ENTRIES:
        raise too_large(f"more than {MAX_SKILL_ENTRIES:,} files", advice="Larger skills are not installed")
    if sum(entry.size for entry in entries) > limit:
        raise too_large(f"more than {limit // MB} MB")
    for entry in entries:
        yield entry.parts, (b"".join(read_entry(file, entry)), entry.executable)  # type: ignore[arg-type]


def _tar_files(file: IO[bytes], magic: bytes, limit: int) -> _Files:
    if magic[:2] != b"\x1f\x8b":
        raise InvalidArchiveError("The download is neither a ZIP nor a .tar.gz", code="INVALID_ZIP")
    seen: set[tuple[str, ...]] = set()
    with gzip.GzipFile(fileobj=file) as plain:
        stream = _Capped(plain, limit + _TAR_OVERHEAD_BYTES)
        with tarfile.open(fileobj=stream, mode="r|", errorlevel=2) as archive:  # type: ignore[call-overload]
            for member in archive:
                if member.isdir():
                    continue
                parts = checked_parts(member.name.removeprefix("./"))
                if not member.isreg() or member.sparse is not None:
                    shown = "/".join(parts)
                    raise InvalidArchiveError(
                        f"Unsafe entry {shown}: not a regular file", code="UNSAFE_ENTRY", entry=shown
                    )
                if is_junk(parts):
                    continue
                if len(seen) >= MAX_SKILL_ENTRIES or member.size > MAX_FILE_BYTES:
                    raise too_large("too many or too large files", advice="Larger skills are not installed")
                if parts in seen:
                    raise InvalidArchiveError(f"Unsafe path: {'/'.join(parts)} is there twice", code="UNSAFE_PATH")
                seen.add(parts)
                content = archive.extractfile(member)
                data = content.read() if content else b""
                yield parts, (data, bool(member.mode & 0o111))


class _Capped:
    """Reads a decompressed stream up to a limit: a small archive can contain gigabytes."""

    def __init__(self, file: gzip.GzipFile, limit: int) -> None:
        self._file = file
        self._left = limit

    def read(self, size: int = -1) -> bytes:
        data = self._file.read(min(size, self._left + 1) if size >= 0 else self._left + 1)
        self._left -= len(data)
        if self._left < 0:
            raise too_large("more than the limit of a package when it is unpacked")
        return data


def _root_of(files: dict[tuple[str, ...], tuple[bytes, bool]]) -> tuple[str, ...]:
    """The folder with the SKILL.md: the root of the archive, or its only folder."""
    if any(len(parts) == 1 and is_skill_file(parts[0]) for parts in files):
        return ()
    tops = {parts[0] for parts in files}
    if len(tops) == 1 and any(len(parts) == 2 and is_skill_file(parts[1]) for parts in files):
        return (tops.pop(),)
    raise InvalidSkillStructureError([f"{SKILL_FILE} not found at the root of the archive"])


def _tree_entry(path: str, size: int, *, executable: bool) -> TreeEntry:
    return TreeEntry(path=path, mode=stat.S_IFREG | (0o755 if executable else 0o644), size=size, id="")
