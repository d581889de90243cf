"""The path jail: files in one folder can be read, listed and written, and nothing outside it."""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from apexbridge.disk import BLOCK_BYTES, Claim, Disk
from apexbridge.errors import InvalidInputError, PermissionDeniedError
from apexbridge.tools.builtin.files.beneath import OPEN_FILE, OPEN_FOLDER, Opener, open_beneath, walk_beneath
from apexbridge.tools.builtin.files.listing import Entry, Glob, list_entries
from apexbridge.tools.builtin.files.paths import RelativePath, check_regular, refusals
from apexbridge.tools.builtin.files.writing import append_to_file, replace_file

NEW_FOLDER_MODE = 0o700


class Root:
    """A folder that the operator chose; it may not exist yet.

    It is opened again for each operation, so it may be removed and created again in between. `inner` is a folder below
    it that is the actual boundary; no symlink is followed on the way there.
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
        """Writes count towards the quota of `caller` on `disk`."""
        self._path = path
        self._disk = disk or Disk(path)
        self._caller = caller
        self._inner = inner
        self._opener = opener

    def open_file(self, path: RelativePath) -> BinaryIO:
        """Open a regular file for reading.

        Raises:
            RequestError: FILE_NOT_FOUND.
            PermissionDeniedError: it is not a regular file, or a symlink leads out.
        """
        with refusals(path), self._folder() as folder:
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

        Raises:
            RequestError: FILE_NOT_FOUND, except for the root itself: a missing root counts as empty.
            InvalidInputError: it is not a folder.
        """
        with refusals(path):
            try:
                with self._folder() as folder:
                    return self._list(folder, path, glob, deep)
            except FileNotFoundError:
                if path.parts:
                    raise
                return [], False

    def write_file(self, path: RelativePath, data: bytes, *, backup: bool = False) -> str | None:
        """Write a whole file, and create missing folders; returns the path of the backup, None if none was made.

        Raises:
            PermissionDeniedError: the path exists and is not a regular file, or a symlink leads out.
            ServerError: STORAGE_FULL.
        """
        with self._disk.claim(self._caller, self._path) as claim, self._parent(path, claim) as folder:
            return _beside(path, replace_file(folder, path, data, backup=backup, claim=claim))

    def append_to_file(
        self, path: RelativePath, data: bytes, *, mark: bytes = b"", backup: bool = False
    ) -> tuple[int, str | None]:
        """Append to a file, or create it with `mark` first; returns the bytes written and the path of the backup.

        Raises:
            PermissionDeniedError: the path exists and is not a regular file, or a symlink leads out.
            ServerError: STORAGE_FULL.
        """
        with self._disk.claim(self._caller, self._path) as claim, self._parent(path, claim) as folder:
            written, saved = append_to_file(folder, path, data, mark=mark, backup=backup, claim=claim)
            return written, _beside(path, saved)

    def _list(self, folder: int, path: RelativePath, glob: Glob | None, deep: bool) -> tuple[list[Entry], bool]:
        try:
            base = self._opener(folder, path.text, OPEN_FOLDER)
        except NotADirectoryError:
            raise InvalidInputError(f"{path} is no folder; file-read reads files") from None
        try:
            return list_entries(base, self._opener, glob=glob, deep=deep)
        finally:
            os.close(base)

    @contextmanager
    def _folder(self, *, claim: Claim | None = None) -> Iterator[int]:
        """The open folder; with a claim, it is created if missing."""
        if claim is not None:
            self._path.mkdir(NEW_FOLDER_MODE, parents=True, exist_ok=True)
        top = os.open(self._path, OPEN_FOLDER)
        try:
            if not self._inner:
                yield top
                return
            inner = (
                _made(top, self._inner, walk_beneath, claim)
                if claim is not None
                else walk_beneath(top, self._inner, OPEN_FOLDER)
            )
            try:
                yield inner
            finally:
                os.close(inner)
        finally:
            os.close(top)

    @contextmanager
    def _parent(self, path: RelativePath, claim: Claim) -> Iterator[int]:
        """The open folder that contains a path; created if missing."""
        if not path.parts:
            raise PermissionDeniedError(f"{path} is the workspace itself, not a file")
        with refusals(path), self._folder(claim=claim) as folder:
            try:
                parent = _made(folder, "/".join(path.parts[:-1]) or ".", self._opener, claim)
            except NotADirectoryError:
                raise PermissionDeniedError(f"{path} needs a folder where there is a file") from None
            try:
                yield parent
            finally:
                os.close(parent)


def _made(folder: int, path: str, opener: Opener, claim: Claim) -> int:
    """Open a folder below another; missing folders are created."""
    try:
        return opener(folder, path, OPEN_FOLDER)
    except FileNotFoundError:
        if path == ".":
            raise
    above, _, name = path.rpartition("/")
    parent = _made(folder, above or ".", opener, claim)
    try:
        claim.take(BLOCK_BYTES)
        with suppress(FileExistsError):
            os.mkdir(name, NEW_FOLDER_MODE, dir_fd=parent)
            claim.keep(BLOCK_BYTES)
    finally:
        os.close(parent)
    return opener(folder, path, OPEN_FOLDER)


def _beside(path: RelativePath, name: str | None) -> str | None:
    return None if name is None else "/".join((*path.parts[:-1], name))
