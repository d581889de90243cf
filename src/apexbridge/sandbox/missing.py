"""Finds in the end of a failed run's stderr which module or program was missing, and the command that adds it."""

import re
import sys
from collections.abc import Callable, Collection, Iterator
from typing import Literal

from packaging.utils import canonicalize_name

from apexbridge.sandbox.bundles import bundle_of
from apexbridge.sandbox.package_names import PROGRAM_NOTES, SYSTEM_PACKAGES, distribution_of
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
_INSTALL = re.compile(
    r"(?<![\w-])(?:pip3? install ([^\n;&|#]{1,300})|npm (?:install|i|add) ([^\n;&|#]{1,300})|npx ([^\n;&|#]{1,300}))"
)
"""A command that installs packages, with its words: of pip, npm, npx."""
_PYTHON_NAME = re.compile(rf"{_DISTRIBUTION}(?=$|[\[=<>~!])")
_NO_PACKAGES = (".txt", ".whl", ".gz", ".zip", ".toml", ".")
_NODE_NAME = re.compile(rf"{_NODE}(?=$|@)")
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
        return f"{what} is not installed{host}. {self._remedy}"

    @property
    def _remedy(self) -> str:
        if self.command:
            return f"Install it with: {self.command}"
        if self.package and self.kind != "program":
            spec = f"npm:{self.package}" if self.kind == "node" else self.package
            return (
                f"The package {self.package} provides it. Add that to a skill, and load the skill: "
                f"apex skills deps SKILL --add {spec} --install"
            )
        return PROGRAM_NOTES.get(self.name, "No known package provides it.")


def find_missing(
    stderr: str,
    exit_code: int | None,
    runtime: RuntimeName,
    *,
    code: str = "",
    skill: str | None = None,
    installed: Collection[str] = (),
    is_present: Callable[[Kind, str], bool] = lambda kind, name: False,
) -> list[Missing]:
    """What a failed run did not find, each once.

    `code` is searched for packages that it tried to install. `skill` is named in the commands that add a package to it.
    `installed` are the bundles that the run had. `is_present` returns whether to leave out a module, with its dotted
    name, or a package: the run had it and did not find it for another reason.
    """
    if not exit_code:
        return []
    found: dict[tuple[Kind, str], Missing] = {}
    names = (*_names(stderr[-TAIL_CHARACTERS:], runtime), *_installed_by(code[:TAIL_CHARACTERS]))
    for kind, dotted, package in names:
        if is_present(kind, dotted):
            continue
        name = dotted.partition(".")[0] if kind == "python" and dotted != package else dotted
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
    """Kind, name and package of what is missing; the name of a Python module is dotted.

    A shell script may have started the other interpreters.
    """
    for match in _PYTHON_MODULE.finditer(tail):
        name = match[1] or match[2]
        if name.partition(".")[0] not in sys.stdlib_module_names:
            yield "python", name, distribution_of(name)
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


def _installed_by(code: str) -> Iterator[tuple[Kind, str, str | None]]:
    """The packages that code tries to install with pip, npm or npx."""
    for match in _INSTALL.finditer(code):
        kind: Kind = "python" if match[1] else "node"
        pattern = _PYTHON_NAME if kind == "python" else _NODE_NAME
        words = (match[1] or match[2] or match[3]).split()
        names = [found[0] for word in words if (found := pattern.match(word.strip("'\"()[],")))]
        names = [name for name in names if not name.endswith(_NO_PACKAGES)]
        for name in names if match[3] is None else names[:1]:
            name = canonicalize_name(name) if kind == "python" else name
            yield kind, name, name
