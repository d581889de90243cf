"""The path jail over real folders, with `openat2` and with the fallback that walks the path."""

import errno
import os
import shutil
import socket
import stat
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest

from apexbridge._safe_open import OPEN_FILE, Opener, open_beneath, walk_beneath
from apexbridge.errors import (
    ApexBridgeError,
    InvalidInputError,
    PermissionDeniedError,
    RequestError,
    ServerError,
)
from apexbridge.tools.builtin.files.file_roots import Root
from apexbridge.tools.builtin.files.listing import Glob, list_entries
from apexbridge.tools.builtin.files.paths import read_path
from tests.tools.failing_syscall import OPENAT2, WRITE, with_failing_syscall

MARKER = b"the outside"


@pytest.fixture(params=[open_beneath, walk_beneath])
def opener(request: pytest.FixtureRequest) -> Opener:
    chosen: Opener = request.param
    return chosen


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "secret").write_bytes(MARKER)
    return tmp_path / "workspace"


@pytest.fixture
def root(folder: Path, opener: Opener) -> Root:
    folder.mkdir()
    return Root(folder, opener=opener)


def read(root: Root, path: str) -> bytes:
    with root.open_file(read_path(path)) as file:
        return file.read()


def write(root: Root, path: str, data: bytes = b"new", *, backup: bool = False) -> str | None:
    return root.write_file(read_path(path), data, backup=backup)


def append(root: Root, path: str, data: bytes = b"new", *, backup: bool = False) -> tuple[int, str | None]:
    return root.append_to_file(read_path(path), data, backup=backup)


def names(root: Root, path: str = ".", *, pattern: str | None = None, deep: bool = False) -> list[str]:
    found, _ = root.list_folder(read_path(path), glob=Glob(pattern) if pattern else None, deep=deep)
    return [entry.path for entry in found]


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


# ---------------------------------------------------------------------------------------------------------- reading
def test_unusual_but_valid_names_are_accepted(root: Root) -> None:
    for name in ["...", "..a", "a b", "-rf", "空 文件.txt", "é" * 127, "a:b", "~", "%2e%2e", "$HOME", "a\nb"]:
        write(root, name, name.encode())
        assert read(root, f"./{name}") == name.encode()


def test_files_are_read_and_written_at_any_depth(root: Root, folder: Path) -> None:
    write(root, "a/b/c/d.txt", b"deep")
    write(root, "top.txt", b"top")
    assert (read(root, "a/b/./c/d.txt"), read(root, "top.txt")) == (b"deep", b"top")
    assert (folder / "a/b/c/d.txt").read_bytes() == b"deep"


@pytest.mark.requirement("A6")
def test_symlinks_to_the_outside_are_refused(root: Root, folder: Path) -> None:
    outside = folder.parent / "outside"
    (folder / "absolute").symlink_to(outside / "secret")
    (folder / "relative").symlink_to("../outside/secret")
    (folder / "parent").symlink_to(outside)
    (folder / "deep").mkdir()
    (folder / "deep" / "up").symlink_to("../../outside")
    (folder / "second").symlink_to("relative")
    (folder / "round").symlink_to("round")
    (folder / "environ").symlink_to("/proc/self/environ")
    (folder / "self").symlink_to("/proc/self/cwd")
    for path in ["absolute", "relative", "parent/secret", "deep/up/secret", "second", "round", "environ", "self/x"]:
        for operation in (read, write, append):
            with pytest.raises(PermissionDeniedError) as caught:
                operation(root, path)
            assert str(folder.parent) not in caught.value.message
    with pytest.raises(PermissionDeniedError):
        names(root, "parent")
    assert (outside / "secret").read_bytes() == MARKER
    assert [path.name for path in outside.iterdir()] == ["secret"]


def test_symlinks_to_the_inside_are_followed_by_the_kernel_only(folder: Path) -> None:
    (folder / "real").mkdir(parents=True)
    (folder / "real" / "file").write_bytes(b"inside")
    (folder / "link").symlink_to("real")
    (folder / "real" / "up").symlink_to("../real/file")
    kernel, walking = Root(folder), Root(folder, opener=walk_beneath)
    assert read(kernel, "link/file") == read(kernel, "real/up") == b"inside"
    write(kernel, "link/new")
    assert (folder / "real" / "new").read_bytes() == b"new"
    for path in ["link/file", "real/up"]:
        with pytest.raises(PermissionDeniedError, match="not followed"):
            read(walking, path)


