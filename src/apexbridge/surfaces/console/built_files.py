"""The built files of the console, in memory, and the reason if there are none.

`scripts/build_console.py` writes them to `dist/`. `manifest.json` lists them with their hashes; other files of the
folder are never served.
"""

import gzip
import json
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

DIST = Path(__file__).parent / "dist"
MANIFEST = "manifest.json"
PROBLEM = "problem.txt"
"""Why the last build failed, if there is no earlier one."""
MAX_PROBLEM_CHARACTERS = 2000
MEDIA_TYPES = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".json": "application/json",
    ".svg": "image/svg+xml",
    ".txt": "text/plain; charset=utf-8",
    ".woff2": "font/woff2",
}
"""Not `mimetypes`: it reads files of the machine."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BuiltFile:
    content: bytes
    compressed: bytes | None
    """With gzip; None if that saves nothing. Made here: a wheel is compressed anyway, and would contain both."""
    media_type: str
    digest: str


@dataclass(frozen=True, slots=True, kw_only=True)
class BuiltConsole:
    """One state of the folder."""

    files: dict[str, BuiltFile]
    """By path below the folder, such as `assets/index-4f1c.js`. Empty if the console was not built."""
    problem: str | None = None


class ConsoleFiles:
    """Reads the folder when it is first asked for, and again after another build."""

    def __init__(self, folder: Path = DIST) -> None:
        self._folder = folder
        self._read: tuple[object, BuiltConsole] | None = None
        """The folder's signature, and what was in it then."""

    def loaded(self) -> BuiltConsole | None:
        """What is in the folder; None if it must be read first. Costs two calls of stat."""
        if self._read is None:
            return None
        signature, console = self._read
        return console if signature == self._current_signature() else None

    def load(self) -> BuiltConsole:
        """Read the folder. Blocks."""
        signature = self._current_signature()
        console = read_console(self._folder)
        self._read = (signature, console)
        return console

    def _current_signature(self) -> tuple[object, ...]:
        return tuple(_signature(self._folder / name) for name in (MANIFEST, PROBLEM))


def read_console(folder: Path) -> BuiltConsole:
    try:
        listed: dict[str, str] = json.loads((folder / MANIFEST).read_bytes())["files"]
        return BuiltConsole(files={name: _read(folder, name, digest) for name, digest in listed.items()})
    except FileNotFoundError:  # not built, or replaced by another build at this moment
        return BuiltConsole(files={}, problem=_problem(folder))
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        return BuiltConsole(files={}, problem=f"The built files cannot be read ({type(error).__name__}).")


def _read(folder: Path, name: str, digest: str) -> BuiltFile:
    content = (folder / name).read_bytes()
    compressed = gzip.compress(content, mtime=0)
    return BuiltFile(
        content=content,
        compressed=compressed if len(compressed) < len(content) else None,
        media_type=MEDIA_TYPES.get(PurePosixPath(name).suffix, "application/octet-stream"),
        digest=digest[:32],
    )


def _problem(folder: Path) -> str | None:
    try:
        with (folder / PROBLEM).open(encoding="utf-8", errors="replace") as file:
            return file.read(MAX_PROBLEM_CHARACTERS).strip() or None
    except OSError:
        return None


def _signature(path: Path) -> tuple[int, int, int] | None:
    try:
        stat = path.stat()
    except OSError:
        return None
    return stat.st_mtime_ns, stat.st_size, stat.st_ino
