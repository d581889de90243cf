"""Input files of a call: from the workspace, from an upload, or artifacts of an earlier run."""

import functools
import hashlib
import os
import re
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO

from apexbridge._fs import make_private_folder
from apexbridge._tasks import in_thread
from apexbridge.disk import Disk, blocks, size_on_disk
from apexbridge.errors import ApexBridgeError, InvalidInputError, RequestError
from apexbridge.sandbox.launcher.removal import remove_tree
from apexbridge.sandbox.models import InputFile
from apexbridge.sandbox.run_input import MAX_INPUT_BYTES, check_file_count, check_file_sizes
from apexbridge.storage.directory import storage_faults
from apexbridge.tools.builtin.files.workspace import Workspace
from apexbridge.wire import WireModel

UPLOAD_SECONDS = 3600
MAX_UPLOADS = 1000
MAX_UPLOAD_BYTES = 1024 * 1024 * 1024
"""Total size of all uploads."""
KEY_SHARE = 4
"""One API key may use at most 1/KEY_SHARE of the uploads and of their bytes."""
MAX_NAME_BYTES = 200
MAX_READ_CHARACTERS = 1_000
"""Only the last characters of a name are read."""
_ID = re.compile(r"upload-[0-9a-f]{32}\Z")


class Upload(WireModel):
    """A file that can be named in `files` of a call."""

    id: str
    name: str
    size: int


