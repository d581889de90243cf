"""Signatures of skills: SSH signatures (`ssh-keygen -Y`, PROTOCOL.sshsig) by ed25519 keys, in the file `SKILL.sig`.

Signed is the manifest: mode, SHA-256 and path of every other file of the skill. It is the same for a folder, a ZIP, a
repository and a download, so the signature is valid for all of them. The package `cryptography` does the arithmetic;
it is imported when a signature is made or checked.
"""

import binascii
import hashlib
import struct
from base64 import b64decode, b64encode
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from apexbridge.errors import InvalidInputError, ServerError
from apexbridge.skills.package.fingerprint import hash_file, scan_folder
from apexbridge.skills.package.skill import PackageFile

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

SIGNATURE_FILE = "SKILL.sig"
NAMESPACE = "apexbridge-skill"
"""A signature for another purpose is not valid for a skill."""
MAX_SIGNATURE_BYTES = 4096
MAX_KEY_BYTES = 16 * 1024
KEY_TYPE = "ssh-ed25519"
_MAGIC = b"SSHSIG"
_HASH = "sha512"
_BEGIN, _END = "-----BEGIN SSH SIGNATURE-----", "-----END SSH SIGNATURE-----"
_LINE = 70


class BadSignatureError(Exception):
    """The signature is damaged, of another kind, or not of this content."""


@dataclass(frozen=True, slots=True)
class PublicKey:
    """An ed25519 public key."""

    raw: bytes

    @property
    def blob(self) -> bytes:
        return _packed(KEY_TYPE.encode()) + _packed(self.raw)

    @property
    def line(self) -> str:
        """As in a `.pub` file, without a comment."""
        return f"{KEY_TYPE} {b64encode(self.blob).decode()}"

    @property
    def fingerprint(self) -> str:
        """As `ssh-keygen -l` prints it."""
        return f"SHA256:{b64encode(hashlib.sha256(self.blob).digest()).decode().rstrip('=')}"


def manifest_of(hashed: Iterable[tuple[PackageFile, str]]) -> bytes:
    """The text that is signed, of files with their SHA-256. Raises BadSignatureError: a path has a line end."""
    lines = []
    for file, digest in sorted(hashed, key=lambda item: item[0].path):
        if file.path == SIGNATURE_FILE:
            continue
        if "\n" in file.path:  # it could imitate another line
            raise BadSignatureError("the name of a file contains a line end")
        lines.append(f"{'755' if file.executable else '644'} {digest} {file.path}\n")
    return "".join(lines).encode("utf-8", "surrogateescape")


def manifest_of_folder(folder: Path) -> bytes:
    """The manifest of a skill on disk."""
    return manifest_of((file, hash_file(folder / file.path)) for file in scan_folder(folder).files)


def read_signature(folder: Path) -> bytes | None:
    """The signature file of a skill on disk; None if there is none. A larger one is cut, and so is not valid."""
    path = folder / SIGNATURE_FILE
    if path.is_symlink() or not path.is_file():
        return None
    with path.open("rb") as file:
        return file.read(MAX_SIGNATURE_BYTES + 1)


def verify(signature: bytes, manifest: bytes) -> PublicKey:
    """The key that made this signature of this manifest.

    Raises:
        BadSignatureError: it is not valid.
        ServerError: SIGNING_NOT_INSTALLED.
    """
    fields = _read_armored(signature)
    key, namespace, reserved, algorithm, signed = fields
    if namespace != NAMESPACE.encode():
        raise BadSignatureError("it was made for another purpose")
    if algorithm != _HASH.encode():
        raise BadSignatureError("it uses another hash than sha512")
    public, value = _raw_key(key), _raw_signature(signed)
    _import_cryptography()
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    try:
        Ed25519PublicKey.from_public_bytes(public.raw).verify(value, _to_sign(manifest, reserved))
    except (InvalidSignature, ValueError) as error:
        raise BadSignatureError("it does not fit the content") from error
    return public


def sign(manifest: bytes, private: "Ed25519PrivateKey") -> bytes:
    """The signature file for a manifest."""
    key = public_key_of(private)
    value = private.sign(_to_sign(manifest, b""))
    blob = b"".join(
        [
            _MAGIC,
            struct.pack(">I", 1),
            _packed(key.blob),
            _packed(NAMESPACE.encode()),
            _packed(b""),
            _packed(_HASH.encode()),
            _packed(_packed(KEY_TYPE.encode()) + _packed(value)),
        ]
    )
    text = b64encode(blob).decode()
    lines = [text[start : start + _LINE] for start in range(0, len(text), _LINE)]
    return "\n".join([_BEGIN, *lines, _END, ""]).encode()


def public_key_of(private: "Ed25519PrivateKey") -> PublicKey:
    return PublicKey(private.public_key().public_bytes_raw())


