"""The path jail: files in one folder can be read, listed and written, and nothing outside it.

A file is written completely or not at all, and never through a symlink.
"""

import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from apexbridge._safe_open import OPEN_FILE, OPEN_FOLDER, Opener, open_beneath, opened, walk_beneath
from apexbridge.disk import BLOCK_BYTES, Claim, Disk, blocks
from apexbridge.errors import InvalidInputError, PermissionDeniedError
from apexbridge.tools.builtin.files.listing import Entry, Glob, list_entries
from apexbridge.tools.builtin.files.paths import RelativePath, caller_errors, check_regular

NEW_FOLDER_MODE = 0o700
NEW_FILE_MODE = 0o600
MAX_BACKUP_BYTES = 100 * 1024 * 1024
MAX_BACKUPS = 10
"""Per file."""
_CHUNK_BYTES = 1024 * 1024
_CREATE = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_APPEND = os.O_WRONLY | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC


class Root:
    """A folder that the operator chose; it may not exist yet.

    It is opened again for each operation, so it may be removed and created again in between. `inner` is a folder below
    it that is the actual boundary; no symlink is followed on the way there. Writes count towards the quota of `caller`
    on `disk`.

    Every method raises RequestError (FILE_NOT_FOUND) for a missing path, PermissionDeniedError for a path that is not
    of the right kind or leads out through a symlink, and ServerError (STORAGE_FULL).
    """

    def __init__(
        self,
        path: Path,
        *,
        inner: str = "",
        opener: Opener = open_beneath,
        disk: Disk | None = None,
        caller: str = "",
    ) -> None:
        self._path = path
        self._disk = disk or Disk(path)
        self._caller = caller
        self._inner = inner
        self._opener = opener

    def open_file(self, path: RelativePath) -> BinaryIO:
        """Open a regular file for reading."""
        with caller_errors(path), self._folder() as folder:
            descriptor = self._opener(folder, path.text, OPEN_FILE)
            try:
                check_regular(os.fstat(descriptor), path)
            except BaseException:
                os.close(descriptor)
                raise
            return os.fdopen(descriptor, "rb")

    def list_folder(
        self, path: RelativePath, *, glob: Glob | None = None, deep: bool = False
    ) -> tuple[list[Entry], bool]:
        """The entries of a folder, with paths relative to it, and whether there may be more.

        A missing root counts as empty. Raises InvalidInputError if the path is not a folder.
        """
        with caller_errors(path):
            try:
                with self._folder() as folder, opened(self._opener(folder, path.text, OPEN_FOLDER)) as base:
                    return list_entries(base, self._opener, glob=glob, deep=deep)
            except NotADirectoryError:
                raise InvalidInputError(f"{path} is not a folder; file-read reads files") from None
            except FileNotFoundError:
                if path.parts:
                    raise
                return [], False

    def write_file(self, path: RelativePath, data: bytes, *, backup: bool = False) -> str | None:
        """Write a whole file, and create missing folders; returns the path of the backup, None if none was made."""
        with self._disk.claim(self._caller, self._path) as claim, self._parent(path, claim) as folder:
            return _sibling(path, _replace_file(folder, path, data, backup=backup, claim=claim))

    def append_to_file(
        self, path: RelativePath, data: bytes, *, mark: bytes = b"", backup: bool = False
    ) -> tuple[int, str | None]:
        """Append to a file, or create it with `mark` first; returns the bytes written and the path of the backup.

        A file with several hard links is refused: another link could be outside the workspace.
        """
        with self._disk.claim(self._caller, self._path) as claim, self._parent(path, claim) as folder:
            exists = _target(folder, path) is not None
            saved, saved_size = _back_up(folder, path, claim) if backup and exists else (None, 0)
            try:
                written = (_append if exists else _create_or_append)(folder, path, data, mark, claim)
            except BaseException:
                _remove(folder, saved)
                raise
            claim.keep(saved_size)
            return written, _sibling(path, saved)

    @contextmanager
    def _folder(self, *, claim: Claim | None = None) -> Iterator[int]:
        """The open folder; with a claim, it is created if missing."""
        if claim is not None:
            self._path.mkdir(NEW_FOLDER_MODE, parents=True, exist_ok=True)
        with opened(os.open(self._path, OPEN_FOLDER)) as top:
            if not self._inner:
                yield top
            elif claim is None:
                with opened(walk_beneath(top, self._inner, OPEN_FOLDER)) as inner:
                    yield inner
            else:
                with opened(_create_folder(top, self._inner, walk_beneath, claim)) as inner:
                    yield inner

    @contextmanager
    def _parent(self, path: RelativePath, claim: Claim) -> Iterator[int]:
        """The open folder that contains a path; created if missing."""
        if not path.parts:
            raise PermissionDeniedError(f"{path} is the workspace itself, not a file")
        with caller_errors(path), self._folder(claim=claim) as folder:
            try:
                parent = _create_folder(folder, "/".join(path.parts[:-1]) or ".", self._opener, claim)
            except NotADirectoryError:
                raise PermissionDeniedError(f"{path} needs a folder where there is a file") from None
            with opened(parent):
                yield parent


