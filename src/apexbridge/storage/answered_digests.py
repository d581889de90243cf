"""Digests of all conversations that were answered, in files of a fixed size: a Bloom filter for each caller."""

import os
from pathlib import Path

FILTER_BYTES = 1024 * 1024
"""For each caller. After a million digests, one new digest in fifty is taken for a known one."""
BLOCK_BYTES = 64
"""All bits of a digest are in one block, so that it is read and written at once."""
BITS = 6
_BLOCKS = FILTER_BYTES // BLOCK_BYTES


class AnsweredDigests:
    """Nothing is ever forgotten. A full filter takes new digests for known ones, never known ones for new ones."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def has_filter(self, caller: str) -> bool:
        return self._path(caller).is_file()

    def add(self, caller: str, digest: str) -> bool:
        """Add a SHA-256 digest in hexadecimal; returns whether it is new. Raises OSError if it cannot be stored."""
        data = bytes.fromhex(digest)
        offset = int.from_bytes(data[:8]) % _BLOCKS * BLOCK_BYTES
        bits = 0
        for index in range(8, 8 + 2 * BITS, 2):
            bits |= 1 << int.from_bytes(data[index : index + 2]) % (8 * BLOCK_BYTES)
        file = self._open(caller)
        try:
            known = int.from_bytes(os.pread(file, BLOCK_BYTES, offset))
            if known & bits == bits:
                return False
            os.pwrite(file, (known | bits).to_bytes(BLOCK_BYTES), offset)
            return True
        finally:
            os.close(file)

    def _open(self, caller: str) -> int:
        path = self._path(caller)
        try:
            return os.open(path, os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            os.posix_fallocate(file, 0, FILTER_BYTES)  # so that a full disk does not matter later
        except BaseException:
            os.close(file)
            path.unlink()
            raise
        return file

    def _path(self, caller: str) -> Path:
        return self._folder / f"{caller or 'no-key'}.bits"
