"""The format of a backup: a tar archive, compressed with gzip, whose last entry lists all others with their hashes.

The writer needs neither the size of the result nor memory for its entries. The reader takes no byte on trust: it knows
files and folders only, and checks every path, size and hash before a caller uses the manifest.
"""

import gzip
import hashlib
import io
import json
import os
import re
import stat
import tarfile
import tempfile
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, BinaryIO

from pydantic import ValidationError

from apexbridge.backup.contents import (
    FOLDERS,
    FORMAT,
    HEADER_FILE,
    MANIFEST_FILE,
    BackupHeader,
    is_file_entry,
)
from apexbridge.errors import ServerError

LEVEL = 1
"""Of gzip: four times as fast as the default, and a tenth larger."""
CHUNK_BYTES = 256 * 1024
BLOCK = tarfile.BLOCKSIZE
MAX_HEADER_BYTES = 4 * 1024 * 1024
MAX_PAX_BYTES = 64 * 1024
MAX_LINE_BYTES = 64 * 1024
MAX_ENTRIES = 5_000_000
MAX_PATH_BYTES = 4_096
MAX_NAME_BYTES = 255
MAX_DEPTH = 200
_END = bytes(2 * BLOCK)
_ENCODING = "utf-8"
_PAX_RECORD = re.compile(rb"(\d{1,10}) ([^=\n]{1,100})=")
_MAX_MTIME_NS = 1 << 62
Progress = Callable[[int], None]
"""Called with the bytes of all files that were read so far."""


class BackupError(ServerError):
    """A backup that cannot be used."""

    default_code = "BACKUP_INVALID"


@dataclass(frozen=True, slots=True)
class Item:
    """A file or folder that is to be written."""

    path: str
    source: Path | bytes
    is_folder: bool = False


@dataclass(frozen=True, slots=True)
class Entry:
    """A file or folder of a backup, by its manifest."""

    is_folder: bool
    size: int
    sha256: str
    mode: int
    mtime_ns: int


# ------------------------------------------------------------------------------------------------------ writing
def pack(header: BackupHeader, items: Iterable[Item], scratch: Path) -> Iterator[bytes]:
    """The bytes of a backup, in chunks. The manifest is collected in a file without a name in `scratch`.

    Raises:
        ServerError: BUSY, a file became shorter while it was read.
        OSError: a file cannot be read.
    """
    packer = zlib.compressobj(LEVEL, zlib.DEFLATED, 16 + zlib.MAX_WBITS)
    ready, size = [], 0
    with tempfile.TemporaryFile(dir=scratch) as manifest:
        first = Item(HEADER_FILE, header.model_dump_json(indent=1).encode())
        for block in _blocks([first], items, manifest):
            data = packer.compress(block)
            ready.append(data)
            size += len(data)
            if size >= CHUNK_BYTES:
                yield b"".join(ready)
                ready, size = [], 0
    yield b"".join([*ready, packer.flush()])


def _blocks(first: list[Item], items: Iterable[Item], manifest: IO[bytes]) -> Iterator[bytes]:
    for group in (first, items):
        for item in group:
            yield from _entry(item, manifest)
    size = manifest.tell()
    manifest.seek(0)
    yield _tar_header(MANIFEST_FILE, size, mode=0o600, mtime_ns=0)
    while chunk := manifest.read(CHUNK_BYTES):
        yield chunk
    yield bytes(-size % BLOCK)
    yield _END


