"""Layers: packages that skills declare, installed once by an operator's word and read-only ever after.

A layer is built in a staging folder and appears by one rename, so what `find` gives is whole. The packages are from
strangers: installing them runs none of their code, and takes nothing from outside the operator's index.
"""

import fcntl
import json
import os
import re
import shutil
import signal
import stat
import subprocess
import sys
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

import anyio
import anyio.abc
import anyio.to_thread
from pydantic import ValidationError

from apexbridge.errors import RequestError, ServerError
from apexbridge.wire import WireModel

Kind = Literal["python", "node"]
Progress = Callable[[str], None]

MAX_LAYER_BYTES = 1024 * 1024 * 1024
TIMEOUT_SECONDS = 600.0
MAX_TOLD_BYTES = 1024 * 1024
"""Of an installer's output; the rest is read and dropped."""
MAX_LINE_CHARACTERS = 500
LAST_LINES = 8
BLOCK_BYTES = 4096
"""What even an empty file or folder costs."""
LOOK_SECONDS = 1.0
"""Between two looks at the size of what is being built."""
LOCK_PAUSE_SECONDS = 0.1
LAYER_FOLDER = "layer"
RECORD_FILE = "layer.json"
STAGING_FOLDER = "staging"
LOCK_FILE = ".lock"

_KEY = re.compile(r"[0-9a-f]{8,64}\Z")
_REQUIREMENTS: Mapping[Kind, re.Pattern[str]] = {
    "python": re.compile(r"[A-Za-z0-9][A-Za-z0-9._,\[\]<>=!~*+-]*\Z"),
    "node": re.compile(
        r"(?:@[\w~-][\w.~-]*/)?[A-Za-z0-9~][\w.~-]*@(?!\.)[\w.*+<>=~^| -]+(?<!\.tgz|\.tar)(?<!\.tar\.gz)\Z", re.A
    ),
}
"""What a requirement may look like: with no colon, slash or leading dash it can be neither option, URL nor path."""
_PASSED_ON = re.compile(
    r"(?:PATH|HOME|LANG|LC_\w+|(?:HTTPS?|ALL|NO)_PROXY|(?:https?|all|no)_proxy|SSL_CERT_FILE|REQUESTS_CA_BUNDLE"
    r"|NODE_EXTRA_CA_CERTS|PIP_\w+|(?:NPM_CONFIG|npm_config)_.+)\Z"
)
"""The only variables an installer sees; whatever else the server was given may be a secret."""
_EMPTY_WORDS = re.compile(r"npm (?:error|ERR!)(?: \w+| Log files .*)?\Z")

_NO_PIP = 97
_GUARDED_PIP = f"""
import os, runpy, sys
inside = os.path.realpath(sys.argv.pop(1)) + os.sep
starts = "subprocess.Popen os.exec os.fork os.forkpty os.posix_spawn os.system os.symlink os.link".split()
paths = {{"open": 1, "os.chmod": 1, "os.mkdir": 1, "os.remove": 1, "os.rename": 2, "os.rmdir": 1, "os.truncate": 1}}
writing = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC
def guard(event, args):
    if event in starts:
        raise PermissionError("only wheels are installed: nothing is built, and no program is started")
    if event not in paths or event == "open" and not args[2] & writing:
        return
    at = args[1] if event in ("os.remove", "os.rmdir") else -1
    base = os.getcwd() if at == -1 else os.readlink(f"/proc/self/fd/{{at}}")
    for path in args[:paths[event]]:
        if not isinstance(path, int) and not os.path.realpath(os.path.join(base, os.fsdecode(path))).startswith(inside):
            raise PermissionError("a package may not write outside of its layer")
try:
    import pip
except ImportError:
    sys.exit({_NO_PIP})
sys.addaudithook(guard)
runpy.run_module("pip", run_name="__main__", alter_sys=True)
"""
"""pip, unable to start a program or to write elsewhere.

`--only-binary` is not enough: a wheel may require `other @ https://…/other.tar.gz`, and pip builds that all the same,
which is a stranger's code running. And some versions, 24.0 among them, write a console script wherever its name points.
"""
_PIP_OPTIONS = (
    "--only-binary=:all:",
    "--no-input",
    "--no-cache-dir",
    "--disable-pip-version-check",
    "--no-warn-script-location",
    "--root-user-action=ignore",
    "--progress-bar=off",
    "--no-color",
)
_NPM_OPTIONS = (
    "--ignore-scripts",
    "--no-audit",
    "--no-fund",
    "--no-update-notifier",
    "--no-progress",
    "--omit=dev",
    "--no-save",
    "--no-package-lock",
    "--logs-max=0",
    # Dependencies of dependencies may name any place: npm 11 refuses those itself. For older ones there is no git,
    # and every address left in the list of what was installed is one that is not the registry's.
    "--allow-git=none",
    "--allow-remote=none",
    "--allow-file=none",
    "--allow-directory=none",
    "--git=git-is-not-used-for-skills",
    "--omit-lockfile-registry-resolved",
)


