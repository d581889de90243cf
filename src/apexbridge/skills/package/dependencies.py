"""Reads the dependencies of a skill from its files. Nothing is run and nothing is downloaded.

The files are untrusted, and an installer does what they say. So only a package name with a version is accepted.
Anything that points the installer elsewhere (an option, a URL, a path, a repository) is refused, with file and line.
"""

import hashlib
import json
import platform
import re
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import groupby, islice
from pathlib import Path
from typing import Any, Literal

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

from apexbridge._safe_open import open_file_beneath
from apexbridge.errors import InvalidInputError
from apexbridge.skills.package.fingerprint import FolderTooLargeError, scan_folder

MAX_REQUIREMENTS = 200
"""Per skill, including refused declarations."""
MAX_FILES = 2_000
MAX_FILE_BYTES = 1024 * 1024
MAX_REQUIREMENT_CHARACTERS = 500
MAX_SHOWN_CHARACTERS = 120
MAX_NODE_NAME_CHARACTERS = 214
KEY_CHARACTERS = 32
NODE_PREFIX = "npm:"
MAX_BLOCK_CHARACTERS = 16 * 1024
"""Of a PEP 723 block. The TOML parser takes quadratic time for a dotted key with many parts."""
MAX_SEARCHED_CHARACTERS = 20_000_000

_REQUIREMENT_FILES = ("requirements.txt", "scripts/requirements.txt")
_PACKAGE_FILES = ("package.json", "scripts/package.json")
_SCRIPT_HEADER = "# /// script"
_HEADER = re.compile(r"# /// [a-zA-Z0-9-]+\Z")
_COMMENT = re.compile(r"(?:^|(?<=\s))#.*")
_PLAIN_REQUIREMENT = re.compile(r"[A-Za-z0-9][A-Za-z0-9._,\[\]<>=!~*+-]*\Z")
_ARCHIVE = re.compile(r"\.(?:whl|zip|tgz|tbz|txz|tlz|tar(?:\.\w+)?)\Z", re.IGNORECASE)
"""Both installers treat a name with this ending as a file."""
_SOURCE_KEYS = ("sources", "index", "index-url", "extra-index-url", "default-index", "find-links")

_NODE_NAME = re.compile(r"(?:@[A-Za-z0-9~-][\w.~-]*/)?[A-Za-z0-9~][\w.~-]*\Z", re.ASCII)
_VERSION = r"v?(?:[0-9]+|[xX*])(?:\.(?:[0-9]+|[xX*])){0,2}(?:-[0-9A-Za-z.-]+)?(?:\+[0-9A-Za-z.-]+)?"
_COMPARATORS = rf"(?:(?:[<>]=?|~>?|[\^=])? ?{_VERSION})(?: (?:[<>]=?|~>?|[\^=])? ?{_VERSION})*"
_RANGE = rf"(?:{_VERSION} - {_VERSION}|{_COMPARATORS})"
_NODE_RANGE = re.compile(rf"{_RANGE}(?: \|\| {_RANGE})*\Z")
_NODE_TAG = re.compile(r"[A-Za-z][0-9A-Za-z._-]*\Z")


