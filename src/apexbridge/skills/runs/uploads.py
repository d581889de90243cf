"""Files uploaded for a later run: stored for an hour under an unguessable id."""

import os
import re
import threading
import time
from pathlib import Path
from typing import BinaryIO

import anyio.to_thread

from apexbridge.disk import Disk, blocks, size_on_disk
from apexbridge.errors import InvalidInputError, RequestError
from apexbridge.skills.files import remove_tree
from apexbridge.wire import WireModel

LIFETIME_SECONDS = 3600
MAX_UPLOADS = 1000
MAX_BYTES = 1024 * 1024 * 1024
"""Total size of all uploads."""
SHARE = 4
"""One API key may use at most 1/SHARE of the uploads and of their bytes."""
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
        return await anyio.to_thread.run_sync(self._add, file, safe_name(name or "upload"), caller)

    def _add(self, file: BinaryIO, name: str, caller: str) -> Upload:
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        with self._lock:
            self.sweep()
            self._check(caller)
        with self._disk.claim(caller, self._folder) as claim:
            claim.take(blocks(os.fstat(file.fileno()).st_size))
            upload, place = self._copy(file, name, caller)
        self._disk.add(caller, size_on_disk(place))
        return upload

    def _check(self, caller: str) -> None:
        kept = [(_owner(file.parent), file.stat().st_size) for file in self._folder.glob("*/*")]
        if len(kept) >= MAX_UPLOADS or sum(size for _, size in kept) >= MAX_BYTES:
            raise RequestError("Too many uploads wait for their runs; try again later.", code="QUEUE_FULL")
        own = [size for owner, size in kept if owner == caller]
        if caller and (len(own) >= MAX_UPLOADS // SHARE or sum(own) >= MAX_BYTES // SHARE):
            raise RequestError(
                f"{len(own)} uploads of the API key {caller} wait for their runs, which is as much as one key may "
                f"have; each is kept for {LIFETIME_SECONDS // 60} minutes. Try again later.",
                code="QUEUE_FULL",
            )

    def _copy(self, file: BinaryIO, name: str, caller: str) -> tuple[Upload, Path]:
        identity = f"upload-{os.urandom(16).hex()}"
        place = self._folder / (f"{identity}.{caller}" if caller else identity)
        place.mkdir(mode=0o700)
        try:
            size = 0
            with os.fdopen(os.open(place / name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as copy:
                while piece := file.read(1024 * 1024):
                    size += copy.write(piece)
        except BaseException:
            remove_tree(place)
            raise
        return Upload(id=identity, name=name, size=size), place

    def open(self, identity: str, *, owner: str | None = None) -> tuple[str, BinaryIO]:
        """An upload's name and the open file. With `owner`, uploads of other callers are treated as missing.

        Raises:
            InvalidInputError: the upload does not exist or has expired.
        """
        try:
            (place,) = self._folder.glob(f"{identity}*")
            if owner not in (None, _owner(place)):
                raise ValueError(identity)
            (path,) = place.iterdir()
            return path.name, path.open("rb")
        except (OSError, ValueError) as error:
            raise InvalidInputError(
                f"There is no {identity}; uploads are kept for {LIFETIME_SECONDS // 60} minutes"
            ) from error

    def sweep(self) -> None:
        """Delete expired uploads."""
        if not self._folder.is_dir():
            return
        oldest = time.time() - LIFETIME_SECONDS
        for place in self._folder.iterdir():
            if place.lstat().st_mtime < oldest:
                size = size_on_disk(place)
                remove_tree(place)
                self._disk.release(_owner(place), size)


def _owner(place: Path) -> str:
    """The caller that owns the upload in a folder."""
    return place.name.partition(".")[2]


def safe_name(name: str) -> str:
    """Reduce an untrusted file name to a plain name without folders."""
    last = re.split(r"[/\\]", name[-MAX_READ_CHARACTERS:])[-1].strip()
    plain = "".join(character if character.isprintable() else "_" for character in last).lstrip(".") or "file"
    # Cut the beginning, not the end, to keep the extension.
    return plain.encode("utf-8", "replace")[-MAX_NAME_BYTES:].decode("utf-8", "ignore")
