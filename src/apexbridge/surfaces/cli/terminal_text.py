"""Untrusted text for terminals, JSON output and logs: unprintable characters are replaced or escaped."""

import json
import logging
from typing import Any

from apexbridge._text import escaped

LOG_FORMAT = "%(levelname)s %(name)s: %(message)s"
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


class SafeFormatter(logging.Formatter):
    """Escapes unprintable characters, so that untrusted text can neither forge a log line nor control a terminal.

    A message is one line. Lines of a traceback are indented, so that only a record starts at the margin.
    """

    def formatMessage(self, record: logging.LogRecord) -> str:
        return escaped(super().formatMessage(record))

    def format(self, record: logging.LogRecord) -> str:
        first, *others = super().format(record).split("\n")
        return "\n".join([first, *(f"{_INDENT}{escaped(line)}" for line in others)])


def set_up_logging() -> None:
    """Log errors to stderr; `apex serve` logs more."""
    handler = logging.StreamHandler()
    handler.setFormatter(SafeFormatter(LOG_FORMAT))
    logging.basicConfig(level=logging.ERROR, handlers=[handler])