def test_a_magic_link_of_proc_is_refused(tmp_path: Path) -> None:
    with pytest.raises(PermissionDeniedError), Root(Path("/proc/self")).open_file(read_path("cwd/x")):
        pass
    with pytest.raises(PermissionDeniedError), Root(Path("/proc/self")).open_file(read_path("exe")):
        pass


def test_a_path_that_is_not_a_regular_file_is_refused(root: Root, folder: Path) -> None:
    os.mkfifo(folder / "pipe")
    (folder / "folder").mkdir()
    (folder / "zero").symlink_to("/dev/zero")
    (folder / "dangling").symlink_to("nowhere")
    with socket.socket(socket.AF_UNIX) as listening:
        address = f"/proc/self/fd/{os.open(folder, os.O_RDONLY)}/socket"  # the real path may be too long for an address
        listening.bind(address)
        os.close(int(address.split("/")[4]))
        for path in ["pipe", "folder", "zero", "socket"]:
            for operation in (read, write, append):
                with pytest.raises(PermissionDeniedError):
                    operation(root, path)
    for operation in (write, append):
        with pytest.raises(PermissionDeniedError):
            operation(root, "dangling")
    assert not (folder / "nowhere").exists()


def test_devices_are_refused(opener: Opener) -> None:
    for path in ["zero", "null", "full", "tty"]:
        with pytest.raises(ApexBridgeError) as caught:
            Root(Path("/dev"), opener=opener).open_file(read_path(path))
        assert caught.value.code in ("PERMISSION_DENIED", "FILE_NOT_FOUND")