def new_private_key() -> "Ed25519PrivateKey":
    """Raises ServerError: SIGNING_NOT_INSTALLED."""
    _import_cryptography()
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    return Ed25519PrivateKey.generate()


def private_key_text(private: "Ed25519PrivateKey") -> bytes:
    """A private key in OpenSSH's format, without a passphrase."""
    from cryptography.hazmat.primitives import serialization

    return private.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.OpenSSH, serialization.NoEncryption()
    )


def read_private_key(path: Path) -> "Ed25519PrivateKey":
    """A private key of OpenSSH's format, such as `~/.ssh/id_ed25519`.

    Raises:
        InvalidInputError: it cannot be read, is of another kind, or has a passphrase.
        ServerError: SIGNING_NOT_INSTALLED.
    """
    _import_cryptography()
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import load_ssh_private_key

    try:
        with path.open("rb") as file:
            data = file.read(MAX_KEY_BYTES)
    except OSError as error:
        raise InvalidInputError(f"{path} cannot be read: {error.strerror}") from error
    try:
        key = load_ssh_private_key(data, None)
    except (TypeError, UnsupportedAlgorithm) as error:  # TypeError: a passphrase is needed
        raise InvalidInputError(
            f"{path} has a passphrase or is of a kind that is not supported. Sign with ssh-keygen instead: "
            f"apex skills sign FOLDER --manifest | ssh-keygen -Y sign -n {NAMESPACE} -f {path} "
            f"> FOLDER/{SIGNATURE_FILE}"
        ) from error
    except ValueError as error:
        raise InvalidInputError(
            f"{path} is not a private key of OpenSSH. Create one: apex signers keygen FILE"
        ) from error
    if not isinstance(key, Ed25519PrivateKey):
        raise InvalidInputError(f"{path} is not an ed25519 key. Create one: apex signers keygen FILE")
    return key


def parse_public_key(text: str) -> PublicKey:
    """A line of a `.pub` file. Raises InvalidInputError."""
    words = text.split()
    try:
        if len(words) < 2 or words[0] != KEY_TYPE:
            raise ValueError(text)
        return _raw_key(b64decode(words[1], validate=True))
    except (ValueError, BadSignatureError) as error:
        raise InvalidInputError(
            "A public key is a line that begins with ssh-ed25519, as in a file that ends in .pub. Create a pair of "
            "keys: apex signers keygen FILE"
        ) from error


def _to_sign(manifest: bytes, reserved: bytes) -> bytes:
    digest = hashlib.sha512(manifest).digest()
    fields = (NAMESPACE.encode(), reserved, _HASH.encode(), digest)
    return _MAGIC + b"".join(map(_packed, fields))


def _read_armored(data: bytes) -> list[bytes]:
    """The fields of a signature file after magic and version. Raises BadSignatureError."""
    try:
        text = data.decode("ascii")
    except ValueError as error:
        raise BadSignatureError("it is not an SSH signature") from error
    lines = text.strip().splitlines()
    if len(data) > MAX_SIGNATURE_BYTES or len(lines) < 3 or lines[0] != _BEGIN or lines[-1] != _END:
        raise BadSignatureError("it is not an SSH signature")
    try:
        blob = b64decode("".join(lines[1:-1]), validate=True)
    except binascii.Error as error:
        raise BadSignatureError("it is damaged") from error
    if not blob.startswith(_MAGIC + struct.pack(">I", 1)):
        raise BadSignatureError("it is not an SSH signature of version 1")
    return _fields(blob[len(_MAGIC) + 4 :], 5)


def _raw_key(blob: bytes) -> PublicKey:
    kind, raw = _fields(blob, 2)
    if kind != KEY_TYPE.encode() or len(raw) != 32:
        raise BadSignatureError("its key is not an ed25519 key")
    return PublicKey(raw)


def _raw_signature(blob: bytes) -> bytes:
    kind, raw = _fields(blob, 2)
    if kind != KEY_TYPE.encode() or len(raw) != 64:
        raise BadSignatureError("it is not an ed25519 signature")
    return raw


def _fields(data: bytes, count: int) -> list[bytes]:
    """Exactly these length-prefixed fields. Raises BadSignatureError."""
    fields, position = [], 0
    for _ in range(count):
        (length,) = struct.unpack_from(">I", data, position) if position + 4 <= len(data) else (len(data) + 1,)
        position += 4
        if position + length > len(data):
            raise BadSignatureError("it is damaged")
        fields.append(data[position : position + length])
        position += length
    if position != len(data):
        raise BadSignatureError("it is damaged")
    return fields


def _packed(data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + data


def _import_cryptography() -> None:
    try:
        import cryptography  # noqa: F401
    except ImportError as error:
        raise ServerError(
            "Signatures need the package cryptography. Install it with: pip install 'apexbridge[signing]'",
            code="SIGNING_NOT_INSTALLED",
        ) from error
