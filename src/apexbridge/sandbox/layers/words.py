"""What installers and strangers say, fit to be shown; and what we say when an install fails."""

import re

from apexbridge.errors import ServerError

MAX_LINE_CHARACTERS = 500
_PATH = re.compile(r"(?:file:/*|(?<![\w/:.~-]))/(?:[^\s/'\"]+/)+(?P<last>[^\s/'\"]*)")
"""An absolute path of two parts or more, or a URL of one; the path of another URL follows its host and is none."""


def readable(line: str | bytes) -> str:
    """One line of an installer or a stranger, bounded and fit for a terminal."""
    text = line.decode("utf-8", "replace") if isinstance(line, bytes) else line
    shown = text.strip()[:MAX_LINE_CHARACTERS]
    return "".join(character if character.isprintable() else " " for character in shown)


def without_paths(line: str) -> str:
    """A line without the server's absolute paths: of each, only the last part is left."""
    return _PATH.sub(lambda found: f"…/{found['last']}", line)


def failed(message: str) -> ServerError:
    """An install that did not come to a good end."""
    return ServerError(message.strip(), code="EXECUTION_ERROR")


def too_large(limit: int) -> ServerError:
    """A layer above its limit."""
    return failed(f"The packages are larger than {limit // (1024 * 1024)} MB and were not installed.")
