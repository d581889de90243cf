"""A chain of lines in files: appended to and never changed, found again after whatever happened to them."""

import errno
import hashlib
import logging
import os
import re
import stat
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, BinaryIO

from apexbridge.storage.chain import ANCHORED, FOREIGN, RECOVERED, Head, Walk, acts_of, end_of, torn_note

MAX_FILE_BYTES = 16 * 1024 * 1024
"""A file that has grown to this size is put aside, and the chain goes on in a new one."""
READ_BYTES = 1024 * 1024
NEWLINE = b"\n"
SEE = "see: apex audit verify"
logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Anchor:
    """What the database knows of the end of a chain."""

    head: Head = field(default_factory=Head)
    announced: bytes = b""
    """Lines after that, which may have been written, by halves or not at all."""
    is_known: bool = True
    """False where the database has never heard of a chain."""


class ChainFile:
    """The file that lines go to, and those that were put aside before it."""

    def __init__(self, path: Path, *, max_bytes: int = MAX_FILE_BYTES) -> None:
        self.path = path
        self.head = Head()
        self.first = b""
        """What must come before the next line: the end of one that has none."""
        self._max_bytes = max_bytes
        self._descriptor: int | None = None

    @property
    def is_in_place(self) -> bool:
        """Whether the open file is the one that the path names, and not one that was moved or removed."""
        descriptor = self._descriptor
        try:
            return descriptor is not None and os.path.samestat(self.path.lstat(), os.fstat(descriptor))
        except OSError:
            return False

    @property
    def is_attached(self) -> bool:
        """Whether it also ends where it should; for when nothing is being written."""
        return self.is_in_place and self.path.lstat().st_size == self.head.size

    @property
    def is_full(self) -> bool:
        """Whether the next lines belong into a new file."""
        return self.head.size >= self._max_bytes

    def oddity(self) -> str | None:
        """What is in the place of the file, if it is not one that can be read; None if it is, or if it is missing."""
        try:
            found = self.path.lstat()
            if not stat.S_ISREG(found.st_mode):
                return f"it is {_kind(found)}, not a file"
            os.close(os.open(self.path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK))
        except FileNotFoundError:
            return None
        except OSError as error:
            return f"it cannot be read ({error.strerror})"
        return None

    def attach(self, anchor: Anchor, *, at_start: bool = False) -> list[dict[str, Any]]:
        """Open the file, find its end and write what was announced; gives the lines that have to be written next.

        Raises:
            OSError: the file cannot be opened or written to.
        """
        self.detach()
        if not anchor.is_known:
            anchor = self._found_anchor()
        elif not self.path.exists() and self._was_put_aside(anchor.head):
            anchor = replace(anchor, head=replace(anchor.head, size=0))
        flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY
        descriptor = os.open(self.path, flags, 0o600)
        try:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise OSError(errno.EINVAL, f"{self.path.name} is {_kind(os.fstat(descriptor))}, not a file")
            if not os.fstat(descriptor).st_size:
                _sync(self.path.parent)
            notes = self._caught_up(descriptor, anchor, at_start=at_start)
            if not anchor.is_known:
                notes.insert(0, _note(ANCHORED, detail=f"{anchor.head.count} lines"))
        except BaseException:
            os.close(descriptor)
            raise
        self._descriptor = descriptor
        return notes

    def _caught_up(self, descriptor: int, anchor: Anchor, *, at_start: bool) -> list[dict[str, Any]]:
        """Compare what stands behind the known end with what was announced."""
        head, announced = anchor.head, anchor.announced
        size = os.fstat(descriptor).st_size
        tail = os.pread(descriptor, len(announced), head.size)
        if announced and size >= head.size and announced.startswith(tail):  # none, a part or all of it is there
            rest = announced[len(tail) :]
            if rest:
                written(descriptor, rest)
            head, size, announced = end_of(head, announced), size + len(rest), b""
            if rest and at_start:
                logger.warning("the server had ended before lines of the audit log were written; they are written now")
                self.head, self.first = head, b""
                return [_note(RECOVERED, detail=f"{rest.count(NEWLINE)} lines")]
        self.head, self.first = replace(head, size=size), _missing_end(descriptor, size)
        if size < head.size:
            logger.error("the audit log is shorter than it was; %s", SEE)
        if size <= head.size:
            return acts_of(announced)
        tail = os.pread(descriptor, len(announced) + 1, head.size)
        if announced and len(tail) <= len(announced) and b"\n" not in tail:
            logger.warning("the last line of the audit log was cut off; the log goes on after it")
            return [{"time": now(), "who": "", **torn_note(tail)}, *acts_of(announced)]
        logger.error("the audit log holds lines that this server did not write; %s", SEE)
        lines, digest = _counted(descriptor, head.size)
        return [_note(FOREIGN, target=digest, lines=lines), *acts_of(announced)]

    def append(self, lines: bytes, after: Head) -> None:
        """Add lines, and have them on the disk; what was written by halves is taken back.

        Raises:
            OSError: the disk does not take them.
        """
        assert self._descriptor is not None  # noqa: S101  # whoever appends has attached
        try:
            written(self._descriptor, lines)
        except OSError:
            self.detach()
            raise
        self.head, self.first = after, b""

    def put_aside(self) -> None:
        """Give the full file a name of its own; the next lines go to a new one.

        Raises:
            OSError: the folder does not take it.
        """
        numbers = [number for number, _ in put_aside(self.path)]
        self.path.rename(_numbered(self.path, max(numbers, default=0) + 1))
        self.head = replace(self.head, size=0)
        self.attach(Anchor(head=self.head))

    @contextmanager
    def all_lines(self) -> Iterator[list[tuple[str, Iterator[bytes] | None]]]:
        """Every file of the chain with its lines as they are now; None for one that is missing.

        Only the last one can be given another name meanwhile. All are opened at once, and what is no file is missing.
        """
        with ExitStack() as stack:
            files: list[tuple[str, Iterator[bytes] | None]] = []
            expected = 1
            for number, path in put_aside(self.path):
                if number > expected:  # several that follow each other are told as one
                    files.append((_numbered(self.path, expected).name, None))
                files.append((path.name, _lines_of(path, stack)))
                expected = number + 1
            yield [*files, (self.path.name, _lines_of(self.path, stack))]

    def detach(self) -> None:
        """Let the file go."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def _found_anchor(self) -> Anchor:
        """The end as the files themselves tell it."""
        walk = Walk()
        with self.all_lines() as files:
            walk.through(files)
        size = self.path.stat().st_size if self.path.exists() else 0
        return Anchor(head=replace(walk.head, size=size), is_known=not walk.head.count and not size)

    def _was_put_aside(self, head: Head) -> bool:
        """Whether the server ended after it had put a file aside and before it began the next."""
        last = next(reversed(put_aside(self.path)), None)
        if last is None or last[1].stat().st_size != head.size:
            return False
        with last[1].open("rb") as file:
            file.seek(max(0, head.size - 128))
            return file.read().endswith(f',"hash":"{head.hash}"}}\n'.encode())


def written(descriptor: int, data: bytes) -> None:
    """Add to a file, all or nothing.

    Raises:
        OSError: the disk does not take it.
    """
    size, rest = os.fstat(descriptor).st_size, memoryview(data)
    try:
        while rest:
            rest = rest[os.write(descriptor, rest) :]
        os.fdatasync(descriptor)
    except OSError:
        os.ftruncate(descriptor, size)
        raise


def put_aside(path: Path) -> list[tuple[int, Path]]:
    """The files that were put aside, the oldest first."""
    pattern = re.compile(rf"{re.escape(path.stem)}\.([1-9]\d*){re.escape(path.suffix)}")
    found = [(int(match[1]), file) for file in path.parent.iterdir() if (match := pattern.fullmatch(file.name))]
    return sorted(found)


def now() -> str:
    """The time, as lines tell it."""
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _sync(folder: Path) -> None:
    """Have the names in a folder on the disk."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _numbered(path: Path, number: int) -> Path:
    return path.with_name(f"{path.stem}.{number}{path.suffix}")


