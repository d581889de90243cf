"""The arguments of a script, read from its source. The source is parsed and never run."""

import logging
from collections.abc import Callable, Mapping
from pathlib import PurePosixPath

from apexbridge.skills.package.script_arguments.argparse_reader import argparse_arguments
from apexbridge.skills.package.script_arguments.model import Argument, ScriptArguments
from apexbridge.skills.package.script_arguments.shell_reader import shell_arguments

__all__ = ["MAX_SOURCE_BYTES", "Argument", "ScriptArguments", "derive"]

MAX_SOURCE_BYTES = 128 * 1024
_READERS: Mapping[str, Callable[[str], ScriptArguments | None]] = {".py": argparse_arguments, ".sh": shell_arguments}

logger = logging.getLogger(__name__)


def derive(script_path_name: str, source: bytes) -> ScriptArguments | None:
    """Read the arguments that a script declares. Returns None if it declares none or cannot be parsed; never raises."""
    reader = _READERS.get(PurePosixPath(script_path_name).suffix.lower())
    if reader is None or len(source) > MAX_SOURCE_BYTES:
        return None
    try:
        return reader(source.decode("utf-8-sig"))
    except Exception as error:  # untrusted source: a failing reader must not fail the installation
        logger.debug("no arguments could be derived from %s: %s", script_path_name, type(error).__name__)
        return None
