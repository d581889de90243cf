"""Input files of a call: from the workspace, from an upload, or artifacts of an earlier run."""

import functools
import hashlib
import math
import os
import re
import shutil
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
from apexbridge._usage import ResourceUsage
from apexbridge.disk import MB, Disk, blocks, size_on_disk
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
from apexbridge.skills.models import Upload as Upload  # re-exported
from apexbridge.storage.directory import storage_faults
from apexbridge.tools.builtin.files.paths import read_path
from apexbridge.tools.builtin.files.workspace import FileView, Workspace
from apexbridge.tools.conversation import Conversation

UPLOAD_SECONDS = 3600
SECONDS_PER_DAY = 24 * 3600
FILE_SECONDS = 7 * SECONDS_PER_DAY
"""For files of OpenAI's API."""
MAX_UPLOADS = 1000
"""Uploads of all callers without an API key together."""
MAX_UPLOAD_BYTES = 1024 * 1024 * 1024
"""Their total size."""
KEY_SHARE = 4
"""Each API key may have 1/KEY_SHARE of these uploads and bytes, however many other callers have."""
MAX_NAME_BYTES = 200
MAX_READ_CHARACTERS = 1_000
"""Only the last characters of a name are read."""
_ID = re.compile(r"(upload|file)-[0-9a-f]{32}\Z")
_DRAFT = "new-"
_NOTE_FILE = ".note"
"""Names of uploads do not begin with a dot."""
_UPLOAD_FOLDER = re.compile(
    rf"(?P<draft>{_DRAFT})?(?P<id>(?:upload|file)-[0-9a-f]{{32}})(?:\.(?P<owner>[^.]*)(?:\.(?P<purpose>[^.]+))?)?\Z"
)
_PURPOSE = re.compile(r"[a-z][a-z_-]{0,31}\Z")
_PLACED_UPLOAD = re.compile(r"(upload-[0-9a-f]{32})/(.+)\Z", re.S)
MAX_FOLDERS_DEEP = 32
SHOWN_SKIPPED = 5


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
    """Stores each upload in its own subfolder: `ID`, `ID.OWNER` or `ID.OWNER.PURPOSE`; an incomplete one is a draft."""

    def __init__(self, folder: Path, *, disk: Disk | None = None, file_seconds: int = FILE_SECONDS) -> None:
        self._folder = folder
        self._file_seconds = file_seconds
        self._disk = disk or Disk(folder)
        self._lock = threading.Lock()
        """Held to remove uploads, and to check the limits and reserve the space of a new one."""

    @staticmethod
    def is_id(text: str) -> bool:
        """Whether this is the id of an upload."""
        return _ID.match(text) is not None

    async def add(self, file: BinaryIO, name: str | None, *, caller: str = "", note: str | None = None) -> Upload:
        """Store a copy of an open file for this caller: the id of an API key, or empty. `note` is stored beside it.

        Raises:
            RequestError: QUEUE_FULL, the caller has too many uploads.
            ServerError: STORAGE_FULL.
        """
        stored = await in_thread(self._add, file, safe_name(name or "upload"), caller, note=note)
        return Upload(id=stored.id, name=stored.name, size=stored.size)

    async def add_file(self, file: BinaryIO, name: str | None, purpose: str, *, caller: str = "") -> StoredFile:
        """Store a file that stays longer, and can be listed. Raises the errors of `add`, and InvalidInputError."""
        if not _PURPOSE.match(purpose):
            raise InvalidInputError(f"{purpose[:64]!r} is not a valid purpose; use user_data")
        return await in_thread(self._add, file, safe_name(name or "file"), caller, purpose)

    async def open_noted(self, identity: str, *, owner: str) -> tuple[BinaryIO, str | None]:
        """An upload of this owner that has not expired, and its note. Raises RequestError: UPLOAD_NOT_FOUND."""
        return await in_thread(self._open_noted, identity, owner)

    async def remove(self, identity: str, *, owner: str) -> None:
        """Remove an upload of this owner, if it exists."""
        await in_thread(self._remove_upload, identity, owner)

    async def files(self, *, owner: str | None = None) -> list[StoredFile]:
        """All files of an owner, or all."""
        return await in_thread(self._files, owner)

    async def file(self, identity: str, *, owner: str | None = None) -> StoredFile:
        """Raises RequestError: FILE_NOT_FOUND."""
        found = await in_thread(self._file, identity, owner)
        if found is None:
            raise _no_file(identity)
        return found

    async def open_file(self, identity: str, *, owner: str | None = None) -> tuple[str, BinaryIO]:
        """A file's name and the open file. Raises RequestError: FILE_NOT_FOUND."""
        await self.file(identity, owner=owner)
        try:
            return await in_thread(self.open, identity, owner=owner)
        except InvalidInputError as error:  # deleted meanwhile
            raise _no_file(identity) from error

    async def delete_file(self, identity: str, *, owner: str | None = None) -> None:
        """Raises RequestError: FILE_NOT_FOUND."""
        await in_thread(self._delete_file, identity, owner)

    def open(self, identity: str, *, owner: str | None = None) -> tuple[str, BinaryIO]:
        """An upload's name and the open file. With `owner`, uploads of other callers are treated as missing.

        Raises:
            InvalidInputError: this is not the id of an upload, or the upload does not exist or has expired.
        """
        upload = self._find(identity, owner)
        if upload is not None:
            with suppress(OSError, ValueError):  # deleted meanwhile
                path = upload.content()
                return path.name, path.open("rb")
        raise InvalidInputError(f"The upload {identity[:64]} does not exist, or has expired")

    def _open_noted(self, identity: str, owner: str) -> tuple[BinaryIO, str | None]:
        upload = self._find(identity, owner)
        if upload is not None and upload.purpose is None:
            with suppress(OSError, ValueError):
                if upload.path.lstat().st_mtime >= time.time() - UPLOAD_SECONDS:
                    note = upload.path / _NOTE_FILE
                    text = note.read_text("utf-8") if note.exists() else None
                    return upload.content().open("rb"), text
        raise RequestError(
            f"The upload {identity[:64]} does not exist, or has expired. Validate the package again.",
            code="UPLOAD_NOT_FOUND",
        )

    def _remove_upload(self, identity: str, owner: str) -> None:
        with self._lock:
            upload = self._find(identity, owner)
            if upload is not None and upload.purpose is None:
                self._remove(upload)

    def _uploads(self) -> list["_UploadFolder"]:
        try:
            names = os.listdir(self._folder)  # noqa: PTH208  # names, not paths
        except FileNotFoundError:
            return []
        return [_UploadFolder(self._folder, found) for name in names if (found := _UPLOAD_FOLDER.match(name))]

    def _find(self, identity: str, owner: str | None) -> "_UploadFolder | None":
        if not self.is_id(identity):
            return None
        matching = (upload for upload in self._uploads() if upload.id == identity and not upload.is_draft)
        return next((upload for upload in matching if owner in (None, upload.owner)), None)

    def _file(self, identity: str, owner: str | None) -> StoredFile | None:
        upload = self._find(identity, owner)
        return self._stored(upload) if upload is not None and upload.purpose is not None else None

    def _files(self, owner: str | None) -> list[StoredFile]:
        with self._lock:
            self._sweep()
        listed = (upload for upload in self._uploads() if upload.purpose is not None and not upload.is_draft)
        found = (self._stored(upload) for upload in listed if owner in (None, upload.owner))
        return [file for file in found if file is not None]

    def _stored(self, upload: "_UploadFolder") -> StoredFile | None:
        """None if the upload was deleted meanwhile."""
        try:
            path = upload.content()
            size, created = path.stat().st_size, int(upload.path.stat().st_mtime)
        except (OSError, ValueError):
            return None
        return StoredFile(
            id=upload.id,
            name=path.name,
            size=size,
            purpose=upload.purpose or "",
            created_at=created,
            expires_at=created + self._file_seconds,
        )

    def _add(
        self, file: BinaryIO, name: str, caller: str, purpose: str | None = None, *, note: str | None = None
    ) -> StoredFile:
        if purpose is not None:
            folder_name = f"file-{os.urandom(16).hex()}.{caller}.{purpose}"
        else:
            folder_name = f"upload-{os.urandom(16).hex()}" + (f".{caller}" if caller else "")
        draft, complete = self._folder / f"{_DRAFT}{folder_name}", self._folder / folder_name
        size = os.fstat(file.fileno()).st_size
        try:
            self._reserve(draft / name, size, caller)
            with self._disk.claim(caller, self._folder) as claim:
                claim.take(blocks(size))
                with (draft / name).open("r+b") as copy:
                    shutil.copyfileobj(file, copy, _CHUNK_BYTES)
                    copy.truncate()
                    size = copy.tell()
                if note is not None:
                    (draft / _NOTE_FILE).write_text(note, "utf-8")
                created, taken = int(draft.stat().st_mtime), size_on_disk(draft)
                draft.rename(complete)
                claim.keep(taken)
        except BaseException:
            remove_tree(str(draft))
            raise
        return StoredFile(
            id=folder_name.partition(".")[0],
            name=name,
            size=size,
            purpose=purpose or "",
            created_at=created,
            expires_at=created + self._file_seconds,
        )

    def _reserve(self, path: Path, size: int, caller: str) -> None:
        """Check the caller's limits, and create the file with its size, so that the next check counts it."""
        with self._lock:
            self._sweep()
            self._check(caller, size)
            self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            path.parent.mkdir(mode=0o700)
            with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as copy:
                copy.truncate(size)

    def _check(self, caller: str, size: int) -> None:
        own = [upload for upload in self._uploads() if upload.owner == caller]
        count, total = _limits_of(caller)
        taken = sum(upload.size() for upload in own)
        if len(own) < count and taken + size <= total:
            return
        who = f"The API key {caller} has" if caller else "Callers without an API key have"
        ends = [self._ends_at(upload) for upload in own]
        raise RequestError(
            f"{who} {len(own)} uploads with {-(-taken // MB)} MB; at most {count:,} with {total // MB:,} MB are "
            f"possible at once. Uploads for runs are kept for {UPLOAD_SECONDS // 60} minutes, files of /v1/files for "
            f"{self._file_seconds / SECONDS_PER_DAY:g} days. Delete files that are no longer needed (DELETE "
            "/v1/files/ID), or try again later.",
            code="QUEUE_FULL",
            retryAfter=max(1, math.ceil(min(ends, default=0) - time.time())),
        )

    async def usage(self, caller: str) -> Sequence[ResourceUsage]:
        return await in_thread(self._usage, caller)

    def _usage(self, caller: str) -> Sequence[ResourceUsage]:
        sizes = [upload.size() for upload in self._uploads() if upload.owner == caller]
        count, total = _limits_of(caller)
        return (
            ResourceUsage(resource="uploads", used=len(sizes), limit=count),
            ResourceUsage(resource="upload-bytes", used=sum(sizes), limit=total, unit="bytes"),
        )

    def _ends_at(self, upload: "_UploadFolder") -> float:
        """When an upload expires, in seconds since 1970; 0 if it is gone, or a draft that became complete."""
        is_file = upload.purpose is not None and not upload.is_draft
        with suppress(FileNotFoundError):
            return upload.path.lstat().st_mtime + (self._file_seconds if is_file else UPLOAD_SECONDS)
        return 0

    def _delete_file(self, identity: str, owner: str | None) -> None:
        with self._lock:
            upload = self._find(identity, owner)
            if upload is None or upload.purpose is None:
                raise _no_file(identity)
            self._remove(upload)

    def _sweep(self) -> None:
        """Delete expired uploads, and drafts that a crash has left."""
        now = time.time()
        for upload in self._uploads():
            if 0 < self._ends_at(upload) < now:
                self._remove(upload)

    def _remove(self, upload: "_UploadFolder") -> None:
        size = size_on_disk(upload.path)
        remove_tree(str(upload.path))
        self._disk.release(upload.owner, size)


class _UploadFolder:
    """The folder of an upload, as its name describes it."""

    def __init__(self, parent: Path, name: "re.Match[str]") -> None:
        self.path = parent / name[0]
        self.id = name["id"]
        self.owner = name["owner"] or ""
        self.purpose: str | None = name["purpose"]
        self.is_draft = name["draft"] is not None

    def size(self) -> int:
        """Bytes of its file; 0 if it was deleted meanwhile."""
        with suppress(OSError, ValueError):
            return self.content().stat().st_size
        return 0

    def content(self) -> Path:
        """The path of its file. Raises OSError or ValueError: it was deleted meanwhile."""
        (path,) = (path for path in self.path.iterdir() if path.name != _NOTE_FILE)
        return path


def _limits_of(caller: str) -> tuple[int, int]:
    """How many uploads a caller may have, and their bytes."""
    share = KEY_SHARE if caller else 1
    return MAX_UPLOADS // share, MAX_UPLOAD_BYTES // share


def _no_file(identity: str) -> RequestError:
    return RequestError(f"No such File object: {identity[:64]}", code="FILE_NOT_FOUND")


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
