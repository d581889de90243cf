"""The workspace as a caller sees it: its own folder, and the output of runs below `runs/`."""

import asyncio
import re
from collections import defaultdict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import replace
from operator import attrgetter
from pathlib import Path
from typing import BinaryIO, TypeVar

from apexbridge._safe_open import Opener, open_beneath
from apexbridge._tasks import run_to_completion
from apexbridge.disk import Disk
from apexbridge.errors import InvalidInputError, PermissionDeniedError, RequestError
from apexbridge.tools.builtin.files.file_roots import Root
from apexbridge.tools.builtin.files.listing import Entry, Glob
from apexbridge.tools.builtin.files.paths import RelativePath, read_path

RUNS = "runs"
THREADS = 64
THREADS_OF_A_KEY = 4
KEYS = "keys"
STREAMS = ("stdout", "stderr")
_RUN_ID = re.compile(r"[0-9a-f]{32}\Z")
_CALLER = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}\Z")

T = TypeVar("T")
RunFolder = Callable[[str, str], Path | None]
"""The folder of a run's output (`files/`, `stdout`, `stderr`), by run id and caller; None if not accessible."""


class Workspace:
    """Finds files for callers: each API key has a folder below the root, callers without a key have the root.

    Paths are checked by `read_path`, and errors are those of `Root`.
    """

    def __init__(self, root: Path, runs: RunFolder, *, opener: Opener = open_beneath, disk: Disk | None = None) -> None:
        self._root = root
        self._disk = disk or Disk(root)
        self._runs = runs
        self._opener = opener
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="workspace")
        self._limits: defaultdict[str, asyncio.Semaphore] = defaultdict(lambda: asyncio.Semaphore(THREADS_OF_A_KEY))

    async def in_thread(self, work: Callable[[], T], *, caller: str = "") -> T:
        """Run file operations in a thread. They are not abandoned if the caller is cancelled.

        A key gets only a few threads, so that it cannot use up those of the others.
        """
        async with self._limits[caller] if caller else nullcontext():
            return await run_to_completion(asyncio.get_running_loop().run_in_executor(self._threads, work))

    def open_file(self, path: str, *, caller: str = "") -> BinaryIO:
        """Open a file for reading."""
        known = read_path(path)
        if known.parts[:1] != (RUNS,):
            return self._own(caller).open_file(known)
        folder, inside = self._run(known, caller)
        try:
            return self._artifacts(folder).open_file(inside)
        except RequestError:
            if inside.text not in STREAMS:
                raise
            return Root(folder, opener=self._opener).open_file(inside)

    def list_folder(
        self, path: str = ".", *, caller: str = "", glob: Glob | None = None, deep: bool = False
    ) -> tuple[list[Entry], bool]:
        """The entries of a folder, with paths for `open_file`, and whether there may be more."""
        known = read_path(path)
        if known.parts[:1] == (RUNS,):
            folder, inside = self._run(known, caller)
            found, cut = self._artifacts(folder).list_folder(inside, glob=glob, deep=deep)
            if not inside.parts:
                found = self._with_streams(found, folder, inside, glob)
        else:
            found, cut = self._own(caller).list_folder(known, glob=glob, deep=deep)
            if not known.parts:  # a real folder `runs` is hidden by the output of runs
                found = [entry for entry in found if entry.path.partition("/")[0] != RUNS]
        return [replace(entry, path="/".join((*known.parts, entry.path))) for entry in found], cut

    def write_file(self, path: str, data: bytes, *, caller: str = "", backup: bool = False) -> str | None:
        """Write a whole file; returns the path of the backup, None if none was made."""
        return self._own(caller).write_file(_writable(path), data, backup=backup)

    def append_to_file(
        self, path: str, data: bytes, *, mark: bytes = b"", caller: str = "", backup: bool = False
    ) -> tuple[int, str | None]:
        """Append to a file, or create it with `mark` first; returns the bytes written and the path of the backup."""
        return self._own(caller).append_to_file(_writable(path), data, mark=mark, backup=backup)

    def _own(self, caller: str) -> Root:
        if caller and not _CALLER.match(caller):
            raise PermissionDeniedError("The caller's id cannot be the name of a folder")
        inner = f"{KEYS}/{caller}" if caller else ""
        return Root(self._root, inner=inner, opener=self._opener, disk=self._disk, caller=caller)

    def _artifacts(self, folder: Path) -> Root:
        return Root(folder, inner="files", opener=self._opener)

    def _run(self, path: RelativePath, caller: str) -> tuple[Path, RelativePath]:
        """The folder of the run in a path, and the path inside that folder."""
        identity = path.parts[1] if len(path.parts) > 1 else ""
        if not _RUN_ID.match(identity):
            raise InvalidInputError(f"{path} names no run: runs/ID/PATH, where ID has 32 digits of 0-9 and a-f")
        folder = self._runs(identity, caller)
        if folder is None:
            raise RequestError(f"There is no run {identity}, or it left nothing", code="FILE_NOT_FOUND")
        return folder, replace(path, parts=path.parts[2:])

    def _with_streams(self, found: list[Entry], folder: Path, inside: RelativePath, glob: Glob | None) -> list[Entry]:
        taken = {entry.path for entry in found}
        entries, _ = Root(folder, opener=self._opener).list_folder(inside, glob=glob)
        streams = [entry for entry in entries if entry.path in STREAMS and entry.type == "file"]
        more = [entry for entry in streams if entry.path not in taken]
        return sorted([*found, *more], key=attrgetter("path"))


def _writable(path: str) -> RelativePath:
    known = read_path(path)
    if known.parts[:1] == (RUNS,):
        raise PermissionDeniedError(f"{known}: runs/ is what runs left; it cannot be written to")
    return known
