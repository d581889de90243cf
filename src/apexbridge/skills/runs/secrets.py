"""Named secrets of an operator for skills. Listings contain only the names."""

import json
import threading
from pathlib import Path

from apexbridge._fs import replace_file
from apexbridge.errors import InvalidInputError, RequestError
from apexbridge.skills.package.permissions import parse

MAX_BYTES = 32 * 1024


class SecretStore:
    """A JSON file that only the server's user can read."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()  # concurrent changes would overwrite each other

    def names(self) -> list[str]:
        return sorted(self._read())

    def get(self, name: str) -> str | None:
        return self._read().get(name)

    def set(self, name: str, value: str) -> None:
        """Store a secret; replaces an earlier one of that name.

        Raises:
            InvalidInputError: the name or value is not valid for an environment variable.
        """
        parse(f"secret:{name}")
        try:
            size = len(value.encode())
        except UnicodeEncodeError:
            size = 0  # a lone surrogate cannot be encoded; 0 is rejected below
        if "\0" in value or not 0 < size <= MAX_BYTES:
            raise InvalidInputError(f"A secret is a text of 1 to {MAX_BYTES} bytes without NUL characters")
        with self._lock:
            self._write({**self._read(), name: value})

    def remove(self, name: str) -> None:
        """Delete a secret. Raises RequestError: NOT_FOUND."""
        with self._lock:
            known = self._read()
            if name not in known:
                raise RequestError(f"No secret named {name[:128]}", code="NOT_FOUND")
            del known[name]
            self._write(known)

    def _read(self) -> dict[str, str]:
        try:
            found: dict[str, str] = json.loads(self._path.read_bytes())
        except FileNotFoundError:
            return {}
        return found

    def _write(self, secrets: dict[str, str]) -> None:
        data = json.dumps(secrets, indent=2, sort_keys=True).encode()
        replace_file(self._path, data, beside=self._path.parent, mode=0o600, durable=True)
