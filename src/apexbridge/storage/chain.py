"""A chain of lines, each with the hash of the one before: how the next is made, and whether none was touched."""

import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

GENESIS = "0" * 64
"""What the first line says came before it."""
TORN = "audit.torn"
"""Tells of the line before, which was cut off when the machine went down; the target is the hash of what is left."""
_END = re.compile(rb',"hash":"([0-9a-f]{64})"}\Z')


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """Where a chain ends: the number and the hash of its last line, and the size of the file up to there."""

    count: int = 0
    hash: str = GENESIS
    size: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditReport:
    """What came of walking a chain."""

    intact: bool
    count: int
    """Sound lines, up to the first that is not."""
    line: int | None = None
    """The first broken line of the file, counted from 1."""
    problem: str | None = None
    torn: int = 0
    """Lines that a crash cut off before they counted; the line after each tells of it."""


def chained(head: Head, fields: Mapping[str, Any]) -> tuple[bytes, Head]:
    """The next line with its line end, and where the chain ends with it."""
    told = {"seq": head.count + 1, **fields, "prev": head.hash}
    body = json.dumps(told, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace")
    hash = hashlib.sha256(body).hexdigest()
    line = body[:-1] + f',"hash":"{hash}"}}\n'.encode()
    return line, Head(count=head.count + 1, hash=hash, size=head.size + len(line))


def followed(head: Head, text: bytes) -> tuple[Head | None, str]:
    """Where the chain ends with this line (without its line end), or None and why it cannot be the next one."""
    end = _END.search(text)
    if end is None:
        return None, "it is no line of this log"
    body = text[: end.start()] + b"}"
    hash = hashlib.sha256(body).hexdigest()
    if hash != end[1].decode():
        return None, "it was changed after it was written"
    try:
        told = json.loads(body)
        number, previous = told["seq"], told["prev"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return None, "it is no line of this log"
    if number != head.count + 1:
        return None, f"it has the number {number} where {head.count + 1} belongs"
    if previous != head.hash:
        return None, "it does not follow from the line before"
    return Head(count=number, hash=hash, size=head.size + len(text) + 1), ""


def torn_note(left: bytes) -> dict[str, str]:
    """What is said after a line that was cut off."""
    return {"what": TORN, "target": hashlib.sha256(left).hexdigest()}


def walk(lines: Iterable[bytes], expected: Head) -> AuditReport:
    """Follow a chain from its first line to where it is known to end."""
    head, torn, number = Head(), 0, 0
    left: bytes | None = None

    def broken(line: int, problem: str) -> AuditReport:
        return AuditReport(intact=False, count=head.count, line=line, problem=problem, torn=torn)

    for number, line in enumerate(lines, 1):
        text = line.removesuffix(b"\n")
        if left is None and _END.search(text) is None and text != line:
            left = text  # sound only where the next line tells of it
            continue
        after, problem = followed(head, text)
        if left is not None:
            if after is None or not _tells_of(text, left):
                return broken(number - 1, "it is no line of this log")
            torn, left = torn + 1, None
        if after is None or text == line:
            return broken(number, problem or "its end is missing")
        head = after
    if left is not None:
        return broken(number, "it is no line of this log")
    if head.count < expected.count:
        return broken(number + 1, f"{expected.count - head.count} lines are missing at the end")
    if head.count > expected.count:
        added = head.count - expected.count
        return broken(number - added + 1, f"{added} lines at the end were not written by this server")
    if head.hash != expected.hash:
        return broken(number, "the log does not end with the line it ended with; it was written anew")
    return AuditReport(intact=True, count=head.count, torn=torn)


def _tells_of(text: bytes, left: bytes) -> bool:
    told = json.loads(text)
    return all(told.get(key) == value for key, value in torn_note(left).items())
