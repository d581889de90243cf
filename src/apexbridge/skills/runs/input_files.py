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
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO

from apexbridge._fs import make_private_folder
from apexbridge._tasks import in_thread
from apexbridge.disk import Disk, blocks, size_on_disk
from apexbridge.errors import ApexBridgeError, InvalidInputError, RequestError
from apexbridge.sandbox.launcher.removal import remove_tree
from apexbridge.sandbox.models import InputFile
from apexbridge.sandbox.run_input import (
    MAX_INPUT_BYTES,
    MAX_INPUT_FILES,
    MAX_INPUT_FOLDERS,
    check_file_count,
    check_file_sizes,
    input_folders,
)
from apexbridge.storage.directory import storage_faults
from apexbridge.tools.builtin.files.paths import read_path
from apexbridge.tools.builtin.files.workspace import FileView, Workspace
from apexbridge.tools.conversation import Conversation
from apexbridge.wire import WireModel

UPLOAD_SECONDS = 3600
FILE_SECONDS = 7 * 24 * 3600
"""For files of OpenAI's API."""
MAX_UPLOADS = 1000
MAX_UPLOAD_BYTES = 1024 * 1024 * 1024
"""Total size of all uploads."""
KEY_SHARE = 4
"""One API key may use at most 1/KEY_SHARE of the uploads and of their bytes."""
MAX_NAME_BYTES = 200
MAX_READ_CHARACTERS = 1_000
"""Only the last characters of a name are read."""
_ID = re.compile(r"(upload|file)-[0-9a-f]{32}\Z")
_PURPOSE = re.compile(r"[a-z][a-z_-]{0,31}\Z")
_PLACED_UPLOAD = re.compile(r"(upload-[0-9a-f]{32})/(.+)\Z", re.S)
MAX_FOLDERS_DEEP = 32
SHOWN_SKIPPED = 5


class Upload(WireModel):
    """A file that can be named in `files` of a call."""

    id: str
    name: str
    size: int
    workspace: str | None = None
    """The workspace that contains the file, under its name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredFile:
    """A file of OpenAI's API; times in seconds since 1970."""

    id: str
    name: str
    size: int
    purpose: str
    created_at: int
    expires_at: int


