"""Signers that the operator trusts: a name, a public key, and the skills that they may sign."""

import json
import re
import threading
from collections.abc import Sequence
from datetime import UTC, datetime
from fnmatch import fnmatchcase
from pathlib import Path

from pydantic import ValidationError

from apexbridge._fs import replace_file
from apexbridge.errors import InvalidInputError, RequestError, ServerError
from apexbridge.skills.models import Signer
from apexbridge.skills.package.signatures import PublicKey, parse_public_key
from apexbridge.storage.directory import storage_faults

SIGNERS_FILE = "signers.json"
MAX_SIGNERS = 500
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,63}\Z")
_SCOPE = re.compile(r"[a-z0-9:*?-]{1,128}\Z")


class SignerStore:
    """A JSON file in the data directory."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()

    def all(self) -> list[Signer]:
        """All signers, by name. Raises ServerError: the file is damaged. Nothing signed is trusted then."""
        try:
            return sorted(
                (Signer.model_validate(one) for one in json.loads(self._path.read_bytes())), key=lambda one: one.name
            )
        except FileNotFoundError:
            return []
        except (ValueError, ValidationError, TypeError) as error:
            raise ServerError(
                f"{self._path.name} in the data directory is damaged, so no signer is trusted. Delete it, and add the "
                "signers again: apex signers add NAME KEY"
            ) from error

    def add(self, name: str, key: str, skills: Sequence[str] = ()) -> Signer:
        """Trust a key. Raises InvalidInputError, or RequestError: SIGNER_EXISTS if the name or the key is known."""
        if not _NAME.match(name):
            raise InvalidInputError("The name of a signer has 1 to 64 letters, digits, and the characters . _ @ -")
        for pattern in skills:
            if not _SCOPE.match(pattern):
                raise InvalidInputError(f"{pattern[:100]!a} is not the name of a skill; * and ? stand for characters")
        public = parse_public_key(key)
        with self._lock:
            known = self.all()
            for other in known:
                if other.name == name or other.fingerprint == public.fingerprint:
                    raise RequestError(
                        f"The signer {other.name} is known with the key {other.fingerprint}. Nothing was changed. "
                        f"Remove it first: apex signers remove {other.name}",
                        code="SIGNER_EXISTS",
                    )
            if len(known) >= MAX_SIGNERS:
                raise InvalidInputError(f"There are {MAX_SIGNERS} signers already; remove one first")
            signer = Signer(
                name=name,
                key=public.line,
                fingerprint=public.fingerprint,
                skills=list(skills),
                added_at=datetime.now(UTC),
            )
            self._write([*known, signer])
        return signer

    def remove(self, name: str) -> None:
        """Stop trusting a key. Raises RequestError: NOT_FOUND."""
        with self._lock:
            known = self.all()
            left = [one for one in known if one.name != name]
            if len(left) == len(known):
                raise RequestError(f"No signer named {name[:64]}", code="NOT_FOUND")
            self._write(left)

    def of(self, key: PublicKey) -> Signer | None:
        """The signer with this key."""
        return next((one for one in self.all() if one.key == key.line), None)

    def _write(self, signers: Sequence[Signer]) -> None:
        data = json.dumps([one.model_dump(mode="json") for one in signers], indent=1).encode()
        with storage_faults():
            replace_file(self._path, data, beside=self._path.parent, mode=0o600, durable=True)


def may_sign(signer: Signer, skill: str) -> bool:
    """Whether a signer is trusted for the skill of this name."""
    return not signer.skills or any(fnmatchcase(skill, pattern) for pattern in signer.skills)
