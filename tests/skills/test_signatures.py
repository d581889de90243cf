"""Signatures of skills: made and checked here and by OpenSSH, and void after every change."""

import shutil
import struct
from base64 import b64encode
from collections.abc import Callable
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import given, settings
from hypothesis import strategies as st

from apexbridge.errors import InvalidInputError
from apexbridge.skills.package.signatures import (
    MAX_SIGNATURE_BYTES,
    SIGNATURE_FILE,
    BadSignatureError,
    manifest_of_folder,
    new_private_key,
    parse_public_key,
    private_key_text,
    public_key_of,
    read_private_key,
    read_signature,
    sign,
    verify,
)
from tests.making import write_skill

SCRIPT = "scripts/execute.py"
# Made by ssh-keygen of OpenSSH 9.2 with the key of the bytes 0 to 31; the second with `-n file`.
OPENSSH_KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIAOhB7/zzhC+HXDdGOdLwJln5NYwm6UNXx3chmQSVTG4"
OPENSSH_FINGERPRINT = "SHA256:lbmsoA0yIEcEiVDRnMWuzm+nV+3ZEEpVIURqFoeSspg"
OPENSSH_MANIFEST = b"644 " + b"0" * 64 + b" SKILL.md\n"
OPENSSH_SIGNATURE = b"""\
-----BEGIN SSH SIGNATURE-----
U1NIU0lHAAAAAQAAADMAAAALc3NoLWVkMjU1MTkAAAAgA6EHv/POEL4dcN0Y50vAmWfk1j
CbpQ1fHdyGZBJVMbgAAAAQYXBleGJyaWRnZS1za2lsbAAAAAAAAAAGc2hhNTEyAAAAUwAA
AAtzc2gtZWQyNTUxOQAAAECTh3pEgKzUystr7Cml1gSzk9CDuNPCGvwT9sg6f5LOOrckuP
fNJbu/mtnrF9cQxQKK+V0ikNr2JmqRe5f8njoI
-----END SSH SIGNATURE-----
"""
OPENSSH_SIGNATURE_OF_A_FILE = b"""\
-----BEGIN SSH SIGNATURE-----
U1NIU0lHAAAAAQAAADMAAAALc3NoLWVkMjU1MTkAAAAgA6EHv/POEL4dcN0Y50vAmWfk1j
CbpQ1fHdyGZBJVMbgAAAAEZmlsZQAAAAAAAAAGc2hhNTEyAAAAUwAAAAtzc2gtZWQyNTUx
OQAAAEBV+NpA5VoK/4voAlKuuoB3N7j50Py2WvjWpPbRdUPdMIvJzINx2kTp9zM8gQB+kT
hcwrVY0VLgvfsgchTn0M4D
-----END SSH SIGNATURE-----
"""


@pytest.fixture(scope="module")
def key() -> Ed25519PrivateKey:
    return new_private_key()


@pytest.fixture
def folder(tmp_path: Path, key: Ed25519PrivateKey) -> Path:
    """A signed skill."""
    folder = write_skill(tmp_path, "pdf", {SCRIPT: "print(1)\n"})
    (folder / SIGNATURE_FILE).write_bytes(sign(manifest_of_folder(folder), key))
    return folder


def check(folder: Path) -> str:
    return verify(read_signature(folder) or b"", manifest_of_folder(folder)).fingerprint


def test_a_signature_names_its_key(folder: Path, key: Ed25519PrivateKey) -> None:
    assert check(folder) == public_key_of(key).fingerprint
    shutil.copytree(folder, folder.with_name("copy"))
    assert check(folder.with_name("copy")) == check(folder)


def rename(folder: Path) -> None:
    (folder / SCRIPT).rename(folder / "scripts/other.py")


def make_executable(folder: Path) -> None:
    (folder / SCRIPT).chmod(0o755)


@pytest.mark.parametrize(
    "change",
    [
        lambda folder: (folder / SCRIPT).write_text("print(2)\n"),
        lambda folder: (folder / "more.md").write_text(""),
        lambda folder: (folder / SCRIPT).unlink(),
        lambda folder: (folder / "a\n644 b").write_text(""),
        rename,
        make_executable,
    ],
    ids=["changed", "added", "removed", "line end in a name", "renamed", "mode"],
)
def test_every_change_of_the_content_makes_it_invalid(folder: Path, change: Callable[[Path], object]) -> None:
    change(folder)
    with pytest.raises(BadSignatureError):
        check(folder)


