"""Vectors in a file, by row. Only those that are read use memory."""

import os
import tempfile
import threading
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from apexbridge._fs import PRIVATE_FILE
from apexbridge.retrieval.embedders.model import Floats

MAGIC = b"apexvec1"
ID_BYTES = 16
HEADER_BYTES = len(MAGIC) + ID_BYTES
PENDING_ROWS = 1024
"""Rows written at a time. Until then they are in memory."""


class VectorFileError(Exception):
    """The file is not the expected one, or does not contain what was written to it."""


class VectorFile:
    """An append-only file of vectors of one length. Several threads may use it.

    Rows are read with `pread`: pages of a mapped file would count as memory of the process. A checksum of each row is
    in memory, because others can change or truncate the file. If it cannot be written, new rows stay in memory.
    """

    def __init__(self, descriptor: int, dimensions: int, checksums: NDArray[np.uint32], id: str) -> None:
        self.id = id
        """Random; names this file in a snapshot."""
        self.dimensions = dimensions
        self._descriptor = descriptor
        self._checksums = checksums
        """Of each row, with room for more."""
        self._rows = self._written = len(checksums)
        self._pending: list[Floats] = []
        """Rows that are not in the file yet."""
        self._problem = ""
        """Why the last write failed."""
        self._path: Path | None = None
        """Where it was created or moved to."""
        self._lock = threading.Lock()

    def __del__(self) -> None:
        os.close(self._descriptor)

    @classmethod
    def create(cls, path: Path, dimensions: int) -> "VectorFile":
        """A new file, which replaces one with this path. Readers of the old one can go on."""
        draft = path.with_name(f"{path.name}.new")
        draft.unlink(missing_ok=True)
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        file = cls._begin(os.open(draft, flags, PRIVATE_FILE), dimensions)
        draft.replace(path)
        file._path = path
        return file

    def move(self, path: Path) -> None:
        """Give a file that this process created another path, of the same folder. Raises OSError."""
        if self._path is not None and self._path != path and self.is_at(self._path):
            self._path.replace(path)
            self._path = path

    def remove(self) -> None:
        """Remove the path. Readers can go on."""
        if self._path is not None and self.is_at(self._path):
            self._path.unlink(missing_ok=True)

    @classmethod
    def temporary(cls, dimensions: int) -> "VectorFile":
        """A file without a name, which is gone with its object."""
        with tempfile.TemporaryFile() as file:
            return cls._begin(os.dup(file.fileno()), dimensions)

    @classmethod
    def _begin(cls, descriptor: int, dimensions: int) -> "VectorFile":
        id = os.urandom(ID_BYTES)
        file = cls(descriptor, dimensions, np.zeros(0, np.uint32), id.hex())
        os.pwrite(descriptor, MAGIC + id, 0)
        return file

    @classmethod
    def open(cls, path: Path, dimensions: int, *, id: str, checksums: NDArray[np.uint32]) -> "VectorFile":
        """The file with this id and at least these rows; raises VectorFileError or OSError.

        Rows after them were written by a process that did not record them. They are overwritten.
        """
        flags = os.O_NOFOLLOW | os.O_CLOEXEC
        descriptor = os.open(path, flags | (os.O_RDWR if os.access(path, os.W_OK) else os.O_RDONLY))
        file = cls(descriptor, dimensions, checksums, id)
        size = HEADER_BYTES + len(checksums) * dimensions * 4
        if os.pread(descriptor, HEADER_BYTES, 0) != MAGIC + bytes.fromhex(id) or os.fstat(descriptor).st_size < size:
            raise VectorFileError("the file of vectors is another one")
        return file

    def is_at(self, path: Path) -> bool:
        """Whether this path is the one of this file."""
        try:
            return os.path.samestat(path.lstat(), os.fstat(self._descriptor))
        except OSError:
            return False

    @property
    def checksums(self) -> NDArray[np.uint32]:
        """Of each row."""
        return self._checksums[: self._rows]

    def __len__(self) -> int:
        return self._rows

    def append(self, vectors: Floats) -> int:
        """Add rows; returns the number of the first."""
        with self._lock:
            first, self._rows = self._rows, self._rows + len(vectors)
            if self._rows > len(self._checksums):
                self._checksums = np.concatenate((self._checksums, np.zeros(max(64, self._rows), np.uint32)))
            self._checksums[first : self._rows] = _checksums(vectors)
            self._pending.extend(np.array(vectors, np.float32))
            if len(self._pending) >= PENDING_ROWS:
                self._write()
            return first

    def write(self, *, to_disk: bool = False) -> None:
        """Write pending rows, if they are many or for the disk. Raises VectorFileError if that fails."""
        with self._lock:
            if len(self._pending) >= PENDING_ROWS:
                self._write()
            is_written = len(self._pending) < PENDING_ROWS
        if not is_written or (to_disk and not self.flush()):
            raise VectorFileError(f"The new vectors cannot be written: {self._problem}.")

    def flush(self) -> bool:
        """Write pending rows to the disk; False if that failed."""
        with self._lock:
            self._write()
            if self._pending:
                return False
        try:
            os.fsync(self._descriptor)
        except OSError as error:
            self._problem = str(error.strerror)
            return False
        return True

    def _write(self) -> None:
        if not self._pending:
            return
        data = np.stack(self._pending).tobytes()
        position, written = HEADER_BYTES + self._written * self.dimensions * 4, 0
        try:
            while written < len(data):
                written += os.pwrite(self._descriptor, memoryview(data)[written:], position + written)
        except OSError as error:  # a full or read-only disk: they stay in memory
            self._problem = str(error.strerror)
            return
        self._written += len(self._pending)
        self._pending = []

    def read(self, rows: NDArray[np.int32]) -> Floats:
        """Some rows; raises VectorFileError if one of them is not what was written."""
        found = np.empty((len(rows), self.dimensions), np.float32)
        size = self.dimensions * 4
        with self._lock:
            written, pending = self._written, self._pending
            try:
                for position, row in enumerate(rows.tolist()):
                    if row >= written:
                        found[position] = pending[row - written]
                    elif os.preadv(self._descriptor, [found[position]], HEADER_BYTES + row * size) != size:
                        raise VectorFileError("the file of vectors is too short")
            except OSError as error:
                raise VectorFileError(f"the file of vectors cannot be read: {error.strerror}") from error
            if not np.array_equal(_checksums(found), self._checksums[rows]):
                raise VectorFileError("the file of vectors was changed")
        return found


def _checksums(vectors: Floats) -> NDArray[np.uint32]:
    bits = np.ascontiguousarray(vectors, np.float32).view(np.uint32)
    sums: NDArray[np.uint32] = np.add.reduce(bits, axis=1, dtype=np.uint32)
    return sums
