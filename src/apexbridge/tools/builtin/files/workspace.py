"""Files as callers see them: their own, or those of a conversation, and what runs left, at `runs/ID`."""

import asyncio
import re
import secrets
import shutil
import stat
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager, nullcontext, suppress
from dataclasses import replace
from operator import attrgetter
from pathlib import Path
from typing import BinaryIO, TypeVar

from apexbridge._safe_open import Opener, open_beneath
from apexbridge._tasks import run_to_completion
from apexbridge._text import control_character
from apexbridge.disk import Disk
from apexbridge.errors import InvalidInputError, PermissionDeniedError, RequestError
from apexbridge.tools.builtin.files.file_roots import Root
from apexbridge.tools.builtin.files.listing import Entry, Glob
from apexbridge.tools.builtin.files.paths import RelativePath, read_path, shown
from apexbridge.tools.conversation import Conversation

RUNS = "runs"
OUTPUT = "output"
RUN_FOLDER = "/workspace"
"""The workspace of a conversation, as its runs see it."""
MAX_FOLDERS = 32
"""Folders around a file that is written. The sandbox collects no deeper ones. `output` does not count."""
CODE_PREFIX = ".code."
"""Of the file with the code of a run. Runs do not see other files of such a name."""
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
    """Gives access to files: each API key has a folder below the root, callers without a key have the root.

    A conversation with a workspace of its own reads and writes there. Files that are only in the caller's folder can be
    read as well.
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

    @asynccontextmanager
    async def reading(self, conversation: Conversation) -> AsyncIterator["FileView"]:
        """The files as a conversation sees them; they do not change during the block."""
        if conversation.workspace is None:
            yield self.view(conversation.caller)
            return
        async with conversation.workspace.reading() as top:
            yield self.view(conversation.caller, top)

    async def write(self, conversation: Conversation, path: str, work: Callable[["FileView"], T]) -> T:
        """Run `work`, which writes one file, in a thread: completely or not at all."""
        caller, workspace = conversation.caller, conversation.workspace
        known = _writable(read_path(path if workspace is None else in_conversation(path)))
        if workspace is None:
            return await self.in_thread(lambda: work(self.view(caller)), caller=caller)

        def change(top: Path) -> T:
            _replace_link(top / known.text)
            return work(self.view(caller, top))

        return await workspace.change(change)

    def view(self, caller: str, top: Path | None = None) -> "FileView":
        """The files of a caller; with `top`, those of a conversation."""
        of_caller = self._of_caller(caller)
        runs = lambda run: self._runs(run, caller)  # noqa: E731
        if top is None:
            return FileView(of_caller, None, runs, opener=self._opener)
        return FileView(Root(top, opener=self._opener), of_caller, runs, opener=self._opener)

    def _of_caller(self, caller: str) -> Root:
        if caller and not _CALLER.match(caller):
            raise PermissionDeniedError("The caller's id cannot be the name of a folder")
        inner = f"{KEYS}/{caller}" if caller else ""
        return Root(self._root, inner=inner, opener=self._opener, disk=self._disk, caller=caller)


class FileView:
    """Finds files by the paths that callers and models use. Paths are checked by `read_path`; errors are those of
    `Root`."""

    def __init__(self, own: Root, beneath: Root | None, runs: Callable[[str], Path | None], *, opener: Opener) -> None:
        """`beneath` is read where `own` has nothing; it is only set for conversations."""
        self._own = own
        self._beneath = beneath
        self._runs = runs
        self._opener = opener

    def relative(self, path: str) -> RelativePath:
        """A path as callers and models write it, relative to the workspace."""
        return read_path(path if self._beneath is None else in_conversation(path))

    def open_file(self, path: str) -> BinaryIO:
        """Open a file for reading."""
        known = self.relative(path)
        if not _is_of_run(known.parts):
            with _run_hint(known):
                return self._open_own(known)
        folder, inside = self._run(known)
        try:
            return self._artifacts(folder).open_file(inside)
        except RequestError:
            if inside.text not in STREAMS:
                raise
            return Root(folder, opener=self._opener).open_file(inside)

    def list_folder(self, path: str = ".", *, glob: Glob | None = None, deep: bool = False) -> tuple[list[Entry], bool]:
        """The entries of a folder, with paths for `open_file`, and whether there may be more."""
        known = self.relative(path)
        is_of_run = _is_of_run(known.parts)
        if is_of_run:
            folder, inside = self._run(known)
            found, cut = self._artifacts(folder).list_folder(inside, glob=glob, deep=deep)
            if not inside.parts:
                found = self._with_streams(found, folder, inside, glob)
        else:
            with _run_hint(known):
                found, cut = self._list_both(known, glob, deep=deep)
        entries = [replace(entry, path="/".join((*known.parts, entry.path))) for entry in found]
        return [entry for entry in entries if is_of_run or not _is_of_run(entry.path.split("/"))], cut

    def write_file(self, path: str, data: bytes, *, backup: bool = False) -> str | None:
        """Write a whole file; returns the path of the backup, None if none was made."""
        return self._own.write_file(_writable(self.relative(path)), data, backup=backup)

    def append_to_file(
        self, path: str, data: bytes, *, mark: bytes = b"", backup: bool = False
    ) -> tuple[int, str | None]:
        """Append to a file, or create it with `mark` first; returns the bytes written and the path of the backup."""
        return self._own.append_to_file(_writable(self.relative(path)), data, mark=mark, backup=backup)

    def _open_own(self, path: RelativePath) -> BinaryIO:
        try:
            return self._own.open_file(path)
        except RequestError:
            if self._beneath is None:
                raise
            return self._beneath.open_file(path)

    def _list_both(self, path: RelativePath, glob: Glob | None, *, deep: bool) -> tuple[list[Entry], bool]:
        if self._beneath is None:
            return self._own.list_folder(path, glob=glob, deep=deep)
        try:
            found, cut = self._own.list_folder(path, glob=glob, deep=deep)
        except RequestError:
            found, cut = self._beneath.list_folder(path, glob=glob, deep=deep)
            return [replace(entry, is_beneath=True) for entry in found], cut
        with suppress(RequestError, InvalidInputError, PermissionDeniedError):
            more, more_cut = self._beneath.list_folder(path, glob=glob, deep=deep)
            own = {entry.path for entry in found}
            found += [replace(entry, is_beneath=True) for entry in more if entry.path not in own]
            return sorted(found, key=attrgetter("path")), cut or more_cut
        return found, cut

    def _artifacts(self, folder: Path) -> Root:
        return Root(folder, inner="files", opener=self._opener)

    def _run(self, path: RelativePath) -> tuple[Path, RelativePath]:
        """The folder of the run in a path, and the path inside that folder."""
        identity = path.parts[1]
        folder = self._runs(identity)
        if folder is None:
            raise RequestError(f"There is no run {identity}, or it left nothing", code="FILE_NOT_FOUND")
        return folder, replace(path, parts=path.parts[2:])

    def _with_streams(self, found: list[Entry], folder: Path, inside: RelativePath, glob: Glob | None) -> list[Entry]:
        taken = {entry.path for entry in found}
        entries, _ = Root(folder, opener=self._opener).list_folder(inside, glob=glob)
        streams = [entry for entry in entries if entry.path in STREAMS and entry.type == "file"]
        more = [entry for entry in streams if entry.path not in taken]
        return sorted([*found, *more], key=attrgetter("path"))


def in_conversation(path: str) -> str:
    """A path as code of a conversation sees it: relative to the fixed path of the workspace."""
    if path.rstrip("/") == RUN_FOLDER:
        return "."
    if path.startswith("/skills/"):
        raise PermissionDeniedError(f"{shown(path)} is a file of a skill; read it with load_skill, name and path")
    return path.removeprefix(f"{RUN_FOLDER}/")


def _is_of_run(parts: Sequence[str]) -> bool:
    """Whether a path is what a run left, not a file of the workspace."""
    return len(parts) > 1 and parts[0] == RUNS and _RUN_ID.match(parts[1]) is not None


@contextmanager
def _run_hint(path: RelativePath) -> Iterator[None]:
    """Say how runs are named, if there is no file at a path that could have meant one."""
    try:
        yield
    except RequestError as error:
        if path.parts[:1] != (RUNS,):
            raise
        raise RequestError(
            f"There is no {path}; what a run left is at runs/ID/PATH, where ID has 32 digits of 0-9 and a-f",
            code=error.code,
        ) from error


def _writable(path: RelativePath) -> RelativePath:
    """The path, if a file may be written there.

    Raises PermissionDeniedError if a run left it; InvalidInputError if runs could not keep a file of this name.
    """
    if _is_of_run(path.parts):
        raise PermissionDeniedError(f"{path} is what a run left; it cannot be written to")
    if refused := control_character(path.text):
        raise InvalidInputError(f"{path} has a control character or a line separator in it: U+{ord(refused):04X}")
    if len(path.parts) - 1 - (path.parts[:1] == (OUTPUT,)) > MAX_FOLDERS:
        raise InvalidInputError(f"{path} is deeper than {MAX_FOLDERS} folders")
    if path.text.startswith(CODE_PREFIX):
        raise InvalidInputError(f"{path}: names that begin with {CODE_PREFIX} are reserved for the code of runs")
    return path


def _replace_link(file: Path) -> None:
    """Replace a hard link by a copy: the other links belong to earlier states of the workspace."""
    with suppress(OSError):
        status = file.lstat()
        if stat.S_ISREG(status.st_mode) and status.st_nlink > 1:
            draft = file.with_name(f".apex-{secrets.token_hex(8)}")
            shutil.copy2(file, draft)
            draft.replace(file)
