"""Untrusted text for terminals, JSON output and logs: unprintable characters are replaced or escaped."""

import atexit
import json
import logging
import sys
import threading
import types
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from typing import Any, Literal

from apexbridge._request_id import REQUEST_ID
from apexbridge._text import escaped, without_keys

LOG_FORMAT = "%(levelname)s %(name)s: %(message)s"
SERVER_LOG_FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"
MAX_PENDING_LINES = 10_000
FLUSH_SECONDS = 1.0
_INDENT = "    "
logger = logging.getLogger("apexbridge.server")


def printable(text: str) -> str:
    """The text with unprintable characters replaced, except line feeds and tabs."""
    return "".join(character if character.isprintable() or character in "\n\t" else "�" for character in text)


def printable_json(data: Any) -> str:
    """Data as JSON with unprintable characters escaped. It parses to the same data."""
    text = json.dumps(data, ensure_ascii=False, indent=2)
    return "\n".join(line if line.isprintable() else _json_escaped(line) for line in text.split("\n")) + "\n"


def _json_escaped(line: str) -> str:
    return "".join(character if character.isprintable() else json.dumps(character)[1:-1] for character in line)


class JsonFormatter(logging.Formatter):
    """One JSON object a line: time, level, logger, message, fields of the record, request's id, and traceback."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": _moment(record),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
        }
        line |= getattr(record, "fields", {})
        if (id := REQUEST_ID.get()) is not None:
            line["requestId"] = id
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return without_keys(json.dumps(line))  # ASCII, so that nothing in it can control a terminal


class SafeFormatter(logging.Formatter):
    """Escapes unprintable characters, so that untrusted text can neither forge a log line nor control a terminal.

    A message is one line. Lines of a traceback are indented, so that only a record starts at the margin.
    """

    def formatTime(self, record: logging.LogRecord, datefmt: str | None = None) -> str:
        return _moment(record)

    def formatMessage(self, record: logging.LogRecord) -> str:
        id = REQUEST_ID.get() if self.usesTime() else None  # a command of a person has no use for it
        return escaped(super().formatMessage(record) + (f" request={id}" if id is not None else ""))

    def format(self, record: logging.LogRecord) -> str:
        first, *others = without_keys(super().format(record)).split("\n")
        return "\n".join([first, *(f"{_INDENT}{escaped(line)}" for line in others)])


def _moment(record: logging.LogRecord) -> str:
    """UTC in milliseconds, such as 2026-01-02T03:04:05.678Z."""
    moment = datetime.fromtimestamp(record.created, UTC)
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{moment.microsecond // 1000:03}Z"


class BackgroundHandler(logging.Handler):
    """Writes to stderr in a thread: a pipe that is full, because its reader does not read, must not stop the server.

    Lines beyond a limit are dropped, and their number is logged.
    """

    def __init__(self) -> None:
        super().__init__()
        self._lines: deque[str] = deque()
        self._dropped = 0
        self._has_lines = threading.Event()
        self._is_written = threading.Event()
        self._is_written.set()
        threading.Thread(target=self._write_forever, name="log", daemon=True).start()
        atexit.register(self.flush)

    def emit(self, record: logging.LogRecord) -> None:
        if len(self._lines) >= MAX_PENDING_LINES:
            self._dropped += 1
            return
        self._is_written.clear()
        self._lines.append(self.format(record))
        self._has_lines.set()

    def flush(self) -> None:
        """Wait for pending lines, but not for long."""
        self._is_written.wait(FLUSH_SECONDS)

    def _write_forever(self) -> None:
        while True:
            self._has_lines.wait()
            self._has_lines.clear()
            lines = [self._lines.popleft() for _ in range(len(self._lines))]
            dropped, self._dropped = self._dropped, 0
            if dropped:
                lines.append(self.format(_record(f"{dropped} lines of the log were dropped: nothing read them.")))
            with suppress(OSError, ValueError):  # stderr was closed
                sys.stderr.write("".join(f"{line}\n" for line in lines))
                sys.stderr.flush()
            if not self._lines:
                self._is_written.set()


def log_as_server(
    format: Literal["text", "json"],
    level: Literal["debug", "info", "warning", "error"] = "info",
    *,
    has_access_log: bool = True,
) -> None:
    """Log to stderr, with time and level: this server's lines from `level` on, and warnings of libraries."""
    least = logging.getLevelNamesMapping()[level.upper()]
    root = logging.getLogger()
    root.setLevel(max(least, logging.WARNING))
    for handler in list(root.handlers):
        if isinstance(handler.formatter, SafeFormatter):  # the one of `set_up_logging`
            root.removeHandler(handler)
            background = BackgroundHandler()
            background.setFormatter(JsonFormatter() if format == "json" else SafeFormatter(SERVER_LOG_FORMAT))
            root.addHandler(background)
    logging.getLogger("apexbridge").setLevel(least)
    if not has_access_log:
        logging.getLogger("apexbridge.access").setLevel(logging.WARNING)
    # Skip the lookup of thread, process and source location for each record: the log format does not use them.
    logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False
    logging._srcfile = None


@contextmanager
def python_messages_in_log() -> Iterator[None]:
    """Log what Python prints itself without a time: warnings, and exceptions in threads and callbacks."""
    earlier = threading.excepthook, sys.unraisablehook
    logging.captureWarnings(True)
    threading.excepthook = lambda args: _log_uncaught("a thread", args.exc_type, args.exc_value, args.exc_traceback)
    sys.unraisablehook = lambda args: _log_uncaught("a callback", args.exc_type, args.exc_value, args.exc_traceback)
    try:
        yield
    finally:
        threading.excepthook, sys.unraisablehook = earlier
        logging.captureWarnings(False)


def _log_uncaught(
    where: str, kind: type[BaseException], error: BaseException | None, traceback: types.TracebackType | None
) -> None:
    if not issubclass(kind, SystemExit):
        logger.error("%s failed", where, exc_info=(kind, error or kind(), traceback))


def _record(text: str) -> logging.LogRecord:
    return logging.LogRecord(logger.name, logging.WARNING, "", 0, text, None, None)


def set_up_logging() -> None:
    """Log errors to stderr; `apex serve` logs more."""
    handler = logging.StreamHandler()
    handler.setFormatter(SafeFormatter(LOG_FORMAT))
    logging.basicConfig(level=logging.ERROR, handlers=[handler])