def test_a_pipe_with_a_reader_is_not_written_to(root: Root, folder: Path) -> None:
    os.mkfifo(folder / "pipe")
    reader = os.open(folder / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    with pytest.raises(PermissionDeniedError):
        append(root, "pipe")
    assert os.read(reader, 10) == b""
    os.close(reader)


def test_a_missing_file_is_reported_without_the_servers_path(root: Root, folder: Path) -> None:
    (folder / "file").write_bytes(b"")
    for path in ["missing", "no/such", "file/below"]:
        with pytest.raises(RequestError) as caught:
            read(root, path)
        assert (caught.value.code, caught.value.status) == ("FILE_NOT_FOUND", 404)
        assert path in caught.value.message
        assert str(folder) not in caught.value.message
    with pytest.raises(RequestError):
        names(root, "missing")


def test_a_root_that_does_not_exist_is_empty_until_something_is_written(folder: Path, opener: Opener) -> None:
    root = Root(folder / "not" / "yet", opener=opener)
    assert root.list_folder(read_path(".")) == ([], False)
    with pytest.raises(RequestError) as caught:
        read(root, "a")
    assert str(folder) not in caught.value.message
    write(root, "a")
    assert read(root, "a") == b"new"


def test_a_root_may_be_removed_and_created_again(root: Root, folder: Path) -> None:
    write(root, "a/b")
    shutil.rmtree(folder)
    assert names(root) == []
    write(root, "a/b", b"again")
    assert read(root, "a/b") == b"again"


def test_the_path_to_an_inner_folder_follows_no_symlink(folder: Path, opener: Opener) -> None:
    (folder / "keys").mkdir(parents=True)
    (folder / "keys" / "one").symlink_to("../../outside")
    (folder / "real").mkdir()
    (folder / "keys" / "two").symlink_to("../real")
    for name in ["one", "two"]:
        root = Root(folder, inner=f"keys/{name}", opener=opener)
        for operation in (read, write, append):
            with pytest.raises(PermissionDeniedError):
                operation(root, "secret")


@pytest.mark.parametrize("error", [errno.ENOSYS, errno.EPERM])
def test_the_walk_is_used_if_openat2_is_refused(folder: Path, error: int) -> None:
    folder.mkdir()
    (folder / "link").symlink_to("../outside")
    (folder / "inside").symlink_to("file")
    root = Root(folder)
    write(root, "a/file")

    def work() -> bytes:
        for path in ["link/secret", "inside"]:  # the kernel would follow these, so the walk is used
            with pytest.raises(PermissionDeniedError):
                read(root, path)
        return read(root, "a/file")

    write(root, "file")
    assert read(root, "inside") == b"new"
    assert with_failing_syscall(OPENAT2, error, work) == b"new"


def test_endless_renames_are_reported(folder: Path) -> None:
    folder.mkdir()
    with pytest.raises(ApexBridgeError, match="try again") as caught:
        with_failing_syscall(OPENAT2, errno.EAGAIN, lambda: read(Root(folder), "file"))
    assert caught.value.code == "TOOL_EXECUTION_ERROR"


def test_other_kernel_errors_do_not_reveal_the_servers_path(folder: Path) -> None:
    folder.mkdir()
    for error in [errno.EMFILE, errno.EIO, errno.ENOMEM, errno.EACCES, errno.ESTALE]:
        with pytest.raises(ApexBridgeError) as caught:
            with_failing_syscall(OPENAT2, error, lambda: read(Root(folder), "some/file"))
        assert "some/file" in caught.value.message
        assert str(folder) not in caught.value.message


def test_the_openers_never_go_upwards(folder: Path) -> None:
    folder.mkdir()
    descriptor = os.open(folder, os.O_RDONLY)
    for opener in (open_beneath, walk_beneath):
        with pytest.raises(OSError, match="cross-device"):
            opener(descriptor, "../outside/secret", OPEN_FILE)
    os.close(descriptor)


def test_no_descriptor_is_left_open(root: Root, folder: Path) -> None:
    (folder / "out").symlink_to("../outside")
    os.mkfifo(folder / "pipe")
    write(root, "a/b/c", backup=True)
    before = descriptors()
    for path in ["a/b/c", "a/b", "out/secret", "missing", "pipe", "a/b/c/d"]:
        for operation in (read, write, append):
            with suppress(ApexBridgeError):
                operation(root, path)
    names(root, deep=True)
    assert descriptors() == before


# ---------------------------------------------------------------------------------------------------------- writing
def test_a_replaced_file_keeps_its_mode_and_a_new_one_is_private(root: Root, folder: Path) -> None:
    (folder / "script").write_bytes(b"old")
    (folder / "script").chmod(0o4750)
    write(root, "script")
    write(root, "new")
    modes = [stat.S_IMODE((folder / name).stat().st_mode) for name in ("script", "new")]
    assert modes == [0o750, 0o600]


def test_an_open_file_keeps_its_content_while_it_is_replaced(root: Root, folder: Path) -> None:
    write(root, "file", b"old")
    os.link(folder / "file", folder.parent / "second")
    with root.open_file(read_path("file")) as opened:
        write(root, "file", b"new")
        assert opened.read() == b"old"
    assert (folder.parent / "second").read_bytes() == b"old"
    assert names(root) == ["file"]


def test_a_read_only_file_is_not_changed(root: Root, folder: Path) -> None:
    (folder / "kept").write_bytes(b"kept")
    (folder / "kept").chmod(0o444)
    for operation in (write, append):
        with pytest.raises(PermissionDeniedError, match="read-only"):
            operation(root, "kept")
    assert (folder / "kept").read_bytes() == b"kept"


def test_backups_never_overwrite_one_another(root: Root, folder: Path) -> None:
    assert write(root, "a/note", b"0", backup=True) is None
    (folder / "a" / "note.bak1").symlink_to("../../outside/secret")
    assert write(root, "a/note", b"1", backup=True) == "a/note.bak"
    assert write(root, "a/note", b"2", backup=True) == "a/note.bak2"
    assert append(root, "a/note", b"3", backup=True) == (1, "a/note.bak3")
    assert [read(root, f"a/note{end}") for end in ("", ".bak", ".bak2", ".bak3")] == [b"23", b"0", b"1", b"2"]
    assert (folder.parent / "outside" / "secret").read_bytes() == MARKER


def test_a_name_too_long_for_a_backup_changes_nothing(root: Root) -> None:
    name = "x" * 254
    write(root, name, b"old")
    with pytest.raises(InvalidInputError):
        write(root, name, b"new", backup=True)
    assert (names(root), read(root, name)) == ([name], b"old")


def test_appending_to_a_hard_link_is_refused(root: Root, folder: Path) -> None:
    os.link(folder.parent / "outside" / "secret", folder / "hard")
    with pytest.raises(PermissionDeniedError, match="hard link"):
        append(root, "hard")
    write(root, "hard")
    assert (folder.parent / "outside" / "secret").read_bytes() == MARKER


def test_a_file_in_place_of_a_folder_is_reported(root: Root) -> None:
    write(root, "file")
    with pytest.raises(PermissionDeniedError, match="folder"):
        write(root, "file/below")
    with pytest.raises(PermissionDeniedError, match="workspace itself"):
        write(root, ".")


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EDQUOT, errno.EROFS])
@pytest.mark.parametrize("operation", [write, append])
def test_a_full_disk_changes_nothing(root: Root, operation: Callable[..., object], error: int) -> None:
    write(root, "file", b"old")
    for path in ["file", "other"]:
        with pytest.raises(ServerError) as caught:
            with_failing_syscall(WRITE, error, partial(operation, root, path))
        assert (caught.value.code, caught.value.status) == ("STORAGE_FULL", 507)
    with pytest.raises(ServerError):
        with_failing_syscall(WRITE, error, lambda: operation(root, "file", backup=True))
    assert read(root, "file") == b"old"
    assert names(root) == ["file"]


