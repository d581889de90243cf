"""Group the problems in logs by kind of message, with counts and times."""

import gzip
import json
import os
import re
import sys
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

INPUT_FOLDER = Path("input")
MAX_LINE_CHARACTERS = 2_000
MAX_EXAMPLE_LINES = 30
LEVELS = ("fatal", "error", "warning", "info", "debug", "unknown")

_ALIASES = {
    "fatal": "fatal critical crit alert emerg emergency panic f",
    "error": "error err severe e",
    "warning": "warning warn w",
    "info": "info notice information i",
    "debug": "debug trace verbose fine d",
}
_LEVEL_OF = {alias: level for level, aliases in _ALIASES.items() for alias in aliases.split()}
_NUMBERED_LEVELS = {60: "fatal", 50: "error", 40: "warning", 30: "info", 20: "debug", 10: "debug"}
"""Numeric levels of Pino and bunyan, two loggers for Node."""

_ESCAPE_CODE = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_TIME = re.compile(
    r"""\[?(?P<time>
        \d{4}[-/]\d\d[-/]\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d{1,9})?(?:Z|\ ?[-+]\d\d:?\d\d)?   # ISO 8601 and similar
      | [A-Z][a-z]{2}\ [ \d]\d\ \d\d:\d\d:\d\d                                           # syslog
      | \d\d/[A-Z][a-z]{2}/\d{4}:\d\d:\d\d:\d\d\ [-+]\d{4}                               # web servers
    )\]?""",
    re.VERBOSE,
)
_TIME_WITHIN = 80
"""The time must be within this many characters from the start of a line; web servers write addresses first."""

_LEVEL_WORD = re.compile(
    r"\b(FATAL|CRITICAL|CRIT|ALERT|EMERG|PANIC|ERROR|ERR|SEVERE|WARNING|WARN|INFO|NOTICE|DEBUG|TRACE)\b"
    r"|(?:\blevel=\"?|\[|<)(fatal|critical|crit|alert|emerg|panic|error|err|severe|warning|warn|info|notice|debug|trace)\b"
    r"|\b([Ff]atal|[Ee]rror|[Ww]arning):\s",
    re.ASCII,  # \b must also match next to Chinese characters
)
_LEVEL_WITHIN = 160
_WEB_REQUEST = re.compile(r'"([A-Z]{3,10}) ([^\s"?]+)[^\s"]*(?: HTTP/[\d.]+)?" ([1-5]\d\d)\b')
_SOUNDS_BAD = re.compile(r"Traceback \(most recent call last\)|[a-z](?:Error|Exception)\b|\bpanic: |错误|异常|失败")
_SOUNDS_DOUBTFUL = re.compile(r"警告|告警")
_EXCEPTION = re.compile(r"(?:Caused by: )?(?:[A-Za-z_][\w$]*\.)*[A-Z]\w*(?:Error|Exception|Interrupt|Exit)\b")
_CONTINUES = re.compile(r"[ \t]|Caused by: |During handling of the above |The above exception was |goroutine \d+ \[")
_TRACEBACK = re.compile(r"Traceback \(most recent call last\)|During handling of the above |The above exception was ")

_VARIABLE_PARTS = [
    (re.compile(pattern, re.ASCII), name)
    for pattern, name in (
        (r"\b[0-9a-fA-F]{8}-(?:[0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}\b", "<id>"),
        (r"\b[\w.+-]{1,64}@[\w-]{1,64}\.[\w.-]{1,64}", "<email>"),
        (r"(?<![\w.])\d{1,3}(?:\.\d{1,3}){3}(?::\d+)?(?![\w.])", "<address>"),
        (r'"[^"]*"', '"…"'),
        (r"“[^”]*”", "“…”"),
        (r"(?<!\w)'[^']*'(?!\w)", "'…'"),  # not the apostrophes of "can't" and "won't"
        (r"\b0x[0-9a-fA-F]+\b|\b(?=[a-fA-F]*\d)(?=\d*[a-fA-F])[0-9a-fA-F]{8,}\b", "<n>"),
        (r"\d+(?:[.,:]\d+)*", "<n>"),
        (r"\s+", " "),
    )
]


class InputError(Exception):
    """The input is wrong; the message says how to correct it."""