@dataclass(frozen=True, slots=True, kw_only=True)
class Dependencies:
    """A skill's dependencies in normal form: sorted, without duplicates."""

    python: tuple[str, ...] = ()
    """Requirements, sorted. Markers have been evaluated and removed."""
    node: tuple[tuple[str, str], ...] = ()
    """Names and version ranges, sorted."""
    sources: tuple[str, ...] = ()
    """The files that declare dependencies."""
    problems: tuple[str, ...] = ()
    """Refused declarations, with file and line. If there are any, nothing should be installed."""

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to install. There may still be problems."""
        return not self.python and not self.node

    @property
    def node_requirements(self) -> tuple[str, ...]:
        """Each as `name@range`."""
        return tuple(f"{name}@{requested}" for name, requested in self.node)

    def with_added(self, packages: Sequence["Package"]) -> "Dependencies":
        """With packages of the operator, whose version ranges replace those that the skill declares for Node."""
        python = {package.requirement for package in packages if package.kind == "python"}
        ranges = {
            package.name: package.requirement.rpartition("@")[2] for package in packages if package.kind == "node"
        }
        return replace(
            self,
            python=tuple(sorted({*self.python, *python})),
            node=tuple(sorted({**dict(self.node), **ranges}.items())),
        )

    def python_key(self, runtime: str) -> str | None:
        """The key of the layer with the Python packages, for a runtime such as `cpython-311-x86_64-linux`."""
        return _key("python", runtime, self.python)

    def node_key(self, runtime: str) -> str | None:
        """The key of the layer with the Node packages, for a runtime such as `node-20-x64-linux`."""
        return _key("node", runtime, self.node_requirements)


@dataclass(frozen=True, slots=True, kw_only=True)
class Package:
    """A package that an operator names."""

    kind: Literal["python", "node"]
    name: str
    requirement: str
    """In normal form: for Python without marker, for Node `name@range`."""

    @property
    def spec(self) -> str:
        """As it is written on the command line: `pypdf>=4`, `npm:docx@^9`."""
        return self.requirement if self.kind == "python" else f"{NODE_PREFIX}{self.requirement}"


def parse_package(spec: str) -> Package:
    """Read the name of a package with an optional version: PEP 508, or `npm:NAME@RANGE`.

    Raises:
        InvalidInputError: it is anything else, such as a URL, an option or a path.
    """
    try:
        if spec.startswith(NODE_PREFIX):
            words = spec.removeprefix(NODE_PREFIX).strip()
            at = words.find("@", 1)
            name, versions = (words[:at], words[at + 1 :]) if at > 0 else (words, "*")
            return Package(kind="node", name=name, requirement=f"{name}@{_normal_range(name, versions)}")
        requirement = _normal_requirement(spec.strip())
        if requirement is None:
            raise _RefusedError("its marker does not apply to this machine")
    except _RefusedError as error:
        hint = ". Write an npm package as npm:NAME or npm:NAME@VERSION" if "@" in spec else ""
        raise InvalidInputError(f'"{_shown(spec)}" is refused: {error}{hint}.') from error
    return Package(kind="python", name=canonicalize_name(Requirement(requirement).name), requirement=requirement)


def read_dependencies(folder: Path) -> Dependencies:
    """Read all declarations in a skill's folder: PEP 723 blocks, `requirements.txt`, `package.json`."""
    return _Reader(folder).read()


def script_blocks(text: str) -> list[tuple[int, str]]:
    """The PEP 723 blocks of type `script`: the line number of the header, and the TOML.

    As the PEP specifies, a block ends at the last `# ///` of consecutive comment lines, not at the first.
    """
    blocks: list[tuple[int, str]] = []
    for is_comment, run in groupby(enumerate(text.split("\n"), 1), key=lambda item: _is_comment(item[1])):
        if not is_comment:
            continue
        numbered = list(run)
        header = next((at for at, (_, line) in enumerate(numbered) if _HEADER.match(line)), None)
        closing = max((at for at, (_, line) in enumerate(numbered) if line == "# ///"), default=0)
        # An empty block does not count. A second header is part of the block above it.
        if header is None or closing < header + 2 or numbered[header][1] != _SCRIPT_HEADER:
            continue
        toml = "\n".join(line[2:] for _, line in numbered[header + 1 : closing])
        blocks.append((numbered[header][0], toml))
    return blocks


def is_node_name(name: str) -> bool:
    return len(name) <= MAX_NODE_NAME_CHARACTERS and bool(_NODE_NAME.match(name))


class _RefusedError(ValueError):
    """A declaration is refused; the message is the reason."""