# ---------------------------------------------------------------------------------------------------------- listing
def test_a_listing_is_sorted_and_typed_and_follows_no_symlinks(root: Root, folder: Path) -> None:
    for name in ["b.txt", "a/z", "a/y/x"]:
        write(root, name, b"12345")
    (folder / "link").symlink_to("../outside")
    (folder / "a" / "back").symlink_to("..")
    os.mkfifo(folder / "pipe")
    os.utime(folder / "b.txt", (0, 86400))
    found, is_truncated = root.list_folder(read_path("."))
    rows = [(entry.path, entry.type, entry.size) for entry in found]
    assert rows == [("a", "folder", 0), ("b.txt", "file", 5), ("link", "link", 0), ("pipe", "other", 0)]
    assert (found[1].modified.isoformat(), is_truncated) == ("1970-01-02T00:00:00+00:00", False)
    assert names(root, deep=True) == ["a", "a/back", "a/y", "a/y/x", "a/z", "b.txt", "link", "pipe"]
    assert names(root, "a", deep=True) == ["back", "y", "y/x", "z"]
    assert names(root, pattern="**/?", deep=True) == ["a", "a/y", "a/y/x", "a/z"]


def test_a_listing_is_limited_and_reports_more_entries(folder: Path) -> None:
    folder.mkdir()
    for number in range(101):
        (folder / f"{number}").touch()
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        found, is_truncated = list_entries(descriptor, open_beneath, most=100)
        assert (len(found), is_truncated) == (100, True)
        (folder / "0").unlink()
        found, is_truncated = list_entries(descriptor, open_beneath, most=100)
        assert (len(found), is_truncated) == (100, False)
    finally:
        os.close(descriptor)


def test_a_very_deep_folder_is_listed_up_to_the_maximum_path_length(root: Root, folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    for _ in range(30):
        os.mkdir("d" * 200, dir_fd=descriptor)
        deeper = os.open("d" * 200, os.O_RDONLY, dir_fd=descriptor)
        os.close(descriptor)
        descriptor = deeper
    os.close(descriptor)
    before = descriptors()
    assert len(names(root, deep=True)) >= 20
    assert descriptors() == before


def test_unusual_names_and_times_can_be_serialised(root: Root, folder: Path) -> None:
    (folder / os.fsdecode(b"\xff\xfe.txt")).touch()
    (folder / "future").touch()
    os.utime(folder / "future", (0, 2**33))
    (folder / "past").touch()
    os.utime(folder / "past", (0, -(2**31)))
    for entry in root.list_folder(read_path("."))[0]:
        assert entry.path.encode()
        assert entry.modified.isoformat()


def test_a_file_cannot_be_listed(root: Root) -> None:
    write(root, "file")
    with pytest.raises(InvalidInputError, match="not a folder"):
        names(root, "file")
