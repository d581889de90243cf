"""What installers and strangers say, fit to be shown; and what we say when an install fails."""

from apexbridge.errors import ServerError

MAX_LINE_CHARACTERS = 500


def readable(line: str | bytes) -> str:
    """One line of an installer or a stranger, bounded and fit for a terminal."""
    text = line.decode("utf-8", "replace") if isinstance(line, bytes) else line
    shown = text.strip()[:MAX_LINE_CHARACTERS]
    return "".join(character if character.isprintable() else " " for character in shown)


def failed(message: str) -> ServerError:
    """An install that did not come to a good end."""
    return ServerError(message.strip(), code="EXECUTION_ERROR")


def too_large(limit: int) -> ServerError:
    """A layer above its limit."""
    return failed(f"The packages are larger than {limit // (1024 * 1024)} MB and were not installed.")
