"""The root folder that a run sees: one furnished model for all, and a copy of its mounts for each.

Everything is mounted once, read-only, on a model. A cell gets a copy of those mounts in one call of the kernel and adds
its own: that is cheaper by far than to have bubblewrap mount each part anew.
"""

import errno
import os
import shutil
import stat
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from apexbridge.sandbox.launcher import syscalls
from apexbridge.sandbox.launcher.granted_paths import mounts_below, refuse_another_path

SKILL_PLACE = "/skill"
LOADER_PLACE = "/loaders"
LAYER_PLACES = {"python": "/layers/python", "node_modules": "/node_modules"}
NOTHING_PLACE = "/layers/nothing"
"""An empty folder, shown in the place of what is hidden."""
EMPTY_FILE_PLACE = "/layers/empty"
"""The same for a file."""
_EMPTY = ("proc", "tmp", "skill", "layers/python", "node_modules", "dev/pts", "dev/shm")
_SYSTEM = ("bin", "sbin", "lib", "lib32", "lib64", "libx32")
_DEVICES = {"null": "null", "zero": "full", "full": "full", "random": "random", "urandom": "urandom", "tty": "tty"}
"""By their name inside. /dev/full reads as zeros too, but it cannot be mapped: /dev/zero mapped shared is memory whose
size the watchdog cannot tell."""
_DEVICE_LINKS = {
    "fd": "/proc/self/fd",
    "stdin": "/proc/self/fd/0",
    "stdout": "/proc/self/fd/1",
    "stderr": "/proc/self/fd/2",
    "ptmx": "pts/ptmx",
}
_ETC = (
    "alternatives",  # where Debian's `awk` and its like lead
    "ld.so.cache",
    "ld.so.conf",
    "ld.so.conf.d",
    "localtime",
    "mime.types",
    "ssl/openssl.cnf",
    "ssl/certs/ca-certificates.crt",
    "pki/tls/certs/ca-bundle.crt",
    "fonts",
)
_ETC_FILES = {
    "passwd": "root:x:0:0:root:/:/usr/sbin/nologin\nskill:x:1000:1000:skill:/:/bin/sh\n",
    "group": "root:x:0:\nskill:x:1000:\n",
    "hosts": "127.0.0.1 localhost\n",
    "nsswitch.conf": "passwd: files\ngroup: files\nhosts: files dns\n",
}
_MAX_ETC_BYTES = 4 * 1024 * 1024
_ROOM_OPTIONS = "size=16m,mode=755"


def furnish(
    room: Path,
    *,
    loaders: str,
    interpreters: Sequence[str],
    hidden: Sequence[str],
    paths: Mapping[str, Sequence[int]],
) -> None:
    """Make a root folder: the host's programs, an /etc without secrets, a few devices, and places for the rest."""
    room.mkdir()
    syscalls.mount("room", str(room), "tmpfs", syscalls.MS_NOSUID, _ROOM_OPTIONS)
    syscalls.mount(None, str(room), None, syscalls.MS_PRIVATE)
    for name in _EMPTY:
        (room / name).mkdir(parents=True)
    _make_etc(room / "etc")
    shutil.copytree(loaders, room / LOADER_PLACE[1:], ignore=shutil.ignore_patterns("__pycache__"))
    make_readable(room / LOADER_PLACE[1:])
    _show(room, "/usr")
    for name in _SYSTEM:
        path = Path("/") / name
        if path.is_symlink():
            (room / name).symlink_to(os.readlink(path))
        elif path.is_dir():
            _show(room, str(path))
    _make_devices(room / "dev")
    (room / NOTHING_PLACE[1:]).mkdir()
    (room / EMPTY_FILE_PLACE[1:]).touch()
    for shown in interpreters:
        _show(room, shown)
    for granted in sorted(paths):
        make_place(room, granted)
        show_granted(room, granted, paths[granted])
    for folder in hidden:
        hide(room, folder)
    syscalls.make_read_only(str(room))


def is_temporary(path: str) -> bool:
    """Whether a path is below the folder that every run has one of its own for."""
    return path.startswith("/tmp/")


def copy_of(model: Path, room: Path) -> None:
    """The same mounts at another place; what is attached to them later shows wherever they were bound to."""
    room.mkdir()
    syscalls.attach(syscalls.view(str(model), read_only=False, propagation=syscalls.MS_SHARED), str(room))


def hide(room: Path, folder: str) -> None:
    """Show nothing in the place of a folder."""
    syscalls.attach(syscalls.view(f"{room}{NOTHING_PLACE}"), f"{room}{folder}")


def show_granted(room: Path, path: str, identity: Sequence[int]) -> None:
    """Show a granted path of the host, read-only, and nothing that is mounted below it.

    Raises:
        OSError: it is not the one that was granted, or belongs to the kernel.
    """
    target = f"{room}{path}"
    try:
        view = syscalls.view(path, recursive=False)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        # The kernel does not let a user without privileges uncover what lies beneath another's mounts.
        view = syscalls.view(path)
    try:
        refuse_another_path(view, path, identity)
    except OSError:
        os.close(view)
        raise
    syscalls.attach(view, target)
    for point in mounts_below(target):
        nothing = NOTHING_PLACE if os.path.isdir(point) else EMPTY_FILE_PLACE
        syscalls.attach(syscalls.view(f"{room}{nothing}"), str(point))


def make_place(room: Path, path: str) -> None:
    """An empty place for a path of the host; folders on the way can be passed, not listed."""
    target = Path(f"{room}{path}")
    for parent in reversed(target.relative_to(room).parents[:-1]):
        with suppress(FileExistsError):
            (room / parent).mkdir(mode=0o111)
    with suppress(FileExistsError):
        target.mkdir() if os.path.isdir(path) else target.touch()


def _show(room: Path, path: str) -> None:
    """Show a path of the host, read-only."""
    make_place(room, path)
    syscalls.attach(syscalls.view(path), f"{room}{path}")


def _make_devices(folder: Path) -> None:
    """A few harmless devices: nodes of our own where root makes them, else the host's, each mounted by itself."""
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


def _make_etc(target: Path) -> None:
    """Copy the harmless part of the host's /etc, and write the rest."""
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


def make_readable(folder: Path) -> None:
    """Let everybody read a folder with all that is in it; what can be executed stays so."""
    for parent, _, files in os.walk(folder):
        os.chmod(parent, 0o755)
        for name in files:
            path = Path(parent) / name
            if not path.is_symlink():
                path.chmod(0o755 if path.stat().st_mode & 0o100 else 0o644)
