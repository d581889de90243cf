"""Input files of a call: from the workspace, from an upload, or artifacts of an earlier run."""

import hashlib
import os
import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO, TypeVar

from apexbridge._fs import make_private_folder
from apexbridge.disk import Disk
from apexbridge.errors import ApexBridgeError, InvalidInputError
from apexbridge.sandbox.models import InputFile
from apexbridge.sandbox.run_input import MAX_INPUT_BYTES, check_file_count, check_file_sizes
from apexbridge.skills.runs.uploads import UploadStore, safe_name
from apexbridge.tools.builtin.files.workspace import Workspace

_PIECE = 1024 * 1024
T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldFile:
    """A copy of an input file in an unnamed temporary file, with size and digest."""

    wanted: str
    """The name in the call."""
    file: InputFile
    size: int
    sha256: str


class HeldFiles:
    """Copies of all files of a call, in unnamed files of `folder`, counted against the caller's quota until closed."""

    def __init__(self, folder: Path | None = None, *, disk: Disk | None = None, caller: str = "") -> None:
        self._folder = folder
        self._disk = disk
        self._caller = caller
        self._claims = ExitStack()
        self._files: list[HeldFile] = []
        self._lock = threading.Lock()
        self._is_closed = False
        """A cancelled call closes the copies while its copying thread may still run."""

    def copy(self, wanted: str, source: InputFile) -> None:
        """Copy a file and hash the copied bytes.

        Raises:
            InvalidInputError: the total size is too large.
            ServerError: STORAGE_FULL.
            ValueError: this object was closed meanwhile.
        """
        with ExitStack() as stack:
            claim = stack.enter_context(self._disk.claim(self._caller, self._folder)) if self._disk else None
            if self._folder is not None:
                make_private_folder(self._folder)
            copy = stack.enter_context(tempfile.TemporaryFile("w+b", buffering=0, dir=self._folder))
            digest, size = hashlib.sha256(), 0
            while size <= MAX_INPUT_BYTES and (piece := source.file.read(_PIECE)):
                if claim is not None:
                    claim.take(len(piece))
                copy.write(piece)
                digest.update(piece)
                size += len(piece)
            copy.seek(0)
            held = HeldFile(
                wanted=wanted, file=InputFile(name=source.name, file=copy), size=size, sha256=digest.hexdigest()
            )
            with self._lock:
                if self._is_closed:
                    raise ValueError("the copies were closed meanwhile")
                self._files.append(held)
                self._claims.push(stack.pop_all())
        check_file_sizes([held.size for held in self._files])

    @property
    def inputs(self) -> tuple[InputFile, ...]:
        """The copies, as input files of the run."""
        return tuple(held.file for held in self._files)

    @property
    def described(self) -> list[dict[str, Any]]:
        """Name, size and digest of each file, as shown in the approval."""
        return [{"name": held.wanted, "bytes": held.size, "sha256": held.sha256} for held in self._files]

    def __enter__(self) -> "HeldFiles":
        return self

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._is_closed = True
            self._claims.close()


class InputFiles:
    """Resolves the names in a call's `files`."""

    def __init__(self, *, workspace: Workspace, uploads: UploadStore, reach: Callable[[str], str | None]) -> None:
        """`reach` returns the owner whose uploads a caller may use; None means all uploads."""
        self._workspace = workspace
        self._uploads = uploads
        self._reach = reach

    async def in_thread(self, work: Callable[[], T], *, caller: str) -> T:
        """Run file work in one of the caller's threads."""
        return await self._workspace.in_thread(work, caller=caller)

    @contextmanager
    def opened(self, names: Sequence[str], *, caller: str = "") -> Iterator[tuple[InputFile, ...]]:
        """Open all files, each with a unique name.

        Raises:
            InvalidInputError: a file is missing or not a regular file, or the files are too many or too large.
        """
        taken: Counter[str] = Counter()
        check_file_count(len(names))
        with ExitStack() as stack:
            found = []
            for wanted in names:
                name, file = self._open(wanted, caller)
                stack.enter_context(file)
                found.append(InputFile(name=_free(name, taken), file=file))
            check_file_sizes([os.fstat(item.file.fileno()).st_size for item in found])
            yield tuple(found)

    def copy_to(self, held: HeldFiles, names: Sequence[str], *, caller: str = "") -> None:
        """Copy all files, so that later changes of the originals have no effect.

        Raises:
            InvalidInputError: as for `opened`.
        """
        with self.opened(names, caller=caller) as files:
            for wanted, file in zip(names, files, strict=True):
                held.copy(wanted, file)

    def _open(self, wanted: str, caller: str) -> tuple[str, BinaryIO]:
        if self._uploads.is_id(wanted):
            return self._uploads.open(wanted, owner=self._reach(caller))
        try:
            return safe_name(wanted), self._workspace.open_file(wanted, caller=caller)
        except ApexBridgeError as error:
            raise InvalidInputError(
                f"{error.message}. Name a path below the workspace, an upload's id, or runs/ID/PATH.", file=wanted
            ) from error


def _free(name: str, taken: "Counter[str]") -> str:
    """The name, with a numeric suffix if it is taken."""
    path, free = PurePosixPath(name), name
    while taken[free]:
        taken[name] += 1
        free = f"{path.stem}-{taken[name]}{path.suffix}"
    taken[free] += 1
    return free
