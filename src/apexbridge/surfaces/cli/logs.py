"""Logging: one line per record, with unprintable characters escaped."""

import logging

from apexbridge._text import escaped

FORMAT = "%(levelname)s %(name)s: %(message)s"
INDENT = "    "


class SafeFormatter(logging.Formatter):
    """Escapes unprintable characters, so that untrusted text can neither forge a log line nor control a terminal.

    A message is one line. Lines of a traceback are indented, so that only a record starts at the margin.
    """

    def formatMessage(self, record: logging.LogRecord) -> str:
        return escaped(super().formatMessage(record))

    def format(self, record: logging.LogRecord) -> str:
        first, *others = super().format(record).split("\n")
        return "\n".join([first, *(f"{INDENT}{escaped(line)}" for line in others)])


def set_up_logging() -> None:
    """Log errors to stderr; `apex serve` logs more."""
    handler = logging.StreamHandler()
    handler.setFormatter(SafeFormatter(FORMAT))
    logging.basicConfig(level=logging.ERROR, handlers=[handler])
