"""Signatures of skills: made and checked here and by OpenSSH, and void after every change."""

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from apexbridge.errors import InvalidInputError
from apexbridge.skills.package.signatures import (
    MAX_SIGNATURE_BYTES,
    NAMESPACE,
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

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

SCRIPT = "scripts/execute.py"


@pytest.fixture(scope="module")
def key() -> "Ed25519PrivateKey":
    return new_private_key()


@pytest.fixture
def folder(tmp_path: Path, key: "Ed25519PrivateKey") -> Path:
    """A signed skill."""
    folder = write_skill(tmp_path, "pdf", {SCRIPT: "print(1)\n"})
    (folder / SIGNATURE_FILE).write_bytes(sign(manifest_of_folder(folder), key))
    return folder


def check(folder: Path) -> str:
    return verify(read_signature(folder) or b"", manifest_of_folder(folder)).fingerprint


def test_a_signature_names_its_key(folder: Path, key: "Ed25519PrivateKey") -> None:
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


@pytest.mark.skipif(not shutil.which("ssh-keygen"), reason="OpenSSH is not installed")
def test_openssh_makes_and_accepts_the_same_signatures(folder: Path, tmp_path: Path) -> None:
    own = tmp_path / "id"
    run = subprocess.run
    run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", own], check=True)
    manifest = manifest_of_folder(folder)
    made = run(
        ["ssh-keygen", "-Y", "sign", "-n", NAMESPACE, "-f", own], input=manifest, capture_output=True, check=True
    )
    public = parse_public_key(own.with_suffix(".pub").read_text())
    assert verify(made.stdout, manifest) == public
    assert public_key_of(read_private_key(own)) == public
    assert public.fingerprint in run(["ssh-keygen", "-lf", own], capture_output=True, text=True, check=True).stdout

    (tmp_path / "signers").write_text(f"ada {public.line}\n")
    (tmp_path / "sig").write_bytes(sign(manifest, read_private_key(own)))
    command: list[str | Path] = [
        "ssh-keygen",
        "-Y",
        "verify",
        "-f",
        tmp_path / "signers",
        "-I",
        "ada",
        "-n",
        NAMESPACE,
        "-s",
        tmp_path / "sig",
    ]
    assert run(command, input=manifest, capture_output=True).returncode == 0
    other = run(["ssh-keygen", "-Y", "sign", "-n", "file", "-f", own], input=manifest, capture_output=True, check=True)
    with pytest.raises(BadSignatureError):
        verify(other.stdout, manifest)


@pytest.mark.skipif(not shutil.which("ssh-keygen"), reason="OpenSSH is not installed")
def test_other_keys_are_refused_with_a_command_that_helps(tmp_path: Path) -> None:
    for name, options in {"rsa": ["-t", "rsa", "-N", ""], "locked": ["-t", "ed25519", "-N", "secret"]}.items():
        path = tmp_path / name
        subprocess.run(["ssh-keygen", "-q", *options, "-f", path], check=True)
        with pytest.raises(InvalidInputError) as error:
            read_private_key(path)
        assert "apex s" in error.value.message
    with pytest.raises(InvalidInputError):
        parse_public_key((tmp_path / "rsa.pub").read_text())
    (tmp_path / "text").write_text("no key")
    with pytest.raises(InvalidInputError):
        read_private_key(tmp_path / "text")


def test_a_new_key_is_stored_in_the_format_of_openssh(tmp_path: Path, key: "Ed25519PrivateKey") -> None:
    path = tmp_path / "key"
    path.write_bytes(private_key_text(key))
    assert public_key_of(read_private_key(path)) == public_key_of(key)
    assert parse_public_key(f"{public_key_of(key).line} a comment") == public_key_of(key)
