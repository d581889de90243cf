"""Layers: packages that skills declare, installed once when an operator asks for it, then read-only.

A layer is built in a staging folder and appears by one rename, so it is always complete. The packages are untrusted:
pip and npm run none of their code, and download nothing from outside the operator's index.
"""

import asyncio
import errno
import fcntl
import json
import os
import platform
import re
import shutil
import signal
import stat
import sys
import sysconfig
from asyncio.subprocess import DEVNULL, PIPE, STDOUT
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal, get_args

from pydantic import ValidationError

from apexbridge._fs import exchange
from apexbridge._tasks import in_thread, run_to_completion
from apexbridge.disk import blocks
from apexbridge.errors import RequestError, ServerError
from apexbridge.sandbox.launcher.removal import remove_tree
from apexbridge.wire import WireModel

Kind = Literal["python", "node"]
_LIBC = "".join(platform.libc_ver()) or "libc"
PYTHON_RUNTIME = f"{sysconfig.get_config_var('SOABI')}-{sysconfig.get_platform()}-{_LIBC}"
NODE_RUNTIME = f"node-{platform.machine()}-{_LIBC}"
"""Part of the keys of layers: another version of the interpreter or of the C library needs other packages."""
MAX_LAYER_BYTES = 1024 * 1024 * 1024
TIMEOUT_SECONDS = 600.0
LOCK_PAUSE_SECONDS = 0.1
RECORD_FILE = "layer.json"
_KEY = re.compile(r"[0-9a-f]{8,64}\Z")
_REQUIREMENTS: Mapping[Kind, re.Pattern[str]] = {
    "python": re.compile(r"[A-Za-z0-9][A-Za-z0-9._,\[\]<>=!~*+-]*\Z"),
    "node": re.compile(
        r"(?:@[\w~-][\w.~-]*/)?[A-Za-z0-9~][\w.~-]*@(?!\.)[\w.*+<>=~^| -]+(?<!\.tgz|\.tar)(?<!\.tar\.gz)\Z", re.A
    ),
}
"""Allowed requirements: without colon, slash or leading dash they cannot be options, URLs or paths."""
Progress = Callable[[str], None]
MAX_REPORTED_CHARACTERS = 1024 * 1024
"""Of an installer's output; the remainder is read and dropped."""
LAST_LINES = 8
SIZE_CHECK_SECONDS = 1.0
_SERVER_PYTHON = re.compile(
    rb"\A#!(?:%b[^\n]*\n|/bin/sh\n'''exec' [^\n]*\n' '''\n)" % re.escape(os.fsencode(sys.executable))
)
"""How pip starts a program: with the path of its own Python or, if that is long or has spaces, through a shell."""
READ_BYTES = 64 * 1024
MAX_LINE_CHARACTERS = 500
_PASSED_ON = re.compile(
    r"(?:PATH|HOME|LANG|LC_\w+|(?:HTTPS?|ALL|NO)_PROXY|(?:https?|all|no)_proxy|SSL_CERT_FILE|REQUESTS_CA_BUNDLE"
    r"|NODE_EXTRA_CA_CERTS|PIP_\w+|(?:NPM_CONFIG|npm_config)_.+)\Z"
)
"""The only variables that an installer gets; the others may contain secrets."""
_EMPTY_LINE = re.compile(r"npm (?:error|ERR!)(?: \w+| Log files .*)?\Z")
_PATH = re.compile(r"(?:file:/*|(?<![\w/:.~-]))/(?:[^\s/'\"]+/)+(?P<last>[^\s/'\"]*)")
"""An absolute path of two segments or more, or a `file:` URL. Paths in other URLs follow a host and do not match."""
_NO_SPACE = "No space left on device"
_NO_PIP, _UNKNOWN_PIP = 97, 98
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
try:
    from pip._internal.exceptions import InstallationError
    from pip._internal.req.req_install import InstallRequirement
    make = InstallRequirement.__init__
except (ImportError, AttributeError):
    sys.exit({_UNKNOWN_PIP})
def make_from_index(self, req, *args, **options):
    if getattr(req, "url", None) or options.get("link") or any(type(arg).__name__ == "Link" for arg in args):
        name = getattr(req, "name", None) or "another"
        raise InstallationError(
            f"A package asks for {{name}} by a URL. Only packages of the index are installed: nothing is built, and "
            "nothing is downloaded from elsewhere."
        )
    make(self, req, *args, **options)
