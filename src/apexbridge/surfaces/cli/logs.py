"""The log: one line for each record, with everything unprintable escaped."""

import logging

from apexbridge._text import escaped

FORMAT = "%(levelname)s %(name)s: %(message)s"
INDENT = "    "


class SafeFormatter(logging.Formatter):
    """Escapes what is not printable, so that text of a client or a model can neither begin a line nor steer a terminal.

    A message is one line. Lines of a traceback are indented: only a record begins at the margin.
    """

    def formatMessage(self, record: logging.LogRecord) -> str:
        """The first line."""
        return escaped(super().formatMessage(record))

    def format(self, record: logging.LogRecord) -> str:
        """All lines."""
        first, *others = super().format(record).split("\n")
        return "\n".join([first, *(f"{INDENT}{escaped(line)}" for line in others)])


def set_up_logging() -> None:
    """Log errors to stderr; `apex serve` logs more."""
    handler = logging.StreamHandler()
    handler.setFormatter(SafeFormatter(FORMAT))
    logging.basicConfig(level=logging.ERROR, handlers=[handler])
