"""Layers: packages that skills declare, installed once when an operator asks for it, then read-only.

A layer is built in a staging folder and appears by one rename, so it is always complete.
"""

import asyncio
import fcntl
import os
import re
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

from pydantic import ValidationError

from apexbridge._tasks import run_to_completion
from apexbridge.errors import RequestError, ServerError
from apexbridge.sandbox.installers import Build, Progress, freeze, install_node, install_python, readable, too_large
from apexbridge.sandbox.launcher.removal import remove_tree
from apexbridge.wire import WireModel

Kind = Literal["python", "node"]
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


class Layer(WireModel):
    """The record of an installed layer, stored next to it."""

    kind: Kind
    key: str
    requirements: tuple[str, ...]
    packages: tuple[tuple[str, str], ...]
    """Name and version of all packages in it, dependencies included."""
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
        """The layer's folder: for Python an entry of `sys.path`, for Node the parent of `node_modules`."""
        folder = self._layer_folder(kind, key) / "layer"
        return folder if folder.is_dir() else None

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
        self, kind: Kind, key: str, requirements: Sequence[str], progress: Progress | None = None
    ) -> Path:
        """Install packages as a layer and return its folder; does nothing if the layer exists.

        Installs happen one at a time, across all processes: the second of two finds the layer of the first. The key is
        a hash in hexadecimal digits. Requirements are `name>=1` for Python, `name@range` for Node. `progress` is called
        with each line that the installer prints.

        Raises:
            RequestError: INVALID_INPUT, a requirement is more than a name and a version.
            ServerError: NOT_READY without an installer, TIMEOUT, or EXECUTION_ERROR with the installer's last lines.
        """
        for requirement in requirements:
            if not _REQUIREMENTS[kind].match(requirement):
                raise RequestError(
                    f"{readable(requirement)} is not the name and version of a package", code="INVALID_INPUT"
                )
        if not requirements:
            raise RequestError("There is nothing to install", code="INVALID_INPUT")
        progress = progress or (lambda line: None)
        async with self._lock(progress):
            if found := self.find(kind, key):
                return found
            folder = await run_to_completion(asyncio.to_thread(self._prepare, key))
            build = Build(folder=folder, max_bytes=self._max_bytes, progress=progress)
            try:
                install = install_python if kind == "python" else install_node
                async with asyncio.timeout(self._timeout_seconds):
                    packages = await install(build, requirements)
                await run_to_completion(asyncio.to_thread(self._finish, kind, key, build, requirements, packages))
            except TimeoutError as error:
                raise ServerError(
                    f"The installer took longer than {self._timeout_seconds:g} seconds and was stopped.", code="TIMEOUT"
                ) from error
            finally:
                await run_to_completion(asyncio.to_thread(remove_tree, str(folder)))
        return self._layer_folder(kind, key) / "layer"

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
        self, kind: Kind, key: str, build: Build, requirements: Sequence[str], packages: Sequence[tuple[str, str]]
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
        )
        (done / RECORD_FILE).write_text(layer.model_dump_json(indent=2) + "\n", "utf-8")
        done.chmod(0o755)  # with any umask: runs have another user
        os.sync()  # one call for thousands of files: after a power cut, no layer is incomplete
        folder = self._layer_folder(kind, key)
        folder.parent.mkdir(exist_ok=True)
        done.rename(folder)


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
