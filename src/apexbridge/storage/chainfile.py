"""A chain of lines in a file: appended to and never changed, found again after whatever happened to it."""

import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, BinaryIO

from apexbridge.storage.chain import Head, chained, followed, torn_note

TAIL_BYTES = 64 * 1024
"""Longer than any line."""
logger = logging.getLogger(__name__)


def now() -> str:
    """The time, as lines tell it."""
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def appended(descriptor: int, head: Head, acts: Sequence[Mapping[str, Any]], *, first: bytes = b"") -> Head:
    """Add lines, and have them on the disk; what was written by halves is taken back.

    Raises:
        OSError: the disk does not take them.
    """
    size = os.fstat(descriptor).st_size
    lines, after = [first], replace(head, size=size + len(first))
    for fields in acts:
        line, after = chained(after, fields)
        lines.append(line)
    rest = memoryview(b"".join(lines))
    try:
        while rest:
            rest = rest[os.write(descriptor, rest) :]
        os.fdatasync(descriptor)
    except OSError:
        os.ftruncate(descriptor, size)
        raise
    return after


def attached(descriptor: int, known: Head) -> Head:
    """Where a log that was left alone ends now: lines that were written last may not have been remembered."""
    size = os.fstat(descriptor).st_size
    head = known
    if size < known.size:
        logger.error("the audit log is shorter than it was; see: apex audit verify")
    with os.fdopen(os.dup(descriptor), "rb") as file:
        file.seek(min(known.size, size))
        left = b""
        for line in file:
            if not line.endswith(b"\n"):
                left = line
                break
            after, _ = followed(head, line[:-1])
            if after is None:
                logger.error("the audit log holds lines that do not belong there; see: apex audit verify")
                break
            head = after
        if size and not left:
            left = _last_line(file, size)
    head = replace(head, size=size)
    if not left:
        return head
    whole, _ = followed(head, left)
    if whole is not None:  # all of it but the line end
        return appended(descriptor, replace(whole, size=size), [], first=b"\n")
    logger.warning("the last line of the audit log was cut off; the log goes on after it")
    note = {"time": now(), "who": "", **torn_note(left)}
    return appended(descriptor, head, [note], first=b"\n")


def is_at(path: Path, descriptor: int) -> bool:
    """Whether the open file is the one that the path names, and not one that was moved or removed."""
    try:
        return os.path.samestat(path.lstat(), os.fstat(descriptor))
    except FileNotFoundError:
        return False


def _last_line(file: BinaryIO, size: int) -> bytes:
    """What comes after the last line end."""
    start = max(0, size - TAIL_BYTES)
    file.seek(start)
    return file.read(size - start).rpartition(b"\n")[2]


def lines_of(file: BinaryIO, size: int) -> Iterator[bytes]:
    """Lines up to a size."""
    while size > 0 and (line := file.readline(size)):
        size -= len(line)
        yield line
