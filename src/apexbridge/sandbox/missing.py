"""Finds in the end of a failed run's stderr which module or program was missing, and the command that adds it."""

import re
import sys
from collections.abc import Collection, Iterator
from typing import Literal

from packaging.utils import canonicalize_name

from apexbridge.sandbox.bundles import bundle_of
from apexbridge.sandbox.package_names import SYSTEM_PACKAGES, distribution_of
from apexbridge.sandbox.runtimes import RuntimeName
from apexbridge.wire import WireModel

Kind = Literal["python", "node", "program"]
TAIL_CHARACTERS = 16 * 1024
MAX_MISSING = 5
_MODULE = r"[A-Za-z_][\w.]{0,200}"
_DISTRIBUTION = r"[A-Za-z0-9][\w.-]{0,100}"
_PROGRAM = r"[A-Za-z0-9][\w.+-]{0,60}"
_NODE = r"(?:@[\w~-][\w.~-]{0,100}/)?[A-Za-z0-9~][\w.~-]{0,200}"
_PYTHON_MODULE = re.compile(
    rf"^(?:ModuleNotFoundError: No module named '({_MODULE})'|/[^\n:]{{1,300}}: No module named ({_MODULE})$)",
    re.MULTILINE,
)
_PYTHON_PACKAGE = re.compile(
    rf"Missing optional dependency '({_DISTRIBUTION})'|(?<![\w-])pip3? install (?:--?[\w-]+ )?['\"]?({_DISTRIBUTION})"
)
_NODE_MODULE = re.compile(
    rf"Cannot find (?:module|package) '({_NODE})(?:/[\w./-]{{1,200}})?'(?: imported from|$)", re.MULTILINE
)
_SHELL_PROGRAM = re.compile(
    rf"^[^\n:]{{1,200}}: (?:line )?\d{{1,6}}: ({_PROGRAM}): (?:command )?not found$", re.MULTILINE
)
_ENV_PROGRAM = re.compile(rf"^(?:/usr/bin/)?env: .?({_PROGRAM}).?: No such file or directory$", re.MULTILINE)
_NODE_PROGRAM = re.compile(rf"\bspawn(?:Sync)? ({_PROGRAM}) ENOENT\b")
_PYTHON_PROGRAM = re.compile(
    rf"^FileNotFoundError: \[Errno 2\] No such file or directory: (?:PosixPath\()?'({_PROGRAM})'", re.MULTILINE
)
_STARTS_PROGRAM = "_execute_child"
"""In a traceback of Python: it was starting a program, not opening a file."""


class Missing(WireModel):
    """A module or a program that a run did not find."""

    kind: Kind
    name: str
    package: str | None
    """What provides it: a distribution, an npm package or a package of the system. None if unknown."""
    command: str | None
    """The command that adds it. None if unknown."""

    def to_message(self) -> str:
        what = f'The program "{self.name}"' if self.kind == "program" else f'The module "{self.name}"'
        host = " on this host" if self.kind == "program" else ""
        remedy = f"Install it with: {self.command}" if self.command else "No known package provides it."
        return f"{what} is not installed{host}. {remedy}"


def find_missing(
    stderr: str,
    exit_code: int | None,
    runtime: RuntimeName,
    *,
    skill: str | None = None,
    installed: Collection[str] = (),
) -> list[Missing]:
    """What a failed run did not find, each once.

    `skill` is named in the commands that add a package to it. `installed` are the bundles that the run had.
    """
    if not exit_code:
        return []
    tail = stderr[-TAIL_CHARACTERS:]
    found: dict[tuple[Kind, str], Missing] = {}
    for kind, name, package in _names(tail, runtime):
        if kind == "program":
            command = f"apt-get install {package}" if package else None
        elif package is None:
            command = None
        elif kind == "python" and (bundle := bundle_of(package)) and bundle not in installed:
            command = f"apex packages install {bundle}"
        else:
            prefix = "npm:" if kind == "node" else ""
            command = f"apex skills deps {skill} --add {prefix}{package} --install" if skill else None
        found.setdefault((kind, package or name), Missing(kind=kind, name=name, package=package, command=command))
        if len(found) == MAX_MISSING:
            break
    return list(found.values())


def _names(tail: str, runtime: RuntimeName) -> Iterator[tuple[Kind, str, str | None]]:
    """Kind, name and package of what is missing. A shell script may have started the other interpreters."""
    for match in _PYTHON_MODULE.finditer(tail):
        name = match[1] or match[2]
        top = name.partition(".")[0]
        if top not in sys.stdlib_module_names:
            yield "python", top, distribution_of(name)
    if runtime != "node":
        for match in _PYTHON_PACKAGE.finditer(tail):
            name = canonicalize_name((match[1] or match[2]).rstrip("."))
            yield "python", name, name
    if runtime != "python":
        for match in _NODE_MODULE.finditer(tail):
            yield "node", match[1], match[1]
    programs = [_SHELL_PROGRAM, _ENV_PROGRAM, _NODE_PROGRAM]
    if _STARTS_PROGRAM in tail:
        programs.append(_PYTHON_PROGRAM)
    for pattern in programs:
        for match in pattern.finditer(tail):
            yield "program", match[1], SYSTEM_PACKAGES.get(match[1])
