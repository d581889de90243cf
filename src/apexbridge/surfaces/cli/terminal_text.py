"""Untrusted text for terminals, JSON output and logs: unprintable characters are replaced or escaped."""

import atexit
import json
import logging
import sys
import threading
from collections import deque
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any, Literal

from apexbridge._text import escaped

LOG_FORMAT = "%(levelname)s %(name)s: %(message)s"
SERVER_LOG_FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"
MAX_PENDING_LINES = 10_000
FLUSH_SECONDS = 1.0
_INDENT = "    "


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
    """One JSON object a line: time, level, logger, message, the fields of a record, and its traceback."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": _moment(record),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
        }
        line |= getattr(record, "fields", {})
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line)  # ASCII, so that nothing in it can control a terminal


class SafeFormatter(logging.Formatter):
    """Escapes unprintable characters, so that untrusted text can neither forge a log line nor control a terminal.

    A message is one line. Lines of a traceback are indented, so that only a record starts at the margin.
    """

    def formatTime(self, record: logging.LogRecord, datefmt: str | None = None) -> str:
        return _moment(record)

    def formatMessage(self, record: logging.LogRecord) -> str:
        return escaped(super().formatMessage(record))

    def format(self, record: logging.LogRecord) -> str:
        first, *others = super().format(record).split("\n")
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
                lines.append(f"{dropped} lines of the log were dropped: nothing read them.")
            with suppress(OSError, ValueError):  # stderr was closed
                sys.stderr.write("".join(f"{line}\n" for line in lines))
                sys.stderr.flush()
            if not self._lines:
                self._is_written.set()


def log_as_server(format: Literal["text", "json"]) -> None:
    """Log warnings, the steps of chats and all requests to stderr, with time and level."""
    root = logging.getLogger()
    root.setLevel(logging.WARNING)
    for handler in list(root.handlers):
        if isinstance(handler.formatter, SafeFormatter):  # the one of `set_up_logging`
            root.removeHandler(handler)
            background = BackgroundHandler()
            background.setFormatter(JsonFormatter() if format == "json" else SafeFormatter(SERVER_LOG_FORMAT))
            root.addHandler(background)
    for name in ("apexbridge.agent", "apexbridge.access", "apexbridge.server"):
        logging.getLogger(name).setLevel(logging.INFO)
    # Skip the lookup of thread, process and source location for each record: the log format does not use them.
    logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False
    logging._srcfile = None


def set_up_logging() -> None:
    """Log errors to stderr; `apex serve` logs more."""
    handler = logging.StreamHandler()
    handler.setFormatter(SafeFormatter(LOG_FORMAT))
    logging.basicConfig(level=logging.ERROR, handlers=[handler])