@dataclass(slots=True)
class Event:
    """One log entry with its continuation lines."""

    line: int
    """Line number in the text or file, from 1."""
    time: str | None
    level: str | None
    """None if the entry has no level field."""
    message: str
    """The first line without the time."""
    lines: list[str]
    cause: str = ""
    """The exception at the end of a stack trace."""

    def add(self, text: str) -> None:
        """Add a continuation line. The last exception of a stack trace is the root cause."""
        if len(self.lines) < MAX_EXAMPLE_LINES:
            self.lines.append(text)
        if _EXCEPTION.match(text):
            self.cause = text


@dataclass(slots=True)
class Group:
    """Entries that differ only in numbers, names and addresses."""

    level: str
    pattern: str
    where: str
    first: str | None
    example: str
    last: str | None = None
    count: int = 0


def main() -> None:
    """Read the request from INPUT_JSON or stdin and print the digest."""
    request = read_request()
    selected = read_levels(request)
    top = request.get("top", 20)
    if not isinstance(top, int) or isinstance(top, bool) or not 1 <= top <= 1000:
        raise InputError('"top" must be a whole number from 1 to 1000.')
    report = digest(read_logs(request), selected=selected, top=top)
    # Write bytes: without a locale, stdout may not be UTF-8.
    sys.stdout.buffer.write(json.dumps(report, ensure_ascii=False, indent=2).encode("utf-8", "replace") + b"\n")


# ------------------------------------------------------------------------------------------------------------- input
def read_request() -> dict[str, Any]:
    """The input object. Input that is too large for a variable is sent on stdin only."""
    written = os.environb.get(b"INPUT_JSON") or sys.stdin.buffer.read()
    try:
        request = json.loads(written.decode("utf-8").strip() or "{}")
    except (ValueError, RecursionError) as error:
        raise InputError("The input is not valid JSON.") from error
    if not isinstance(request, dict):
        raise InputError("The input must be a JSON object.")
    return request


def read_levels(request: dict[str, Any]) -> list[str]:
    """The levels to report."""
    levels = request.get("levels", ["fatal", "error", "warning"])
    if not isinstance(levels, list) or not levels or any(level not in LEVELS for level in levels):
        raise InputError(f'"levels" must be a list of these: {", ".join(LEVELS)}.')
    return levels


def read_logs(request: dict[str, Any]) -> Iterator[tuple[str, Iterable[str]]]:
    """Name and lines of each log: the text of the request, otherwise the attached files."""
    text = request.get("log")
    if text is not None:
        if not isinstance(text, str):
            raise InputError('"log" must be text.')
        yield "log", text.split("\n")
        return
    files = sorted(path for path in INPUT_FOLDER.rglob("*") if path.is_file())
    if not files:
        raise InputError('There is no log: give its text as "log", or attach files.')
    for path in files:
        yield path.relative_to(INPUT_FOLDER).as_posix(), read_file(path)


def read_file(path: Path) -> Iterator[str]:
    """The lines of a file. Rotated logs may be compressed."""
    opener = gzip.open if path.suffix == ".gz" else open
    try:
        with opener(path, "rt", encoding="utf-8", errors="replace", newline="\n") as lines:
            yield from lines
    except (OSError, EOFError, zlib.error) as error:
        raise InputError(f"{path.name} cannot be read: {error}.") from error


# ------------------------------------------------------------------------------------------------------------ digest
def digest(logs: Iterable[tuple[str, Iterable[str]]], *, selected: list[str], top: int) -> dict[str, Any]:
    """Count all entries and group those of the selected levels."""
    levels: Counter[str] = Counter()
    groups: dict[tuple[str, str], Group] = {}
    first = last = None
    for name, event in ((name, event) for name, lines in logs for event in events(lines)):
        level = event.level or guess_level(event)
        levels[level] += 1
        first = first or event.time
        last = event.time or last
        if level not in selected:
            continue
        pattern = pattern_of(event)
        group = groups.get((level, pattern))
        if group is None:
            example = "\n".join(event.lines)
            where = f"{name}:{event.line}"
            group = Group(level=level, pattern=pattern, where=where, first=event.time, example=example)
            groups[level, pattern] = group
        group.count += 1
        group.last = event.time or group.last
    if not levels:
        raise InputError("The log is empty.")
    ordered = sorted(groups.values(), key=lambda group: (LEVELS.index(group.level), -group.count))
    return {
        "entries": levels.total(),
        "from": first,
        "to": last,
        "levels": {level: levels[level] for level in LEVELS if levels[level]},
        "groups": [
            {
                "level": group.level,
                "count": group.count,
                "pattern": group.pattern,
                "first": group.first,
                "last": group.last,
                "where": group.where,
                "example": group.example,
            }
            for group in ordered[:top]
        ],
        "groupsLeftOut": max(0, len(ordered) - top),
    }


