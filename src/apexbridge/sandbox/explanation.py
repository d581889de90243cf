"""Why a run failed, beyond its own error: what is missing, what was there but was not found, and no network."""

import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from packaging.utils import canonicalize_name

from apexbridge.sandbox.config import SandboxLimits
from apexbridge.sandbox.missing import TAIL_CHARACTERS, Kind, Missing, find_missing
from apexbridge.sandbox.programs import browser_settings
from apexbridge.sandbox.runtimes import RuntimeName

MAX_ENTRIES = 5000
"""Entries of a skill's folder in which a module is looked for."""
_NO_NETWORK = re.compile(
    r"Name or service not known|Temporary failure in name resolution|getaddrinfo E[A-Z_]+|Could not resolve host"
    r"|unable to resolve host|Network is unreachable|ENETUNREACH|code ENOTCACHED"
)
_INSTALL = re.compile(
    r"error: externally-managed-environment|^npm (?:error|ERR!) (?:code E|Tracker .idealTree)|: No module named pip$"
    r"|: (?:pip3?|pipx|uv|npm|npx): (?:command )?not found$",
    re.MULTILINE,
)
_BROWSER = re.compile(r"crashpad|zygote|[Bb]rowserType\.launch|(?:Target|Page) crashed")
_INSTALLERS = frozenset({"pip", "pip3", "pipx", "uv"})
"""Of no use in a run: not reported as missing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    missing: list[Missing] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def messages(self) -> list[str]:
        return [*(item.to_message() for item in self.missing), *self.notes]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFolders:
    """Folders of the host that a run could read."""

    skills: Mapping[str, Path] = field(default_factory=dict)
    """By their paths inside the sandbox."""
    python: Sequence[Path] = ()
    """With Python packages."""
    node: Sequence[Path] = ()
    """With Node packages."""

    def note_on(self, kind: Kind, name: str) -> str | None:
        """Where a missing module or package is; None if the run did not have it. `name` may be dotted."""
        if kind == "node" and any((folder / name).is_dir() for folder in self.node):
            return (
                f'The package "{name}" is installed, but was not found from there: load it with require(), and leave '
                "NODE_PATH as it is."
            )
        if kind != "python":
            return None
        if any(_has_package(folder, name) for folder in self.python):
            return (
                f'The package of "{name}" is installed, but this Python did not look for it: start it as python3, '
                "without -I, -E, and a PATH or PYTHONPATH of your own."
            )
        return next(filter(None, (_in_skill(path, folder, name) for path, folder in self.skills.items())), None)


def explain(
    stderr: str,
    exit_code: int | None,
    runtime: RuntimeName,
    *,
    code: str = "",
    skill: str | None = None,
    bundles: Iterable[str] = (),
    folders: RunFolders | None = None,
    has_network: bool = False,
) -> Explanation:
    """Explain a run that failed on its own. `code` is what it ran, if that belongs to no skill."""
    notes: list[str] = []

    def is_present(kind: Kind, name: str) -> bool:
        if kind == "program" or name in _INSTALLERS:
            return name in _INSTALLERS
        note = folders.note_on(kind, name) if folders else None
        notes.extend([note] if note else [])
        return note is not None

    tail = stderr[-TAIL_CHARACTERS:]
    is_install = not has_network and _INSTALL.search(tail) is not None
    missing = find_missing(
        stderr,
        exit_code,
        runtime,
        code=code if is_install else "",
        skill=skill,
        installed=[*bundles],
        is_present=is_present,
    )
    if is_install:
        notes.append(
            "There is no network in the sandbox, and a run cannot install packages. The operator adds them with "
            f"`apex packages install BUNDLE` or `apex skills deps {skill or 'SKILL'} --add PACKAGE --install`."
        )
    elif not has_network and _NO_NETWORK.search(tail):
        notes.append("There is no network in the sandbox: only servers that the run itself starts can be reached.")
    return Explanation(missing=missing, notes=list(dict.fromkeys(notes)))


def browser_note(stderr: str, limits: SandboxLimits) -> str | None:
    """What a browser needs, if the run started one and these limits do not suffice."""
    settings = browser_settings(limits) if _BROWSER.search(stderr[-TAIL_CHARACTERS:]) else None
    return f"A browser needs higher limits than runs have here: the operator sets {settings}." if settings else None


def _has_package(folder: Path, name: str) -> bool:
    """Whether a folder with packages has a module or a distribution with this name."""
    top = name.partition(".")[0]
    if (folder / top).is_dir() or (folder / f"{top}.py").is_file() or any(folder.glob(f"{top}.*.so")):
        return True
    distribution = canonicalize_name(name)
    return any(canonicalize_name(info.name.partition("-")[0]) == distribution for info in folder.glob("*.dist-info"))


def _in_skill(path: str, folder: Path, name: str) -> str | None:
    """A note on a module that is not at the top of a skill, where Python looks for it, or is shadowed there."""
    top, *below = name.split(".")
    for parent in _folders(folder):
        module = parent.joinpath(top, *below)
        if not (module.with_name(f"{module.name}.py").is_file() or any(module.glob("*.py"))):
            continue
        inside = "/".join((path, *parent.relative_to(folder).parts))
        return (
            f'The module "{name}" is in {inside}. Add that to the search path first: '
            f'import sys; sys.path.insert(0, "{inside}"), or PYTHONPATH={inside} in front of python3.'
        )
    return None


def _folders(top: Path) -> Iterator[Path]:
    """The folder and those below it, without links, as far as they have a moderate number of entries."""
    pending, seen = [top], 0
    while pending and seen < MAX_ENTRIES:
        yield (folder := pending.pop(0))
        try:
            with os.scandir(folder) as entries:
                for entry in entries:
                    seen += 1
                    if entry.is_dir(follow_symlinks=False) and not entry.name.startswith("."):
                        pending.append(Path(entry.path))
        except OSError:
            continue
