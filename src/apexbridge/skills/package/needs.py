"""The packages that a skill needs: those that it declares, and those that its code uses.

They are read when a folder is scanned, and stored in the catalog. So lists of skills show them without reading files.
"""

from pathlib import Path

from apexbridge.skills.package.dependencies import read_dependencies
from apexbridge.skills.package.detection import detect
from apexbridge.skills.package.skill import Needs

MAX_FILE_BYTES = 128 * 1024
"""Larger scripts are not parsed at each scan: CPython's parser blocks all threads."""


def read_needs(folder: Path) -> Needs:
    """Read the declarations and the code of a skill. Nothing is run."""
    declared = read_dependencies(folder)
    uses = {
        (use.kind, use.package)
        for use in detect(folder, max_file_bytes=MAX_FILE_BYTES)
        if use.package is not None and use.kind != "program"
    }
    return Needs(
        python=declared.python,
        node=declared.node,
        uses=tuple(sorted(uses)),
        has_problems=bool(declared.problems),
    )