def events(lines: Iterable[str]) -> Iterator[Event]:
    """Join the lines of each entry: stack traces and other continuation lines."""
    event: Event | None = None
    traceback: Event | None = None
    has_times = False
    for number, raw in enumerate(lines, start=1):
        text = _ESCAPE_CODE.sub("", raw.rstrip("\r\n"))[:MAX_LINE_CHARACTERS]
        if not text.strip():
            continue
        line = begin(number, text)
        has_times = has_times or line.time is not None
        opens_traceback = _TRACEBACK.match(line.message) is not None
        # A line with a time does not continue a traceback without one: the traceback was truncated.
        ends_traceback = traceback is not None and (traceback.time is None) == (line.time is None)
        continues = (
            (has_times and line.time is None)
            or ends_traceback
            or _CONTINUES.match(line.message)
            or (opens_traceback and event is not None and not event.cause and guess_level(event) in ("fatal", "error"))
        )
        if event is not None and continues:
            event.add(line.message)
        else:
            if event is not None:
                yield event
            event = line
        # A traceback continues while it is indented; the first unindented line names the exception.
        if opens_traceback:
            traceback = line
        elif line.message[0] not in " \t":
            traceback = None
    if event is not None:
        yield event


def begin(number: int, text: str) -> Event:
    """Parse a line as a separate entry."""
    if text.startswith("{") and (event := begin_json(number, text)):
        return event
    match = _TIME.search(text, 0, _TIME_WITHIN)
    if match is None:
        return Event(line=number, time=None, level=None, message=text, lines=[text])
    # Only one space after the time is a separator: further spaces indent a stack trace.
    rest = text[match.end() :]
    before = text[: match.start()].strip()
    message = f"{before} {rest.lstrip()}" if before else rest.removeprefix(" ")
    return Event(line=number, time=match["time"], level=None, message=message, lines=[text])


def begin_json(number: int, text: str) -> Event | None:
    """Parse a line of structured logging, with the field names of common loggers."""
    try:
        entry = json.loads(text)
    except (ValueError, RecursionError):
        return None

    def first_of(*keys: str) -> Any:
        return next((entry[key] for key in keys if entry.get(key) not in (None, "")), None)

    message = first_of("message", "msg", "event", "error", "err")
    if message is None:
        return None
    written, time = first_of("level", "severity", "lvl", "levelname"), first_of("timestamp", "@timestamp", "time", "ts")
    level = _NUMBERED_LEVELS.get(written) if isinstance(written, int) else _LEVEL_OF.get(str(written).lower())
    said = message if isinstance(message, str) else json.dumps(message, ensure_ascii=False)
    return Event(
        line=number,
        time=None if time is None else str(time),
        level=level,
        message=said.split("\n")[0] or said,
        lines=[text],
    )


def guess_level(event: Event) -> str:
    """The level from a web server's status or the level word of the first line, otherwise guessed from other words."""
    if request := _WEB_REQUEST.search(event.message):
        return {"5": "error", "4": "warning"}.get(request[3][0], "info")
    found = _LEVEL_WORD.search(event.message, 0, _LEVEL_WITHIN)
    if found:
        return _LEVEL_OF[next(word for word in found.groups() if word).lower()]
    if event.cause or _SOUNDS_BAD.search(event.message):
        return "error"
    return "warning" if _SOUNDS_DOUBTFUL.search(event.message) else "unknown"


def pattern_of(event: Event) -> str:
    """The message with its variable parts replaced."""
    if request := _WEB_REQUEST.search(event.message):
        return f"{_generalise(f'{request[1]} {request[2]}')} {request[3]}"
    if not event.cause:
        return _generalise(event.message)
    return _generalise(event.cause if _TRACEBACK.match(event.message) else f"{event.message} | {event.cause}")


def _generalise(text: str) -> str:
    for part, name in _VARIABLE_PARTS:
        text = part.sub(name, text)
    return text.strip()


if __name__ == "__main__":
    try:
        main()
    except InputError as error:
        sys.stderr.buffer.write(f"{error}\n".encode("utf-8", "replace"))
        sys.exit(1)
