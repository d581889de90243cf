"""Walls without namespaces: Landlock with seccomp, or nothing but limits."""

import os
import tempfile

from apexbridge.sandbox.backends.backend import Backend, shared_bytes
from apexbridge.sandbox.config import BackendName, Guarantee, SandboxLimits
from apexbridge.sandbox.launcher import syscalls
from apexbridge.sandbox.launcher_client import LaunchError, Walls
from apexbridge.sandbox.runtimes import Runtimes
from apexbridge.sandbox.seccomp import program

_LIMITS_ONLY: dict[Guarantee, str | None] = {
    "fs": None,
    "net": None,
    "tree_kill": "keeper process",
    "memory": "rlimit and watchdog",
    "pids": "rlimit of the server's user and watchdog",
    "disk": "watchdog",
    "env": "clean environment",
    "fds": "rlimit",
    "syscalls": None,
}


def backend(name: BackendName) -> Backend:
    """What holds without namespaces."""
    enforcement = dict(_LIMITS_ONLY)
    if os.getuid() == 0:
        enforcement["pids"] = "rlimit of its own user"
    if name == "landlock":
        enforcement |= {"fs": "landlock", "net": "seccomp and landlock", "syscalls": "seccomp"}
    return Backend(
        name=name,
        enforcement=enforcement,
        temporary=tempfile.gettempdir(),
        skill_path="{base}/{cell}/skill",
        loaders="{base}/loaders",
        layer_paths={"python": None} if os.getuid() != 0 else {},  # root's runs may have another Python than the server
        can_wait=False,
        can_reach_hosts=False,
    )


def walls(name: BackendName, runtimes: Runtimes, limits: SandboxLimits) -> Walls:
    """What a launcher has to know to build them.

    Raises:
        LaunchError: the kernel has no Landlock.
    """
    if name == "landlock" and not syscalls.landlock_version():
        raise LaunchError("this kernel has no Landlock")
    # Unix sockets would reach the host's: no namespace is between. Nor is there another user, unless root gives one.
    shared = shared_bytes(limits)
    rules = program(unix_sockets=False, metadata=os.getuid() == 0, shared_bytes=shared)
    return Walls(
        backend=name,
        limits=limits,
        filters=(rules, rules),
        shared_bytes=shared,
        interpreters=tuple(runtimes.prefixes),
        reserved_bytes=runtimes.reserved_bytes,
    )
