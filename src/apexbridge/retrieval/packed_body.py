"""The searchable body of a skill, compressed: in memory, or in a file if the index is large."""

import base64
import os
import tempfile
import zlib
from dataclasses import dataclass, field
from hashlib import blake2b

DIGEST_BYTES = 8
_SIZE_BITS = 32


class BodyFile:
    """An append-only file without a name, which is gone with its object. Several threads may read it."""

    def __init__(self) -> None:
        with tempfile.TemporaryFile() as file:
            self._descriptor = os.dup(file.fileno())
        self.size = 0

    def __del__(self) -> None:
        os.close(self._descriptor)

    def append(self, data: bytes) -> int:
        """Returns where it begins. Raises OSError."""
        begin, written = self.size, 0
        while written < len(data):
            written += os.pwrite(self._descriptor, memoryview(data)[written:], begin + written)
        self.size += len(data)
        return begin

    def read(self, begin: int, size: int) -> bytes:
        """Raises OSError."""
        return os.pread(self._descriptor, size, begin)


@dataclass(frozen=True, slots=True)
class PackedBody:
    """Two bodies are the same if their digests are."""

    digest: int
    _source: bytes | BodyFile = field(compare=False, repr=False)
    _position: int = field(default=0, compare=False, repr=False)
    """Where it is in the file: its beginning and its size."""

    @classmethod
    def of(cls, text: str) -> "PackedBody":
        return cls.of_data(zlib.compress(text.encode("utf-8", "replace"))) if text else EMPTY_BODY

    @classmethod
    def of_data(cls, data: bytes) -> "PackedBody":
        """From `data()`."""
        return cls.known(int.from_bytes(blake2b(data, digest_size=DIGEST_BYTES).digest()), data)

    @classmethod
    def known(cls, digest: int, data: bytes) -> "PackedBody":
        """From `data()`, with its digest."""
        return cls(digest, data) if data else EMPTY_BODY

    @classmethod
    def in_file(cls, digest: int, file: BodyFile, begin: int, size: int) -> "PackedBody":
        return cls(digest, file, begin << _SIZE_BITS | size) if size else EMPTY_BODY

    @classmethod
    def of_stored(cls, stored: str) -> "PackedBody":
        """From `stored`."""
        return cls.of_data(base64.b85decode(stored))

    @property
    def size(self) -> int:
        """In bytes."""
        return len(self._source) if isinstance(self._source, bytes) else self._position & ((1 << _SIZE_BITS) - 1)

    @property
    def is_filed(self) -> bool:
        return isinstance(self._source, BodyFile)

    @property
    def stored(self) -> str:
        """As a table has it."""
        return base64.b85encode(self.data()).decode()

    @property
    def text(self) -> str:
        return zlib.decompress(data).decode() if (data := self.data()) else ""

    def data(self) -> bytes:
        if isinstance(self._source, bytes):
            return self._source
        return self._source.read(self._position >> _SIZE_BITS, self.size)

    def filed(self, file: BodyFile) -> "PackedBody":
        """The same body in a file. Raises OSError."""
        data = self.data()
        return PackedBody.in_file(self.digest, file, file.append(data), len(data)) if data else self


EMPTY_BODY = PackedBody(0, b"")