class UploadStore:
    """Stores each upload in its own subfolder: `ID`, `ID.OWNER` or `ID.OWNER.PURPOSE`."""

    def __init__(self, folder: Path, *, disk: Disk | None = None, file_seconds: int = FILE_SECONDS) -> None:
        self._folder = folder
        self._file_seconds = file_seconds
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

    async def add_file(self, file: BinaryIO, name: str | None, purpose: str, *, caller: str = "") -> StoredFile:
        """Store a file that stays longer, and can be listed. Raises the errors of `add`, and InvalidInputError."""
        if not _PURPOSE.match(purpose):
            raise InvalidInputError(f"{purpose[:64]!r} is not a valid purpose; use user_data")
        upload = await in_thread(self._add, file, safe_name(name or "file"), caller, purpose)
        return await self.file(upload.id)

    async def files(self, *, owner: str | None = None) -> list[StoredFile]:
        """All files of an owner, or all."""
        return await in_thread(self._files, owner)

    async def file(self, identity: str, *, owner: str | None = None) -> StoredFile:
        """Raises RequestError: FILE_NOT_FOUND."""
        for found in await self.files(owner=owner):
            if found.id == identity:
                return found
        raise RequestError(f"No such File object: {identity[:64]}", code="FILE_NOT_FOUND")

    async def delete_file(self, identity: str, *, owner: str | None = None) -> None:
        """Raises RequestError: FILE_NOT_FOUND."""
        await self.file(identity, owner=owner)
        for upload_folder in self._folder.glob(f"{identity}*"):
            await in_thread(self._remove, upload_folder)

    def _files(self, owner: str | None) -> list[StoredFile]:
        with self._lock:
            self.sweep()
        found = []
        for upload_folder in self._folder.glob("file-*"):
            identity, own, purpose = upload_folder.name.split(".")
            if owner in (None, own):
                with suppress(OSError, ValueError):
                    (path,) = upload_folder.iterdir()
                    status = path.stat()
                    created = int(upload_folder.stat().st_mtime)
                    found.append(
                        StoredFile(
                            id=identity,
                            name=path.name,
                            size=status.st_size,
                            purpose=purpose,
                            created_at=created,
                            expires_at=created + self._file_seconds,
                        )
                    )
        return found

    def _add(self, file: BinaryIO, name: str, caller: str, purpose: str | None = None) -> Upload:
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        with self._lock:
            self.sweep()
            self._check(caller)
        with self._disk.claim(caller, self._folder) as claim:
            claim.take(blocks(os.fstat(file.fileno()).st_size))
            upload, upload_folder = self._copy(file, name, caller, purpose)
        self._disk.add(caller, size_on_disk(upload_folder))
        return upload

    def _check(self, caller: str) -> None:
        stored = [(upload_owner(file.parent.name), file.stat().st_size) for file in self._folder.glob("*/*")]
        if len(stored) >= MAX_UPLOADS or sum(size for _, size in stored) >= MAX_UPLOAD_BYTES:
            raise RequestError("Too many uploads wait for their runs; try again later.", code="QUEUE_FULL")
        own = [size for owner, size in stored if owner == caller]
        if caller and (len(own) >= MAX_UPLOADS // KEY_SHARE or sum(own) >= MAX_UPLOAD_BYTES // KEY_SHARE):
            raise RequestError(
                f"{len(own)} uploads of the API key {caller} wait for their runs, which is as much as one key may "
                f"have; each is kept for {UPLOAD_SECONDS // 60} minutes. Try again later.",
                code="QUEUE_FULL",
            )

    def _copy(self, file: BinaryIO, name: str, caller: str, purpose: str | None) -> tuple[Upload, Path]:
        if purpose is not None:
            identity = f"file-{os.urandom(16).hex()}"
            folder_name = f"{identity}.{caller}.{purpose}"
        else:
            identity = f"upload-{os.urandom(16).hex()}"
            folder_name = f"{identity}.{caller}" if caller else identity
        upload_folder = self._folder / folder_name
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
            if owner not in (None, upload_owner(upload_folder.name)):
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
        now = time.time()
        for upload_folder in self._folder.iterdir():
            seconds = self._file_seconds if upload_folder.name.startswith("file-") else UPLOAD_SECONDS
            if upload_folder.lstat().st_mtime < now - seconds:
                self._remove(upload_folder)

    def _remove(self, upload_folder: Path) -> None:
        size = size_on_disk(upload_folder)
        remove_tree(str(upload_folder))
        self._disk.release(upload_owner(upload_folder.name), size)


def upload_owner(folder_name: str) -> str:
    """The caller that owns the upload in a folder."""
    return folder_name.split(".")[1] if "." in folder_name else ""


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
        self.warnings: list[str] = []
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
    def opened(self) -> "OpenedFiles":
        return OpenedFiles(inputs=self.inputs, warnings=tuple(self.warnings))

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


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenedFiles:
    """The input files of a call, all open."""

    inputs: tuple[InputFile, ...] = ()
    asked_names: tuple[str, ...] = ()
    """The name of each file in the call, or below a folder in the call."""
    warnings: tuple[str, ...] = ()
    """What was left out of folders."""


class InputFiles:
    """Resolves the names in a call's `files`: files and folders of the workspace, uploads, artifacts of runs."""

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

    async def hold(self, names: Sequence[str], *, conversation: Conversation) -> HeldFiles:
        """Immutable copies of a call's files, with their digests.

        Raises:
            InvalidInputError: as for `opened`.
            ServerError: STORAGE_FULL.
        """
        caller = conversation.caller
        with ExitStack() as stack, storage_faults():
            held = stack.enter_context(HeldFiles(self._folder, disk=self._disk, caller=caller))
            async with self._workspace.reading(conversation) as files:
                copy = functools.partial(self._copy_to, held, names, files, caller=caller)
                await self._workspace.in_thread(copy, caller=caller)
            stack.pop_all()
            return held

    async def open(self, names: Sequence[str], *, conversation: Conversation, resources: ExitStack) -> OpenedFiles:
        """Open a call's files, as `opened`; `resources` closes them."""
        if not names:
            return OpenedFiles()
        async with self._workspace.reading(conversation) as files:
            opened = self.opened(names, files, caller=conversation.caller)
            enter = functools.partial(resources.enter_context, opened)
            return await self._workspace.in_thread(enter, caller=conversation.caller)

    @contextmanager
    def opened(self, names: Sequence[str], files: FileView, *, caller: str = "") -> Iterator[OpenedFiles]:
        """Open all files, each with a unique name. Of a folder, all regular files below it are opened.

        Raises:
            InvalidInputError: a file is missing or neither a regular file nor a folder, a folder has no files, or the
                files are too many or too large.
        """
        taken: Counter[str] = Counter()
        check_file_count(len(names))
        with ExitStack() as stack:
            found: list[InputFile] = []
            asked: list[str] = []
            warnings: list[str] = []
            for name_in_call in names:
                asked_name = name_in_call.rstrip("/") or name_in_call
                placed = _PLACED_UPLOAD.match(asked_name)
                identity = placed[1] if placed else asked_name
                if self._uploads.is_id(identity):
                    name, file = self._uploads.open(identity, owner=self._reach(caller))
                    stack.enter_context(file)
                    name = _placed_name(placed[2]) if placed else _free(name, taken)
                    new = [(asked_name, InputFile(name=name, file=file))]
                else:
                    new, skipped = self._open(asked_name, files, taken, stack)
                    warnings += skipped
                asked += [name for name, _ in new]
                found += [file for _, file in new]
                check_file_count(len(found))
            _check_names([file.name for file in found])
            check_file_sizes([os.fstat(item.file.fileno()).st_size for item in found])
            yield OpenedFiles(inputs=tuple(found), asked_names=tuple(asked), warnings=tuple(warnings))

    def _copy_to(self, held: HeldFiles, names: Sequence[str], files: FileView, *, caller: str) -> None:
        with self.opened(names, files, caller=caller) as opened:
            for asked_name, file in zip(opened.asked_names, opened.inputs, strict=True):
                held.copy(asked_name, file)
            held.warnings += opened.warnings

    def _open(
        self, asked_name: str, files: FileView, taken: "Counter[str]", stack: ExitStack
    ) -> tuple[list[tuple[str, InputFile]], list[str]]:
        """A file of the workspace, or the files of a folder, each with the name in the call; and warnings."""
        try:
            file = stack.enter_context(files.open_file(asked_name))
            return [(asked_name, InputFile(name=_free(safe_name(asked_name), taken), file=file))], []
        except ApexBridgeError as error:
            try:
                entries, is_cut = files.list_folder(asked_name, deep=True)
            except ApexBridgeError:
                raise InvalidInputError(
                    f"{error.message}. Name a path below the workspace, an upload's id, or runs/ID/PATH.",
                    file=asked_name,
                ) from error
        paths = [entry.path for entry in entries if entry.type == "file"]
        skipped = [entry.path for entry in entries if entry.type not in ("file", "folder")]
        if is_cut:
            raise InvalidInputError(
                f"{asked_name} has too many files; a run gets at most {MAX_INPUT_FILES}", file=asked_name
            )
        if not paths:
            raise InvalidInputError(f"{asked_name} has no files", file=asked_name)
        check_file_count(len(paths))
        folder = _folder_of(asked_name)
        base = _free(safe_name(folder) if folder else "workspace", taken)
        found = []
        for path in paths:
            try:
                file = stack.enter_context(files.open_file(path))
            except ApexBridgeError:  # removed meanwhile, or its name is not text
                skipped.append(path)
                continue
            found.append((path, InputFile(name=f"{base}/{path.removeprefix(folder).lstrip('/')}", file=file)))
        return found, _skipped_warning(asked_name, skipped)


def _folder_of(asked_name: str) -> str:
    """The folder in the form in which the workspace lists its files: empty for the workspace itself."""
    return "/".join(read_path(asked_name).parts)


def _placed_name(path: str) -> str:
    """The checked path in `input/` of an upload that is called as `upload-ID/PATH`."""
    parts = path.split("/")
    is_valid = (
        len(parts) <= MAX_FOLDERS_DEEP
        and path.isprintable()
        and all(
            part not in ("", ".", "..") and len(part.encode("utf-8", "replace")) <= MAX_NAME_BYTES for part in parts
        )
    )
    if not is_valid:
        raise InvalidInputError(f"{path[:MAX_NAME_BYTES]!r} cannot be the path of an input file", file=path)
    return path


def _check_names(names: Sequence[str]) -> None:
    folders = input_folders(names)
    twice = [name for name, count in Counter((*names, *folders)).items() if count > 1]
    if twice:
        raise InvalidInputError(f"Two input files need the path {twice[0]}; rename one of them", file=twice[0])
    if len(folders) > MAX_INPUT_FOLDERS:
        raise InvalidInputError(f"{len(folders)} input folders are too many; at most {MAX_INPUT_FOLDERS}")
    deep = next((folder for folder in folders if folder.count("/") >= MAX_FOLDERS_DEEP), None)
    if deep is not None:
        raise InvalidInputError(f"The input files are nested deeper than {MAX_FOLDERS_DEEP} folders", file=deep)


def _skipped_warning(folder: str, skipped: Sequence[str]) -> list[str]:
    if not skipped:
        return []
    more = f" and {len(skipped) - SHOWN_SKIPPED} more" if len(skipped) > SHOWN_SKIPPED else ""
    return [f"Not copied from {folder}, only regular files are: {', '.join(skipped[:SHOWN_SKIPPED])}{more}"]


def _free(name: str, taken: "Counter[str]") -> str:
    """The name, with a numeric suffix if it is taken."""
    path, free = PurePosixPath(name), name
    while taken[free]:
        taken[name] += 1
        free = f"{path.stem}-{taken[name]}{path.suffix}"
    taken[free] += 1
    return free
