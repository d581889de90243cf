"""Collecting artifacts: only regular files, up to a number and a size."""

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from apexbridge.sandbox import artifacts
from apexbridge.sandbox.artifacts import MAX_DEPTH, MAX_FILES, collect_artifacts
from tests.making import walk
from tests.sandbox.properties import unhurried


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    folder = tmp_path / "workspace"
    (folder / "output").mkdir(parents=True)
    return folder


@pytest.fixture
def opened(workspace: Path) -> Iterator[int]:
    descriptor = os.open(workspace, os.O_RDONLY | os.O_DIRECTORY)
    yield descriptor
    os.close(descriptor)


def collected(opened: int, target: Path, *secrets: str) -> tuple[dict[str, int], list[str]]:
    files, warnings = collect_artifacts(opened, secrets, target=target)
    return {file.path: file.size for file in files}, warnings


@pytest.mark.requirement("B14")
def test_files_and_folders_are_collected_unchanged(workspace: Path, opened: int, tmp_path: Path) -> None:
    for path, content in {"b.txt": "bb", "a/deep/c.bin": "\x00\xff", "a/空 .txt": "", "-rf": "x"}.items():
        (workspace / "output" / path).parent.mkdir(parents=True, exist_ok=True)
        (workspace / "output" / path).write_text(content, "latin-1")
    (workspace / "elsewhere.txt").write_text("not in output")
    found, warnings = collected(opened, tmp_path / "artifacts")
    assert found == {"-rf": 1, "a/deep/c.bin": 2, "a/空 .txt": 0, "b.txt": 2}
    assert list(found) == sorted(found)
    assert warnings == []
    assert (tmp_path / "artifacts/a/deep/c.bin").read_bytes() == b"\x00\xff"
    assert sorted(path for path in walk(tmp_path / "artifacts") if "." in path or path == "-rf") == sorted(found)


@pytest.mark.requirement("B14")
def test_without_output_nothing_is_created(workspace: Path, opened: int, tmp_path: Path) -> None:
    assert collected(opened, tmp_path / "artifacts") == ({}, [])
    (workspace / "output").rmdir()
    assert collected(opened, tmp_path / "artifacts") == ({}, [])
    assert not (tmp_path / "artifacts").exists()


@pytest.mark.requirement("B14")
def test_links_pipes_and_sockets_are_not_collected(workspace: Path, opened: int, tmp_path: Path) -> None:
    output = workspace / "output"
    (tmp_path / "secret").write_text("of the host")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder/inner").write_text("of the host")
    (output / "link").symlink_to(tmp_path / "secret")
    (output / "folder").symlink_to(tmp_path / "folder")
    (output / "loop").symlink_to("loop")
    os.mkfifo(output / "pipe")
    with socket.socket(socket.AF_UNIX) as unix:
        here = Path.cwd()
        os.chdir(output)
        unix.bind("socket")
        os.chdir(here)
    (output / "plain").write_text("mine")
    found, warnings = collected(opened, tmp_path / "artifacts")
    assert found == {"plain": 4}
    assert len(warnings) == 5
    assert list(walk(tmp_path / "artifacts")) == ["plain"]


@pytest.mark.requirement("B14")
def test_devices_are_not_collected(workspace: Path, opened: int, tmp_path: Path) -> None:
    made = 1
    try:
        os.mknod(workspace / "output/zero", 0o020666, os.makedev(1, 5))
    except PermissionError:  # only root can create a device
        made = 0
    found, warnings = collected(opened, tmp_path / "artifacts")
    assert (found, len(warnings)) == ({}, made)


@pytest.mark.requirement("B14")
def test_an_output_folder_that_is_a_link_is_not_followed(workspace: Path, opened: int, tmp_path: Path) -> None:
    (tmp_path / "private").mkdir()
    (tmp_path / "private/key").write_text("of the host")
    (workspace / "output").rmdir()
    (workspace / "output").symlink_to(tmp_path / "private")
    assert collected(opened, tmp_path / "artifacts") == ({}, [])


@pytest.mark.requirement("B14")
@pytest.mark.parametrize("name", [b"bad\xffname", b"line\nbreak", b"bell\x07", "right\u202eleft".encode(), b"tab\t"])
def test_files_with_unprintable_names_are_not_collected(
    workspace: Path, opened: int, tmp_path: Path, name: bytes
) -> None:
    odd = os.fsdecode(name)
    (workspace / "output" / odd).write_bytes(b"x")
    (workspace / "output" / f"folder {odd}").mkdir()
    found, warnings = collected(opened, tmp_path / "artifacts")
    assert (found, len(warnings)) == ({}, 2)
    assert not [text for text in warnings if not text.isprintable()]


@pytest.mark.requirement("B14")
def test_the_number_of_collected_files_is_limited(workspace: Path, opened: int, tmp_path: Path) -> None:
    for number in range(MAX_FILES + 5):
        (workspace / "output" / str(number)).touch()
    found, warnings = collected(opened, tmp_path / "artifacts")
    assert (len(found), len(warnings)) == (MAX_FILES, 1)


@pytest.mark.requirement("B14")
def test_the_size_of_collected_files_is_limited(
    workspace: Path, opened: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(artifacts, "MAX_BYTES", 1000)
    for name, size in {"a": 600, "b": 500, "c": 400, "d": 1}.items():
        (workspace / "output" / name).write_bytes(b"x" * size)
    found, warnings = collected(opened, tmp_path / "artifacts")
    assert found == {"a": 600, "c": 400}
    assert len(warnings) == 2


@pytest.mark.requirement("B14")
def test_files_that_are_too_deep_are_not_collected(workspace: Path, opened: int, tmp_path: Path) -> None:
    deep = workspace / "output" / "/".join(["d"] * MAX_DEPTH)
    (deep / "below").mkdir(parents=True)
    (deep / "last").touch()
    (deep / "below/lost").touch()
    found, warnings = collected(opened, tmp_path / "artifacts")
    assert list(found) == ["/".join(["d"] * MAX_DEPTH) + "/last"]
    assert len(warnings) == 1


@pytest.mark.requirement("B20")
def test_a_file_that_contains_a_secret_is_not_collected(workspace: Path, opened: int, tmp_path: Path) -> None:
    (workspace / "output/leak").write_text("key: s3cr3t-value")
    (workspace / "output/fine").write_text("key: ***")
    (workspace / "output/s3cr3t-value").mkdir()
    (workspace / "output/s3cr3t-value/named").touch()
    found, warnings = collected(opened, tmp_path / "artifacts", "s3cr3t-value")
    assert list(found) == ["fine"]
    assert len(warnings) == 2
    assert not [text for text in warnings if "s3cr3t" in text]


names = st.text(st.characters(exclude_characters="/\0", exclude_categories=["Cs"]), min_size=1, max_size=20)


@given(st.dictionaries(names.filter(lambda name: name not in (".", "..")), st.binary(max_size=50), max_size=5))
@settings(unhurried, max_examples=50, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_every_listed_file_is_stored_under_its_name(
    tmp_path_factory: pytest.TempPathFactory, made: dict[str, bytes]
) -> None:
    root = tmp_path_factory.mktemp("any")
    (root / "output").mkdir()
    for name, data in made.items():
        (root / "output" / name).write_bytes(data)
    descriptor = os.open(root, os.O_RDONLY)
    try:
        found, warnings = collected(descriptor, root / "artifacts")
    finally:
        os.close(descriptor)
    assert len(found) + len(warnings) == len(made)
    assert {path: (root / "artifacts" / path).read_bytes() for path in found} == {path: made[path] for path in found}