def test_a_signature_of_another_skill_is_not_valid(folder: Path, tmp_path: Path) -> None:
    other = write_skill(tmp_path / "other", "docx")
    shutil.copy(folder / SIGNATURE_FILE, other / SIGNATURE_FILE)
    with pytest.raises(BadSignatureError):
        check(other)


@given(data=st.one_of(st.binary(max_size=400), st.text(max_size=400).map(str.encode)))
@settings(max_examples=200, deadline=None)
def test_garbage_is_refused(data: bytes) -> None:
    with pytest.raises(BadSignatureError):
        verify(data, b"")


def test_every_changed_byte_makes_it_invalid(folder: Path) -> None:
    text, manifest = (folder / SIGNATURE_FILE).read_bytes(), manifest_of_folder(folder)
    for position in range(len(text) - 1):
        if chr(text[position]).isspace():
            continue
        changed = text[:position] + (b"A" if text[position : position + 1] != b"A" else b"B") + text[position + 1 :]
        with pytest.raises(BadSignatureError):
            verify(changed, manifest)


def test_a_file_that_is_too_large_and_a_link_are_refused(folder: Path) -> None:
    path = folder / SIGNATURE_FILE
    path.write_bytes(path.read_bytes() + b"\n" * MAX_SIGNATURE_BYTES)
    with pytest.raises(BadSignatureError):
        check(folder)
    path.unlink()
    path.symlink_to("SKILL.md")
    assert read_signature(folder) is None


def test_openssh_makes_the_same_signatures() -> None:
    own = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
    assert public_key_of(own) == parse_public_key(OPENSSH_KEY)
    assert public_key_of(own).fingerprint == OPENSSH_FINGERPRINT
    assert sign(OPENSSH_MANIFEST, own) == OPENSSH_SIGNATURE
    assert verify(OPENSSH_SIGNATURE, OPENSSH_MANIFEST) == public_key_of(own)


def test_a_signature_for_another_purpose_is_not_valid() -> None:
    with pytest.raises(BadSignatureError, match="another purpose"):
        verify(OPENSSH_SIGNATURE_OF_A_FILE, OPENSSH_MANIFEST)


def with_passphrase(private: Ed25519PrivateKey) -> bytes:
    """A key file whose private part is encrypted."""
    salt_and_rounds = struct.pack(">I", 16) + bytes(16) + struct.pack(">I", 16)
    fields = [b"aes256-ctr", b"bcrypt", salt_and_rounds]
    packed = [struct.pack(">I", len(one)) + one for one in fields]
    public, hidden = public_key_of(private).blob, bytes(160)
    tail = [struct.pack(">I", 1), *(struct.pack(">I", len(one)) + one for one in (public, hidden))]
    blob = b64encode(b"".join([b"openssh-key-v1\0", *packed, *tail])).decode()
    kind = "OPENSSH PRIVATE " + "KEY"
    return f"-----BEGIN {kind}-----\n{blob}\n-----END {kind}-----\n".encode()


def test_other_keys_are_refused_with_a_command_that_helps(tmp_path: Path, key: Ed25519PrivateKey) -> None:
    other = ec.generate_private_key(ec.SECP256R1())
    openssh = serialization.Encoding.PEM, serialization.PrivateFormat.OpenSSH, serialization.NoEncryption()
    files = {"ecdsa": other.private_bytes(*openssh), "locked": with_passphrase(key), "text": b"not a key"}
    for name, data in files.items():
        (tmp_path / name).write_bytes(data)
        with pytest.raises(InvalidInputError) as error:
            read_private_key(tmp_path / name)
        assert ("ssh-keygen -Y sign" if name == "locked" else "apex signers keygen") in error.value.message
    with pytest.raises(InvalidInputError):
        read_private_key(tmp_path / "missing")
    encoded = other.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    for text in (encoded.decode(), "", "ssh-ed25519", "ssh-ed25519 AAAA", "ssh-ed25519 !"):
        with pytest.raises(InvalidInputError):
            parse_public_key(text)


def test_a_new_key_is_stored_in_the_format_of_openssh(tmp_path: Path, key: Ed25519PrivateKey) -> None:
    path = tmp_path / "key"
    path.write_bytes(private_key_text(key))
    assert public_key_of(read_private_key(path)) == public_key_of(key)
    assert parse_public_key(f"{public_key_of(key).line} a comment") == public_key_of(key)
