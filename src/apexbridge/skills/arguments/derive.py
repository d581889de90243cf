"""The door of this room: what arguments a script takes, from its name and its bytes."""

import logging
from collections.abc import Callable, Mapping
from pathlib import PurePosixPath

from apexbridge.skills.arguments.javascript import javascript_arguments
from apexbridge.skills.arguments.model import ScriptArguments
from apexbridge.skills.arguments.python import python_arguments
from apexbridge.skills.arguments.shell import shell_arguments

MAX_SOURCE_BYTES = 256 * 1024
_READERS: Mapping[str, Callable[[str], ScriptArguments | None]] = {
    ".py": python_arguments,
    ".js": javascript_arguments,
    ".mjs": javascript_arguments,
    ".cjs": javascript_arguments,
    ".sh": shell_arguments,
}

logger = logging.getLogger(__name__)


def derive(script_path_name: str, source: bytes) -> ScriptArguments | None:
    """What a script declares of its arguments; None where that cannot be told. It never raises and never runs it."""
    reader = _READERS.get(PurePosixPath(script_path_name).suffix.lower())
    if reader is None or len(source) > MAX_SOURCE_BYTES:
        return None
    try:
        return reader(source.decode("utf-8-sig"))
    except Exception as error:  # a stranger's source must not stop an install, whatever it does to a reader
        logger.debug("no arguments could be derived from %s: %s", script_path_name, type(error).__name__)
        return None
