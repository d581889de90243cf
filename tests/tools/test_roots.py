"""The path jail over real folders: what it gives, what it refuses, with the kernel's help and without."""

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
from tests.tools.refusing import OPENAT2, WRITE, refusing

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
def test_odd_but_honest_names_are_paths(root: Root) -> None:
    for name in ["...", "..a", "a b", "-rf", "空 文件.txt", "é" * 127, "a:b", "~", "%2e%2e", "$HOME", "a\nb"]:
        write(root, name, name.encode())
        assert read(root, f"./{name}") == name.encode()


def test_files_are_read_and_written_at_any_depth(root: Root, folder: Path) -> None:
    write(root, "a/b/c/d.txt", b"deep")
    write(root, "top.txt", b"top")
    assert (read(root, "a/b/./c/d.txt"), read(root, "top.txt")) == (b"deep", b"top")
    assert (folder / "a/b/c/d.txt").read_bytes() == b"deep"


@pytest.mark.requirement("A6")
def test_links_that_lead_out_are_refused(root: Root, folder: Path) -> None:
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
        for act in (read, write, append):
            with pytest.raises(PermissionDeniedError) as caught:
                act(root, path)
            assert str(folder.parent) not in caught.value.message
    with pytest.raises(PermissionDeniedError):
        names(root, "parent")
    assert (outside / "secret").read_bytes() == MARKER
    assert [path.name for path in outside.iterdir()] == ["secret"]


def test_links_that_stay_inside_are_followed_by_the_kernel_only(folder: Path) -> None:
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


def test_a_link_of_the_proc_kind_is_refused_even_inside(tmp_path: Path) -> None:
    with pytest.raises(PermissionDeniedError), Root(Path("/proc/self")).open_file(read_path("cwd/x")):
        pass
    with pytest.raises(PermissionDeniedError), Root(Path("/proc/self")).open_file(read_path("exe")):
        pass


def test_what_is_no_regular_file_is_refused_at_once(root: Root, folder: Path) -> None:
    os.mkfifo(folder / "pipe")
    (folder / "folder").mkdir()
    (folder / "zero").symlink_to("/dev/zero")
    (folder / "dangling").symlink_to("nowhere")
    with socket.socket(socket.AF_UNIX) as listening:
        address = f"/proc/self/fd/{os.open(folder, os.O_RDONLY)}/socket"  # a short name for what is a long one here
        listening.bind(address)
        os.close(int(address.split("/")[4]))
        for path in ["pipe", "folder", "zero", "socket"]:
            for act in (read, write, append):
                with pytest.raises(PermissionDeniedError):
                    act(root, path)
    for act in (write, append):
        with pytest.raises(PermissionDeniedError):
            act(root, "dangling")
    assert not (folder / "nowhere").exists()


def test_devices_are_refused(opener: Opener) -> None:
    for path in ["zero", "null", "full", "tty"]:
        with pytest.raises(ApexBridgeError) as caught:
            Root(Path("/dev"), opener=opener).open_file(read_path(path))
        assert caught.value.code in ("PERMISSION_DENIED", "FILE_NOT_FOUND")


