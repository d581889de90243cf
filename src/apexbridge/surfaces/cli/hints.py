"""Commands in messages, completed so that they work as pasted.

Messages name commands such as `apex skills list`. If this command was called with `--data-dir` or `--url`, the
suggested one needs the same options.
"""

import re
import shlex
from collections.abc import Mapping

_WITHOUT_OPTIONS = frozenset({"skills validate", "skills doctor", "eval retrieval"})
_WITHOUT_URL = frozenset({"serve", "doctor", "audit export"})
_COMMAND = re.compile(
    r"(?<![\w/.-])apex (serve|chat|doctor"
    r"|(?:skills|plugins|tools|approvals|secrets|keys|audit|chats|runs|config|packages|workspaces|mcp)"
    r" [a-z][a-z-]*[a-z])\b"
)
_options: dict[str, str] = {}


def remember_options(options: Mapping[str, str | None]) -> None:
    """Set the options of this command, by name."""
    _options.clear()
    _options.update({name: value for name, value in options.items() if value})


def with_options(message: str) -> str:
    """The message with this command's options in the commands it suggests."""
    return _COMMAND.sub(_completed, message) if _options else message


def _completed(found: re.Match[str]) -> str:
    command = found[1]
    names = (
        []
        if command in _WITHOUT_OPTIONS
        else [name for name in _options if name != "--url" or command not in _WITHOUT_URL]
    )
    return " ".join([found[0], *(f"{name} {shlex.quote(_options[name])}" for name in names)])