def _lines_of(path: Path, stack: ExitStack) -> Iterator[bytes] | None:
    """The lines that a file has now; None where there is none, or something else, such as a link or a pipe."""
    try:
        # Without waiting: a pipe would be waited for, by all who wait for this server.
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError as error:
        if error.errno not in (errno.ENOENT, errno.ELOOP, errno.ENXIO, errno.EACCES, errno.EPERM):
            raise
        return None
    known = os.fstat(descriptor)
    if not stat.S_ISREG(known.st_mode):
        os.close(descriptor)
        return None
    return _lines_up_to(stack.enter_context(os.fdopen(descriptor, "rb")), known.st_size)


def _lines_up_to(file: BinaryIO, size: int) -> Iterator[bytes]:
    while size > 0 and (line := file.readline(size)):
        size -= len(line)
        yield line


def _kind(status: os.stat_result) -> str:
    """What something is that is not a file."""
    kinds = {
        stat.S_IFLNK: "a link",
        stat.S_IFDIR: "a folder",
        stat.S_IFIFO: "a pipe",
        stat.S_IFSOCK: "a socket",
        stat.S_IFBLK: "a device",
        stat.S_IFCHR: "a device",
    }
    return kinds.get(stat.S_IFMT(status.st_mode), "something else")


def _note(what: str, **more: Any) -> dict[str, Any]:
    return {"time": now(), "who": "", "what": what, **more}


def _missing_end(descriptor: int, size: int) -> bytes:
    return b"\n" if size and os.pread(descriptor, 1, size - 1) != b"\n" else b""


def _counted(descriptor: int, start: int) -> tuple[int, str]:
    """How many lines there are from a place on, a last one without an end among them, and their hash."""
    digest, count, last = hashlib.sha256(), 0, b""
    while piece := os.pread(descriptor, READ_BYTES, start):
        digest.update(piece)
        count, last, start = count + piece.count(b"\n"), piece, start + len(piece)
    return count + (not last.endswith(b"\n")), digest.hexdigest()