def _entry(item: Item, manifest: IO[bytes]) -> Iterator[bytes]:
    if isinstance(item.source, bytes):
        yield from _file(item.path, io.BytesIO(item.source), len(item.source), 0o600, 0, manifest)
    elif item.is_folder:
        status = item.source.lstat()
        yield _tar_header(item.path, 0, mode=status.st_mode, mtime_ns=status.st_mtime_ns, is_folder=True)
        _declare(manifest, item.path, is_folder=True, mode=status.st_mode, mtime_ns=status.st_mtime_ns)
    else:
        with os.fdopen(os.open(item.source, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb") as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                raise OSError(f"{item.path} is not a file any more")
            yield from _file(item.path, file, status.st_size, status.st_mode, status.st_mtime_ns, manifest)


def _file(path: str, file: BinaryIO, size: int, mode: int, mtime_ns: int, manifest: IO[bytes]) -> Iterator[bytes]:
    yield _tar_header(path, size, mode=mode, mtime_ns=mtime_ns)
    digest, left = hashlib.sha256(), size
    while left:
        chunk = file.read(min(left, CHUNK_BYTES))
        if not chunk:
            raise ServerError(
                f"{printable(path)} became shorter while it was read. Try again when no program changes it.",
                code="BUSY",
            )
        digest.update(chunk)
        left -= len(chunk)
        yield chunk
    yield bytes(-size % BLOCK)
    _declare(manifest, path, size=size, sha256=digest.hexdigest(), mode=mode, mtime_ns=mtime_ns)


def _tar_header(path: str, size: int, *, mode: int, mtime_ns: int, is_folder: bool = False) -> bytes:
    info = tarfile.TarInfo(path)
    info.size, info.mode, info.mtime = size, stat.S_IMODE(mode), max(0, mtime_ns // 1_000_000_000)
    info.type = tarfile.DIRTYPE if is_folder else tarfile.REGTYPE
    return info.tobuf(tarfile.PAX_FORMAT, _ENCODING, "surrogateescape")


def _declare(
    manifest: IO[bytes],
    path: str,
    *,
    is_folder: bool = False,
    size: int = 0,
    sha256: str = "",
    mode: int,
    mtime_ns: int,
) -> None:
    fields: dict[str, Any] = {"path": path, "mode": f"{stat.S_IMODE(mode):o}", "mtime": mtime_ns}
    fields |= {"folder": True} if is_folder else {"size": size, "sha256": sha256}
    manifest.write(json.dumps(fields, separators=(",", ":")).encode() + b"\n")


# ------------------------------------------------------------------------------------------------------ reading
@dataclass(frozen=True, slots=True)
class Checked:
    """A backup that was read completely, and in which everything is as its manifest says."""

    header: BackupHeader
    entries: dict[str, Entry]
    """By path, without the header."""
    size: int
    """Bytes of all files together."""


def check(file: BinaryIO, progress: Progress = lambda size: None) -> Checked:
    """Read a backup to its end and check all of it. Nothing is written.

    Raises BackupError: BACKUP_INVALID; NEWER_VERSION if its format is unknown.
    """
    header: BackupHeader | None = None
    found: dict[str, tuple[bool, int, str]] = {}
    entries: dict[str, Entry] | None = None
    total = 0
    for path, member in _members(file):
        if entries is not None:
            raise BackupError(f"It is not a backup of apexbridge: {printable(path)} follows its manifest.")
        if header is None:
            header = _header(path, member)
            found[path] = (False, member.size, member.digest)
            continue
        if path == MANIFEST_FILE:
            entries = _manifest(member, found)
            continue
        _check_parent(path, member.is_folder, found)
        for chunk in member.chunks():
            total += len(chunk)
            progress(total)
        found[path] = (member.is_folder, member.size, "" if member.is_folder else member.digest)
        if len(found) > MAX_ENTRIES:
            raise BackupError(f"The backup has more than {MAX_ENTRIES:,} entries.")
    if header is None or entries is None:
        raise BackupError("The backup is incomplete: its manifest is missing.")
    return Checked(header, entries, total)


def extract(file: BinaryIO, target: Path, checked: Checked, progress: Progress = lambda size: None) -> None:
    """Write the entries of a backup, which was checked, to an empty folder. They are not synced yet.

    Raises BackupError if it is not the same any more.
    """
    total = 0
    folders = [target]
    for path, member in _members(file):
        if path in (HEADER_FILE, MANIFEST_FILE):
            continue
        entry = checked.entries.get(path)
        if entry is None or entry.is_folder != member.is_folder:
            raise BackupError("The backup was changed while it was restored.")
        written_path = target / path
        if entry.is_folder:
            written_path.mkdir(mode=0o700)
            folders.append(written_path)
            continue
        descriptor = os.open(written_path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "wb") as written:
            for chunk in member.chunks():
                written.write(chunk)
                total += len(chunk)
                progress(total)
            if (member.size, member.digest) != (entry.size, entry.sha256):
                raise BackupError("The backup was changed while it was restored.")
            written.flush()
            os.fchmod(descriptor, _mode(path, entry))
            os.utime(descriptor, ns=(entry.mtime_ns, entry.mtime_ns))
    for folder in reversed(folders):  # contents first: they change the time of a folder
        entry = checked.entries.get(folder.relative_to(target).as_posix())
        if entry is not None:
            folder.chmod(_mode(folder.relative_to(target).as_posix(), entry))
            os.utime(folder, ns=(entry.mtime_ns, entry.mtime_ns))


def _mode(path: str, entry: Entry) -> int:
    """Only skills may be read by others, as in every data directory. Others may never write."""
    allowed = 0o755 if path.split("/", 1)[0] == "skills" else 0o700
    return entry.mode & allowed | (0o700 if entry.is_folder else 0o600)


class _Member:
    """An entry of the archive. Its content can be read once, in order."""

    def __init__(self, stream: "_Stream", size: int, *, is_folder: bool) -> None:
        self.size = size
        self.is_folder = is_folder
        self._stream = stream
        self._left = size
        self._digest = hashlib.sha256()

    def chunks(self) -> Iterator[bytes]:
        while self._left:
            chunk = self._stream.exactly(min(self._left, CHUNK_BYTES))
            self._left -= len(chunk)
            self._digest.update(chunk)
            yield chunk

    def read(self, limit: int) -> bytes:
        if self.size > limit:
            raise BackupError("It is not a backup of apexbridge: an entry is too large.")
        return b"".join(self.chunks())

    @property
    def digest(self) -> str:
        """SHA-256 of the content, which is read if necessary."""
        for _ in self.chunks():
            pass
        return self._digest.hexdigest()


class _Stream:
    """The decompressed archive."""

    def __init__(self, file: gzip.GzipFile) -> None:
        self._file = file

    def exactly(self, size: int) -> bytes:
        with _damage():
            data = self._file.read(size)
        if len(data) < size:
            raise BackupError("The backup is incomplete: it ends too early.")
        return data

    def is_at_end(self) -> bool:
        with _damage():
            return not self._file.read(1)


@contextmanager
def _damage() -> Iterator[None]:
    try:
        yield
    except EOFError as error:
        raise BackupError("The backup is incomplete: it ends too early.") from error
    except (zlib.error, gzip.BadGzipFile, tarfile.HeaderError) as error:
        raise BackupError("The file is damaged, or it is not a backup of apexbridge.") from error


def _members(file: BinaryIO) -> Iterator[tuple[str, _Member]]:
    """The entries in their order. What the caller does not read of an entry is skipped."""
    file.seek(0)
    with gzip.GzipFile(fileobj=file, mode="rb") as opened:
        stream = _Stream(opened)
        while True:
            found = _next(stream)
            if found is None:
                return
            yield found
            _, member = found
            member.digest  # noqa: B018  # reads the remainder
            stream.exactly(-member.size % BLOCK)


def _next(stream: _Stream) -> tuple[str, _Member] | None:
    """The next file or folder; None at the end."""
    records: dict[str, bytes] = {}
    while True:
        block = stream.exactly(BLOCK)
        if not any(block):
            if any(stream.exactly(BLOCK)) or not stream.is_at_end():
                raise BackupError("It is not a backup of apexbridge: data follows its end.")
            return None
        with _damage():
            info = tarfile.TarInfo.frombuf(block, _ENCODING, "surrogateescape")
        if info.type == tarfile.XHDTYPE and not records:
            if not 0 < info.size <= MAX_PAX_BYTES:
                raise BackupError("It is not a backup of apexbridge: an entry's name is too long.")
            records = _pax_records(stream.exactly(info.size))
            stream.exactly(-info.size % BLOCK)
            continue
        break
    if info.type not in (tarfile.REGTYPE, tarfile.DIRTYPE):
        raise BackupError(f"It is not a backup of apexbridge: {printable(info.name)} is neither a file nor a folder.")
    path = records["path"].decode(_ENCODING, "surrogateescape") if "path" in records else info.name
    size = _number(records["size"]) if "size" in records else info.size
    is_folder = info.type == tarfile.DIRTYPE
    if size < 0 or (is_folder and size):
        raise BackupError(f"It is not a backup of apexbridge: the size of {printable(path)} is not valid.")
    path = path.removesuffix("/") if is_folder else path
    _check_path(path)
    return path, _Member(stream, size, is_folder=is_folder)


def _pax_records(data: bytes) -> dict[str, bytes]:
    records: dict[str, bytes] = {}
    start = 0
    while start < len(data):
        matched = _PAX_RECORD.match(data, start)
        end = start + int(matched[1]) if matched else 0
        if matched is None or end <= matched.end() or data[end - 1 : end] != b"\n":
            raise BackupError("It is not a backup of apexbridge: an entry's name cannot be read.")
        records[matched[2].decode("ascii", "replace")] = data[matched.end() : end - 1]
        start = end
    return records


def _number(text: bytes) -> int:
    if not text.isdigit() or len(text) > 18:
        raise BackupError("It is not a backup of apexbridge: the size of an entry is not valid.")
    return int(text)


def _check_path(path: str) -> None:
    parts = path.split("/")
    encoded = [part.encode(_ENCODING, "surrogateescape") for part in parts]
    if (
        "\0" in path
        or any(part in ("", ".", "..") for part in parts)
        or len(parts) > MAX_DEPTH
        or max(map(len, encoded)) > MAX_NAME_BYTES
        or sum(map(len, encoded)) + len(parts) > MAX_PATH_BYTES
    ):
        raise BackupError(f"The backup has an unsafe path: {printable(path)}")


def _check_parent(path: str, is_folder: bool, found: dict[str, tuple[bool, int, str]]) -> None:
    parent, _, name = path.rpartition("/")
    if path in found:
        raise BackupError(f"The backup has two entries named {printable(path)}.")
    if parent:
        if not found.get(parent, (False,))[0]:
            raise BackupError(f"The backup has an unsafe path: {printable(path)} is not in a folder of the backup.")
    elif not (name in FOLDERS if is_folder else is_file_entry(name)):
        raise BackupError(f"The backup contains {printable(path)}, which does not belong to a data directory.")


def _header(path: str, member: _Member) -> BackupHeader:
    if path != HEADER_FILE or member.is_folder:
        raise BackupError("The file is not a backup of apexbridge.")
    try:
        fields = json.loads(member.read(MAX_HEADER_BYTES))
        number = fields["format"]
        if isinstance(number, int) and number > FORMAT:
            raise BackupError(
                f"The backup was made by a newer version of apexbridge, {printable(str(fields.get('version')))[:64]}. "
                "Restore it with that version. Nothing was changed.",
                code="NEWER_VERSION",
            )
        return BackupHeader.model_validate(fields)
    except (ValueError, KeyError, TypeError, RecursionError, ValidationError) as error:
        raise BackupError("The file is not a backup of apexbridge: its first entry cannot be read.") from error


def _manifest(member: _Member, found: dict[str, tuple[bool, int, str]]) -> dict[str, Entry]:
    """The entries by the manifest. Each is what was found in the archive, and nothing was found that is not declared.

    What was found is removed from `found`.
    """
    entries: dict[str, Entry] = {}
    for line in _lines(member):
        try:
            fields = json.loads(line)
            path, is_folder = fields["path"], fields.get("folder", False)
            declared = (is_folder, 0, "") if is_folder else (False, fields["size"], fields["sha256"])
            mode, mtime_ns = int(fields["mode"], 8), fields["mtime"]
            actual = found.pop(path, None)
            is_valid = isinstance(mtime_ns, int) and abs(mtime_ns) < _MAX_MTIME_NS and mode >= 0
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise BackupError("The backup is damaged: its manifest cannot be read.") from error
        if actual is None or not is_valid:
            raise BackupError(f"The backup is damaged: {printable(str(path))} is missing.", entry=printable(str(path)))
        if actual != declared:
            raise BackupError(
                f"The backup is damaged: {printable(path)} is not what was backed up.", entry=printable(path)
            )
        if path != HEADER_FILE:
            entries[path] = Entry(is_folder, declared[1], declared[2], mode, mtime_ns)
    if found:
        path = printable(next(iter(found)))
        raise BackupError(f"The backup is damaged: {path} is not in its manifest.", entry=path)
    return entries


def _lines(member: _Member) -> Iterator[bytes]:
    tail = b""
    for chunk in member.chunks():
        *lines, tail = (tail + chunk).split(b"\n")
        yield from lines
        if len(tail) > MAX_LINE_BYTES:
            raise BackupError("The backup is damaged: its manifest cannot be read.")
    if tail:
        raise BackupError("The backup is damaged: its manifest ends too early.")


def printable(text: str) -> str:
    """A path of a backup for a message: untrusted, and perhaps not valid text."""
    shown = "".join(character if character.isprintable() else "?" for character in text[:200])
    return shown.encode("utf-8", "replace").decode()