class Layer(WireModel):
    """What is known of an installed layer, kept beside it."""

    kind: Kind
    key: str
    requirements: tuple[str, ...]
    packages: tuple[tuple[str, str], ...]
    """Name and version of everything that came with it."""
    size_bytes: int
    installed_at: datetime


class LayerStore:
    """Finds, installs, lists and removes layers below one folder; any number of processes may share it."""

    def __init__(
        self, root: Path, *, max_bytes: int = MAX_LAYER_BYTES, timeout_seconds: float = TIMEOUT_SECONDS
    ) -> None:
        self.root = root
        self._max_bytes = max_bytes
        self._timeout_seconds = timeout_seconds

    def find(self, kind: Kind, key: str) -> Path | None:
        """The layer's folder: for Python what goes onto `sys.path`, for Node what holds `node_modules`."""
        folder = self._place(kind, key) / LAYER_FOLDER
        return folder if folder.is_dir() else None

    def list(self) -> tuple[Layer, ...]:
        """All layers, in the order of their kind and key."""
        layers: dict[tuple[str, str], Layer] = {}
        for record in self.root.glob(f"*/*/{RECORD_FILE}"):
            with suppress(OSError, ValidationError):  # removed at this moment, or not ours
                layer = Layer.model_validate_json(record.read_bytes())
                if self.find(layer.kind, layer.key) == record.with_name(LAYER_FOLDER):
                    layers[layer.kind, layer.key] = layer
        return tuple(layers[key] for key in sorted(layers))

    def remove(self, kind: Kind, key: str) -> bool:
        """Remove a layer; False where there is none. A run that still uses it loses its packages."""
        trash = self._staging() / _unique(key)
        try:
            self._place(kind, key).rename(trash)
        except FileNotFoundError:
            return False
        _remove_tree(trash)
        return True

    async def install(
        self, kind: Kind, key: str, requirements: Sequence[str], progress: Progress | None = None
    ) -> Path:
        """Install packages as a layer of this key and give its folder; where there is one, nothing is done.

        Installs happen one at a time, in all processes: who comes second finds what the first one made.

        Args:
            kind: The installer: pip or npm.
            key: The layer's name, a hash in hexadecimal digits.
            requirements: For Python `name>=1`, for Node `name@range`.
            progress: Is told each line that the installer prints.

        Raises:
            RequestError: INVALID_INPUT, a requirement is more than a name and a version.
            ServerError: NOT_READY without an installer, TIMEOUT, or EXECUTION_ERROR with the installer's last words.
        """
        _check(kind, requirements)
        tell = progress or (lambda line: None)
        async with self._alone(tell):
            if found := self.find(kind, key):
                return found
            build = await anyio.to_thread.run_sync(self._prepare, key)
            try:
                install = _install_python if kind == "python" else _install_node
                with anyio.fail_after(self._timeout_seconds):
                    packages = await install(_Build(folder=build, max_bytes=self._max_bytes, tell=tell), requirements)
                await anyio.to_thread.run_sync(self._finish, kind, key, build, requirements, packages)
            except TimeoutError as error:
                raise ServerError(
                    f"The installer took longer than {self._timeout_seconds:g} seconds and was stopped.", code="TIMEOUT"
                ) from error
            finally:
                with anyio.CancelScope(shield=True):
                    await anyio.to_thread.run_sync(_remove_tree, build)
        return self._place(kind, key) / LAYER_FOLDER

    @asynccontextmanager
    async def _alone(self, tell: Progress) -> AsyncIterator[None]:
        """Hold the store; the kernel lets go of it for whoever dies."""
        self.root.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(self.root / LOCK_FILE, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            is_told = False
            while not _is_locked(descriptor):
                if not is_told:
                    tell("waiting for another install to end")
                    is_told = True
                await anyio.sleep(LOCK_PAUSE_SECONDS)
            yield
        finally:
            os.close(descriptor)

    def _place(self, kind: Kind, key: str) -> Path:
        if not _KEY.match(key):
            raise ValueError(f"not the key of a layer: {key!r}")
        return self.root / kind / key

    def _staging(self) -> Path:
        folder = self.root / STAGING_FOLDER
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    def _prepare(self, key: str) -> Path:
        """A fresh folder to build in; what others left there was left by a crash, for the store is ours."""
        staging = self._staging()
        for leftover in staging.iterdir():
            _remove_tree(leftover)
        build = staging / _unique(key)
        for name in ("work", "temporary", f"done/{LAYER_FOLDER}"):
            (build / name).mkdir(parents=True)
        return build

    def _finish(
        self, kind: Kind, key: str, build: Path, requirements: Sequence[str], packages: Sequence[tuple[str, str]]
    ) -> None:
        """Make the layer read-only, write its record, and let it appear."""
        done = build / "done"
        size = _freeze(done / LAYER_FOLDER, within=done / LAYER_FOLDER / ("node_modules" if kind == "node" else ""))
        if size > self._max_bytes:
            raise _too_large(self._max_bytes)
        layer = Layer(
            kind=kind,
            key=key,
            requirements=tuple(requirements),
            packages=tuple(packages),
            size_bytes=size,
            installed_at=datetime.now(UTC),
        )
        (done / RECORD_FILE).write_text(layer.model_dump_json(indent=2) + "\n", "utf-8")
        done.chmod(0o755)  # whatever the umask: the sandbox is another user
        os.sync()  # thousands of files: one call before the rename, so that no power cut leaves a layer half empty
        place = self._place(kind, key)
        place.parent.mkdir(exist_ok=True)
        done.rename(place)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Build:
    """A layer on its way: `work` is where the installer stands, `done` is what becomes the layer."""

    folder: Path
    max_bytes: int
    tell: Progress

    @property
    def work(self) -> Path:
        return self.folder / "work"

    @property
    def layer(self) -> Path:
        return self.folder / "done" / LAYER_FOLDER

    async def run(self, command: Sequence[str]) -> tuple[int, str]:
        """Run an installer to its end; gives its exit code and its last words. Nothing of it outlives this call."""
        process = await anyio.open_process(
            command,
            stdin=subprocess.DEVNULL,
            stderr=subprocess.STDOUT,
            cwd=self.work,
            env=_environment(self.folder / "temporary"),
            start_new_session=True,
        )
        try:
            words = await self._listen(process)
            return await process.wait(), words
        finally:
            if process.returncode is None:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
            with anyio.CancelScope(shield=True):
                await process.aclose()

    async def _listen(self, process: anyio.abc.Process) -> str:
        """Tell what the installer prints, and look now and then at how large the layer has become."""
        last: deque[str] = deque(maxlen=LAST_LINES)
        room, rest, looked = MAX_TOLD_BYTES, b"", anyio.current_time()
        while True:
            chunk = b""
            with anyio.move_on_after(LOOK_SECONDS):
                try:
                    chunk = await process.stdout.receive()  # type: ignore[union-attr]  # a pipe, by default
                except anyio.EndOfStream:
                    break
            if anyio.current_time() - looked >= LOOK_SECONDS:
                await self._look()
                looked = anyio.current_time()
            *whole, rest = (rest + chunk).split(b"\n")
            rest = rest[:MAX_LINE_CHARACTERS]
            for line in filter(None, map(_readable, whole)):
                if not _EMPTY_WORDS.match(line):
                    last.append(line)
                room -= len(line)
                if room > 0:
                    self.tell(line)
        errors = [at for at, line in enumerate(last) if line.startswith(("ERROR", "npm error", "npm ERR!"))]
        return "\n".join([*last][errors[0] :] if errors else last)

    async def _look(self) -> None:
        # pip keeps what it fetched beside what it unpacked, until it ends.
        if await anyio.to_thread.run_sync(_size_of, self.folder) > 2 * self.max_bytes:
            raise _too_large(self.max_bytes)


async def _install_python(build: _Build, requirements: Sequence[str]) -> list[tuple[str, str]]:
    """Have pip fill the layer; its own configuration, which may name another index, holds."""
    guarded = [sys.executable, "-I", "-B", "-c", _GUARDED_PIP, str(build.folder)]
    code, words = await build.run(
        [*guarded, "install", "--target", str(build.layer), *_PIP_OPTIONS, "--", *requirements]
    )
    if code == _NO_PIP:
        raise ServerError(
            "pip is missing in the server's Python environment. Add it with `python -m ensurepip`, or with "
            "`uv pip install pip`, and try again.",
            code="NOT_READY",
        )
    if code:
        raise _failed(f"The Python packages could not be installed; only wheels are taken, none is built. {words}")
    return await anyio.to_thread.run_sync(_python_packages, build.layer)


def _python_packages(layer: Path) -> list[tuple[str, str]]:
    packages = []
    for folder in sorted(layer.glob("*.dist-info")):
        name, _, version = folder.name.removesuffix(".dist-info").rpartition("-")
        if (folder / "direct_url.json").exists():  # pip's own note
            raise _failed(f"The package {_readable(name)} was asked for by a URL that another package named.")
        packages.append((name, version))
    return packages


async def _install_node(build: _Build, requirements: Sequence[str]) -> list[tuple[str, str]]:
    """Have npm make a `node_modules`; its own configuration, which may name another registry, holds."""
    npm = shutil.which("npm")
    if npm is None:
        raise ServerError(
            "npm is not on the PATH. Install Node.js with npm (the package `npm` of your system, or nodejs.org), "
            "and try again.",
            code="NOT_READY",
        )
    wanted = dict(_name_and_range(requirement) for requirement in requirements)
    manifest = json.dumps({"private": True, "dependencies": wanted})
    await anyio.Path(build.work / "package.json").write_text(manifest, "utf-8")
    code, words = await build.run([npm, "install", *_NPM_OPTIONS])
    if code:
        raise _failed(f"The Node packages could not be installed. {words}")
    packages = await anyio.to_thread.run_sync(_node_packages, build.work / "node_modules")
    await anyio.Path(build.work / "node_modules").rename(build.layer / "node_modules")
    return packages


def _node_packages(folder: Path) -> list[tuple[str, str]]:
    try:
        listed = json.loads((folder / ".package-lock.json").read_bytes())["packages"]
        outside = [path for path, package in listed.items() if "resolved" in package or "link" in package]
        packages = [(path.rpartition("node_modules/")[2], str(listed[path].get("version", ""))) for path in listed]
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise _failed("npm left no list of what it installed; a newer npm may do.") from error
    if outside:
        raise _failed(f"The package {_readable(outside[0])} is not from the registry: another package named its place.")
    return sorted(packages)


def _name_and_range(requirement: str) -> tuple[str, str]:
    name, _, versions = requirement.rpartition("@")
    return name, versions


def _check(kind: Kind, requirements: Sequence[str]) -> None:
    for requirement in requirements:
        if not _REQUIREMENTS[kind].match(requirement):
            raise RequestError(
                f"{_readable(requirement)} is not the name and version of a package", code="INVALID_INPUT"
            )
    if not requirements:
        raise RequestError("There is nothing to install", code="INVALID_INPUT")


def _environment(temporary: Path) -> dict[str, str]:
    passed_on = {name: value for name, value in os.environ.items() if _PASSED_ON.match(name)}
    # Within the build, so that whatever an installer leaves when it is killed goes with it.
    return {**passed_on, "TMPDIR": str(temporary)}


def _readable(line: str | bytes) -> str:
    """One line of an installer or a stranger, bounded and fit for a terminal."""
    text = line.decode("utf-8", "replace") if isinstance(line, bytes) else line
    shown = text.strip()[:MAX_LINE_CHARACTERS]
    return "".join(character if character.isprintable() else " " for character in shown)


def _failed(message: str) -> ServerError:
    return ServerError(message.strip(), code="EXECUTION_ERROR")


def _too_large(limit: int) -> ServerError:
    return _failed(f"The packages are larger than {limit // (1024 * 1024)} MB and were not installed.")


def _is_locked(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _unique(key: str) -> str:
    return f"{key}-{os.urandom(4).hex()}"


# ------------------------------------------------------------------------------------------------------------- files
def _freeze(folder: Path, *, within: Path) -> int:
    """Take every right to write away; gives the size on disk.

    Raises:
        ServerError: something is neither file nor folder, or a link leads out of what a run will see.
    """
    size, inside = 0, f"{os.path.realpath(within)}{os.sep}"
    for path, status in _entries(folder):
        size += _cost(status)
        if stat.S_ISLNK(status.st_mode):
            target = os.readlink(path)  # noqa: PTH115  # paths by the thousand: plain strings are enough
            if os.path.isabs(target) or not os.path.realpath(path).startswith(inside):  # noqa: PTH117
                raise _failed(f"A link in the packages leads out of them: {_readable(os.path.relpath(path, folder))}")
        elif stat.S_ISDIR(status.st_mode):
            os.chmod(path, 0o555)  # noqa: PTH101, S103  # the sandbox is another user
        elif stat.S_ISREG(status.st_mode):
            os.chmod(path, 0o555 if status.st_mode & 0o111 else 0o444)  # noqa: PTH101
        else:
            raise _failed("Among the packages is something that is neither a file nor a folder.")
    return size


def _size_of(folder: Path) -> int:
    return sum(_cost(status) for _, status in _entries(folder))


def _cost(status: os.stat_result) -> int:
    return max(1, -(-status.st_size // BLOCK_BYTES)) * BLOCK_BYTES


def _entries(folder: Path) -> Iterator[tuple[str, os.stat_result]]:
    """The folder and everything below it, of any depth; what vanishes meanwhile is left out."""
    yield str(folder), folder.stat()
    waiting = [str(folder)]
    while waiting:
        with suppress(FileNotFoundError), os.scandir(waiting.pop()) as entries:
            for entry in entries:
                with suppress(FileNotFoundError):
                    yield entry.path, entry.stat(follow_symlinks=False)
                if entry.is_dir(follow_symlinks=False):
                    waiting.append(entry.path)


def _remove_tree(folder: Path) -> None:
    """Remove a folder with everything in it, of any depth and mode; what resists stays for the next install.

    Not `shutil.rmtree`: it recurses, and packages may be deeper than Python's stack.
    """
    if not folder.is_dir() or folder.is_symlink():
        folder.unlink(missing_ok=True)
        return
    waiting, folders = [str(folder)], []
    while waiting:
        place = waiting.pop()
        folders.append(place)
        with suppress(OSError):
            os.chmod(place, 0o700)  # noqa: PTH101
            with os.scandir(place) as entries:
                for entry in entries:
                    if entry.is_dir(follow_symlinks=False):
                        waiting.append(entry.path)
                    else:
                        os.unlink(entry.path)  # noqa: PTH108
    for place in reversed(folders):
        with suppress(OSError):
            os.rmdir(place)  # noqa: PTH106