def test_a_pipe_that_somebody_reads_is_not_written_to(root: Root, folder: Path) -> None:
    os.mkfifo(folder / "pipe")
    reader = os.open(folder / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    with pytest.raises(PermissionDeniedError):
        append(root, "pipe")
    assert os.read(reader, 10) == b""
    os.close(reader)


def test_what_is_missing_is_told_without_the_servers_path(root: Root, folder: Path) -> None:
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


def test_a_root_may_be_removed_and_made_again(root: Root, folder: Path) -> None:
    write(root, "a/b")
    shutil.rmtree(folder)
    assert names(root) == []
    write(root, "a/b", b"again")
    assert read(root, "a/b") == b"again"


def test_the_way_to_an_inner_folder_passes_no_link(folder: Path, opener: Opener) -> None:
    (folder / "keys").mkdir(parents=True)
    (folder / "keys" / "one").symlink_to("../../outside")
    (folder / "real").mkdir()
    (folder / "keys" / "two").symlink_to("../real")
    for name in ["one", "two"]:
        root = Root(folder, inner=f"keys/{name}", opener=opener)
        for act in (read, write, append):
            with pytest.raises(PermissionDeniedError):
                act(root, "secret")


@pytest.mark.parametrize("error", [errno.ENOSYS, errno.EPERM])
def test_where_openat2_is_refused_the_walk_serves(folder: Path, error: int) -> None:
    folder.mkdir()
    (folder / "link").symlink_to("../outside")
    (folder / "inside").symlink_to("file")
    root = Root(folder)
    write(root, "a/file")

    def work() -> bytes:
        for path in ["link/secret", "inside"]:  # followed where the kernel answers, so this is the walk
            with pytest.raises(PermissionDeniedError):
                read(root, path)
        return read(root, "a/file")

    write(root, "file")
    assert read(root, "inside") == b"new"
    assert refusing(OPENAT2, error, work) == b"new"


def test_a_rename_that_never_ends_is_told(folder: Path) -> None:
    folder.mkdir()
    with pytest.raises(ApexBridgeError, match="try again") as caught:
        refusing(OPENAT2, errno.EAGAIN, lambda: read(Root(folder), "file"))
    assert caught.value.code == "TOOL_EXECUTION_ERROR"


def test_whatever_else_the_kernel_says_names_no_path_of_the_server(folder: Path) -> None:
    folder.mkdir()
    for error in [errno.EMFILE, errno.EIO, errno.ENOMEM, errno.EACCES, errno.ESTALE]:
        with pytest.raises(ApexBridgeError) as caught:
            refusing(OPENAT2, error, lambda: read(Root(folder), "some/file"))
        assert "some/file" in caught.value.message
        assert str(folder) not in caught.value.message


def test_the_walk_never_goes_upwards_by_itself(folder: Path) -> None:
    folder.mkdir()
    place = os.open(folder, os.O_RDONLY)
    for opener in (open_beneath, walk_beneath):
        with pytest.raises(OSError, match="cross-device"):
            opener(place, "../outside/secret", OPEN_FILE)
    os.close(place)


def test_no_descriptor_is_left_open(root: Root, folder: Path) -> None:
    (folder / "out").symlink_to("../outside")
    os.mkfifo(folder / "pipe")
    write(root, "a/b/c", backup=True)
    before = descriptors()
    for path in ["a/b/c", "a/b", "out/secret", "missing", "pipe", "a/b/c/d"]:
        for act in (read, write, append):
            with suppress(ApexBridgeError):
                act(root, path)
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


def test_a_reader_keeps_what_it_opened_while_the_file_is_replaced(root: Root, folder: Path) -> None:
    write(root, "file", b"old")
    os.link(folder / "file", folder.parent / "second")
    with root.open_file(read_path("file")) as opened:
        write(root, "file", b"new")
        assert opened.read() == b"old"
    assert (folder.parent / "second").read_bytes() == b"old"
    assert names(root) == ["file"]


def test_a_read_only_file_is_left_alone(root: Root, folder: Path) -> None:
    (folder / "kept").write_bytes(b"kept")
    (folder / "kept").chmod(0o444)
    for act in (write, append):
        with pytest.raises(PermissionDeniedError, match="read-only"):
            act(root, "kept")
    assert (folder / "kept").read_bytes() == b"kept"


def test_backups_never_overwrite_one_another(root: Root, folder: Path) -> None:
    assert write(root, "a/note", b"0", backup=True) is None
    (folder / "a" / "note.bak1").symlink_to("../../outside/secret")
    assert write(root, "a/note", b"1", backup=True) == "a/note.bak"
    assert write(root, "a/note", b"2", backup=True) == "a/note.bak2"
    assert append(root, "a/note", b"3", backup=True) == (1, "a/note.bak3")
    assert [read(root, f"a/note{end}") for end in ("", ".bak", ".bak2", ".bak3")] == [b"23", b"0", b"1", b"2"]
    assert (folder.parent / "outside" / "secret").read_bytes() == MARKER


def test_a_name_too_long_for_a_backup_leaves_everything_as_it_was(root: Root) -> None:
    name = "x" * 254
    write(root, name, b"old")
    with pytest.raises(InvalidInputError):
        write(root, name, b"new", backup=True)
    assert (names(root), read(root, name)) == ([name], b"old")


def test_appending_does_not_reach_a_second_name_outside(root: Root, folder: Path) -> None:
    os.link(folder.parent / "outside" / "secret", folder / "hard")
    with pytest.raises(PermissionDeniedError, match="hard link"):
        append(root, "hard")
    write(root, "hard")
    assert (folder.parent / "outside" / "secret").read_bytes() == MARKER


def test_a_file_where_a_folder_is_needed_is_told(root: Root) -> None:
    write(root, "file")
    with pytest.raises(PermissionDeniedError, match="folder"):
        write(root, "file/below")
    with pytest.raises(PermissionDeniedError, match="workspace itself"):
        write(root, ".")


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EDQUOT, errno.EROFS])
@pytest.mark.parametrize("act", [write, append])
def test_a_full_disk_changes_nothing(root: Root, act: Callable[..., object], error: int) -> None:
    write(root, "file", b"old")
    for path in ["file", "other"]:
        with pytest.raises(ServerError) as caught:
            refusing(WRITE, error, partial(act, root, path))
        assert (caught.value.code, caught.value.status) == ("STORAGE_FULL", 507)
    with pytest.raises(ServerError):
        refusing(WRITE, error, lambda: act(root, "file", backup=True))
    assert read(root, "file") == b"old"
    assert names(root) == ["file"]