class _Reader:
    """Collects all declarations and problems, so that an author can fix them in one round."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.python: set[str] = set()
        self.node: dict[str, str] = {}
        self.sources: list[str] = []
        self.problems: list[str] = []
        self.declared = 0

    def read(self) -> Dependencies:
        for path in self.candidates():
            text = self.text_of(path)
            if text is None:
                continue
            before = self.declared
            if path.endswith(".py"):
                self.read_script(path, text)
            elif path in _REQUIREMENT_FILES:
                self.read_requirements(path, text)
            else:
                self.read_package(path, text)
            if self.declared > before:
                self.sources.append(f"{_shown(path)} (PEP 723)" if path.endswith(".py") else path)
            if self.declared > MAX_REQUIREMENTS:
                self.problems.append(f"more than {MAX_REQUIREMENTS} dependencies; the rest was not read")
                break
        return Dependencies(
            python=tuple(sorted(self.python)),
            node=tuple(sorted(self.node.items())),
            sources=tuple(self.sources),
            problems=tuple(self.problems),
        )

    def candidates(self) -> list[str]:
        """The regular files that may declare dependencies."""
        try:
            paths = [file.path for file in scan_folder(self.folder).files]
        except (FolderTooLargeError, OSError) as error:
            self.problems.append(f"the skill's folder cannot be read: {getattr(error, 'strerror', None) or error}")
            return []
        requested = (*_REQUIREMENT_FILES, *_PACKAGE_FILES)
        found = [path for path in requested if path in paths] + [path for path in paths if path.endswith(".py")]
        if len(found) > MAX_FILES:
            self.problems.append(f"more than {MAX_FILES} files that may declare dependencies; the rest was not read")
        return found[:MAX_FILES]

    def text_of(self, path: str) -> str | None:
        """The text of a file; None if it is a script without a block, or cannot be read."""
        try:
            with open_file_beneath(self.folder, path) as file:
                data = file.read(MAX_FILE_BYTES + 1)
        except OSError as error:
            self.complain(path, None, f"cannot be read: {error.strerror}")
            return None
        if len(data) > MAX_FILE_BYTES:
            self.complain(path, None, "is larger than 1 MB and was not read")
            return None
        if path.endswith(".py") and _SCRIPT_HEADER.encode() not in data:
            return None
        try:
            return data.decode("utf-8-sig").replace("\r\n", "\n").replace("\r", "\n")
        except UnicodeDecodeError:
            self.complain(path, None, "is not UTF-8 text: save the file as UTF-8")
            return None

    # ------------------------------------------------------------------------------------------------- the formats
    def read_script(self, path: str, text: str) -> None:
        blocks = script_blocks(text)
        if len(blocks) > 1:
            self.complain(path, blocks[1][0], "a second script block; PEP 723 allows one in a file")
            return
        for line, toml in blocks:
            if len(toml) > MAX_BLOCK_CHARACTERS:
                self.complain(path, line, f"the script block is longer than {MAX_BLOCK_CHARACTERS:,} characters")
                return
            try:
                data = tomllib.loads(toml)
            except (ValueError, RecursionError) as error:
                self.complain(path, line, f"the script block is not valid TOML: {_shown(str(error))}")
                return
            self.check_python(path, line, data.get("requires-python"))
            if keys := _other_sources(data):
                self.complain(path, line, f"tool.uv names another place for packages ({', '.join(keys)})")
            requested = data.get("dependencies", [])
            if not isinstance(requested, list) or not all(isinstance(item, str) for item in requested):
                self.complain(path, line, "dependencies must be a list of text")
                return
            lines = _Lines(toml, line + 1)
            for item in islice(requested, MAX_REQUIREMENTS + 1):
                self.take_python(path, lines.of(item) or line, item.strip())

    def read_requirements(self, path: str, text: str) -> None:
        for number, line in enumerate(text.splitlines(), 1):
            if requested := _COMMENT.sub("", line).strip():
                self.take_python(path, number, requested)
            if self.declared > MAX_REQUIREMENTS:
                break

    def read_package(self, path: str, text: str) -> None:
        try:
            data = json.loads(text)
        except (ValueError, RecursionError) as error:
            self.complain(path, getattr(error, "lineno", None), f"is not valid JSON: {getattr(error, 'msg', error)}")
            return
        if not isinstance(data, dict):
            self.complain(path, None, "must be an object")
            return
        lines = _Lines(text, 1)
        if "workspaces" in data:
            self.complain(path, lines.of('"workspaces"'), "workspaces are not installed")
        requested = data.get("dependencies", {})
        if not isinstance(requested, dict):
            self.complain(path, lines.of('"dependencies"'), "dependencies must be an object")
            return
        for name, versions in islice(requested.items(), MAX_REQUIREMENTS + 1):
            self.take_node(path, lines.of(json.dumps(name, ensure_ascii=False)), name, versions)

    # -------------------------------------------------------------------------------------------- one declaration
    def take_python(self, path: str, line: int | None, requested: str) -> None:
        self.declared += 1
        if self.declared > MAX_REQUIREMENTS:
            return
        try:
            requirement = _normal_requirement(requested)
        except _RefusedError as error:
            self.complain(path, line, f'"{_shown(requested)}" is refused: {error}')
            return
        if requirement is not None:
            self.python.add(requirement)

    def take_node(self, path: str, line: int | None, name: str, versions: Any) -> None:
        self.declared += 1
        if self.declared > MAX_REQUIREMENTS:
            return
        try:
            requested = _normal_range(name, versions)
        except _RefusedError as error:
            self.complain(path, line, f'"{_shown(name)}": "{_shown(str(versions))}" is refused: {error}')
            return
        if self.node.setdefault(name, requested) != requested:
            self.complain(path, line, f'two different versions of "{name}" are asked for')

    def check_python(self, path: str, line: int, requested: Any) -> None:
        """Check `requires-python`: the sandbox has only the server's own Python."""
        if requested is None:
            return
        here = platform.python_version()
        try:
            if len(str(requested)) > MAX_REQUIREMENT_CHARACTERS:
                raise ValueError("too long")
            fits = SpecifierSet(str(requested)).contains(here, prereleases=True)
        except ValueError:  # InvalidSpecifier, or a number with too many digits
            self.complain(path, line, "requires-python is not a version specifier")
            return
        if not fits:
            self.complain(path, line, f"asks for Python {_shown(str(requested))}; this server has {here}")

    def complain(self, path: str, line: int | None, message: str) -> None:
        self.problems.append(f"{_shown(path)}{f':{line}' if line else ''}: {message}")


