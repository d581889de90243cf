"""Finds the file of a skill that a name means.

A name may lack `scripts/` or the extension and differ in case, if only one file can be meant. It may have the skill's
folder in front and, for a script, the word that starts an interpreter.
"""

import difflib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

from apexbridge.skills.package.skill import is_runnable

SHOWN_CHARACTERS = 200
MAX_COMPARED = 500
"""Files that are compared for suggestions."""
MAX_SUGGESTIONS = 3
SHOWN_FILES = 10
_SCRIPTS = "scripts/"
_INTERPRETERS = frozenset({"python", "python3", "node", "bash", "sh"})
_MODULE = "-m"


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedFile:
    """A file of a skill, and how it was found."""

    path: str
    module: str | None = None
    """The dotted name of a Python module that runs as by `python -m`."""
    notice: str | None = None
    """Set if the name was not the file's own."""

    @property
    def name(self) -> str:
        """The name that means exactly this."""
        return f"{_MODULE} {self.module}" if self.module else self.path


class NoSuchNameError(Exception):
    """No file of the skill has this name, or several could be meant; the message says what to do."""

    def __init__(self, message: str, suggestions: Sequence[str]) -> None:
        super().__init__(message)
        self.suggestions = list(suggestions)


def find_file(skill: str, written: str, paths: Sequence[str]) -> NamedFile:
    """The file of the skill that is meant. Raises NoSuchNameError."""
    return _noticed(NamedFile(path=_one_file(skill, written, written, paths, kind="file")), written)


def find_script(skill: str, written: str, paths: Sequence[str]) -> NamedFile:
    """The script of the skill that is meant: a file with a known interpreter, or `-m` and a Python module.

    Raises NoSuchNameError.
    """
    scripts = [path for path in paths if is_runnable(path)]
    scripts.sort(key=lambda path: not path.startswith(_SCRIPTS))  # first those that are suggested first
    if _plain(written) in scripts:  # a name may contain spaces
        return NamedFile(path=_plain(written))
    words = written.split()
    if len(words) > 1 and words[0] in _INTERPRETERS:
        words = words[1:]
    if words[:1] == [_MODULE]:
        return _noticed(_module(skill, written, words[1:], scripts), written)
    if len(words) > 1 and _matches(skill, words[0], scripts):
        arguments = " ".join(words[1:])[:SHOWN_CHARACTERS]
        raise NoSuchNameError(f'"script" is one script; send "{arguments}" in "args", one word each', words[:1])
    return _noticed(NamedFile(path=_one_file(skill, " ".join(words), written, scripts, kind="script")), written)


def _module(skill: str, written: str, words: Sequence[str], scripts: Sequence[str]) -> NamedFile:
    if len(words) > 1:
        arguments = " ".join(words[1:])[:SHOWN_CHARACTERS]
        raise NoSuchNameError(f'"script" is one module; send "{arguments}" in "args", one word each', words[:1])
    name = words[0] if words else ""
    modules = {module: path for path in scripts if (module := _module_name(path))}
    if name in modules:
        return NamedFile(path=modules[name], module=name)
    dotted = name.removesuffix(".py").replace("/", ".")  # a module may be written as a path
    near = [f"{_MODULE} {each}" for each in _nearest(dotted, list(modules), ".")]
    known = [f"{_MODULE} {each}" for each in modules]
    raise _unknown(skill, f"{_MODULE} {name}" if name else written, known, "module", near)


def _module_name(path: str) -> str | None:
    """The name of a Python file as a module, below the skill's folder; of a package, that of its `__main__.py`."""
    parts = PurePosixPath(path).with_suffix("").parts
    if not path.endswith(".py") or not all(part.isidentifier() for part in parts):
        return None
    if parts[-1] == "__main__":
        parts = parts[:-1]
    return ".".join(parts) or None


def _one_file(skill: str, name: str, written: str, paths: Sequence[str], *, kind: str) -> str:
    found = _matches(skill, name, paths)
    if len(found) == 1:
        return found[0]
    if found:
        shown = " or ".join(found[:SHOWN_FILES])
        raise NoSuchNameError(f'"{written[:SHOWN_CHARACTERS]}" can mean {shown}; name one of them', found)
    raise _unknown(skill, name, paths, kind, _nearest(name, paths, "/"))


def _matches(skill: str, name: str, paths: Sequence[str]) -> list[str]:
    """The files that the name means, by the closest reading that fits any."""
    plain = _plain(name)
    own = [plain.removeprefix(prefix) for prefix in (f"/skills/{skill}/", "/skill/", f"{skill}/")]
    names = list(dict.fromkeys((plain, *own)))
    if exact := [each for each in names if each in paths][:1]:
        return exact
    possible = {*names, *(_SCRIPTS + each for each in names)}
    folded = {each.casefold() for each in possible}
    for accepted, is_folded in ((possible, False), (folded, True)):
        for has_suffix in (True, False):
            spellings = ((path, path if has_suffix else _without_suffix(path)) for path in paths)
            if found := [path for path, text in spellings if (text.casefold() if is_folded else text) in accepted]:
                return found
    return []


def _plain(name: str) -> str:
    return name.strip().removeprefix("./")


def _without_suffix(path: str) -> str:
    return path.removesuffix(PurePosixPath(path).suffix)


def _noticed(found: NamedFile, written: str) -> NamedFile:
    if found.name == _plain(written):
        return found
    notice = f'Used {found.name} for "{written[:SHOWN_CHARACTERS]}"'
    return NamedFile(path=found.path, module=found.module, notice=notice)


def _unknown(skill: str, name: str, known: Sequence[str], kind: str, near: Sequence[str]) -> NoSuchNameError:
    shown = name[:SHOWN_CHARACTERS]
    if near:
        return NoSuchNameError(f"{skill} has no {kind} {shown}. Did you mean {' or '.join(near)}?", near)
    more = f", and {len(known) - SHOWN_FILES} more" if len(known) > SHOWN_FILES else ""
    has = f"; it has {', '.join(known[:SHOWN_FILES])}{more}" if known else ""
    return NoSuchNameError(f"{skill} has no {kind} {shown}{has}", known[:SHOWN_FILES])


def _nearest(name: str, known: Sequence[str], separator: str) -> list[str]:
    """Files with this name in another folder, else files with a similar name."""
    by_name: dict[str, list[str]] = {}
    for path in known[:MAX_COMPARED]:
        last = path.rpartition(separator)[2].casefold()
        for each in dict.fromkeys((last, _without_suffix(last))):
            by_name.setdefault(each, []).append(path)
    last = name[:SHOWN_CHARACTERS].rpartition(separator)[2].casefold()
    near = [last] if last in by_name else difflib.get_close_matches(last, by_name, MAX_SUGGESTIONS, 0.7)
    return list(dict.fromkeys(path for each in near for path in by_name[each]))[:MAX_SUGGESTIONS]
