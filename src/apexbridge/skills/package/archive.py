"""Reads untrusted ZIP archives. The directory is checked completely before anything is written.

The central directory is parsed here, not by `zipfile`, which accepts most of what an attacker needs: two names for
one entry, overlapping entries, data around the archive, wrong sizes.
"""

import stat
import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import BinaryIO

from apexbridge.errors import InvalidArchiveError, InvalidSkillStructureError
from apexbridge.skills.package.entry_names import MAX_PATH_BYTES, checked_parts, collision_key, is_junk, leads_out

MEGABYTE = 1024 * 1024
MAX_ARCHIVE_BYTES = 50 * MEGABYTE
MAX_ENTRIES = 10_000
"""Of an archive, which may contain a whole repository."""
MAX_SKILL_ENTRIES = 2_000
MAX_FILE_BYTES = 25 * MEGABYTE
MAX_TOTAL_BYTES = 100 * MEGABYTE
MAX_RATIO = 200
RATIO_FREE_BYTES = 1 * MEGABYTE
"""Smaller files may have any compression ratio: text compresses well."""
MAX_COMMENT_BYTES = 512
"""Comments are allowed because `git archive` writes the commit id there."""

_END = struct.Struct("<4s4H2LH")
_CENTRAL = struct.Struct("<4s4B4H3L5H2L")
_LOCAL = struct.Struct("<4s2B4H3L2H")
_ENCRYPTED, _HAS_DESCRIPTOR, _PATCHED, _STRONG, _UTF8 = 0x1, 0x8, 0x20, 0x40, 0x800
_STORED, _DEFLATED = 0, 8
_CHUNK = 64 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A file of the archive that passed all checks."""

    parts: tuple[str, ...]
    size: int
    packed_size: int
    method: int
    crc: int
    offset: int
    """Of the data, after the local header."""
    executable: bool
    refusal: InvalidArchiveError | None = None
    """Why it must not be extracted: its name, its size, or a link, a device or a pipe."""

    @property
    def path(self) -> str:
        return "/".join(self.parts)


def inspect(file: BinaryIO, *, keep_refused: bool = False) -> list[Entry]:
    """Check an archive; returns its files, without junk.

    With `keep_refused`, a link, a large file or a name that is not portable is returned with its `refusal`: in a
    repository it may be outside of all skills. What concerns the archive as a whole is always refused.

    Raises:
        InvalidArchiveError: INVALID_ZIP, UNSAFE_PATH, UNSAFE_ENTRY or ARCHIVE_TOO_LARGE.
        InvalidSkillStructureError: the archive is empty.
    """
    directory_offset, records = _read_directory(file)
    if not records:
        raise InvalidSkillStructureError(["SKILL.md not found: the archive is empty"])
    refusals: list[InvalidArchiveError] = []
    try:
        entries = _check_records(file, records, directory_offset, refusals)
    except InvalidArchiveError:
        if refusals:  # it explains more than what a false size led to
            raise refusals[0] from None
        raise
    if refusals and not keep_refused:
        raise refusals[0]
    return entries


def _check_records(
    file: BinaryIO, records: list["_Record"], directory_offset: int, refusals: list[InvalidArchiveError]
) -> list[Entry]:
    entries: list[Entry] = []
    spans: list[tuple[int, int]] = []
    names = _Names()
    total = 0
    for record in records:
        parts, refusal = _parts_of(record.name)
        refusal = record.check() or refusal
        if refusal:
            refusals.append(refusal)
        else:
            total += record.size
        if total > MAX_TOTAL_BYTES:
            raise _too_large(f"with {record.name} the files are larger than {MAX_TOTAL_BYTES // MEGABYTE} MB together")
        names.add(parts, is_folder=record.is_folder)
        offset = _check_local_header(file, record)
        spans.append((record.header_offset, offset + record.packed_size))
        if not record.is_folder and not is_junk(parts):
            entries.append(record.entry(parts, offset, refusal))
    _check_spans(spans, directory_offset)
    return entries


def _parts_of(name: str) -> tuple[tuple[str, ...], InvalidArchiveError | None]:
    """The components of a name, and why it is not allowed. Raises InvalidArchiveError: it may lead out."""
    try:
        return checked_parts(name), None
    except InvalidArchiveError as error:
        if leads_out(name):
            raise
        return tuple(name.rstrip("/").split("/")), error


def read_entry(file: BinaryIO, entry: Entry) -> Iterator[bytes]:
    """Yield the entry's data in chunks. The checksum is verified after the last chunk.

    Raises:
        InvalidArchiveError: INVALID_ZIP if the data does not match the directory.
    """
    file.seek(entry.offset)
    inflater = zlib.decompressobj(-zlib.MAX_WBITS) if entry.method == _DEFLATED else None
    left, size, crc = entry.packed_size, 0, 0
    pending = b""
    while left or pending:
        if not pending:
            pending = file.read(min(_CHUNK, left))
            if not pending:
                raise _invalid(f"{entry.path}: the archive ends in the middle of it")
            left -= len(pending)
        try:
            chunk = inflater.decompress(pending, _CHUNK) if inflater else pending
        except zlib.error as error:
            raise _invalid(f"{entry.path}: cannot be inflated ({error})") from error
        pending = inflater.unconsumed_tail if inflater else b""
        size += len(chunk)
        if size > entry.size:
            raise _invalid(f"{entry.path}: inflates to more than the {entry.size} bytes it declares")
        crc = zlib.crc32(chunk, crc)
        if chunk:
            yield chunk
    if inflater and (not inflater.eof or inflater.unused_data):
        raise _invalid(f"{entry.path}: its compressed data does not end where it should")
    if size != entry.size or crc != entry.crc:
        raise _invalid(f"{entry.path}: size or checksum is wrong; the archive is damaged")


# ------------------------------------------------------------------------------------------------ the directory
@dataclass(frozen=True, slots=True, kw_only=True)
class _Record:
    """One record of the central directory, not checked yet."""

    raw_name: bytes
    name: str
    flags: int
    method: int
    crc: int
    packed_size: int
    size: int
    mode: int
    header_offset: int

    @property
    def is_folder(self) -> bool:
        return self.name.endswith("/")

    def check(self) -> InvalidArchiveError | None:
        """The reason why this entry must not be extracted; None if it may be. Raises for an invalid archive."""
        kind = stat.S_IFMT(self.mode)
        if (kind == stat.S_IFDIR and not self.is_folder) or (self.is_folder and self.size):
            raise _unsafe(self.name, "file and folder at once")
        if self.flags & (_ENCRYPTED | _STRONG):
            raise _invalid(f"{self.name}: encrypted; pack without a password")
        if self.flags & _PATCHED or self.method not in (_STORED, _DEFLATED):
            raise _invalid(f"{self.name}: compression method {self.method}; pack with deflate or store")
        if 0xFFFFFFFF in (self.size, self.packed_size, self.header_offset):
            raise _invalid(f"{self.name}: ZIP64; a skill's archive is never that large")
        if self.method == _STORED and self.size != self.packed_size:
            raise _invalid(f"{self.name}: stored, but its two sizes differ")
        if self.size > RATIO_FREE_BYTES and self.size > MAX_RATIO * max(1, self.packed_size):
            raise _too_large(f"{self.name} is packed more than {MAX_RATIO} times smaller than it is")
        if kind not in (0, stat.S_IFREG, stat.S_IFDIR):
            return _unsafe(self.name, "links, devices and pipes are not allowed; pack regular files only")
        if self.size > MAX_FILE_BYTES:
            return _too_large(f"{self.name} has {self.size:,} bytes; a file may have {MAX_FILE_BYTES // MEGABYTE} MB")
        return None

    def entry(self, parts: tuple[str, ...], offset: int, refusal: InvalidArchiveError | None) -> Entry:
        return Entry(
            parts=parts,
            size=self.size,
            packed_size=self.packed_size,
            method=self.method,
            crc=self.crc,
            offset=offset,
            executable=bool(self.mode & 0o111),
            refusal=refusal,
        )


class _Names:
    """Refuses two entries with the same path."""

    def __init__(self) -> None:
        self.seen: dict[str, tuple[tuple[str, ...], bool]] = {}

    def add(self, parts: tuple[str, ...], *, is_folder: bool) -> None:
        for depth in range(1, len(parts)):
            self._add(parts[:depth], is_folder=True)
        self._add(parts, is_folder=is_folder)

    def _add(self, parts: tuple[str, ...], *, is_folder: bool) -> None:
        key = collision_key(parts)
        if key not in self.seen:
            self.seen[key] = (parts, is_folder)
            return
        spelled, was_folder = self.seen[key]
        if not (is_folder and was_folder):
            raise _unsafe("/".join(parts), "the same name twice (upper and lower case count as the same)")
        if spelled != parts:
            raise _unsafe("/".join(parts), f"differs from {'/'.join(spelled)} only in case or accents")


def _read_directory(file: BinaryIO) -> tuple[int, list[_Record]]:
    """Read the central directory; returns its offset and its records. The archive must fill the file exactly."""
    size = file.seek(0, 2)
    if size > MAX_ARCHIVE_BYTES:
        raise _too_large(f"the archive has {size:,} bytes; at most {MAX_ARCHIVE_BYTES // MEGABYTE} MB are accepted")
    file.seek(0)
    if file.read(4) not in (b"PK\3\4", b"PK\5\6"):
        raise _invalid("not a ZIP file, or there is data before the archive")
    file.seek(max(0, size - _END.size - MAX_COMMENT_BYTES))
    tail = file.read()
    where = _find_end(tail)
    _, disk, directory_disk, count_here, count, directory_size, directory_offset, _ = _END.unpack_from(tail, where)
    if count > MAX_ENTRIES and directory_size // _CENTRAL.size >= count:
        raise _too_large(f"more than {MAX_ENTRIES} entries")
    if directory_size > MAX_ENTRIES * (_CENTRAL.size + MAX_PATH_BYTES + 64):
        raise _too_large("the directory is larger than any archive that is allowed")
    if disk or directory_disk or count_here != count:
        raise _invalid("an archive in several parts")
    end = size - len(tail) + where
    if directory_offset + directory_size != end:
        raise _invalid("the directory is not where the end record says")
    file.seek(directory_offset)
    return directory_offset, list(_parse_directory(file.read(directory_size), count))


def _find_end(tail: bytes) -> int:
    """Find the end record: the only one whose comment ends exactly at the end of the file.

    A nested archive can have an end record nearby, but its comment ends elsewhere. If two records fit, readers could
    see two different archives.
    """
    marks, where = [], tail.find(b"PK\5\6")
    while where >= 0:
        marks.append(where)
        where = tail.find(b"PK\5\6", where + 1)
    fitting = [
        where
        for where in marks
        if len(tail) - where >= _END.size
        and where + _END.size + int.from_bytes(tail[where + 20 : where + 22], "little") == len(tail)
    ]
    if len(fitting) == 1:
        return fitting[0]
    if not marks:
        raise _invalid(f"no end record: the file is cut off, or its comment is longer than {MAX_COMMENT_BYTES} bytes")
    raise _invalid("data stands after the end of the archive, or it has two ends")


def _parse_directory(directory: bytes, count: int) -> Iterator[_Record]:
    position, seen = 0, 0
    while position < len(directory):
        if len(directory) - position < _CENTRAL.size or directory[position : position + 4] != b"PK\1\2":
            raise _invalid("the directory is damaged")
        fields = _CENTRAL.unpack_from(directory, position)
        flags, method, crc, packed_size, size = fields[5], fields[6], fields[9], fields[10], fields[11]
        name_size, extra_size, comment_size, disk = fields[12:16]
        attributes, header_offset = fields[17], fields[18]
        position += _CENTRAL.size
        raw_name = directory[position : position + name_size]
        position += name_size + extra_size + comment_size
        seen += 1
        if len(raw_name) != name_size or position > len(directory) or disk:
            raise _invalid("the directory is damaged")
        yield _Record(
            raw_name=raw_name,
            name=_decode(raw_name, flags),
            flags=flags,
            method=method,
            crc=crc,
            packed_size=packed_size,
            size=size,
            mode=attributes >> 16,
            header_offset=header_offset,
        )
    if seen != count:
        raise _invalid(f"the end record counts {count} entries, the directory holds {seen}")


def _decode(raw: bytes, flags: int) -> str:
    """UTF-8 if the flag is set; else UTF-8, GB18030 (old Chinese Windows) or CP437, the first that decodes it."""
    encodings = ("utf-8",) if flags & _UTF8 else ("utf-8", "gb18030", "cp437")
    for encoding in encodings:
        try:
            return raw.decode(encoding)
        except UnicodeDecodeError:
            continue
    raise _invalid("a name is marked as UTF-8 and is not")


def _check_local_header(file: BinaryIO, record: _Record) -> int:
    """Check that the entry's local header matches the directory; returns the offset of its data."""
    file.seek(record.header_offset)
    header = file.read(_LOCAL.size)
    if len(header) < _LOCAL.size or header[:4] != b"PK\3\4":
        raise _invalid(f"{record.name}: its header is damaged")
    _, _, _, flags, method, _, _, crc, packed_size, size, name_size, extra_size = _LOCAL.unpack(header)
    same = file.read(name_size) == record.raw_name and method == record.method
    same = same and not (flags ^ record.flags) & (_ENCRYPTED | _HAS_DESCRIPTOR | _STRONG | _UTF8)
    if not flags & _HAS_DESCRIPTOR:
        # Writers that reserve space for ZIP64 put 0xFFFFFFFF here and the sizes into the directory.
        same = same and crc == record.crc
        same = same and packed_size in (record.packed_size, 0xFFFFFFFF) and size in (record.size, 0xFFFFFFFF)
    if not same:
        raise _invalid(f"{record.name}: its header and the directory disagree")
    return record.header_offset + _LOCAL.size + int(name_size) + int(extra_size)


def _check_spans(spans: list[tuple[int, int]], directory_offset: int) -> None:
    spans.sort()
    if spans[0][0] != 0:
        raise _invalid("there is data before the first entry")
    ends = [start for start, _ in spans[1:]] + [directory_offset]
    if any(end > limit for (_, end), limit in zip(spans, ends, strict=True)):
        raise _invalid("entries overlap")


def _invalid(message: str) -> InvalidArchiveError:
    return InvalidArchiveError(f"Invalid ZIP archive: {message}", code="INVALID_ZIP")


def _unsafe(name: str, message: str) -> InvalidArchiveError:
    return InvalidArchiveError(f"Unsafe entry {name}: {message}", code="UNSAFE_ENTRY", entry=name)


def _too_large(message: str) -> InvalidArchiveError:
    return InvalidArchiveError(f"Archive too large: {message}", code="ARCHIVE_TOO_LARGE")