InstallRequirement.__init__ = make_from_index
sys.addaudithook(guard)
runpy.run_module("pip", run_name="__main__", alter_sys=True)
"""
"""pip, unable to start programs, to write outside the layer, or to download a URL that a package names.

The URL is refused when pip creates a requirement from it, before anything is downloaded: the server may have access to
private networks.

`--only-binary` is not enough: a wheel may require `other @ https://…/other.tar.gz`, and pip builds that anyway, which
runs untrusted code. And some versions, such as 24.0, write a console script to any path that its name contains.
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
    # Transitive dependencies may name any URL. npm refuses those before it downloads them. As a second defence there is
    # no git, and any URL in the list of installed packages is one outside the registry.
    "--allow-git=none",
    "--allow-remote=none",
    "--allow-file=none",
    "--allow-directory=none",
    "--git=git-is-not-used-for-skills",
    "--omit-lockfile-registry-resolved",
)


class Layer(WireModel):
    """The record of an installed layer, stored next to it."""

    kind: Kind
    key: str
    requirements: tuple[str, ...]
    packages: tuple[tuple[str, str], ...]
    """Name and version of all packages in it, dependencies included."""
    size_bytes: int
    installed_at: datetime
    bundle: str | None = None
    """The bundle that it is; None for the packages of skills."""


