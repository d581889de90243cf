"""The backends without namespaces: `landlock` (Landlock and seccomp) and `plain` (limits only)."""

import os
import tempfile

from apexbridge.sandbox.backends.backend import Backend, shared_bytes
from apexbridge.sandbox.config import BackendName, Guarantee, SandboxLimits
from apexbridge.sandbox.launcher import syscalls
from apexbridge.sandbox.launcher_client import LaunchError
from apexbridge.sandbox.runtimes import Runtimes
from apexbridge.sandbox.seccomp import filter_program

_PLAIN_ENFORCEMENT: dict[Guarantee, str | None] = {
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


def landlock_backend(name: BackendName, runtimes: Runtimes, limits: SandboxLimits) -> Backend:
    """Raise LaunchError if `name` is landlock and the kernel has no Landlock."""
    if name == "landlock" and not syscalls.landlock_version():
        raise LaunchError("this kernel has no Landlock")
    is_root = os.getuid() == 0
    enforcement = dict(_PLAIN_ENFORCEMENT)
    if is_root:
        enforcement["pids"] = "rlimit of its own user"
    if name == "landlock":
        enforcement |= {"fs": "landlock", "net": "seccomp and landlock", "syscalls": "seccomp"}
    shared = shared_bytes(limits)
    # Without a network namespace, Unix sockets would reach the host's. Unless root starts the run as another user, the
    # run could change the modes of the server's files.
    seccomp_filter = filter_program(unix_sockets=False, metadata=is_root, shared_bytes=shared)
    return Backend(
        name=name,
        enforcement=enforcement,
        limits=limits,
        temporary_folder=tempfile.gettempdir(),
        skill_path="{base}/{cell}/skill",
        loaders="{base}/loaders",
        layer_paths={} if is_root else {"python": None},  # root's runs may have another Python than the server
        supports_warm_cells=False,
        supports_granted_hosts=False,
        filters=(seccomp_filter, seccomp_filter),
        shared_bytes=shared,
        interpreters=tuple(runtimes.prefixes),
        reserved_bytes=runtimes.reserved_bytes,
    )