def _normal_requirement(requested: str) -> str | None:
    """Normalize a requirement. Returns None if its marker does not apply to this machine."""
    named = requested.partition(";")[0].strip()
    if len(requested) > MAX_REQUIREMENT_CHARACTERS:
        raise _RefusedError(f"it is longer than {MAX_REQUIREMENT_CHARACTERS} characters")
    if requested.startswith("-"):
        raise _RefusedError("options are not taken; the index is named by the operator's own pip configuration")
    if " --" in requested or requested.endswith("\\"):
        raise _RefusedError("options and hashes behind a requirement are not taken")
    if "://" in named or "@" in named:
        raise _RefusedError("packages come from the index by name, not from a URL or a repository")
    if "/" in named or "\\" in named or named.startswith((".", "~")) or _ARCHIVE.search(named):
        raise _RefusedError("packages come from the index by name, not from a file or a folder")
    try:
        requirement = Requirement(requested)
        applies = requirement.marker is None or requirement.marker.evaluate()
    except (ValueError, RecursionError) as error:
        raise _RefusedError("it is not a requirement as PEP 508 has them") from error
    extras = ",".join(sorted({canonicalize_name(extra) for extra in requirement.extras}))
    versions = ",".join(sorted(str(clause) for clause in requirement.specifier))
    normal = f"{canonicalize_name(requirement.name)}{f'[{extras}]' if extras else ''}{versions}"
    # PEP 440 allows any text after `===`, even a path.
    if requirement.url or _ARCHIVE.search(requirement.name) or not _PLAIN_REQUIREMENT.match(normal):
        raise _RefusedError("packages are asked for by name and version")
    return normal if applies else None


def _normal_range(name: str, versions: Any) -> str:
    """Normalize an npm version range."""
    if len(name) > MAX_REQUIREMENT_CHARACTERS or not _NODE_NAME.match(name):
        raise _RefusedError("it is not the name of a package")
    if not isinstance(versions, str) or len(versions) > MAX_REQUIREMENT_CHARACTERS:
        raise _RefusedError("the version must be a short text")
    requested = re.sub(r" ?\|\| ?", " || ", " ".join(versions.split())) or "*"
    is_plain = _NODE_RANGE.match(requested) or _NODE_TAG.match(requested)
    if not is_plain or _ARCHIVE.search(requested):
        raise _RefusedError(
            "packages come from the registry by a version range or a tag, not from a URL, a repository, a file, "
            "an alias or a workspace"
        )
    return requested


def _other_sources(data: dict[str, Any]) -> list[str]:
    """The keys of `[tool.uv]` that select other package sources.

    Ignoring them would be unsafe: the default index can have another author's package with the same name.
    """
    tool = data.get("tool")
    uv = tool.get("uv") if isinstance(tool, dict) else None
    return [key for key in _SOURCE_KEYS if uv.get(key)] if isinstance(uv, dict) else []


class _Lines:
    """Finds line numbers, which the parsers do not report. The time of all searches together is bounded."""

    def __init__(self, text: str, first: int) -> None:
        self._text = text
        self._first = first
        self._characters = MAX_SEARCHED_CHARACTERS

    def of(self, text: str) -> int | None:
        """The line of the first occurrence; None if missing, or if the search limit is reached."""
        if self._characters <= 0:
            return None
        found = self._text.find(text)
        self._characters -= len(self._text) if found < 0 else 2 * found
        return None if found < 0 else self._first + self._text.count("\n", 0, found)


def _key(kind: str, runtime: str, declared: Sequence[str]) -> str | None:
    if not declared:
        return None
    return hashlib.sha256("\n".join([kind, runtime, *sorted(set(declared))]).encode()).hexdigest()[:KEY_CHARACTERS]


def _is_comment(line: str) -> bool:
    return line == "#" or line.startswith("# ")


def _shown(text: str) -> str:
    """Shorten untrusted text and replace unprintable characters, so that it is safe to print."""
    return "".join(character if character.isprintable() else "?" for character in text[:MAX_SHOWN_CHARACTERS])