def _create_folder(folder: int, path: str, opener: Opener, claim: Claim) -> int:
    """Open a folder below another; missing folders are created."""
    try:
        return opener(folder, path, OPEN_FOLDER)
    except FileNotFoundError:
        if path == ".":
            raise
    above, _, name = path.rpartition("/")
    with opened(_create_folder(folder, above or ".", opener, claim)) as parent:
        claim.take(BLOCK_BYTES)
        with suppress(FileExistsError):
            os.mkdir(name, NEW_FOLDER_MODE, dir_fd=parent)
            claim.keep(BLOCK_BYTES)
    return opener(folder, path, OPEN_FOLDER)


def _sibling(path: RelativePath, name: str | None) -> str | None:
    return None if name is None else "/".join((*path.parts[:-1], name))


# -------------------------------------------------------------------------------------------- files of an open folder
def _replace_file(folder: int, path: RelativePath, data: bytes, *, backup: bool, claim: Claim) -> str | None:
    """Create or replace a file atomically; returns the name of the backup, None if none was made."""
    target = _target(folder, path)
    draft = f".apex-{secrets.token_hex(8)}"
    saved: str | None = None
    size, old_size, saved_size = blocks(len(data)), blocks(target.st_size) if target else 0, 0
    claim.take(size, replaces=0 if backup else old_size)
    try:
        _create(folder, draft, data, NEW_FILE_MODE if target is None else stat.S_IMODE(target.st_mode) & 0o777)
        if backup and target is not None:
            saved, saved_size = _back_up(folder, path, claim)
        os.replace(draft, path.name, src_dir_fd=folder, dst_dir_fd=folder)
    except BaseException:
        _remove(folder, draft, saved)
        raise
    claim.keep(size + saved_size, replaced=old_size)
    return saved


def _create(folder: int, name: str, data: bytes, mode: int = NEW_FILE_MODE) -> int:
    """Create a file that does not exist yet; returns the bytes written."""
    with opened(os.open(name, _CREATE, NEW_FILE_MODE, dir_fd=folder)) as target:
        try:
            _write(target, data)
            os.fchmod(target, mode)
        except BaseException:
            _remove(folder, name)
            raise
    return len(data)


def _create_or_append(folder: int, path: RelativePath, data: bytes, mark: bytes, claim: Claim) -> int:
    size = blocks(len(mark) + len(data))
    claim.take(size)
    try:
        written = _create(folder, path.name, mark + data)
    except FileExistsError:  # another writer created it in the meantime
        return _append(folder, path, data, mark, claim)
    claim.keep(size)
    return written


def _append(folder: int, path: RelativePath, data: bytes, mark: bytes, claim: Claim) -> int:
    with opened(os.open(path.name, _APPEND, dir_fd=folder)) as target:
        status = os.fstat(target)
        check_regular(status, path)
        if status.st_nlink > 1:
            raise PermissionDeniedError(f"{path} has a second name (a hard link); write it again instead of appending")
        data = data if status.st_size else mark + data
        growth = blocks(status.st_size + len(data)) - blocks(status.st_size)
        claim.take(growth)
        try:
            _write(target, data)
        except OSError:
            if os.fstat(target).st_size < status.st_size + len(data):  # otherwise another writer appended too
                os.ftruncate(target, status.st_size)
            raise
        claim.keep(growth)
    return len(data)


def _target(folder: int, path: RelativePath) -> os.stat_result | None:
    """Status of the existing file; None if missing. Refuses files that cannot be written to."""
    try:
        status = os.lstat(path.name, dir_fd=folder)
    except FileNotFoundError:
        return None
    check_regular(status, path)
    if not status.st_mode & 0o222:
        raise PermissionDeniedError(f"{path} is read-only; write to another name")
    return status


def _back_up(folder: int, path: RelativePath, claim: Claim) -> tuple[str, int]:
    """Copy the file to a free name in the same folder; returns the name and the size on disk."""
    with opened(os.open(path.name, OPEN_FILE | os.O_NOFOLLOW, dir_fd=folder)) as source:
        status = os.fstat(source)
        check_regular(status, path)
        if status.st_size > MAX_BACKUP_BYTES:
            limit = MAX_BACKUP_BYTES // 1024 // 1024
            raise InvalidInputError(f"{path} is larger than {limit} MB; leave backup out, or write to another name")
        size = blocks(status.st_size)
        claim.take(size)
        name, descriptor = _create_backup(folder, path)
        with opened(descriptor) as target:
            try:
                os.fchmod(target, stat.S_IMODE(status.st_mode) & 0o777)
                left = status.st_size  # even if the file grows meanwhile: no more was claimed
                while left and (chunk := os.read(source, min(left, _CHUNK_BYTES))):
                    _write(target, chunk)
                    left -= len(chunk)
            except BaseException:
                _remove(folder, name)
                raise
    return name, size


def _create_backup(folder: int, path: RelativePath) -> tuple[str, int]:
    for number in range(MAX_BACKUPS):
        name = f"{path.name}.bak{number or ''}"
        with suppress(FileExistsError):
            return name, os.open(name, _CREATE, NEW_FILE_MODE, dir_fd=folder)
    raise InvalidInputError(f"{path} has {MAX_BACKUPS} backups already; leave backup out, or write to another name")


def _write(target: int, data: bytes) -> None:
    left = memoryview(data)
    while left:
        left = left[os.write(target, left) :]


def _remove(folder: int, *names: str | None) -> None:
    for name in filter(None, names):
        with suppress(OSError):
            os.unlink(name, dir_fd=folder)
