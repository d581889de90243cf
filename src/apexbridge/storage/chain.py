"""A chain of lines, each with the hash of the one before: how the next is made, and whether none was touched."""

import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

GENESIS = "0" * 64
"""What the first line says came before it."""
TORN = "audit.torn"
"""Tells of the line before, which was cut off when the machine went down; the target is the hash of what is left."""
FOREIGN = "audit.foreign"
"""Tells of `lines` before it that somebody else had put there; the target is their hash."""
RECOVERED = "audit.recovered"
"""Tells that lines before it were written after a crash, from the database, which knew them."""
ANCHORED = "audit.anchored"
"""Tells that the database did not know where the log ends, and took the lines before for all of them."""
_END = re.compile(rb',"hash":"([0-9a-f]{64})"}\Z')
_OF_CHAIN = {"seq", "prev", "hash"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """Where a chain ends: the number and the hash of its last line, and the size of the last file up to there."""

    count: int = 0
    hash: str = GENESIS
    size: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditReport:
    """What came of walking a chain."""

    intact: bool
    count: int
    """Sound lines, up to the first that is not."""
    file: str | None = None
    """Where the first broken line is."""
    line: int | None = None
    """The first broken line of that file, counted from 1."""
    problem: str | None = None
    torn: int = 0
    """Lines that a crash cut off before they counted; the line after each tells of it."""
    recovered: int = 0
    """Times that a crash came between the database and the file, and the lines were written later."""


def chained(head: Head, fields: Mapping[str, Any]) -> tuple[bytes, Head]:
    """The next line with its line end, and where the chain ends with it."""
    told = {"seq": head.count + 1, **fields, "prev": head.hash}
    body = json.dumps(told, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace")
    hash = hashlib.sha256(body).hexdigest()
    line = body[:-1] + f',"hash":"{hash}"}}\n'.encode()
    return line, Head(count=head.count + 1, hash=hash, size=head.size + len(line))


def chained_all(head: Head, acts: Sequence[Mapping[str, Any]], *, first: bytes = b"") -> tuple[bytes, Head]:
    """The next lines in one piece, after what ends the line before them."""
    lines, head = [first], Head(count=head.count, hash=head.hash, size=head.size + len(first))
    for fields in acts:
        line, head = chained(head, fields)
        lines.append(line)
    return b"".join(lines), head


def followed(head: Head, text: bytes) -> tuple[Head | None, str, dict[str, Any]]:
    """Where the chain ends with this line (without its line end), or None and why not; and what the line tells."""
    end = _END.search(text)
    if end is None:
        return None, "it is no line of this log", {}
    body = text[: end.start()] + b"}"
    hash = hashlib.sha256(body).hexdigest()
    if hash != end[1].decode():
        return None, "it was changed after it was written", {}
    try:
        told = json.loads(body)
        number, previous = told["seq"], told["prev"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return None, "it is no line of this log", {}
    if not isinstance(number, int):
        return None, "it is no line of this log", {}
    if number > head.count + 1:
        return None, f"missing before it: {_lines(number - head.count - 1)}", told
    if number != head.count + 1:
        return None, f"it has the number {number} where {head.count + 1} belongs", told
    if previous != head.hash:
        return None, "it does not follow from the line before", told
    return Head(count=number, hash=hash, size=head.size + len(text) + 1), "", told


def acts_of(lines: bytes) -> list[dict[str, Any]]:
    """What chained lines tell, to be chained anew."""
    told = [json.loads(line) for line in lines.splitlines() if line]
    return [{key: value for key, value in fields.items() if key not in _OF_CHAIN} for fields in told]


def end_of(head: Head, lines: bytes) -> Head:
    """Where the chain ends with lines that were made for it."""
    fields = json.loads(lines.splitlines()[-1])
    return Head(count=fields["seq"], hash=fields["hash"], size=head.size + len(lines))


def torn_note(left: bytes) -> dict[str, Any]:
    """What is said after a line that was cut off."""
    return {"what": TORN, "target": hashlib.sha256(left).hexdigest()}


class Walk:
    """Follows a chain through its files, up to the first line that is not as it was written."""

    def __init__(self) -> None:
        self.head = Head()
        self._torn = self._recovered = 0
        self.number = 0
        """The line of the last file that was read last."""
        self._file = ""
        self._is_missing = False
        self._left: bytes | None = None

    def through(self, files: Iterable[tuple[str, Iterable[bytes] | None]]) -> AuditReport | None:
        """Read all lines of all files (None is one that is missing); gives what is broken, or None."""
        gone: str | None = None
        for self._file, lines in files:
            self.number, self._is_missing = 0, lines is None
            for self.number, line in enumerate(lines or (), 1):
                if broken := self._take(line):
                    return replace(broken, problem=f"{gone} is gone; {broken.problem}") if gone else broken
            gone = self._file if self._is_missing else None
            if self._left is not None:
                return self._broken(self.number, "it is no line of this log")
        return None

    def end(self, expected: Head) -> AuditReport:
        """Hold the end against where the chain is known to end."""
        more = self.head.count - expected.count
        if more < 0:
            where = "the file itself is gone" if self._is_missing else "the end is cut off"
            return self._broken(self.number + 1, f"{where}; missing: {_lines(-more)}")
        if more > 0:
            return self._broken(
                max(1, self.number - more + 1), f"not written by this server: {_lines(more)} from here on"
            )
        if self.head.hash != expected.hash:
            return self._broken(self.number, "the log does not end with the line it ended with; it was rewritten")
        return AuditReport(intact=True, count=self.head.count, torn=self._torn, recovered=self._recovered)

    def _take(self, line: bytes) -> AuditReport | None:
        text = line.removesuffix(b"\n")
        if self._left is None and _END.search(text) is None and text != line:
            self._left = text  # sound only where the next line tells of it
            return None
        after, problem, told = followed(self.head, text)
        if self._left is not None:
            if after is None or any(told.get(key) != value for key, value in torn_note(self._left).items()):
                return self._broken(self.number - 1, "it is no line of this log")
            self._torn, self._left = self._torn + 1, None
        if after is None and told.get("what") == FOREIGN and isinstance(told.get("lines"), int):
            first = min(max(1, self.number - told["lines"]), self.number)
            return self._broken(
                first, f"not written by this server: {_lines(told['lines'])} from here on", told=self.number
            )
        if after is None:
            return self._broken(self.number, problem)
        self.head = after
        if text == line:
            return self._broken(self.number, "its end is missing")
        self._recovered += told.get("what") == RECOVERED
        return None

    def _broken(self, line: int, problem: str, *, told: int | None = None) -> AuditReport:
        where = f"; line {told} tells when that was noticed" if told else ""
        return AuditReport(
            intact=False,
            count=self.head.count,
            file=self._file,
            line=line,
            problem=problem + where,
            torn=self._torn,
            recovered=self._recovered,
        )


def _lines(count: int) -> str:
    return "1 line" if count == 1 else f"{count} lines"