# ---------------------------------------------------------------------------------------------------------- listing
def test_a_listing_is_sorted_typed_and_follows_nothing(root: Root, folder: Path) -> None:
    for name in ["b.txt", "a/z", "a/y/x"]:
        write(root, name, b"12345")
    (folder / "link").symlink_to("../outside")
    (folder / "a" / "back").symlink_to("..")
    os.mkfifo(folder / "pipe")
    os.utime(folder / "b.txt", (0, 86400))
    found, is_cut = root.list_folder(read_path("."))
    told = [(entry.path, entry.type, entry.size) for entry in found]
    assert told == [("a", "folder", 0), ("b.txt", "file", 5), ("link", "link", 0), ("pipe", "other", 0)]
    assert (found[1].modified.isoformat(), is_cut) == ("1970-01-02T00:00:00+00:00", False)
    assert names(root, deep=True) == ["a", "a/back", "a/y", "a/y/x", "a/z", "b.txt", "link", "pipe"]
    assert names(root, "a", deep=True) == ["back", "y", "y/x", "z"]
    assert names(root, pattern="**/?", deep=True) == ["a", "a/y", "a/y/x", "a/z"]


def test_a_listing_looks_at_so_many_and_says_that_there_is_more(folder: Path) -> None:
    folder.mkdir()
    for number in range(101):
        (folder / f"{number}").touch()
    place = os.open(folder, os.O_RDONLY)
    try:
        found, is_cut = list_entries(place, open_beneath, most=100)
        assert (len(found), is_cut) == (100, True)
        (folder / "0").unlink()
        found, is_cut = list_entries(place, open_beneath, most=100)
        assert (len(found), is_cut) == (100, False)
    finally:
        os.close(place)


def test_a_very_deep_folder_is_listed_as_far_as_a_path_reaches(root: Root, folder: Path) -> None:
    place = os.open(folder, os.O_RDONLY)
    for _ in range(30):
        os.mkdir("d" * 200, dir_fd=place)
        deeper = os.open("d" * 200, os.O_RDONLY, dir_fd=place)
        os.close(place)
        place = deeper
    os.close(place)
    before = descriptors()
    assert len(names(root, deep=True)) >= 20
    assert descriptors() == before


def test_odd_names_and_odd_times_can_be_sent(root: Root, folder: Path) -> None:
    (folder / os.fsdecode(b"\xff\xfe.txt")).touch()
    (folder / "future").touch()
    os.utime(folder / "future", (0, 2**33))
    (folder / "past").touch()
    os.utime(folder / "past", (0, -(2**31)))
    for entry in root.list_folder(read_path("."))[0]:
        assert entry.path.encode()
        assert entry.modified.isoformat()


def test_a_file_is_no_folder_to_list(root: Root) -> None:
    write(root, "file")
    with pytest.raises(InvalidInputError, match="not a folder"):
        names(root, "file")