class LayerStore:
    """Finds, installs, lists and removes layers below one folder; any number of processes may share it."""

    def __init__(
        self, root: Path, *, max_bytes: int = MAX_LAYER_BYTES, timeout_seconds: float = TIMEOUT_SECONDS
    ) -> None:
        self.root = root
        self._max_bytes = max_bytes
        self._timeout_seconds = timeout_seconds

    def find(self, kind: Kind, key: str) -> Path | None:
        """The layer's folder: for Python an entry of `sys.path`, for Node the parent of `node_modules`."""
        folder = self._layer_folder(kind, key) / "layer"
        return folder if folder.is_dir() else None

    def keys(self) -> set[tuple[str, str]]:
        """Kind and key of all layers, without reading their records."""
        found: set[tuple[str, str]] = set()
        for kind in get_args(Kind):
            with suppress(OSError):
                found |= {(kind, key) for key in os.listdir(self.root / kind)}  # noqa: PTH208  # names, not paths
        return found

    def record(self, kind: Kind, key: str) -> Layer | None:
        """The record of a layer; None if it is not installed."""
        with suppress(OSError, ValidationError):
            return Layer.model_validate_json((self._layer_folder(kind, key) / RECORD_FILE).read_bytes())
        return None

    def list(self) -> tuple[Layer, ...]:
        layers: dict[tuple[str, str], Layer] = {}
        for record in self.root.glob(f"*/*/{RECORD_FILE}"):
            with suppress(OSError, ValidationError):  # removed meanwhile, or not a record
                layer = Layer.model_validate_json(record.read_bytes())
                if self.find(layer.kind, layer.key) == record.with_name("layer"):
                    layers[layer.kind, layer.key] = layer
        return tuple(layers[key] for key in sorted(layers))

    def remove(self, kind: Kind, key: str) -> bool:
        """Remove a layer; returns False if there is none. Active runs that use it lose its packages."""
        trash = self._staged(key)
        try:
            self._layer_folder(kind, key).rename(trash)
        except FileNotFoundError:
            return False
        remove_tree(str(trash))
        return True

    async def install(
        self,
        kind: Kind,
        key: str,
        requirements: Sequence[str],
        progress: Progress | None = None,
        *,
        constraints: Sequence[str] = (),
        bundle: str | None = None,
        replace: bool = False,
    ) -> Path:
        """Install packages as a layer and return its folder; does nothing if the layer exists.

        `constraints` are versions for Python packages that happen to be among the dependencies. With `replace`, a layer
        that was installed for other requirements is replaced, at once and only if the install succeeds.

        Installs happen one at a time, across all processes: the second of two finds the layer of the first. The key is
        a hash in hexadecimal digits. Requirements are `name>=1` for Python, `name@range` for Node. `progress` is called
        with each line that the installer prints.

        Raises:
            RequestError: INVALID_INPUT, a requirement is more than a name and a version.
            ServerError: NOT_READY without an installer, TIMEOUT, STORAGE_FULL, or EXECUTION_ERROR with the installer's
                last lines.
        """
        for requirement in (*requirements, *constraints):
            if not _REQUIREMENTS[kind].match(requirement):
                raise RequestError(
                    f"{readable(requirement)} is not the name and version of a package", code="INVALID_INPUT"
                )
        if not requirements:
            raise RequestError("There is nothing to install", code="INVALID_INPUT")
        progress = progress or (lambda line: None)
        async with self._lock(progress):
            if (found := self.find(kind, key)) and not (replace and self._is_different(kind, key, requirements)):
                return found
            with _disk_faults():
                folder = await in_thread(self._prepare, key)
            build = Build(folder=folder, max_bytes=self._max_bytes, progress=progress, constraints=constraints)
            try:
                install = install_python if kind == "python" else install_node
                async with asyncio.timeout(self._timeout_seconds):
                    packages = await install(build, requirements)
                with _disk_faults():
                    await in_thread(self._finish, kind, key, build, requirements, packages, bundle)
            except TimeoutError as error:
                raise ServerError(
                    f"The installer took longer than {self._timeout_seconds:g} seconds and was stopped.", code="TIMEOUT"
                ) from error
            finally:
                await in_thread(remove_tree, str(folder))
        return self._layer_folder(kind, key) / "layer"

    def _is_different(self, kind: Kind, key: str, requirements: Sequence[str]) -> bool:
        record = self.record(kind, key)
        return record is None or record.requirements != tuple(requirements)

    @asynccontextmanager
    async def _lock(self, progress: Progress) -> AsyncIterator[None]:
        """Lock the store; the kernel releases the lock of a process that dies."""
        self.root.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(self.root / ".lock", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            is_reported = False
            while not _try_lock(descriptor):
                if not is_reported:
                    progress("waiting for another install to end")
                    is_reported = True
                await asyncio.sleep(LOCK_PAUSE_SECONDS)
            yield
        finally:
            os.close(descriptor)

    def _layer_folder(self, kind: Kind, key: str) -> Path:
        if not _KEY.match(key):
            raise ValueError(f"not the key of a layer: {key!r}")
        return self.root / kind / key

    def _staged(self, key: str) -> Path:
        staging = self.root / "staging"
        staging.mkdir(parents=True, exist_ok=True)
        return staging / f"{key}-{os.urandom(4).hex()}"

    def _prepare(self, key: str) -> Path:
        """A new folder to build in. Other folders there are from a crash, because this process has the lock."""
        build = self._staged(key)
        for leftover in build.parent.iterdir():
            remove_tree(str(leftover))
        for name in ("work", "temporary", "done/layer"):
            (build / name).mkdir(parents=True)
        return build

    def _finish(
        self,
        kind: Kind,
        key: str,
        build: "Build",
        requirements: Sequence[str],
        packages: Sequence[tuple[str, str]],
        bundle: str | None,
    ) -> None:
        done = build.layer.parent
        size = freeze(build.layer, within=build.layer / ("node_modules" if kind == "node" else ""))
        if size > self._max_bytes:
            raise too_large(self._max_bytes)
        layer = Layer(
            kind=kind,
            key=key,
            requirements=tuple(requirements),
            packages=tuple(packages),
            size_bytes=size,
            installed_at=datetime.now(UTC),
            bundle=bundle,
        )
        (done / RECORD_FILE).write_text(layer.model_dump_json(indent=2) + "\n", "utf-8")
        done.chmod(0o755)  # with any umask: runs have another user
        os.sync()  # one call for thousands of files: after a power cut, no layer is incomplete
        folder = self._layer_folder(kind, key)
        folder.parent.mkdir(exist_ok=True)
        if folder.exists():
            exchange(done, folder)  # the previous layer is removed with the build
        else:
            done.rename(folder)


@contextmanager
def _disk_faults() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise _disk_full() from error


def _disk_full() -> ServerError:
    return ServerError("The disk is full; nothing was installed. Free some space and try again.", code="STORAGE_FULL")


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


@dataclass(frozen=True, slots=True, kw_only=True)
class Build:
    folder: Path
    max_bytes: int
    progress: Progress
    constraints: Sequence[str] = ()

    @property
    def work(self) -> Path:
        return self.folder / "work"

    @property
    def layer(self) -> Path:
        return self.folder / "done" / "layer"

    async def run(self, command: Sequence[str]) -> tuple[int, str]:
        """Run an installer; returns its exit code and the last lines that it printed. No process outlives this call."""
        passed_on = {name: value for name, value in os.environ.items() if _PASSED_ON.match(name)}
        process = await asyncio.create_subprocess_exec(
            *command,
            stdin=DEVNULL,
            stdout=PIPE,
            stderr=STDOUT,
            cwd=self.work,
            # Inside the build folder, so that files of a killed installer are removed with it.
            env={**passed_on, "TMPDIR": str(self.folder / "temporary")},
            start_new_session=True,
        )
        try:
            last_lines = await self._read_output(process)
            return await process.wait(), last_lines
        finally:
            if process.returncode is None:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
            await run_to_completion(process.wait())

    async def _read_output(self, process: asyncio.subprocess.Process) -> str:
        last: deque[str] = deque(maxlen=LAST_LINES)
        clock = asyncio.get_running_loop().time
        remaining, tail, checked_at = MAX_REPORTED_CHARACTERS, b"", clock()
        while True:
            chunk = b""
            with suppress(TimeoutError):
                async with asyncio.timeout(SIZE_CHECK_SECONDS):
                    chunk = await process.stdout.read(READ_BYTES)  # type: ignore[union-attr]  # a pipe
                    if not chunk:
                        break
            if clock() - checked_at >= SIZE_CHECK_SECONDS:
                # Until it ends, pip keeps what it downloaded in addition to what it unpacked.
                if await asyncio.to_thread(size_of, self.folder) > 2 * self.max_bytes:
                    raise too_large(self.max_bytes)
                checked_at = clock()
            *lines, tail = (tail + chunk).split(b"\n")
            tail = tail[:MAX_LINE_CHARACTERS]
            for line in map(without_paths, filter(None, map(readable, lines))):
                if not _EMPTY_LINE.match(line):
                    last.append(line)
                remaining -= len(line)
                if remaining > 0:
                    self.progress(line)
        errors = [index for index, line in enumerate(last) if line.startswith(("ERROR", "npm error", "npm ERR!"))]
        return "\n".join([*last][errors[0] :] if errors else last)


async def install_python(build: Build, requirements: Sequence[str]) -> list[tuple[str, str]]:
    """Have pip fill the layer, with its own configuration, which may name another index."""
    guarded = [sys.executable, "-I", "-B", "-c", _GUARDED_PIP, str(build.folder)]
    options = ["--target", str(build.layer), *_PIP_OPTIONS]
    if build.constraints:
        file = build.work / "constraints.txt"
        file.write_text("".join(f"{constraint}\n" for constraint in build.constraints), "utf-8")
        options += ["--constraint", str(file)]
    is_unreachable = False

    def report(line: str) -> None:
        nonlocal is_unreachable
        is_unreachable = is_unreachable or "Retrying (" in line
        build.progress(line)

    code, output = await replace(build, progress=report).run([*guarded, "install", *options, "--", *requirements])
    if code == _NO_PIP:
        raise ServerError(
            "pip is missing in the server's Python environment. Add it with `python -m ensurepip`, or with "
            "`uv pip install pip`, and try again.",
            code="NOT_READY",
        )
    if code == _UNKNOWN_PIP:
        raise ServerError(
            "This version of pip cannot be prevented from downloading URLs that packages name. Install another version "
            "into the server's Python environment, and try again.",
            code="NOT_READY",
        )
    if code and _NO_SPACE in output:
        raise _disk_full()
    if code and is_unreachable:
        raise install_error(
            f"The Python packages could not be installed: the package index cannot be reached. Check the network, or "
            f"pip's own configuration, and try again. {output}"
        )
    if code:
        raise install_error(f"The Python packages could not be installed; only wheels are used. {output}")
    packages = []
    for folder in sorted(build.layer.glob("*.dist-info")):
        name, _, version = folder.name.removesuffix(".dist-info").rpartition("-")
        if (folder / "direct_url.json").exists():  # written by pip
            raise install_error(f"The package {readable(name)} comes from a URL that another package named.")
        packages.append((name, version))
    await in_thread(_use_python_of_runs, build.layer / "bin")
    return packages


def _use_python_of_runs(programs: Path) -> None:
    """Replace the first lines of programs that pip wrote: they name the server's Python, which runs do not see."""
    for program in programs.glob("*"):
        if program.is_file() and not program.is_symlink():
            text = program.read_bytes()
            program.write_bytes(_SERVER_PYTHON.sub(b"#!/usr/bin/env python3\n", text, count=1))


async def install_node(build: Build, requirements: Sequence[str]) -> list[tuple[str, str]]:
    """Have npm create `node_modules`, with its own configuration, which may name another registry."""
    npm = shutil.which("npm")
    if npm is None:
        raise ServerError(
            "npm is not on the PATH. Install Node.js with npm (the package `npm` of your system, or nodejs.org), "
            "and try again.",
            code="NOT_READY",
        )
    code, known = await replace(build, progress=lambda line: None).run([npm, "config", "get", "allow-remote"])
    if code or not known or "undefined" in known.split():
        raise ServerError(
            "This npm would download URLs that packages name. Install a newer one with `npm install -g npm@latest`, "
            "and try again.",
            code="NOT_READY",
        )
    dependencies = dict(requirement.rsplit("@", 1) for requirement in requirements)
    manifest = json.dumps({"private": True, "dependencies": dependencies})
    (build.work / "package.json").write_text(manifest, "utf-8")
    code, output = await build.run([npm, "install", *_NPM_OPTIONS])
    if code and (_NO_SPACE in output or "ENOSPC" in output):
        raise _disk_full()
    if code:
        raise install_error(f"The Node packages could not be installed. {output}")
    packages = await asyncio.to_thread(_node_packages, build.work / "node_modules")
    (build.work / "node_modules").rename(build.layer / "node_modules")
    return packages


def _node_packages(folder: Path) -> list[tuple[str, str]]:
    try:
        listed = json.loads((folder / ".package-lock.json").read_bytes())["packages"]
        outside = [path for path, package in listed.items() if "resolved" in package or "link" in package]
        packages = [(path.rpartition("node_modules/")[2], str(listed[path].get("version", ""))) for path in listed]
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise install_error("npm did not list the packages that it installed. Try a newer npm.") from error
    if outside:
        raise install_error(
            f"The package {readable(outside[0])} is not from the registry: another package named its URL."
        )
    return sorted(packages)


def freeze(folder: Path, *, within: Path) -> int:
    """Make all files read-only; returns their size on disk. Refuses special files, and links out of `within`."""
    size, inside = 0, f"{os.path.realpath(within)}{os.sep}"
    for path, status in _entries(folder):
        size += blocks(status.st_size)
        if stat.S_ISLNK(status.st_mode):
            target = os.readlink(path)  # noqa: PTH115  # thousands of paths: plain strings are faster
            if os.path.isabs(target) or not os.path.realpath(path).startswith(inside):  # noqa: PTH117
                raise install_error(
                    f"A link in the packages leads out of them: {readable(os.path.relpath(path, folder))}"
                )
        elif stat.S_ISDIR(status.st_mode):
            os.chmod(path, 0o555)  # noqa: PTH101, S103  # runs have another user
        elif stat.S_ISREG(status.st_mode):
            os.chmod(path, 0o555 if status.st_mode & 0o111 else 0o444)  # noqa: PTH101
        else:
            raise install_error("Among the packages is something that is neither a file nor a folder.")
    return size


def size_of(folder: Path) -> int:
    return sum(blocks(status.st_size) for _, status in _entries(folder))


def _entries(folder: Path) -> Iterator[tuple[str, os.stat_result]]:
    """The folder and everything below it; entries that disappear meanwhile are skipped."""
    yield str(folder), folder.stat()
    pending = [str(folder)]
    while pending:
        with suppress(FileNotFoundError), os.scandir(pending.pop()) as entries:
            for entry in entries:
                with suppress(FileNotFoundError):
                    yield entry.path, entry.stat(follow_symlinks=False)
                if entry.is_dir(follow_symlinks=False):
                    pending.append(entry.path)


def readable(line: str | bytes) -> str:
    """One line of untrusted text, truncated and without control characters."""
    text = line.decode("utf-8", "replace") if isinstance(line, bytes) else line
    shown = text.strip()[:MAX_LINE_CHARACTERS]
    return "".join(character if character.isprintable() else " " for character in shown)


def without_paths(line: str) -> str:
    """A line in which absolute paths of the server are reduced to their last segment."""
    return _PATH.sub(lambda match: f"…/{match['last']}", line)


def install_error(message: str) -> ServerError:
    return ServerError(message.strip(), code="EXECUTION_ERROR")


def too_large(limit: int) -> ServerError:
    return install_error(f"The packages are larger than {limit // (1024 * 1024)} MB and were not installed.")