class UploadStore:
    """Stores each upload in its own subfolder."""

    def __init__(self, folder: Path, *, disk: Disk | None = None) -> None:
        self._folder = folder
        self._disk = disk or Disk(folder)
        self._lock = threading.Lock()

    @staticmethod
    def is_id(text: str) -> bool:
        """Whether this is the id of an upload."""
        return _ID.match(text) is not None

    async def add(self, file: BinaryIO, name: str | None, *, caller: str = "") -> Upload:
        """Store a copy of an open file for this caller: the id of an API key, or empty.

        Raises:
            RequestError: QUEUE_FULL, too many uploads are stored, of this caller or in total.
            ServerError: STORAGE_FULL.
        """
        return await in_thread(self._add, file, safe_name(name or "upload"), caller)

    def _add(self, file: BinaryIO, name: str, caller: str) -> Upload:
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        with self._lock:
            self.sweep()
            self._check(caller)
        with self._disk.claim(caller, self._folder) as claim:
            claim.take(blocks(os.fstat(file.fileno()).st_size))
            upload, upload_folder = self._copy(file, name, caller)
        self._disk.add(caller, size_on_disk(upload_folder))
        return upload

    def _check(self, caller: str) -> None:
        stored = [(_owner(file.parent), file.stat().st_size) for file in self._folder.glob("*/*")]
        if len(stored) >= MAX_UPLOADS or sum(size for _, size in stored) >= MAX_UPLOAD_BYTES:
            raise RequestError("Too many uploads wait for their runs; try again later.", code="QUEUE_FULL")
        own = [size for owner, size in stored if owner == caller]
        if caller and (len(own) >= MAX_UPLOADS // KEY_SHARE or sum(own) >= MAX_UPLOAD_BYTES // KEY_SHARE):
            raise RequestError(
                f"{len(own)} uploads of the API key {caller} wait for their runs, which is as much as one key may "
                f"have; each is kept for {UPLOAD_SECONDS // 60} minutes. Try again later.",
                code="QUEUE_FULL",
            )

    def _copy(self, file: BinaryIO, name: str, caller: str) -> tuple[Upload, Path]:
        identity = f"upload-{os.urandom(16).hex()}"
        upload_folder = self._folder / (f"{identity}.{caller}" if caller else identity)
        upload_folder.mkdir(mode=0o700)
        try:
            size = 0
            with os.fdopen(os.open(upload_folder / name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as copy:
                while chunk := file.read(1024 * 1024):
                    size += copy.write(chunk)
        except BaseException:
            remove_tree(str(upload_folder))
            raise
        return Upload(id=identity, name=name, size=size), upload_folder

    def open(self, identity: str, *, owner: str | None = None) -> tuple[str, BinaryIO]:
        """An upload's name and the open file. With `owner`, uploads of other callers are treated as missing.

        Raises:
            InvalidInputError: the upload does not exist or has expired.
        """
        try:
            (upload_folder,) = self._folder.glob(f"{identity}*")
            if owner not in (None, _owner(upload_folder)):
                raise ValueError(identity)
            (path,) = upload_folder.iterdir()
            return path.name, path.open("rb")
        except (OSError, ValueError) as error:
            raise InvalidInputError(
                f"{identity} does not exist; uploads are kept for {UPLOAD_SECONDS // 60} minutes"
            ) from error

    def sweep(self) -> None:
        """Delete expired uploads."""
        if not self._folder.is_dir():
            return
        oldest = time.time() - UPLOAD_SECONDS
        for upload_folder in self._folder.iterdir():
            if upload_folder.lstat().st_mtime < oldest:
                size = size_on_disk(upload_folder)
                remove_tree(str(upload_folder))
                self._disk.release(_owner(upload_folder), size)


def _owner(upload_folder: Path) -> str:
    """The caller that owns the upload in a folder."""
    return upload_folder.name.partition(".")[2]


def safe_name(name: str) -> str:
    """Reduce an untrusted file name to a plain name without folders."""
    last = re.split(r"[/\\]", name[-MAX_READ_CHARACTERS:])[-1].strip()
    plain = "".join(character if character.isprintable() else "_" for character in last).lstrip(".") or "file"
    # Cut the beginning, not the end, to keep the extension.
    return plain.encode("utf-8", "replace")[-MAX_NAME_BYTES:].decode("utf-8", "ignore")


_CHUNK_BYTES = 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldFile:
    """A copy of an input file in an unnamed temporary file, with size and digest."""

    asked_name: str
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

    def copy(self, asked_name: str, source: InputFile) -> None:
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
            while size <= MAX_INPUT_BYTES and (chunk := source.file.read(_CHUNK_BYTES)):
                if claim is not None:
                    claim.take(len(chunk))
                copy.write(chunk)
                digest.update(chunk)
                size += len(chunk)
            copy.seek(0)
            held = HeldFile(
                asked_name=asked_name, file=InputFile(name=source.name, file=copy), size=size, sha256=digest.hexdigest()
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
        return [{"name": held.asked_name, "bytes": held.size, "sha256": held.sha256} for held in self._files]

    def __enter__(self) -> "HeldFiles":
        return self

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._is_closed = True
            self._claims.close()


class InputFiles:
    """Resolves the names in a call's `files`."""

    def __init__(
        self,
        *,
        workspace: Workspace,
        uploads: UploadStore,
        reach: Callable[[str], str | None],
        folder: Path,
        disk: Disk,
    ) -> None:
        """`reach` returns the owner whose uploads a caller may use; None means all uploads.

        `folder` is where copies are stored.
        """
        self._workspace = workspace
        self._uploads = uploads
        self._reach = reach
        self._folder = folder
        self._disk = disk

    async def hold(self, names: Sequence[str], *, caller: str) -> HeldFiles:
        """Immutable copies of a call's files, with their digests.

        Raises:
            InvalidInputError: as for `opened`.
            ServerError: STORAGE_FULL.
        """
        with ExitStack() as stack, storage_faults():
            held = stack.enter_context(HeldFiles(self._folder, disk=self._disk, caller=caller))
            copy = functools.partial(self._copy_to, held, names, caller=caller)
            await self._workspace.in_thread(copy, caller=caller)
            stack.pop_all()
            return held

    async def open(self, names: Sequence[str], *, caller: str, resources: ExitStack) -> tuple[InputFile, ...]:
        """Open a call's files, as `opened`; `resources` closes them."""
        if not names:
            return ()
        enter = functools.partial(resources.enter_context, self.opened(names, caller=caller))
        return await self._workspace.in_thread(enter, caller=caller)

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
            for asked_name in names:
                name, file = self._open(asked_name, caller)
                stack.enter_context(file)
                found.append(InputFile(name=_free(name, taken), file=file))
            check_file_sizes([os.fstat(item.file.fileno()).st_size for item in found])
            yield tuple(found)

    def _copy_to(self, held: HeldFiles, names: Sequence[str], *, caller: str) -> None:
        with self.opened(names, caller=caller) as files:
            for asked_name, file in zip(names, files, strict=True):
                held.copy(asked_name, file)

    def _open(self, asked_name: str, caller: str) -> tuple[str, BinaryIO]:
        if self._uploads.is_id(asked_name):
            return self._uploads.open(asked_name, owner=self._reach(caller))
        try:
            return safe_name(asked_name), self._workspace.open_file(asked_name, caller=caller)
        except ApexBridgeError as error:
            raise InvalidInputError(
                f"{error.message}. Name a path below the workspace, an upload's id, or runs/ID/PATH.", file=asked_name
            ) from error


def _free(name: str, taken: "Counter[str]") -> str:
    """The name, with a numeric suffix if it is taken."""
    path, free = PurePosixPath(name), name
    while taken[free]:
        taken[name] += 1
        free = f"{path.stem}-{taken[name]}{path.suffix}"
    taken[free] += 1
    return free
